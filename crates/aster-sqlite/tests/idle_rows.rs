//! Rows that have long been free go away, and no epoch is ever used twice.

#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "a test that cannot go on fails, and it owns its threads"
)]

mod support;

use std::collections::HashMap;
use std::time::Duration;

use aster_core::{DenyReason, ExpectedRevision, TransitionOutcome};
use aster_lease::{LeaseSerializer, ListQuery, Registers};
use aster_sqlite::{SqliteOptions, SqliteSerializer};
use support::*;

/// More than one sweep's interval of ownership changes.
const ENOUGH_CHANGES: u64 = 300;

fn rows(place: &Place) -> i64 {
    let connection = rusqlite::Connection::open(&place.path).unwrap();
    connection
        .query_row("SELECT count(*) FROM aster_rows", [], |row| row.get(0))
        .unwrap()
}

/// Makes so many changes on `resource` that idle rows are looked at.
async fn make_changes(store: &SqliteSerializer, resource: &str) {
    for _ in 0..ENOUGH_CHANGES / 2 {
        let fence = acquire(store, resource, "worker-z").await;
        release(store, &fence).await.unwrap();
    }
}

fn open(place: &Place, time: &TestTime, idle_rows_max: usize) -> SqliteSerializer {
    let options = SqliteOptions {
        idle_rows_max,
        audit_records_max: 1_000,
        ..options_at(time)
    };
    SqliteSerializer::open_with(&place.path, options).unwrap()
}

#[tokio::test]
async fn a_row_free_for_an_hour_goes_away_and_its_name_starts_above_the_floor() {
    let place = Place::new();
    let time = TestTime::new("boot");
    let store = open(&place, &time, 100_000);
    for name in ["gone", "held", "with a register", "held off", "fresh"] {
        for _ in 0..5 {
            let fence = acquire(&store, name, "worker-a").await;
            if name == "with a register" {
                let any = ExpectedRevision::Any;
                store
                    .compare_and_set(&fence, "worker-a", any, b"v".to_vec())
                    .await
                    .unwrap();
            }
            release(&store, &fence).await.unwrap();
        }
    }
    let held = store
        .transition("held", acquire_op("worker-a", 86_400_000, grant_id(1)))
        .await;
    let held = granted(held);
    let off = acquire(&store, "held off", "worker-a").await;
    let two_hours = Some(Duration::from_secs(2 * 60 * 60));
    store
        .transition("held off", revoke_op(off.epoch, two_hours))
        .await
        .unwrap();
    time.advance_ms(59 * 60 * 1_000);
    let fresh = acquire(&store, "fresh", "worker-a").await;
    release(&store, &fresh).await.unwrap();
    time.advance_ms(60 * 1_000);
    make_changes(&store, "busy").await;

    let listed = store.list(ListQuery::default()).await.unwrap();
    let names: Vec<_> = listed.iter().map(|row| row.resource.as_str()).collect();
    assert_eq!(
        names,
        ["busy", "fresh", "held", "held off", "with a register"]
    );
    assert!(acquire(&store, "gone", "worker-a").await.epoch > 10);
    assert_eq!(
        acquire(&store, "with a register", "worker-a").await.epoch,
        11
    );
    assert_renewed(renew(&store, &held).await);
    let held_off = denied(try_acquire(&store, "held off", "worker-a").await).0;
    assert_eq!(held_off, DenyReason::HeldOff);
}

#[tokio::test]
async fn rows_of_another_boot_are_not_taken_for_old() {
    let place = Place::new();
    let time = TestTime::new("boot 1");
    {
        let store = open(&place, &time, 100_000);
        let fence = acquire(&store, "catalog", "worker-a").await;
        release(&store, &fence).await.unwrap();
    }
    let later = TestTime::new("boot 2");
    later.advance_ms(7 * 24 * 60 * 60 * 1_000);
    let store = open(&place, &later, 100_000);
    make_changes(&store, "busy").await;
    assert_eq!(rows(&place), 2, "an hour has not passed on this clock");
    later.advance_ms(60 * 60 * 1_000);
    make_changes(&store, "busy").await;
    assert_eq!(rows(&place), 1);
}

