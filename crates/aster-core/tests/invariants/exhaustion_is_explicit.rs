//! Rule: running out of epochs is an error, never a reused or wrapped epoch; and a grant always
//! leaves one epoch for its own end, so a held row can be released, revoked and cancelled.

use aster_core::{
    Decision, Effect, Fence, HoldOffs, Judged, LeaseOp, RowState, RowView, RuleError, Tenure,
};
use aster_core::{EPOCH_MAX, TransitionOutcome, TtlBounds, transition};

use crate::harness::{Rules, Trace, Verdict, asked, catches, holds};

fn check(trace: &Trace) -> Verdict {
    let mut seen = 0;
    for asked in asked(trace) {
        let epoch = asked.truth.epoch(asked.floor);
        match (&asked.op, &asked.answer) {
            (LeaseOp::Acquire { .. }, Ok(TransitionOutcome::Granted(fence))) => {
                if fence.epoch >= EPOCH_MAX {
                    return Err(format!("{fence} leaves no epoch for its own end"));
                }
                seen += usize::from(fence.epoch > EPOCH_MAX - 8);
            }
            (LeaseOp::Acquire { .. }, Err(RuleError::EpochExhausted { epoch: at })) => {
                if epoch < EPOCH_MAX - 1 || *at != epoch {
                    return Err(format!("called exhausted at {at}, the epoch is {epoch}"));
                }
                seen += 1;
            }
            (op, Err(RuleError::EpochExhausted { .. })) => {
                return Err(format!("a held row cannot be ended: {op:?}"));
            }
            _ => {}
        }
        if asked
            .after
            .as_ref()
            .is_some_and(|row| row.epoch > EPOCH_MAX)
        {
            return Err(format!("an epoch past the largest: {:?}", asked.after));
        }
    }
    Ok(seen)
}

#[test]
fn the_last_epoch_is_kept_for_the_end_of_a_grant() {
    holds(check);
}

#[test]
fn granting_the_very_last_epoch_is_caught() {
    struct GrantsTheLast;
    impl Rules for GrantsTheLast {
        fn transition(
            &self,
            view: &RowView<'_>,
            judged: &Judged,
            bounds: &TtlBounds,
            op: &LeaseOp,
        ) -> Result<Decision, RuleError> {
            let decision = transition(view, judged, bounds, op);
            let (
                LeaseOp::Acquire {
                    candidate,
                    ttl,
                    grant_id,
                },
                Err(RuleError::EpochExhausted { .. }),
            ) = (op, &decision)
            else {
                return decision;
            };
            let tenure = Tenure {
                holder: candidate.clone(),
                ttl: *ttl,
            };
            Ok(Decision {
                outcome: TransitionOutcome::Granted(Fence {
                    authority: view.authority,
                    resource: view.resource.clone(),
                    epoch: EPOCH_MAX,
                    holder: candidate.clone(),
                }),
                effect: Effect::Replace(RowState {
                    epoch: EPOCH_MAX,
                    revision: view.row.map_or(1, |row| row.revision + 1),
                    grant_id: *grant_id,
                    held: Some(tenure),
                    hold_offs: HoldOffs::default(),
                }),
            })
        }
    }
    catches(check, &GrantsTheLast);
}
