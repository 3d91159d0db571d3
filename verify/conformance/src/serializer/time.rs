//! What time does, where the harness can move the store's clock.
//!
//! A candidate asks once before the clock moves, so that a store which judges by watching has begun
//! to watch.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

use aster_lease::{DenyReason, HOLD_OFF_MAX, TransitionOutcome};

use super::grants::already_ended;
use super::{Harness, Report, Rule, run_cases};
use crate::drive::{
    A, B, C, Checked, Drive, LONG_IDLE, RESOURCE, SHORT_TTL, Stop, TTL, acquire, broken, ensure,
    release, renew, revoke,
};
use crate::harness::Possible;

pub(super) async fn cases<H: Harness>(harness: &H, report: &mut Report) {
    run_cases!(
        harness, report,
        TtlIsKept: a_lease_lasts_its_ttl,
        TtlIsKept: a_renewal_restarts_the_ttl,
        TtlIsKept: a_renewal_lasts_no_longer_than_its_ttl,
        RetriedAcquireFindsItsGrant: a_retried_acquire_restarts_the_ttl,
        GrantIdIsGrantedOnce: a_duplicate_acquire_after_expiry_is_expired,
        TtlIsKept: a_lease_is_taken_over_after_its_ttl_and_no_sooner,
        WallClockDecidesNothing: a_wall_clock_that_jumps_frees_nothing_and_keeps_nothing,
        OwnershipEndsAtATransition: an_expired_lease_is_still_held_and_not_renewed,
        OwnershipEndsAtATransition: an_expired_lease_can_be_taken_by_a_higher_epoch,
        DenialsInOrder: the_holder_is_judged_before_expiry,
        EpochsStrictlyIncrease: epochs_go_on_where_idle_rows_may_have_been_dropped,
        EndedIsAlreadyEnded: a_release_repeated_after_its_row_may_be_gone_has_ended,
        HoldOffKeepsTheRevokedOut: a_hold_off_outlives_the_time_of_idle_rows,
        HoldOffKeepsTheRevokedOut: a_hold_off_keeps_only_the_revoked_holder_out,
        HoldOffKeepsTheRevokedOut: a_hold_off_lasts_its_time_across_other_grants,
        HoldOffKeepsTheRevokedOut: several_hold_offs_run_at_once_each_for_its_own_time,
        HoldOffKeepsTheRevokedOut: a_restart_keeps_every_hold_off,
        RestartKeepsRows: a_restart_arms_held_rows_with_at_most_one_ttl,
    );
}

/// Less than the ttl by more than a case takes, for a clock that also runs by itself.
const NEARLY: Duration = TTL.saturating_sub(SLACK);
const SLACK: Duration = Duration::from_secs(10);

async fn a_lease_lasts_its_ttl<H: Harness>(harness: &H) -> Checked {
    let drive = Drive::fresh(harness).await;
    let fence = drive.acquired(A, 1).await?;
    drive.advance(NEARLY).await?;
    drive
        .denied(acquire(B, TTL, 2), DenyReason::HeldByOther)
        .await?;
    drive
        .answered(renew(A, fence.epoch), TransitionOutcome::Renewed)
        .await
}

async fn a_renewal_restarts_the_ttl<H: Harness>(harness: &H) -> Checked {
    let drive = Drive::fresh(harness).await;
    let fence = drive.acquired(A, 1).await?;
    for _ in 0..4 {
        drive.advance(NEARLY).await?;
        drive
            .answered(renew(A, fence.epoch), TransitionOutcome::Renewed)
            .await?;
        drive
            .denied(acquire(B, TTL, 2), DenyReason::HeldByOther)
            .await?;
    }
    let row = drive.row().await?;
    ensure(row.epoch == fence.epoch && row.held, || {
        format!("renewals made {fence} into {row:?}")
    })
}

async fn a_renewal_lasts_no_longer_than_its_ttl<H: Harness>(harness: &H) -> Checked {
    let drive = Drive::fresh(harness).await;
    let fence = drive.acquired(A, 1).await?;
    drive.advance(TTL / 2).await?;
    drive
        .answered(renew(A, fence.epoch), TransitionOutcome::Renewed)
        .await?;
    drive
        .denied(acquire(B, TTL, 2), DenyReason::HeldByOther)
        .await?;
    drive.advance(TTL).await?;
    drive.acquired(B, 2).await.map(|_| ())
}

