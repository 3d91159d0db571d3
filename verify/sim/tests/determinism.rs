//! One seed, one run: the whole trace is the same, line by line.

use aster_sim::{Run, Settings, run};

/// Enough to keep every line of a run.
const ALL_LINES: usize = usize::MAX;

fn traced(seed: u64) -> Run {
    let settings = Settings {
        seed,
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
        let (first, second) = (traced(seed), traced(seed));
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
}

#[test]
fn another_seed_gives_another_trace() {
    assert_ne!(traced(3).trace.hash, traced(4).trace.hash);
}
