//! Work that ends with its lease.
//!
//! A guarded future is in one of these states, and only its own guard moves it on:
//!
//! | state | the work | leaves it when |
//! |---|---|---|
//! | new | has not run | the guard is polled for the first time |
//! | idle | waits, nobody runs it | the guard is polled, or dropped |
//! | busy | runs, or is being dropped | the poll or the drop returns |
//! | gone | does not exist any more | never |
//!
//! Before each poll the guard enters *busy* and only then looks whether the lease has ended; if so it
//! drops the work instead of running it. A release ends the lease first and only then looks for busy
//! guards. Whichever comes second sees the other, so no work begins to run once a release has looked,
//! and the release waits for what was running. An idle guard that nobody polls any more can never run
//! its work again, so it delays a release for no longer than [`ABANDONED_AFTER`].

use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use aster_core::ErrorKind;
use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::time::Sleep;

use super::LeaseHandle;
use super::attempt::{LOOK_AGAIN, within};
use super::state::{EndedReason, Shared};
use crate::clock::Clock;
use crate::error::LeaseError;

/// A guard that has been woken because its lease ended, and is not polled within this time, is taken
/// to have been left alone.
const ABANDONED_AFTER: Duration = Duration::from_millis(200);

/// The lease ended before the guarded work did. The work was dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the lease ended before the work did: {reason}")]
pub struct LeaseEnded {
    /// Why the lease ended.
    pub reason: EndedReason,
}

impl LeaseEnded {
    /// Always [`ErrorKind::Stop`].
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        ErrorKind::Stop
    }
}

impl LeaseHandle {
    /// Runs `work` for as long as the lease lasts (specification, "Handle lease loss": stop work).
    ///
    /// Once the lease has ended the work is dropped and never polled again, however late the guard
    /// itself is polled, and [`release`](Self::release) waits until that has happened. So work that is
    /// run only under a guard does nothing in the time of the next owner, as far as this process can
    /// tell; what it has already sent is for the resource to reject.
    ///
    /// Dropping takes effect where the work awaits. Work that blocks its thread runs on until it
    /// awaits; a release then waits for it in bounded time and fails rather than free the resource under
    /// it.
    ///
    /// The guard looks at the clock at least every second, with the timer of the tokio runtime that polls
    /// it; on another executor it hears of the end from the renewal.
    ///
    /// `work` may borrow. It must not release this lease itself: the release ends the work, and so the
    /// release. Dropping the returned future drops the work; it does not borrow the handle, and ends
    /// when the handle is dropped.
    ///
    /// # Errors
    ///
    /// [`LeaseEnded`] when the lease ended first. Work that has finished is an `Ok` even if the lease
    /// ended at that moment.
    pub fn guard<F: Future>(
        &self,
        work: F,
    ) -> impl Future<Output = Result<F::Output, LeaseEnded>> + use<F> {
        Guarded {
            shared: self.shared.clone(),
            ended: Box::pin(self.lost()),
            work: Some(Box::pin(work)),
            look_again: None,
            is_known: false,
        }
    }
}

/// The guards of one lease.
#[derive(Default)]
pub(super) struct Guards {
    counts: Mutex<Counts>,
    changed: Notify,
}

/// How many guards are not gone, and how many of these are busy.
#[derive(Clone, Copy, Default)]
struct Counts {
    alive: usize,
    busy: usize,
}

impl Guards {
    /// Waits until no guarded work of an ended lease runs or can run again.
    pub(super) async fn wait_until_still(
        &self,
        clock: &dyn Clock,
        time_max: Duration,
    ) -> Result<(), LeaseError> {
        let started = clock.now();
        loop {
            let mut changed = std::pin::pin!(self.changed.notified());
            changed.as_mut().enable();
            let Counts { alive, busy } = *self.lock();
            let waited = clock.now().since(started);
            let limit = match (alive, busy) {
                (0, _) => return Ok(()),
                (_, 0) => ABANDONED_AFTER.min(time_max),
                _ => time_max,
            };
            if waited < limit {
                within(clock, limit - waited, changed).await;
            } else if busy == 0 {
                tracing::debug!(alive, "guards that nobody polls are left behind");
                return Ok(());
            } else {
                return Err(LeaseError::StillWorking { guards: busy });
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Counts> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn enter(&self, is_known: &mut bool) -> Busy<'_> {
        let mut counts = self.lock();
        if !*is_known {
            counts.alive += 1;
            *is_known = true;
        }
        counts.busy += 1;
        Busy { guards: self }
    }

    fn gone(&self, is_known: &mut bool) {
        if std::mem::take(is_known) {
            self.lock().alive -= 1;
        }
    }
}

/// Busy until dropped, also by a panic of the work.
struct Busy<'a> {
    guards: &'a Guards,
}

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        self.guards.lock().busy -= 1;
        self.guards.changed.notify_waiters();
    }
}

struct Guarded<F> {
    shared: Arc<Shared>,
    /// Wakes the guard at the end of the lease.
    ended: Pin<Box<dyn Future<Output = EndedReason> + Send + Sync>>,
    /// `None` once it is gone.
    work: Option<Pin<Box<F>>>,
    /// Wakes the guard to look at the clock, should nobody else do so.
    look_again: Option<Pin<Box<Sleep>>>,
    /// Whether it counts as alive.
    is_known: bool,
}

impl<F: Future> Future for Guarded<F> {
    type Output = Result<F::Output, LeaseEnded>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        let shared = &*this.shared;
        let _busy = shared.guards.enter(&mut this.is_known);
        let ended = shared.ended();
        if ended.is_none()
            && let Some(work) = &mut this.work
            && let Poll::Ready(output) = work.as_mut().poll(context)
        {
            this.work = None;
            shared.guards.gone(&mut this.is_known);
            return Poll::Ready(Ok(output));
        }
        // The end is known before it is told: whoever tells it may be stopped in between.
        let told = match ended {
            Some(reason) => Poll::Ready(reason),
            None => this.ended.as_mut().poll(context),
        };
        if let Poll::Ready(reason) = told {
            this.work = None;
            shared.guards.gone(&mut this.is_known);
            return Poll::Ready(Err(LeaseEnded { reason }));
        }
        look_again(&mut this.look_again, shared, context);
        Poll::Pending
    }
}

impl<F> Drop for Guarded<F> {
    fn drop(&mut self) {
        if self.is_known {
            let _busy = self.shared.guards.enter(&mut self.is_known);
            self.work = None;
            self.shared.guards.gone(&mut self.is_known);
        }
    }
}

/// Has the guard woken when its lease may be over, and at least every [`LOOK_AGAIN`].
fn look_again(timer: &mut Option<Pin<Box<Sleep>>>, shared: &Shared, context: &mut Context<'_>) {
    if Handle::try_current().is_err() {
        // Another executor: the renewal, on its own runtime, tells of the end.
        return;
    }
    loop {
        let Some(left) = shared.remaining() else {
            // Over since we looked.
            context.waker().wake_by_ref();
            return;
        };
        let sleep = timer.get_or_insert_with(|| Box::pin(tokio::time::sleep(left.min(LOOK_AGAIN))));
        if sleep.as_mut().poll(context).is_pending() {
            return;
        }
        *timer = None;
    }
}
