//! Those who leave the queue, die in it, or do not come for their grant; and restarts.

use aster_lease::{DenyReason, TransitionOutcome};

use super::{Harness, Report, Rule, run_cases};
use crate::drive::{
    A, B, C, Checked, D, Drive, RESOURCE, Stop, TTL, acquire, broken, ensure, release, renew,
};
use crate::harness::Possible;
use crate::line::{LONG_WAIT, Line, is_for_a_retry, is_granted, wish};

pub(super) async fn cases<H: Harness>(harness: &H, report: &mut Report) {
    run_cases!(
        harness, report,
        LeaversLeaveNoGhost: a_waiter_that_leaves_makes_room,
        LeaversLeaveNoGhost: the_only_waiter_that_leaves_leaves_the_resource_free,
        LeaversLeaveNoGhost: a_grant_that_nobody_came_for_is_given_back,
        LeaversLeaveNoGhost: a_waiter_that_dies_costs_little,
        ClaimsLapse: a_claim_that_is_not_renewed_lapses,
        ClaimsLapse: a_claim_that_is_renewed_lasts_its_ttl,
        ClaimsLapse: a_claim_does_not_shorten_the_next_grant,
        RestartLeavesNoGhost: who_waited_before_a_restart_is_no_ghost_after_it,
        RestartLeavesNoGhost: who_waits_during_a_restart_may_ask_again,
    );
}

async fn a_waiter_that_leaves_makes_room<H: Harness>(harness: &H) -> Checked {
    let drive = Drive::fresh(harness).await;
    let held = drive.acquired(A, 1).await?;
    let mut line = Line::new(&drive);
    let first = line.join(B, 2, &[]).await?;
    let second = line.join(C, 3, &[B]).await?;
    let third = line.join(D, 4, &[B, C]).await?;
    line.leave(second);
    line.queued(&[B, D]).await?;
    line.leave(first);
    line.queued(&[D]).await?;
    drive
        .answered(release(A, held.epoch), TransitionOutcome::Released)
        .await?;
    let fence = line.claimed(third).await?;
    ensure(fence.holder == *D, || format!("granted {fence}"))
}

async fn the_only_waiter_that_leaves_leaves_the_resource_free<H: Harness>(harness: &H) -> Checked {
    let drive = Drive::fresh(harness).await;
    let held = drive.acquired(A, 1).await?;
    let mut line = Line::new(&drive);
    let waiter = line.join(B, 2, &[]).await?;
    line.leave(waiter);
    line.queued(&[]).await?;
    drive
        .answered(release(A, held.epoch), TransitionOutcome::Released)
        .await?;
    let row = drive.row().await?;
    ensure(!row.held, || {
        format!("nobody waited, released into {row:?}")
    })?;
    drive.acquired(C, 3).await.map(|_| ())
}

/// The resource is handed to a waiter that leaves before it hears of it.
async fn a_grant_that_nobody_came_for_is_given_back<H: Harness>(harness: &H) -> Checked {
    let drive = Drive::fresh(harness).await;
    let held = drive.acquired(A, 1).await?;
    let mut line = Line::new(&drive);
    let gone = line.join(B, 2, &[]).await?;
    let next = line.join(C, 3, &[B]).await?;
    drive
        .answered(release(A, held.epoch), TransitionOutcome::Released)
        .await?;
    line.leave(gone);
    // Given back at once, or lapsed after the claim time.
    line.still_waits_or(next, is_granted).await?;
    if !line.is_answered(next) {
        line.beside(drive.pass(harness.claim_time())).await?;
    }
    let fence = line.claimed(next).await?;
    ensure(fence.holder == *C, || format!("granted {fence}"))
}

/// A waiter whose process is killed is in the queue until its turn, and then for one claim time.
async fn a_waiter_that_dies_costs_little<H: Harness>(harness: &H) -> Checked {
    let drive = Drive::fresh(harness).await;
    let held = drive.acquired(A, 1).await?;
    let mut line = Line::new(&drive);
    let dead = line.join(B, 2, &[]).await?;
    let next = line.join(C, 3, &[B]).await?;
    line.die(dead);
    drive
        .answered(release(A, held.epoch), TransitionOutcome::Released)
        .await?;
    line.still_waits_or(next, is_granted).await?;
    if !line.is_answered(next) {
        line.beside(drive.pass(harness.claim_time())).await?;
    }
    let fence = line.claimed(next).await?;
    ensure(fence.holder == *C, || format!("granted {fence}"))
}

async fn a_claim_that_is_not_renewed_lapses<H: Harness>(harness: &H) -> Checked {
    let drive = Drive::fresh(harness).await;
    let held = drive.acquired(A, 1).await?;
    let mut line = Line::new(&drive);
    let slow = line.join(B, 2, &[]).await?;
    let next = line.join(C, 3, &[B]).await?;
    drive
        .answered(release(A, held.epoch), TransitionOutcome::Released)
        .await?;
    let (lapsed, claim) = line.granted(slow).await?;
    let Some(claim) = claim else {
        return broken(format!("{lapsed} was waited for and is no claim"));
    };
    line.still_waits(next).await?;
    line.beside(drive.pass(claim)).await?;
    let fence = line.claimed(next).await?;
    ensure(fence.holder == *C && fence.epoch > lapsed.epoch, || {
        format!("{fence} follows {lapsed}, which lapsed after {claim:?}")
    })?;
    drive
        .denied(renew(B, lapsed.epoch), DenyReason::EpochMismatch)
        .await
        .map(|_| ())
}

