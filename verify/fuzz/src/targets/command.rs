//! What the command line takes: durations, arguments, the environment.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;
use std::time::Duration;

use aster::StoreUrl;
use aster_cli::fuzz as door;

use crate::control::Control;
use crate::{Seen, Target, bounded, seen};

pub(super) const DURATION: Target = Target {
    name: "duration",
    what: "durations as users write them: exact or refused, and each option's own bounds",
    run: |data| duration(data, &DOORS),
    bytes_max: 48,
    dictionary: include_str!("../../dictionaries/duration.dict"),
    executions: 60_000,
};

pub(super) const COMMAND_LINE: Target = Target {
    name: "command_line",
    what: "whole command lines: what is accepted is within its bounds, what is refused says why",
    run: |data| command_line(data, door::command_line),
    bytes_max: 400,
    dictionary: include_str!("../../dictionaries/command_line.dict"),
    executions: 1_500,
};

pub(super) const ENVIRONMENT: Target = Target {
    name: "environment",
    what: "ASTER_STORE, ASTER_IDENTITY, ASTER_LOG, XDG_DATA_HOME and HOME: a store and a level, or a refusal",
    run: |data| environment(data, door::store_in),
    bytes_max: 300,
    dictionary: include_str!("../../dictionaries/environment.dict"),
    executions: 3_000,
};

pub(super) const CONTROLS: [Control; 4] = [
    Control {
        target: "duration",
        rule: "a duration is exact or refused",
        planted: "a parser that goes through floating point",
        run: |data| duration(data, &FLOATING),
    },
    Control {
        target: "duration",
        rule: "a ttl is 100ms to 24h",
        planted: "a bound that is off by a millisecond",
        run: |data| duration(data, &ONE_LESS),
    },
    Control {
        target: "command_line",
        rule: "epochs begin at 1",
        planted: "an --epoch that takes 0",
        run: |data| command_line(data, takes_epoch_zero),
    },
    Control {
        target: "environment",
        rule: "a variable that is set and useless is refused",
        planted: "an ASTER_STORE that is passed over when it is not UTF-8",
        run: |data| environment(data, passes_over),
    },
];

struct Doors {
    ttl: fn(&str) -> Result<u64, String>,
    hold_off: fn(&str) -> Result<Duration, String>,
    wait: fn(&str) -> Result<Duration, String>,
    grace: fn(&str) -> Result<Duration, String>,
}

const DOORS: Doors = Doors {
    ttl: door::ttl,
    hold_off: door::hold_off,
    wait: door::wait,
    grace: door::grace,
};

const DAY_MS: u128 = 24 * 60 * 60 * 1_000;

/// The number of milliseconds that a text means, if it means one exactly: decimal digits, perhaps a point
/// and more digits, and a unit, with white space around it.
fn exact_ms(text: &str) -> Option<u128> {
    let text = text.trim();
    if text.len() > 32 {
        return None;
    }
    let units = [
        ("ms", 1_u128),
        ("h", 3_600_000),
        ("m", 60_000),
        ("s", 1_000),
    ];
    let (number, unit) = units
        .iter()
        .find_map(|(name, unit)| Some((text.strip_suffix(name)?, *unit)))?;
    let (whole, fraction) = match number.find('.') {
        Some(at) => (&number[..at], Some(&number[at + 1..])),
        None => (number, None),
    };
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    if !digits(whole) || !fraction.is_none_or(digits) {
        return None;
    }
    // An hour has 2^7 and 5^5 milliseconds as factors, so a digit behind the seventh is never whole.
    let fraction = fraction.unwrap_or("").trim_end_matches('0');
    if fraction.len() > 7 {
        return None;
    }
    let scale = 10_u128.pow(fraction.len() as u32);
    let digits = format!("{whole}{fraction}").parse::<u128>().ok()?;
    let scaled = digits.checked_mul(unit)?;
    (scaled % scale == 0 && scaled / scale <= u128::from(u64::MAX)).then_some(scaled / scale)
}

