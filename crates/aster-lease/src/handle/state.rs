//! What a lease knows about itself: one value behind one short lock.

use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use aster_core::{DenyReason, Fence, LeaseSnapshot};
use tokio::sync::watch;

use super::attempt::Parts;
use super::guard::Guards;
use super::options::Timing;
use super::release::LastWrite;
use crate::clock::Moment;

/// Where a lease stands. Once it is not `Held` it never changes again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum LeaseStatus {
    /// The fence may be used.
    Held,
    /// This holder gave it up. Whether the serializer has confirmed it is the result of
    /// [`release`](super::LeaseHandle::release).
    Released,
    /// The serializer said no.
    Fenced,
    /// The self-limit passed without a successful renewal.
    Lost,
}

/// Why a lease ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum EndedReason {
    /// This holder released it.
    Released,
    /// The handle was dropped; renewal stopped.
    Dropped,
    /// Someone else was granted the resource.
    Superseded,
    /// It was taken away and is free: an operator revoked it, or someone with this holder's identity
    /// released it.
    Revoked,
    /// The serializer saw the ttl pass without a renewal.
    Expired,
    /// The serializer kept refusing this identity until the self-limit.
    Unauthorized,
    /// No renewal succeeded until the self-limit.
    Unreachable,
    /// The store refuses to serve: closed, or waiting for an operator.
    StoreRefused,
    /// The renewal itself has ended: its runtime has stopped, or the serializer panicked in it.
    RuntimeStopped,
}

impl EndedReason {
    /// Its stable name, as metrics show it: `superseded`, ….
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            EndedReason::Released => "released",
            EndedReason::Dropped => "dropped",
            EndedReason::Superseded => "superseded",
            EndedReason::Revoked => "revoked",
            EndedReason::Expired => "expired",
            EndedReason::Unauthorized => "unauthorized",
            EndedReason::Unreachable => "unreachable",
            EndedReason::StoreRefused => "store_refused",
            EndedReason::RuntimeStopped => "runtime_stopped",
        }
    }
}

impl fmt::Display for EndedReason {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            EndedReason::Released => "released by this holder",
            EndedReason::Dropped => "the handle was dropped without a release",
            EndedReason::Superseded => "another worker was granted the resource",
            EndedReason::Revoked => "the lease was revoked",
            EndedReason::Expired => "the lease expired at the serializer",
            EndedReason::Unauthorized => "the serializer kept refusing this identity",
            EndedReason::Unreachable => "no renewal succeeded in time",
            EndedReason::StoreRefused => "the store refuses to serve",
            EndedReason::RuntimeStopped => "the renewal has ended with its runtime or by a panic",
        })
    }
}

/// The latest thing that kept a renewal from succeeding.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Trouble {
    Unreachable,
    Unauthorized,
}

pub(super) struct Shared {
    pub(super) parts: Parts,
    pub(super) timing: Timing,
    pub(super) fence: Fence,
    pub(super) guards: Guards,
    /// The release with a value that has had no answer yet, if there was one.
    pub(super) last_write: Mutex<Option<Box<LastWrite>>>,
    state: Mutex<State>,
    status: watch::Sender<LeaseStatus>,
}

struct State {
    /// When the last successful acquire or renew was sent. Everything is counted from here.
    anchor: Moment,
    trouble: Option<Trouble>,
    ended: Option<EndedReason>,
    /// The serializer confirmed that this epoch is over.
    epoch_over: bool,
}

