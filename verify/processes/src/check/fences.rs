//! The fence rule, looked for directly: by what was known before a write began, by the order in which
//! the resource itself put the writes, and by whom an epoch was granted to.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use super::Rule;
use crate::history::{self, Answer, Call, Mark, Operation};

pub(super) fn check(operations: &[&Operation], broken: &mut impl FnMut(Rule, String)) {
    no_write_after_its_epoch(operations, broken);
    epochs_grow(operations, broken);
    holders(operations, broken);
}

/// Once anybody has an answer that shows epoch n, or that n has ended, no write of an earlier epoch
/// that begins afterwards may be accepted.
fn no_write_after_its_epoch(operations: &[&Operation], broken: &mut impl FnMut(Rule, String)) {
    let mut seen: Vec<_> = operations
        .iter()
        .filter_map(|operation| Some((operation.ended_ns?, epoch_shown(operation)?, *operation)))
        .collect();
    seen.sort_by_key(|(ended_ns, _, _)| *ended_ns);
    let mut seen = seen.into_iter().peekable();
    let mut latest: Option<(u64, &Operation)> = None;
    // The operations come in the order in which they began.
    for operation in operations {
        while let Some((_, epoch, by)) =
            seen.next_if(|(ended_ns, _, _)| *ended_ns < operation.began_ns)
        {
            if latest.is_none_or(|(known, _)| known < epoch) {
                latest = Some((epoch, by));
            }
        }
        if let (Some(epoch), Some((current, by))) = (operation.accepted_epoch(), latest)
            && epoch < current
        {
            broken(
                Rule::NoWriteAfterItsEpoch,
                format!("{operation}, but epoch {current} was known before: {by}"),
            );
        }
    }
}

/// The lowest epoch that a write may carry after this answer.
fn epoch_shown(operation: &Operation) -> Option<u64> {
    let after = |epoch: u64| Some(epoch.saturating_add(1));
    match (&operation.call, operation.answer.as_ref()?) {
        (_, Answer::Granted { epoch }) => Some(*epoch),
        (_, Answer::Revoked { epoch }) => after(*epoch),
        (_, Answer::Stale { current, .. }) => Some(*current),
        (Call::Release { epoch }, Answer::Released | Answer::AlreadyEnded) => after(*epoch),
        (
            Call::Write {
                epoch,
                releases: true,
                ..
            },
            Answer::Written { .. },
        ) => after(*epoch),
        (_, Answer::Written { .. } | Answer::Appended { .. }) => operation.written_epoch(),
        (_, Answer::Read(Some(found))) => Some(found.epoch),
        (_, Answer::Listed(entries)) => entries.iter().map(|entry| entry.epoch).max(),
        _ => None,
    }
}

/// Revisions of the register are handed out once, and neither they nor positions of the list go with
/// a smaller epoch than the one before. Whatever is read was written so.
fn epochs_grow(operations: &[&Operation], broken: &mut impl FnMut(Rule, String)) {
    let mut written: Vec<(u64, u64, &Operation)> = Vec::new();
    let mut updates: HashMap<Mark, &Operation> = HashMap::new();
    for operation in operations {
        if let Call::Write { value, .. } = &operation.call {
            updates.insert(value.mark, operation);
        }
        if let (Some(epoch), Some(Answer::Written { revision })) =
            (operation.accepted_epoch(), &operation.answer)
        {
            written.push((*revision, epoch, operation));
        }
    }
    written.sort_by_key(|(revision, _, _)| *revision);
    for ((revision, epoch, before), (next, later, operation)) in
        written.iter().zip(written.iter().skip(1))
    {
        if revision == next {
            broken(
                Rule::EpochsGrow,
                format!("revision {revision} was made twice: {before}, and {operation}"),
            );
        } else if later < epoch {
            broken(
                Rule::EpochsGrow,
                format!("revision {next} went back from epoch {epoch}: {before}, then {operation}"),
            );
        }
    }
    for operation in operations {
        match &operation.answer {
            Some(Answer::Read(Some(found))) => {
                let update = updates.get(&found.value.mark);
                let is_as_written = update.is_some_and(|update| {
                    let wrote = match &update.call {
                        Call::Write { value, .. } => *value == found.value,
                        _ => false,
                    };
                    let revision = match update.answer {
                        Some(Answer::Written { revision }) => revision == found.revision,
                        _ => update.is_unknown(),
                    };
                    wrote && revision && update.written_epoch() == Some(found.epoch)
                });
                if !is_as_written {
                    let update = update.map_or("never written".to_owned(), ToString::to_string);
                    broken(
                        Rule::EpochsGrow,
                        format!("{operation}, which was not written so: {update}"),
                    );
                }
            }
            Some(Answer::Listed(entries)) => {
                let went_back =
                    |pair: &(&history::Entry, &history::Entry)| pair.1.epoch < pair.0.epoch;
                let pairs = entries.iter().zip(entries.iter().skip(1));
                for (before, after) in pairs.filter(went_back) {
                    broken(
                        Rule::EpochsGrow,
                        format!("the list went back from {before:?} to {after:?}"),
                    );
                }
            }
            _ => {}
        }
    }
}

/// An epoch is granted once, and who writes under it was granted it before.
fn holders(operations: &[&Operation], broken: &mut impl FnMut(Rule, String)) {
    let mut granted: HashMap<u64, &Operation> = HashMap::new();
    for operation in operations {
        let Some(Answer::Granted { epoch }) = operation.answer else {
            continue;
        };
        match granted.entry(epoch) {
            Entry::Vacant(vacant) => {
                vacant.insert(operation);
            }
            Entry::Occupied(first) => {
                let first = first.get();
                broken(
                    Rule::OneHolderOfAnEpoch,
                    format!("epoch {epoch} was granted twice: {first}, and {operation}"),
                );
            }
        }
    }
    for operation in operations {
        let Some(epoch) = operation.accepted_epoch() else {
            continue;
        };
        let is_holder = granted.get(&epoch).is_some_and(|grant| {
            grant.process == operation.process && grant.ended_ns <= Some(operation.began_ns)
        });
        if !is_holder {
            let grant = granted
                .get(&epoch)
                .map_or("nobody".to_owned(), ToString::to_string);
            broken(
                Rule::TheWriterIsTheHolder,
                format!("{operation}, but that epoch was granted to: {grant}"),
            );
        }
    }
}
