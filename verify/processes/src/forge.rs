//! Recorded histories, broken on purpose: controls of the checker on what real processes wrote.
//!
//! Each forgery changes as little as it can and breaks one rule; the checker must name that rule.

use std::collections::HashSet;

use aster_lease::AuditEvent;

use crate::check::Rule;
use crate::history::{Answer, CONDUCTOR, Call, History, Mark, Operation, Told};

/// A process that is in no history.
const NOBODY: u32 = u32::MAX;

/// One way to break a history.
#[derive(Debug, Clone, Copy)]
pub struct Forgery {
    /// What is forged.
    pub what: &'static str,
    /// The rule that it breaks.
    pub rule: Rule,
    forge: fn(&mut History) -> Option<()>,
}

impl Forgery {
    /// `history`, broken in this way; `None` if it holds nothing that can be broken so.
    #[must_use]
    pub fn of(&self, history: &History) -> Option<History> {
        let mut forged = history.clone();
        (self.forge)(&mut forged)?;
        forged.sort();
        Some(forged)
    }
}

/// All of them.
pub const FORGERIES: [Forgery; 11] = [
    Forgery {
        what: "a read that finds the value before the present one",
        rule: Rule::Linearizable,
        forge: stale_read,
    },
    Forgery {
        what: "an acknowledged write that nobody finds",
        rule: Rule::Linearizable,
        forge: vanished_write,
    },
    Forgery {
        what: "a late write of the register that is accepted",
        rule: Rule::NoWriteAfterItsEpoch,
        forge: late_write,
    },
    Forgery {
        what: "a release that ended before its last write began",
        rule: Rule::NoWriteAfterItsEpoch,
        forge: early_release,
    },
    Forgery {
        what: "two writes whose epochs are exchanged",
        rule: Rule::EpochsGrow,
        forge: exchanged_epochs,
    },
    Forgery {
        what: "a write by somebody else than the holder",
        rule: Rule::TheWriterIsTheHolder,
        forge: other_writer,
    },
    Forgery {
        what: "an epoch that is granted to somebody else as well",
        rule: Rule::OneHolderOfAnEpoch,
        forge: second_holder,
    },
    Forgery {
        what: "an entry that is missing from the list in the end",
        rule: Rule::NoLostUpdate,
        forge: missing_entry,
    },
    Forgery {
        what: "a register that is back at an earlier value in the end",
        rule: Rule::NoLostUpdate,
        forge: older_end,
    },
    Forgery {
        what: "a grant that is missing from the audit trail",
        rule: Rule::TheTrailAgrees,
        forge: missing_grant,
    },
    Forgery {
        what: "an error that no caller may hear",
        rule: Rule::Answers,
        forge: raw_error,
    },
];

fn stale_read(history: &mut History) -> Option<()> {
    let operations = &history.operations;
    let (at, older) = operations.iter().enumerate().find_map(|(at, read)| {
        let Some(Answer::Read(Some(now))) = read.answer else {
            return None;
        };
        let known_before = |other: &&Operation| {
            other.resource == read.resource && other.ended_ns.is_some_and(|at| at < read.began_ns)
        };
        let mut before = operations.iter().filter(known_before);
        let is_known = before.clone().any(|other| other.answer == read.answer);
        let older = before.find_map(|other| match other.answer {
            Some(Answer::Read(Some(found))) if found != now => Some(found),
            _ => None,
        });
        older.filter(|_| is_known).map(|older| (at, older))
    })?;
    history.operations.get_mut(at)?.answer = Some(Answer::Read(Some(older)));
    Some(())
}

fn vanished_write(history: &mut History) -> Option<()> {
    let at = position(history, |operation| {
        matches!(
            operation.call,
            Call::Write {
                releases: false,
                ..
            }
        ) && operation.accepted_epoch().is_some()
    })?;
    let mut vanished = history.operations.get(at)?.clone();
    if let Call::Write { value, .. } = &mut vanished.call {
        value.mark = Mark {
            process: NOBODY,
            number: 1,
        };
    }
    history.operations.push(vanished);
    Some(())
}

fn late_write(history: &mut History) -> Option<()> {
    let revision = revisions(history).max()?.checked_add(1)?;
    let at = position(history, |operation| {
        let Some(Answer::Stale { carried, .. }) = operation.answer else {
            return false;
        };
        let is_known = |other: &Operation| {
            other.resource == operation.resource
                && other.ended_ns.is_some_and(|at| at < operation.began_ns)
                && matches!(other.answer, Some(Answer::Granted { epoch }) if epoch > carried)
        };
        matches!(operation.call, Call::Write { .. }) && history.operations.iter().any(is_known)
    })?;
    history.operations.get_mut(at)?.answer = Some(Answer::Written { revision });
    Some(())
}

