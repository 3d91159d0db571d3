//! A world that one seed repeats: machines with clocks of their own, a network that loses, delays, doubles
//! and reorders, one serializer, and workers that run the real [`LeaseHandle`](aster_lease::LeaseHandle).
//!
//! Each machine is a tokio runtime with a paused clock, so that it can be stopped, suspended or killed as a
//! real one can; all of them run on one thread, in a fixed order. First faults happen, and only safety is
//! demanded. Then the world heals, and everyone who still wants a resource has to get it in a stated time.
//! An oracle beside it keeps the true history and never asks the code under test.
//!
//! | file | what lives there |
//! |---|---|
//! | `world.rs` | the world: time, messages, healing, the run |
//! | `faults.rs`, `weather.rs` | what is done to it |
//! | `plan.rs` | what a seed decides beforehand |
//! | `machine.rs`, `clock.rs` | one machine and its clocks |
//! | `network.rs`, `wire.rs` | messages on their way, and the client's end |
//! | `service/` | the serializer's machine, with the real memory store or the SQLite store |
//! | `worker.rs` | what workers do |
//! | `history.rs`, `tally.rs` | what happened, the trace, and how often |
//! | `invariants/` | what must hold, one rule a file |
//! | `bug.rs` | bugs to plant, so that each rule is known to bite |
//! | `random.rs` | the one source of chance |

mod bug;
mod clock;
mod faults;
mod history;
mod invariants;
mod machine;
mod network;
mod plan;
mod random;
mod service;
mod tally;
mod weather;
mod wire;
mod worker;
mod world;

pub use bug::{Bug, FOUND_WITHIN, find};
pub use history::Trace;
pub use invariants::{RULES, Violation};
pub use random::Random;
pub use service::Kind;
pub use tally::Tally;
pub use world::{Run, Settings, WorldError, run};
