//! The suite of a fenced resource: which writes happen, and which cannot.

use aster_lease::{Authority, EPOCH_MAX, Fence, FenceRejection, TransitionOutcome};

use crate::drive::{
    A, B, Checked, Drive, LONG_IDLE, RESOURCE, SHORT_TTL, TTL, acquire, broken, ensure, principal,
    release, resource_name, revoke,
};
use crate::harness::{Harness, Written};
use crate::paused_write;
use crate::report::Report;
use crate::rule::Rule;
use crate::serializer::run_cases;

/// The suite's name.
pub(crate) const FENCED_RESOURCE: &str = "fenced resource";

/// Checks that a resource accepts the current owner's writes and no others (specification, "Enforce
/// at the write boundary" and "Check enforcement with a delayed write").
///
/// Needs [`Harness::write`] and [`Harness::read`]; with [`Harness::start_write`] it also pauses a
/// writer between its check and its write while ownership tries to pass it.
pub async fn fenced_resource_suite<H: Harness>(harness: &H) -> Report {
    let mut report = Report::new(FENCED_RESOURCE);
    run_cases!(
        harness, &mut report,
        OwnerMayWrite: the_owners_writes_are_accepted,
        OwnerMayWrite: resources_are_protected_one_by_one,
        OwnerMayWrite: an_expired_lease_that_nobody_took_still_writes,
        StaleFenceIsRejected: a_delayed_write_after_a_takeover_is_rejected,
        StaleFenceIsRejected: a_write_after_release_is_rejected,
        StaleFenceIsRejected: a_write_after_revoke_is_rejected,
        StaleFenceIsRejected: an_earlier_fence_of_the_same_holder_is_rejected,
        StaleFenceIsRejected: a_write_after_an_expired_lease_was_taken_is_rejected,
        StaleFenceIsRejected: a_stale_fence_is_rejected_after_a_restart,
        StaleFenceIsRejected: a_stale_fence_is_rejected_when_its_row_may_be_gone,
        WriterIsTheHolder: the_owners_fence_with_another_writer_is_rejected,
        WriterIsTheHolder: a_fence_that_names_the_writer_as_its_holder_is_rejected,
        ForgedFenceIsRejected: a_fence_from_the_future_is_rejected,
        ForgedFenceIsRejected: a_fence_of_another_store_is_rejected,
        ForgedFenceIsRejected: a_fence_of_another_resource_is_rejected,
        ForgedFenceIsRejected: a_fence_of_a_resource_that_was_never_granted_is_rejected,
    );
    paused_write::cases(harness, &mut report).await;
    report
}

async fn the_owners_writes_are_accepted<H: Harness>(harness: &H) -> Checked {
    let drive = Drive::fresh(harness).await;
    let fence = drive.acquired(A, 1).await?;
    for value in ["catalog-v1", "catalog-v2", ""] {
        accepted(&drive, &fence, A, value).await?;
    }
    Ok(())
}

async fn resources_are_protected_one_by_one<H: Harness>(harness: &H) -> Checked {
    let drive = Drive::fresh(harness).await;
    let first = drive.acquired(A, 1).await?;
    let second = drive.granted("catalog/next", acquire(B, TTL, 2)).await?;
    accepted(&drive, &first, A, "of-a").await?;
    accepted(&drive, &second, B, "of-b").await?;
    let value = drive.effect(RESOURCE).await;
    ensure(value.as_deref() == Some("of-a"), || {
        format!("{RESOURCE} held \"of-a\", catalog/next was written, and now it holds {value:?}")
    })?;
    drive.ask("catalog/next", release(B, second.epoch)).await?;
    accepted(&drive, &first, A, "still-of-a").await?;
    rejected(&drive, &second, B, |_| true).await
}

async fn an_expired_lease_that_nobody_took_still_writes<H: Harness>(harness: &H) -> Checked {
    let drive = Drive::fresh(harness).await;
    let fence = drive.granted(RESOURCE, acquire(A, SHORT_TTL, 1)).await?;
    drive.pass(SHORT_TTL * 2).await?;
    accepted(&drive, &fence, A, "late-but-mine").await
}

