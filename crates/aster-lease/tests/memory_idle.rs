//! Idle rows of the memory store when some of them still keep somebody out.
#![allow(clippy::unwrap_used, reason = "test code outside a #[test] function")]

use std::time::Duration;

use aster_lease::{
    CLAIM_TIME, DenyReason, GrantId, HOLD_OFF_MAX, LeaseOp, LeaseSerializer, MemoryOptions,
    MemorySerializer, Principal, TransitionOutcome, Ttl, WAIT_MAX, WAITERS_MAX,
};

fn principal(name: &str) -> Principal {
    Principal::new(name).unwrap()
}

async fn acquire(store: &MemorySerializer, name: &str, grant: u8) -> TransitionOutcome {
    acquire_as(store, name, "worker-a", grant).await
}

async fn acquire_as(
    store: &MemorySerializer,
    name: &str,
    candidate: &str,
    grant: u8,
) -> TransitionOutcome {
    let op = LeaseOp::Acquire {
        candidate: principal(candidate),
        ttl: Ttl::from_millis(30_000).unwrap(),
        grant_id: GrantId::from_bytes([grant; 16]),
    };
    store.transition(name, op).await.unwrap()
}

async fn granted(store: &MemorySerializer, name: &str) -> u64 {
    match acquire(store, name, 1).await {
        TransitionOutcome::Granted(fence) => fence.epoch,
        other => panic!("{name}: {other:?}"),
    }
}

/// A hold-off lasts up to a day. One at the head of the line must not keep every later row in memory.
#[tokio::test]
async fn long_hold_offs_stay_and_do_not_keep_other_idle_rows() {
    const HELD_OFF: usize = 512;
    const IDLE_ROWS_MAX: usize = 1_024;
    let store = MemorySerializer::with_options(MemoryOptions {
        idle_rows_max: IDLE_ROWS_MAX,
        ..MemoryOptions::default()
    })
    .unwrap();
    for index in 0..HELD_OFF {
        let name = format!("held-off/{index}");
        let epoch = granted(&store, &name).await;
        let revoke = LeaseOp::Revoke {
            operator: principal("operator"),
            epoch,
            hold_off: Some(HOLD_OFF_MAX),
        };
        let outcome = store.transition(&name, revoke).await.unwrap();
        assert_eq!(outcome, TransitionOutcome::Revoked);
    }
    for index in 0..20_000 {
        let name = format!("job/{index}");
        let epoch = granted(&store, &name).await;
        let holder = principal("worker-a");
        let release = LeaseOp::Release { holder, epoch };
        let outcome = store.transition(&name, release).await.unwrap();
        assert_eq!(outcome, TransitionOutcome::Released);
    }
    let rows = store.row_count();
    assert!(
        rows <= 2 * (HELD_OFF + IDLE_ROWS_MAX),
        "{rows} rows are kept"
    );
    for index in 0..HELD_OFF {
        let outcome = acquire(&store, &format!("held-off/{index}"), 2).await;
        assert!(
            matches!(outcome, TransitionOutcome::Denied(DenyReason::HeldOff, _)),
            "held-off/{index} was forgotten: {outcome:?}"
        );
    }
}

const SHORT: Duration = Duration::from_secs(60);

/// Ownership changes on so many names that each lock of the store looks at its idle rows.
async fn make_changes(store: &MemorySerializer) {
    for index in 0..2_000 {
        let name = format!("job/{index}");
        let epoch = granted(store, &name).await;
        let holder = principal("worker-a");
        let release = LeaseOp::Release { holder, epoch };
        store.transition(&name, release).await.unwrap();
    }
}

/// Only the hold-offs that still run keep a row, whichever of them began first.
#[tokio::test(start_paused = true)]
async fn a_row_stays_until_the_last_of_its_hold_offs_is_over() {
    let store = MemorySerializer::with_options(MemoryOptions {
        idle_rows_max: 0,
        ..MemoryOptions::default()
    })
    .unwrap();
    for (holder, grant, hold_off) in [("worker-a", 1, HOLD_OFF_MAX), ("worker-b", 2, SHORT)] {
        let epoch = match acquire_as(&store, "catalog", holder, grant).await {
            TransitionOutcome::Granted(fence) => fence.epoch,
            other => panic!("{holder}: {other:?}"),
        };
        let revoke = LeaseOp::Revoke {
            operator: principal("operator"),
            epoch,
            hold_off: Some(hold_off),
        };
        store.transition("catalog", revoke).await.unwrap();
    }
    let is_held_off =
        |outcome| matches!(outcome, TransitionOutcome::Denied(DenyReason::HeldOff, _));
    tokio::time::sleep(SHORT).await;
    make_changes(&store).await;
    assert!(is_held_off(acquire(&store, "catalog", 3).await));
    tokio::time::sleep(HOLD_OFF_MAX).await;
    make_changes(&store).await;
    assert_eq!(store.row_count(), 0, "nothing keeps it any more");
    assert!(granted(&store, "catalog").await > 4, "behind the floor");
}

/// A name that is used over and over is forgotten as well once nobody uses it any more.
#[tokio::test(start_paused = true)]
async fn a_row_that_was_owned_again_meanwhile_is_dropped_later() {
    let store = MemorySerializer::with_options(MemoryOptions {
        idle_retention: SHORT,
        ..MemoryOptions::default()
    })
    .unwrap();
    make_changes(&store).await;
    let rows = store.row_count();
    tokio::time::sleep(SHORT / 2).await;
    // The latest first, so that those before them in the line are in their way.
    for index in (0..2_000).rev() {
        let name = format!("job/{index}");
        let outcome = acquire(&store, &name, 2).await;
        let TransitionOutcome::Granted(fence) = outcome else {
            panic!("{name}: {outcome:?}")
        };
        let (holder, epoch) = (fence.holder, fence.epoch);
        let release = LeaseOp::Release { holder, epoch };
        store.transition(&name, release).await.unwrap();
    }
    assert_eq!(store.row_count(), rows, "none is old enough");
    // They stand behind the later ones in the line now, and go when their turn comes.
    for round in 0..2 {
        tokio::time::sleep(SHORT).await;
        for index in 0..6_000 {
            let name = format!("later/{round}/{index}");
            let epoch = granted(&store, &name).await;
            let holder = principal("worker-a");
            let release = LeaseOp::Release { holder, epoch };
            store.transition(&name, release).await.unwrap();
        }
    }
    assert_eq!(store.row_count(), 6_000, "only the latest ones");
}

/// What a user who gives no options gets, as the options say.
#[test]
fn the_defaults_are_those_that_are_documented() {
    let hour = Duration::from_secs(3_600);
    let options = MemoryOptions::default();
    assert_eq!(options.idle_retention, hour);
    assert_eq!(options.idle_rows_max, 131_072);
    assert_eq!(options.audit_records_max, 10_000);
    assert_eq!(options.claim_time, CLAIM_TIME);
    assert_eq!(options.waiters_max, WAITERS_MAX);
    assert_eq!(options.register_bytes_max, 1_048_576);
    assert_eq!((WAIT_MAX, HOLD_OFF_MAX), (24 * hour, 24 * hour));
}
