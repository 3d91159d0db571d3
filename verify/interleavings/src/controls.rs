//! The planted bug that each scenario must find.

use crate::explore::Scenario;
use crate::planted::scenarios::ALL;

/// A bug, and the scenario that must find it.
#[derive(Debug, Clone, Copy)]
pub struct Control {
    /// The bug's name in `exchange/src/plants.rs`.
    pub bug: &'static str,
    /// What the bug does.
    pub planted: &'static str,
    /// The scenario's name.
    pub scenario: &'static str,
}

impl Control {
    /// The scenario over the engine with the bugs; `None` if it does not exist.
    #[must_use]
    pub fn scenario(&self) -> Option<Scenario> {
        ALL.iter()
            .find(|scenario| scenario.name == self.scenario)
            .copied()
    }
}

/// All controls.
pub const CONTROLS: &[Control] = &[
    Control {
        bug: "check-before-the-lock-is-kept",
        planted: "the lock is given back between the fence's check and the closing of the gate",
        scenario: "release-waits-for-the-closure",
    },
    Control {
        bug: "gate-opened-without-a-word",
        planted: "whoever opens a gate tells nobody",
        scenario: "closures-exclude",
    },
    Control {
        bug: "gate-waited-for-without-a-note",
        planted: "whoever waits for a gate leaves no note there",
        scenario: "closures-exclude",
    },
    Control {
        bug: "waits-after-the-lock-is-given-back",
        planted: "a task begins to wait for the gate after it has given the lock back",
        scenario: "release-waits-for-the-closure",
    },
    Control {
        bug: "gate-closed-twice",
        planted: "a gate that is closed is closed once more",
        scenario: "closures-exclude",
    },
];