async fn a_delayed_write_after_a_takeover_is_rejected<H: Harness>(harness: &H) -> Checked {
    let drive = Drive::fresh(harness).await;
    let delayed = drive.acquired(A, 1).await?;
    accepted(&drive, &delayed, A, "catalog-v1").await?;
    drive
        .answered(release(A, delayed.epoch), TransitionOutcome::Released)
        .await?;
    let current = drive.acquired(B, 2).await?;
    rejected(&drive, &delayed, A, is_stale).await?;
    accepted(&drive, &current, B, "catalog-v2").await?;
    rejected(&drive, &delayed, A, is_stale).await?;
    rejected(&drive, &delayed, B, is_stale).await
}

async fn a_write_after_release_is_rejected<H: Harness>(harness: &H) -> Checked {
    let drive = Drive::fresh(harness).await;
    let fence = drive.acquired(A, 1).await?;
    accepted(&drive, &fence, A, "catalog-v1").await?;
    drive
        .answered(release(A, fence.epoch), TransitionOutcome::Released)
        .await?;
    rejected(&drive, &fence, A, is_stale).await?;
    // Whoever guesses the epoch at which the resource is free does not own it either.
    let epoch = drive.row().await?.epoch;
    let guessed = Fence { epoch, ..fence };
    rejected(&drive, &guessed, A, |rejection| {
        *rejection == FenceRejection::NotHeld
    })
    .await
}

async fn a_write_after_revoke_is_rejected<H: Harness>(harness: &H) -> Checked {
    let drive = Drive::fresh(harness).await;
    let fence = drive.acquired(A, 1).await?;
    drive
        .answered(revoke(fence.epoch, None), TransitionOutcome::Revoked)
        .await?;
    rejected(&drive, &fence, A, is_stale).await
}

async fn an_earlier_fence_of_the_same_holder_is_rejected<H: Harness>(harness: &H) -> Checked {
    let drive = Drive::fresh(harness).await;
    let earlier = drive.acquired(A, 1).await?;
    drive
        .answered(release(A, earlier.epoch), TransitionOutcome::Released)
        .await?;
    let current = drive.acquired(A, 2).await?;
    rejected(&drive, &earlier, A, is_stale).await?;
    accepted(&drive, &current, A, "under-the-new-epoch").await
}

async fn a_write_after_an_expired_lease_was_taken_is_rejected<H: Harness>(harness: &H) -> Checked {
    let drive = Drive::fresh(harness).await;
    let paused = drive.granted(RESOURCE, acquire(A, SHORT_TTL, 1)).await?;
    drive.ask(RESOURCE, acquire(B, TTL, 2)).await?;
    drive.pass(SHORT_TTL).await?;
    let current = drive.acquired(B, 2).await?;
    rejected(&drive, &paused, A, is_stale).await?;
    accepted(&drive, &current, B, "of-the-successor").await?;
    rejected(&drive, &paused, A, is_stale).await
}

async fn a_stale_fence_is_rejected_after_a_restart<H: Harness>(harness: &H) -> Checked {
    let mut drive = Drive::fresh(harness).await;
    let stale = drive.acquired(A, 1).await?;
    drive
        .answered(release(A, stale.epoch), TransitionOutcome::Released)
        .await?;
    let current = drive.acquired(B, 2).await?;
    drive.restart().await?;
    rejected(&drive, &stale, A, is_stale).await?;
    accepted(&drive, &current, B, "after-the-restart").await
}

async fn a_stale_fence_is_rejected_when_its_row_may_be_gone<H: Harness>(harness: &H) -> Checked {
    let drive = Drive::fresh(harness).await;
    let stale = drive.acquired(A, 1).await?;
    drive
        .answered(release(A, stale.epoch), TransitionOutcome::Released)
        .await?;
    drive.idle_for(LONG_IDLE).await?;
    rejected(&drive, &stale, A, is_stale).await?;
    let current = drive.acquired(A, 2).await?;
    rejected(&drive, &stale, A, is_stale).await?;
    accepted(&drive, &current, A, "under-the-new-epoch").await
}

async fn the_owners_fence_with_another_writer_is_rejected<H: Harness>(harness: &H) -> Checked {
    let drive = Drive::fresh(harness).await;
    let fence = drive.acquired(B, 1).await?;
    for writer in [A, "worker-", "worker-bb", "Worker-b", "operator"] {
        rejected(&drive, &fence, writer, is_not_holder).await?;
    }
    accepted(&drive, &fence, B, "of-b").await
}

async fn a_fence_that_names_the_writer_as_its_holder_is_rejected<H: Harness>(
    harness: &H,
) -> Checked {
    let drive = Drive::fresh(harness).await;
    let fence = drive.acquired(B, 1).await?;
    let forged = Fence {
        holder: principal(A),
        ..fence
    };
    rejected(&drive, &forged, A, is_not_holder).await?;
    rejected(&drive, &forged, B, is_not_holder).await
}

