//! The side file may be lost at any moment: leases then last longer, and nothing else happens.

#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "a test that cannot go on fails, and it owns its threads"
)]

mod support;

use std::path::Path;
use std::time::{Duration, Instant};

use aster_core::{DenyReason, ErrorKind};
use aster_lease::LeaseSerializer;
use aster_sqlite::SqliteSerializer;
use support::*;

/// How long a test waits at most for a background repair.
const PATIENCE: Duration = Duration::from_secs(30);

fn remove_side(place: &Place) {
    for suffix in ["", "-wal", "-shm"] {
        let _ = std::fs::remove_file(format!("{}{suffix}", place.side().display()));
    }
}

/// Renews until it is acknowledged. Before that only errors that ask for another try are acceptable.
async fn renew_until_acknowledged(store: &SqliteSerializer, fence: &aster_core::Fence) {
    let begun = Instant::now();
    loop {
        match renew(store, fence).await {
            Err(error) if error.kind() == ErrorKind::Retry => {
                assert!(begun.elapsed() < PATIENCE, "{error}");
                tokio::task::yield_now().await;
            }
            other => return assert_renewed(other),
        }
    }
}

async fn assert_one_more_ttl(store: &SqliteSerializer, time: &TestTime) {
    time.advance_ms(TTL_MS - 1);
    let (reason, _) = denied(try_acquire(store, "catalog", "worker-b").await);
    assert_eq!(reason, DenyReason::HeldByOther);
    time.advance_ms(1);
    acquire(store, "catalog", "worker-b").await;
}

#[tokio::test]
async fn a_missing_side_file_costs_at_most_one_more_ttl() {
    let place = Place::new();
    let time = TestTime::new("boot");
    acquire(&place.open_at(&time), "catalog", "worker-a").await;
    // By the grant alone it is about to expire; renewals that were lost may have kept it alive.
    time.advance_ms(TTL_MS - 1);
    remove_side(&place);
    let store = place.open_at(&time);
    assert_one_more_ttl(&store, &time).await;
}

/// Whoever may write the main file may write the side file, also after it was made anew.
#[tokio::test]
async fn the_side_file_has_the_mode_of_the_main_file() {
    use std::os::unix::fs::PermissionsExt;
    let place = Place::new();
    let time = TestTime::new("boot");
    let file = std::fs::File::create(&place.path).unwrap();
    file.set_permissions(std::fs::Permissions::from_mode(0o660))
        .unwrap();
    drop(file);
    for _ in 0..2 {
        let store = place.open_at(&time);
        let fence = acquire(&store, "catalog", "worker-a").await;
        for suffix in ["-aster", "-aster-wal", "-wal"] {
            let mut name = place.path.clone().into_os_string();
            name.push(suffix);
            let mode = std::fs::metadata(&name).unwrap().permissions().mode();
            assert_eq!(mode & 0o777, 0o660, "{name:?}");
        }
        release(&store, &fence).await.unwrap();
        drop(store);
        remove_side(&place);
    }
}

#[tokio::test]
async fn a_damaged_side_file_is_replaced() {
    let place = Place::new();
    let time = TestTime::new("boot");
    let fence = acquire(&place.open_at(&time), "catalog", "worker-a").await;
    for garbage in [
        &b""[..],
        b"not a database at all, and long enough to be read as a header",
    ] {
        remove_side(&place);
        std::fs::write(place.side(), garbage).unwrap();
        let store = place.open_at(&time);
        assert_renewed(renew(&store, &fence).await);
    }
    let store = place.open_at(&time);
    assert_one_more_ttl(&store, &time).await;
}

#[tokio::test]
async fn a_side_file_with_missing_tables_is_replaced_while_open() {
    let place = Place::new();
    let time = TestTime::new("boot");
    let store = place.open_at(&time);
    let fence = acquire(&store, "catalog", "worker-a").await;
    assert_renewed(renew(&store, &fence).await);
    let outside = rusqlite::Connection::open(place.side()).unwrap();
    outside.execute_batch("DROP TABLE renewals").unwrap();
    drop(outside);
    renew_until_acknowledged(&store, &fence).await;
    assert_one_more_ttl(&store, &time).await;
}

#[tokio::test]
async fn the_side_file_of_another_store_is_not_believed() {
    let place = Place::new();
    let time = TestTime::new("boot");
    let fence = acquire(&place.open_at(&time), "catalog", "worker-a").await;
    let other = Place::new();
    {
        let store = other.open_at(&time);
        let theirs = acquire(&store, "catalog", "worker-a").await;
        assert_renewed(renew(&store, &theirs).await);
    }
    std::fs::rename(other.side(), place.side()).unwrap();
    let store = place.open_at(&time);
    assert_renewed(renew(&store, &fence).await);
    assert_one_more_ttl(&store, &time).await;
}

