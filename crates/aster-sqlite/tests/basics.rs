//! The life of a lease in one process: grant, renewal, release, revoke, hold-off, retries.

#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "a test that cannot go on fails, and it owns its threads"
)]

mod support;

use std::time::Duration;

use aster_core::{DenyReason, ErrorKind, LeaseOp, TransitionOutcome};
use aster_lease::{AuditEvent, AuditLog, AuditQuery, LeaseSerializer, ListQuery};
use support::*;

#[tokio::test]
async fn a_lease_lives_through_grant_renewal_and_release() {
    let place = Place::new();
    let time = TestTime::new("boot");
    let store = place.open_at(&time);

    let fence = acquire(&store, "catalog", "worker-a").await;
    assert_eq!((fence.epoch, &*fence.holder), (1, "worker-a"));
    assert_eq!(fence.authority, store.store_authority());
    let (reason, snapshot) = denied(try_acquire(&store, "catalog", "worker-b").await);
    assert_eq!(reason, DenyReason::HeldByOther);
    assert_eq!(snapshot.remaining, Some(Duration::from_millis(TTL_MS)));

    time.advance_ms(TTL_MS - 1);
    assert_renewed(renew(&store, &fence).await);
    let snapshot = store.snapshot("catalog").await.unwrap();
    assert_eq!(snapshot.remaining, Some(Duration::from_millis(TTL_MS)));
    assert!(snapshot.held && snapshot.revision > 1);

    assert!(matches!(
        release(&store, &fence).await,
        Ok(TransitionOutcome::Released)
    ));
    let after = store.snapshot("catalog").await.unwrap();
    assert!(!after.held && after.epoch == 2 && after.revision > snapshot.revision);
    assert_eq!(acquire(&store, "catalog", "worker-b").await.epoch, 3);
}

#[tokio::test]
async fn expiry_is_exact_and_a_takeover_ends_the_old_lease() {
    let place = Place::new();
    let time = TestTime::new("boot");
    let store = place.open_at(&time);
    let old = acquire(&store, "catalog", "worker-a").await;
    time.advance_ms(3_000);
    assert_renewed(renew(&store, &old).await);
    time.advance_ms(TTL_MS - 1);
    denied(try_acquire(&store, "catalog", "worker-b").await);
    time.advance_ms(1);
    assert_eq!(denied(renew(&store, &old).await).0, DenyReason::Expired);
    let new = acquire(&store, "catalog", "worker-b").await;
    assert_eq!(new.epoch, old.epoch + 1);
    assert_eq!(
        denied(renew(&store, &old).await).0,
        DenyReason::EpochMismatch
    );
    assert_renewed(renew(&store, &new).await);
}

#[tokio::test]
async fn everything_acknowledged_is_there_after_reopening() {
    let place = Place::new();
    let time = TestTime::new("boot");
    let (held, freed, authority) = {
        let store = place.open_at(&time);
        let held = acquire(&store, "held", "worker-a").await;
        let freed = acquire(&store, "freed", "worker-a").await;
        release(&store, &freed).await.unwrap();
        time.advance_ms(4_000);
        assert_renewed(renew(&store, &held).await);
        (held, freed, store.store_authority())
    };
    let store = place.open_at(&time);
    assert_eq!(store.store_authority(), authority);
    let rows = store.list(ListQuery::default()).await.unwrap();
    let shown: Vec<_> = rows
        .iter()
        .map(|row| (&*row.resource, row.epoch, row.held))
        .collect();
    assert_eq!(
        shown,
        [
            ("freed", freed.epoch + 1, false),
            ("held", held.epoch, true)
        ]
    );
    // The renewal counts too, although it was never synced.
    time.advance_ms(TTL_MS - 1);
    denied(try_acquire(&store, "held", "worker-b").await);
    assert_renewed(renew(&store, &held).await);
}

