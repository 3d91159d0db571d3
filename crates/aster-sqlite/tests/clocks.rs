//! Whose clock is it? Restarts, reboots, time namespaces, clocks without a name. All time is driven.

#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "a test that cannot go on fails, and it owns its threads"
)]

mod support;

use std::time::Duration;

use aster_core::{DenyReason, TransitionOutcome};
use aster_lease::LeaseSerializer;
use support::process::{Other, hear, is_permitted, prefixed, role, store_path, tell};
use support::*;

const A_DAY: Duration = Duration::from_secs(24 * 60 * 60);

#[tokio::test]
async fn opening_every_second_keeps_no_dead_lease_alive() {
    let place = Place::new();
    let time = TestTime::new("boot");
    acquire(&place.open_at(&time), "catalog", "worker-a").await;
    for _ in 0..TTL_MS / 1_000 {
        let store = place.open_at(&time);
        denied(try_acquire(&store, "catalog", "worker-b").await);
        drop(store);
        time.advance_ms(1_000);
    }
    // The deadline is the first one, to the millisecond.
    assert_eq!(
        acquire(&place.open_at(&time), "catalog", "worker-b")
            .await
            .epoch,
        2
    );
}

#[tokio::test]
async fn a_reboot_gives_every_held_lease_one_full_ttl_and_opening_often_adds_nothing() {
    let place = Place::new();
    let time = TestTime::new("boot 1");
    let fence = {
        let store = place.open_at(&time);
        let fence = acquire(&store, "catalog", "worker-a").await;
        assert_renewed(renew(&store, &fence).await);
        fence
    };
    // Down for a day; after that the clock starts near zero.
    let rebooted = TestTime::new("boot 2");
    for _ in 0..TTL_MS / 1_000 {
        let store = place.open_at(&rebooted);
        let (reason, _) = denied(try_acquire(&store, "catalog", "worker-b").await);
        assert_eq!(reason, DenyReason::HeldByOther);
        drop(store);
        rebooted.advance_ms(1_000);
    }
    let store = place.open_at(&rebooted);
    assert_eq!(
        acquire(&store, "catalog", "worker-b").await.epoch,
        fence.epoch + 1
    );
}

#[tokio::test]
async fn after_a_reboot_the_holder_may_renew_and_its_revisions_do_not_go_back() {
    let place = Place::new();
    let time = TestTime::new("boot 1");
    let store = place.open_at(&time);
    let fence = acquire(&store, "catalog", "worker-a").await;
    for _ in 0..20 {
        assert_renewed(renew(&store, &fence).await);
    }
    let before = store.snapshot("catalog").await.unwrap();
    drop(store);
    // The worst that a power loss can do to the side file: it is gone.
    for suffix in ["", "-wal", "-shm"] {
        let _ = std::fs::remove_file(format!("{}{suffix}", place.side().display()));
    }
    let rebooted = TestTime::new("boot 2");
    let store = place.open_at(&rebooted);
    rebooted.advance_ms(TTL_MS - 1);
    assert_renewed(renew(&store, &fence).await);
    let after = store.snapshot("catalog").await.unwrap();
    assert!(after.revision > before.revision, "{before:?} {after:?}");
    rebooted.advance_ms(TTL_MS - 1);
    denied(try_acquire(&store, "catalog", "worker-b").await);
    rebooted.advance_ms(1);
    acquire(&store, "catalog", "worker-b").await;
}

#[tokio::test]
async fn a_reboot_starts_a_hold_off_again() {
    let place = Place::new();
    let time = TestTime::new("boot 1");
    {
        let store = place.open_at(&time);
        let fence = acquire(&store, "catalog", "worker-a").await;
        let hold_off = Some(Duration::from_secs(60));
        store
            .transition("catalog", revoke_op(fence.epoch, hold_off))
            .await
            .unwrap();
    }
    let rebooted = TestTime::new("boot 2");
    let store = place.open_at(&rebooted);
    rebooted.advance_ms(59_999);
    let store = {
        drop(store);
        place.open_at(&rebooted)
    };
    assert_eq!(
        denied(try_acquire(&store, "catalog", "worker-a").await).0,
        DenyReason::HeldOff
    );
    rebooted.advance_ms(1);
    acquire(&store, "catalog", "worker-a").await;
}

/// Two clocks a day apart, both ways: neither takes the other's lease for expired, each takes it over
/// once it has watched it for a ttl.
#[tokio::test]
async fn another_time_namespace_makes_no_lease_look_expired() {
    for ahead in [Some("boot/86400 0"), None] {
        let place = Place::new();
        let time = TestTime::new("boot/0 0");
        let shifted = time.as_clock(ahead, A_DAY);
        let here = place.open_at(&time);
        let there = place.open_at(&shifted);

        let fence = acquire(&here, "held/here", "worker-a").await;
        let their_fence = acquire(&there, "held/there", "worker-b").await;
        denied(try_acquire(&there, "held/here", "worker-b").await);
        denied(try_acquire(&here, "held/there", "worker-a").await);
        for _ in 0..5 {
            time.advance_ms(TTL_MS / 2);
            assert_renewed(renew(&here, &fence).await);
            assert_renewed(renew(&there, &their_fence).await);
            denied(try_acquire(&there, "held/here", "worker-b").await);
            denied(try_acquire(&here, "held/there", "worker-a").await);
        }
        // The last renewal was seen just now, on each clock.
        time.advance_ms(TTL_MS - 1);
        denied(try_acquire(&there, "held/here", "worker-b").await);
        denied(try_acquire(&here, "held/there", "worker-a").await);
        time.advance_ms(1);
        acquire(&there, "held/here", "worker-b").await;
        acquire(&here, "held/there", "worker-a").await;
        assert_eq!(
            denied(renew(&here, &fence).await).0,
            DenyReason::EpochMismatch
        );
        assert_eq!(
            denied(renew(&there, &their_fence).await).0,
            DenyReason::EpochMismatch
        );
    }
}

