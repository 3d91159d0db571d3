//! The judgement of a history. It knows nothing but what the processes wrote down, and calls no code of
//! the leases: a rule that is wrong there is not wrong here in the same way.
//!
//! | file | what is judged |
//! |---|---|
//! | `linearizable.rs` | a search for an order of operations that a sequential object could have done |
//! | `leased.rs` | that object: a row, its register and the user's counter in one |
//! | `fences.rs` | the fence rule, directly, without any search |
//! | `updates.rs` | that no acknowledged update is lost |
//! | `trail.rs` | that the store's own record of ownership agrees with what was heard |
//! | `answers.rs` | that callers hear only what they may hear |

mod answers;
mod fences;
mod leased;
mod linearizable;
mod trail;
mod updates;

use std::collections::BTreeMap;
use std::fmt;

use crate::history::{Answer, Call, History, Operation};

pub use leased::{Leased, Revisions};
pub use linearizable::{Interval, Model, PLACINGS_MAX, Search, search};
pub use updates::Updates;

/// What is judged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Rule {
    /// `leased.rs`.
    Linearizable,
    /// `fences.rs`.
    NoWriteAfterItsEpoch,
    /// `fences.rs`.
    EpochsGrow,
    /// `fences.rs`.
    TheWriterIsTheHolder,
    /// `fences.rs`.
    OneHolderOfAnEpoch,
    /// `updates.rs`.
    NoLostUpdate,
    /// `trail.rs`.
    TheTrailAgrees,
    /// `answers.rs`.
    Answers,
}

impl Rule {
    /// All of them.
    pub const ALL: [Self; 8] = [
        Self::Linearizable,
        Self::NoWriteAfterItsEpoch,
        Self::EpochsGrow,
        Self::TheWriterIsTheHolder,
        Self::OneHolderOfAnEpoch,
        Self::NoLostUpdate,
        Self::TheTrailAgrees,
        Self::Answers,
    ];
}

/// The rule as a sentence.
impl fmt::Display for Rule {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Rule::Linearizable => {
                "grants, ends, protected writes and reads of each resource are linearizable"
            }
            Rule::NoWriteAfterItsEpoch => {
                "no write is accepted that began after a later epoch was seen"
            }
            Rule::EpochsGrow => {
                "epochs of accepted writes never decrease in the order of revisions and positions"
            }
            Rule::TheWriterIsTheHolder => {
                "whoever wrote under an epoch had been granted that epoch"
            }
            Rule::OneHolderOfAnEpoch => "an epoch is granted once",
            Rule::NoLostUpdate => "no acknowledged update is lost",
            Rule::TheTrailAgrees => {
                "the audit trail tells of one owner after the other, and of all that was heard"
            }
            Rule::Answers => {
                "callers hear grants, denials, stale fences and errors to retry, and nothing else"
            }
        })
    }
}

/// A rule that did not hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Broken {
    /// Which.
    pub rule: Rule,
    /// What was seen.
    pub what: String,
}

impl fmt::Display for Broken {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}: {}", self.rule, self.what)
    }
}

/// What a history contains.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Figures {
    /// Operations that were answered.
    pub answered: u64,
    /// Operations that may or may not have been carried out: killed, or an error to retry.
    pub unknown: u64,
    /// Leases granted.
    pub grants: u64,
    /// Times that an owner was taken over from, by the store's own record.
    pub takeovers: u64,
    /// Leases that an operator took away.
    pub revokes: u64,
    /// Leases given up in the same step as a write.
    pub releases_with_a_value: u64,
    /// Writes of the register and the user's tables that were accepted.
    pub accepted: u64,
    /// Such writes that came after their ownership had ended, and were rejected.
    pub late: u64,
    /// Reads.
    pub reads: u64,
}

/// The judgement.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Checked {
    /// What the history contains.
    pub figures: Figures,
    /// What became of the updates.
    pub updates: Updates,
    /// What did not hold.
    pub broken: Vec<Broken>,
    /// For each lease under which something was written: how long after its grant the last of it began,
    /// in nanoseconds.
    pub uses_ns: Vec<u64>,
}

impl Checked {
    /// How many leases were written under for longer than `ttl_ms`, so that they had been renewed.
    #[must_use]
    pub fn long_uses(&self, ttl_ms: u64) -> u64 {
        let is_long = |use_ns: &&u64| **use_ns / NS_PER_MS > ttl_ms;
        self.uses_ns.iter().filter(is_long).count() as u64
    }

    /// The first thing that breaks `rule`.
    #[must_use]
    pub fn first(&self, rule: Rule) -> Option<&Broken> {
        self.broken.iter().find(|broken| broken.rule == rule)
    }
}

/// Judges `history` by every rule.
#[must_use]
pub fn check(history: &History) -> Checked {
    let mut checked = Checked::default();
    for (resource, operations) in by_resource(history) {
        checked.figures.count(&operations);
        checked.uses_ns.extend(uses_ns(&operations));
        let mut broken = |rule, what: String| {
            checked.broken.push(Broken {
                rule,
                what: format!("{resource}: {what}"),
            });
        };
        answers::check(&operations, &mut broken);
        fences::check(&operations, &mut broken);
        leased::check(&operations, Revisions::Count, &mut broken);
        checked.figures.takeovers += trail::check(&operations, &mut broken);
        let updates = updates::check(&operations, &mut broken);
        checked.updates.add(updates);
    }
    checked
}

