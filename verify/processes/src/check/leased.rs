//! A resource as one sequential object: its row, its register and the user's counter.
//!
//! A write under an epoch is accepted only while that epoch is held by its writer, so an order of all
//! operations can exist only if no write of an ended owner was accepted.

use std::collections::HashSet;
use std::fmt::Write as _;

use super::Rule;
use super::linearizable::{Interval, Model, Search, search};
use crate::history::{Answer, Call, Found, Mark, Operation, Value};

/// How many of the operations that do not fit are told.
const TOLD_MAX: usize = 6;

/// Whether revisions are part of the object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Revisions {
    /// A write counts the revision up by one, and a read returns it. This also makes the search fast:
    /// what was acknowledged has one place only.
    Count,
    /// They are not looked at; what a read returns follows from the values alone.
    Ignore,
}

/// The object.
#[derive(Debug, Clone, Copy)]
pub struct Leased {
    /// Whether revisions are part of it.
    pub revisions: Revisions,
}

/// What it remembers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct State {
    epoch: u64,
    holder: Option<u32>,
    register: Option<(Value, u64)>,
    revision: u64,
    counter: Option<(u64, Mark)>,
}

/// One operation together with its answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// The lease went to `holder` at `epoch`.
    Grant {
        /// The epoch.
        epoch: u64,
        /// The process.
        holder: u32,
    },
    /// The ownership at this epoch ended by this operation.
    End {
        /// The epoch.
        epoch: u64,
    },
    /// The ownership at this epoch ended by this operation, and nobody ever heard of its beginning:
    /// whoever was granted it was killed, or its turn in the queue was over before it heard of it. So
    /// nobody can have written under it.
    EndOfUnseen {
        /// The epoch.
        epoch: u64,
    },
    /// The ownership at this epoch has ended, by this operation or before.
    Over {
        /// The epoch.
        epoch: u64,
    },
    /// The register was written by `holder` under `epoch`.
    Write {
        /// The epoch.
        epoch: u64,
        /// The process.
        holder: u32,
        /// The value.
        value: Value,
        /// The revision that was answered.
        revision: Option<u64>,
        /// Whether the ownership ended in the same step.
        ends: bool,
    },
    /// The register was read.
    Read(Option<Found>),
    /// The counter was set by `holder` under `epoch`.
    Append {
        /// The epoch.
        epoch: u64,
        /// The process.
        holder: u32,
        /// The counter afterwards.
        position: u64,
        /// By this update.
        mark: Mark,
    },
    /// The counter was read.
    Count(Option<(u64, Mark)>),
}

impl Model for Leased {
    type State = State;
    type Step = Step;

    fn first(&self) -> State {
        State::default()
    }

    fn after(&self, state: &State, step: &Step) -> Option<State> {
        let is_owner = |epoch, holder| state.epoch == epoch && state.holder == Some(holder);
        let next = match *step {
            Step::Grant { epoch, holder } if epoch > state.epoch => State {
                epoch,
                holder: Some(holder),
                ..*state
            },
            Step::End { epoch } if state.epoch == epoch && state.holder.is_some() => state.ended(),
            Step::EndOfUnseen { epoch } if epoch > state.epoch => State {
                epoch,
                holder: None,
                ..*state
            },
            Step::Over { epoch } if state.epoch == epoch => state.ended(),
            Step::Over { epoch } if state.epoch > epoch => *state,
            Step::Write {
                epoch,
                holder,
                value,
                revision,
                ends,
            } if is_owner(epoch, holder) && self.is_next(state, revision) => {
                let written = State {
                    register: Some((value, epoch)),
                    revision: self.next_revision(state),
                    ..*state
                };
                match ends {
                    true => written.ended(),
                    false => written,
                }
            }
            Step::Read(found) if self.shows(state, found) => *state,
            Step::Append {
                epoch,
                holder,
                position,
                mark,
            } if is_owner(epoch, holder) => State {
                counter: Some((position, mark)),
                ..*state
            },
            Step::Count(counter) if counter == state.counter => *state,
            _ => return None,
        };
        Some(next)
    }
}

impl State {
    fn ended(&self) -> Self {
        Self {
            holder: None,
            ..*self
        }
    }
}

