//! Rule: ownership ends at a transition, not at expiry. A row that expired and was not taken is still
//! held: it accepts its fence, refuses renewal, and can be released.

use aster_core::{Decision, DenyReason, Effect, Judged, LeaseOp, RowState, RowView, RuleError};
use aster_core::{Principal, TransitionOutcome, TtlBounds, transition};

use crate::harness::{Event, Owner, Rules, Trace, Verdict, catches, holds};

fn check(trace: &Trace) -> Verdict {
    let mut seen = 0;
    for event in trace {
        match event {
            Event::Asked(asked) if asked.judged.expired => {
                let Some(owner) = asked.truth.owner.as_ref() else {
                    return Err("a row without an owner was judged expired".to_owned());
                };
                let is_owners = |holder: &Principal, epoch: u64| {
                    *holder == owner.holder && epoch == owner.epoch
                };
                let expected = match &asked.op {
                    LeaseOp::Renew { holder, epoch } if is_owners(holder, *epoch) => {
                        matches!(&asked.answer, Ok(TransitionOutcome::Denied(DenyReason::Expired, snapshot)) if snapshot.held)
                    }
                    LeaseOp::Release { holder, epoch } if is_owners(holder, *epoch) => {
                        matches!(asked.answer, Ok(TransitionOutcome::Released))
                    }
                    _ => continue,
                };
                if !expected {
                    return Err(format!("{:?} after expiry: {:?}", asked.op, asked.answer));
                }
                seen += 1;
            }
            Event::FenceChecked(checked) => {
                let is_owners = |owner: &&Owner| {
                    owner.epoch == checked.fence.epoch
                        && owner.holder == checked.writer
                        && owner.holder == checked.fence.holder
                        && owner.is_past_ttl(checked.at_ms)
                        && checked.fence.resource == checked.resource
                        && checked.fence.authority == crate::harness::authority()
                };
                if checked.truth.owner.as_ref().filter(is_owners).is_some() {
                    if let Err(rejection) = &checked.verdict {
                        return Err(format!("an expired, untaken lease's write: {rejection}"));
                    }
                    seen += 1;
                }
            }
            _ => {}
        }
    }
    Ok(seen)
}

#[test]
fn an_expired_lease_that_nobody_took_still_owns_and_is_not_renewed() {
    holds(check);
}

#[test]
fn renewing_an_expired_lease_is_caught() {
    struct RenewsTheExpired;
    impl Rules for RenewsTheExpired {
        fn transition(
            &self,
            view: &RowView<'_>,
            judged: &Judged,
            bounds: &TtlBounds,
            op: &LeaseOp,
        ) -> Result<Decision, RuleError> {
            let is_renewal = matches!(op, LeaseOp::Renew { .. });
            let judged = Judged {
                expired: judged.expired && !is_renewal,
                ..*judged
            };
            transition(view, &judged, bounds, op)
        }
    }
    catches(check, &RenewsTheExpired);
}

#[test]
fn freeing_a_lease_because_it_expired_is_caught() {
    struct ExpiryFrees;
    impl Rules for ExpiryFrees {
        fn transition(
            &self,
            view: &RowView<'_>,
            judged: &Judged,
            bounds: &TtlBounds,
            op: &LeaseOp,
        ) -> Result<Decision, RuleError> {
            let decision = transition(view, judged, bounds, op)?;
            match (view.row, &decision.outcome) {
                (Some(row), TransitionOutcome::Denied(DenyReason::Expired, _)) => Ok(Decision {
                    effect: Effect::Replace(RowState {
                        held: None,
                        ..row.clone()
                    }),
                    ..decision
                }),
                _ => Ok(decision),
            }
        }
    }
    catches(check, &ExpiryFrees);
}
