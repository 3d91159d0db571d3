//! One wish to own a resource, and what is undone when nobody wants it any more.

use std::sync::Arc;
use std::time::Duration;

use aster_core::{EPOCH_MAX, ErrorKind, Fence, GrantId, LeaseOp, Principal, ResourceName};
use tokio::runtime::Handle;

use super::attempt::Parts;
use super::options::Timing;
use super::{LeaseHandle, state::Shared};
use crate::clock::Moment;
use crate::error::{LeaseError, SerializerError};

/// One attempt to acquire may take this part of the time that a grant can be used, so that several lost
/// replies leave time to retry, and a store that is busy has time to say so.
const ATTEMPT_PARTS: u32 = 5;
/// But at least this long: a durable grant waits for a disk.
const ATTEMPT_MIN: Duration = Duration::from_secs(1);
/// And at most this long, whatever the ttl: a lost answer must not cost an hour.
const ATTEMPT_MAX: Duration = Duration::from_secs(10);
/// How often a grant that nobody wants any more is given back before its ttl has to do it.
const CANCEL_ATTEMPTS_MAX: u32 = 5;

#[derive(Clone)]
pub(super) struct Wish {
    pub(super) parts: Parts,
    pub(super) timing: Timing,
    pub(super) resource: ResourceName,
    pub(super) candidate: Principal,
    pub(super) grant_id: GrantId,
}

impl Wish {
    /// How long one request may take.
    pub(super) fn attempt_max(&self) -> Duration {
        (self.timing.usable / ATTEMPT_PARTS)
            .clamp(ATTEMPT_MIN, ATTEMPT_MAX)
            .min(self.timing.usable)
    }

    /// A serializer that answers with somebody else's fence must not make us use it.
    pub(super) fn check_grant(&self, fence: &Fence) -> Result<(), LeaseError> {
        let ours = fence.resource == self.resource && fence.holder == self.candidate;
        if ours && (1..=EPOCH_MAX).contains(&fence.epoch) {
            return Ok(());
        }
        let message = format!(
            "a grant for {fence} to {} for {}",
            self.candidate, self.resource
        );
        Err(SerializerError::Unexpected { message }.into())
    }

    /// The lease, counted from `anchor`; `None` when that is too long ago to rely on.
    pub(super) fn handle(
        &self,
        fence: Fence,
        anchor: Moment,
        runtime: &Handle,
    ) -> Option<LeaseHandle> {
        let shared = Arc::new(Shared::new(self.parts.clone(), self.timing, fence, anchor));
        shared.remaining()?;
        Some(LeaseHandle::start(shared, runtime))
    }

    /// Gives back a grant that may have been made for this wish.
    async fn cancel(self) {
        let limit = (self.timing.usable / CANCEL_ATTEMPTS_MAX).min(ATTEMPT_MAX);
        let mut backoff = self.parts.backoff(limit);
        for _ in 0..CANCEL_ATTEMPTS_MAX {
            let op = LeaseOp::Cancel {
                candidate: self.candidate.clone(),
                grant_id: self.grant_id,
            };
            match self.parts.send(&self.resource, op, limit).await {
                Err(error) if error.kind() == ErrorKind::Retry => {
                    tokio::time::sleep(backoff.pause(limit)).await;
                }
                // An answer, or an error that a retry cannot mend: the ttl does the rest.
                _ => return,
            }
        }
    }
}

/// Cancels the wish in the background unless it was answered: also when the caller drops its future.
pub(super) struct Undo {
    pub(super) wish: Wish,
    pub(super) runtime: Handle,
    pub(super) armed: bool,
}

impl Undo {
    pub(super) fn new(wish: Wish, runtime: Handle) -> Self {
        Self {
            wish,
            runtime,
            armed: true,
        }
    }
}

impl Drop for Undo {
    fn drop(&mut self) {
        if self.armed {
            self.runtime.spawn(self.wish.clone().cancel());
        }
    }
}