#[tokio::test]
async fn a_side_file_that_disappears_while_open_is_replaced_and_nobody_is_told_a_lie() {
    let place = Place::new();
    let time = TestTime::new("boot");
    let first = place.open_at(&time);
    let second = place.open_at(&time);
    let fence = acquire(&first, "catalog", "worker-a").await;
    assert_renewed(renew(&first, &fence).await);
    for _ in 0..3 {
        remove_side(&place);
        // A renewal into the lost file must not be acknowledged: others could not see it.
        let error = renew(&first, &fence).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Retry, "{error}");
        renew_until_acknowledged(&first, &fence).await;
        renew_until_acknowledged(&second, &fence).await;
    }
    // Both agree on one new side file: what one renews, the other sees.
    time.advance_ms(TTL_MS - 1);
    renew_until_acknowledged(&first, &fence).await;
    time.advance_ms(TTL_MS - 1);
    denied(try_acquire(&second, "catalog", "worker-b").await);
    time.advance_ms(1);
    acquire(&second, "catalog", "worker-b").await;
}

#[tokio::test]
async fn an_acquire_finds_the_side_file_lost_and_makes_a_new_one() {
    let place = Place::new();
    let time = TestTime::new("boot");
    let store = place.open_at(&time);
    let fence = acquire(&store, "catalog", "worker-a").await;
    time.advance_ms(TTL_MS);
    remove_side(&place);
    // Expired by the grant's instant, but renewals may have been lost with the side file.
    denied(try_acquire(&store, "catalog", "worker-b").await);
    assert_renewed(renew(&store, &fence).await);
    assert_one_more_ttl(&store, &time).await;
    assert!(place.side().exists());
}

#[tokio::test]
async fn revisions_never_go_back_when_the_side_file_is_lost() {
    let place = Place::new();
    let time = TestTime::new("boot");
    let store = place.open_at(&time);
    let fence = acquire(&store, "catalog", "worker-a").await;
    let mut last = 0;
    for round in 0..4 {
        for _ in 0..10 {
            renew_until_acknowledged(&store, &fence).await;
            let revision = store.snapshot("catalog").await.unwrap().revision;
            assert!(revision > last, "round {round}: {revision} after {last}");
            last = revision;
        }
        remove_side(&place);
    }
}

/// Renewals are not synced, so a power loss may take the newest ones along, with the revisions that they
/// made. Whoever has seen those must not see lower ones afterwards.
#[tokio::test]
async fn revisions_never_go_back_when_renewals_are_lost_at_a_reboot() {
    let place = Place::new();
    let store = place.open_at(&TestTime::new("boot-1"));
    let fence = acquire(&store, "catalog", "worker-a").await;
    for _ in 0..10 {
        assert_renewed(renew(&store, &fence).await);
    }
    let seen = store.snapshot("catalog").await.unwrap().revision;
    drop(store);
    let side = rusqlite::Connection::open(place.side()).unwrap();
    let lost = side.execute("DELETE FROM renewals", []).unwrap();
    assert_eq!(lost, 1);
    drop(side);
    let store = place.open_at(&TestTime::new("boot-2"));
    let revision = store.snapshot("catalog").await.unwrap().revision;
    assert!(revision > seen, "{revision} after {seen}");
    assert_renewed(renew(&store, &fence).await);
}

#[tokio::test]
async fn the_side_file_stays_small_and_beside_the_main_file() {
    let place = Place::new();
    let store = place.open();
    for number in 0..300 {
        let fence = acquire(&store, &format!("job/{number}"), "worker-a").await;
        assert_renewed(renew(&store, &fence).await);
        release(&store, &fence).await.unwrap();
    }
    let side = rusqlite::Connection::open(place.side()).unwrap();
    let count = |table: &str| -> i64 {
        side.query_row(&format!("SELECT count(*) FROM {table}"), [], |row| {
            row.get(0)
        })
        .unwrap()
    };
    // It forgets in a quiet moment. The bound is for a test that would fail.
    let mut turns = 0;
    while (count("renewals"), count("watches")) != (0, 0) {
        turns += 1;
        assert!(turns < 1_000, "{} renewals stay", count("renewals"));
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    assert!(Path::new(&place.side()).metadata().unwrap().len() < 256 * 1024);
}
