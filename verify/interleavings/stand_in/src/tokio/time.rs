//! Timers of the world.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::task::{Context, Poll};
use std::time::Duration;

use crate::world::{self, TimerId};

/// As `tokio::time::Instant`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Instant(Duration);

impl Instant {
    /// The world's time. A point.
    #[must_use]
    pub fn now() -> Self {
        crate::point();
        Self(world::now())
    }

    /// As tokio's.
    #[must_use]
    pub fn saturating_duration_since(&self, earlier: Self) -> Duration {
        self.0.saturating_sub(earlier.0)
    }
}

/// As `tokio::time::Sleep`.
#[derive(Debug)]
#[must_use = "futures do nothing unless polled"]
pub struct Sleep {
    until: Duration,
    timer: Option<TimerId>,
}

/// As `tokio::time::sleep`.
pub fn sleep(duration: Duration) -> Sleep {
    Sleep {
        until: world::now().saturating_add(duration),
        timer: None,
    }
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        crate::point();
        if world::now() >= self.until {
            return Poll::Ready(());
        }
        let until = self.until;
        let timer = *self.timer.get_or_insert_with(|| world::add_timer(until));
        match world::poll_timer(timer, context.waker()) {
            true => Poll::Ready(()),
            false => Poll::Pending,
        }
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        if let Some(timer) = self.timer {
            world::remove_timer(timer);
        }
    }
}

/// As `tokio::time::timeout`: the future first, then the clock.
///
/// # Errors
///
/// [`Elapsed`] when the time was over first.
pub async fn timeout<F: Future>(duration: Duration, future: F) -> Result<F::Output, Elapsed> {
    let mut future = pin!(future);
    let mut sleep = pin!(sleep(duration));
    poll_fn(|context| {
        if let Poll::Ready(output) = future.as_mut().poll(context) {
            return Poll::Ready(Ok(output));
        }
        sleep.as_mut().poll(context).map(|()| Err(Elapsed(())))
    })
    .await
}

/// As `tokio::time::error::Elapsed`.
#[derive(Debug, thiserror::Error)]
#[error("deadline has elapsed")]
pub struct Elapsed(());
