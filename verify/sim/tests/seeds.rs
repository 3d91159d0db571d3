//! Fixed seeds, seeds that once found something, and a few fresh ones.

use aster_lease::{Entropy, SystemEntropy};
use aster_sim::{Run, Settings, Tally, run};

/// Enough for every kind of thing below to happen.
const FIXED: std::ops::Range<u64> = 0..16;
const FRESH: u64 = 3;

/// A seed, and what it found when it was kept.
const FOUND: [(u64, &str); 1] = [(
    5170,
    "a waiter was granted, did not hear of it, and was revoked: its wait ended with NotHeld",
)];

/// What has to happen somewhere in the fixed seeds: without it they would show nothing.
const HAPPENS: [&str; 34] = [
    "acquire: HeldByOther",
    "acquire: granted",
    "acquire_wait: HeldOff",
    "acquire_wait: WaitRanOut",
    "acquire_wait: granted",
    "denied renew: EpochMismatch",
    "denied renew: Expired",
    "denied wait: Expired",
    "ended by cancel",
    "ended by revoke",
    "episode: dropped",
    "failed wait: the store cannot be reached: the serializer restarted",
    "failed wait: the store has too many waiting requests: try",
    "fault: cut off",
    "fault: killed",
    "fault: operator",
    "fault: outage",
    "fault: stopped",
    "fault: suspended",
    "fault: wall clock",
    "fault: weather",
    "granted after a wait",
    "guarded work ran",
    "lead: done",
    "lead: dropped",
    "lost: Dropped",
    "lost: Revoked",
    "lost: Superseded",
    "lost: Unreachable",
    "register written and released",
    "rejected: not_holder",
    "rejected: stale_epoch",
    "release: dropped",
    "release_with_value: released",
];

/// How much of the trace is shown for a broken rule.
const TRACE_LINES: usize = 40;

fn simulate(seed: u64) -> Run {
    let settings = Settings {
        seed,
        bug: None,
        trace_lines_max: TRACE_LINES,
    };
    match run(settings) {
        Ok(run) => run,
        Err(error) => panic!("seed {seed}: {error}"),
    }
}

/// Says how to repeat a run that broke a rule.
fn check(run: &Run) {
    let Some(violation) = &run.violation else {
        return;
    };
    let lines: Vec<_> = run.trace.text.iter().map(String::as_str).collect();
    panic!(
        "{}\n{} is broken at {} ms: {}\nrepeat it with: cargo xtask sim --seed {} --trace",
        lines.join("\n"),
        violation.invariant,
        violation.at_ms,
        violation.what,
        run.seed
    );
}

#[test]
fn fixed_seeds_break_no_rule_and_leave_nothing_out() {
    let mut tally = Tally::default();
    for number in FIXED {
        let run = simulate(number);
        check(&run);
        tally.add(&run.tally);
    }
    let missing: Vec<_> = HAPPENS
        .iter()
        .filter(|kind| tally.count(kind) == 0)
        .collect();
    assert!(missing.is_empty(), "never happened: {missing:?}\n{tally}");
}

#[test]
fn seeds_that_found_something_find_it_no_more() {
    for (number, what) in FOUND {
        let run = simulate(number);
        assert!(run.violation.is_none(), "again: {what}");
    }
}

#[test]
fn fresh_seeds_break_no_rule() {
    let mut bytes = [0; 4];
    SystemEntropy.fill(&mut bytes).unwrap();
    let start = u64::from(u32::from_le_bytes(bytes));
    println!("fresh seeds from {start}");
    for number in start..start + FRESH {
        check(&simulate(number));
    }
}