fn uses_ns(operations: &[&Operation]) -> impl Iterator<Item = u64> {
    let mut last_write: BTreeMap<u64, u64> = BTreeMap::new();
    let mut granted: BTreeMap<u64, u64> = BTreeMap::new();
    for operation in operations {
        if let Some(epoch) = operation.accepted_epoch() {
            last_write.insert(epoch, operation.began_ns);
        }
        if let (Some(Answer::Granted { epoch }), Some(ended_ns)) =
            (&operation.answer, operation.ended_ns)
        {
            granted.insert(*epoch, ended_ns);
        }
    }
    last_write.into_iter().filter_map(move |(epoch, began_ns)| {
        granted
            .get(&epoch)
            .map(|granted_ns| began_ns.saturating_sub(*granted_ns))
    })
}

/// Judges by the search alone, and leaves the revisions out of it: what a read must return follows from
/// the values then. For histories where the two ways are compared.
#[must_use]
pub fn check_without_revisions(history: &History) -> Vec<Broken> {
    let mut found = Vec::new();
    for (resource, operations) in by_resource(history) {
        leased::check(&operations, Revisions::Ignore, &mut |rule, what| {
            found.push(Broken {
                rule,
                what: format!("{resource}: {what}"),
            });
        });
    }
    found
}

fn by_resource(history: &History) -> BTreeMap<&str, Vec<&Operation>> {
    let mut resources: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for operation in &history.operations {
        let known = resources.entry(operation.resource.as_str()).or_default();
        known.push(operation);
    }
    resources
}

impl Operation {
    /// The epoch under which a write or entry was accepted.
    pub(crate) fn accepted_epoch(&self) -> Option<u64> {
        let is_accepted = matches!(
            self.answer,
            Some(Answer::Written { .. } | Answer::Appended { .. })
        );
        self.written_epoch().filter(|_| is_accepted)
    }

    /// The epoch in the fence of a write or entry.
    pub(crate) fn written_epoch(&self) -> Option<u64> {
        match self.call {
            Call::Write { epoch, .. } | Call::Append { epoch, .. } => Some(epoch),
            _ => None,
        }
    }

    /// Whether it may or may not have been carried out.
    pub(crate) fn is_unknown(&self) -> bool {
        matches!(self.answer, None | Some(Answer::Unknown { .. }))
    }
}

impl Figures {
    fn count(&mut self, operations: &[&Operation]) {
        for operation in operations {
            match operation.is_unknown() {
                true => self.unknown += 1,
                false => self.answered += 1,
            }
            self.accepted += u64::from(operation.accepted_epoch().is_some());
            match (&operation.call, &operation.answer) {
                (_, Some(Answer::Granted { .. })) => self.grants += 1,
                (_, Some(Answer::Revoked { .. })) => self.revokes += 1,
                (_, Some(Answer::Stale { .. })) => self.late += 1,
                (Call::Write { releases: true, .. }, Some(Answer::Written { .. })) => {
                    self.releases_with_a_value += 1;
                }
                (Call::Read | Call::Count | Call::List | Call::Trail, Some(_)) => self.reads += 1,
                _ => {}
            }
        }
    }
}

/// For messages: `process 3 write 3.17 at epoch 9 [12.345678 to 12.400000 s] answered …`.
impl fmt::Display for Operation {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = |at_ns: u64| format!("{}.{:06}", at_ns / NS_PER_S, at_ns % NS_PER_S / 1_000);
        write!(formatter, "process {} ", self.process)?;
        match &self.call {
            Call::Write {
                epoch,
                value,
                releases,
            } => {
                let end = if *releases { " and release" } else { "" };
                write!(formatter, "write {} at epoch {epoch}{end}", value.mark)?;
            }
            Call::Append {
                epoch,
                position,
                mark,
            } => write!(formatter, "append {mark} as {position} at epoch {epoch}")?,
            Call::Acquire { .. } => write!(formatter, "acquire")?,
            Call::Release { epoch } => write!(formatter, "release epoch {epoch}")?,
            Call::Revoke => write!(formatter, "revoke")?,
            Call::Read => write!(formatter, "read")?,
            Call::Count => write!(formatter, "count")?,
            Call::List => write!(formatter, "list")?,
            Call::Trail => write!(formatter, "read the audit trail")?,
        }
        write!(formatter, " [{} to ", seconds(self.began_ns))?;
        match self.ended_ns {
            Some(ended_ns) => write!(formatter, "{} s]", seconds(ended_ns))?,
            None => write!(formatter, "?]")?,
        }
        match &self.answer {
            Some(Answer::Listed(entries)) => {
                write!(formatter, " answered {} entries", entries.len())
            }
            Some(Answer::Trail(trail)) => {
                write!(formatter, " answered {} changes", trail.len())
            }
            Some(Answer::Read(Some(found))) => write!(
                formatter,
                " answered {} at revision {}, epoch {}",
                found.value.mark, found.revision, found.epoch
            ),
            Some(answer) => write!(formatter, " answered {answer:?}"),
            None => write!(formatter, " without an answer"),
        }
    }
}

const NS_PER_S: u64 = 1_000_000_000;
const NS_PER_MS: u64 = 1_000_000;
