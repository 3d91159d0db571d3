//! A value that the store would never have written is damage: it is named so and never read as another
//! value, and it costs nobody but the one row that it stands in.

#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "a test that cannot go on fails, and it owns its tasks"
)]

mod support;

use std::path::Path;
use std::time::{Duration, Instant};

use aster_core::{ErrorKind, ResourceName};
use aster_lease::{LeaseSerializer, SerializerError};
use aster_sqlite::OpenError;
use support::*;

/// How long a test waits at most for a background repair.
const PATIENCE: Duration = Duration::from_secs(30);

fn change(path: &Path, sql: &str) {
    let changed = rusqlite::Connection::open(path).unwrap().execute(sql, []);
    assert_ne!(changed.unwrap(), 0, "{sql}");
}

fn stored(path: &Path, sql: &str) -> i64 {
    let connection = rusqlite::Connection::open(path).unwrap();
    connection.query_row(sql, [], |row| row.get(0)).unwrap()
}

/// A floor that reads as zero would let epochs be granted again.
#[tokio::test]
async fn a_negative_count_of_the_store_is_refused_at_open() {
    for column in ["floor", "sequence", "schema_version"] {
        let place = Place::new();
        drop(place.open());
        change(
            &place.path,
            &format!("UPDATE aster_store SET {column} = -1"),
        );
        let before = std::fs::read(&place.path).unwrap();
        let refused = aster_sqlite::SqliteSerializer::open(&place.path).unwrap_err();
        assert!(
            matches!(refused, OpenError::Damaged { .. }),
            "{column}: {refused}"
        );
        assert_eq!(refused.kind(), ErrorKind::Report);
        assert!(std::fs::read(&place.path).unwrap() == before, "{column}");
    }
}

/// An instant that reads as zero would end a lease early, a revision that does would go back.
#[tokio::test]
async fn a_negative_count_of_a_row_is_refused_and_the_others_are_served() {
    for column in ["epoch", "revision", "since_ns", "ttl_ms", "hold_offs"] {
        let place = Place::new();
        let time = TestTime::new("boot");
        let fence = acquire(&place.open_at(&time), "catalog", "worker-a").await;
        change(
            &place.path,
            &format!("UPDATE aster_rows SET {column} = -1 WHERE resource = 'catalog'"),
        );
        let store = place.open_at(&time);
        for outcome in [
            try_acquire(&store, "catalog", "worker-b").await,
            renew(&store, &fence).await,
            release(&store, &fence).await,
        ] {
            let error = outcome.expect_err(column);
            assert!(matches!(error, SerializerError::Storage { .. }), "{error}");
            assert!(error.to_string().contains("damaged"), "{column}: {error}");
        }
        acquire(&store, "another", "worker-b").await;
        drop(store);
        let after = stored(
            &place.path,
            &format!("SELECT {column} FROM aster_rows WHERE resource = 'catalog'"),
        );
        assert_eq!(after, -1, "{column} was left alone");
    }
}

#[tokio::test]
async fn a_damaged_row_does_not_cost_others_their_renewals() {
    let place = Place::new();
    let time = TestTime::new("boot");
    let store = place.open_at(&time);
    let sound = acquire(&store, "sound", "worker-a").await;
    let damaged = acquire(&store, "damaged", "worker-a").await;
    change(
        &place.path,
        "UPDATE aster_rows SET since_ns = -1 WHERE resource = 'damaged'",
    );
    let renewals = [&damaged, &sound].map(|fence| {
        let name: &ResourceName = &fence.resource;
        (name.clone(), renew_op(&fence.holder, fence.epoch))
    });
    let [of_damaged, of_sound]: [_; 2] = store
        .transition_many(renewals.into())
        .await
        .try_into()
        .unwrap();
    assert!(of_damaged.is_err(), "{of_damaged:?}");
    assert_renewed(of_sound);
}

/// The side file knows that a later epoch was granted: the row may not go on from an earlier one.
#[tokio::test]
async fn a_row_behind_its_own_renewal_is_refused() {
    let place = Place::new();
    let time = TestTime::new("boot");
    let store = place.open_at(&time);
    for _ in 0..3 {
        let fence = acquire(&store, "catalog", "worker-a").await;
        release(&store, &fence).await.unwrap();
    }
    let fence = acquire(&store, "catalog", "worker-a").await;
    assert_renewed(renew(&store, &fence).await);
    drop(store);
    change(&place.path, "UPDATE aster_rows SET epoch = 1");
    let store = place.open_at(&time);
    time.advance_ms(2 * TTL_MS);
    let taken = try_acquire(&store, "catalog", "worker-b").await;
    let refused = taken.expect_err("epoch 2 was granted before");
    assert!(
        matches!(refused, SerializerError::Refused { .. }),
        "{refused}"
    );
    assert_eq!(refused.kind(), ErrorKind::Stop);
    // Adopting it is the way out.
    drop(store);
    aster_sqlite::SqliteSerializer::adopt(&place.path, &principal("operator")).unwrap();
    acquire(&place.open_at(&time), "catalog", "worker-b").await;
}

/// What no check of SQLite looks at: by what it numbers the rows of a table.
#[tokio::test]
async fn a_side_file_that_cannot_take_a_clock_any_more_is_replaced() {
    let place = Place::new();
    let time = TestTime::new("boot/0 0");
    let fence = acquire(&place.open_at(&time), "catalog", "worker-a").await;
    let side = rusqlite::Connection::open(place.side()).unwrap();
    side.execute_batch(
        "PRAGMA writable_schema = ON;
         UPDATE sqlite_schema SET sql = 'CREATE TABLE sqlite_sequence(name)'
             WHERE name = 'sqlite_sequence';",
    )
    .unwrap();
    drop(side);
    let other = time.as_clock(Some("boot/1 0"), Duration::from_secs(1));
    let store = place.open_at(&other);
    assert_renewed(renew(&store, &fence).await);
    acquire(&store, "another", "worker-b").await;
}

#[tokio::test]
async fn a_damaged_value_in_the_side_file_is_replaced_with_it() {
    let place = Place::new();
    let time = TestTime::new("boot");
    let store = place.open_at(&time);
    let fence = acquire(&store, "catalog", "worker-a").await;
    assert_renewed(renew(&store, &fence).await);
    change(&place.side(), "UPDATE renewals SET since_ns = -1");
    // Never taken for one that expired long ago.
    let begun = Instant::now();
    loop {
        match renew(&store, &fence).await {
            Err(error) if error.kind() == ErrorKind::Retry => {
                assert!(begun.elapsed() < PATIENCE, "{error}");
                tokio::task::yield_now().await;
            }
            other => break assert_renewed(other),
        }
    }
    time.advance_ms(TTL_MS - 1);
    denied(try_acquire(&store, "catalog", "worker-b").await);
}
