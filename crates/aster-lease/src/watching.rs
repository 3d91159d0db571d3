//! Following who owns a resource. A hint, like every snapshot.

use aster_core::LeaseSnapshot;
use tokio::sync::watch;

/// The changes of one resource's ownership, the latest one only: whoever is slow, or was cut off,
/// sees the present state and not each step on the way. Renewals are not changes; the same holder under
/// a new epoch is one.
#[derive(Debug)]
pub struct LeaseWatch {
    receiver: watch::Receiver<LeaseSnapshot>,
    seen: Option<LeaseSnapshot>,
}

/// The store's end of a [`LeaseWatch`].
#[derive(Debug)]
pub struct WatchSender {
    sender: watch::Sender<LeaseSnapshot>,
}

impl LeaseWatch {
    /// A watch that first shows `present`, and the end through which its store tells what changes.
    #[must_use]
    pub fn channel(present: LeaseSnapshot) -> (WatchSender, LeaseWatch) {
        let (sender, receiver) = watch::channel(present);
        let watch = LeaseWatch {
            receiver,
            seen: None,
        };
        (WatchSender { sender }, watch)
    }

    /// At the first call the present state, afterwards the next change of epoch or holder. `None` once
    /// the store is closed. Cancel safe: a dropped call loses no change.
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

    /// Nobody watches any more.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.sender.is_closed()
    }
}

fn same_owner(seen: &LeaseSnapshot, latest: &LeaseSnapshot) -> bool {
    (seen.epoch, seen.held, &seen.holder) == (latest.epoch, latest.held, &latest.holder)
}
