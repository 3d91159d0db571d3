//! Durations as users write them: `30s`, `1.5s`, `500ms`, `2m`, `1h`. Exact, or refused.

use std::time::Duration;

use aster::lease::{HOLD_OFF_MAX, TTL_MIN, Ttl, TtlBounds, WAIT_MAX};

/// The units, smallest first, in nanoseconds. `ms` stands before `m` and `s` so that it is tried first.
const UNITS: [(&str, u128); 4] = [
    ("ms", 1_000_000),
    ("s", 1_000_000_000),
    ("m", 60 * 1_000_000_000),
    ("h", 3_600 * 1_000_000_000),
];

/// Text longer than this is no duration; it bounds the arithmetic below.
const TEXT_BYTES_MAX: usize = 32;

/// What is wrong with a text that is no duration, or not one that is accepted here.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum InvalidDuration {
    #[error("it is negative")]
    Negative,
    #[error("its unit is missing or unknown")]
    Unit,
    #[error("what stands before the unit is not a decimal number")]
    Number,
    #[error("it is finer than a millisecond")]
    TooFine,
    #[error("it is too large")]
    TooLarge,
    #[error("it is zero")]
    Zero,
    #[error("it is too short")]
    TooShort,
}

/// What is wrong, and what is accepted: for every refusal of an option the same.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{reason}: write a number with a unit, such as 500ms, 1.5s, 30s, 2m or 1h; whole milliseconds, {bounds}"
)]
pub(crate) struct Refused {
    reason: InvalidDuration,
    bounds: &'static str,
}

/// The bounds of a ttl, in words.
const TTL_BOUNDS: &str = "100ms to 24h";

/// A ttl that a store with its normal bounds accepts, as all stores that we open are.
pub(crate) fn ttl(text: &str) -> Result<Ttl, Refused> {
    let within_bounds = |duration: Duration| {
        let ttl = Ttl::new(duration).map_err(|_| InvalidDuration::Zero)?;
        match TtlBounds::default().check(ttl) {
            Ok(()) => Ok(ttl),
            Err(_) if duration < TTL_MIN => Err(InvalidDuration::TooShort),
            Err(_) => Err(InvalidDuration::TooLarge),
        }
    };
    let bounds = TTL_BOUNDS;
    zero_or_more(text)
        .and_then(within_bounds)
        .map_err(|reason| Refused { reason, bounds })
}

/// How long a revoke keeps a holder out.
pub(crate) fn hold_off(text: &str) -> Result<Duration, Refused> {
    let within_bounds = |duration: Duration| match duration {
        Duration::ZERO => Err(InvalidDuration::Zero),
        duration if duration > HOLD_OFF_MAX => Err(InvalidDuration::TooLarge),
        duration => Ok(duration),
    };
    let bounds = "1ms to 24h";
    zero_or_more(text)
        .and_then(within_bounds)
        .map_err(|reason| Refused { reason, bounds })
}

/// How long to wait in a queue; not at all with `0s`.
pub(crate) fn wait(text: &str) -> Result<Duration, Refused> {
    let within_bounds = |duration: Duration| match duration {
        duration if duration > WAIT_MAX => Err(InvalidDuration::TooLarge),
        duration => Ok(duration),
    };
    let bounds = "0s to 24h";
    zero_or_more(text)
        .and_then(within_bounds)
        .map_err(|reason| Refused { reason, bounds })
}

/// From TERM to KILL. How it goes with the ttl is not judged here.
pub(crate) fn grace(text: &str) -> Result<Duration, Refused> {
    let bounds = "0s to half the ttl";
    zero_or_more(text).map_err(|reason| Refused { reason, bounds })
}

