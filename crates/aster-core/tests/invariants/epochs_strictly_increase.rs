//! Rule: the epochs of a resource strictly increase and are never reused, also when its row was
//! dropped in between: a new row starts above the floor, which rose in the step that dropped the old
//! one. Being free is an epoch of its own, so a released fence is stale from then on.
//!
//! (Specification, "Follow a takeover": a new ownership decision makes an earlier fence stale.)

use aster_core::{Decision, Effect, Judged, LeaseOp, RowState, RowView, RuleError};
use aster_core::{TransitionOutcome, TtlBounds, transition};

use crate::harness::{Rules, Trace, Verdict, asked, catches, holds};

fn check(trace: &Trace) -> Verdict {
    let mut seen = 0;
    for asked in asked(trace) {
        let Ok(TransitionOutcome::Granted(fence)) = &asked.answer else {
            continue;
        };
        let truth = &asked.truth;
        let is_retry = truth
            .owner
            .as_ref()
            .is_some_and(|owner| owner.epoch == fence.epoch);
        if is_retry {
            continue;
        }
        if fence.epoch <= truth.highest_epoch || truth.granted_epochs.contains(&fence.epoch) {
            return Err(format!(
                "{} granted epoch {} after it had been at {}",
                asked.resource, fence.epoch, truth.highest_epoch
            ));
        }
        seen += 1;
    }
    Ok(seen)
}

#[test]
fn epochs_strictly_increase_also_across_dropped_rows() {
    holds(check);
}

#[test]
fn a_release_without_a_new_epoch_is_caught() {
    struct ReleaseKeepsEpoch;
    impl Rules for ReleaseKeepsEpoch {
        fn transition(
            &self,
            view: &RowView<'_>,
            judged: &Judged,
            bounds: &TtlBounds,
            op: &LeaseOp,
        ) -> Result<Decision, RuleError> {
            let mut decision = transition(view, judged, bounds, op)?;
            if let (LeaseOp::Release { epoch, .. }, Effect::Replace(row)) =
                (op, &mut decision.effect)
            {
                row.epoch = *epoch;
            }
            Ok(decision)
        }
    }
    catches(check, &ReleaseKeepsEpoch);
}

#[test]
fn a_floor_raised_after_the_drop_is_caught() {
    struct FloorRisesLate;
    impl Rules for FloorRisesLate {
        fn floor_rises_with_drop(&self) -> bool {
            false
        }
    }
    catches(check, &FloorRisesLate);
}

#[test]
fn a_new_row_that_starts_at_one_is_caught() {
    struct StartsAtOne;
    impl Rules for StartsAtOne {
        fn transition(
            &self,
            view: &RowView<'_>,
            judged: &Judged,
            bounds: &TtlBounds,
            op: &LeaseOp,
        ) -> Result<Decision, RuleError> {
            let mut decision = transition(view, judged, bounds, op)?;
            if let (None, Decision { outcome, effect }) = (view.row, &mut decision)
                && let (TransitionOutcome::Granted(fence), Effect::Replace(row)) = (outcome, effect)
            {
                (fence.epoch, row.epoch) = (1, 1);
            }
            Ok(decision)
        }
    }
    catches(check, &StartsAtOne);
}

#[test]
fn a_takeover_in_place_is_caught() {
    struct TakeoverKeepsEpoch;
    impl Rules for TakeoverKeepsEpoch {
        fn transition(
            &self,
            view: &RowView<'_>,
            judged: &Judged,
            bounds: &TtlBounds,
            op: &LeaseOp,
        ) -> Result<Decision, RuleError> {
            let mut decision = transition(view, judged, bounds, op)?;
            let held = view.row.filter(|row: &&RowState| row.held.is_some());
            if let (Some(old), TransitionOutcome::Granted(fence), Effect::Replace(row)) =
                (held, &mut decision.outcome, &mut decision.effect)
            {
                // Not a number that the truth would take for a retry of the same grant.
                (fence.epoch, row.epoch) = (old.epoch - 1, old.epoch - 1);
            }
            Ok(decision)
        }
    }
    catches(check, &TakeoverKeepsEpoch);
}
