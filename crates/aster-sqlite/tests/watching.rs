//! Following who owns a resource.

#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "a test that cannot go on fails, and it owns its tasks"
)]

mod support;

use aster_lease::{ErrorKind, LeaseSerializer, LeaseWatch, SerializerError};
use support::*;

async fn next(watch: &mut LeaseWatch) -> (u64, Option<String>) {
    let shown = watch.next().await.unwrap();
    (
        shown.epoch,
        shown.holder.map(|holder| holder.as_str().to_owned()),
    )
}

#[tokio::test]
async fn a_watch_shows_every_owner_whichever_process_it_comes_from() {
    let place = Place::new();
    let store = place.open_at(&TestTime::new("boot"));
    let other = place.open_at(&TestTime::new("boot"));
    let mut watch = store.watch("catalog").await.unwrap();
    assert_eq!(next(&mut watch).await, (0, None));
    let a = || Some("worker-a".to_owned());
    for writer in [&store, &other] {
        let fence = acquire(writer, "catalog", "worker-a").await;
        assert_eq!(next(&mut watch).await, (fence.epoch, a()));
        // Renewals are not changes, and neither is what happens to others.
        assert_renewed(renew(writer, &fence).await);
        acquire(writer, &format!("other/{}", fence.epoch), "worker-b").await;
        release(writer, &fence).await.unwrap();
        assert_eq!(next(&mut watch).await, (fence.epoch + 1, None));
    }
}

/// Whoever was not looking sees the present owner, and the same holder under a new epoch as a change.
#[tokio::test]
async fn a_slow_watcher_sees_the_present_state_and_not_each_step() {
    let place = Place::new();
    let store = place.open_at(&TestTime::new("boot"));
    let other = place.open_at(&TestTime::new("boot"));
    let fence = acquire(&other, "catalog", "worker-a").await;
    let mut watch = store.watch("catalog").await.unwrap();
    assert_eq!(next(&mut watch).await.0, 1);
    release(&other, &fence).await.unwrap();
    acquire(&other, "catalog", "worker-a").await;
    let mut last = 1;
    while last < 3 {
        last = next(&mut watch).await.0;
    }
    assert_eq!(last, 3);
}

/// Old audit records go away while nobody looks; a watch does not depend on finding each of them.
#[tokio::test]
async fn a_watch_survives_a_short_audit_trail() {
    let place = Place::new();
    let options = aster_sqlite::SqliteOptions {
        audit_records_max: 0,
        ..aster_sqlite::SqliteOptions::default()
    };
    let store = aster_sqlite::SqliteSerializer::open_with(&place.path, options.clone()).unwrap();
    let other = aster_sqlite::SqliteSerializer::open_with(&place.path, options).unwrap();
    let mut watch = store.watch("catalog").await.unwrap();
    let mut epoch = 0;
    for _ in 0..200 {
        let fence = acquire(&other, "catalog", "worker-a").await;
        release(&other, &fence).await.unwrap();
        epoch = fence.epoch + 1;
    }
    while watch.next().await.unwrap().epoch < epoch {}
}

/// The newest record is the one at which old ones go away: it must not go with them before others have
/// seen it.
#[tokio::test]
async fn a_watch_sees_the_change_whose_record_is_the_last_before_the_trail_is_cut() {
    /// Every so many records the trail is cut.
    const CUT_EVERY: u64 = 256;
    let place = Place::new();
    let options = aster_sqlite::SqliteOptions {
        audit_records_max: 0,
        ..aster_sqlite::SqliteOptions::default()
    };
    let store = aster_sqlite::SqliteSerializer::open_with(&place.path, options.clone()).unwrap();
    let other = aster_sqlite::SqliteSerializer::open_with(&place.path, options).unwrap();
    let mut watch = store.watch("catalog").await.unwrap();
    let mut held = None;
    loop {
        let changed = match held.take() {
            Some(fence) => {
                release(&other, &fence).await.unwrap();
                fence.epoch + 1
            }
            None => {
                let fence = acquire(&other, "catalog", "worker-a").await;
                held.insert(fence).epoch
            }
        };
        if changed < CUT_EVERY - 10 {
            continue;
        }
        // Seen before the next one is made, so that nothing but that one can be seen next.
        let seen = async { while watch.next().await.unwrap().epoch < changed {} };
        let seen = tokio::time::timeout(LONG / 60, seen).await;
        assert!(seen.is_ok(), "epoch {changed} was never shown");
        if changed > CUT_EVERY + 2 {
            break;
        }
    }
    let query = aster_lease::AuditQuery::default();
    let records = aster_lease::AuditLog::audit(&other, query).await.unwrap();
    let is_cut = records.iter().all(|record| record.id >= CUT_EVERY);
    assert!(is_cut, "a control: the trail was cut on the way");
}

#[tokio::test]
async fn a_watch_ends_with_its_store() {
    let place = Place::new();
    let store = place.open_at(&TestTime::new("boot"));
    let mut watch = store.watch("catalog").await.unwrap();
    next(&mut watch).await;
    drop(store);
    assert_eq!(watch.next().await, None);
    assert!(watch.take_failure().is_none(), "it was closed, that is all");
}

/// A file that is gone does not change any more: the watch ends with the reason, as every call does.
#[tokio::test]
async fn a_watch_ends_when_the_file_is_replaced_or_removed_and_tells_so() {
    for remove in [true, false] {
        let place = Place::new();
        let store = place.open_at(&TestTime::new("boot"));
        let mut watch = store.watch("catalog").await.unwrap();
        next(&mut watch).await;
        assert!(watch.take_failure().is_none());
        std::fs::rename(&place.path, place.directory.path().join("aside.db")).unwrap();
        if !remove {
            let other = Place::new();
            drop(other.open());
            std::fs::copy(&other.path, &place.path).unwrap();
        }
        let ended = tokio::time::timeout(LONG, watch.next()).await.unwrap();
        assert_eq!(ended, None);
        let failure = watch.take_failure().unwrap();
        assert!(
            matches!(&failure, SerializerError::Refused { message }
                if message.contains("was replaced or removed while it was open")),
            "{failure}"
        );
        assert!(watch.take_failure().is_none(), "told once");
        let error = store.watch("catalog").await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Stop, "{error}");
    }
}
