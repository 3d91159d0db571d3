//! Watching who owns a resource.

use std::time::Duration;

use aster_lease::{ErrorKind, LeaseSnapshot, LeaseWatch, SerializerError, TransitionOutcome};

use super::{Harness, Report, Rule, run_cases};
use crate::drive::{
    A, B, C, Checked, Drive, RESOURCE, SHORT_TTL, Stop, TTL, acquire, broken, cancel, ensure,
    release, renew, revoke,
};
use crate::line::Line;

pub(super) async fn cases<H: Harness>(harness: &H, report: &mut Report) {
    run_cases!(
        harness, report,
        WatchShowsThePresent: a_watch_begins_with_the_present,
        WatchShowsThePresent: a_watch_shows_every_way_in_which_ownership_changes,
        WatchShowsThePresent: a_slow_watcher_sees_the_present,
        WatchShowsThePresent: a_watch_shows_a_hand_over,
        WatchShowsThePresent: a_renewal_is_not_a_change,
    );
}

/// How long a case watches that nothing is shown.
const A_WHILE: Duration = Duration::from_millis(200);

async fn a_watch_begins_with_the_present<H: Harness>(harness: &H) -> Checked {
    let drive = Drive::fresh(harness).await;
    let mut watch = watched(&drive).await?;
    let first = next(&drive, &mut watch).await?;
    ensure(
        !first.held && first.resource == *drive.name(RESOURCE),
        || format!("a resource that nobody holds is shown as {first:?}"),
    )?;
    let fence = drive.acquired(A, 1).await?;
    let mut late = watched(&drive).await?;
    let first = next(&drive, &mut late).await?;
    ensure(first.held && first.epoch == fence.epoch, || {
        format!("granted {fence}, a new watch shows {first:?}")
    })?;
    match drive.serializer().watch(&drive.name("a\nb")).await {
        Err(error) if error.kind() == ErrorKind::FixCall => Ok(()),
        other => broken(format!("a watch of an invalid name: {other:?}")),
    }
}

async fn a_watch_shows_every_way_in_which_ownership_changes<H: Harness>(harness: &H) -> Checked {
    let drive = Drive::fresh(harness).await;
    let mut watch = watched(&drive).await?;
    for (grant, round) in (1..).zip(["release", "revoke", "cancel", "the same holder again"]) {
        let fence = drive.acquired(A, grant).await?;
        shows(&drive, &mut watch, Some(A), fence.epoch).await?;
        let (op, outcome) = match round {
            "revoke" => (revoke(fence.epoch, None), TransitionOutcome::Revoked),
            "cancel" => (cancel(A, grant), TransitionOutcome::Cancelled),
            _ => (release(A, fence.epoch), TransitionOutcome::Released),
        };
        drive.answered(op, outcome).await?;
        let epoch = drive.row().await?.epoch;
        shows(&drive, &mut watch, None, epoch).await?;
    }
    // An expiry is no change; the takeover is.
    drive.granted(RESOURCE, acquire(A, SHORT_TTL, 10)).await?;
    drive.ask(RESOURCE, acquire(B, TTL, 11)).await?;
    match drive.pass(SHORT_TTL).await {
        Err(Stop::NotPossible(_)) => return Ok(()),
        answer => answer?,
    }
    let taken = drive.acquired(B, 11).await?;
    shows(&drive, &mut watch, Some(B), taken.epoch).await
}

/// The same holder leaves and comes back while nobody looks: the new epoch is a change.
async fn a_slow_watcher_sees_the_present<H: Harness>(harness: &H) -> Checked {
    let drive = Drive::fresh(harness).await;
    let mut watch = watched(&drive).await?;
    let first = drive.acquired(A, 1).await?;
    shows(&drive, &mut watch, Some(A), first.epoch).await?;
    let mut last = first;
    for (grant, holder) in [(2, B), (3, A)] {
        drive
            .answered(
                release(&last.holder, last.epoch),
                TransitionOutcome::Released,
            )
            .await?;
        last = drive.acquired(holder, grant).await?;
    }
    shows(&drive, &mut watch, Some(A), last.epoch).await
}

async fn a_watch_shows_a_hand_over<H: Harness>(harness: &H) -> Checked {
    let drive = Drive::fresh(harness).await;
    let mut watch = watched(&drive).await?;
    let held = drive.acquired(A, 1).await?;
    shows(&drive, &mut watch, Some(A), held.epoch).await?;
    let mut line = Line::new(&drive);
    let waiter = line.join(C, 2, &[]).await?;
    drive
        .answered(release(A, held.epoch), TransitionOutcome::Released)
        .await?;
    let (fence, _) = line.granted(waiter).await?;
    shows(&drive, &mut watch, Some(C), fence.epoch).await
}

async fn a_renewal_is_not_a_change<H: Harness>(harness: &H) -> Checked {
    let drive = Drive::fresh(harness).await;
    let mut watch = watched(&drive).await?;
    let fence = drive.acquired(A, 1).await?;
    shows(&drive, &mut watch, Some(A), fence.epoch).await?;
    for _ in 0..3 {
        drive
            .answered(renew(A, fence.epoch), TransitionOutcome::Renewed)
            .await?;
    }
    let a_while = A_WHILE.min(harness.settles_within() / 5);
    match tokio::time::timeout(a_while, watch.next()).await {
        Err(_) => Ok(()),
        Ok(shown) => broken(format!("after renewals of {fence}: {shown:?}")),
    }
}

async fn watched<H: Harness>(drive: &Drive<'_, H>) -> Checked<LeaseWatch> {
    match drive.serializer().watch(&drive.name(RESOURCE)).await {
        Ok(watch) => Ok(watch),
        Err(SerializerError::Unsupported { .. }) => {
            Err(Stop::NotPossible("a store that can be watched"))
        }
        Err(error) => broken(format!("watch failed: {error}")),
    }
}

async fn next<H: Harness>(drive: &Drive<'_, H>, watch: &mut LeaseWatch) -> Checked<LeaseSnapshot> {
    let patience = drive.harness.settles_within();
    match tokio::time::timeout(patience, watch.next()).await {
        Ok(Some(snapshot)) => Ok(snapshot),
        Ok(None) => broken("the watch ended while its store is open"),
        Err(_) => broken(format!("the watch showed nothing within {patience:?}")),
    }
}

/// Ends up showing this owner; what lies between may be shown or not, and epochs never go back.
async fn shows<H: Harness>(
    drive: &Drive<'_, H>,
    watch: &mut LeaseWatch,
    holder: Option<&str>,
    epoch: u64,
) -> Checked {
    let mut last = 0;
    loop {
        let shown = match next(drive, watch).await {
            Ok(shown) => shown,
            Err(Stop::Broken(seen)) => {
                return broken(format!("epoch {epoch} of {holder:?} was not shown: {seen}"));
            }
            other => other?,
        };
        if shown.epoch == epoch && shown.held == holder.is_some() {
            return ensure(shown.holder.as_deref() == holder, || {
                format!("epoch {epoch} of {holder:?} is shown as {shown:?}")
            });
        }
        ensure(shown.epoch < epoch && shown.epoch >= last, || {
            format!("after epoch {last} and before {epoch} of {holder:?}: {shown:?}")
        })?;
        last = shown.epoch;
    }
}
