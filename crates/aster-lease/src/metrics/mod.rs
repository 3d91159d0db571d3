//! What can be counted: Prometheus metrics of stores and of the holder's engine.
//!
//! | file | what lives there |
//! |---|---|
//! | `mod.rs` | [`Metrics`]: what stores and the engine record; does nothing without the feature `metrics` |
//! | `families.rs` | the metrics themselves, with names and labels (feature `metrics`) |
//!
//! Every label is one of a fixed set of words. Names of resources and holders are never labels: there
//! may be millions of them.

#[cfg(feature = "metrics")]
mod families;

/// The library in whose registry everything is counted, in the version that is meant.
#[cfg(feature = "metrics")]
pub use prometheus_client;

use std::fmt;
#[cfg(feature = "metrics")]
use std::sync::Arc;
use std::time::{Duration, Instant};

use aster_core::{FenceRejection, TransitionOutcome};

use crate::error::SerializerError;
use crate::handle::EndedReason;
use crate::registers::RegisterError;
use crate::waiting::WaitOutcome;

/// Where a store and the engine count what happens. Cheap to clone; all clones count together.
///
/// [`Metrics::default`] counts nothing. With the feature `metrics`, `Metrics::register` makes one that
/// counts in a registry of the program, which decides how it is served. Give it to the store's options
/// and every handle counts there too.
///
/// The recording methods are public so that a store outside this crate can call them.
#[derive(Clone, Default)]
pub struct Metrics {
    #[cfg(feature = "metrics")]
    families: Option<Arc<families::Families>>,
}

/// When something began; empty when nothing is counted.
#[derive(Debug, Clone, Copy)]
#[must_use = "it ends in the method that records what was measured"]
pub struct Timer {
    started: Option<Instant>,
}

/// Why a resource could be handed over to the first of its queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum HandOver {
    /// It was released, revoked or cancelled.
    Freed,
    /// Nobody renewed it, or nobody claimed it.
    Expired,
}

impl HandOver {
    /// `freed` or `expired`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            HandOver::Freed => "freed",
            HandOver::Expired => "expired",
        }
    }
}

/// What became of one renewal that the engine sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Renewed {
    /// The lease lasts another ttl.
    Ok,
    /// It failed, and is tried again until the self-limit.
    Retried,
    /// The serializer said no, which ended the lease.
    Denied,
}

impl Renewed {
    /// `ok`, `retried` or `denied`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Renewed::Ok => "ok",
            Renewed::Retried => "retried",
            Renewed::Denied => "denied",
        }
    }
}

impl Metrics {
    /// Metrics that are counted in `registry`, all named `aster_…`.
    ///
    /// Make one for each registry: a second one would be registered beside the first under the same
    /// names.
    #[cfg(feature = "metrics")]
    #[must_use]
    pub fn register(registry: &mut prometheus_client::registry::Registry) -> Self {
        let families = families::Families::register(registry);
        Self {
            families: Some(Arc::new(families)),
        }
    }

    /// Whether anything is counted.
    #[must_use]
    pub fn is_enabled(&self) -> bool {
        #[cfg(feature = "metrics")]
        return self.families.is_some();
        #[cfg(not(feature = "metrics"))]
        return false;
    }

