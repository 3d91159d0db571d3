//! Following who owns a resource. A hint, like every snapshot.

use std::sync::{Arc, Mutex, PoisonError};

use aster_core::LeaseSnapshot;
use tokio::sync::watch;

use crate::error::SerializerError;

/// The changes of one resource's ownership, the latest one only: whoever is slow, or was cut off,
/// sees the present state and not each step on the way. Renewals are not changes; the same holder under
/// a new epoch is one.
#[derive(Debug)]
pub struct LeaseWatch {
    receiver: watch::Receiver<LeaseSnapshot>,
    seen: Option<LeaseSnapshot>,
    failure: Failure,
}

/// Why a watch ended, for whoever watches.
type Failure = Arc<Mutex<Option<SerializerError>>>;

/// The store's end of a [`LeaseWatch`].
#[derive(Debug)]
pub struct WatchSender {
    sender: watch::Sender<LeaseSnapshot>,
    failure: Failure,
}

impl LeaseWatch {
    /// A watch that first shows `present`, and the end through which its store tells what changes.
    #[must_use]
    pub fn channel(present: LeaseSnapshot) -> (WatchSender, LeaseWatch) {
        let (sender, receiver) = watch::channel(present);
        let failure = Failure::default();
        let watch = LeaseWatch {
            receiver,
            seen: None,
            failure: failure.clone(),
        };
        (WatchSender { sender, failure }, watch)
    }

    /// At the first call the present state, afterwards the next change of epoch or holder. `None` once
    /// the store is closed or serves no more; [`take_failure`](Self::take_failure) tells why. Cancel
    /// safe: a dropped call loses no change.
    pub async fn next(&mut self) -> Option<LeaseSnapshot> {
        loop {
            let latest = self.receiver.borrow_and_update().clone();
            if !self
                .seen
                .as_ref()
                .is_some_and(|seen| same_owner(seen, &latest))
            {
                self.seen = Some(latest.clone());
                return Some(latest);
            }
            self.receiver.changed().await.ok()?;
        }
    }

    /// Why the store ended this watch, told once: for example that its file was replaced or removed
    /// while it was open. `None` while the watch goes on, and when the store was simply closed.
    pub fn take_failure(&mut self) -> Option<SerializerError> {
        let mut failure = self.failure.lock().unwrap_or_else(PoisonError::into_inner);
        failure.take()
    }
}

impl WatchSender {
    /// Shows `snapshot`, unless it shows the same owner already. `false` once nobody watches any more.
    pub fn publish(&self, snapshot: LeaseSnapshot) -> bool {
        self.sender.send_if_modified(|shown| {
            let changed = !same_owner(shown, &snapshot);
            if changed {
                *shown = snapshot;
            }
            changed
        });
        !self.is_closed()
    }

    /// Ends the watch, and tells whoever watches why.
    pub fn fail(self, error: SerializerError) {
        let mut failure = self.failure.lock().unwrap_or_else(PoisonError::into_inner);
        *failure = Some(error);
    }

    /// Nobody watches any more.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.sender.is_closed()
    }
}

fn same_owner(seen: &LeaseSnapshot, latest: &LeaseSnapshot) -> bool {
    (seen.epoch, seen.held, &seen.holder) == (latest.epoch, latest.held, &latest.holder)
}
