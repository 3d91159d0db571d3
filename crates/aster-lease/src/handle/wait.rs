//! Becoming the owner when one's turn comes.
//!
//! ```text
//! queue ──granted when the request came──────────────────▶ lease, counted from the request
//!  │ ▲ └──waited for, lapses soon──▶ claim ──one renewal─▶ lease, counted from that renewal
//!  │ └──────a fresh grant id─────────lapsed
//!  └──denied, or the wait ran out───────────────────────▶ answer
//! ```

use std::time::Duration;

use aster_core::{DenyReason, ErrorKind, Fence, LeaseOp, LeaseSnapshot, TransitionOutcome};
use tokio::runtime::Handle;
use tracing::Instrument;

use super::LeaseHandle;
use super::acquire::{ACQUIRE_TIME_MIN, AcquireOutcome};
use super::attempt::STOOD_STILL;
use super::wish::{Undo, Wish};
use crate::clock::Moment;
use crate::entropy;
use crate::error::{LeaseError, SerializerError};
use crate::waiting::{WAIT_MAX, WaitOutcome};

/// How far one round in the queue has come.
enum Step {
    Granted(LeaseHandle),
    /// The grant was made and is over again; whose turn it was did not hear of it in time.
    Lapsed(LeaseSnapshot),
    Denied(DenyReason, LeaseSnapshot),
    Failed(SerializerError),
}

impl Undo {
    pub(super) async fn acquire_wait(
        self,
        wait: Duration,
        may_rename: bool,
    ) -> Result<AcquireOutcome, LeaseError> {
        let Wish {
            resource,
            candidate,
            ..
        } = &self.wish;
        let span = tracing::debug_span!("acquire_wait", %resource, holder = %candidate);
        self.wait(wait, may_rename).instrument(span).await
    }

    async fn wait(
        mut self,
        wait: Duration,
        may_rename: bool,
    ) -> Result<AcquireOutcome, LeaseError> {
        let wait = wait.min(WAIT_MAX);
        // Failures are retried for as long as the caller waits, but at least as in a plain acquire.
        let time_max = wait.max(ACQUIRE_TIME_MIN);
        let clock = self.wish.parts.clock.clone();
        let started = clock.now();
        let mut backoff = self.wish.parts.backoff(self.wish.attempt_max());
        // Set once a grant may exist, or may still be made, that this call does not answer with.
        let mut is_loose = false;
        let mut has_lapsed = false;
        let mut has_asked_last = false;
        loop {
            let left = wait.saturating_sub(clock.now().since(started));
            let heard = self.wish.queue(left).await;
            is_loose |= heard.is_loose;
            let mut stood_still = heard.stood_still;
            let step = match heard.answer {
                Ok(WaitOutcome::Granted { fence, claim }) => {
                    is_loose = true;
                    self.wish.check_grant(&fence)?;
                    let time_left = time_max.saturating_sub(clock.now().since(started));
                    let claim = claim.map(|claim| claim.max(time_left));
                    let begun = clock.now();
                    let taken = self.wish.take(fence, claim, heard.sent, &self.runtime);
                    let step = taken.await;
                    let took = clock.now().since(begun);
                    stood_still |= took > claim.unwrap_or_default() + STOOD_STILL;
                    step
                }
                // NotHeld is said of this very wish only: its grant was made and has been ended, by an
                // operator or by a store that could not tell us.
                Ok(WaitOutcome::Denied(DenyReason::Expired | DenyReason::NotHeld, snapshot)) => {
                    Step::Lapsed(snapshot)
                }
                Ok(WaitOutcome::Denied(reason, snapshot)) => Step::Denied(reason, snapshot),
                Err(error) => Step::Failed(error),
            };
            let waited = clock.now().since(started);
            match step {
                Step::Granted(handle) => {
                    self.armed = false;
                    return Ok(AcquireOutcome::Granted(handle));
                }
                Step::Lapsed(_) if may_rename && waited < wait => {
                    self.wish.grant_id = entropy::grant_id(&*self.wish.parts.entropy)?;
                    tracing::debug!(
                        resource = %self.wish.resource,
                        "a turn lapsed before it was heard of: queueing again"
                    );
                    if !std::mem::replace(&mut has_lapsed, true) {
                        continue;
                    }
                }
                // Only what was asked for ran out, not what the caller gives.
                Step::Denied(DenyReason::WaitRanOut, _) if !heard.was_whole && waited < wait => {}
                Step::Lapsed(snapshot) => {
                    self.armed = is_loose;
                    let reason = match may_rename {
                        true => DenyReason::WaitRanOut,
                        false => DenyReason::Expired,
                    };
                    return Ok(AcquireOutcome::Denied(reason, snapshot));
                }
                Step::Denied(reason, snapshot) => {
                    self.armed = is_loose;
                    return Ok(AcquireOutcome::Denied(reason, snapshot));
                }
                Step::Failed(error) if error.kind() == ErrorKind::Retry && waited < time_max => {
                    is_loose = true;
                    tracing::debug!(resource = %self.wish.resource, %error, "waiting failed");
                    if let SerializerError::Overloaded { retry_after } = error {
                        tokio::time::sleep(retry_after.min(time_max - waited)).await;
                    }
                }
                // Nobody was there to hear an answer, and the time is over: ask once how it ended.
                Step::Failed(SerializerError::Timeout { .. })
                    if stood_still && !std::mem::replace(&mut has_asked_last, true) =>
                {
                    is_loose = true;
                    continue;
                }
                Step::Failed(error) => {
                    self.armed = error.kind() != ErrorKind::FixCall;
                    return Err(error.into());
                }
            }
            let left = match wait.saturating_sub(clock.now().since(started)) {
                Duration::ZERO => time_max.saturating_sub(clock.now().since(started)),
                left => left,
            };
            tokio::time::sleep(backoff.pause(left)).await;
        }
    }
}