async fn a_retried_acquire_restarts_the_ttl<H: Harness>(harness: &H) -> Checked {
    let drive = Drive::fresh(harness).await;
    let fence = drive.acquired(A, 1).await?;
    for _ in 0..2 {
        drive.advance(NEARLY).await?;
        let again = TransitionOutcome::Granted(fence.clone());
        drive.answered(acquire(A, TTL, 1), again).await?;
    }
    Ok(())
}

/// Also where the clock can only be waited for: a grant that comes sooner than the ttl after the
/// first one was asked for is too soon, whatever the machine was busy with.
async fn a_lease_is_taken_over_after_its_ttl_and_no_sooner<H: Harness>(harness: &H) -> Checked {
    const SHORT: Duration = SHORT_TTL;
    const LOOKS: u32 = 20;
    let drive = Drive::fresh(harness).await;
    let asked = now();
    let held = drive.granted(RESOURCE, acquire(A, SHORT, 1)).await?;
    for look in 0..=LOOKS * 10 {
        match drive.ask(RESOURCE, acquire(B, TTL, 2)).await? {
            TransitionOutcome::Granted(fence) => {
                let passed = match harness.clock_runs() {
                    true => now().saturating_sub(asked),
                    false => SHORT / LOOKS * look,
                };
                return ensure(passed >= SHORT && fence.epoch > held.epoch, || {
                    format!("{fence} took over {held} of {SHORT:?} after {passed:?}")
                });
            }
            TransitionOutcome::Denied(DenyReason::HeldByOther, _) => {}
            other => return broken(format!("a candidate was answered {other:?}")),
        }
        drive.pass(SHORT / LOOKS).await?;
    }
    broken(format!(
        "{held} of {SHORT:?} is not over after ten times as long"
    ))
}

#[allow(
    clippy::disallowed_methods,
    reason = "stores whose clock cannot be moved are judged by the time that really passes"
)]
fn now() -> Duration {
    static START: OnceLock<Instant> = OnceLock::new();
    START.get_or_init(Instant::now).elapsed()
}

async fn a_wall_clock_that_jumps_frees_nothing_and_keeps_nothing<H: Harness>(
    harness: &H,
) -> Checked {
    const HOUR_S: i64 = 60 * 60;
    let drive = Drive::fresh(harness).await;
    let fence = drive.acquired(A, 1).await?;
    for by_s in [HOUR_S, -2 * HOUR_S] {
        if harness.jump_wall_clock(&drive.store, by_s).await == Possible::No {
            return Err(Stop::NotPossible("a wall clock that can be moved"));
        }
        drive
            .denied(acquire(B, TTL, 2), DenyReason::HeldByOther)
            .await?;
        drive
            .answered(renew(A, fence.epoch), TransitionOutcome::Renewed)
            .await?;
    }
    drive.advance(TTL).await?;
    drive
        .denied(renew(A, fence.epoch), DenyReason::Expired)
        .await?;
    drive.acquired(B, 2).await.map(|_| ())
}

async fn a_duplicate_acquire_after_expiry_is_expired<H: Harness>(harness: &H) -> Checked {
    let drive = expired(harness).await?;
    drive
        .denied(acquire(A, SHORT_TTL, 1), DenyReason::Expired)
        .await
        .map(|_| ())
}

async fn an_expired_lease_is_still_held_and_not_renewed<H: Harness>(harness: &H) -> Checked {
    let drive = expired(harness).await?;
    let row = drive.row().await?;
    ensure(row.held && row.holder.as_deref() == Some(A), || {
        format!("expired into {row:?}")
    })?;
    drive
        .denied(renew(A, row.epoch), DenyReason::Expired)
        .await?;
    drive
        .answered(release(A, row.epoch), TransitionOutcome::Released)
        .await
}

