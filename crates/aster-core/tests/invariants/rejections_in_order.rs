//! Rule: the fence rule judges in this order, and the first that fails names the rejection: same
//! authority, same resource, same epoch (stale, or from the future), held, the writer is the holder,
//! the fence names the holder.
//!
//! (Specification, "Enforce at the write boundary".)

use std::collections::BTreeMap;

use aster_core::{Fence, FenceRejection, RowView, check_fence};

use crate::harness::{
    FenceChecked, Rules, Trace, Verdict, authority, catches, fence_checks, holds,
};

fn check(trace: &Trace) -> Verdict {
    let mut seen = 0;
    for checked in fence_checks(trace) {
        let expected = expected(checked);
        if checked.verdict != expected {
            return Err(format!(
                "{} by {}: {:?}, expected {expected:?}",
                checked.fence, checked.writer, checked.verdict
            ));
        }
        seen += usize::from(expected.is_err());
    }
    Ok(seen)
}

fn expected(checked: &FenceChecked) -> Result<(), FenceRejection> {
    let (fence, truth) = (&checked.fence, &checked.truth);
    let (carried, current) = (fence.epoch, truth.epoch(checked.floor));
    if fence.authority != authority() {
        Err(FenceRejection::WrongAuthority)
    } else if fence.resource != checked.resource {
        Err(FenceRejection::WrongResource)
    } else if carried < current {
        Err(FenceRejection::StaleEpoch { carried, current })
    } else if carried > current {
        Err(FenceRejection::FutureEpoch { carried, current })
    } else {
        match &truth.owner {
            None => Err(FenceRejection::NotHeld),
            Some(owner) if owner.holder != checked.writer => Err(FenceRejection::NotHolder),
            Some(owner) if owner.holder != fence.holder => Err(FenceRejection::NotHolder),
            Some(_) => Ok(()),
        }
    }
}

#[test]
fn the_first_part_that_fails_names_the_rejection() {
    holds(check);
}

#[test]
fn the_histories_reach_every_rejection() {
    fn count(trace: &Trace) -> Verdict {
        let mut kinds: BTreeMap<&str, usize> = BTreeMap::new();
        for checked in fence_checks(trace) {
            let kind = match &checked.verdict {
                Ok(()) => "accepted",
                Err(FenceRejection::WrongAuthority) => "authority",
                Err(FenceRejection::WrongResource) => "resource",
                Err(FenceRejection::StaleEpoch { .. }) => "stale",
                Err(FenceRejection::FutureEpoch { .. }) => "future",
                Err(FenceRejection::NotHeld) => "not held",
                Err(FenceRejection::NotHolder) => "not holder",
                Err(_) => "other",
            };
            *kinds.entry(kind).or_default() += 1;
        }
        // A history counts when it alone shows at least four of the seven.
        Ok(usize::from(kinds.len() >= 4))
    }
    holds(count);
}

/// Judges `late` only after everything else.
struct JudgedLast(FenceRejection, fn(&RowView<'_>, &mut Fence));

impl Rules for JudgedLast {
    fn check_fence(
        &self,
        view: &RowView<'_>,
        fence: &Fence,
        writer: &str,
    ) -> Result<(), FenceRejection> {
        let verdict = check_fence(view, fence, writer);
        if verdict != Err(self.0.clone()) {
            return verdict;
        }
        let mut mended = fence.clone();
        (self.1)(view, &mut mended);
        check_fence(view, &mended, writer).and(verdict)
    }
}

#[test]
fn judging_the_authority_last_is_caught() {
    catches(
        check,
        &JudgedLast(FenceRejection::WrongAuthority, |view, fence| {
            fence.authority = view.authority
        }),
    );
}

#[test]
fn judging_the_resource_last_is_caught() {
    catches(
        check,
        &JudgedLast(FenceRejection::WrongResource, |view, fence| {
            fence.resource = view.resource.clone();
        }),
    );
}

#[test]
fn calling_a_stale_fence_not_held_is_caught() {
    struct HidesTheEpoch;
    impl Rules for HidesTheEpoch {
        fn check_fence(
            &self,
            view: &RowView<'_>,
            fence: &Fence,
            writer: &str,
        ) -> Result<(), FenceRejection> {
            match check_fence(view, fence, writer) {
                Err(FenceRejection::StaleEpoch { .. })
                    if view.row.is_none_or(|row| row.held.is_none()) =>
                {
                    Err(FenceRejection::NotHeld)
                }
                other => other,
            }
        }
    }
    catches(check, &HidesTheEpoch);
}
