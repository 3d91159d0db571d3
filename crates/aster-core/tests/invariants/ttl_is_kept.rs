//! Rule: a ttl is fixed at the grant, exactly as it was asked for, and a ttl or hold-off outside the
//! bounds is refused before anything changes.

use aster_core::{Decision, Effect, InvalidInput, Judged, LeaseOp, RowView, RuleError, Ttl};
use aster_core::{TransitionOutcome, TtlBounds, transition};

use crate::harness::{Rules, Trace, Verdict, asked, catches, holds};

const MIN_MS: u64 = 100;
const MAX_MS: u64 = 24 * 60 * 60 * 1_000;

fn check(trace: &Trace) -> Verdict {
    let mut seen = 0;
    for asked in asked(trace) {
        let is_refused = matches!(
            asked.answer,
            Err(RuleError::Invalid(InvalidInput::OutOfBounds { .. }))
        );
        if let LeaseOp::Acquire { ttl, .. } = &asked.op {
            let is_outside = !(MIN_MS..=MAX_MS).contains(&ttl.as_millis());
            if is_outside != is_refused {
                return Err(format!("a ttl of {ttl:?} was answered {:?}", asked.answer));
            }
            seen += usize::from(is_outside);
        }
        let held_ttl = asked
            .after
            .as_ref()
            .and_then(|row| row.ttl())
            .map(Ttl::as_millis);
        let expected = match (&asked.op, &asked.answer) {
            (LeaseOp::Acquire { ttl, .. }, Ok(TransitionOutcome::Granted(_))) => {
                Some(ttl.as_millis())
            }
            (_, Ok(TransitionOutcome::Renewed)) => {
                asked.truth.owner.as_ref().map(|owner| owner.ttl_ms)
            }
            _ => continue,
        };
        if held_ttl != expected {
            return Err(format!(
                "granted for {expected:?} ms, kept as {held_ttl:?} ms"
            ));
        }
        seen += 1;
    }
    Ok(seen)
}

#[test]
fn a_ttl_is_kept_as_granted_and_refused_outside_the_bounds() {
    holds(check);
}

#[test]
fn clamping_a_ttl_into_the_bounds_is_caught() {
    struct Clamps;
    impl Rules for Clamps {
        fn transition(
            &self,
            view: &RowView<'_>,
            judged: &Judged,
            bounds: &TtlBounds,
            op: &LeaseOp,
        ) -> Result<Decision, RuleError> {
            let mut op = op.clone();
            if let LeaseOp::Acquire { ttl, .. } = &mut op {
                *ttl = Ttl::from_millis(ttl.as_millis().clamp(MIN_MS, MAX_MS))?;
            }
            transition(view, judged, bounds, &op)
        }
    }
    catches(check, &Clamps);
}

#[test]
fn a_renewal_that_changes_the_ttl_is_caught() {
    struct Doubles;
    impl Rules for Doubles {
        fn transition(
            &self,
            view: &RowView<'_>,
            judged: &Judged,
            bounds: &TtlBounds,
            op: &LeaseOp,
        ) -> Result<Decision, RuleError> {
            let mut decision = transition(view, judged, bounds, op)?;
            if let Effect::Rearm(row) = &mut decision.effect
                && let Some(tenure) = &mut row.held
            {
                tenure.ttl = Ttl::from_millis(tenure.ttl.as_millis() * 2)?;
            }
            Ok(decision)
        }
    }
    catches(check, &Doubles);
}
