//! Moments between two steps, driven through the clock: the store reads it exactly when it has its
//! locks and decides.

#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "a test that cannot go on fails, and it owns its threads"
)]

mod support;

use std::sync::mpsc;
use std::time::{Duration, Instant};

use aster_core::{DenyReason, ErrorKind, FenceRejection, TransitionOutcome};
use aster_lease::FencedError;
use support::*;

/// How long something that must not happen is waited for.
const A_WHILE: Duration = Duration::from_millis(300);
/// How long something that has to happen is waited for at most.
const PATIENCE: Duration = Duration::from_secs(30);

#[tokio::test]
async fn a_renewal_that_goes_into_a_lost_side_file_is_not_acknowledged() {
    let place = Place::new();
    let hooked = HookedTime::new(&TestTime::new("boot"));
    let store = hooked.open(&place);
    let fence = acquire(&store, "catalog", "worker-a").await;
    // The side file is the right one when the renewal begins, and gone when it commits.
    let side = place.side();
    hooked.at_next_reading(move || {
        for suffix in ["", "-wal", "-shm"] {
            let _ = std::fs::remove_file(format!("{}{suffix}", side.display()));
        }
    });
    let error = renew(&store, &fence).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Retry, "{error}");
}

/// A renewal has read its clock before the deadline and not committed yet. A takeover after the
/// deadline has to wait for it, and then sees it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_takeover_waits_for_a_renewal_that_is_on_its_way() {
    let place = Place::new();
    let time = TestTime::new("boot");
    let hooked = HookedTime::new(&time);
    let holder = hooked.open(&place);
    let contender = place.open_at(&time);
    let fence = acquire(&holder, "catalog", "worker-a").await;
    time.advance_ms(TTL_MS - 1);

    let (inside, is_inside) = mpsc::channel();
    let (go_on, may_go_on) = mpsc::channel::<()>();
    hooked.at_next_reading(move || {
        inside.send(()).unwrap();
        may_go_on.recv().unwrap();
    });
    let renewing = {
        let (holder, fence) = (holder.clone(), fence.clone());
        tokio::spawn(async move { renew(&holder, &fence).await })
    };
    tokio::task::spawn_blocking(move || is_inside.recv().unwrap())
        .await
        .unwrap();
    time.advance_ms(1);
    let mut takeover =
        tokio::spawn(async move { try_acquire(&contender, "catalog", "worker-b").await });
    let early = tokio::time::timeout(A_WHILE, &mut takeover).await;
    assert!(early.is_err(), "the takeover did not wait: {early:?}");
    go_on.send(()).unwrap();
    assert_renewed(renewing.await.unwrap());
    let (reason, snapshot) = denied(takeover.await.unwrap());
    assert_eq!(reason, DenyReason::HeldByOther);
    assert_eq!(snapshot.epoch, fence.epoch);
}

/// A renewal has read its clock and not committed yet when its holder releases: the resource is free
/// as soon as both are through, not a ttl later, whichever of them comes first.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_beside_a_renewal_on_its_way_frees_at_once() {
    let place = Place::new();
    let time = TestTime::new("boot");
    let hooked = HookedTime::new(&time);
    let holder = hooked.open(&place);
    let contender = place.open_at(&time);
    let fence = acquire(&holder, "catalog", "worker-a").await;

    let (inside, is_inside) = mpsc::channel();
    let (go_on, may_go_on) = mpsc::channel::<()>();
    hooked.at_next_reading(move || {
        inside.send(()).unwrap();
        may_go_on.recv().unwrap();
    });
    let renewing = {
        let (holder, fence) = (holder.clone(), fence.clone());
        tokio::spawn(async move { renew(&holder, &fence).await })
    };
    tokio::task::spawn_blocking(move || is_inside.recv().unwrap())
        .await
        .unwrap();
    let releasing = {
        let (holder, fence) = (holder.clone(), fence.clone());
        tokio::spawn(async move { release(&holder, &fence).await })
    };
    go_on.send(()).unwrap();
    renewing.await.unwrap().unwrap();
    let released = releasing.await.unwrap();
    assert!(
        matches!(released, Ok(TransitionOutcome::Released)),
        "{released:?}"
    );
    // Nobody moved the clock.
    let next = acquire(&contender, "catalog", "worker-b").await;
    assert_eq!(next.epoch, fence.epoch + 2);
    assert_eq!(
        denied(renew(&holder, &fence).await).0,
        DenyReason::EpochMismatch
    );
}

