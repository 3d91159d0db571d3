//! Orders of the engine's own steps, tried one after the other, and a record beside them.
//!
//! | file | what lives there |
//! |---|---|
//! | `scenarios/` | what threads and tasks do to the memory store and to the holder's engine, and what must hold |
//! | `controls.rs` | the planted bug that each scenario must find |
//! | `record.rs` | what was asked and answered, beside the engine |
//! | `plan.rs`, `scheduler.rs` | who runs next: at random, by priorities, or every way within a bound |
//! | `proof.rs`, `main.rs` | all scenarios in a given time, all controls; the program |
//! | `explore.rs` | trying one scenario's executions |
//! | `exchange/` | the copy of the engine whose locks the scheduler owns, and the planted bugs |
//! | `stand_in/` | those locks, and what stands in for tokio |
//! | `lease/`, `planted/` | the copy as a crate, as it is and with the bugs |
//!
//! Every lock, unlock, condition variable, atomic, notification, timer, spawn and abort is a point at
//! which any other thread or task may come before. All atomics are as strong as the strongest.

pub mod controls;
pub mod explore;
pub mod plan;
pub mod proof;
pub mod record;
pub mod scheduler;

mod planted;
mod real;

/// All scenarios, over the engine as it is.
pub const SCENARIOS: &[explore::Scenario] = real::scenarios::ALL;
