//! The holder's engine on this store, as an application uses both.

#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "a test that cannot go on fails, and it owns its threads"
)]

mod support;

use std::sync::Arc;
use std::time::Duration;

use aster_core::{DenyReason, FenceRejection};
use aster_lease::{
    AcquireOutcome, FencedError, LeaseHandle, LeaseOptions, LeaseSerializer, LeaseStatus, ListQuery,
};
use aster_sqlite::SqliteSerializer;
use support::process::{Other, role, store_path, tell};
use support::*;

async fn hold(store: &Arc<SqliteSerializer>, holder: &str, ttl: Duration) -> LeaseHandle {
    let options = LeaseOptions::with_ttl(ttl);
    match LeaseHandle::acquire(store.clone(), "catalog/current", holder, options)
        .await
        .unwrap()
    {
        AcquireOutcome::Granted(lease) => lease,
        AcquireOutcome::Denied(reason, snapshot) => panic!("{reason:?} {snapshot:?}"),
    }
}

/// The specification's "Check enforcement with a delayed write", on a durable store.
#[tokio::test]
async fn check_enforcement_with_a_delayed_write() {
    let place = Place::new();
    let store = Arc::new(place.open());
    let a = hold(&store, "worker-a", Duration::from_secs(30)).await;
    let saved = a.fence().unwrap();
    store
        .mutate_fenced(&saved, "worker-a", |tx| publish(tx, "catalog-v1"))
        .unwrap();
    a.release().await.unwrap();
    assert!(a.fence().is_none());

    let b = hold(&store, "worker-b", Duration::from_secs(30)).await;
    let mut ran = false;
    let late = store.mutate_fenced(&saved, "worker-a", |tx| {
        ran = true;
        publish(tx, "late")
    });
    let Err(FencedError::Rejected(rejection)) = late else {
        panic!("{late:?}")
    };
    assert!(matches!(rejection, FenceRejection::StaleEpoch { .. }) && !ran);
    let fence = b.fence().unwrap();
    store
        .mutate_fenced(&fence, "worker-b", |tx| publish(tx, "catalog-v2"))
        .unwrap();
    let wrong = store.mutate_fenced(&fence, "worker-a", |tx| publish(tx, "wrong"));
    assert!(
        matches!(wrong, Err(FencedError::Rejected(FenceRejection::NotHolder))),
        "{wrong:?}"
    );
    b.release().await.unwrap();
    assert_eq!(published(&place.path), ["catalog-v1", "catalog-v2"]);
}

#[tokio::test]
async fn a_handle_renews_in_the_background_and_others_are_denied_meanwhile() {
    let place = Place::new();
    let store = Arc::new(place.open());
    let ttl = Duration::from_secs(3);
    let lease = hold(&store, "worker-a", ttl).await;
    let first = store.snapshot("catalog/current").await.unwrap();
    let mut last = first.clone();
    // Not for a time but for three renewals, however long they take.
    while last.revision < first.revision + 3 {
        tokio::time::sleep(Duration::from_millis(20)).await;
        last = store.snapshot("catalog/current").await.unwrap();
        assert_eq!(last.epoch, lease.epoch());
        assert_eq!(lease.status(), LeaseStatus::Held);
    }
    let options = LeaseOptions::with_ttl(ttl);
    let other = LeaseHandle::acquire(store.clone(), "catalog/current", "worker-b", options).await;
    let AcquireOutcome::Denied(reason, _) = other.unwrap() else {
        panic!("granted twice")
    };
    assert_eq!(reason, DenyReason::HeldByOther);
    lease.release().await.unwrap();
}

#[tokio::test]
async fn a_revoked_handle_ends_and_its_fence_is_refused() {
    let place = Place::new();
    let store = Arc::new(place.open());
    let lease = hold(&store, "worker-a", Duration::from_secs(3)).await;
    let fence = lease.fence().unwrap();
    let lost = lease.lost();
    aster_lease::revoke(&*store, "catalog/current", "operator", None)
        .await
        .unwrap();
    let refused = store.mutate_fenced(&fence, "worker-a", |tx| publish(tx, "late"));
    assert!(
        matches!(refused, Err(FencedError::Rejected(_))),
        "{refused:?}"
    );
    lost.await;
    assert!(lease.fence().is_none());
    assert_eq!(lease.status(), LeaseStatus::Fenced);
}

const MANY: usize = 1_000;

/// What the other process does: it holds many leases, begins to release all of them, and ends.
#[test]
fn process_that_ends_in_the_middle() {
    if role().is_none() {
        return;
    }
    let store = Arc::new(SqliteSerializer::open(store_path()).unwrap());
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let leases = runtime.block_on(async {
        let mut leases = Vec::new();
        for number in 0..MANY {
            let options = LeaseOptions::with_ttl(Duration::from_secs(60));
            let resource = format!("job/{number}");
            let acquire = LeaseHandle::acquire(store.clone(), &resource, "worker-a", options);
            match acquire.await.unwrap() {
                AcquireOutcome::Granted(lease) => leases.push(lease),
                AcquireOutcome::Denied(reason, _) => panic!("{reason}"),
            }
        }
        leases
    });
    for lease in &leases {
        runtime.handle().spawn(lease.release());
    }
    // The runtime goes while they are on their way, then the handles and the store.
    drop(runtime);
    drop(leases);
    drop(store);
    tell("ended");
}

#[tokio::test]
async fn a_thousand_releases_at_the_end_of_a_process_neither_hang_nor_abort() {
    let place = Place::new();
    let mut other = Other::start("process_that_ends_in_the_middle", "ending", &place.path);
    other.expect("ended");
    other.finish();
    // Each is either free or runs out by its ttl; none is half done.
    let store = place.open();
    let rows = store.list(ListQuery::default()).await.unwrap();
    assert_eq!(rows.len(), MANY);
    for row in rows {
        let expected = if row.held { 1 } else { 2 };
        assert_eq!(row.epoch, expected, "{row:?}");
    }
}
