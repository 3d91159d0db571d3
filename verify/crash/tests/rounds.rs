//! A short run of every kind of death; `aster-crash` goes on for as long as it is told to.

#![cfg(target_os = "linux")]
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "helpers of tests may panic, and say what was tried"
)]

mod support;

use std::path::Path;

use aster_crash::rounds::{Kind, Tally, run};
use support::is_permitted;

/// `cargo run -p aster-crash -- --seed S` repeats one of them.
fn rounds(seeds: &[u64], cuts: usize) -> Option<Tally> {
    if !is_permitted() {
        return None;
    }
    let program = Path::new(env!("CARGO_BIN_EXE_aster-crash"));
    let mut tally = Tally::default();
    for seed in seeds {
        if let Err(what) = run(program, *seed, cuts, None, &mut tally) {
            panic!("seed {seed}: {what}");
        }
    }
    println!("{tally:?}");
    Some(tally)
}

#[test]
fn what_was_acknowledged_survives_a_power_loss_at_any_step() {
    // A short life of one process, a long one of one, and a long one of two that share the file.
    let seeds = [8, 0, 4];
    assert!(seeds.iter().all(|seed| Kind::of(*seed) == Kind::Power));
    let Some(tally) = rounds(&seeds, 40) else {
        return;
    };
    assert!(
        tally.acknowledged > 20 * tally.cuts,
        "most cuts come after much was acknowledged: {tally:?}"
    );
    assert!(tally.second_cuts > 20, "{tally:?}");
}

#[test]
fn a_process_killed_in_a_write_or_a_sync_takes_nothing_along() {
    let seeds = [2];
    assert!(seeds.iter().all(|seed| Kind::of(*seed) == Kind::Kill));
    let Some(tally) = rounds(&seeds, 24) else {
        return;
    };
    assert!(tally.kills > 2, "too few were killed at work: {tally:?}");
}

#[test]
fn after_a_failed_write_or_sync_nothing_acknowledged_is_lost() {
    let seeds = [3];
    assert!(seeds.iter().all(|seed| Kind::of(*seed) == Kind::Fault));
    let Some(tally) = rounds(&seeds, 24) else {
        return;
    };
    assert!(tally.faults > 4, "too little failed: {tally:?}");
}
