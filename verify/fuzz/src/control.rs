//! Faults that are planted on purpose. The check of their target must notice each.

use crate::Seen;

/// A planted fault.
#[derive(Debug, Clone, Copy)]
pub struct Control {
    /// The target whose check must notice.
    pub target: &'static str,
    /// What it breaks.
    pub rule: &'static str,
    /// What was planted.
    pub planted: &'static str,
    /// The target's own check, around the faulty thing.
    pub run: fn(&[u8]) -> Seen,
}

/// How many runs a control is looked for at most.
pub const EXECUTIONS_MAX: u64 = 60_000;
/// The seed of the search for controls.
pub const SEED: u64 = 1;
