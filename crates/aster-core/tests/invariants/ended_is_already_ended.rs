//! Rule: a release, revoke or cancel that comes again after its epoch (or grant) has ended is an
//! `AlreadyEnded` success for its caller and never touches the next holder. It is not a success when
//! nothing has ended.

use std::collections::BTreeMap;

use aster_core::{Decision, DenyReason, Effect, Judged, LeaseOp, LeaseSnapshot, ResourceName};
use aster_core::{RowView, RuleError, TransitionOutcome, TtlBounds, retry_outcome, transition};

use crate::harness::{Asked, Rules, Trace, Verdict, asked, catches, holds};

fn check(trace: &Trace) -> Verdict {
    let mut seen = 0;
    let mut succeeded: BTreeMap<(ResourceName, String), usize> = BTreeMap::new();
    for asked in asked(trace) {
        let Some(has_ended) = has_ended(asked) else {
            continue;
        };
        let key = (asked.resource.clone(), format!("{:?}", asked.op));
        match &asked.answer {
            Ok(TransitionOutcome::Denied(reason, _)) => {
                if has_ended && !asked.already_ended {
                    return Err(format!(
                        "{:?} has ended, yet {reason:?} is no success",
                        asked.op
                    ));
                }
                let owns_still = asked
                    .truth
                    .owner
                    .as_ref()
                    .is_some_and(|owner| names(asked, owner));
                if asked.already_ended && owns_still {
                    return Err(format!("{:?} is called ended, and it holds on", asked.op));
                }
                seen += usize::from(asked.already_ended && succeeded.contains_key(&key));
            }
            Ok(_) if has_ended => {
                return Err(format!("{:?} ended another ownership", asked.op));
            }
            Ok(_) => *succeeded.entry(key).or_default() += 1,
            Err(_) => {}
        }
        if has_ended && asked.before != asked.after {
            return Err(format!("{:?} came late and changed the row", asked.op));
        }
    }
    Ok(seen)
}

/// Whether what the operation wants to end is over already; `None` for the other operations.
fn has_ended(asked: &Asked) -> Option<bool> {
    match &asked.op {
        LeaseOp::Release { epoch, .. } | LeaseOp::Revoke { epoch, .. } => {
            Some(asked.truth.ended_epochs.contains(epoch))
        }
        LeaseOp::Cancel { grant_id, .. } => {
            let owner = asked.truth.owner.as_ref();
            Some(owner.is_none_or(|owner| owner.grant_id != *grant_id))
        }
        _ => None,
    }
}

fn names(asked: &Asked, owner: &crate::harness::Owner) -> bool {
    match &asked.op {
        LeaseOp::Release { epoch, .. } | LeaseOp::Revoke { epoch, .. } => *epoch == owner.epoch,
        LeaseOp::Cancel { grant_id, .. } => *grant_id == owner.grant_id,
        _ => false,
    }
}

#[test]
fn what_has_ended_is_already_ended_and_the_next_holder_lives_on() {
    holds(check);
}

/// Moves a late release or revoke to the present epoch.
struct IgnoresTheEpoch(fn(&LeaseOp) -> bool);

impl Rules for IgnoresTheEpoch {
    fn transition(
        &self,
        view: &RowView<'_>,
        judged: &Judged,
        bounds: &TtlBounds,
        op: &LeaseOp,
    ) -> Result<Decision, RuleError> {
        let mut op = op.clone();
        if (self.0)(&op)
            && let LeaseOp::Release { epoch, .. } | LeaseOp::Revoke { epoch, .. } = &mut op
        {
            *epoch = view.epoch();
        }
        transition(view, judged, bounds, &op)
    }
}

#[test]
fn a_release_by_name_that_ends_the_next_lease_is_caught() {
    catches(
        check,
        &IgnoresTheEpoch(|op| matches!(op, LeaseOp::Release { .. })),
    );
}

#[test]
fn a_late_revoke_that_ends_the_next_holder_is_caught() {
    catches(
        check,
        &IgnoresTheEpoch(|op| matches!(op, LeaseOp::Revoke { .. })),
    );
}

#[test]
fn a_late_cancel_that_ends_the_next_grant_is_caught() {
    struct CancelsByName;
    impl Rules for CancelsByName {
        fn transition(
            &self,
            view: &RowView<'_>,
            judged: &Judged,
            bounds: &TtlBounds,
            op: &LeaseOp,
        ) -> Result<Decision, RuleError> {
            match (op, view.row) {
                (LeaseOp::Cancel { candidate, .. }, Some(row)) => {
                    let candidate = candidate.clone();
                    let op = LeaseOp::Cancel {
                        candidate,
                        grant_id: row.grant_id,
                    };
                    transition(view, judged, bounds, &op)
                }
                _ => transition(view, judged, bounds, op),
            }
        }
    }
    catches(check, &CancelsByName);
}

#[test]
fn calling_a_retry_a_failure_is_caught() {
    struct NeverEnded;
    impl Rules for NeverEnded {
        fn already_ended(&self, _: &LeaseOp, _: DenyReason, _: &LeaseSnapshot) -> bool {
            false
        }
    }
    catches(check, &NeverEnded);
}

#[test]
fn calling_a_foreign_release_a_success_is_caught() {
    struct AlwaysEnded;
    impl Rules for AlwaysEnded {
        fn already_ended(
            &self,
            op: &LeaseOp,
            reason: DenyReason,
            snapshot: &LeaseSnapshot,
        ) -> bool {
            retry_outcome(op, reason, snapshot) || reason == DenyReason::NotHolder
        }
    }
    catches(check, &AlwaysEnded);
}

#[test]
fn a_late_release_that_changes_the_row_is_caught() {
    struct TouchesTheRow;
    impl Rules for TouchesTheRow {
        fn transition(
            &self,
            view: &RowView<'_>,
            judged: &Judged,
            bounds: &TtlBounds,
            op: &LeaseOp,
        ) -> Result<Decision, RuleError> {
            let mut decision = transition(view, judged, bounds, op)?;
            if let (LeaseOp::Release { .. }, TransitionOutcome::Denied(..), Some(row)) =
                (op, &decision.outcome, view.row)
            {
                let mut row = row.clone();
                row.revision += 1;
                decision.effect = Effect::Rearm(row);
            }
            Ok(decision)
        }
    }
    catches(check, &TouchesTheRow);
}
