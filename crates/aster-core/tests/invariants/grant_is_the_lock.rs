//! Rule: a second acquire under another grant id is denied while the lease is held and not expired,
//! even to the same holder: a holder's name is not a lock, the grant is. The same grant id with
//! another candidate or another ttl is not the same acquire either.

use aster_core::{Decision, DenyReason, Effect, Fence, Judged, LeaseOp, RowView, RuleError};
use aster_core::{TransitionOutcome, TtlBounds, transition};

use crate::harness::{Rules, Trace, Verdict, asked, catches, holds};

fn check(trace: &Trace) -> Verdict {
    let mut seen = 0;
    for asked in asked(trace) {
        let (
            LeaseOp::Acquire {
                candidate,
                ttl,
                grant_id,
            },
            Some(owner),
        ) = (&asked.op, &asked.truth.owner)
        else {
            continue;
        };
        let is_same = owner.holder == *candidate
            && owner.ttl_ms == ttl.as_millis()
            && owner.grant_id == *grant_id;
        if asked.judged.expired || is_same || asked.answer.is_err() {
            continue;
        }
        if !matches!(
            asked.answer,
            Ok(TransitionOutcome::Denied(DenyReason::HeldByOther, _))
        ) {
            return Err(format!(
                "{:?} got in beside {owner:?}: {:?}",
                asked.op, asked.answer
            ));
        }
        seen += 1;
    }
    Ok(seen)
}

#[test]
fn another_grant_is_denied_even_to_the_same_holder() {
    holds(check);
}

#[test]
fn letting_the_same_holder_in_again_is_caught() {
    struct NameIsTheLock;
    impl Rules for NameIsTheLock {
        fn transition(
            &self,
            view: &RowView<'_>,
            judged: &Judged,
            bounds: &TtlBounds,
            op: &LeaseOp,
        ) -> Result<Decision, RuleError> {
            let decision = transition(view, judged, bounds, op)?;
            match (op, view.row, &decision.outcome) {
                (
                    LeaseOp::Acquire { candidate, .. },
                    Some(row),
                    TransitionOutcome::Denied(DenyReason::HeldByOther, _),
                ) if row.holder() == Some(candidate) => Ok(Decision {
                    outcome: TransitionOutcome::Granted(Fence {
                        authority: view.authority,
                        resource: view.resource.clone(),
                        epoch: row.epoch,
                        holder: candidate.clone(),
                    }),
                    effect: Effect::Rearm(row.clone()),
                }),
                _ => Ok(decision),
            }
        }
    }
    catches(check, &NameIsTheLock);
}

#[test]
fn taking_a_lease_that_has_not_expired_is_caught() {
    struct JudgesTooEarly;
    impl Rules for JudgesTooEarly {
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
                    expired: true,
                    ..*judged
                },
                bounds,
                op,
            )
        }
    }
    catches(check, &JudgesTooEarly);
}