fn duration(data: &[u8], doors: &Doors) -> Seen {
    let Ok(text) = std::str::from_utf8(data) else {
        return seen("no text");
    };
    let exact = exact_ms(text);
    let within = |min: u128, max: u128| exact.filter(|ms| (min..=max).contains(ms));
    let ms = |found: &Result<Duration, String>| found.as_ref().ok().map(Duration::as_millis);
    let (ttl, hold_off, wait, grace) = bounded(64 * 1_024, || {
        (
            (doors.ttl)(text),
            (doors.hold_off)(text),
            (doors.wait)(text),
            (doors.grace)(text),
        )
    });
    let found = ttl.as_ref().ok().map(|ms| u128::from(*ms));
    assert_eq!(found, within(100, DAY_MS), "a ttl");
    assert_eq!(ms(&hold_off), within(1, DAY_MS), "a hold-off");
    assert_eq!(ms(&wait), within(0, DAY_MS), "a wait");
    assert_eq!(ms(&grace), exact, "a grace");
    for refused in [
        hold_off.as_ref().err(),
        wait.as_ref().err(),
        grace.as_ref().err(),
    ] {
        // In the same words each time, and with an example of what to write.
        assert!(refused.is_none_or(|why| why.contains("write a number with a unit")));
    }
    let why = |refused: Result<Duration, String>| refused.err().map(|why| why.len());
    seen((ttl.err(), why(hold_off), why(wait), why(grace)))
}

const FLOATING: Doors = Doors {
    grace: |text| {
        door::grace(text).or_else(|error| {
            let seconds = text.trim().strip_suffix('s').ok_or(error.clone())?;
            let seconds: f64 = seconds.parse().map_err(|_| error.clone())?;
            Duration::try_from_secs_f64(seconds).map_err(|_| error)
        })
    },
    ..DOORS
};

const ONE_LESS: Doors = Doors {
    ttl: |text| {
        door::ttl(text).or_else(|error| match exact_ms(text) {
            Some(99) => Ok(99),
            _ => Err(error),
        })
    },
    ..DOORS
};

/// The words of a command line, one a line of the input.
fn words_of(data: &[u8]) -> Vec<OsString> {
    data.split(|byte| *byte == b'\n')
        // No argument of a process holds a NUL.
        .map(|word| word.split(|byte| *byte == 0).next().unwrap_or(&[]))
        .map(|word| OsStr::from_bytes(word).to_owned())
        .collect()
}

fn command_line(data: &[u8], parse: fn(&[OsString]) -> Result<door::Line, String>) -> Seen {
    let words = words_of(data);
    let is_hidden = door::internal_command_line(&words);
    let line = match parse(&words) {
        Ok(line) => line,
        Err(why) => {
            assert!(!why.trim().is_empty(), "it says why");
            // What it says first: the kind of mistake.
            let first = why.split(['\'', '\n']).next().unwrap_or("").to_owned();
            return seen((is_hidden, first));
        }
    };
    assert!(!is_hidden, "no line means two things");
    if let Some(resource) = &line.resource {
        assert!((1..=512).contains(&resource.len()));
        assert!(!resource.contains(|character: char| character.is_control()));
        let is_a_word = |word: &OsString| word.as_bytes().ends_with(resource.as_bytes());
        assert!(words.iter().any(is_a_word), "a resource that nobody named");
    }
    if let Some(program) = &line.program {
        let after = words.iter().position(|word| word == "--");
        let after = after.expect("a command stands behind --");
        assert!(words[after..].contains(program));
    }
    let in_a_day = |duration: Duration| duration.as_millis() <= DAY_MS;
    assert!(
        line.ttl_ms
            .is_none_or(|ms| (100..=DAY_MS).contains(&u128::from(ms)))
    );
    assert!(line.wait.is_none_or(in_a_day));
    assert!(
        line.hold_off
            .is_none_or(|time| in_a_day(time) && !time.is_zero())
    );
    assert!(
        line.epoch.is_none_or(|epoch| epoch > 0),
        "epochs begin at 1"
    );
    assert!(line.limit.is_none_or(|limit| (1..=1_000).contains(&limit)));
    seen((
        words.iter().map(|word| word.len().min(3)).sum::<usize>() / 8,
        line.resource.is_some(),
        line.ttl_ms.map(|ms| ms == 30_000),
        (
            line.grace.is_some(),
            line.wait.is_some(),
            line.hold_off.is_some(),
        ),
        (line.epoch.is_some(), line.limit, line.store.is_some()),
    ))
}

