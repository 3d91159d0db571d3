//! Rule: no epoch is spent by a denied or failed operation. Each grant and each end of an ownership
//! spends exactly one; a renewal and a retried acquire spend none.

use aster_core::{Decision, Effect, Judged, LeaseOp, RowState, RowView, RuleError};
use aster_core::{TransitionOutcome, TtlBounds, transition};

use crate::harness::{Rules, Trace, Verdict, asked, catches, holds};

fn check(trace: &Trace) -> Verdict {
    let mut seen = 0;
    for asked in asked(trace) {
        let is_same_grant = |epoch: u64| {
            asked
                .truth
                .owner
                .as_ref()
                .is_some_and(|owner| owner.epoch == epoch)
        };
        let spent = match &asked.answer {
            Ok(TransitionOutcome::Granted(fence)) => u64::from(!is_same_grant(fence.epoch)),
            Ok(
                TransitionOutcome::Released
                | TransitionOutcome::Revoked
                | TransitionOutcome::Cancelled,
            ) => 1,
            _ => 0,
        };
        let before = asked.truth.epoch(asked.floor);
        let after = asked.after.as_ref().map_or(asked.floor, |row| row.epoch);
        if after != before + spent {
            return Err(format!(
                "{:?} answered {:?}: epoch {before} became {after}, {spent} was due",
                asked.op, asked.answer
            ));
        }
        seen += 1;
    }
    Ok(seen)
}

#[test]
fn each_epoch_is_spent_by_a_grant_or_an_end() {
    holds(check);
}

/// Adds to the epoch of what is written after an operation with the given outcome.
struct Spends(fn(&TransitionOutcome) -> bool, u64);

impl Rules for Spends {
    fn transition(
        &self,
        view: &RowView<'_>,
        judged: &Judged,
        bounds: &TtlBounds,
        op: &LeaseOp,
    ) -> Result<Decision, RuleError> {
        let mut decision = transition(view, judged, bounds, op)?;
        if !(self.0)(&decision.outcome) {
            return Ok(decision);
        }
        match (&mut decision.effect, view.row) {
            (Effect::Rearm(row) | Effect::Replace(row), _) => row.epoch += self.1,
            (effect @ Effect::Keep, Some(row)) => {
                let epoch = row.epoch.saturating_add(self.1);
                *effect = Effect::Replace(RowState {
                    epoch,
                    ..row.clone()
                });
            }
            (Effect::Keep, None) => {}
        }
        Ok(decision)
    }
}

#[test]
fn a_denial_that_spends_an_epoch_is_caught() {
    catches(
        check,
        &Spends(
            |outcome| matches!(outcome, TransitionOutcome::Denied(..)),
            1,
        ),
    );
}

#[test]
fn a_renewal_that_spends_an_epoch_is_caught() {
    catches(
        check,
        &Spends(|outcome| *outcome == TransitionOutcome::Renewed, 1),
    );
}

#[test]
fn a_release_that_spends_two_is_caught() {
    catches(
        check,
        &Spends(|outcome| *outcome == TransitionOutcome::Released, 1),
    );
}
