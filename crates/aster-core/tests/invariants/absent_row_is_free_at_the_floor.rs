//! Rule: an absent row is free at the store's floor: its snapshot says so, a fence at the floor is
//! `NotHeld`, a lower one stale, a higher one from the future, and its first grant is the next epoch.
//! The floor is never below the epoch of a dropped row.

use aster_core::{Decision, Fence, FenceRejection, Judged, LeaseOp, RowView, RuleError};
use aster_core::{TransitionOutcome, TtlBounds, check_fence, transition};

use crate::harness::{Event, Rules, Trace, Verdict, authority, catches, holds};

fn check(trace: &Trace) -> Verdict {
    let mut seen = 0;
    for event in trace {
        match event {
            Event::Asked(asked) if asked.before.is_none() => {
                match &asked.answer {
                    Ok(TransitionOutcome::Granted(fence)) if fence.epoch != asked.floor + 1 => {
                        return Err(format!("{fence} granted above the floor {}", asked.floor));
                    }
                    Ok(TransitionOutcome::Denied(reason, snapshot))
                        if snapshot.epoch != asked.floor || snapshot.held =>
                    {
                        return Err(format!(
                            "{reason:?} with {snapshot:?}, floor {}",
                            asked.floor
                        ));
                    }
                    _ => {}
                }
                seen += 1;
            }
            Event::FenceChecked(checked)
                if checked.row.is_none()
                    && checked.fence.authority == authority()
                    && checked.fence.resource == checked.resource =>
            {
                let (carried, current) = (checked.fence.epoch, checked.floor);
                let expected = match carried.cmp(&current) {
                    std::cmp::Ordering::Less => FenceRejection::StaleEpoch { carried, current },
                    std::cmp::Ordering::Equal => FenceRejection::NotHeld,
                    std::cmp::Ordering::Greater => FenceRejection::FutureEpoch { carried, current },
                };
                if checked.verdict != Err(expected) {
                    return Err(format!(
                        "{} at an absent row: {:?}",
                        checked.fence, checked.verdict
                    ));
                }
                seen += 1;
            }
            Event::Dropped {
                resource,
                epoch,
                floor,
            } if floor < epoch => {
                return Err(format!(
                    "{resource} was dropped at {epoch}, the floor is {floor}"
                ));
            }
            _ => {}
        }
    }
    Ok(seen)
}

#[test]
fn an_absent_row_is_free_at_the_floor() {
    holds(check);
}

struct IgnoresTheFloor;

impl Rules for IgnoresTheFloor {
    fn transition(
        &self,
        view: &RowView<'_>,
        judged: &Judged,
        bounds: &TtlBounds,
        op: &LeaseOp,
    ) -> Result<Decision, RuleError> {
        transition(&RowView { floor: 0, ..*view }, judged, bounds, op)
    }
}

#[test]
fn a_grant_that_ignores_the_floor_is_caught() {
    catches(check, &IgnoresTheFloor);
}

#[test]
fn a_fence_check_that_ignores_the_floor_is_caught() {
    struct ChecksWithoutFloor;
    impl Rules for ChecksWithoutFloor {
        fn check_fence(
            &self,
            view: &RowView<'_>,
            fence: &Fence,
            writer: &str,
        ) -> Result<(), FenceRejection> {
            check_fence(&RowView { floor: 0, ..*view }, fence, writer)
        }
    }
    catches(check, &ChecksWithoutFloor);
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
