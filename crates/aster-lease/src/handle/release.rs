//! Giving a lease up.

use std::sync::Arc;
use std::time::Duration;

use aster_core::{DenyReason, ErrorKind, LeaseOp, TransitionOutcome, retry_outcome};

use super::state::Shared;
use crate::error::{LeaseError, SerializerError};

/// A release gives up after its lease would have expired anyway, but not before and not after these.
const RELEASE_TIME_MIN: Duration = Duration::from_secs(1);
const RELEASE_TIME_MAX: Duration = Duration::from_secs(10);
/// One attempt may take this part of the whole time.
const ATTEMPT_PARTS: u32 = 2;

/// What a release found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ReleaseOutcome {
    /// The resource is free now.
    Released,
    /// This ownership had ended already: an earlier release, a revoke, another owner.
    AlreadyEnded,
}

/// Frees the row, with retries, in bounded time.
pub(super) async fn run(shared: Arc<Shared>) -> Result<ReleaseOutcome, LeaseError> {
    if shared.epoch_over() {
        return Ok(ReleaseOutcome::AlreadyEnded);
    }
    let parts = &shared.parts;
    let time_max = shared
        .timing
        .ttl
        .duration()
        .clamp(RELEASE_TIME_MIN, RELEASE_TIME_MAX);
    let attempt_max = time_max / ATTEMPT_PARTS;
    let started = parts.clock.now();
    let mut backoff = parts.backoff(attempt_max / ATTEMPT_PARTS);
    let op = LeaseOp::Release {
        holder: shared.fence.holder.clone(),
        epoch: shared.fence.epoch,
    };
    let mut left = time_max;
    loop {
        let answer = parts
            .send(&shared.fence.resource, op.clone(), attempt_max.min(left))
            .await;
        let failure = match answer {
            Ok(TransitionOutcome::Released) => {
                shared.set_epoch_over();
                return Ok(ReleaseOutcome::Released);
            }
            Ok(TransitionOutcome::Denied(reason, snapshot)) => {
                if retry_outcome(&op, reason, &snapshot) {
                    shared.set_epoch_over();
                    return Ok(ReleaseOutcome::AlreadyEnded);
                }
                let denied = LeaseError::Denied {
                    operation: "release",
                    reason,
                };
                if reason != DenyReason::Unauthorized {
                    return Err(denied);
                }
                denied
            }
            Ok(outcome) => {
                let message = format!("{outcome:?} to a release");
                return Err(SerializerError::Unexpected { message }.into());
            }
            Err(error) if error.kind() == ErrorKind::Retry => error.into(),
            Err(error) => return Err(error.into()),
        };
        tokio::time::sleep(backoff.pause(left)).await;
        left = time_max.saturating_sub(parts.clock.now().since(started));
        if left.is_zero() {
            return Err(failure);
        }
    }
}