    /// Begins to measure a duration.
    #[allow(
        clippy::disallowed_methods,
        reason = "how long something took is for people, and decides nothing"
    )]
    pub fn timer(&self) -> Timer {
        Timer {
            started: self.is_enabled().then(Instant::now),
        }
    }

    /// A store answered the operation named `op` (see [`LeaseOp::name`](aster_core::LeaseOp::name)).
    pub fn transition(
        &self,
        op: &'static str,
        answer: &Result<TransitionOutcome, SerializerError>,
        timer: Timer,
    ) {
        self.record(|| Event::Transition {
            op,
            answer: Answer::of(answer),
            took: timer.elapsed(),
        });
    }

    /// A store answered a register write; `op` is `register_write` or `release_with_value`.
    ///
    /// A rejected one is told to [`rejected`](Self::rejected) as well, where every protected write is.
    pub fn written(&self, op: &'static str, answer: &Result<u64, RegisterError>, timer: Timer) {
        self.record(|| Event::Transition {
            op,
            answer: match answer {
                Ok(_) => Answer::Ok,
                Err(RegisterError::Rejected(_)) => Answer::Denied("rejected"),
                Err(RegisterError::Conflict { .. }) => Answer::Denied("conflict"),
                Err(RegisterError::Store(error)) => Answer::Error(error.kind().name()),
            },
            took: timer.elapsed(),
        });
    }

    /// A store answered one who was ready to wait in its queue.
    pub fn waited(&self, answer: &Result<WaitOutcome, SerializerError>, timer: Timer) {
        self.record(|| Event::Waited {
            answer: match answer {
                Ok(WaitOutcome::Granted { .. }) => Answer::Ok,
                Ok(WaitOutcome::Denied(reason, _)) => Answer::Denied(reason.name()),
                Err(error) => Answer::Error(error.kind().name()),
            },
            took: timer.elapsed(),
        });
    }

    /// The fence rule refused a protected write.
    pub fn rejected(&self, rejection: &FenceRejection) {
        self.record(|| Event::Rejected {
            reason: rejection.name(),
            from_the_future: matches!(rejection, FenceRejection::FutureEpoch { .. }),
        });
    }

    /// Somebody stands in a queue from now on, until the answer is dropped.
    #[must_use = "dropping it says that the waiter has left"]
    pub fn waiter(&self) -> WaiterCounted {
        self.record(|| Event::Waiters(1));
        WaiterCounted {
            metrics: self.clone(),
        }
    }

    /// A resource was granted to the first of its queue.
    pub fn handed_over(&self, cause: HandOver) {
        self.record(|| Event::HandedOver(cause.name()));
    }

    /// A grant that was waited for was not claimed in time.
    pub fn claim_lapsed(&self) {
        self.record(|| Event::ClaimLapsed);
    }

    /// A handle holds a lease from now on.
    pub(crate) fn lease_held(&self) {
        self.record(|| Event::LeaseHeld);
    }

    /// A handle's lease has ended.
    pub(crate) fn lease_ended(&self, reason: EndedReason) {
        self.record(|| Event::LeaseEnded(reason.name()));
    }

    /// What became of a renewal that the engine sent.
    pub(crate) fn renewed(&self, renewed: Renewed) {
        self.record(|| Event::Renewed(renewed.name()));
    }

    /// The engine sent so many renewals in one call.
    pub(crate) fn renewal_batch(&self, renewals: usize) {
        self.record(|| Event::RenewalBatch(renewals));
    }

    #[cfg(feature = "metrics")]
    fn record(&self, event: impl FnOnce() -> Event) {
        if let Some(families) = &self.families {
            families.record(event());
        }
    }

    #[cfg(not(feature = "metrics"))]
    #[allow(
        clippy::unused_self,
        reason = "the same call with and without the feature"
    )]
    fn record(&self, _event: impl FnOnce() -> Event) {}
}

impl fmt::Debug for Metrics {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Metrics")
            .field("is_enabled", &self.is_enabled())
            .finish()
    }
}

impl Timer {
    fn elapsed(self) -> Duration {
        self.started
            .map_or(Duration::ZERO, |started| started.elapsed())
    }
}

/// One who waits, for as long as this lives.
#[derive(Debug)]
pub struct WaiterCounted {
    metrics: Metrics,
}

impl Drop for WaiterCounted {
    fn drop(&mut self) {
        self.metrics.record(|| Event::Waiters(-1));
    }
}

/// Something that is counted.
#[cfg_attr(
    not(feature = "metrics"),
    allow(dead_code, reason = "nobody looks at what is not counted")
)]
enum Event {
    Transition {
        op: &'static str,
        answer: Answer,
        took: Duration,
    },
    Waited {
        answer: Answer,
        took: Duration,
    },
    Rejected {
        reason: &'static str,
        from_the_future: bool,
    },
    Waiters(i64),
    HandedOver(&'static str),
    ClaimLapsed,
    LeaseHeld,
    LeaseEnded(&'static str),
    Renewed(&'static str),
    RenewalBatch(usize),
}

/// An answer of a store, as far as it is counted.
#[cfg_attr(
    not(feature = "metrics"),
    allow(dead_code, reason = "nobody looks at what is not counted")
)]
enum Answer {
    Ok,
    Denied(&'static str),
    Error(&'static str),
}

impl Answer {
    fn of(answer: &Result<TransitionOutcome, SerializerError>) -> Self {
        match answer {
            Ok(TransitionOutcome::Denied(reason, _)) => Answer::Denied(reason.name()),
            Ok(_) => Answer::Ok,
            Err(error) => Answer::Error(error.kind().name()),
        }
    }
}
