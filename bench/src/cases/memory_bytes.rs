//! What a held row takes: counted by the allocator of a program of its own, so that counting slows
//! nothing else.

use std::process::Command;

use crate::measure::{Failure, Scale, Spread};
use crate::table::{Goal, Line};

const BYTES_MAX: f64 = 165.0;

pub(super) fn run(scale: Scale) -> Result<Vec<Line>, Failure> {
    let rows = scale.pick(1_000_000, 20_000);
    let program = std::env::current_exe()?.with_file_name("aster-bench-bytes");
    let output = Command::new(&program)
        .arg(rows.to_string())
        .output()
        .map_err(|error| format!("{}: {error}", program.display()))?;
    let said = String::from_utf8_lossy(&output.stdout);
    let bytes: f64 = said
        .trim()
        .parse()
        .map_err(|_| format!("{} said {said:?}", program.display()))?;
    let what = format!("bytes of one of {rows} held rows, 20-byte names, 16 holders");
    let goal = Goal::AtMost(BYTES_MAX);
    // It is the same in every run.
    let spread = Spread::of(vec![bytes]);
    Ok(vec![Line::alone("memory-bytes", what, "B", spread, goal)])
}
