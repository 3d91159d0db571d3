//! Where time comes in.
//!
//! Wall clocks decide nothing. A holder measures with two clocks at once and believes the larger
//! elapsed time: tokio's, which tests can pause and advance, and the boot-time clock, which also
//! counts the time that the machine was suspended.

use std::time::Duration;

/// A reading of both clocks. Only differences between readings of one [`Clock`] mean anything.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Moment {
    /// Time since some origin on the monotonic clock, which may stand still while the machine is
    /// suspended.
    pub monotonic: Duration,
    /// Time since some origin on a clock that counts suspension.
    pub boot: Duration,
}

impl Moment {
    /// How much time has passed since `earlier`: the larger of the two clocks' answers, zero if
    /// `earlier` is later.
    #[must_use]
    pub fn since(&self, earlier: Moment) -> Duration {
        let monotonic = self.monotonic.saturating_sub(earlier.monotonic);
        let boot = self.boot.saturating_sub(earlier.boot);
        monotonic.max(boot)
    }
}

/// A source of [`Moment`]s. Implement it to drive time in a test or a simulation.
pub trait Clock: Send + Sync + 'static {
    /// The present moment.
    fn now(&self) -> Moment;

    /// Milliseconds since 1970 on the wall clock, for the audit trail that people read. No decision
    /// depends on it.
    fn unix_ms(&self) -> u64 {
        wall_unix_ms()
    }
}

/// Tokio's clock and the operating system's boot-time clock.
#[derive(Debug, Clone, Copy)]
pub struct SystemClock {
    origin: tokio::time::Instant,
}

impl SystemClock {
    /// A clock that counts from now. Needs no runtime.
    #[must_use]
    #[allow(
        clippy::disallowed_methods,
        reason = "this is where the monotonic clock comes in"
    )]
    pub fn new() -> Self {
        Self {
            origin: tokio::time::Instant::now(),
        }
    }
}

impl Default for SystemClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for SystemClock {
    #[allow(
        clippy::disallowed_methods,
        reason = "this is where the monotonic clock comes in"
    )]
    fn now(&self) -> Moment {
        let monotonic = tokio::time::Instant::now().saturating_duration_since(self.origin);
        Moment {
            monotonic,
            boot: boot_time(),
        }
    }
}

/// Time since the machine started, suspension included, in this process's time namespace.
#[cfg(target_os = "linux")]
#[must_use]
#[allow(
    clippy::disallowed_methods,
    reason = "this is where the boot-time clock comes in"
)]
pub fn boot_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    let nanos = u32::try_from(time.tv_nsec).unwrap_or(0);
    Duration::new(seconds, nanos)
}

/// Elsewhere the monotonic clock has to do. On macOS and Windows it does not count suspension.
#[cfg(not(target_os = "linux"))]
#[must_use]
#[allow(
    clippy::disallowed_methods,
    reason = "this is where the boot-time clock comes in"
)]
pub fn boot_time() -> Duration {
    use std::sync::OnceLock;
    use std::time::Instant;
    static ORIGIN: OnceLock<Instant> = OnceLock::new();
    ORIGIN.get_or_init(Instant::now).elapsed()
}

/// Milliseconds since 1970 on the wall clock. It stands in audit records and decides nothing.
#[must_use]
#[allow(
    clippy::disallowed_methods,
    reason = "this is where the audit's wall clock comes in"
)]
pub fn wall_unix_ms() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.map_or(0, |since| {
        u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
    })
}