async fn an_expired_lease_can_be_taken_by_a_higher_epoch<H: Harness>(harness: &H) -> Checked {
    let drive = expired(harness).await?;
    let epoch = drive.row().await?.epoch;
    let taken = drive.acquired(B, 3).await?;
    ensure(taken.epoch > epoch, || {
        format!("{taken} took over epoch {epoch}")
    })?;
    drive
        .denied(renew(A, epoch), DenyReason::EpochMismatch)
        .await?;
    drive
        .denied(acquire(A, TTL, 4), DenyReason::HeldByOther)
        .await
        .map(|_| ())
}

async fn the_holder_is_judged_before_expiry<H: Harness>(harness: &H) -> Checked {
    let drive = expired(harness).await?;
    let epoch = drive.row().await?.epoch;
    drive.denied(renew(B, epoch), DenyReason::NotHolder).await?;
    drive
        .denied(renew(B, epoch + 1), DenyReason::EpochMismatch)
        .await
        .map(|_| ())
}

async fn a_hold_off_keeps_only_the_revoked_holder_out<H: Harness>(harness: &H) -> Checked {
    let drive = Drive::fresh(harness).await;
    let fence = drive.acquired(A, 1).await?;
    drive
        .answered(revoke(fence.epoch, Some(TTL)), TransitionOutcome::Revoked)
        .await?;
    drive
        .denied(acquire(A, TTL, 2), DenyReason::HeldOff)
        .await?;
    let other = drive.acquired(B, 3).await?;
    drive
        .answered(release(B, other.epoch), TransitionOutcome::Released)
        .await?;
    drive
        .denied(acquire(A, TTL, 4), DenyReason::HeldOff)
        .await
        .map(|_| ())
}

async fn a_hold_off_lasts_its_time_across_other_grants<H: Harness>(harness: &H) -> Checked {
    let drive = Drive::fresh(harness).await;
    let fence = drive.acquired(A, 1).await?;
    drive
        .answered(revoke(fence.epoch, Some(TTL)), TransitionOutcome::Revoked)
        .await?;
    drive.advance(TTL / 2).await?;
    let other = drive.acquired(B, 2).await?;
    drive
        .answered(release(B, other.epoch), TransitionOutcome::Released)
        .await?;
    drive.advance(TTL / 2 - SLACK).await?;
    drive
        .denied(acquire(A, TTL, 3), DenyReason::HeldOff)
        .await?;
    drive.advance(TTL).await?;
    drive.acquired(A, 3).await.map(|_| ())
}

/// A is revoked, then B, who has stepped in; neither may come back before its own time has passed.
async fn several_hold_offs_run_at_once_each_for_its_own_time<H: Harness>(harness: &H) -> Checked {
    let drive = Drive::fresh(harness).await;
    let fence = drive.acquired(A, 1).await?;
    drive
        .answered(
            revoke(fence.epoch, Some(TTL * 3)),
            TransitionOutcome::Revoked,
        )
        .await?;
    let fence = drive.acquired(B, 2).await?;
    drive
        .answered(revoke(fence.epoch, Some(TTL)), TransitionOutcome::Revoked)
        .await?;
    drive
        .denied(acquire(A, TTL, 3), DenyReason::HeldOff)
        .await?;
    drive
        .denied(acquire(B, TTL, 4), DenyReason::HeldOff)
        .await?;
    // A revoke without a hold-off of its own leaves them alone.
    let fence = drive.acquired(C, 5).await?;
    drive
        .answered(revoke(fence.epoch, None), TransitionOutcome::Revoked)
        .await?;
    drive.advance(TTL).await?;
    drive
        .denied(acquire(A, TTL, 6), DenyReason::HeldOff)
        .await?;
    let fence = drive.acquired(B, 7).await?;
    drive
        .answered(release(B, fence.epoch), TransitionOutcome::Released)
        .await?;
    drive
        .denied(acquire(A, TTL, 8), DenyReason::HeldOff)
        .await?;
    drive.advance(TTL * 2).await?;
    drive.acquired(A, 9).await.map(|_| ())
}

