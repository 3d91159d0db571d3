//! Rule: an acquire under a new grant id is granted when the resource is free, or held and judged
//! expired, unless a hold-off keeps the candidate out or no epoch is left. Safety alone could be had
//! by granting nothing.

use aster_core::{Decision, DenyReason, Effect, Judged, LeaseOp, RowView, RuleError};
use aster_core::{EPOCH_MAX, TransitionOutcome, TtlBounds, transition};

use crate::harness::{Rules, Trace, Verdict, asked, authority, catches, holds};

fn check(trace: &Trace) -> Verdict {
    let mut seen = 0;
    for asked in asked(trace) {
        let truth = &asked.truth;
        let LeaseOp::Acquire {
            candidate,
            ttl,
            grant_id,
        } = &asked.op
        else {
            continue;
        };
        let may_take = (truth.owner.is_none() || asked.judged.expired)
            && truth.remembered != Some(*grant_id)
            && !truth.keeps_out(candidate, &asked.over)
            && TtlBounds::default().check(*ttl).is_ok()
            && truth.epoch(asked.floor) < EPOCH_MAX - 1;
        if !may_take {
            continue;
        }
        let Ok(TransitionOutcome::Granted(fence)) = &asked.answer else {
            return Err(format!(
                "{:?} was not granted: {:?}",
                asked.op, asked.answer
            ));
        };
        let row = asked.after.as_ref();
        let is_written = row.is_some_and(|row| {
            row.epoch == fence.epoch
                && row.grant_id == *grant_id
                && row.holder() == Some(candidate)
                && row.ttl() == Some(*ttl)
        });
        let is_named = fence.holder == *candidate
            && fence.resource == asked.resource
            && fence.authority == authority();
        if !is_written || !is_named || !matches!(asked.effect, Effect::Replace(_)) {
            return Err(format!("granted {fence} for {:?}, row {row:?}", asked.op));
        }
        seen += 1;
    }
    Ok(seen)
}

#[test]
fn a_free_or_expired_resource_is_granted() {
    holds(check);
}

#[test]
fn never_taking_over_an_expired_lease_is_caught() {
    struct ExpiryMeansNothing;
    impl Rules for ExpiryMeansNothing {
        fn transition(
            &self,
            view: &RowView<'_>,
            judged: &Judged,
            bounds: &TtlBounds,
            op: &LeaseOp,
        ) -> Result<Decision, RuleError> {
            transition(
                view,
                &Judged {
                    expired: false,
                    ..*judged
                },
                bounds,
                op,
            )
        }
    }
    catches(check, &ExpiryMeansNothing);
}

#[test]
fn denying_a_free_resource_is_caught() {
    struct DeniesTheFree;
    impl Rules for DeniesTheFree {
        fn transition(
            &self,
            view: &RowView<'_>,
            judged: &Judged,
            bounds: &TtlBounds,
            op: &LeaseOp,
        ) -> Result<Decision, RuleError> {
            let decision = transition(view, judged, bounds, op)?;
            if view.row.is_none() && matches!(decision.effect, Effect::Replace(_)) {
                return Ok(Decision {
                    outcome: TransitionOutcome::Denied(DenyReason::NotHeld, view.snapshot(None)),
                    effect: Effect::Keep,
                });
            }
            Ok(decision)
        }
    }
    catches(check, &DeniesTheFree);
}
