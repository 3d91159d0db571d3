//! Interleaved rounds, median and spread, and the clocks.

use std::error::Error;
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

pub(crate) type Failure = Box<dyn Error + Send + Sync>;

/// Fewer rounds than this give no median worth the name.
const ROUNDS: usize = 7;

/// How much is measured.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Scale {
    quick: bool,
}

impl Scale {
    pub(crate) fn full() -> Self {
        Self { quick: false }
    }

    /// Only shows that everything runs.
    pub(crate) fn quick() -> Self {
        Self { quick: true }
    }

    pub(crate) fn is_quick(self) -> bool {
        self.quick
    }

    pub(crate) fn rounds(self) -> usize {
        self.pick(ROUNDS, 1)
    }

    pub(crate) fn pick<T>(self, full: T, quick: T) -> T {
        if self.quick { quick } else { full }
    }
}

/// The median of several measurements, and how far they lie apart.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Spread {
    pub(crate) median: f64,
    pub(crate) min: f64,
    pub(crate) max: f64,
}

impl Spread {
    pub(crate) fn of(mut values: Vec<f64>) -> Self {
        values.sort_by(f64::total_cmp);
        let at = |index: usize| values.get(index).copied().unwrap_or(f64::NAN);
        Self {
            median: at(values.len() / 2),
            min: at(0),
            max: at(values.len().saturating_sub(1)),
        }
    }
}

/// Measurements of Aster and of the bare thing, taken in turn.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Pair {
    pub(crate) ours: Spread,
    pub(crate) bare: Spread,
    /// Ours by bare, of each round.
    pub(crate) ratio: Spread,
}

/// A B A B …, after one round that does not count.
pub(crate) fn pairs(
    rounds: usize,
    mut ours: impl FnMut() -> Result<f64, Failure>,
    mut bare: impl FnMut() -> Result<f64, Failure>,
) -> Result<Pair, Failure> {
    ours()?;
    bare()?;
    let (mut ours_all, mut bare_all, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..rounds {
        let (ours, bare) = (ours()?, bare()?);
        ours_all.push(ours);
        bare_all.push(bare);
        ratios.push(ours / bare);
    }
    Ok(Pair {
        ours: Spread::of(ours_all),
        bare: Spread::of(bare_all),
        ratio: Spread::of(ratios),
    })
}

/// The value below which `part` (0 to 1) of `sorted` lies.
#[allow(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "an index into a list of measurements"
)]
pub(crate) fn percentile(sorted: &[f64], part: f64) -> f64 {
    let index = (sorted.len().saturating_sub(1) as f64 * part).round() as usize;
    sorted.get(index).copied().unwrap_or(f64::NAN)
}

#[allow(clippy::disallowed_methods, reason = "a benchmark measures real time")]
pub(crate) fn now() -> Instant {
    Instant::now()
}

/// Nanoseconds of one of `count` steps that took `took` together.
#[allow(
    clippy::cast_precision_loss,
    reason = "a count of steps is far below 2^52"
)]
pub(crate) fn nanos_each(took: Duration, count: usize) -> f64 {
    took.as_secs_f64() * 1e9 / count as f64
}

/// How much processor time this process has used.
#[allow(clippy::disallowed_methods, reason = "a benchmark measures real time")]
pub(crate) fn processor_time() -> Duration {
    since_origin(clock_gettime(ClockId::ProcessCPUTime))
}

/// Nanoseconds on a clock that all processes of the machine share.
#[allow(clippy::disallowed_methods, reason = "a benchmark measures real time")]
pub(crate) fn shared_clock() -> Duration {
    since_origin(clock_gettime(ClockId::Monotonic))
}

fn since_origin(time: rustix::time::Timespec) -> Duration {
    Duration::new(
        u64::try_from(time.tv_sec).unwrap_or(0),
        u32::try_from(time.tv_nsec).unwrap_or(0),
    )
}
