//! Fixed seeds, seeds that once found something, and a few fresh ones.

use aster_lease::{Entropy, SystemEntropy};
use aster_sim::{Kind, Run, Settings, Tally, run};

/// Enough for every kind of thing below to happen.
const FIXED: std::ops::Range<u64> = 0..16;
const FRESH: u64 = 3;
/// With the SQLite store, which takes longer.
const FIXED_ON_DISK: std::ops::Range<u64> = 100..105;
const FRESH_ON_DISK: u64 = 1;

/// Seeds, and what they found. A change of the simulation itself changes their story: look for others
/// then, with the repair undone. What they found has a test of its own beside the engine as well.
const FOUND: [(u64, &str); 3] = [
    (
        596,
        "a waiter whose unheard grant was revoked heard NotHeld",
    ),
    (50_366, "the same"),
    (100_174, "the same"),
];

/// What has to happen somewhere in the fixed seeds: every kind of fault, and what only comes of one.
/// Without it they would show nothing.
const HAPPENS: [&str; 60] = [
    // Who is there.
    "worlds with twenty workers or more",
    // Partitions and messages.
    "fault: cut off",
    "message: doubled",
    "message: kept until a cut link was whole",
    "message: lost",
    "message: lost in a cut link",
    "message: overtook an earlier one",
    "message: slow",
    // Pauses, suspended machines, kills, clock jumps.
    "fault: killed",
    "fault: serializer stopped",
    "fault: serializer suspended",
    "fault: stopped",
    "fault: suspended",
    "fault: wall clock",
    "fault: wall clock of the serializer",
    // Slow and failing stores, restarts.
    "fault: answer lost after it was carried out",
    "fault: outage",
    "fault: store busy",
    "fault: store failed",
    "fault: store overloaded",
    "fault: store panicked",
    "fault: store slow",
    "fault: weather",
    "serializer restarted",
    // Cancelled futures.
    "episode: dropped",
    "fault: request dropped while it was carried out",
    "lead: dropped",
    "release: dropped",
    // Operators.
    "acquire_wait: HeldOff",
    "denied revoke: EpochMismatch",
    "ended by revoke",
    "fault: operator",
    "lost: Revoked",
    // Queues.
    "acquire_wait: WaitRanOut",
    "acquire_wait: granted",
    "denied wait: Expired",
    "failed wait: the store cannot be reached: the same wish",
    "failed wait: the store cannot be reached: the serializer restarted",
    "failed wait: the store has too many waiting requests: try",
    "granted after a wait",
    "left the queue",
    // Renewals, alone and together.
    "denied renew: EpochMismatch",
    "denied renew: Expired",
    "renewals together: 10 or more",
    "renewals together: up to 9",
    "renewed",
    // What it all comes to.
    "acquire: HeldByOther",
    "acquire: granted",
    "ended by cancel",
    "ended by release",
    "guarded work ran",
    "lead: done",
    "lost: Dropped",
    "lost: Superseded",
    "lost: Unreachable",
    "register written and released",
    "rejected: not_holder",
    "rejected: stale_epoch",
    "release_with_value: released",
    "runs in which rows were dropped",
];

/// The same with the SQLite store: what its rules and its restarts have to do with.
const HAPPENS_ON_DISK: [&str; 12] = [
    "denied renew: EpochMismatch",
    "denied renew: Expired",
    "ended by cancel",
    "ended by release",
    "ended by revoke",
    "granted after a wait",
    "register written and released",
    "rejected: not_holder",
    "rejected: stale_epoch",
    "renewals together: up to 9",
    "serializer restarted",
    "wrote",
];

/// How much of the trace is shown for a broken rule.
const TRACE_LINES: usize = 40;

fn simulate(seed: u64, store: Kind) -> Run {
    let settings = Settings {
        seed,
        store,
        bug: None,
        trace_lines_max: TRACE_LINES,
    };
    match run(settings) {
        Ok(run) => run,
        Err(error) => panic!("seed {seed}: {error}"),
    }
}

/// Says how to repeat a run that broke a rule.
fn check(run: &Run, store: Kind) {
    let Some(violation) = &run.violation else {
        return;
    };
    let lines: Vec<_> = run.trace.text.iter().map(String::as_str).collect();
    panic!(
        "{}\n{} is broken at {} ms: {}\nrepeat it with: cargo xtask sim --seed {} --store {} --trace",
        lines.join("\n"),
        violation.invariant,
        violation.at_ms,
        violation.what,
        run.seed,
        match store {
            Kind::Memory => "memory",
            Kind::Sqlite => "sqlite",
        }
    );
}

#[test]
fn fixed_seeds_break_no_rule_and_leave_nothing_out() {
    let mut tally = Tally::default();
    for number in FIXED {
        let run = simulate(number, Kind::Memory);
        check(&run, Kind::Memory);
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
        let run = simulate(number, Kind::Memory);
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
        check(&simulate(number, Kind::Memory), Kind::Memory);
    }
    for number in start..start + FRESH_ON_DISK {
        check(&simulate(number, Kind::Sqlite), Kind::Sqlite);
    }
}

#[test]
fn fixed_seeds_break_no_rule_with_the_sqlite_store() {
    let mut tally = Tally::default();
    for number in FIXED_ON_DISK {
        let run = simulate(number, Kind::Sqlite);
        check(&run, Kind::Sqlite);
        tally.add(&run.tally);
    }
    let missing: Vec<_> = HAPPENS_ON_DISK
        .iter()
        .filter(|kind| tally.count(kind) == 0)
        .collect();
    assert!(missing.is_empty(), "never happened: {missing:?}\n{tally}");
}