/// The other way round: the takeover is about to judge, by a clock on which the lease is over, when its
/// holder renews by one on which it is not. The renewal waits, and finds the takeover's mark whether
/// or not the takeover is durable by then.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_renewal_after_a_takeover_was_judged_is_not_acknowledged() {
    let place = Place::new();
    let time = TestTime::new("boot/0 0");
    let holder = place.open_at(&time);
    // The contender watches on a clock of its own, which is far ahead when it is read.
    let fast = TestTime::new("boot/9 0");
    let hooked = HookedTime::new(&fast);
    let contender = hooked.open(&place);
    let fence = acquire(&holder, "catalog", "worker-a").await;
    denied(try_acquire(&contender, "catalog", "worker-b").await);
    fast.advance_ms(TTL_MS);

    // Readings: the first look, and the judgement, which is made under the side file's lock.
    let (reached, is_reached) = mpsc::channel();
    let (go_on, may_go_on) = mpsc::channel::<()>();
    let judging = hooked.clone();
    hooked.at_next_reading(move || {
        judging.at_next_reading(move || {
            reached.send(()).unwrap();
            may_go_on.recv().unwrap();
        });
    });
    let takeover =
        tokio::spawn(async move { try_acquire(&contender, "catalog", "worker-b").await });
    tokio::task::spawn_blocking(move || is_reached.recv().unwrap())
        .await
        .unwrap();
    let mut renewing = {
        let (holder, fence) = (holder.clone(), fence.clone());
        tokio::spawn(async move { renew(&holder, &fence).await })
    };
    let early = tokio::time::timeout(A_WHILE, &mut renewing).await;
    assert!(early.is_err(), "the renewal did not wait: {early:?}");
    go_on.send(()).unwrap();
    let (reason, _) = denied(renewing.await.unwrap());
    assert!(
        matches!(reason, DenyReason::Expired | DenyReason::EpochMismatch),
        "{reason:?}"
    );
    assert_eq!(granted(takeover.await.unwrap()).epoch, fence.epoch + 1);
}

/// A plain read refuses stale writers before they take a lock. It is no check: ownership may end between
/// it and the lock, and then the check inside the transaction refuses the write.
#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_write_whose_ownership_ends_while_it_waits_for_the_lock_is_rejected() {
    let place = Place::new();
    let store = place.open();
    let fence = acquire(&store, "catalog", "worker-a").await;
    // It opens the connection for plain reads, so that the next one to open the log is the write's own.
    let nothing = |_: &rusqlite::Transaction<'_>| Ok::<_, rusqlite::Error>(());
    store
        .mutate_fenced(&fence, "worker-b", nothing)
        .unwrap_err();
    let mut others = rusqlite::Connection::open(&place.path).unwrap();
    others.busy_timeout(PATIENCE).unwrap();
    let lock = others
        .transaction_with_behavior(rusqlite::TransactionBehavior::Immediate)
        .unwrap();

    let opened_before = times_open(&place);
    let writing = std::thread::spawn(move || {
        let mut has_run = false;
        let answer = store.mutate_fenced(&fence, "worker-a", |_| {
            has_run = true;
            Ok::<_, rusqlite::Error>(())
        });
        (answer, has_run)
    });
    let begun = Instant::now();
    while times_open(&place) == opened_before {
        assert!(begun.elapsed() < PATIENCE, "the write was not begun");
        std::thread::yield_now();
    }
    // The look is over. Another process ends the lease, as a release does.
    let ended = "UPDATE aster_rows SET epoch = epoch + 1, revision = revision + 1,
                 holder = NULL, ttl_ms = NULL";
    assert_eq!(lock.execute(ended, []).unwrap(), 1);
    lock.commit().unwrap();
    let (answer, has_run) = writing.join().unwrap();
    let stale = FenceRejection::StaleEpoch {
        carried: 1,
        current: 2,
    };
    match answer {
        Err(FencedError::Rejected(rejection)) => assert_eq!(rejection, stale),
        other => panic!("the stale write was not rejected: {other:?}"),
    }
    assert!(!has_run, "and its closure did not run");
}

/// How often this process has the main file's log open: once for each connection.
#[cfg(target_os = "linux")]
fn times_open(place: &Place) -> usize {
    let mut log = place.path.canonicalize().unwrap().into_os_string();
    log.push("-wal");
    let descriptors = std::fs::read_dir("/proc/self/fd").unwrap();
    descriptors
        .filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok())
        .filter(|target| target.as_os_str() == log)
        .count()
}
