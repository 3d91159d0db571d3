//! The faults of one run: what is done to whom, and how long after the fault before.

use std::time::Duration;

use aster_evidence::Random;

/// How long between two faults.
const GAP_MS: (u64, u64) = (200, 1_100);
/// How many of a hundred faults are stops; the others are kills.
const STOPS_PERCENT: u64 = 60;
/// How many of a hundred faults wait for a process that has a write on its way.
const AIMED_BEFORE_A_WRITE_PERCENT: u64 = 40;
/// How many of a hundred faults wait for a process that is just sending one.
const AIMED_AT_A_WRITE_PERCENT: u64 = 25;
/// How many of a hundred faults hit a process that holds a lease, as far as one can know.
const AIMED_AT_A_HOLDER_PERCENT: u64 = 15;

/// What is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// SIGSTOP, and SIGCONT later.
    Stop,
    /// SIGKILL; another process is started instead.
    Kill,
}

/// To whom.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Aim {
    /// The next process that has taken its fence and has not yet sent its write.
    BeforeAWrite,
    /// The next process that has just sent its write and has no answer yet.
    InAWrite,
    /// A process that holds a lease.
    Holder,
    /// Any process that has the file open.
    Anyone,
}

/// One fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fault {
    /// How long after the fault before.
    pub gap: Duration,
    /// What is done.
    pub kind: Kind,
    /// To whom.
    pub aim: Aim,
    /// Chooses among several.
    pub choice: u64,
}

/// All faults, without end. They follow from the seed alone.
#[derive(Debug, Clone)]
pub struct Plan(Random);

impl Plan {
    /// The plan of `seed`.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(Random::stream(seed, 0))
    }
}

impl Iterator for Plan {
    type Item = Fault;

    fn next(&mut self) -> Option<Fault> {
        let gap = Duration::from_millis(self.0.between(GAP_MS.0, GAP_MS.1));
        let kind = match self.0.chance(STOPS_PERCENT, 100) {
            true => Kind::Stop,
            false => Kind::Kill,
        };
        let mut left = self.0.between(0, 99);
        let mut is_in = |percent: u64| {
            let is_in = left < percent;
            left = left.saturating_sub(percent);
            is_in
        };
        let aim = if is_in(AIMED_BEFORE_A_WRITE_PERCENT) {
            Aim::BeforeAWrite
        } else if is_in(AIMED_AT_A_WRITE_PERCENT) {
            Aim::InAWrite
        } else if is_in(AIMED_AT_A_HOLDER_PERCENT) {
            Aim::Holder
        } else {
            Aim::Anyone
        };
        Some(Fault {
            gap,
            kind,
            aim,
            choice: self.0.bits(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::{Aim, Fault, Kind, Plan};

    #[test]
    fn a_seed_has_one_plan_and_another_seed_has_another() {
        let plan = |seed| Plan::new(seed).take(100).collect::<Vec<_>>();
        assert_eq!(plan(7), plan(7));
        assert_ne!(plan(7), plan(8));
        let count = |is_it: fn(&Fault) -> bool| plan(7).into_iter().filter(is_it).count();
        let stops = count(|fault| fault.kind == Kind::Stop);
        assert!((40..80).contains(&stops), "{stops} of 100 are stops");
        for aim in [Aim::BeforeAWrite, Aim::InAWrite, Aim::Holder, Aim::Anyone] {
            let aimed = plan(7).into_iter().filter(|fault| fault.aim == aim).count();
            assert!(
                (5..60).contains(&aimed),
                "{aimed} of 100 are aimed at {aim:?}"
            );
        }
    }
}
