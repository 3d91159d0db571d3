//! The scenarios over the engine with the bugs of the controls.

pub(crate) use aster_lease_planted as lease;

#[path = "scenarios/mod.rs"]
#[allow(
    clippy::duplicate_mod,
    reason = "the same scenarios, over another engine"
)]
pub(crate) mod scenarios;