fn takes_epoch_zero(words: &[OsString]) -> Result<door::Line, String> {
    let line = door::command_line(words);
    if line.is_err()
        && words.iter().any(|word| word == "revoke")
        && words.windows(2).any(|pair| pair == ["--epoch", "0"])
    {
        return Ok(door::Line {
            epoch: Some(0),
            ..door::Line::default()
        });
    }
    line
}

const VARIABLES: [&str; 5] = [
    "ASTER_STORE",
    "ASTER_IDENTITY",
    "ASTER_LOG",
    "XDG_DATA_HOME",
    "HOME",
];

type StoreIn = fn(&dyn Fn(&str) -> Option<OsString>) -> Result<(String, String), String>;

/// One `NAME=VALUE` a line.
fn environment(data: &[u8], store_in: StoreIn) -> Seen {
    let mut variables: HashMap<&str, OsString> = HashMap::new();
    for line in words_of(data) {
        let bytes = line.into_vec();
        let known = VARIABLES.iter().find_map(|name| {
            let value = bytes.strip_prefix(name.as_bytes())?.strip_prefix(b"=")?;
            Some((*name, value.to_vec()))
        });
        if let Some((name, value)) = known {
            variables.insert(name, OsString::from_vec(value));
        }
    }
    let store = store_in(&|name| variables.get(name).cloned());
    let asked = variables.get("ASTER_STORE");
    let home = |name: &str| {
        let value = variables.get(name).map(PathBuf::from)?;
        value.is_absolute().then_some(value)
    };
    match (&store, asked) {
        (Ok((url, absolute)), Some(asked)) => {
            assert_eq!(Some(&**url), asked.to_str(), "the store that was asked for");
            assert!(!url.is_empty());
            match (StoreUrl::parse(url), StoreUrl::parse(absolute)) {
                (Ok(StoreUrl::Sqlite(path)), Ok(StoreUrl::Sqlite(from_anywhere))) => {
                    assert_eq!(std::path::absolute(path).unwrap(), from_anywhere);
                }
                (one, other) => assert_eq!(one, other),
            }
        }
        (Ok((url, _)), None) => {
            let base = home("XDG_DATA_HOME").or_else(|| Some(home("HOME")?.join(".local/share")));
            let path = base.expect("a place for the store").join("aster/leases.db");
            match StoreUrl::parse(url) {
                Ok(found) => assert_eq!(found, StoreUrl::Sqlite(path)),
                // The one thing that stands for something else in a URL.
                Err(_) => assert!(url.contains('?'), "{url} is no URL"),
            }
        }
        (Err(why), Some(asked)) => {
            assert!(why.contains("ASTER_STORE") || asked.to_str().is_some());
        }
        (Err(why), None) => assert!(!why.is_empty()),
    }
    let level = variables
        .get("ASTER_LOG")
        .map(|level| door::log_level(level));
    if let Some(Err(why)) = &level {
        assert!(why.contains("write error, warn, info, debug or trace"));
    }
    seen((
        store
            .map(|(url, absolute)| url == absolute)
            .map_err(|why| why.len() / 16),
        asked.is_some(),
        level.map(|level| level.map_err(drop)),
    ))
}

fn passes_over(variables: &dyn Fn(&str) -> Option<OsString>) -> Result<(String, String), String> {
    door::store_in(&|name| variables(name).filter(|value| value.to_str().is_some()))
}
