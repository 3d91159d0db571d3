//! That the store's own record of who owned a resource agrees with what the processes heard: nothing that
//! was acknowledged is missing from it, and it tells of one owner after the other.

use std::collections::HashSet;

use aster_lease::AuditEvent;

use super::Rule;
use crate::history::{Answer, CONDUCTOR, Call, Operation, Told};

/// Answers how many takeovers the record tells of.
pub(super) fn check(operations: &[&Operation], broken: &mut impl FnMut(Rule, String)) -> u64 {
    let last = operations.iter().rev().find_map(|operation| {
        let is_last = operation.process == CONDUCTOR;
        match &operation.answer {
            Some(Answer::Trail(trail)) if is_last => Some(trail),
            _ => None,
        }
    });
    let Some(trail) = last else {
        broken(
            Rule::TheTrailAgrees,
            "nobody read the audit trail in the end".to_owned(),
        );
        return 0;
    };
    one_after_the_other(trail, broken);
    nothing_is_missing(operations, trail, broken);
    let takeovers = trail
        .iter()
        .filter(|told| told.event == AuditEvent::TakenOver);
    takeovers.count() as u64
}

fn one_after_the_other(trail: &[Told], broken: &mut impl FnMut(Rule, String)) {
    let mut epoch = 0;
    let mut owner = None;
    for told in trail {
        let (fits, next) = match told.event {
            AuditEvent::Granted => (owner.is_none() && told.epoch > epoch, Some(told.epoch)),
            AuditEvent::TakenOver => (owner.is_some() && told.epoch > epoch, Some(told.epoch)),
            // Released, revoked, cancelled.
            _ => (owner == Some(told.epoch), None),
        };
        if !fits {
            broken(
                Rule::TheTrailAgrees,
                format!("{told:?} follows epoch {epoch}, owned at: {owner:?}"),
            );
        }
        owner = next;
        epoch = epoch.max(told.epoch);
    }
}

fn nothing_is_missing(
    operations: &[&Operation],
    trail: &[Told],
    broken: &mut impl FnMut(Rule, String),
) {
    let begun: HashSet<_> = trail
        .iter()
        .filter(|told| matches!(told.event, AuditEvent::Granted | AuditEvent::TakenOver))
        .map(|told| (told.epoch, told.process))
        .collect();
    let ended: HashSet<_> = trail.iter().map(|told| (told.event, told.epoch)).collect();
    for operation in operations {
        let is_told = match (&operation.call, &operation.answer) {
            (_, Some(Answer::Granted { epoch })) => {
                begun.contains(&(*epoch, Some(operation.process)))
            }
            (Call::Release { epoch }, Some(Answer::Released))
            | (
                Call::Write {
                    epoch,
                    releases: true,
                    ..
                },
                Some(Answer::Written { .. }),
            ) => ended.contains(&(AuditEvent::Released, *epoch)),
            (_, Some(Answer::Revoked { epoch })) => ended.contains(&(AuditEvent::Revoked, *epoch)),
            _ => true,
        };
        if !is_told {
            broken(
                Rule::TheTrailAgrees,
                format!("the audit trail does not tell of {operation}"),
            );
        }
    }
}