#[tokio::test]
async fn a_lease_renewed_by_a_process_with_another_clock_stays_held() {
    let place = Place::new();
    let time = TestTime::new("boot/0 0");
    let here = place.open_at(&time);
    let there = place.open_at(&time.as_clock(Some("boot/-1000 0"), Duration::ZERO));
    let fence = acquire(&here, "catalog", "worker-a").await;
    for _ in 0..5 {
        time.advance_ms(TTL_MS / 2);
        assert_renewed(renew(&there, &fence).await);
        denied(try_acquire(&here, "catalog", "worker-b").await);
    }
}

#[tokio::test]
async fn somebody_who_joins_with_a_new_clock_does_not_undo_renewals() {
    for joining in [Some("boot/77 0"), Some("another boot/0 0"), None] {
        let place = Place::new();
        let time = TestTime::new("boot/0 0");
        let here = place.open_at(&time);
        let fence = acquire(&here, "catalog", "worker-a").await;
        time.advance_ms(TTL_MS - 1);
        assert_renewed(renew(&here, &fence).await);
        let there = place.open_at(&time.as_clock(joining, A_DAY));
        // By the grant alone it has expired; by the renewal it has almost a whole ttl left.
        time.advance_ms(TTL_MS - 1);
        for store in [&here, &there] {
            let (reason, _) = denied(try_acquire(store, "catalog", "worker-b").await);
            assert_eq!(reason, DenyReason::HeldByOther, "{joining:?}");
        }
        assert_renewed(renew(&here, &fence).await);
    }
}

/// A watcher has judged by its own clock and is about to commit. The holder's clock says that the
/// lease runs on; its renewal must not be acknowledged any more.
#[tokio::test]
async fn a_takeover_by_watching_that_failed_to_commit_still_ends_renewals() {
    let place = Place::new();
    let time = TestTime::new("boot/0 0");
    let here = place.open_at(&time);
    // On this clock everything takes longer, as if it had only just read the renewal.
    let fence = acquire(&here, "catalog", "worker-a").await;
    let fast = TestTime::new("boot/5 0");
    let there = place.open_at(&fast);
    fast.advance_ms(TTL_MS);
    // The commit of the takeover fails: the table that every commit writes is taken out of order.
    let outside = rusqlite::Connection::open(&place.path).unwrap();
    outside
        .execute_batch(
            "CREATE TRIGGER failing BEFORE UPDATE ON aster_store
             BEGIN SELECT RAISE(ABORT, 'no'); END;",
        )
        .unwrap();
    try_acquire(&there, "catalog", "worker-b")
        .await
        .unwrap_err();
    outside.execute_batch("DROP TRIGGER failing").unwrap();
    assert_eq!(
        here.snapshot("catalog").await.unwrap().epoch,
        fence.epoch,
        "no epoch was spent"
    );
    assert_eq!(denied(renew(&here, &fence).await).0, DenyReason::Expired);
    assert_eq!(
        acquire(&here, "catalog", "worker-c").await.epoch,
        fence.epoch + 1
    );
}

/// In a real time namespace, on the real clock.
#[test]
fn process_in_a_namespace() {
    if role().is_none() {
        return;
    }
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap();
    let store = aster_sqlite::SqliteSerializer::open(store_path()).unwrap();
    while hear().is_some() {
        let outcome = runtime.block_on(try_acquire(&store, "catalog", "worker-b"));
        tell(&match outcome {
            Ok(TransitionOutcome::Granted(fence)) => format!("granted {}", fence.epoch),
            Ok(TransitionOutcome::Denied(reason, _)) => format!("{reason:?}"),
            other => format!("{other:?}"),
        });
    }
}

#[tokio::test]
async fn a_real_time_namespace_a_million_seconds_ahead_sees_the_lease_held() {
    let unshare = ["unshare", "--time", "--fork", "--boottime", "1000000"];
    let place = Place::new();
    if !is_permitted(&unshare, &place.path) {
        return;
    }
    let store = place.open();
    let fence = acquire(&store, "catalog", "worker-a").await;
    let command = prefixed(&unshare, "process_in_a_namespace", "acquire", &place.path);
    let mut other = Other::spawn(command);
    assert_eq!(other.ask("acquire"), "HeldByOther");
    assert_renewed(renew(&store, &fence).await);
    release(&store, &fence).await.unwrap();
    assert_eq!(other.ask("acquire"), "granted 3");
    // And the other way round: their clock is far ahead of ours.
    denied(try_acquire(&store, "catalog", "worker-a").await);
    other.finish();
    // The control: without the namespace it is the same clock, and the deadline is exact.
    let mut same = Other::start("process_in_a_namespace", "acquire", &place.path);
    assert_eq!(same.ask("acquire"), "HeldByOther");
    same.finish();
}