impl Shared {
    pub(super) fn new(parts: Parts, timing: Timing, fence: Fence, anchor: Moment) -> Self {
        let state = State {
            anchor,
            trouble: None,
            ended: None,
            epoch_over: false,
        };
        let (status, _) = watch::channel(LeaseStatus::Held);
        parts.metrics.lease_held();
        Self {
            parts,
            timing,
            fence,
            guards: Guards::default(),
            last_write: Mutex::default(),
            state: Mutex::new(state),
            status,
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing panics under this lock; a poisoned one still holds a whole value.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How long the fence may still be used; `None` once the lease has ended. It looks at the clock,
    /// so no task has to have run, and what it finds past the self-limit is final.
    pub(super) fn remaining(&self) -> Option<Duration> {
        self.remaining_at(self.parts.clock.now())
    }

    /// The same at a moment that was read for many leases.
    pub(super) fn remaining_at(&self, now: Moment) -> Option<Duration> {
        let state = self.lock();
        let left = self.left(&state, now);
        if left.is_none() && state.ended.is_none() {
            let reason = match state.trouble {
                Some(Trouble::Unauthorized) => EndedReason::Unauthorized,
                _ => EndedReason::Unreachable,
            };
            self.end_locked(state, reason);
        }
        left
    }

    /// The same without ending anything: it wakes nobody, so it may be asked under a lock.
    pub(super) fn left_at(&self, now: Moment) -> Option<Duration> {
        self.left(&self.lock(), now)
    }

    fn left(&self, state: &State, now: Moment) -> Option<Duration> {
        if state.ended.is_some() {
            return None;
        }
        let elapsed = now.since(state.anchor);
        let left = self.timing.usable.checked_sub(elapsed);
        left.filter(|left| !left.is_zero())
    }

    pub(super) fn since_anchor_at(&self, now: Moment) -> Duration {
        now.since(self.lock().anchor)
    }

    /// A renewal that was sent at `sent` succeeded. It counts only if the lease has not ended in the
    /// meantime: no late reply revives a handle. `false` when the lease has ended.
    pub(super) fn renewed_at(&self, sent: Moment, now: Moment) -> bool {
        let mut state = self.lock();
        if self.left(&state, now).is_some() {
            state.anchor = sent;
            state.trouble = None;
            if self.left(&state, now).is_some() {
                return true;
            }
        }
        drop(state);
        self.remaining_at(now).is_some()
    }

    pub(super) fn troubled(&self, trouble: Trouble) {
        self.lock().trouble = Some(trouble);
    }

    /// Ends the lease unless it has ended. The first reason stays.
    pub(super) fn end(&self, reason: EndedReason) {
        let state = self.lock();
        if state.ended.is_none() {
            self.end_locked(state, reason);
        }
    }

    /// Whoever sets the reason tells the watchers, after the lock: a waker may run anything.
    fn end_locked(&self, mut state: MutexGuard<'_, State>, reason: EndedReason) {
        state.ended = Some(reason);
        drop(state);
        let status = status_of(reason);
        tracing::debug!(fence = %self.fence, ?status, %reason, "lease ended");
        self.parts.metrics.lease_ended(reason);
        self.status.send_replace(status);
    }

    pub(super) fn ended(&self) -> Option<EndedReason> {
        // Past the self-limit the lease has ended, whether or not anybody looked.
        self.remaining();
        self.lock().ended
    }

    pub(super) fn status(&self) -> LeaseStatus {
        self.ended().map_or(LeaseStatus::Held, status_of)
    }

    pub(super) fn subscribe(&self) -> watch::Receiver<LeaseStatus> {
        self.status.subscribe()
    }

    pub(super) fn set_epoch_over(&self) {
        self.lock().epoch_over = true;
    }

    pub(super) fn epoch_over(&self) -> bool {
        self.lock().epoch_over
    }
}

fn status_of(reason: EndedReason) -> LeaseStatus {
    match reason {
        EndedReason::Released | EndedReason::Dropped => LeaseStatus::Released,
        EndedReason::Superseded
        | EndedReason::Revoked
        | EndedReason::Expired
        | EndedReason::StoreRefused => LeaseStatus::Fenced,
        EndedReason::Unauthorized | EndedReason::Unreachable | EndedReason::RuntimeStopped => {
            LeaseStatus::Lost
        }
    }
}

/// What a definite denial of a renewal says about the lease.
pub(super) fn reason_of(denial: DenyReason, snapshot: &LeaseSnapshot) -> EndedReason {
    match denial {
        DenyReason::Expired => EndedReason::Expired,
        DenyReason::NotHeld | DenyReason::HeldOff => EndedReason::Revoked,
        DenyReason::EpochMismatch if !snapshot.held => EndedReason::Revoked,
        _ => EndedReason::Superseded,
    }
}
