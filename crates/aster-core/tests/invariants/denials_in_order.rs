//! Rule: denials are judged in the order epoch, held, holder, expired, and an operation is denied
//! exactly when one of them fails. Cancel goes by the grant in place of the epoch: held, grant, holder.

use aster_core::{Decision, DenyReason, Judged, LeaseOp, RowView, RuleError};
use aster_core::{TransitionOutcome, TtlBounds, transition};

use crate::harness::{Asked, Rules, Trace, Verdict, asked, catches, holds};

fn check(trace: &Trace) -> Verdict {
    let mut seen = 0;
    for asked in asked(trace) {
        let Ok(outcome) = &asked.answer else {
            continue;
        };
        let denied = match outcome {
            TransitionOutcome::Denied(reason, _) => Some(*reason),
            _ => None,
        };
        let expected = expected_denial(asked);
        if denied != expected {
            return Err(format!(
                "{:?}: denied {denied:?}, expected {expected:?}",
                asked.op
            ));
        }
        seen += usize::from(denied.is_some());
    }
    Ok(seen)
}

fn expected_denial(asked: &Asked) -> Option<DenyReason> {
    let truth = &asked.truth;
    let owner = truth.owner.as_ref();
    let epoch_now = truth.epoch(asked.floor);
    match &asked.op {
        LeaseOp::Acquire {
            candidate,
            ttl,
            grant_id,
        } => {
            if truth.remembered == Some(*grant_id) {
                return match owner {
                    None => Some(DenyReason::NotHeld),
                    Some(owner) if owner.holder != *candidate => Some(DenyReason::HeldByOther),
                    Some(owner) if owner.ttl_ms != ttl.as_millis() => Some(DenyReason::HeldByOther),
                    Some(_) => asked.judged.expired.then_some(DenyReason::Expired),
                };
            }
            match owner {
                Some(_) if !asked.judged.expired => Some(DenyReason::HeldByOther),
                _ => truth
                    .keeps_out(candidate, &asked.over)
                    .then_some(DenyReason::HeldOff),
            }
        }
        LeaseOp::Renew { epoch, .. }
        | LeaseOp::Release { epoch, .. }
        | LeaseOp::Revoke { epoch, .. }
            if *epoch != epoch_now =>
        {
            Some(DenyReason::EpochMismatch)
        }
        LeaseOp::Cancel {
            grant_id,
            candidate,
        } => match owner {
            None => Some(DenyReason::NotHeld),
            Some(owner) if owner.grant_id != *grant_id => Some(DenyReason::HeldByOther),
            Some(owner) => (owner.holder != *candidate).then_some(DenyReason::NotHolder),
        },
        _ if owner.is_none() => Some(DenyReason::NotHeld),
        LeaseOp::Renew { holder, .. } | LeaseOp::Release { holder, .. }
            if owner.is_some_and(|owner| owner.holder != *holder) =>
        {
            Some(DenyReason::NotHolder)
        }
        LeaseOp::Renew { .. } => asked.judged.expired.then_some(DenyReason::Expired),
        _ => None,
    }
}

#[test]
fn denials_are_judged_in_the_order_epoch_held_holder_expired() {
    holds(check);
}

/// Answers `instead` where a condition that is judged later holds too.
struct Broken {
    first: DenyReason,
    also: fn(&RowView<'_>, &Judged, &LeaseOp) -> bool,
    instead: DenyReason,
}

impl Rules for Broken {
    fn transition(
        &self,
        view: &RowView<'_>,
        judged: &Judged,
        bounds: &TtlBounds,
        op: &LeaseOp,
    ) -> Result<Decision, RuleError> {
        let mut decision = transition(view, judged, bounds, op)?;
        if let TransitionOutcome::Denied(reason, _) = &mut decision.outcome
            && *reason == self.first
            && (self.also)(view, judged, op)
        {
            *reason = self.instead;
        }
        Ok(decision)
    }
}

fn is_by_another(view: &RowView<'_>, op: &LeaseOp) -> bool {
    matches!(op, LeaseOp::Renew { .. } | LeaseOp::Release { .. })
        && view
            .row
            .and_then(|row| row.holder())
            .is_some_and(|holder| *holder != *op.actor())
}

#[test]
fn judging_the_holder_before_the_epoch_is_caught() {
    catches(
        check,
        &Broken {
            first: DenyReason::EpochMismatch,
            also: |view, _, op| is_by_another(view, op),
            instead: DenyReason::NotHolder,
        },
    );
}

#[test]
fn judging_held_before_the_epoch_is_caught() {
    catches(
        check,
        &Broken {
            first: DenyReason::EpochMismatch,
            also: |view, _, _| view.row.is_none_or(|row| row.held.is_none()),
            instead: DenyReason::NotHeld,
        },
    );
}

#[test]
fn judging_expiry_before_the_holder_is_caught() {
    catches(
        check,
        &Broken {
            first: DenyReason::NotHolder,
            also: |_, judged, op| judged.expired && matches!(op, LeaseOp::Renew { .. }),
            instead: DenyReason::Expired,
        },
    );
}
