//! Acquire, renew, release, revoke, cancel, and their retries.

use aster_lease::{DenyReason, LeaseOp, TransitionOutcome, retry_outcome};

use super::{Harness, Report, Rule, run_cases};
use crate::drive::{
    A, B, Checked, Drive, RESOURCE, TTL, acquire, all_at_once, broken, cancel, ensure, release,
    renew, revoke,
};

pub(super) async fn cases<H: Harness>(harness: &H, report: &mut Report) {
    run_cases!(
        harness, report,
        FreeIsGranted: a_free_resource_is_granted,
        GrantIsTheLock: a_held_resource_is_denied_to_every_other_grant,
        GrantIsTheLock: of_many_candidates_at_once_one_is_granted,
        RetriedAcquireFindsItsGrant: a_retried_acquire_finds_its_grant,
        RetriedAcquireFindsItsGrant: an_acquire_that_was_given_up_is_whole_or_nothing,
        EndedIsAlreadyEnded: a_release_that_was_given_up_is_whole_or_nothing,
        GrantIdIsGrantedOnce: a_late_duplicate_of_an_acquire_is_not_granted_again,
        EpochsStrictlyIncrease: every_grant_and_every_end_has_a_higher_epoch,
        NoChangeWithoutSuccess: a_denial_changes_nothing_and_spends_no_epoch,
        DenialsInOrder: denials_of_a_held_resource_are_judged_in_order,
        DenialsInOrder: denials_of_a_free_resource_are_judged_in_order,
        EndedIsAlreadyEnded: a_repeated_release_spares_the_next_lease_of_the_same_holder,
        EndedIsAlreadyEnded: a_repeated_revoke_spares_the_next_holder,
        EndedIsAlreadyEnded: a_repeated_cancel_spares_the_next_grant,
    );
}

async fn a_free_resource_is_granted<H: Harness>(harness: &H) -> Checked {
    let drive = Drive::fresh(harness).await;
    let fence = drive.acquired(A, 1).await?;
    ensure(
        fence.resource == *drive.name(RESOURCE) && fence.holder == *A && fence.epoch >= 1,
        || format!("the fence is {fence}"),
    )?;
    let row = drive.row().await?;
    let shows_it = row.held
        && row.epoch == fence.epoch
        && row.holder.as_deref() == Some(A)
        && row.ttl == Some(TTL);
    ensure(shows_it, || format!("granted {fence}, the row is {row:?}"))?;
    drive
        .answered(release(A, fence.epoch), TransitionOutcome::Released)
        .await?;
    let row = drive.row().await?;
    ensure(!row.held && row.holder.is_none(), || {
        format!("released, the row is {row:?}")
    })?;
    drive.acquired(B, 2).await.map(|_| ())
}

async fn a_held_resource_is_denied_to_every_other_grant<H: Harness>(harness: &H) -> Checked {
    let drive = Drive::fresh(harness).await;
    let fence = drive.acquired(A, 1).await?;
    for op in [
        acquire(B, TTL, 2),
        acquire(A, TTL, 2),
        acquire(B, TTL, 1),
        acquire(A, TTL * 2, 1),
    ] {
        let snapshot = drive.denied(op, DenyReason::HeldByOther).await?;
        ensure(
            snapshot.held && snapshot.epoch == fence.epoch && snapshot.holder.as_deref() == Some(A),
            || format!("the denial shows {snapshot:?}"),
        )?;
    }
    drive
        .answered(renew(A, fence.epoch), TransitionOutcome::Renewed)
        .await
}

async fn of_many_candidates_at_once_one_is_granted<H: Harness>(harness: &H) -> Checked {
    const CANDIDATES: u8 = 16;
    let drive = Drive::fresh(harness).await;
    let names: Vec<_> = (1..=CANDIDATES)
        .map(|index| format!("worker-{index}"))
        .collect();
    let attempts = (1..=CANDIDATES).zip(&names).map(|(index, name)| {
        let op = acquire(name, TTL, index);
        let attempt = drive.ask(RESOURCE, op);
        Box::pin(attempt) as std::pin::Pin<Box<dyn Future<Output = _> + Send + '_>>
    });
    let mut granted = Vec::new();
    for outcome in all_at_once(attempts).await {
        match outcome? {
            TransitionOutcome::Granted(fence) => granted.push(fence),
            TransitionOutcome::Denied(DenyReason::HeldByOther, _) => {}
            other => return broken(format!("a candidate was answered {other:?}")),
        }
    }
    ensure(granted.len() == 1, || {
        format!("granted at once: {granted:?}")
    })
}

