//! The queue: who comes when, and what ends a wait.

use std::time::Duration;

use aster_lease::{DenyReason, ErrorKind, LeaseOp, SerializerError, TransitionOutcome};

use super::{Harness, Report, Rule, run_cases};
use crate::drive::{
    A, B, C, Checked, D, Drive, RESOURCE, SHORT_TTL, Stop, TTL, acquire, broken, cancel, ensure,
    release, revoke,
};
use crate::line::{LONG_WAIT, Line, is_denied, is_for_a_retry, is_granted, wish};

pub(super) async fn cases<H: Harness>(harness: &H, report: &mut Report) {
    run_cases!(
        harness, report,
        FreeIsGranted: a_free_resource_is_granted_without_waiting,
        WaitersAreServedInOrder: waiters_are_served_in_the_order_in_which_they_came,
        WaitersAreServedInOrder: a_wait_that_is_asked_for_again_keeps_its_place,
        WaitersAreServedInOrder: a_plain_acquire_does_not_overtake_who_waits,
        HandOverIsDirect: a_release_hands_over,
        HandOverIsDirect: a_revoke_hands_over,
        HandOverIsDirect: a_cancel_hands_over,
        HandOverIsDirect: an_expiry_hands_over,
        HoldOffKeepsTheRevokedOut: a_waiter_who_is_held_off_is_passed_over,
        GrantIdIsGrantedOnce: a_wait_under_an_ended_grant_id_is_not_granted,
        WaitsEnd: a_wait_that_runs_out_is_denied,
        WaitsEnd: a_wait_of_no_time_does_not_queue,
        QueueIsBounded: a_full_queue_refuses_the_next_one,
        QueueShowsWhoWaits: the_queue_lists_who_waits,
    );
}

async fn a_free_resource_is_granted_without_waiting<H: Harness>(harness: &H) -> Checked {
    let drive = Drive::fresh(harness).await;
    let mut line = Line::new(&drive);
    let first = line.ask(wish(A, 1, LONG_WAIT));
    let (fence, claim) = line.granted(first).await?;
    ensure(claim.is_none(), || {
        format!("{fence} was granted at once and is a claim for {claim:?}")
    })?;
    let again = line.ask(wish(A, 1, LONG_WAIT));
    let (found, _) = line.granted(again).await?;
    ensure(found == fence, || {
        format!("granted {fence}, asked again and got {found}")
    })?;
    drive
        .answered(release(A, fence.epoch), TransitionOutcome::Released)
        .await
}

async fn waiters_are_served_in_the_order_in_which_they_came<H: Harness>(harness: &H) -> Checked {
    const WAITERS: [&str; 5] = [D, B, "worker-z", C, "worker-e"];
    let drive = Drive::fresh(harness).await;
    let mut last = drive.acquired(A, 1).await?;
    let mut line = Line::new(&drive);
    let mut waiters = Vec::new();
    for (index, name) in WAITERS.into_iter().enumerate() {
        let grant = u8::try_from(index).unwrap_or(u8::MAX) + 2;
        waiters.push(line.join(name, grant, &WAITERS[..index]).await?);
    }
    for (waiter, name) in waiters.into_iter().zip(WAITERS) {
        let end = release(&last.holder, last.epoch);
        drive.answered(end, TransitionOutcome::Released).await?;
        let fence = line.claimed(waiter).await?;
        ensure(fence.holder == *name && fence.epoch > last.epoch, || {
            format!("{fence} came after {last}, it was the turn of {name}")
        })?;
        last = fence;
    }
    Ok(())
}

/// Whether the first asker of the two hears about it is the store's own affair; the place is kept.
async fn a_wait_that_is_asked_for_again_keeps_its_place<H: Harness>(harness: &H) -> Checked {
    let drive = Drive::fresh(harness).await;
    let held = drive.acquired(A, 1).await?;
    let mut line = Line::new(&drive);
    let first = line.join(B, 2, &[]).await?;
    let behind = line.join(C, 3, &[B]).await?;
    let again = line.ask(wish(B, 2, LONG_WAIT));
    line.still_waits(again).await?;
    line.queued(&[B, C]).await?;
    drive
        .answered(release(A, held.epoch), TransitionOutcome::Released)
        .await?;
    let fence = line.claimed(again).await?;
    ensure(fence.holder == *B, || format!("granted {fence}"))?;
    line.still_waits(behind).await?;
    line.still_waits_or(first, |answer| is_granted(answer) || is_for_a_retry(answer))
        .await
}

