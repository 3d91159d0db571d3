//! Becoming the owner.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use aster_core::{
    DenyReason, ErrorKind, GrantId, LeaseOp, LeaseSnapshot, Principal, ResourceName,
    TransitionOutcome,
};
use tokio::runtime::Handle;
use tracing::Instrument;

use super::LeaseHandle;
use super::attempt::Troubles;
use super::options::LeaseOptions;
use super::schedule::{Schedule, Source};
use super::wish::{Undo, Wish};
use crate::clock::Clock;
use crate::entropy::{self, Entropy, SystemEntropy};
use crate::error::{LeaseError, SerializerError};
use crate::metrics::Metrics;
use crate::serializer::LeaseSerializer;

/// Attempts go on for as long as a grant would be usable, but not shorter and not longer than these.
pub(super) const ACQUIRE_TIME_MIN: Duration = Duration::from_secs(3);
const ACQUIRE_TIME_MAX: Duration = Duration::from_secs(60);

/// The answer to an attempt to acquire.
#[derive(Debug)]
pub enum AcquireOutcome {
    /// The lease is held and renewed in the background.
    Granted(LeaseHandle),
    /// The serializer said no, and what the resource looked like then (a hint).
    Denied(DenyReason, LeaseSnapshot),
}

/// An acquire with other than the usual parts: [`LeaseHandle::builder`].
#[must_use = "nothing happens until acquire() is awaited"]
pub struct LeaseBuilder {
    source: Source,
    clock: Option<Arc<dyn Clock>>,
    entropy: Arc<dyn Entropy>,
    metrics: Option<Metrics>,
    resource: String,
    holder: String,
    options: LeaseOptions,
    grant_id: Option<GrantId>,
}

impl fmt::Debug for LeaseBuilder {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("LeaseBuilder")
            .field("resource", &self.resource)
            .field("holder", &self.holder)
            .field("options", &self.options)
            .finish_non_exhaustive()
    }
}

impl LeaseBuilder {
    pub(super) fn new<S>(serializer: Arc<S>, resource: &str, holder: &str) -> Self
    where
        S: LeaseSerializer + ?Sized,
    {
        Self {
            source: Source::new(serializer),
            clock: None,
            entropy: Arc::new(SystemEntropy),
            metrics: None,
            resource: resource.to_owned(),
            holder: holder.to_owned(),
            options: LeaseOptions::default(),
            grant_id: None,
        }
    }

    /// Ttl, renew interval and margin.
    pub fn options(mut self, options: LeaseOptions) -> Self {
        self.options = options;
        self
    }

    /// The clock that the self-limit is measured on. Leases with the same clock and serializer are
    /// renewed together.
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.clock = Some(clock);
        self
    }

    /// Where grant ids and jitter come from.
    pub fn entropy(mut self, entropy: Arc<dyn Entropy>) -> Self {
        self.entropy = entropy;
        self
    }

    /// Where the lease and its renewals are counted; by default where the serializer
    /// [counts](LeaseSerializer::metrics).
    pub fn metrics(mut self, metrics: Metrics) -> Self {
        self.metrics = Some(metrics);
        self
    }

    /// The id of this wish, for a caller who keeps it to retry across its own restarts. Never use
    /// one for two wishes: it is granted at most once.
    pub fn grant_id(mut self, grant_id: GrantId) -> Self {
        self.grant_id = Some(grant_id);
        self
    }

    /// As [`LeaseHandle::acquire`].
    ///
    /// # Errors
    ///
    /// [`LeaseError`] as there.
    pub async fn acquire(self) -> Result<AcquireOutcome, LeaseError> {
        let (wish, runtime) = self.wish()?;
        Undo::new(wish, runtime).acquire().await
    }

    /// As [`LeaseHandle::acquire_wait`].
    ///
    /// A grant id given to the builder stands for one place in the queue: if it is granted and lapses
    /// before this call hears of it, the answer is [`DenyReason::Expired`], and another place needs
    /// another id. Without one the call takes fresh ids by itself.
    ///
    /// # Errors
    ///
    /// [`LeaseError`] as there.
    pub async fn acquire_wait(self, wait: Duration) -> Result<AcquireOutcome, LeaseError> {
        let may_rename = self.grant_id.is_none();
        let (wish, runtime) = self.wish()?;
        Undo::new(wish, runtime)
            .acquire_wait(wait, may_rename)
            .await
    }

    /// Checks everything before anything is sent.
    pub(super) fn wish(self) -> Result<(Wish, Handle), LeaseError> {
        let timing = self.options.check()?;
        let resource = ResourceName::new(&self.resource)?;
        let candidate = Principal::new(&self.holder)?;
        let runtime = Handle::try_current().map_err(|_| LeaseError::NoRuntime)?;
        let grant_id = match self.grant_id {
            Some(grant_id) => grant_id,
            None => entropy::grant_id(&*self.entropy)?,
        };
        let metrics = self.metrics.unwrap_or_else(|| self.source.metrics());
        let schedule = Schedule::shared(self.source, self.clock, &runtime);
        let wish = Wish {
            parts: schedule.parts(self.entropy, metrics),
            timing,
            resource,
            candidate,
            grant_id,
        };
        Ok((wish, runtime))
    }
}

