//! Rule: an error and a denial change nothing at all, and a denial's snapshot shows the row as it is.

use aster_core::{Decision, DenyReason, Effect, Judged, LeaseOp, RowState, RowView, RuleError};
use aster_core::{TransitionOutcome, TtlBounds, transition};

use crate::harness::{Rules, Trace, Verdict, asked, catches, holds};

fn check(trace: &Trace) -> Verdict {
    let mut seen = 0;
    for asked in asked(trace) {
        match &asked.answer {
            Ok(TransitionOutcome::Denied(_, snapshot)) => {
                let actual = asked.view().snapshot(asked.judged.remaining);
                if *snapshot != actual {
                    return Err(format!(
                        "a denial showed {snapshot:?}, the row is {actual:?}"
                    ));
                }
            }
            Err(_) => {}
            Ok(_) => continue,
        }
        if asked.effect != Effect::Keep || asked.before != asked.after {
            return Err(format!(
                "{:?} answered {:?} and changed the row",
                asked.op, asked.answer
            ));
        }
        seen += 1;
    }
    Ok(seen)
}

#[test]
fn errors_and_denials_change_nothing() {
    holds(check);
}

/// A rule that writes something although it denies for this reason.
struct Writes(DenyReason, fn(&mut RowState));

impl Rules for Writes {
    fn transition(
        &self,
        view: &RowView<'_>,
        judged: &Judged,
        bounds: &TtlBounds,
        op: &LeaseOp,
    ) -> Result<Decision, RuleError> {
        let mut decision = transition(view, judged, bounds, op)?;
        if let (Some(row), TransitionOutcome::Denied(reason, _)) = (view.row, &decision.outcome)
            && *reason == self.0
        {
            let mut row = row.clone();
            (self.1)(&mut row);
            decision.effect = Effect::Rearm(row);
        }
        Ok(decision)
    }
}

#[test]
fn a_denial_that_renews_is_caught() {
    catches(check, &Writes(DenyReason::HeldByOther, |_| {}));
}

#[test]
fn a_denial_that_spends_an_epoch_is_caught() {
    catches(check, &Writes(DenyReason::Expired, |row| row.epoch += 1));
}

#[test]
fn a_denial_that_frees_is_caught() {
    catches(check, &Writes(DenyReason::NotHolder, |row| row.held = None));
}

#[test]
fn a_denial_that_shows_another_row_is_caught() {
    struct ShowsTheNextEpoch;
    impl Rules for ShowsTheNextEpoch {
        fn transition(
            &self,
            view: &RowView<'_>,
            judged: &Judged,
            bounds: &TtlBounds,
            op: &LeaseOp,
        ) -> Result<Decision, RuleError> {
            let mut decision = transition(view, judged, bounds, op)?;
            if let TransitionOutcome::Denied(_, snapshot) = &mut decision.outcome {
                snapshot.epoch = snapshot.epoch.saturating_add(1);
            }
            Ok(decision)
        }
    }
    catches(check, &ShowsTheNextEpoch);
}