async fn a_plain_acquire_does_not_overtake_who_waits<H: Harness>(harness: &H) -> Checked {
    let drive = Drive::fresh(harness).await;
    drive.granted(RESOURCE, acquire(A, SHORT_TTL, 1)).await?;
    let mut line = Line::new(&drive);
    let waiter = line.join(B, 2, &[]).await?;
    drive.pass(SHORT_TTL).await?;
    // The waiter is not looked after, so that the plain acquire comes first.
    drive
        .denied(acquire(C, TTL, 3), DenyReason::HeldByOther)
        .await?;
    let fence = line.claimed(waiter).await?;
    ensure(fence.holder == *B, || format!("granted {fence}"))
}

async fn a_release_hands_over<H: Harness>(harness: &H) -> Checked {
    hands_over(
        harness,
        |epoch| release(A, epoch),
        TransitionOutcome::Released,
    )
    .await
}

async fn a_revoke_hands_over<H: Harness>(harness: &H) -> Checked {
    hands_over(
        harness,
        |epoch| revoke(epoch, None),
        TransitionOutcome::Revoked,
    )
    .await
}

async fn a_cancel_hands_over<H: Harness>(harness: &H) -> Checked {
    hands_over(harness, |_| cancel(A, 1), TransitionOutcome::Cancelled).await
}

async fn hands_over<H: Harness>(
    harness: &H,
    end: impl FnOnce(u64) -> LeaseOp,
    outcome: TransitionOutcome,
) -> Checked {
    let drive = Drive::fresh(harness).await;
    let held = drive.acquired(A, 1).await?;
    let mut line = Line::new(&drive);
    let first = line.join(B, 2, &[]).await?;
    let second = line.join(C, 3, &[B]).await?;
    drive.answered(end(held.epoch), outcome).await?;
    // The end shows an owner at once, and nobody comes in between.
    let row = drive.row().await?;
    drive
        .denied(acquire(D, TTL, 4), DenyReason::HeldByOther)
        .await?;
    ensure(
        row.holder.as_deref() == Some(B) && row.epoch > held.epoch,
        || format!("after the end of {held} with {B} waiting: {row:?}"),
    )?;
    let (fence, claim) = line.granted(first).await?;
    ensure(fence.epoch == row.epoch && fence.holder == *B, || {
        format!("the row was {row:?}, the waiter was granted {fence}")
    })?;
    ensure(
        claim.is_some_and(|claim| !claim.is_zero() && claim <= TTL),
        || format!("{fence} was waited for and is a claim for {claim:?}"),
    )?;
    line.still_waits(second).await?;
    line.queued(&[C]).await
}

async fn an_expiry_hands_over<H: Harness>(harness: &H) -> Checked {
    let drive = Drive::fresh(harness).await;
    let held = drive.granted(RESOURCE, acquire(A, SHORT_TTL, 1)).await?;
    let mut line = Line::new(&drive);
    let first = line.ask(wish(B, 2, LONG_WAIT));
    line.queued(&[B]).await?;
    line.still_waits(first).await?;
    line.beside(drive.pass(SHORT_TTL)).await?;
    let fence = line.claimed(first).await?;
    ensure(fence.epoch > held.epoch && fence.holder == *B, || {
        format!("{fence} follows the expired {held}")
    })
}

async fn a_waiter_who_is_held_off_is_passed_over<H: Harness>(harness: &H) -> Checked {
    let drive = Drive::fresh(harness).await;
    let revoked = drive.acquired(A, 1).await?;
    drive
        .answered(
            revoke(revoked.epoch, Some(TTL * 10)),
            TransitionOutcome::Revoked,
        )
        .await?;
    let mut line = Line::new(&drive);
    let at_once = line.ask(wish(A, 2, LONG_WAIT));
    line.denied(at_once, DenyReason::HeldOff).await?;
    let held = drive.acquired(B, 3).await?;
    // It may be told now, or when its turn comes.
    let kept_out = line.ask(wish(A, 4, LONG_WAIT));
    line.still_waits_or(kept_out, |answer| is_denied(answer, DenyReason::HeldOff))
        .await?;
    let next = line.ask(wish(C, 5, LONG_WAIT));
    line.still_waits(next).await?;
    drive
        .answered(release(B, held.epoch), TransitionOutcome::Released)
        .await?;
    let fence = line.claimed(next).await?;
    ensure(fence.holder == *C, || format!("granted {fence}"))?;
    line.denied(kept_out, DenyReason::HeldOff).await
}

