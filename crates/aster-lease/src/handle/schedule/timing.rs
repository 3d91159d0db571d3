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

#[cfg(test)]
mod tests {
    use super::*;

    const CHANCES: [f64; 5] = [0.0, 0.25, 0.5, 0.75, 0.999_999];

    /// From the shortest to the longest that a holder may choose.
    fn intervals() -> impl Iterator<Item = Duration> {
        let millis = [10, 33, 100, 1_000, 3_333, 10_000, 600_000, 28_800_000];
        millis.into_iter().map(Duration::from_millis)
    }

    fn quantum(interval: Duration) -> At {
        1 << quantum_bits(interval)
    }

    /// No renewal later than its interval, none so early that it loads the serializer for nothing, and
    /// those of about one time at the same time.
    #[test]
    fn a_renewal_is_due_within_its_interval_and_near_its_end_unless_it_is_crowded() {
        for interval in intervals() {
            for (crowded, earliest) in [(false, 0.9), (true, 0.1)] {
                for chance in CHANCES {
                    let anchor = 123_456_789_012;
                    let due = renew_at(anchor, interval, chance, crowded);
                    assert_eq!(due % quantum(interval), 0);
                    assert!(due <= anchor + nanos(interval), "{interval:?}");
                    let least = anchor + nanos(interval.mul_f64(earliest));
                    assert!(due + quantum(interval) > least, "{interval:?} {chance}");
                }
                let (first, last) = (
                    renew_at(0, interval, 0.999_999, crowded),
                    renew_at(0, interval, 0.0, crowded),
                );
                let spread = nanos(interval.mul_f64(1.0 - earliest));
                assert!(
                    last - first + 2 * quantum(interval) > spread,
                    "it is spread"
                );
            }
        }
        assert_eq!(
            renew_at(At::MAX, Duration::from_secs(1), 0.5, false) >> 27,
            At::MAX >> 27
        );
    }

    /// A quantum is a small part of the interval, and neither finer than a timer nor too coarse.
    #[test]
    fn leases_of_about_one_length_travel_together() {
        let mut before = 0;
        for interval in intervals() {
            let quantum = Duration::from_nanos(quantum(interval));
            let (least, most) = (Duration::from_millis(1), Duration::from_millis(135));
            assert!(quantum >= least && quantum <= most);
            if quantum > Duration::from_millis(2) {
                assert!(quantum <= interval / QUANTUM_PARTS);
                assert!(quantum * 2 > interval / QUANTUM_PARTS || quantum * 2 > most);
            }
            let lane = lane_of(interval);
            assert!(
                lane >= before && lane < LANES,
                "the shorter ones come first"
            );
            before = lane;
        }
        assert_eq!(lane_of(Duration::from_millis(10)), 0);
        assert_eq!(lane_of(Duration::from_secs(28_800)), LANES - 1);
        assert_eq!(
            lane_of(Duration::from_millis(3_000)),
            lane_of(Duration::from_millis(3_300))
        );
    }

    /// A lost reply leaves time to ask again.
    #[test]
    fn an_attempt_takes_half_of_the_interval() {
        let ms = Duration::from_millis;
        for (interval, most) in [(1_000, 500), (30, 15), (10, 5), (4, 5)] {
            assert_eq!(attempt_max(ms(interval)), ms(most));
        }
    }

    /// Retries come soon, then less and less often, and at least every second.
    #[test]
    fn pauses_double_up_to_a_bound_and_half_of_them_is_left_to_chance() {
        for interval in intervals() {
            let pause = |failures| retry_pause(interval, failures, 0.0);
            let most = attempt_max(interval).min(LOOK_AGAIN);
            let first = (attempt_max(interval) / PAUSE_PARTS).max(PAUSE_MIN);
            assert_eq!(pause(0), first.min(most));
            for failures in 0..40 {
                assert_eq!(pause(failures + 1), (pause(failures) * 2).min(most));
                let shortest = retry_pause(interval, failures, 0.999_999);
                assert!(shortest < pause(failures).mul_f64(0.501));
                assert!(shortest >= pause(failures).mul_f64(0.499));
            }
            assert_eq!(pause(u32::MAX), most);
        }
    }

    #[test]
    fn a_retry_waits_for_its_pause_and_then_for_others_of_its_time() {
        for interval in intervals() {
            for at in [0, 1, 999_999_937, 86_400_000_000_000] {
                for pause in [Duration::ZERO, PAUSE_MIN, Duration::from_millis(700)] {
                    let again = retry_at(at, pause, interval);
                    assert_eq!(again % quantum(interval), 0);
                    let due = at + nanos(pause);
                    assert!(again >= due && again < due + quantum(interval));
                }
            }
        }
    }

    /// What is spread by it is spread evenly, also from seeds that are near each other.
    #[test]
    fn chances_are_spread_evenly_from_every_seed() {
        for seed in [0, 1, 2, GOLDEN, u64::MAX] {
            let mut state = seed;
            let mut counts = [0_u32; 10];
            for _ in 0..10_000 {
                let number = chance(&mut state);
                assert!((0.0..1.0).contains(&number));
                counts[(number * 10.0) as usize] += 1;
            }
            assert!(
                counts.iter().all(|count| (800..1_200).contains(count)),
                "{counts:?}"
            );
        }
        let first: Vec<f64> = (0..10).map(|mut seed| chance(&mut seed)).collect();
        assert!(
            first.iter().any(|number| *number < 0.5) && first.iter().any(|number| *number > 0.5)
        );
    }
}
