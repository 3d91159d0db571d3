//! That no acknowledged update is lost: whatever was acknowledged is part of what is there in the end.
//!
//! Each value of the register names the update that it builds on, so the last value shows all that went
//! into it. Each update of the user's tables is an entry of the list, and the counter counts them.

use std::collections::{HashMap, HashSet};

use super::Rule;
use crate::history::{Answer, CONDUCTOR, Call, Mark, Operation, Value};

/// How many lost updates are told one by one.
const TOLD_MAX: usize = 3;

/// What became of the updates.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Updates {
    /// How many were acknowledged.
    pub acknowledged: u64,
    /// How many of these are not part of what is there in the end.
    pub lost: u64,
}

impl Updates {
    pub(crate) fn add(&mut self, other: Self) {
        self.acknowledged += other.acknowledged;
        self.lost += other.lost;
    }
}

pub(super) fn check(operations: &[&Operation], broken: &mut impl FnMut(Rule, String)) -> Updates {
    let mut updates = register(operations, broken);
    updates.add(list(operations, broken));
    updates
}

fn register(operations: &[&Operation], broken: &mut impl FnMut(Rule, String)) -> Updates {
    let mut writes: HashMap<Mark, (&Operation, Value)> = HashMap::new();
    let mut last = None;
    for operation in operations {
        match (&operation.call, &operation.answer) {
            (Call::Write { value, .. }, _) => {
                writes.insert(value.mark, (operation, *value));
            }
            (_, Some(Answer::Read(found))) if operation.process == CONDUCTOR => {
                last = Some(found.map(|found| found.value));
            }
            _ => {}
        }
    }
    let Some(last) = last else {
        broken(
            Rule::NoLostUpdate,
            "nobody read the register in the end".to_owned(),
        );
        return Updates::default();
    };
    let mut there = HashSet::new();
    let mut next = last.map(|value| value.mark);
    while let Some(mark) = next {
        let write = writes.get(&mark);
        let may_be_there = write.is_some_and(|(operation, _)| {
            operation.is_unknown() || operation.accepted_epoch().is_some()
        });
        if !may_be_there || !there.insert(mark) {
            broken(
                Rule::NoLostUpdate,
                format!("the last value builds on {mark}, which was not accepted, or on itself"),
            );
            break;
        }
        next = write.and_then(|(_, value)| value.parent);
    }
    if let Some(last) = last
        && last.count != there.len() as u64
    {
        broken(
            Rule::NoLostUpdate,
            format!(
                "the last value counts {} updates and builds on {}",
                last.count,
                there.len()
            ),
        );
    }
    let acknowledged = writes
        .values()
        .map(|(operation, value)| (*operation, value.mark));
    lost("register", acknowledged, &there, broken)
}

fn list(operations: &[&Operation], broken: &mut impl FnMut(Rule, String)) -> Updates {
    let mut appends: HashMap<Mark, &Operation> = HashMap::new();
    let mut last = None;
    for operation in operations {
        match (&operation.call, &operation.answer) {
            (Call::Append { mark, position, .. }, answer) => {
                appends.insert(*mark, operation);
                if let Some(Answer::Appended { before }) = answer
                    && before.checked_add(1) != Some(*position)
                {
                    broken(
                        Rule::NoLostUpdate,
                        format!("others had set the counter to {before} meanwhile: {operation}"),
                    );
                }
            }
            (_, Some(Answer::Listed(entries))) if operation.process == CONDUCTOR => {
                last = Some(entries);
            }
            _ => {}
        }
    }
    let Some(last) = last else {
        broken(
            Rule::NoLostUpdate,
            "nobody read the list in the end".to_owned(),
        );
        return Updates::default();
    };
    let mut there = HashSet::new();
    for (position, entry) in (1..).zip(last) {
        let may_be_there = appends.get(&entry.mark).is_some_and(|operation| {
            operation.is_unknown() || operation.accepted_epoch().is_some()
        });
        if !may_be_there || !there.insert(entry.mark) || entry.position != position {
            broken(
                Rule::NoLostUpdate,
                format!("{entry:?} stands at {position}, and should not stand there"),
            );
        }
    }
    let acknowledged = appends.iter().map(|(mark, operation)| (*operation, *mark));
    lost("list", acknowledged, &there, broken)
}

fn lost<'a>(
    place: &str,
    updates: impl Iterator<Item = (&'a Operation, Mark)>,
    there: &HashSet<Mark>,
    broken: &mut impl FnMut(Rule, String),
) -> Updates {
    let acknowledged: Vec<_> = updates
        .filter(|(operation, _)| operation.accepted_epoch().is_some())
        .collect();
    let mut lost: Vec<_> = acknowledged
        .iter()
        .filter(|(_, mark)| !there.contains(mark))
        .collect();
    lost.sort_by_key(|(operation, _)| operation.began_ns);
    for (operation, _) in lost.iter().take(TOLD_MAX) {
        broken(
            Rule::NoLostUpdate,
            format!("the {place} has lost {operation}"),
        );
    }
    if let Some(more) = lost.len().checked_sub(TOLD_MAX).filter(|more| *more > 0) {
        broken(
            Rule::NoLostUpdate,
            format!("the {place} has lost {more} more"),
        );
    }
    Updates {
        acknowledged: acknowledged.len() as u64,
        lost: lost.len() as u64,
    }
}
