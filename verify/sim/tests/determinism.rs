//! One seed, one run: the whole trace is the same, line by line.

use aster_sim::{Kind, Run, Settings, run};

/// Enough to keep every line of a run.
const ALL_LINES: usize = usize::MAX;

fn traced(seed: u64, store: Kind) -> Run {
    let settings = Settings {
        seed,
        store,
        bug: None,
        trace_lines_max: ALL_LINES,
    };
    match run(settings) {
        Ok(run) => run,
        Err(error) => panic!("seed {seed}: {error}"),
    }
}

#[test]
fn the_same_seed_gives_the_same_trace() {
    for seed in [3, 11, 26, 40, 58] {
        compare(seed, Kind::Memory);
    }
}

#[test]
fn the_same_seed_gives_the_same_trace_with_the_sqlite_store() {
    for seed in [4, 12] {
        compare(seed, Kind::Sqlite);
    }
}

fn compare(seed: u64, store: Kind) {
    let (first, second) = (traced(seed, store), traced(seed, store));
    let mut lines = first.trace.text.iter().zip(&second.trace.text);
    if let Some((number, (one, other))) = lines
        .by_ref()
        .enumerate()
        .find(|(_, (one, other))| one != other)
    {
        panic!("seed {seed}, line {number}:\n  {one}\n  {other}");
    }
    assert_eq!(first.trace.lines, second.trace.lines, "seed {seed}");
    assert_eq!(first.trace.hash, second.trace.hash, "seed {seed}");
    assert_eq!(first.tally, second.tally, "seed {seed}");
    assert!(
        first.trace.lines > 100,
        "a control: seed {seed} did something"
    );
}

#[test]
fn another_seed_gives_another_trace() {
    let (one, other) = (traced(3, Kind::Memory), traced(4, Kind::Memory));
    assert_ne!(one.trace.hash, other.trace.hash);
}
