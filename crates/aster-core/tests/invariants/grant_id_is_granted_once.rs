//! Rule: a grant id is granted at most once while the row remembers it. Its late duplicate after the
//! lease expired answers `Expired`, after the end of the lease `NotHeld`, and never a new epoch.

use aster_core::{Decision, DenyReason, GrantId, Judged, LeaseOp, RowState, RowView, RuleError};
use aster_core::{TransitionOutcome, TtlBounds, transition};

use crate::harness::{Rules, Trace, Verdict, asked, catches, holds};

fn check(trace: &Trace) -> Verdict {
    let mut seen = 0;
    for asked in asked(trace) {
        let LeaseOp::Acquire { grant_id, .. } = &asked.op else {
            continue;
        };
        if asked.truth.remembered != Some(*grant_id) {
            continue;
        }
        if let Ok(TransitionOutcome::Granted(fence)) = &asked.answer {
            let is_same = |epoch| epoch == fence.epoch;
            if !asked
                .truth
                .owner
                .as_ref()
                .map(|owner| owner.epoch)
                .is_some_and(is_same)
            {
                return Err(format!(
                    "grant {grant_id} was granted again at epoch {}",
                    fence.epoch
                ));
            }
        }
        seen += 1;
    }
    Ok(seen)
}

#[test]
fn a_grant_id_is_granted_at_most_once_while_it_is_remembered() {
    holds(check);
}

/// Forgets the last grant when a condition on it is met.
struct Forgets(fn(DenyReason) -> bool);

impl Rules for Forgets {
    fn transition(
        &self,
        view: &RowView<'_>,
        judged: &Judged,
        bounds: &TtlBounds,
        op: &LeaseOp,
    ) -> Result<Decision, RuleError> {
        let decision = transition(view, judged, bounds, op)?;
        match (op, view.row, &decision.outcome) {
            (LeaseOp::Acquire { .. }, Some(row), TransitionOutcome::Denied(reason, _))
                if (self.0)(*reason) =>
            {
                let forgot = RowState {
                    grant_id: GrantId::from_bytes([0; 16]),
                    ..row.clone()
                };
                transition(
                    &RowView {
                        row: Some(&forgot),
                        ..*view
                    },
                    judged,
                    bounds,
                    op,
                )
            }
            _ => Ok(decision),
        }
    }
}

#[test]
fn granting_the_same_id_again_after_expiry_is_caught() {
    catches(check, &Forgets(|reason| reason == DenyReason::Expired));
}

#[test]
fn granting_the_same_id_again_after_release_is_caught() {
    catches(check, &Forgets(|reason| reason == DenyReason::NotHeld));
}
