//! Rule: a revoke with a hold-off keeps the revoked holder out for its time, and only it, also while
//! others hold the lease in between. Once its time has passed the store lets it in again.
//!
//! A row remembers one hold-off: that of its last revoke that asked for one.

use aster_core::{Decision, DenyReason, Effect, Judged, LeaseOp, RowView, RuleError};
use aster_core::{TransitionOutcome, TtlBounds, transition};

use crate::harness::{Rules, Trace, Verdict, asked, catches, holds};

fn check(trace: &Trace) -> Verdict {
    let mut seen = 0;
    for asked in asked(trace) {
        let LeaseOp::Acquire { candidate, .. } = &asked.op else {
            continue;
        };
        let kept_out = asked
            .truth
            .held_off
            .as_ref()
            .filter(|(holder, _)| holder == candidate);
        match (kept_out, &asked.answer) {
            (Some((_, until_ms)), Ok(TransitionOutcome::Granted(fence)))
                if asked.at_ms < *until_ms =>
            {
                return Err(format!(
                    "{fence} granted at {}, kept out until {until_ms}",
                    asked.at_ms
                ));
            }
            (Some(_), Ok(TransitionOutcome::Denied(DenyReason::HeldOff, _)))
                if asked.judged.hold_off_over =>
            {
                return Err(format!(
                    "{candidate} is kept out although its time has passed"
                ));
            }
            (None, Ok(TransitionOutcome::Denied(DenyReason::HeldOff, _))) => {
                return Err(format!("{candidate} is kept out and was never revoked"));
            }
            (Some(_), _) => seen += 1,
            _ => {}
        }
    }
    Ok(seen)
}

#[test]
fn a_hold_off_keeps_the_revoked_holder_out_and_nobody_else() {
    holds(check);
}

#[test]
fn forgetting_the_hold_off_at_the_revoke_is_caught() {
    struct RevokesOnly;
    impl Rules for RevokesOnly {
        fn transition(
            &self,
            view: &RowView<'_>,
            judged: &Judged,
            bounds: &TtlBounds,
            op: &LeaseOp,
        ) -> Result<Decision, RuleError> {
            let mut decision = transition(view, judged, bounds, op)?;
            if let (LeaseOp::Revoke { .. }, Effect::Replace(row)) = (op, &mut decision.effect) {
                row.hold_off = None;
            }
            Ok(decision)
        }
    }
    catches(check, &RevokesOnly);
}

#[test]
fn forgetting_the_hold_off_at_the_next_grant_is_caught() {
    struct NextGrantForgets;
    impl Rules for NextGrantForgets {
        fn transition(
            &self,
            view: &RowView<'_>,
            judged: &Judged,
            bounds: &TtlBounds,
            op: &LeaseOp,
        ) -> Result<Decision, RuleError> {
            let mut decision = transition(view, judged, bounds, op)?;
            if let (LeaseOp::Acquire { .. }, Effect::Replace(row)) = (op, &mut decision.effect) {
                row.hold_off = None;
            }
            Ok(decision)
        }
    }
    catches(check, &NextGrantForgets);
}

#[test]
fn keeping_everybody_out_is_caught() {
    struct KeepsAllOut;
    impl Rules for KeepsAllOut {
        fn transition(
            &self,
            view: &RowView<'_>,
            judged: &Judged,
            bounds: &TtlBounds,
            op: &LeaseOp,
        ) -> Result<Decision, RuleError> {
            let decision = transition(view, judged, bounds, op)?;
            let is_running =
                !judged.hold_off_over && view.row.is_some_and(|row| row.hold_off.is_some());
            if is_running && matches!(decision.outcome, TransitionOutcome::Granted(_)) {
                return Ok(Decision {
                    outcome: TransitionOutcome::Denied(DenyReason::HeldOff, view.snapshot(None)),
                    effect: Effect::Keep,
                });
            }
            Ok(decision)
        }
    }
    catches(check, &KeepsAllOut);
}

#[test]
fn never_letting_it_in_again_is_caught() {
    struct NeverOver;
    impl Rules for NeverOver {
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
                    hold_off_over: false,
                    ..*judged
                },
                bounds,
                op,
            )
        }
    }
    catches(check, &NeverOver);
}
