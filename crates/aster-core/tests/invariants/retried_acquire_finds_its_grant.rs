//! Rule: the same acquire again (candidate, ttl and grant id are the row's), while the lease is held
//! and not expired, is answered with the same grant and renewed: a retry whose first reply was lost
//! must not find itself "held by other".

use aster_core::{Decision, DenyReason, Effect, Judged, LeaseOp, RowState, RowView, RuleError};
use aster_core::{TransitionOutcome, TtlBounds, transition};

use crate::harness::{Asked, Rules, Trace, Verdict, asked, catches, holds};

fn check(trace: &Trace) -> Verdict {
    let mut seen = 0;
    for asked in asked(trace).filter(|asked| is_retry(asked)) {
        let owner = asked.truth.owner.as_ref().unwrap();
        match &asked.answer {
            Ok(TransitionOutcome::Granted(fence))
                if fence.epoch == owner.epoch && fence.holder == owner.holder => {}
            other => return Err(format!("the retry of {owner:?} was answered {other:?}")),
        }
        if !matches!(asked.effect, Effect::Rearm(_)) {
            return Err(format!(
                "the retry of {owner:?} did not renew: {:?}",
                asked.effect
            ));
        }
        seen += 1;
    }
    Ok(seen)
}

fn is_retry(asked: &Asked) -> bool {
    let LeaseOp::Acquire {
        candidate,
        ttl,
        grant_id,
    } = &asked.op
    else {
        return false;
    };
    asked.truth.owner.as_ref().is_some_and(|owner| {
        owner.holder == *candidate
            && owner.ttl_ms == ttl.as_millis()
            && owner.grant_id == *grant_id
            && !asked.judged.expired
    })
}

#[test]
fn the_same_acquire_again_finds_its_grant_and_renews_it() {
    holds(check);
}

/// What a broken rule does with a retry, given the row that already is the grant.
struct Broken(fn(&RowView<'_>, &RowState, Decision) -> Decision);

impl Rules for Broken {
    fn transition(
        &self,
        view: &RowView<'_>,
        judged: &Judged,
        bounds: &TtlBounds,
        op: &LeaseOp,
    ) -> Result<Decision, RuleError> {
        let decision = transition(view, judged, bounds, op)?;
        match (op, view.row, &decision.effect) {
            (LeaseOp::Acquire { .. }, Some(row), Effect::Rearm(_)) => {
                Ok((self.0)(view, row, decision))
            }
            _ => Ok(decision),
        }
    }
}

#[test]
fn a_retry_that_mints_a_second_epoch_is_caught() {
    catches(
        check,
        &Broken(|_, row, mut decision| {
            if let TransitionOutcome::Granted(fence) = &mut decision.outcome {
                fence.epoch += 1;
            }
            let epoch = row.epoch + 1;
            Decision {
                effect: Effect::Replace(RowState {
                    epoch,
                    ..row.clone()
                }),
                ..decision
            }
        }),
    );
}

#[test]
fn a_retry_answered_held_by_other_is_caught() {
    catches(
        check,
        &Broken(|view, _, _| Decision {
            outcome: TransitionOutcome::Denied(DenyReason::HeldByOther, view.snapshot(None)),
            effect: Effect::Keep,
        }),
    );
}

#[test]
fn a_retry_that_does_not_renew_is_caught() {
    catches(
        check,
        &Broken(|_, _, decision| Decision {
            effect: Effect::Keep,
            ..decision
        }),
    );
}
