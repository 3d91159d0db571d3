//! The clock of one machine: its own rate, and what suspension and an operator do to it.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use aster_lease::{Clock, Moment};
use tokio::time::Instant;

/// The rates of two machines differ by one part in a thousand at most (design, "The promise").
pub(crate) const RATE_PPM_MAX: i64 = 500;

/// Reads tokio's paused clock of the machine's own runtime; ask it inside that runtime only.
#[derive(Debug)]
pub(crate) struct MachineClock {
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// The runtime's instant at which `awake_ms` was right.
    origin: Option<Instant>,
    /// World time without suspension.
    awake_ms: u64,
    suspended_ms: u64,
    /// How much faster the machine counts than the world, in parts of a million.
    rate_ppm: i64,
    wall_ms: i64,
    /// A planted bug: expiry is judged by the wall clock.
    monotonic_is_wall: bool,
}

impl State {
    #[allow(
        clippy::disallowed_methods,
        reason = "this is a source of time, and the runtime's clock is paused"
    )]
    fn awake(&self) -> u64 {
        let since = self
            .origin
            .map_or(Duration::ZERO, |origin| Instant::now() - origin);
        self.awake_ms + u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
    }

    fn rated(&self, world_ms: u64) -> Duration {
        let parts = u64::try_from(1_000_000 + self.rate_ppm).unwrap_or(1_000_000);
        Duration::from_nanos(world_ms * parts)
    }
}

impl MachineClock {
    pub(crate) fn new(rate_ppm: i64, monotonic_is_wall: bool) -> Self {
        Self {
            state: Mutex::new(State {
                origin: None,
                awake_ms: 0,
                suspended_ms: 0,
                rate_ppm,
                wall_ms: 1_700_000_000_000,
                monotonic_is_wall,
            }),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The machine has a new runtime, inside which this is called, at `world_ms`.
    #[allow(
        clippy::disallowed_methods,
        reason = "this is a source of time, and the runtime's clock is paused"
    )]
    pub(crate) fn start(&self, world_ms: u64) {
        let mut state = self.lock();
        state.awake_ms = world_ms - state.suspended_ms;
        state.origin = Some(Instant::now());
    }

    /// The machine stood still for this long and its monotonic clock with it.
    pub(crate) fn was_suspended(&self, ms: u64) {
        self.lock().suspended_ms += ms;
    }

    pub(crate) fn set_wall(&self, jump_ms: i64) {
        self.lock().wall_ms += jump_ms;
    }

    /// How far the machine's own runtime has come in world time.
    pub(crate) fn world_ms(&self) -> u64 {
        let state = self.lock();
        state.awake() + state.suspended_ms
    }

    /// The machine's monotonic clock in microseconds.
    pub(crate) fn monotonic_us(&self) -> u64 {
        let state = self.lock();
        u64::try_from(state.rated(state.awake()).as_micros()).unwrap_or(u64::MAX)
    }
}

impl Clock for MachineClock {
    fn now(&self) -> Moment {
        let state = self.lock();
        let awake = state.awake();
        let mut monotonic = state.rated(awake);
        if state.monotonic_is_wall {
            // It has no other fault than that it is set.
            let wall = Duration::from_millis(u64::try_from(state.wall_ms).unwrap_or(0));
            monotonic = monotonic.saturating_add(wall);
        }
        Moment {
            monotonic,
            boot: state.rated(awake + state.suspended_ms),
        }
    }

    fn unix_ms(&self) -> u64 {
        let state = self.lock();
        u64::try_from(state.wall_ms).unwrap_or(0) + state.awake()
    }
}
