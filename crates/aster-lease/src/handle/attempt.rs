//! One request, and the pauses between retries.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use aster_core::{LeaseOp, TransitionOutcome};

use crate::clock::{Clock, Moment};
use crate::entropy::{Entropy, jitter};
use crate::error::SerializerError;
use crate::metrics::Metrics;
use crate::serializer::LeaseSerializer;

use super::schedule::Schedule;

/// Timers look at the clock again at least this often, because they may stand still while the
/// machine is suspended.
pub(super) const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// Whoever did not look for longer than this was stopped, or slept with the machine.
pub(super) const STOOD_STILL: Duration = Duration::from_secs(2);

/// Retries start after this part of the time that one attempt may take, and double from there.
const BACKOFF_PARTS: u32 = 16;
/// The shortest pause between retries.
const BACKOFF_MIN: Duration = Duration::from_millis(1);
/// How much of a pause is left to chance.
const BACKOFF_SPREAD: f64 = 0.5;

/// What the engine works with: the serializer, time and randomness, and the schedule that renews.
#[derive(Clone)]
pub(super) struct Parts {
    pub(super) serializer: Arc<dyn LeaseSerializer>,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) entropy: Arc<dyn Entropy>,
    pub(super) schedule: Arc<Schedule>,
    pub(super) metrics: Metrics,
}

impl Parts {
    /// Sends `op` and waits for the answer at most `limit`. A request that was given up may still be
    /// carried out.
    ///
    /// Cancel safe: dropping it drops the request.
    pub(super) async fn send(
        &self,
        resource: &str,
        op: LeaseOp,
        limit: Duration,
    ) -> Result<TransitionOutcome, SerializerError> {
        let request = self.serializer.transition(resource, op);
        match within(&*self.clock, limit, request).await {
            Some(answer) => answer,
            None => Err(SerializerError::Timeout { after: limit }),
        }
    }

    pub(super) fn backoff(&self, attempt_max: Duration) -> Backoff {
        let first = (attempt_max / BACKOFF_PARTS).max(BACKOFF_MIN);
        Backoff {
            next: first,
            max: attempt_max.max(first),
            entropy: self.entropy.clone(),
        }
    }
}

/// `future`'s output, or `None` once `limit` has passed on `clock` (which counts suspension).
pub(crate) async fn within<F: Future>(
    clock: &dyn Clock,
    limit: Duration,
    future: F,
) -> Option<F::Output> {
    let mut future = std::pin::pin!(future);
    let started: Moment = clock.now();
    loop {
        let left = limit
            .checked_sub(clock.now().since(started))
            .filter(|left| !left.is_zero())?;
        let pause = left.min(LOOK_AGAIN);
        if let Ok(output) = tokio::time::timeout(pause, future.as_mut()).await {
            return Some(output);
        }
    }
}

/// Growing pauses with a part left to chance, so that many clients do not return together.
pub(super) struct Backoff {
    next: Duration,
    max: Duration,
    entropy: Arc<dyn Entropy>,
}

impl Backoff {
    /// The next pause, at most `left`.
    pub(super) fn pause(&mut self, left: Duration) -> Duration {
        let pause = self
            .next
            .mul_f64(jitter(&*self.entropy, BACKOFF_SPREAD))
            .min(left);
        self.next = (self.next * 2).min(self.max);
        pause
    }
}

/// Why attempts failed, for the caller who hears of it in the end: what a store has said tells more than
/// that it did not answer the last attempt in the time that was left.
#[derive(Default)]
pub(super) struct Troubles {
    said: Option<SerializerError>,
}

impl Troubles {
    pub(super) fn add(&mut self, error: SerializerError) {
        if !matches!(error, SerializerError::Timeout { .. }) {
            self.said = Some(error);
        }
    }

    /// The error to report after `elapsed`.
    pub(super) fn told(self, elapsed: Duration) -> SerializerError {
        self.said.unwrap_or(SerializerError::Timeout {
            after: Duration::from_millis(u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX)),
        })
    }
}