#[tokio::test]
async fn a_retry_after_a_lost_reply_is_recognized() {
    let place = Place::new();
    let time = TestTime::new("boot");
    let store = place.open_at(&time);
    let id = grant_id(7);
    let wish = || acquire_op("worker-a", TTL_MS, id);
    let first = granted(store.transition("catalog", wish()).await);
    time.advance_ms(4_000);
    assert_eq!(granted(store.transition("catalog", wish()).await), first);
    // The retry has also renewed it.
    let remaining = store.snapshot("catalog").await.unwrap().remaining;
    assert_eq!(remaining, Some(Duration::from_millis(TTL_MS)));

    release(&store, &first).await.unwrap();
    let (reason, snapshot) = denied(release(&store, &first).await);
    assert!(aster_core::retry_outcome(
        &release_op("worker-a", 1),
        reason,
        &snapshot
    ));
    assert_eq!(
        denied(store.transition("catalog", wish()).await).0,
        DenyReason::NotHeld
    );

    // A late duplicate of a revoke or release never ends a newer lease of the same holder.
    let second = acquire(&store, "catalog", "worker-a").await;
    denied(release(&store, &first).await);
    denied(
        store
            .transition("catalog", revoke_op(first.epoch, None))
            .await,
    );
    assert_renewed(renew(&store, &second).await);
    assert!(matches!(
        store
            .transition("catalog", revoke_op(second.epoch, None))
            .await,
        Ok(TransitionOutcome::Revoked)
    ));
}

#[tokio::test]
async fn a_cancelled_wish_is_free_again() {
    let place = Place::new();
    let store = place.open();
    let id = grant_id(3);
    granted(
        store
            .transition("catalog", acquire_op("worker-a", TTL_MS, id))
            .await,
    );
    let cancel = LeaseOp::Cancel {
        candidate: principal("worker-a"),
        grant_id: id,
    };
    let outcome = store.transition("catalog", cancel).await;
    assert!(
        matches!(outcome, Ok(TransitionOutcome::Cancelled)),
        "{outcome:?}"
    );
    acquire(&store, "catalog", "worker-b").await;
}

#[tokio::test]
async fn a_hold_off_keeps_the_revoked_holder_out_for_its_time_and_over_a_restart() {
    let place = Place::new();
    let time = TestTime::new("boot");
    let fence = {
        let store = place.open_at(&time);
        let fence = acquire(&store, "catalog", "worker-a").await;
        let hold_off = Some(Duration::from_secs(60));
        store
            .transition("catalog", revoke_op(fence.epoch, hold_off))
            .await
            .unwrap();
        fence
    };
    let store = place.open_at(&time);
    assert_eq!(
        denied(try_acquire(&store, "catalog", "worker-a").await).0,
        DenyReason::HeldOff
    );
    // Others come and go meanwhile; the hold-off keeps its own instant.
    time.advance_ms(30_000);
    let other = acquire(&store, "catalog", "worker-b").await;
    release(&store, &other).await.unwrap();
    time.advance_ms(29_999);
    assert_eq!(
        denied(try_acquire(&store, "catalog", "worker-a").await).0,
        DenyReason::HeldOff
    );
    time.advance_ms(1);
    assert!(acquire(&store, "catalog", "worker-a").await.epoch > fence.epoch);
}

#[tokio::test]
async fn names_are_compared_byte_for_byte() {
    let place = Place::new();
    let store = place.open();
    let names = ["../a", "A", "a", "a%2Fb", "a/b", "a/b/", "ä", "a\u{308}"];
    for name in names {
        assert_eq!(acquire(&store, name, "worker-a").await.epoch, 1, "{name}");
    }
    let listed = store.list(ListQuery::default()).await.unwrap();
    let mut sorted = names;
    sorted.sort_unstable();
    let listed: Vec<_> = listed.iter().map(|row| row.resource.as_str()).collect();
    assert_eq!(listed, sorted);
}

#[tokio::test]
async fn lists_are_paged_and_filtered() {
    let place = Place::new();
    let store = place.open();
    for name in ["job/a", "job/b", "job/c", "joc", "other"] {
        let fence = acquire(&store, name, "worker-a").await;
        if name == "job/b" {
            release(&store, &fence).await.unwrap();
        }
    }
    let list = |query: ListQuery| {
        let store = store.clone();
        async move {
            let rows = store.list(query).await.unwrap();
            rows.into_iter()
                .map(|row| row.resource.to_string())
                .collect::<Vec<_>>()
        }
    };
    let prefix = || ListQuery {
        prefix: "job/".to_owned(),
        ..ListQuery::default()
    };
    assert_eq!(list(prefix()).await, ["job/a", "job/b", "job/c"]);
    let held = ListQuery {
        held_only: true,
        ..prefix()
    };
    assert_eq!(list(held).await, ["job/a", "job/c"]);
    let page = ListQuery {
        limit: 1,
        ..prefix()
    };
    assert_eq!(list(page).await, ["job/a"]);
    let after = ListQuery {
        after: Some("job/a".try_into().unwrap()),
        ..prefix()
    };
    assert_eq!(list(after).await, ["job/b", "job/c"]);
}