async fn a_wait_under_an_ended_grant_id_is_not_granted<H: Harness>(harness: &H) -> Checked {
    let drive = Drive::fresh(harness).await;
    let ended = drive.acquired(A, 1).await?;
    drive
        .answered(release(A, ended.epoch), TransitionOutcome::Released)
        .await?;
    let mut line = Line::new(&drive);
    let late = line.ask(wish(A, 1, LONG_WAIT));
    line.denied(late, DenyReason::NotHeld).await?;
    let row = drive.row().await?;
    ensure(!row.held, || format!("the late duplicate left {row:?}"))
}

async fn a_wait_that_runs_out_is_denied<H: Harness>(harness: &H) -> Checked {
    const WAIT: Duration = Duration::from_secs(1);
    let drive = Drive::fresh(harness).await;
    let held = drive.acquired(A, 1).await?;
    let mut line = Line::new(&drive);
    let short = line.ask(wish(B, 2, WAIT));
    line.queued(&[B]).await?;
    let long = line.join(C, 3, &[B]).await?;
    // On whichever clock it waits.
    match line.beside(drive.advance(WAIT)).await {
        Ok(()) | Err(Stop::NotPossible(_)) => {}
        broken => return broken,
    }
    line.denied(short, DenyReason::WaitRanOut).await?;
    line.queued(&[C]).await?;
    drive
        .answered(release(A, held.epoch), TransitionOutcome::Released)
        .await?;
    let fence = line.claimed(long).await?;
    ensure(fence.holder == *C, || format!("granted {fence}"))
}

async fn a_wait_of_no_time_does_not_queue<H: Harness>(harness: &H) -> Checked {
    let drive = Drive::fresh(harness).await;
    let held = drive.acquired(A, 1).await?;
    let mut line = Line::new(&drive);
    let impatient = line.ask(wish(B, 2, Duration::ZERO));
    line.denied(impatient, DenyReason::WaitRanOut).await?;
    line.queued(&[]).await?;
    drive
        .answered(release(A, held.epoch), TransitionOutcome::Released)
        .await?;
    let now = line.ask(wish(B, 3, Duration::ZERO));
    let (_, claim) = line.granted(now).await?;
    ensure(claim.is_none(), || {
        "a free resource was waited for".to_owned()
    })
}

async fn a_full_queue_refuses_the_next_one<H: Harness>(harness: &H) -> Checked {
    let Some(waiters_max) = harness.waiters_max() else {
        return Err(Stop::NotPossible("a queue of a known, small bound"));
    };
    let drive = Drive::fresh(harness).await;
    let held = drive.acquired(A, 1).await?;
    let mut line = Line::new(&drive);
    let names: Vec<_> = (1..=waiters_max)
        .map(|index| format!("worker-{index}"))
        .collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let mut first = None;
    for (index, name) in names.iter().enumerate() {
        let grant = u8::try_from(index).unwrap_or(u8::MAX - 10) + 2;
        let waiter = line.join(name, grant, &names[..index]).await?;
        first.get_or_insert(waiter);
    }
    let one_more = line.ask(wish(B, u8::MAX, LONG_WAIT));
    match line.settled(one_more).await? {
        Err(SerializerError::Overloaded { .. }) => {}
        other => {
            return broken(format!(
                "one more than {waiters_max} was answered {other:?}"
            ));
        }
    }
    line.queued(&names).await?;
    drive
        .answered(release(A, held.epoch), TransitionOutcome::Released)
        .await?;
    if let Some(first) = first {
        line.claimed(first).await?;
    }
    Ok(())
}

async fn the_queue_lists_who_waits<H: Harness>(harness: &H) -> Checked {
    let drive = Drive::fresh(harness).await;
    drive.acquired(A, 1).await?;
    let mut line = Line::new(&drive);
    line.queued(&[]).await?;
    line.join(C, 2, &[]).await?;
    line.join(B, 3, &[C]).await?;
    // One holder may wait for several wishes.
    line.join(B, 4, &[C, B]).await?;
    let resource = drive.name(RESOURCE);
    let queue = match line.beside(drive.serializer().queue(&resource)).await {
        Ok(queue) => queue,
        Err(error) => return broken(format!("the queue failed: {error}")),
    };
    for (position, waiter) in queue.iter().enumerate() {
        ensure(
            waiter.position == position && waiter.ttl.duration() == TTL,
            || format!("at place {position}: {waiter:?}"),
        )?;
    }
    match drive.serializer().queue(&drive.name("a\nb")).await {
        Err(error) if error.kind() == ErrorKind::FixCall => Ok(()),
        other => broken(format!("the queue of an invalid name: {other:?}")),
    }
}