async fn a_retried_acquire_finds_its_grant<H: Harness>(harness: &H) -> Checked {
    let drive = Drive::fresh(harness).await;
    let first = drive.acquired(A, 1).await?;
    let before = drive.row().await?;
    for _ in 0..3 {
        drive
            .answered(
                acquire(A, TTL, 1),
                TransitionOutcome::Granted(first.clone()),
            )
            .await?;
    }
    let after = drive.row().await?;
    ensure(
        after.epoch == first.epoch && after.revision > before.revision,
        || format!("the retries did not renew: {before:?} became {after:?}"),
    )
}

async fn an_acquire_that_was_given_up_is_whole_or_nothing<H: Harness>(harness: &H) -> Checked {
    let drive = Drive::fresh(harness).await;
    drive.abandoned(acquire(A, TTL, 1)).await;
    let fence = drive.acquired(A, 1).await?;
    drive
        .denied(acquire(B, TTL, 2), DenyReason::HeldByOther)
        .await?;
    let row = drive.row().await?;
    ensure(row.epoch == fence.epoch, || {
        format!("granted {fence}, the row is {row:?}")
    })?;
    drive
        .answered(cancel(A, 1), TransitionOutcome::Cancelled)
        .await?;
    drive.acquired(B, 2).await.map(|_| ())
}

async fn a_release_that_was_given_up_is_whole_or_nothing<H: Harness>(harness: &H) -> Checked {
    let drive = Drive::fresh(harness).await;
    let fence = drive.acquired(A, 1).await?;
    let end = release(A, fence.epoch);
    drive.abandoned(end.clone()).await;
    if drive.ask(RESOURCE, end.clone()).await? != TransitionOutcome::Released {
        already_ended(&drive, end).await?;
    }
    drive.acquired(B, 2).await.map(|_| ())
}

async fn a_late_duplicate_of_an_acquire_is_not_granted_again<H: Harness>(harness: &H) -> Checked {
    let drive = Drive::fresh(harness).await;
    let fence = drive.acquired(A, 1).await?;
    drive
        .answered(release(A, fence.epoch), TransitionOutcome::Released)
        .await?;
    drive
        .denied(acquire(A, TTL, 1), DenyReason::NotHeld)
        .await?;
    let fence = drive.acquired(A, 2).await?;
    drive
        .answered(revoke(fence.epoch, None), TransitionOutcome::Revoked)
        .await?;
    drive
        .denied(acquire(A, TTL, 2), DenyReason::NotHeld)
        .await?;
    drive.acquired(A, 3).await?;
    drive
        .answered(cancel(A, 3), TransitionOutcome::Cancelled)
        .await?;
    drive
        .denied(acquire(A, TTL, 3), DenyReason::NotHeld)
        .await
        .map(|_| ())
}

async fn every_grant_and_every_end_has_a_higher_epoch<H: Harness>(harness: &H) -> Checked {
    let drive = Drive::fresh(harness).await;
    let mut highest = 0;
    for round in 0..9 {
        let fence = drive
            .acquired(if round % 2 == 0 { A } else { B }, round + 1)
            .await?;
        ensure(fence.epoch > highest, || {
            format!("{fence} after epoch {highest}")
        })?;
        let (end, outcome) = match round % 3 {
            0 => (
                release(&fence.holder, fence.epoch),
                TransitionOutcome::Released,
            ),
            1 => (revoke(fence.epoch, None), TransitionOutcome::Revoked),
            _ => (
                cancel(&fence.holder, round + 1),
                TransitionOutcome::Cancelled,
            ),
        };
        let name = end.name();
        drive.answered(end, outcome).await?;
        highest = drive.row().await?.epoch;
        ensure(highest > fence.epoch, || {
            format!(
                "{name} of epoch {} left the resource at {highest}",
                fence.epoch
            )
        })?;
    }
    Ok(())
}

async fn a_denial_changes_nothing_and_spends_no_epoch<H: Harness>(harness: &H) -> Checked {
    let drive = Drive::fresh(harness).await;
    let first = drive.acquired(A, 1).await?;
    drive
        .answered(release(A, first.epoch), TransitionOutcome::Released)
        .await?;
    let free = drive.row().await?;
    for op in [
        acquire(A, TTL, 1),
        renew(A, first.epoch),
        release(A, first.epoch),
        revoke(first.epoch, None),
        cancel(A, 1),
    ] {
        unchanged(&drive, op, &free).await?;
    }
    let held = drive.acquired(A, 2).await?;
    let row = drive.row().await?;
    for op in [
        acquire(B, TTL, 3),
        acquire(A, TTL, 3),
        renew(B, held.epoch),
        renew(A, held.epoch + 1),
        release(B, held.epoch),
        release(A, first.epoch),
        revoke(first.epoch, None),
        cancel(A, 3),
        cancel(B, 2),
    ] {
        unchanged(&drive, op, &row).await?;
    }
    Ok(())
}

