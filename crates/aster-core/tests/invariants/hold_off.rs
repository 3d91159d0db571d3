//! Rule: a revoke with a hold-off keeps the revoked holder out for its time, and only it, also while
//! others hold the lease in between and are kept out in their turn. Once its time has passed the
//! store lets it in again.

use aster_core::{Decision, DenyReason, Effect, HoldOffs, Judged, LeaseOp, RowState, RowView};
use aster_core::{RuleError, TransitionOutcome, TtlBounds, transition};

use crate::harness::{Rules, Trace, Verdict, asked, catches, holds};

fn check(trace: &Trace) -> Verdict {
    let mut seen = 0;
    for asked in asked(trace) {
        let LeaseOp::Acquire { candidate, .. } = &asked.op else {
            continue;
        };
        match (asked.truth.held_off.get(candidate), &asked.answer) {
            (Some(until_ms), Ok(TransitionOutcome::Granted(fence))) if asked.at_ms < *until_ms => {
                return Err(format!(
                    "{fence} granted at {}, kept out until {until_ms}",
                    asked.at_ms
                ));
            }
            (Some(_), Ok(TransitionOutcome::Denied(DenyReason::HeldOff, _)))
                if asked.over.contains(candidate) =>
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

/// The same, counted only where several holders are kept out at once.
fn check_several(trace: &Trace) -> Verdict {
    check(trace)?;
    let several = asked(trace).filter(|asked| {
        let now_ms = asked.at_ms;
        let running = asked.truth.held_off.values();
        let running = running.filter(|until_ms| now_ms < **until_ms);
        matches!(asked.op, LeaseOp::Acquire { .. }) && running.count() > 1
    });
    Ok(several.count())
}

#[test]
fn a_hold_off_keeps_the_revoked_holder_out_and_nobody_else() {
    holds(check);
}

#[test]
fn hold_offs_of_several_holders_run_side_by_side() {
    holds(check_several);
}

/// The real rules, and then something else happens to the row.
struct Spoiled(fn(&LeaseOp, &mut RowState));

impl Rules for Spoiled {
    fn transition(
        &self,
        view: &RowView<'_>,
        judged: &Judged,
        bounds: &TtlBounds,
        op: &LeaseOp,
    ) -> Result<Decision, RuleError> {
        let mut decision = transition(view, judged, bounds, op)?;
        if let Effect::Replace(row) = &mut decision.effect {
            (self.0)(op, row);
        }
        Ok(decision)
    }
}

#[test]
fn forgetting_the_hold_off_at_the_revoke_is_caught() {
    catches(
        check,
        &Spoiled(|op, row| {
            if matches!(op, LeaseOp::Revoke { .. }) {
                row.hold_offs = HoldOffs::default();
            }
        }),
    );
}

#[test]
fn forgetting_the_hold_off_at_the_next_grant_is_caught() {
    catches(
        check,
        &Spoiled(|op, row| {
            if matches!(op, LeaseOp::Acquire { .. }) {
                row.hold_offs = HoldOffs::default();
            }
        }),
    );
}

#[test]
fn keeping_only_the_last_hold_off_is_caught() {
    catches(
        check,
        &Spoiled(|_, row| {
            row.hold_offs = row.hold_offs.iter().last().cloned().into_iter().collect()
        }),
    );
}

#[test]
fn ending_hold_offs_with_a_revoke_that_asks_for_none_is_caught() {
    catches(
        check,
        &Spoiled(|op, row| {
            if matches!(op, LeaseOp::Revoke { hold_off: None, .. }) {
                row.hold_offs = HoldOffs::default();
            }
        }),
    );
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
            let is_running = view.row.is_some_and(|row| !row.hold_offs.is_empty());
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
        fn hold_offs_end(&self) -> bool {
            false
        }
    }
    catches(check, &NeverOver);
}
