//! The switches of the planted bugs. All executions of one exploration run on one thread of the system.

use std::cell::Cell;

thread_local! {
    static ARMED: Cell<Option<&'static str>> = const { Cell::new(None) };
}

/// From now on the bug of this name, and no other, is there on this thread.
pub fn arm(name: Option<&'static str>) {
    ARMED.set(name);
}

/// Whether the bug is there. Called from the places where one is planted.
#[must_use]
pub fn planted(name: &str) -> bool {
    ARMED.get() == Some(name)
}