async fn a_fence_from_the_future_is_rejected<H: Harness>(harness: &H) -> Checked {
    let drive = Drive::fresh(harness).await;
    let fence = drive.acquired(A, 1).await?;
    for epoch in [
        fence.epoch + 1,
        fence.epoch + 2,
        EPOCH_MAX,
        EPOCH_MAX + 1,
        u64::MAX,
    ] {
        let forged = Fence {
            epoch,
            ..fence.clone()
        };
        rejected(&drive, &forged, A, |rejection| {
            matches!(rejection, FenceRejection::FutureEpoch { .. })
        })
        .await?;
    }
    accepted(&drive, &fence, A, "of-a").await
}

async fn a_fence_of_another_store_is_rejected<H: Harness>(harness: &H) -> Checked {
    let drive = Drive::fresh(harness).await;
    let fence = drive.acquired(A, 1).await?;
    let mut near = *fence.authority.as_bytes();
    near[15] ^= 1;
    let mut authorities = vec![Authority::from_bytes([0; 16]), Authority::from_bytes(near)];
    if let Ok(another) = drive.another().await {
        authorities.push(another.acquired(A, 1).await?.authority);
    }
    for authority in authorities {
        let foreign = Fence {
            authority,
            ..fence.clone()
        };
        rejected(&drive, &foreign, A, |rejection| {
            *rejection == FenceRejection::WrongAuthority
        })
        .await?;
    }
    Ok(())
}

async fn a_fence_of_another_resource_is_rejected<H: Harness>(harness: &H) -> Checked {
    let drive = Drive::fresh(harness).await;
    let fence = drive.acquired(A, 1).await?;
    let next = drive.granted("catalog/next", acquire(A, TTL, 2)).await?;
    drive.ask("catalog/next", release(A, next.epoch)).await?;
    drive.granted("catalog/next", acquire(B, TTL, 3)).await?;
    let moved = Fence {
        resource: resource_name(&drive.name("catalog/next")),
        ..fence
    };
    rejected(&drive, &moved, A, |_| true).await
}

async fn a_fence_of_a_resource_that_was_never_granted_is_rejected<H: Harness>(
    harness: &H,
) -> Checked {
    let drive = Drive::fresh(harness).await;
    let fence = drive.acquired(A, 1).await?;
    for epoch in [0, fence.epoch, fence.epoch + 1] {
        let invented = Fence {
            resource: resource_name(&drive.name("never/granted")),
            epoch,
            ..fence.clone()
        };
        rejected(&drive, &invented, A, |_| true).await?;
    }
    Ok(())
}

pub(crate) async fn accepted<H: Harness>(
    drive: &Drive<'_, H>,
    fence: &Fence,
    writer: &str,
    value: &str,
) -> Checked {
    let written = drive.write(fence, writer, value).await?;
    ensure(written == Written::Accepted, || {
        format!("the owner's write under {fence} ended as {written:?}")
    })?;
    let effect = drive.effect(drive.plain(&fence.resource)).await;
    ensure(effect.as_deref() == Some(value), || {
        format!("{writer} wrote {value:?} under {fence}, the value is {effect:?}")
    })
}

async fn rejected<H: Harness>(
    drive: &Drive<'_, H>,
    fence: &Fence,
    writer: &str,
    is_right: impl Fn(&FenceRejection) -> bool,
) -> Checked {
    let before = drive.effect(drive.plain(&fence.resource)).await;
    let written = drive.write(fence, writer, "must-not-be-written").await?;
    match &written {
        Written::Rejected(Some(rejection)) if !is_right(rejection) => {
            return broken(format!(
                "{writer} under {fence} was rejected for another reason: {rejection}"
            ));
        }
        Written::Rejected(_) => {}
        other => {
            return broken(format!(
                "the write of {writer} under {fence} ended as {other:?}"
            ));
        }
    }
    let after = drive.effect(drive.plain(&fence.resource)).await;
    ensure(before == after, || {
        format!(
            "the write of {writer} under {fence} was rejected and made {before:?} into {after:?}"
        )
    })
}

fn is_stale(rejection: &FenceRejection) -> bool {
    matches!(rejection, FenceRejection::StaleEpoch { .. })
}

fn is_not_holder(rejection: &FenceRejection) -> bool {
    *rejection == FenceRejection::NotHolder
}