async fn unchanged<H: Harness>(
    drive: &Drive<'_, H>,
    op: LeaseOp,
    expected: &aster_lease::LeaseSnapshot,
) -> Checked {
    let outcome = drive.ask(RESOURCE, op.clone()).await?;
    ensure(matches!(outcome, TransitionOutcome::Denied(..)), || {
        format!("{op:?} was answered {outcome:?}")
    })?;
    let row = drive.row().await?;
    ensure(row == *expected, || {
        format!("{op:?} was denied and made {expected:?} into {row:?}")
    })
}

async fn denials_of_a_held_resource_are_judged_in_order<H: Harness>(harness: &H) -> Checked {
    let drive = Drive::fresh(harness).await;
    let epoch = drive.acquired(A, 1).await?.epoch;
    for (op, reason) in [
        (renew(B, epoch - 1), DenyReason::EpochMismatch),
        (renew(B, epoch + 1), DenyReason::EpochMismatch),
        (renew(B, epoch), DenyReason::NotHolder),
        (release(B, epoch - 1), DenyReason::EpochMismatch),
        (release(A, epoch + 1), DenyReason::EpochMismatch),
        (release(B, epoch), DenyReason::NotHolder),
        (revoke(epoch - 1, None), DenyReason::EpochMismatch),
        (revoke(epoch + 1, None), DenyReason::EpochMismatch),
        (cancel(A, 2), DenyReason::HeldByOther),
        (cancel(B, 1), DenyReason::NotHolder),
    ] {
        drive.denied(op, reason).await?;
    }
    drive
        .answered(renew(A, epoch), TransitionOutcome::Renewed)
        .await
}

async fn denials_of_a_free_resource_are_judged_in_order<H: Harness>(harness: &H) -> Checked {
    let drive = Drive::fresh(harness).await;
    let fence = drive.acquired(A, 1).await?;
    drive
        .answered(release(A, fence.epoch), TransitionOutcome::Released)
        .await?;
    let epoch = drive.row().await?.epoch;
    for (op, reason) in [
        (renew(A, fence.epoch), DenyReason::EpochMismatch),
        (renew(A, epoch), DenyReason::NotHeld),
        (release(A, epoch), DenyReason::NotHeld),
        (release(B, epoch + 1), DenyReason::EpochMismatch),
        (revoke(epoch, None), DenyReason::NotHeld),
        (cancel(A, 1), DenyReason::NotHeld),
        (cancel(B, 2), DenyReason::NotHeld),
    ] {
        drive.denied(op, reason).await?;
    }
    Ok(())
}

async fn a_repeated_release_spares_the_next_lease_of_the_same_holder<H: Harness>(
    harness: &H,
) -> Checked {
    let drive = Drive::fresh(harness).await;
    let first = drive.acquired(A, 1).await?;
    let end = release(A, first.epoch);
    drive
        .answered(end.clone(), TransitionOutcome::Released)
        .await?;
    spares_the_next(&drive, end, A, A).await
}

async fn a_repeated_revoke_spares_the_next_holder<H: Harness>(harness: &H) -> Checked {
    let drive = Drive::fresh(harness).await;
    let first = drive.acquired(A, 1).await?;
    let end = revoke(first.epoch, None);
    drive
        .answered(end.clone(), TransitionOutcome::Revoked)
        .await?;
    spares_the_next(&drive, end, A, B).await
}

async fn a_repeated_cancel_spares_the_next_grant<H: Harness>(harness: &H) -> Checked {
    let drive = Drive::fresh(harness).await;
    drive.acquired(A, 1).await?;
    drive
        .answered(cancel(A, 1), TransitionOutcome::Cancelled)
        .await?;
    spares_the_next(&drive, cancel(A, 1), A, A).await
}

/// Sends `end` again while the resource is free and while `next` holds it.
async fn spares_the_next<H: Harness>(
    drive: &Drive<'_, H>,
    end: LeaseOp,
    first: &str,
    next: &str,
) -> Checked {
    already_ended(drive, end.clone()).await?;
    let fence = drive.acquired(next, 2).await?;
    already_ended(drive, end.clone()).await?;
    let row = drive.row().await?;
    ensure(
        row.held && row.epoch == fence.epoch && row.holder.as_deref() == Some(next),
        || format!("{end:?} of {first} came again and left {row:?} of {fence}"),
    )?;
    drive
        .answered(renew(next, fence.epoch), TransitionOutcome::Renewed)
        .await
}

pub(super) async fn already_ended<H: Harness>(drive: &Drive<'_, H>, end: LeaseOp) -> Checked {
    match drive.ask(RESOURCE, end.clone()).await? {
        TransitionOutcome::Denied(reason, snapshot) if retry_outcome(&end, reason, &snapshot) => {
            Ok(())
        }
        other => broken(format!("{end:?} came again and was answered {other:?}")),
    }
}