fn early_release(history: &mut History) -> Option<()> {
    let (at, began_ns) = history
        .operations
        .iter()
        .enumerate()
        .find_map(|(at, release)| {
            let (Call::Release { epoch }, Some(Answer::Released)) =
                (&release.call, &release.answer)
            else {
                return None;
            };
            let mut writes = history.operations.iter().filter(|operation| {
                operation.resource == release.resource && operation.accepted_epoch() == Some(*epoch)
            });
            writes.next_back().map(|write| (at, write.began_ns))
        })?;
    let release = history.operations.get_mut(at)?;
    release.began_ns = began_ns.checked_sub(2)?;
    release.ended_ns = Some(began_ns.checked_sub(1)?);
    Some(())
}

fn exchanged_epochs(history: &mut History) -> Option<()> {
    let mut written: Vec<_> = history
        .operations
        .iter()
        .enumerate()
        .filter_map(|(at, operation)| match operation.answer {
            Some(Answer::Written { revision }) => {
                let epoch = operation.accepted_epoch()?;
                Some((operation.resource.as_str(), revision, epoch, at))
            }
            _ => None,
        })
        .collect();
    written.sort_unstable();
    let (first, second) = written
        .iter()
        .zip(written.iter().skip(1))
        .find(|(first, second)| first.0 == second.0 && first.2 < second.2)
        .map(|(first, second)| ((first.3, first.2), (second.3, second.2)))?;
    set_epoch(history, first.0, second.1)?;
    set_epoch(history, second.0, first.1)
}

fn set_epoch(history: &mut History, at: usize, new: u64) -> Option<()> {
    match &mut history.operations.get_mut(at)?.call {
        Call::Write { epoch, .. } => *epoch = new,
        _ => return None,
    }
    Some(())
}

fn other_writer(history: &mut History) -> Option<()> {
    let at = position(history, |operation| {
        operation.accepted_epoch().is_some() && operation.process != CONDUCTOR
    })?;
    history.operations.get_mut(at)?.process = NOBODY;
    Some(())
}

fn second_holder(history: &mut History) -> Option<()> {
    let at = position(history, |operation| {
        matches!(operation.answer, Some(Answer::Granted { .. }))
    })?;
    let mut second = history.operations.get(at)?.clone();
    second.process = NOBODY;
    history.operations.push(second);
    Some(())
}

fn missing_entry(history: &mut History) -> Option<()> {
    // One that was acknowledged: others may rightly be missing.
    let acknowledged: HashSet<Mark> = history
        .operations
        .iter()
        .filter_map(|operation| match (&operation.call, &operation.answer) {
            (Call::Append { mark, .. }, Some(Answer::Appended { .. })) => Some(*mark),
            _ => None,
        })
        .collect();
    history
        .operations
        .iter_mut()
        .find_map(|operation| match &mut operation.answer {
            Some(Answer::Listed(entries)) if operation.process == CONDUCTOR => {
                let missing = entries
                    .iter()
                    .position(|entry| acknowledged.contains(&entry.mark))?;
                entries.remove(missing);
                for (position, entry) in (1..).zip(entries) {
                    entry.position = position;
                }
                Some(())
            }
            _ => None,
        })
}

fn missing_grant(history: &mut History) -> Option<()> {
    history
        .operations
        .iter_mut()
        .find_map(|operation| match &mut operation.answer {
            Some(Answer::Trail(trail)) if operation.process == CONDUCTOR => {
                let is_grant =
                    |told: &Told| matches!(told.event, AuditEvent::Granted | AuditEvent::TakenOver);
                let last = trail.iter().rposition(is_grant)?;
                trail.remove(last);
                Some(())
            }
            _ => None,
        })
}

fn older_end(history: &mut History) -> Option<()> {
    let read_at = |operation: &Operation| matches!(operation.answer, Some(Answer::Read(Some(_))));
    let last = history
        .operations
        .iter()
        .rposition(|operation| operation.process == CONDUCTOR && read_at(operation))?;
    let Operation {
        resource, answer, ..
    } = history.operations.get(last)?.clone();
    let older = position(history, |operation| {
        operation.resource == resource && read_at(operation) && operation.answer != answer
    })?;
    let answer = history.operations.get(older)?.answer.clone();
    history.operations.get_mut(last)?.answer = answer;
    Some(())
}

fn raw_error(history: &mut History) -> Option<()> {
    let at = position(history, Operation::is_unknown)
        .or_else(|| position(history, |operation| operation.answer.is_some()))?;
    let operation = history.operations.get_mut(at)?;
    operation.ended_ns = Some(operation.began_ns);
    operation.answer = Some(Answer::Unexpected {
        message: "database is locked".to_owned(),
    });
    Some(())
}

fn revisions(history: &History) -> impl Iterator<Item = u64> {
    history
        .operations
        .iter()
        .filter_map(|operation| match operation.answer {
            Some(Answer::Written { revision }) => Some(revision),
            _ => None,
        })
}

fn position(history: &History, is_it: impl Fn(&Operation) -> bool) -> Option<usize> {
    history.operations.iter().position(is_it)
}
