//! Real processes that share one SQLite file, are stopped and killed at any moment, and write down
//! what they asked and heard; and a checker of its own that judges what they wrote.
//!
//! | module | what lives there |
//! |---|---|
//! | [`plan`] | the faults of one run: they follow from its seed alone |
//! | [`conductor`] | starts the processes, stops and kills them by the plan, and ends them all |
//! | [`member`] | what one process does: an owner, an observer or an operator |
//! | [`orders`] | what a process is told when it starts |
//! | [`storage`] | the ways to keep the data: under the fence rule, or as an ordinary lock lets it |
//! | [`history`] | what each process writes down: each request before it is sent, each answer after it came |
//! | [`mod@check`] | the judgement, one rule a file; it knows the histories alone |
//! | [`forge`] | recorded histories, broken on purpose: the checker has to notice |
//! | [`proof`] | runs with the check and without it, the forgeries, and the evidence of it all |
//!
//! The plan of the faults is repeatable. How the kernel schedules real processes is not: the same
//! seed twice does the same things to them, at not quite the same moments.

pub mod check;
pub mod conductor;
pub mod forge;
pub mod history;
pub mod member;
pub mod orders;
pub mod plan;
mod process;
pub mod proof;
pub mod storage;

pub use check::{Broken, Checked, Rule, check};
pub use conductor::{Ran, RunError, Settings, run};
pub use history::History;
pub use process::WORK;
