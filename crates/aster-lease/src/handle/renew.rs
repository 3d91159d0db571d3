//! Renewing in the background.

use std::sync::Arc;
use std::time::Duration;

use aster_core::{DenyReason, ErrorKind, LeaseOp, TransitionOutcome};

use super::attempt::LOOK_AGAIN;
use super::state::{EndedReason, Shared, Trouble, reason_of};
use crate::entropy::jitter;

/// How much of the renew interval is left to chance, so that leases taken together spread out.
const RENEW_SPREAD: f64 = 0.1;
/// One attempt may take this part of the renew interval, so that a lost reply leaves time to retry.
const ATTEMPT_PARTS: u32 = 2;
const ATTEMPT_MIN: Duration = Duration::from_millis(5);

/// Renews until the lease ends, and reports the loss when it comes.
pub(super) async fn run(renewal: Renewal) {
    let shared = &*renewal.0;
    loop {
        let pause = shared
            .timing
            .renew_interval
            .mul_f64(jitter(&*shared.parts.entropy, RENEW_SPREAD));
        if !sleep_until_due(shared, pause).await || !renew(shared).await {
            return;
        }
    }
}

/// Waits until `due` has passed since the anchor. `false` when the lease ended before.
async fn sleep_until_due(shared: &Shared, due: Duration) -> bool {
    loop {
        let Some(left) = shared.remaining() else {
            return false;
        };
        let until_due = due.saturating_sub(shared.since_anchor());
        if until_due.is_zero() {
            return true;
        }
        tokio::time::sleep(until_due.min(left).min(LOOK_AGAIN)).await;
    }
}

/// Sends renewals until one succeeds. `false` when the lease ended.
async fn renew(shared: &Shared) -> bool {
    let parts = &shared.parts;
    let attempt_max = (shared.timing.renew_interval / ATTEMPT_PARTS).max(ATTEMPT_MIN);
    let mut backoff = parts.backoff(attempt_max);
    loop {
        let Some(left) = shared.remaining() else {
            return false;
        };
        let sent = parts.clock.now();
        let op = LeaseOp::Renew {
            holder: shared.fence.holder.clone(),
            epoch: shared.fence.epoch,
        };
        let answer = parts
            .send(&shared.fence.resource, op, attempt_max.min(left))
            .await;
        match answer {
            Ok(TransitionOutcome::Renewed) => {
                shared.renewed(sent);
                return shared.remaining().is_some();
            }
            Ok(TransitionOutcome::Denied(DenyReason::Unauthorized, _)) => {
                // Roles may be reloading; the self-limit bounds how long that is believed.
                shared.troubled(Trouble::Unauthorized);
            }
            Ok(TransitionOutcome::Denied(denial, snapshot)) => {
                // Expired is a denial too, but not the end of the epoch: release can still free it.
                if denial != DenyReason::Expired {
                    shared.set_epoch_over();
                }
                shared.end(reason_of(denial, &snapshot));
                return false;
            }
            Ok(outcome) => {
                tracing::error!(fence = %shared.fence, ?outcome, "unexpected answer to a renewal");
                shared.troubled(Trouble::Unreachable);
            }
            Err(error) if error.kind() == ErrorKind::Stop => {
                tracing::warn!(fence = %shared.fence, %error, "the store refuses to renew");
                shared.end(EndedReason::StoreRefused);
                return false;
            }
            Err(error) => {
                tracing::debug!(fence = %shared.fence, %error, "a renewal failed");
                shared.troubled(Trouble::Unreachable);
            }
        }
        let Some(left) = shared.remaining() else {
            return false;
        };
        tokio::time::sleep(backoff.pause(left).min(LOOK_AGAIN)).await;
    }
}

/// What the task owns. However the task comes to its end, also if its runtime never ran it, this says
/// that nobody renews any more.
pub(super) struct Renewal(pub(super) Arc<Shared>);

impl Drop for Renewal {
    fn drop(&mut self) {
        self.0.end(EndedReason::RuntimeStopped);
    }
}
