//! What is broken on purpose is noticed, under the rule that it breaks, and each rule has such a control.

#![cfg(target_os = "linux")]
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "helpers of tests may panic, and say what was tried"
)]

mod support;

use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use aster_crash::controls::Planted;
use aster_crash::rules::Rule;
use aster_evidence::Evidence;
use support::is_permitted;

#[test]
fn everything_that_is_planted_is_noticed() {
    if !is_permitted() {
        return;
    }
    let program = Path::new(env!("CARGO_BIN_EXE_aster-crash"));
    let mut evidence = Evidence::new("crash", "what is planted", "cargo test -p aster-crash");
    for rule in Rule::ALL {
        evidence.held(rule.text());
    }
    // One after the other takes too long; each has a disk of its own.
    let next = AtomicUsize::new(0);
    let evidence = Mutex::new(evidence);
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                while let Some(planted) = Planted::ALL.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let seen = planted.find(program, 1).unwrap();
                    let is_caught = seen.is_some();
                    let seen = seen.unwrap_or_default();
                    println!("{}: {seen}", planted.what());
                    let rule = planted.rule().text();
                    let mut evidence = evidence.lock().unwrap();
                    evidence.control(rule, planted.what(), is_caught, &seen);
                }
            });
        }
    });
    let evidence = evidence.into_inner().unwrap();
    assert!(evidence.is_sound(), "{evidence}");
    assert_eq!(evidence.rules_without_a_control(), [""; 0]);
}