impl Leased {
    fn next_revision(&self, state: &State) -> u64 {
        match self.revisions {
            Revisions::Count => state.revision + 1,
            Revisions::Ignore => 0,
        }
    }

    fn is_next(&self, state: &State, revision: Option<u64>) -> bool {
        self.revisions == Revisions::Ignore
            || revision.is_none_or(|revision| revision == self.next_revision(state))
    }

    fn shows(&self, state: &State, found: Option<Found>) -> bool {
        let held = found.map(|found| (found.value, found.epoch));
        let revision = found.map_or(0, |found| found.revision);
        held == state.register
            && (self.revisions == Revisions::Ignore || revision == state.revision)
    }
}

/// Rule: grants, ends, protected writes and reads of each resource are linearizable.
pub(super) fn check(
    operations: &[&Operation],
    revisions: Revisions,
    broken: &mut impl FnMut(Rule, String),
) {
    let granted: HashSet<u64> = operations
        .iter()
        .filter_map(|operation| match operation.answer {
            Some(Answer::Granted { epoch }) => Some(epoch),
            _ => None,
        })
        .collect();
    let (intervals, whose): (Vec<_>, Vec<_>) = operations
        .iter()
        .filter_map(|operation| Some((interval(operation, &granted)?, *operation)))
        .unzip();
    match search(&Leased { revisions }, &intervals) {
        Search::Linearizable => {}
        Search::GaveUp => broken(
            Rule::Linearizable,
            "not decided: the search gave up".to_owned(),
        ),
        Search::Impossible { placed, stuck } => {
            let mut told = format!(
                "after {placed} of {} operations none of these fits:",
                intervals.len()
            );
            for operation in stuck.iter().take(TOLD_MAX).filter_map(|at| whose.get(*at)) {
                let _ = write!(told, "\n        {operation}");
            }
            if stuck.len() > TOLD_MAX {
                let _ = write!(told, "\n        and {} more", stuck.len() - TOLD_MAX);
            }
            broken(Rule::Linearizable, told);
        }
    }
}

/// What an operation was for the object; `None` if it changed and showed nothing. What is unknown and
/// could only end an ownership is left out: that only forbids, and needs not have happened.
fn interval(operation: &Operation, granted: &HashSet<u64>) -> Option<Interval<Step>> {
    let holder = operation.process;
    let answer = operation.answer.as_ref();
    let step = match (&operation.call, answer) {
        (_, Some(Answer::Granted { epoch })) => Step::Grant {
            epoch: *epoch,
            holder,
        },
        (Call::Release { epoch }, Some(Answer::Released)) => Step::End { epoch: *epoch },
        (Call::Release { epoch }, Some(Answer::AlreadyEnded)) => Step::Over { epoch: *epoch },
        (Call::Revoke, Some(Answer::Revoked { epoch })) => match granted.contains(epoch) {
            true => Step::End { epoch: *epoch },
            false => Step::EndOfUnseen { epoch: *epoch },
        },
        (
            Call::Write {
                epoch,
                value,
                releases,
            },
            None | Some(Answer::Written { .. } | Answer::Unknown { .. }),
        ) => Step::Write {
            epoch: *epoch,
            holder,
            value: *value,
            revision: match answer {
                Some(Answer::Written { revision }) => Some(*revision),
                _ => None,
            },
            ends: *releases,
        },
        (
            Call::Append {
                epoch,
                position,
                mark,
            },
            None | Some(Answer::Appended { .. } | Answer::Unknown { .. }),
        ) => Step::Append {
            epoch: *epoch,
            holder,
            position: *position,
            mark: *mark,
        },
        (_, Some(Answer::Read(found))) => Step::Read(*found),
        (_, Some(Answer::Counted { count, mark })) => Step::Count(mark.map(|mark| (*count, mark))),
        (_, Some(Answer::Listed(entries))) => {
            Step::Count(entries.last().map(|last| (last.position, last.mark)))
        }
        _ => return None,
    };
    Some(Interval {
        began_ns: operation.began_ns,
        ended_ns: operation.ended_ns.filter(|_| !operation.is_unknown()),
        step,
    })
}
