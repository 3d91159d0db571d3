//! Waiting for a resource in the serializer's queue: what is asked and what is answered.

use std::time::Duration;

use aster_core::{DenyReason, Fence, GrantId, LeaseOp, LeaseSnapshot, Principal, Ttl};

/// The longest wait in a queue: 24 h. A longer one is cut to it.
pub const WAIT_MAX: Duration = Duration::from_secs(24 * 60 * 60);
/// How long a grant that was waited for lasts by default until its first renewal, or the ttl if that
/// is shorter.
pub const CLAIM_TIME: Duration = Duration::from_secs(2);
/// How many may wait for one resource by default.
pub const WAITERS_MAX: usize = 10_000;

/// A wish to acquire that waits its turn.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WaitRequest {
    /// Who wants it.
    pub candidate: Principal,
    /// How long each grant and renewal lasts.
    pub ttl: Ttl,
    /// The id of this wish, the same for all its retries; asking again under it keeps the place in
    /// the queue.
    pub grant_id: GrantId,
    /// How long to wait at most, up to [`WAIT_MAX`]. Zero does not queue at all.
    pub wait: Duration,
}

impl WaitRequest {
    /// The operation that grants the wish when its turn has come.
    #[must_use]
    pub fn acquire(&self) -> LeaseOp {
        LeaseOp::Acquire {
            candidate: self.candidate.clone(),
            ttl: self.ttl,
            grant_id: self.grant_id,
        }
    }
}

/// The answer to a [`WaitRequest`].
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum WaitOutcome {
    /// The candidate owns the resource under this fence.
    Granted {
        /// The fence of the grant.
        fence: Fence,
        /// `None`: granted when the request came, for the whole ttl. Otherwise it was waited for: the
        /// request is too old to count from, so the fence may be used only after a renewal that was
        /// sent after this answer, and without one the grant lapses after this time.
        claim: Option<Duration>,
    },
    /// No: [`WaitRanOut`](DenyReason::WaitRanOut) when others still had their turn, otherwise as for
    /// an Acquire.
    Denied(DenyReason, LeaseSnapshot),
}

/// One who waits. A hint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Waiter {
    /// How many come before it.
    pub position: usize,
    /// Who wants it.
    pub candidate: Principal,
    /// The ttl that it asks for.
    pub ttl: Ttl,
    /// For how long it has been waiting, where the store can tell.
    pub waiting: Option<Duration>,
}
