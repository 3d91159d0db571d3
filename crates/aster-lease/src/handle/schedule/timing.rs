//! When a renewal is due, and how long a failed one waits. Pure.

use std::time::Duration;

use crate::handle::attempt::LOOK_AGAIN;

/// A point on a schedule's own time line: nanoseconds since it was made, suspension included.
pub(super) type At = u64;

/// How much of the renew interval is left to chance, so that leases taken together spread out.
const SPREAD: f64 = 0.1;
/// The same when many leases would otherwise be due together: nearly all of it, so that one interval
/// is enough to spread them evenly.
const SPREAD_CROWDED: f64 = 0.9;
/// A renewal is overdue when it is late by more than this part of its interval.
pub(super) const LATE_PARTS: u64 = 16;

/// One attempt may take this part of the renew interval, so that a lost reply leaves time to retry.
const ATTEMPT_PARTS: u32 = 2;
const ATTEMPT_MIN: Duration = Duration::from_millis(5);
/// A batch may take no longer than this, however long the intervals of its leases.
pub(super) const BATCH_ATTEMPT_MAX: Duration = Duration::from_secs(5);
/// A call is slow, and does not keep others from being sent, after this part of its time.
pub(super) const SLOW_PARTS: u32 = 8;

/// Retries start after this part of the time that one attempt may take, and double from there.
const PAUSE_PARTS: u32 = 16;
/// The shortest pause between two requests for one lease.
pub(super) const PAUSE_MIN: Duration = Duration::from_millis(1);
/// How much of a pause is left to chance.
const PAUSE_SPREAD: f64 = 0.5;
/// Pauses stop growing after this many failures; the attempt's own time bounds them before.
const PAUSE_DOUBLINGS_MAX: u32 = 16;

/// Renewals are due at multiples of a *quantum*, the largest power of two nanoseconds within this part
/// of the interval, so that those of about one time travel together.
const QUANTUM_PARTS: u32 = 64;
/// The quantum lies between 1 ms and 134 ms.
const QUANTUM_BITS_MIN: u32 = 20;
const QUANTUM_BITS_MAX: u32 = 27;
/// One lane for each quantum.
pub(super) const LANES: usize = (QUANTUM_BITS_MAX - QUANTUM_BITS_MIN + 1) as usize;

/// An odd number whose multiples are spread evenly (2^64 divided by the golden ratio).
pub(super) const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

pub(super) fn nanos(duration: Duration) -> At {
    At::try_from(duration.as_nanos()).unwrap_or(At::MAX)
}

fn quantum_bits(renew_interval: Duration) -> u32 {
    let bits = nanos(renew_interval / QUANTUM_PARTS).checked_ilog2();
    bits.unwrap_or(0).clamp(QUANTUM_BITS_MIN, QUANTUM_BITS_MAX)
}

/// Which leases travel with those of this interval; the shorter intervals come first.
pub(super) fn lane_of(renew_interval: Duration) -> usize {
    (quantum_bits(renew_interval) - QUANTUM_BITS_MIN) as usize
}

/// How long one attempt may take.
pub(super) fn attempt_max(renew_interval: Duration) -> Duration {
    (renew_interval / ATTEMPT_PARTS).max(ATTEMPT_MIN)
}

/// When to renew what was granted or renewed at `anchor`: within the interval, on a multiple of the
/// quantum.
pub(super) fn renew_at(anchor: At, renew_interval: Duration, chance: f64, crowded: bool) -> At {
    let spread = match crowded {
        true => SPREAD_CROWDED,
        false => SPREAD,
    };
    let pause = nanos(renew_interval.mul_f64(1.0 - spread * chance));
    let bits = quantum_bits(renew_interval);
    anchor.saturating_add(pause) >> bits << bits
}

/// How long to wait after a failure that `failures` others came before.
pub(super) fn retry_pause(renew_interval: Duration, failures: u32, chance: f64) -> Duration {
    let longest = attempt_max(renew_interval);
    let first = (longest / PAUSE_PARTS).max(PAUSE_MIN);
    let grown = first.saturating_mul(1 << failures.min(PAUSE_DOUBLINGS_MAX));
    let pause = grown.min(longest.max(first)).min(LOOK_AGAIN);
    pause.mul_f64(1.0 - PAUSE_SPREAD * chance)
}

/// When to try again: on a multiple of the quantum, and not before the pause is over.
pub(super) fn retry_at(at: At, pause: Duration, renew_interval: Duration) -> At {
    let bits = quantum_bits(renew_interval);
    let quantum = 1 << bits;
    at.saturating_add(nanos(pause)).saturating_add(quantum - 1) >> bits << bits
}

/// The next number from 0 up to 1 of a stream that was seeded from the entropy (splitmix64). For
/// spreading only: nothing depends on it being hard to guess.
pub(super) fn chance(state: &mut u64) -> f64 {
    *state = state.wrapping_add(GOLDEN);
    let mut mixed = *state;
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    let top = u32::try_from((mixed ^ (mixed >> 31)) >> 32).unwrap_or(0);
    f64::from(top) / (f64::from(u32::MAX) + 1.0)
}
