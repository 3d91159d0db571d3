//! Several holders of one resource are kept out at once, each for its own time: over other grants,
//! reopening, reboots, other clocks and the sweep of idle rows.

#![allow(
    clippy::unwrap_used,
    reason = "a test that cannot go on fails, and it owns its threads"
)]

mod support;

use std::time::Duration;

use aster_core::HOLD_OFFS_MAX;
use aster_lease::LeaseSerializer;
use aster_sqlite::SqliteSerializer;
use support::*;

/// How many hold-offs the file keeps, over or not.
fn kept(place: &Place) -> i64 {
    count(place, "SELECT count(*) FROM aster_hold_offs")
}

fn count(place: &Place, sql: &str) -> i64 {
    let connection = rusqlite::Connection::open(&place.path).unwrap();
    connection.query_row(sql, [], |row| row.get(0)).unwrap()
}

/// What is watched of hold-offs, over or not.
fn watched(place: &Place) -> i64 {
    let connection = rusqlite::Connection::open(place.side()).unwrap();
    let sql = "SELECT count(*) FROM watches WHERE hold_off > 0";
    connection.query_row(sql, [], |row| row.get(0)).unwrap()
}

async fn assert_kept_out(store: &SqliteSerializer, holders: &[&str]) {
    for holder in holders {
        assert_held_off(try_acquire(store, "catalog", holder).await);
    }
}

async fn acquire_and_release(store: &SqliteSerializer, holder: &str) {
    let fence = acquire(store, "catalog", holder).await;
    release(store, &fence).await.unwrap();
}

#[tokio::test]
async fn each_keeps_its_own_time_over_other_grants_and_a_restart() {
    let place = Place::new();
    let time = TestTime::new("boot");
    let store = place.open_at(&time);
    hold_off(&store, "catalog", "worker-a", 60_000).await;
    time.advance_ms(10_000);
    hold_off(&store, "catalog", "worker-b", 20_000).await;
    assert_kept_out(&store, &["worker-a", "worker-b"]).await;
    drop(store);

    let store = place.open_at(&time);
    assert_kept_out(&store, &["worker-a", "worker-b"]).await;
    time.advance_ms(19_999);
    acquire_and_release(&store, "worker-c").await;
    assert_kept_out(&store, &["worker-a", "worker-b"]).await;
    time.advance_ms(1);
    // The second is over first; its record goes with the next change of the row.
    assert_eq!(kept(&place), 2);
    acquire_and_release(&store, "worker-b").await;
    assert_eq!(kept(&place), 1);
    time.advance_ms(29_999);
    assert_kept_out(&store, &["worker-a"]).await;
    time.advance_ms(1);
    acquire_and_release(&store, "worker-a").await;
    assert_eq!(kept(&place), 0);
}

#[tokio::test]
async fn a_revoke_without_one_leaves_them_running_and_a_renewal_too() {
    let place = Place::new();
    let time = TestTime::new("boot");
    let store = place.open_at(&time);
    hold_off(&store, "catalog", "worker-a", 60_000).await;
    hold_off(&store, "catalog", "worker-b", 60_000).await;
    let fence = acquire(&store, "catalog", "worker-c").await;
    assert_renewed(renew(&store, &fence).await);
    let revoke = revoke_op(fence.epoch, None);
    store.transition("catalog", revoke).await.unwrap();
    assert_kept_out(&store, &["worker-a", "worker-b"]).await;
    acquire_and_release(&store, "worker-c").await;
}

#[tokio::test]
async fn there_are_at_most_so_many_and_the_oldest_goes() {
    let place = Place::new();
    let store = place.open_at(&TestTime::new("boot"));
    for number in 0..=HOLD_OFFS_MAX {
        hold_off(&store, "catalog", &format!("worker-{number}"), 60_000).await;
    }
    assert_eq!(kept(&place), i64::try_from(HOLD_OFFS_MAX).unwrap());
    for number in 1..=HOLD_OFFS_MAX {
        assert_kept_out(&store, &[&format!("worker-{number}")]).await;
    }
    acquire(&store, "catalog", "worker-0").await;
}

#[tokio::test]
async fn a_reboot_starts_each_again_once() {
    let place = Place::new();
    {
        let time = TestTime::new("boot 1");
        let store = place.open_at(&time);
        hold_off(&store, "catalog", "worker-a", 60_000).await;
        hold_off(&store, "catalog", "worker-b", 20_000).await;
        time.advance_ms(15_000);
    }
    let rebooted = TestTime::new("boot 2");
    drop(place.open_at(&rebooted));
    assert_eq!(watched(&place), 2, "both from the first opening");
    // One that begins now is on our own clock and is not watched.
    hold_off(&place.open_at(&rebooted), "catalog", "worker-c", 70_000).await;
    rebooted.advance_ms(19_999);
    assert_kept_out(
        &place.open_at(&rebooted),
        &["worker-a", "worker-b", "worker-c"],
    )
    .await;
    rebooted.advance_ms(1);
    acquire_and_release(&place.open_at(&rebooted), "worker-b").await;
    assert_eq!((kept(&place), watched(&place)), (2, 1));
    rebooted.advance_ms(39_999);
    assert_kept_out(&place.open_at(&rebooted), &["worker-a", "worker-c"]).await;
    rebooted.advance_ms(1);
    acquire_and_release(&place.open_at(&rebooted), "worker-a").await;
    assert_kept_out(&place.open_at(&rebooted), &["worker-c"]).await;
    assert_eq!((kept(&place), watched(&place)), (1, 0));
}

