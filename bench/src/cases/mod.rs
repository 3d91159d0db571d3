//! One file for each thing that is measured.

mod expiries;
mod hand_over;
mod memory_bytes;
mod memory_held;
mod memory_mutate;
mod sqlite_writes;

use std::path::Path;

use crate::measure::{Failure, Scale};
use crate::table::Line;

/// One case: its name on the command line, what it measures, and the measurement.
pub(crate) struct Case {
    pub(crate) name: &'static str,
    pub(crate) what: &'static str,
    pub(crate) run: fn(Scale) -> Result<Vec<Line>, Failure>,
}

/// In the order of the table.
pub(crate) const ALL: &[Case] = &[
    Case {
        name: "memory-mutate",
        what: "a fenced mutation beside a bare sharded map; one thread and two",
        run: memory_mutate::run,
    },
    Case {
        name: "memory-bytes",
        what: "what a held row takes in memory",
        run: memory_bytes::run,
    },
    Case {
        name: "memory-held",
        what: "what it costs to hold a hundred thousand leases",
        run: memory_held::run,
    },
    Case {
        name: "sqlite-write",
        what: "a fenced register write beside a bare commit; one caller and 64",
        run: sqlite_writes::run,
    },
    Case {
        name: "hand-over",
        what: "from a release to a usable fence of the next waiter",
        run: hand_over::run,
    },
    Case {
        name: "expiries",
        what: "a million leases that expire at the same instant, and what others feel",
        run: expiries::run,
    },
];

/// What another process of a case does.
pub(crate) fn play(role: &[String]) -> Result<(), Failure> {
    match role {
        [role, file] if role == hand_over::ROLE => hand_over::play(Path::new(file)),
        _ => Err(format!("no such role: {role:?}").into()),
    }
}