/// Never shorter than asked for, and at most its whole time more.
async fn a_restart_keeps_every_hold_off<H: Harness>(harness: &H) -> Checked {
    let mut drive = Drive::fresh(harness).await;
    for (holder, grant) in [(A, 1), (B, 2)] {
        let fence = drive.acquired(holder, grant).await?;
        drive
            .answered(revoke(fence.epoch, Some(TTL)), TransitionOutcome::Revoked)
            .await?;
    }
    drive.restart().await?;
    drive.advance(NEARLY).await?;
    for (holder, grant) in [(A, 3), (B, 4)] {
        drive
            .denied(acquire(holder, TTL, grant), DenyReason::HeldOff)
            .await?;
    }
    drive.advance(TTL).await?;
    for (holder, grant) in [(A, 5), (B, 6)] {
        let fence = drive.acquired(holder, grant).await?;
        drive
            .answered(release(holder, fence.epoch), TransitionOutcome::Released)
            .await?;
    }
    Ok(())
}

async fn a_restart_arms_held_rows_with_at_most_one_ttl<H: Harness>(harness: &H) -> Checked {
    let mut drive = Drive::fresh(harness).await;
    drive.acquired(A, 1).await?;
    drive.advance(NEARLY).await?;
    drive.restart().await?;
    drive
        .denied(acquire(B, TTL, 2), DenyReason::HeldByOther)
        .await?;
    drive.advance(TTL).await?;
    drive.acquired(B, 2).await.map(|_| ())
}

async fn epochs_go_on_where_idle_rows_may_have_been_dropped<H: Harness>(harness: &H) -> Checked {
    let drive = Drive::fresh(harness).await;
    let mut freed = Vec::new();
    for grant in 1..=8 {
        let name = format!("idle/{grant}");
        let fence = drive.granted(&name, acquire(A, TTL, grant)).await?;
        drive.ask(&name, release(A, fence.epoch)).await?;
        freed.push((drive.snapshot(&name).await?.epoch, name));
    }
    drive.idle_for(LONG_IDLE).await?;
    for (grant, (epoch, name)) in (1..).zip(freed) {
        let seen = drive.snapshot(&name).await?.epoch;
        ensure(seen >= epoch, || {
            format!("{name} was free at {epoch} and is shown at {seen}")
        })?;
        let fence = drive.granted(&name, acquire(B, TTL, grant + 100)).await?;
        ensure(fence.epoch > epoch, || {
            format!("{fence} after it was free at {epoch}")
        })?;
    }
    Ok(())
}

async fn a_release_repeated_after_its_row_may_be_gone_has_ended<H: Harness>(
    harness: &H,
) -> Checked {
    let drive = Drive::fresh(harness).await;
    let fence = drive.acquired(A, 1).await?;
    let end = release(A, fence.epoch);
    drive
        .answered(end.clone(), TransitionOutcome::Released)
        .await?;
    drive.idle_for(LONG_IDLE).await?;
    already_ended(&drive, end.clone()).await?;
    drive.acquired(A, 2).await?;
    already_ended(&drive, end).await
}

async fn a_hold_off_outlives_the_time_of_idle_rows<H: Harness>(harness: &H) -> Checked {
    let drive = Drive::fresh(harness).await;
    // Where time cannot be moved, nobody is kept out for a day.
    drive.advance(Duration::ZERO).await?;
    let fence = drive.acquired(A, 1).await?;
    drive
        .answered(
            revoke(fence.epoch, Some(HOLD_OFF_MAX)),
            TransitionOutcome::Revoked,
        )
        .await?;
    drive.idle_for(HOLD_OFF_MAX / 2).await?;
    drive
        .denied(acquire(A, TTL, 2), DenyReason::HeldOff)
        .await
        .map(|_| ())
}

/// A store where A's lease of grant 1 has expired and nobody took it.
async fn expired<H: Harness>(harness: &H) -> Checked<Drive<'_, H>> {
    let drive = Drive::fresh(harness).await;
    drive.granted(RESOURCE, acquire(A, SHORT_TTL, 1)).await?;
    drive
        .denied(acquire(B, TTL, 2), DenyReason::HeldByOther)
        .await?;
    drive.pass(SHORT_TTL).await?;
    Ok(drive)
}