/// A clock with a name and one without, each beside the clock that the hold-offs began on.
#[tokio::test]
async fn another_clock_watches_each_for_its_whole_time() {
    let a_day = Duration::from_secs(86_400);
    for name in [Some("boot/86400 0"), None] {
        let place = Place::new();
        let time = TestTime::new("boot/0 0");
        let here = place.open_at(&time);
        hold_off(&here, "catalog", "worker-a", 60_000).await;
        time.advance_ms(10_000);
        let there = place.open_at(&time.as_clock(name, a_day));
        hold_off(&there, "catalog", "worker-b", 60_000).await;
        // To each clock its own began when it did, and the other's when it was first seen.
        assert_kept_out(&here, &["worker-a", "worker-b"]).await;
        assert_kept_out(&there, &["worker-a", "worker-b"]).await;
        time.advance_ms(49_999);
        assert_kept_out(&here, &["worker-a", "worker-b"]).await;
        time.advance_ms(1);
        assert_kept_out(&there, &["worker-a", "worker-b"]).await;
        acquire_and_release(&here, "worker-a").await;
        assert_kept_out(&here, &["worker-b"]).await;
        time.advance_ms(10_000);
        acquire_and_release(&there, "worker-b").await;
        // What the side file need not remember any more goes a little later, at the latest now.
        drop((here, there));
        assert_eq!((kept(&place), watched(&place)), (0, 0));
    }
}

#[tokio::test]
async fn adopting_a_store_drops_them_all() {
    let place = Place::new();
    let time = TestTime::new("boot");
    let store = place.open_at(&time);
    hold_off(&store, "catalog", "worker-a", 60_000).await;
    hold_off(&store, "catalog", "worker-b", 60_000).await;
    drop(store);
    SqliteSerializer::adopt(&place.path, &principal("operator")).unwrap();
    assert_eq!(kept(&place), 0);
    let store = place.open_at(&time);
    acquire_and_release(&store, "worker-a").await;
    acquire_and_release(&store, "worker-b").await;
}

#[tokio::test]
async fn a_row_whose_hold_off_is_missing_is_damaged_and_not_free() {
    let place = Place::new();
    let store = place.open_at(&TestTime::new("boot"));
    hold_off(&store, "catalog", "worker-a", 60_000).await;
    hold_off(&store, "catalog", "worker-b", 60_000).await;
    let outside = rusqlite::Connection::open(&place.path).unwrap();
    outside
        .execute("DELETE FROM aster_hold_offs WHERE holder = 'worker-a'", [])
        .unwrap();
    let error = try_acquire(&store, "catalog", "worker-a")
        .await
        .unwrap_err();
    assert!(error.to_string().contains("hold-off"), "{error}");
}

/// Longer than a row stays without one.
const TWO_HOURS_MS: u64 = 2 * 60 * 60 * 1_000;

async fn make_changes(store: &SqliteSerializer) {
    for _ in 0..130 {
        let fence = acquire(store, "busy", "worker-a").await;
        release(store, &fence).await.unwrap();
    }
}

#[tokio::test]
async fn an_idle_row_stays_until_its_last_hold_off_is_over_and_goes_with_all_of_them() {
    let place = Place::new();
    let time = TestTime::new("boot");
    let store = place.open_at(&time);
    hold_off(&store, "catalog", "worker-a", 2 * TWO_HOURS_MS).await;
    hold_off(&store, "catalog", "worker-b", 1_000).await;
    time.advance_ms(TWO_HOURS_MS);
    make_changes(&store).await;
    assert_kept_out(&store, &["worker-a"]).await;
    time.advance_ms(TWO_HOURS_MS);
    make_changes(&store).await;
    assert_eq!(kept(&place), 0);
    let sql = "SELECT count(*) FROM aster_rows WHERE resource = 'catalog'";
    assert_eq!(count(&place, sql), 0);
    assert!(acquire(&store, "catalog", "worker-a").await.epoch > 4);
}

#[tokio::test]
async fn hold_offs_of_another_boot_do_not_keep_their_row_forever() {
    let place = Place::new();
    {
        let store = place.open_at(&TestTime::new("boot 1"));
        hold_off(&store, "catalog", "worker-a", TWO_HOURS_MS).await;
        hold_off(&store, "catalog", "worker-b", 1_000).await;
    }
    let rebooted = TestTime::new("boot 2");
    let store = place.open_at(&rebooted);
    rebooted.advance_ms(TWO_HOURS_MS - 1);
    make_changes(&store).await;
    assert_eq!(
        (kept(&place), watched(&place)),
        (1, 1),
        "the short one is over, the row stays"
    );
    assert_kept_out(&store, &["worker-a"]).await;
    rebooted.advance_ms(1);
    make_changes(&store).await;
    assert_eq!(kept(&place), 0);
    let sql = "SELECT count(*) FROM aster_rows WHERE resource = 'catalog'";
    rebooted.advance_ms(TWO_HOURS_MS);
    make_changes(&store).await;
    assert_eq!((count(&place, sql), watched(&place)), (0, 0));
}
