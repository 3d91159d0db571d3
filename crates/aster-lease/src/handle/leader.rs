//! Leading, over and over, in one call.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use aster_core::{DenyReason, ErrorKind, LeaseSnapshot};
use tokio::runtime::Handle;

use super::acquire::{AcquireOutcome, LeaseBuilder};
use super::attempt::Backoff;
use super::options::LeaseOptions;
use super::wish::{Undo, Wish};
use super::{LeaseHandle, ReleaseOutcome};
use crate::clock::Moment;
use crate::entropy::{self, jitter};
use crate::error::{LeaseError, SerializerError};
use crate::serializer::LeaseSerializer;
use crate::waiting::WAIT_MAX;

/// The longest pause between two attempts to lead.
const PAUSE_MAX: Duration = Duration::from_secs(10);
/// How much of the pause before a plain acquire is left to chance.
const PAUSE_SPREAD: f64 = 0.5;
/// Where there is no queue, an expiry that comes within the pause is waited for, and then about this
/// part of the pause more.
const AFTER_EXPIRY_PARTS: u32 = 16;
/// Not being authorized is believed after this time, or after a ttl if that is longer: roles may be
/// reloading.
const UNAUTHORIZED_TIME_MIN: Duration = Duration::from_secs(10);

/// Runs `work` whenever `holder` owns `resource`, until it says that it is done: leader election in one
/// call.
///
/// It waits for its turn in the serializer's queue; a store without one is asked from time to time. Then
/// it runs `work` under a [`guard`](LeaseHandle::guard) with the lease, whose
/// [`fence`](LeaseHandle::fence) `work` fetches before each protected write. When `work` ends the lease
/// is released: [`Break(value)`](ControlFlow::Break) ends the call with the value, and
/// [`Continue(())`](ControlFlow::Continue) steps down and queues again. When the lease is lost `work` is
/// dropped, and called again with the next lease, after a pause that grows while terms stay short.
///
/// Denials and failures that may pass are waited out. Cancel safe: dropping the call drops `work` at
/// once and releases the lease in the background.
///
/// ```
/// use std::ops::ControlFlow;
/// use std::sync::Arc;
/// use aster_lease::{LeaseOptions, MemorySerializer, run_while_leader};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let store = Arc::new(MemorySerializer::new());
/// let node_id = String::from("worker-a");
/// let options = LeaseOptions::default();
/// let written = run_while_leader(store.clone(), "catalog/current", &node_id, options, |lease| {
///     let (store, node_id) = (store.clone(), node_id.clone());
///     async move {
///         // Fetched immediately before the write, every time.
///         let Some(fence) = lease.fence() else {
///             return ControlFlow::Continue(());
///         };
///         match store.mutate_fenced(&fence, &node_id, || "catalog-v1") {
///             Ok(written) => ControlFlow::Break(written),
///             Err(_rejected) => ControlFlow::Continue(()),
///         }
///     }
/// })
/// .await?;
/// assert_eq!(written, "catalog-v1");
/// # Ok(())
/// # }
/// ```
///
/// # Errors
///
/// [`LeaseError`] of any kind but [`Retry`](ErrorKind::Retry): a bad name or option, a store that is
/// closed or failed, or [`LeaseError::Denied`] when `holder` stays unauthorized (for a ttl, and at
/// least 10 s). `work` does not run then, and what it held is released.
pub async fn run_while_leader<S, T, F, W>(
    serializer: Arc<S>,
    resource: &str,
    holder: &str,
    options: LeaseOptions,
    work: F,
) -> Result<T, LeaseError>
where
    S: LeaseSerializer + ?Sized,
    F: FnMut(Arc<LeaseHandle>) -> W,
    W: Future<Output = ControlFlow<T>>,
{
    LeaseHandle::builder(serializer, resource, holder)
        .options(options)
        .run_while_leader(work)
        .await
}

impl LeaseBuilder {
    /// As [`run_while_leader`]. Each term takes a grant id of its own; one given to the builder is not
    /// used.
    ///
    /// # Errors
    ///
    /// [`LeaseError`] as there.
    pub async fn run_while_leader<T, F, W>(self, mut work: F) -> Result<T, LeaseError>
    where
        F: FnMut(Arc<LeaseHandle>) -> W,
        W: Future<Output = ControlFlow<T>>,
    {
        let (wish, runtime) = self.wish()?;
        let mut candidacy = Candidacy::new(wish, runtime);
        loop {
            let mut term = candidacy.elected().await?;
            let lease = term.lease.clone();
            // The call itself belongs to the work as well.
            let guarded = term.lease.guard(async { work(lease).await });
            match guarded.await {
                Ok(ControlFlow::Break(value)) => {
                    if let Err(error) = term.step_down().await {
                        tracing::warn!(lease = ?term.lease, %error, "the work is done, but its lease has to run out");
                    }
                    return Ok(value);
                }
                Ok(ControlFlow::Continue(())) => match term.step_down().await {
                    Err(error) if error.kind() != ErrorKind::Retry => return Err(error),
                    _ => {}
                },
                Err(ended) => tracing::info!(lease = ?term.lease, %ended, "lost the lead"),
            }
            drop(term);
            candidacy.pause_after_term().await;
        }
    }
}