/// A whole number of milliseconds, `0s` included.
fn zero_or_more(text: &str) -> Result<Duration, InvalidDuration> {
    let text = text.trim();
    if text.starts_with('-') {
        return Err(InvalidDuration::Negative);
    }
    if text.len() > TEXT_BYTES_MAX {
        return Err(InvalidDuration::TooLarge);
    }
    let (number, unit_ns) = UNITS
        .iter()
        .find_map(|(unit, unit_ns)| text.strip_suffix(unit).map(|number| (number, *unit_ns)))
        .ok_or(InvalidDuration::Unit)?;
    let (whole, fraction) = number.split_once('.').unwrap_or((number, "0"));
    let is_digits = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    if !is_digits(whole) || !is_digits(fraction) {
        return Err(InvalidDuration::Number);
    }
    // They say nothing, and without them every text that means whole milliseconds stays in range below.
    let fraction = match fraction.trim_end_matches('0') {
        "" => "0",
        digits => digits,
    };
    let parse = |part: &str| part.parse::<u128>().map_err(|_| InvalidDuration::TooLarge);
    let scale = u32::try_from(fraction.len())
        .ok()
        .and_then(|digits| 10_u128.checked_pow(digits))
        .ok_or(InvalidDuration::TooFine)?;
    let whole_ns = parse(whole)?
        .checked_mul(unit_ns)
        .ok_or(InvalidDuration::TooLarge)?;
    let scaled = parse(fraction)?
        .checked_mul(unit_ns)
        .ok_or(InvalidDuration::TooFine)?;
    let total_ns = whole_ns
        .checked_add(scaled / scale)
        .ok_or(InvalidDuration::TooLarge)?;
    if !scaled.is_multiple_of(scale) || !total_ns.is_multiple_of(1_000_000) {
        return Err(InvalidDuration::TooFine);
    }
    u64::try_from(total_ns / 1_000_000)
        .map(Duration::from_millis)
        .map_err(|_| InvalidDuration::TooLarge)
}

/// For people: `12.3s`, `450ms`, `2m 05s`.
pub(crate) fn display(duration: Duration) -> String {
    match duration.as_secs() {
        0 => format!("{}ms", duration.as_millis()),
        1..60 => format!("{:.1}s", duration.as_secs_f64()),
        60..3_600 => format!(
            "{}m {:02}s",
            duration.as_secs() / 60,
            duration.as_secs() % 60
        ),
        seconds => format!("{}h {:02}m", seconds / 3_600, seconds % 3_600 / 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_exact() {
        for (text, millis) in [
            ("30s", 30_000),
            ("1.5s", 1_500),
            ("0.50000000000000000000000000000h", 1_800_000),
            ("0.0000025h", 9),
            ("1.500s", 1_500),
            ("500ms", 500),
            ("2m", 120_000),
            ("0.5m", 30_000),
            ("24h", 86_400_000),
            ("0.001s", 1),
            ("1ms", 1),
            ("0s", 0),
            (" 7s ", 7_000),
        ] {
            assert_eq!(
                zero_or_more(text),
                Ok(Duration::from_millis(millis)),
                "{text}"
            );
        }
    }

    #[test]
    fn everything_else_is_refused_by_name() {
        use InvalidDuration::*;
        for (text, reason) in [
            ("-1s", Negative),
            ("-0s", Negative),
            ("NaN", Unit),
            ("NaNs", Number),
            ("infs", Number),
            ("30", Unit),
            ("", Unit),
            ("s", Number),
            (".5s", Number),
            ("1.s", Number),
            ("1e3s", Number),
            ("+1s", Number),
            ("1_000s", Number),
            ("1 s", Number),
            ("1.0005s", TooFine),
            ("0.5ms", TooFine),
            ("0.0000001h", TooFine),
            ("1ns", Number),
            ("0.0000000000000000000000001s", TooFine),
            ("99999999999999999999999999999s", TooLarge),
            ("184467440737095516150ms", TooLarge),
            ("9999999999999999999999999999999999999999s", TooLarge),
        ] {
            assert_eq!(zero_or_more(text), Err(reason), "{text}");
        }
    }

    #[test]
    fn bounds_are_those_that_the_messages_name() {
        use InvalidDuration::*;
        for (text, reason) in [
            ("100ms", None),
            ("24h", None),
            ("0s", Some(Zero)),
            ("0.0ms", Some(Zero)),
            ("99ms", Some(TooShort)),
            ("86400001ms", Some(TooLarge)),
        ] {
            assert_eq!(ttl(text).err().map(|error| error.reason), reason, "{text}");
        }
        for (text, reason) in [
            ("1ms", None),
            ("24h", None),
            ("0s", Some(Zero)),
            ("86400001ms", Some(TooLarge)),
        ] {
            assert_eq!(
                hold_off(text).err().map(|error| error.reason),
                reason,
                "{text}"
            );
        }
        assert_eq!(grace("0s"), Ok(Duration::ZERO));
    }
}
