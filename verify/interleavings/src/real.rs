//! The scenarios over the engine as it is.

pub(crate) use aster_lease_interleaved as lease;

#[path = "scenarios/mod.rs"]
pub(crate) mod scenarios;