/// A million names, scaled down: the bound is a thousandth of the default.
#[tokio::test]
async fn many_distinct_names_stay_bounded_and_epochs_never_go_back() {
    let place = Place::new();
    let time = TestTime::new("boot");
    let bound = 100;
    let store = open(&place, &time, bound);
    let mut highest = HashMap::new();
    for number in 0..1_200_u32 {
        let name = format!("job/{}", number % 500);
        let fence = acquire(&store, &name, "worker-a").await;
        if let Some(before) = highest.insert(name.clone(), fence.epoch) {
            assert!(
                fence.epoch > before,
                "{name}: {} after {before}",
                fence.epoch
            );
        }
        release(&store, &fence).await.unwrap();
    }
    // Between two sweeps some more may gather.
    assert!(
        rows(&place) < i64::try_from(bound as u64 + ENOUGH_CHANGES).unwrap(),
        "{}",
        rows(&place)
    );
    let connection = rusqlite::Connection::open(&place.path).unwrap();
    let audit: i64 = connection
        .query_row("SELECT count(*) FROM aster_audit", [], |row| row.get(0))
        .unwrap();
    assert!(audit <= 1_000 + 256, "{audit}");
}

/// Sweeps run all the time while the same few names are acquired from many tasks and two openings of
/// the file. For each name the epochs of its grants only grow, and no two grants share one.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn dropping_idle_rows_races_with_acquires_of_the_same_names() {
    let place = Place::new();
    let time = TestTime::new("boot");
    let stores = [open(&place, &time, 0), open(&place, &time, 0)];
    let tasks: Vec<_> = (0..16_usize)
        .map(|number| {
            let store = stores[number % 2].clone();
            tokio::spawn(async move {
                let mut grants = Vec::new();
                for round in 0..150_usize {
                    let name = format!("job/{}", (round + number) % 7);
                    match try_acquire(&store, &name, &format!("worker-{number}")).await {
                        Ok(TransitionOutcome::Granted(fence)) => {
                            grants.push((name, fence.epoch));
                            release(&store, &fence).await.unwrap();
                        }
                        other => {
                            denied(other);
                        }
                    }
                }
                grants
            })
        })
        .collect();
    let mut epochs: HashMap<String, Vec<u64>> = HashMap::new();
    let mut grants = 0;
    for task in tasks {
        for (name, epoch) in task.await.unwrap() {
            grants += 1;
            epochs.entry(name).or_default().push(epoch);
        }
    }
    let connection = rusqlite::Connection::open(&place.path).unwrap();
    let floor: i64 = connection
        .query_row("SELECT floor FROM aster_store", [], |row| row.get(0))
        .unwrap();
    assert!(
        floor > 0,
        "no row was dropped in {grants} grants: the race was not run"
    );
    for (name, mut epochs) in epochs {
        let count = epochs.len();
        epochs.sort_unstable();
        epochs.dedup();
        assert_eq!(epochs.len(), count, "{name} was granted twice at one epoch");
    }
}

#[tokio::test]
async fn a_row_near_the_end_of_its_epochs_does_not_take_the_others_with_it() {
    let place = Place::new();
    let time = TestTime::new("boot");
    let store = open(&place, &time, 0);
    let fence = acquire(&store, "worn", "worker-a").await;
    release(&store, &fence).await.unwrap();
    let outside = rusqlite::Connection::open(&place.path).unwrap();
    let sql = "UPDATE aster_rows SET epoch = ?1 WHERE resource = 'worn'";
    outside.execute(sql, [i64::MAX - 2]).unwrap();
    time.advance_ms(2 * 60 * 60 * 1_000);
    make_changes(&store, "busy").await;
    let fresh = acquire(&store, "fresh", "worker-a").await;
    assert!(fresh.epoch < 10_000, "{}", fresh.epoch);
}

/// As the command line does: each process opens the store, makes two changes and ends.
#[tokio::test]
async fn openings_with_a_few_changes_each_drop_idle_rows_too() {
    let place = Place::new();
    let time = TestTime::new("boot");
    for number in 0..10 {
        let store = open(&place, &time, 100_000);
        let fence = acquire(&store, &format!("job/{number}"), "worker-a").await;
        release(&store, &fence).await.unwrap();
    }
    assert_eq!(rows(&place), 10);
    time.advance_ms(61 * 60 * 1_000);
    for _ in 0..ENOUGH_CHANGES / 2 {
        let store = open(&place, &time, 100_000);
        let fence = acquire(&store, "busy", "worker-z").await;
        release(&store, &fence).await.unwrap();
    }
    assert_eq!(rows(&place), 1);
    let store = open(&place, &time, 100_000);
    assert!(
        acquire(&store, "job/3", "worker-a").await.epoch > 2,
        "above the floor"
    );
}
