//! A stale writer costs the rightful owner next to nothing, and leaves a trail.

#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    clippy::print_stderr,
    reason = "a test that cannot go on fails, and it owns its threads"
)]

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use aster_core::{ExpectedRevision, Fence, FenceRejection};
use aster_lease::{
    AuditEvent, AuditLog, AuditQuery, AuditRecord, FencedError, RegisterError, Registers,
};
use aster_sqlite::SqliteSerializer;
use support::*;

/// A store with an ended lease of worker-a (epoch 1) and the present one of worker-b (epoch 2).
async fn taken_over(place: &Place, time: &TestTime) -> (SqliteSerializer, Fence, Fence) {
    let store = place.open_at(time);
    let stale = acquire(&store, "catalog", "worker-a").await;
    time.advance_ms(TTL_MS);
    let fresh = acquire(&store, "catalog", "worker-b").await;
    (store, stale, fresh)
}

fn write(store: &SqliteSerializer, fence: &Fence, writer: &str) -> Result<(), FenceRejection> {
    match store.mutate_fenced(fence, writer, |tx| publish(tx, writer)) {
        Ok(()) => Ok(()),
        Err(FencedError::Rejected(rejection)) => Err(rejection),
        Err(other) => panic!("{other}"),
    }
}

async fn rejections(place: &Place, time: &TestTime) -> Vec<AuditRecord> {
    // The last counts are written when the last clone is dropped.
    let store = place.open_at(time);
    let records = store.audit(AuditQuery::default()).await.unwrap();
    records
        .into_iter()
        .filter(|record| record.event == AuditEvent::Rejected)
        .collect()
}

#[tokio::test]
async fn a_stale_writer_is_refused_without_the_lock_that_the_owner_holds() {
    let place = Place::new();
    let time = TestTime::new("boot");
    let (store, stale, fresh) = taken_over(&place, &time).await;
    let (inside, is_inside) = mpsc::channel();
    let (go_on, may_go_on) = mpsc::channel::<()>();
    let owners_store = store.clone();
    let owner = std::thread::spawn(move || {
        owners_store.mutate_fenced(&fresh, "worker-b", |tx| {
            inside.send(()).unwrap();
            may_go_on.recv().unwrap();
            publish(tx, "worker-b")
        })
    });
    is_inside.recv().unwrap();
    // The owner is inside its closure and stays there: whoever waited for the lock would wait for
    // ever, or be told that the store is busy.
    for _ in 0..1_000 {
        assert!(matches!(
            write(&store, &stale, "worker-a"),
            Err(FenceRejection::StaleEpoch { .. })
        ));
        let any = ExpectedRevision::Any;
        let late = store
            .compare_and_set(&stale, "worker-a", any, b"late".to_vec())
            .await;
        assert!(matches!(
            late,
            Err(RegisterError::Rejected(FenceRejection::StaleEpoch { .. }))
        ));
    }
    go_on.send(()).unwrap();
    owner.join().unwrap().unwrap();
    drop(store);
    assert_eq!(published(&place.path), ["worker-b"]);
    let told = rejections(&place, &time).await;
    assert!(
        told.len() <= 3,
        "repeats are counted, not repeated: {}",
        told.len()
    );
    assert_eq!(told.iter().map(|record| record.count).sum::<u64>(), 2_000);
    let first = &told[0];
    assert_eq!((first.epoch_carried, first.epoch_current), (Some(1), 2));
    assert_eq!(first.holder.as_deref(), Some("worker-b"));
    assert_eq!(first.actor.as_deref(), Some("worker-a"));
    assert_eq!(first.detail.as_deref(), Some("stale_epoch"));
}

#[tokio::test]
async fn different_rejections_are_told_apart_in_the_audit_trail() {
    let place = Place::new();
    let time = TestTime::new("boot");
    let (store, stale, fresh) = taken_over(&place, &time).await;
    let forged = Fence {
        epoch: u64::MAX,
        ..fresh.clone()
    };
    write(&store, &stale, "worker-a").unwrap_err();
    write(&store, &fresh, "worker-a").unwrap_err();
    write(&store, &forged, "worker-b").unwrap_err();
    assert_eq!(store.future_epoch_rejections(), 1);
    drop(store);
    let told = rejections(&place, &time).await;
    let mut told: Vec<_> = told
        .iter()
        .map(|record| record.detail.clone().unwrap())
        .collect();
    told.sort_unstable();
    assert_eq!(told, ["future_epoch", "not_holder", "stale_epoch"]);
}

/// Counts the owner's writes in equal spans with and without a zombie in a loop, in turns, and
/// compares the medians.
#[tokio::test]
async fn the_owners_writes_keep_most_of_their_speed_beside_a_zombie_in_a_loop() {
    const ATTEMPTS: usize = 5;
    const TURNS: usize = 5;
    const SPAN: Duration = Duration::from_millis(100);
    let place = Place::new();
    let time = TestTime::new("boot");
    let (store, stale, fresh) = taken_over(&place, &time).await;
    let (runs, ends) = (
        Arc::new(AtomicBool::new(false)),
        Arc::new(AtomicBool::new(false)),
    );
    let refused = Arc::new(AtomicU64::new(0));
    let zombie = {
        let (store, runs, ends) = (store.clone(), runs.clone(), ends.clone());
        let refused = refused.clone();
        std::thread::spawn(move || {
            while !ends.load(Ordering::Acquire) {
                if runs.load(Ordering::Acquire) {
                    write(&store, &stale, "worker-a").unwrap_err();
                    refused.fetch_add(1, Ordering::Relaxed);
                } else {
                    std::thread::yield_now();
                }
            }
        })
    };
    let owners_writes = || {
        let begun = Instant::now();
        let mut writes = 0;
        while begun.elapsed() < SPAN {
            write(&store, &fresh, "worker-b").unwrap();
            writes += 1;
        }
        writes
    };
    // Somebody else's load may spoil one comparison, but not every one.
    let mut told = Vec::new();
    let keeps_speed = (0..ATTEMPTS).any(|_| {
        let (mut alone, mut beside) = (Vec::new(), Vec::new());
        for _ in 0..TURNS {
            runs.store(false, Ordering::Release);
            alone.push(owners_writes());
            runs.store(true, Ordering::Release);
            beside.push(owners_writes());
        }
        alone.sort_unstable();
        beside.sort_unstable();
        let (alone, beside) = (alone[TURNS / 2], beside[TURNS / 2]);
        told.push(format!("{alone} writes alone, {beside} beside the zombie"));
        beside * 2 >= alone
    });
    ends.store(true, Ordering::Release);
    zombie.join().unwrap();
    let refused = refused.load(Ordering::Relaxed);
    eprintln!("{told:?}, refused {refused} times");
    assert!(refused > 0, "the zombie did not run");
    assert!(keeps_speed, "{told:?}");
}
