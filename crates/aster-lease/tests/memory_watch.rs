//! Watches of the memory store.

#![allow(clippy::expect_used, reason = "helpers of tests may panic")]

mod support;

use std::task::Poll;
use std::time::Duration;

use aster_lease::{
    GrantId, LeaseOp, LeaseSerializer, LeaseWatch, MemorySerializer, TransitionOutcome, Ttl,
    WaitRequest, revoke,
};
use support::{RESOURCE, TTL, acquire_raw, principal, settle};
use tokio::runtime::Handle;

async fn owner(watch: &mut LeaseWatch) -> (u64, Option<String>) {
    let snapshot = watch.next().await.expect("the store is open");
    (
        snapshot.epoch,
        snapshot.holder.map(|holder| holder.to_string()),
    )
}

async fn has_news(watch: &mut LeaseWatch) -> bool {
    let mut next = std::pin::pin!(watch.next());
    std::future::poll_fn(|context| Poll::Ready(next.as_mut().poll(context).is_ready())).await
}

#[tokio::test(start_paused = true)]
async fn a_watch_shows_the_present_and_then_each_change_of_owner() {
    let store = MemorySerializer::new();
    let mut watch = store.watch(RESOURCE).await.expect("watched");
    assert_eq!(
        owner(&mut watch).await,
        (0, None),
        "a resource that never was"
    );
    acquire_raw(&store, "a", 1).await;
    assert_eq!(owner(&mut watch).await, (1, Some("a".to_owned())));
    // A renewal and a denial are no change.
    let renew = LeaseOp::Renew {
        holder: principal("a"),
        epoch: 1,
    };
    store.transition(RESOURCE, renew).await.expect("renewed");
    acquire_raw(&store, "b", 2).await;
    acquire_raw(&store, "a", 1).await;
    assert!(!has_news(&mut watch).await);
    revoke(&store, RESOURCE, "operator", None)
        .await
        .expect("revoked");
    assert_eq!(owner(&mut watch).await, (2, None));
    acquire_raw(&store, "a", 3).await;
    assert_eq!(
        owner(&mut watch).await,
        (3, Some("a".to_owned())),
        "the same holder, a new epoch"
    );
}

/// Who did not listen sees the present, not each step on the way; and a hand-over is seen.
#[tokio::test(start_paused = true)]
async fn a_slow_watcher_sees_the_present_owner() {
    let store = MemorySerializer::new();
    let mut watch = store.watch(RESOURCE).await.expect("watched");
    acquire_raw(&store, "a", 1).await;
    assert_eq!(owner(&mut watch).await, (1, Some("a".to_owned())));
    let request = WaitRequest {
        candidate: principal("b"),
        ttl: Ttl::new(TTL).expect("whole milliseconds"),
        grant_id: GrantId::from_bytes([7; 16]),
        wait: Duration::from_secs(60),
    };
    let waiting = {
        let store = store.clone();
        Handle::current().spawn(async move { store.acquire_wait(RESOURCE, request).await })
    };
    settle().await;
    revoke(&store, RESOURCE, "operator", None)
        .await
        .expect("revoked");
    assert_eq!(owner(&mut watch).await, (3, Some("b".to_owned())));
    assert!(waiting.await.expect("no panic").is_ok());
    // An expiry that nobody used is no change: b is still the owner.
    tokio::time::sleep(TTL).await;
    assert!(!has_news(&mut watch).await);
    let taken = acquire_raw(&store, "c", 3).await;
    assert!(matches!(taken, TransitionOutcome::Granted(_)));
    assert_eq!(owner(&mut watch).await, (4, Some("c".to_owned())));
}

#[tokio::test]
async fn watchers_are_independent_and_the_end_of_the_store_ends_them() {
    let store = MemorySerializer::new();
    let mut one = store.watch(RESOURCE).await.expect("watched");
    let mut other = store.watch("another").await.expect("watched");
    let two = store.watch(RESOURCE).await.expect("watched");
    assert_eq!(owner(&mut one).await, (0, None));
    assert_eq!(owner(&mut other).await, (0, None));
    drop(two);
    acquire_raw(&store, "a", 1).await;
    assert_eq!(owner(&mut one).await, (1, Some("a".to_owned())));
    assert!(!has_news(&mut other).await);
    drop(store);
    assert!(one.next().await.is_none());
}
