//! What is broken on purpose is noticed.

#![cfg(target_os = "linux")]
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "helpers of tests may panic, and say what was tried"
)]

mod support;

use std::path::Path;

use aster_crash::controls::Planted;
use support::is_permitted;

#[test]
fn everything_that_is_planted_is_noticed() {
    if !is_permitted() {
        return;
    }
    let program = Path::new(env!("CARGO_BIN_EXE_aster-crash"));
    for planted in Planted::ALL {
        let seen = planted.find(program, 1).unwrap();
        assert!(seen.is_some(), "not noticed: {}", planted.what());
        println!("{}: {}", planted.what(), seen.unwrap());
    }
}