#[tokio::test]
async fn bad_input_is_refused_before_anything_changes() {
    let place = Place::new();
    let store = place.open();
    for name in [String::new(), "x".repeat(513), "a\u{7}b".to_owned()] {
        let error = try_acquire(&store, &name, "worker-a").await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::FixCall, "{error}");
    }
    let too_short = acquire_op("worker-a", 99, grant_id(1));
    let error = store.transition("catalog", too_short).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::FixCall, "{error}");
    assert!(store.list(ListQuery::default()).await.unwrap().is_empty());
}

#[tokio::test]
async fn the_audit_trail_tells_every_change_of_ownership() {
    let place = Place::new();
    let time = TestTime::new("boot");
    let store = place.open_at(&time);
    let first = acquire(&store, "catalog", "worker-a").await;
    time.advance_ms(TTL_MS);
    let second = acquire(&store, "catalog", "worker-b").await;
    release(&store, &second).await.unwrap();
    let third = acquire(&store, "catalog", "worker-c").await;
    store
        .transition("catalog", revoke_op(third.epoch, None))
        .await
        .unwrap();
    acquire(&store, "other", "worker-a").await;

    let query = AuditQuery {
        resource: Some("catalog".try_into().unwrap()),
        ..AuditQuery::default()
    };
    let records = store.audit(query).await.unwrap();
    let told: Vec<_> = records
        .iter()
        .map(|record| {
            let holder = record.holder.as_deref().unwrap();
            let actor = record.actor.as_deref().unwrap();
            (
                record.event,
                record.epoch_carried,
                record.epoch_current,
                holder,
                actor,
            )
        })
        .collect();
    assert_eq!(
        told,
        [
            (AuditEvent::Granted, None, 1, "worker-a", "worker-a"),
            (
                AuditEvent::TakenOver,
                Some(first.epoch),
                2,
                "worker-b",
                "worker-b"
            ),
            (
                AuditEvent::Released,
                Some(second.epoch),
                3,
                "worker-b",
                "worker-b"
            ),
            (AuditEvent::Granted, None, 4, "worker-c", "worker-c"),
            (
                AuditEvent::Revoked,
                Some(third.epoch),
                5,
                "worker-c",
                "operator"
            ),
        ]
    );
    let newest = AuditQuery {
        limit: 1,
        ..AuditQuery::default()
    };
    let newest = store.audit(newest).await.unwrap();
    assert_eq!(newest[0].resource.as_deref(), Some("other"));
}

#[tokio::test]
async fn the_wall_clock_decides_nothing() {
    let place = Place::new();
    let time = TestTime::new("boot");
    let store = place.open_at(&time);
    let fence = acquire(&store, "catalog", "worker-a").await;
    for wall_ms in [0, 1_700_003_600_000, 1_699_996_400_000, u64::MAX] {
        time.set_wall_ms(wall_ms);
        denied(try_acquire(&store, "catalog", "worker-b").await);
        assert_renewed(renew(&store, &fence).await);
    }
    time.set_wall_ms(0);
    time.advance_ms(TTL_MS);
    acquire(&store, "catalog", "worker-b").await;
}

#[tokio::test]
async fn the_last_epochs_give_an_explicit_error_and_a_held_row_can_still_be_released() {
    let place = Place::new();
    let store = place.open();
    let first = acquire(&store, "catalog", "worker-a").await;
    release(&store, &first).await.unwrap();
    let outside = rusqlite::Connection::open(&place.path).unwrap();
    let almost = i64::MAX - 3;
    outside
        .execute("UPDATE aster_rows SET epoch = ?1", [almost])
        .unwrap();
    let last = acquire(&store, "catalog", "worker-a").await;
    assert_eq!(last.epoch, almost.unsigned_abs() + 1);
    release(&store, &last).await.unwrap();
    let before = store.snapshot("catalog").await.unwrap();
    let error = try_acquire(&store, "catalog", "worker-a")
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Report, "{error}");
    assert!(error.to_string().contains("used up its epochs"), "{error}");
    assert_eq!(store.snapshot("catalog").await.unwrap(), before);
    // Other names are not touched by that.
    assert_eq!(acquire(&store, "other", "worker-a").await.epoch, 1);
}