async fn a_claim_that_is_renewed_lasts_its_ttl<H: Harness>(harness: &H) -> Checked {
    let drive = Drive::fresh(harness).await;
    let held = drive.acquired(A, 1).await?;
    let mut line = Line::new(&drive);
    let waiter = line.join(B, 2, &[]).await?;
    let next = line.join(C, 3, &[B]).await?;
    drive
        .answered(release(A, held.epoch), TransitionOutcome::Released)
        .await?;
    let fence = line.claimed(waiter).await?;
    line.beside(drive.pass(harness.claim_time() * 2)).await?;
    line.still_waits(next).await?;
    drive
        .answered(renew(B, fence.epoch), TransitionOutcome::Renewed)
        .await
}

/// The claim belongs to the grant: one that follows it without waiting has its whole ttl.
async fn a_claim_does_not_shorten_the_next_grant<H: Harness>(harness: &H) -> Checked {
    let drive = Drive::fresh(harness).await;
    let held = drive.acquired(A, 1).await?;
    let mut line = Line::new(&drive);
    let waiter = line.join(B, 2, &[]).await?;
    drive
        .answered(release(A, held.epoch), TransitionOutcome::Released)
        .await?;
    let (claimed, _) = line.granted(waiter).await?;
    drive
        .answered(release(B, claimed.epoch), TransitionOutcome::Released)
        .await?;
    let next = drive.acquired(C, 3).await?;
    drive.pass(harness.claim_time() * 2).await?;
    drive
        .denied(acquire(D, TTL, 4), DenyReason::HeldByOther)
        .await?;
    drive
        .answered(renew(C, next.epoch), TransitionOutcome::Renewed)
        .await
}

/// Two wait, their process ends with the store; whether the store remembers them or not, they cost
/// the next one a claim time each at most, and one who asks again is served.
async fn who_waited_before_a_restart_is_no_ghost_after_it<H: Harness>(harness: &H) -> Checked {
    let mut drive = Drive::fresh(harness).await;
    let held = drive.acquired(A, 1).await?;
    let mut line = Line::new(&drive);
    let first = line.join(B, 2, &[]).await?;
    let second = line.join(C, 3, &[B]).await?;
    line.die(first);
    line.die(second);
    drop(line);
    drive.restart().await?;
    drive
        .answered(renew(A, held.epoch), TransitionOutcome::Renewed)
        .await?;
    let mut line = Line::new(&drive);
    let rejoined = line.ask(wish(C, 3, LONG_WAIT));
    line.still_waits(rejoined).await?;
    drive
        .answered(release(A, held.epoch), TransitionOutcome::Released)
        .await?;
    line.still_waits_or(rejoined, is_granted).await?;
    if !line.is_answered(rejoined) {
        line.beside(drive.pass(harness.claim_time())).await?;
    }
    let fence = line.claimed(rejoined).await?;
    ensure(fence.holder == *C && fence.epoch > held.epoch, || {
        format!("granted {fence}")
    })?;
    drive
        .answered(release(C, fence.epoch), TransitionOutcome::Released)
        .await?;
    if drive.row().await?.held {
        drive.pass(harness.claim_time()).await?;
    }
    drive.acquired(D, 4).await.map(|_| ())
}

async fn who_waits_during_a_restart_may_ask_again<H: Harness>(harness: &H) -> Checked {
    let drive = Drive::fresh(harness).await;
    let held = drive.acquired(A, 1).await?;
    let mut line = Line::new(&drive);
    let first = line.join(B, 2, &[]).await?;
    let second = line.join(C, 3, &[B]).await?;
    if harness.restart_beneath(&drive.store).await == Possible::No {
        return Err(Stop::NotPossible("a restart while requests are open"));
    }
    let mut waiters = Vec::new();
    for (waiter, name, grant) in [(first, B, 2), (second, C, 3)] {
        line.still_waits_or(waiter, is_for_a_retry).await?;
        let again = match line.answer(waiter) {
            // The store remembers it.
            None => waiter,
            Some(Err(_)) => line.ask(wish(name, grant, LONG_WAIT)),
            other => return broken(format!("the restart answered a waiter {other:?}")),
        };
        line.still_waits(again).await?;
        waiters.push((again, name));
    }
    line.queued(&[B, C]).await?;
    let mut last = held;
    for (waiter, name) in waiters {
        drive
            .answered(
                release(&last.holder, last.epoch),
                TransitionOutcome::Released,
            )
            .await?;
        let fence = line.claimed(waiter).await?;
        ensure(fence.holder == *name && fence.epoch > last.epoch, || {
            format!("{fence} came after {last}, it was the turn of {name}")
        })?;
        last = fence;
    }
    drive
        .answered(release(C, last.epoch), TransitionOutcome::Released)
        .await?;
    let row = drive.snapshot(RESOURCE).await?;
    ensure(!row.held, || {
        format!("everybody was served, and it is {row:?}")
    })
}