impl Undo {
    pub(super) async fn acquire(self) -> Result<AcquireOutcome, LeaseError> {
        let Wish {
            resource,
            candidate,
            ..
        } = &self.wish;
        let span = tracing::debug_span!("acquire", %resource, holder = %candidate);
        self.ask().instrument(span).await
    }

    async fn ask(mut self) -> Result<AcquireOutcome, LeaseError> {
        let wish = &self.wish;
        let parts = &wish.parts;
        let attempt_max = wish.attempt_max();
        let time_max = wish.timing.usable.clamp(ACQUIRE_TIME_MIN, ACQUIRE_TIME_MAX);
        let started = parts.clock.now();
        let mut backoff = parts.backoff(attempt_max);
        // Set once an attempt has ended without an answer: it may be carried out any time later.
        let mut unanswered = false;
        let mut troubles = Troubles::default();
        let mut left = time_max;
        loop {
            let sent = parts.clock.now();
            let op = LeaseOp::Acquire {
                candidate: wish.candidate.clone(),
                ttl: wish.timing.ttl,
                grant_id: wish.grant_id,
            };
            let answer = parts.send(&wish.resource, op, attempt_max.min(left)).await;
            let error = match answer {
                Ok(TransitionOutcome::Granted(fence)) => {
                    wish.check_grant(&fence)?;
                    if let Some(handle) = wish.handle(fence, sent, &self.runtime) {
                        self.armed = false;
                        return Ok(AcquireOutcome::Granted(handle));
                    }
                    // The answer came after its own self-limit: nobody may rely on it.
                    SerializerError::Timeout { after: attempt_max }
                }
                Ok(TransitionOutcome::Denied(reason, snapshot)) => {
                    self.armed = unanswered;
                    return Ok(AcquireOutcome::Denied(reason, snapshot));
                }
                Ok(outcome) => {
                    let message = format!("{outcome:?} to an acquire");
                    return Err(SerializerError::Unexpected { message }.into());
                }
                Err(error) => error,
            };
            unanswered = true;
            if error.kind() == ErrorKind::Retry {
                tracing::debug!(resource = %wish.resource, %error, "an acquire failed");
                tokio::time::sleep(backoff.pause(left)).await;
                left = time_max.saturating_sub(parts.clock.now().since(started));
            }
            let is_final = error.kind() != ErrorKind::Retry;
            self.armed = error.kind() != ErrorKind::FixCall;
            troubles.add(error);
            if is_final || left.is_zero() {
                let elapsed = parts.clock.now().since(started);
                return Err(troubles.told(elapsed).into());
            }
        }
    }
}