/// A lease in use. Dropping it gives the lease up in the background.
struct Term {
    lease: Arc<LeaseHandle>,
    runtime: Handle,
    is_over: bool,
}

impl Term {
    async fn step_down(&mut self) -> Result<ReleaseOutcome, LeaseError> {
        let outcome = self.lease.release().await;
        self.is_over = true;
        outcome
    }
}

impl Drop for Term {
    fn drop(&mut self) {
        if !self.is_over {
            self.runtime.spawn(self.lease.release());
        }
    }
}

/// Somebody who wants to lead.
struct Candidacy {
    wish: Wish,
    runtime: Handle,
    backoff: Backoff,
    elected_at: Option<Moment>,
    unauthorized_since: Option<Moment>,
    can_queue: bool,
}

impl Candidacy {
    fn new(wish: Wish, runtime: Handle) -> Self {
        Self {
            backoff: backoff(&wish),
            wish,
            runtime,
            elected_at: None,
            unauthorized_since: None,
            can_queue: true,
        }
    }

    async fn elected(&mut self) -> Result<Term, LeaseError> {
        loop {
            self.wish.grant_id = entropy::grant_id(&*self.wish.parts.entropy)?;
            let undo = Undo::new(self.wish.clone(), self.runtime.clone());
            let outcome = match self.can_queue {
                true => undo.acquire_wait(WAIT_MAX, true).await,
                false => undo.acquire().await,
            };
            match outcome {
                Ok(AcquireOutcome::Granted(lease)) => {
                    self.elected_at = Some(self.wish.parts.clock.now());
                    self.unauthorized_since = None;
                    return Ok(Term {
                        lease: Arc::new(lease),
                        runtime: self.runtime.clone(),
                        is_over: false,
                    });
                }
                Ok(AcquireOutcome::Denied(reason, snapshot)) => {
                    self.check_authorized(reason)?;
                    let pause = self.pause_after_denial(reason, &snapshot);
                    tokio::time::sleep(pause).await;
                }
                Err(LeaseError::Serializer(SerializerError::Unsupported { .. }))
                    if self.can_queue =>
                {
                    self.can_queue = false;
                }
                Err(error) if error.kind() == ErrorKind::Retry => {
                    tracing::debug!(resource = %self.wish.resource, %error, "no lease yet");
                    tokio::time::sleep(self.backoff.pause(PAUSE_MAX)).await;
                }
                Err(error) => return Err(error),
            }
        }
    }

    fn check_authorized(&mut self, reason: DenyReason) -> Result<(), LeaseError> {
        if reason != DenyReason::Unauthorized {
            self.unauthorized_since = None;
            return Ok(());
        }
        let now = self.wish.parts.clock.now();
        let since = *self.unauthorized_since.get_or_insert(now);
        let believed_after = self.wish.timing.ttl.duration().max(UNAUTHORIZED_TIME_MIN);
        if now.since(since) < believed_after {
            return Ok(());
        }
        Err(LeaseError::Denied {
            operation: "acquire",
            reason,
        })
    }

    fn pause_after_denial(&mut self, reason: DenyReason, snapshot: &LeaseSnapshot) -> Duration {
        let entropy = &*self.wish.parts.entropy;
        match (reason, snapshot.remaining) {
            (DenyReason::WaitRanOut, _) => Duration::ZERO,
            (DenyReason::HeldByOther, remaining) => {
                let interval = self.wish.timing.renew_interval.min(PAUSE_MAX);
                match remaining {
                    Some(remaining) if remaining < interval => {
                        let late = interval / AFTER_EXPIRY_PARTS;
                        remaining + late.mul_f64(jitter(entropy, PAUSE_SPREAD))
                    }
                    _ => interval.mul_f64(jitter(entropy, PAUSE_SPREAD)),
                }
            }
            _ => self.backoff.pause(PAUSE_MAX),
        }
    }

    /// Terms that end as soon as they begin must not become a tight loop.
    async fn pause_after_term(&mut self) {
        let now = self.wish.parts.clock.now();
        let ttl = self.wish.timing.ttl.duration();
        if self.elected_at.is_some_and(|at| now.since(at) >= ttl) {
            self.backoff = backoff(&self.wish);
        }
        tokio::time::sleep(self.backoff.pause(PAUSE_MAX)).await;
    }
}

fn backoff(wish: &Wish) -> Backoff {
    wish.parts
        .backoff(wish.timing.renew_interval.min(PAUSE_MAX))
}
