//! The promise: a write by a worker whose ownership has ended is rejected by the resource, whatever
//! the worker believes and however late the write arrives; and the owner's own write is accepted.
//!
//! (Specification, "Enforce at the write boundary".)

use aster_core::{Fence, FenceRejection, Principal, RowView, check_fence};

use crate::harness::{
    FenceChecked, Rules, Trace, Verdict, authority, catches, fence_checks, holds,
};

fn check(trace: &Trace) -> Verdict {
    let mut seen = 0;
    for checked in fence_checks(trace) {
        match (&checked.verdict, is_owners_write(checked)) {
            (Ok(()), false) => {
                return Err(format!(
                    "accepted {} by {} at {}, owned by {:?}",
                    checked.fence, checked.writer, checked.resource, checked.truth.owner
                ));
            }
            (Err(rejection), true) => {
                return Err(format!(
                    "rejected the owner's {}: {rejection}",
                    checked.fence
                ));
            }
            _ => seen += 1,
        }
    }
    Ok(seen)
}

fn is_owners_write(checked: &FenceChecked) -> bool {
    let fence = &checked.fence;
    checked.truth.owner.as_ref().is_some_and(|owner| {
        fence.authority == authority()
            && fence.resource == checked.resource
            && fence.epoch == owner.epoch
            && fence.holder == owner.holder
            && checked.writer == owner.holder
    })
}

#[test]
fn only_the_owner_writes_however_late_a_write_arrives() {
    holds(check);
}

/// Presents to the real rule a request that was changed so that one part of the check is void.
struct Broken(fn(&RowView<'_>, &mut Fence, &mut String));

impl Rules for Broken {
    fn check_fence(
        &self,
        view: &RowView<'_>,
        fence: &Fence,
        writer: &str,
    ) -> Result<(), FenceRejection> {
        let (mut fence, mut writer) = (fence.clone(), writer.to_owned());
        (self.0)(view, &mut fence, &mut writer);
        check_fence(view, &fence, &writer)
    }
}

#[test]
fn comparing_epochs_with_at_least_is_caught() {
    catches(
        check,
        &Broken(|view, fence, _| {
            if fence.epoch >= view.epoch() {
                fence.epoch = view.epoch();
            }
        }),
    );
}

#[test]
fn ignoring_the_epoch_is_caught() {
    catches(check, &Broken(|view, fence, _| fence.epoch = view.epoch()));
}

#[test]
fn ignoring_the_writer_is_caught() {
    catches(
        check,
        &Broken(|_, fence, writer| *writer = fence.holder.to_string()),
    );
}

#[test]
fn ignoring_the_holder_that_the_fence_names_is_caught() {
    catches(
        check,
        &Broken(|_, fence, writer| {
            if let Ok(holder) = Principal::new(writer) {
                fence.holder = holder;
            }
        }),
    );
}

#[test]
fn ignoring_the_authority_is_caught() {
    catches(
        check,
        &Broken(|view, fence, _| fence.authority = view.authority),
    );
}

#[test]
fn ignoring_the_resource_is_caught() {
    catches(
        check,
        &Broken(|view, fence, _| fence.resource = view.resource.clone()),
    );
}

#[test]
fn accepting_a_free_row_is_caught() {
    struct FreeIsFine;
    impl Rules for FreeIsFine {
        fn check_fence(
            &self,
            view: &RowView<'_>,
            fence: &Fence,
            writer: &str,
        ) -> Result<(), FenceRejection> {
            match check_fence(view, fence, writer) {
                Err(FenceRejection::NotHeld) => Ok(()),
                other => other,
            }
        }
    }
    catches(check, &FreeIsFine);
}
