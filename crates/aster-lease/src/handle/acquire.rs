//! Becoming the owner.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use aster_core::{
    DenyReason, EPOCH_MAX, ErrorKind, Fence, GrantId, LeaseOp, LeaseSnapshot, Principal,
    ResourceName, TransitionOutcome,
};
use tokio::runtime::Handle;

use super::attempt::Parts;
use super::options::{LeaseOptions, Timing};
use super::schedule::{Schedule, Source};
use super::{LeaseHandle, state::Shared};
use crate::clock::{Clock, Moment};
use crate::entropy::{self, Entropy, SystemEntropy};
use crate::error::{LeaseError, SerializerError};
use crate::serializer::LeaseSerializer;

/// One attempt to acquire may take this part of the renew interval, so that several lost replies
/// leave time to retry.
const ATTEMPT_PARTS: u32 = 2;
/// But at least this long: a durable grant waits for a disk.
const ATTEMPT_MIN: Duration = Duration::from_secs(1);
/// Attempts go on for as long as a grant would be usable, but at least this long.
const ACQUIRE_TIME_MIN: Duration = Duration::from_secs(3);
/// How often a grant that nobody wants any more is given back before its ttl has to do it.
const CANCEL_ATTEMPTS_MAX: u32 = 5;

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
        let timing = self.options.check()?;
        let resource = ResourceName::new(&self.resource)?;
        let candidate = Principal::new(&self.holder)?;
        let runtime = Handle::try_current().map_err(|_| LeaseError::NoRuntime)?;
        let grant_id = match self.grant_id {
            Some(grant_id) => grant_id,
            None => entropy::grant_id(&*self.entropy)?,
        };
        let schedule = Schedule::shared(self.source, self.clock, &runtime);
        let wish = Wish {
            parts: schedule.parts(self.entropy),
            timing,
            resource,
            candidate,
            grant_id,
        };
        wish.acquire(runtime).await
    }
}

#[derive(Clone)]
struct Wish {
    parts: Parts,
    timing: Timing,
    resource: ResourceName,
    candidate: Principal,
    grant_id: GrantId,
}

impl Wish {
    async fn acquire(self, runtime: Handle) -> Result<AcquireOutcome, LeaseError> {
        let parts = &self.parts;
        let attempt_max = (self.timing.renew_interval / ATTEMPT_PARTS)
            .max(ATTEMPT_MIN)
            .min(self.timing.usable);
        let time_max = self.timing.usable.max(ACQUIRE_TIME_MIN);
        let started = parts.clock.now();
        let mut backoff = parts.backoff(attempt_max);
        let mut undo = Undo {
            wish: &self,
            runtime: runtime.clone(),
            armed: true,
        };
        // Set once an attempt has ended without an answer: it may be carried out any time later.
        let mut unanswered = false;
        let mut left = time_max;
        loop {
            let sent = parts.clock.now();
            let op = LeaseOp::Acquire {
                candidate: self.candidate.clone(),
                ttl: self.timing.ttl,
                grant_id: self.grant_id,
            };
            let answer = parts.send(&self.resource, op, attempt_max.min(left)).await;
            let error = match answer {
                Ok(TransitionOutcome::Granted(fence)) => {
                    self.check_grant(&fence)?;
                    if let Some(handle) = self.handle(fence, sent, &runtime) {
                        undo.armed = false;
                        return Ok(AcquireOutcome::Granted(handle));
                    }
                    // The answer came after its own self-limit: nobody may rely on it.
                    SerializerError::Timeout { after: attempt_max }
                }
                Ok(TransitionOutcome::Denied(reason, snapshot)) => {
                    undo.armed = unanswered;
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
                tracing::debug!(resource = %self.resource, %error, "an acquire failed");
                tokio::time::sleep(backoff.pause(left)).await;
                left = time_max.saturating_sub(parts.clock.now().since(started));
            }
            if error.kind() != ErrorKind::Retry || left.is_zero() {
                undo.armed = error.kind() != ErrorKind::FixCall;
                return Err(error.into());
            }
        }
    }

    /// A serializer that answers with somebody else's fence must not make us use it.
    fn check_grant(&self, fence: &Fence) -> Result<(), LeaseError> {
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

    fn handle(&self, fence: Fence, sent: Moment, runtime: &Handle) -> Option<LeaseHandle> {
        let shared = Arc::new(Shared::new(self.parts.clone(), self.timing, fence, sent));
        shared.remaining()?;
        Some(LeaseHandle::start(shared, runtime))
    }

    /// Gives back a grant that may have been made for this wish.
    async fn cancel(self) {
        let mut backoff = self.parts.backoff(self.timing.usable / CANCEL_ATTEMPTS_MAX);
        for _ in 0..CANCEL_ATTEMPTS_MAX {
            let op = LeaseOp::Cancel {
                candidate: self.candidate.clone(),
                grant_id: self.grant_id,
            };
            let limit = self.timing.usable / CANCEL_ATTEMPTS_MAX;
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
struct Undo<'a> {
    wish: &'a Wish,
    runtime: Handle,
    armed: bool,
}

impl Drop for Undo<'_> {
    fn drop(&mut self) {
        if self.armed {
            self.runtime.spawn(self.wish.clone().cancel());
        }
    }
}