impl Wish {
    /// Makes a lease of a grant that was asked for at `sent`. One that was waited for is renewed once
    /// first, within `claim` at most, because the request is too old to count from.
    async fn take(
        &self,
        fence: Fence,
        claim: Option<Duration>,
        sent: Moment,
        runtime: &Handle,
    ) -> Step {
        let anchor = match claim {
            None => sent,
            Some(claim) => match self.claim(&fence, claim).await {
                Ok(anchor) => anchor,
                Err(step) => return step,
            },
        };
        match self.handle(fence, anchor, runtime) {
            Some(handle) => Step::Granted(handle),
            // The answer came after its own self-limit: nobody may rely on it.
            None => Step::Failed(SerializerError::Timeout {
                after: self.timing.usable,
            }),
        }
    }

    /// Renews `fence` once. A failure is no answer: the grant may have lapsed and may have been
    /// renewed, so it is asked for until it is known, at most for `time_max`.
    async fn claim(&self, fence: &Fence, time_max: Duration) -> Result<Moment, Step> {
        let parts = &self.parts;
        let attempt_max = self.attempt_max();
        let mut backoff = parts.backoff(attempt_max);
        let started = parts.clock.now();
        let mut left = time_max;
        loop {
            let sent = parts.clock.now();
            let op = LeaseOp::Renew {
                holder: fence.holder.clone(),
                epoch: fence.epoch,
            };
            let answer = parts.send(&self.resource, op, attempt_max.min(left)).await;
            let error = match answer {
                Ok(TransitionOutcome::Renewed) => return Ok(sent),
                Ok(TransitionOutcome::Denied(DenyReason::Unauthorized, snapshot)) => {
                    return Err(Step::Denied(DenyReason::Unauthorized, snapshot));
                }
                Ok(TransitionOutcome::Denied(_, snapshot)) => return Err(Step::Lapsed(snapshot)),
                Ok(outcome) => {
                    let message = format!("{outcome:?} to a renewal");
                    return Err(Step::Failed(SerializerError::Unexpected { message }));
                }
                Err(error) if error.kind() == ErrorKind::Retry => error,
                Err(error) => return Err(Step::Failed(error)),
            };
            tokio::time::sleep(backoff.pause(left)).await;
            left = time_max.saturating_sub(parts.clock.now().since(started));
            if left.is_zero() {
                return Err(Step::Failed(error));
            }
        }
    }
}
