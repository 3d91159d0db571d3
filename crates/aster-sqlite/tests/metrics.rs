//! What is counted of the SQLite store: answers, register writes, rejections of closures and registers.

#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "a test that cannot go on fails, and it owns its threads"
)]

mod support;

use std::time::Duration;

use aster_lease::metrics::prometheus_client::encoding::text::encode;
use aster_lease::metrics::prometheus_client::registry::Registry;
use aster_lease::{
    ExpectedRevision, Fence, FencedError, LeaseOp, LeaseSerializer, Metrics, Registers, Ttl,
    WaitOutcome, WaitRequest, WriteId,
};
use aster_sqlite::{SqliteOptions, SqliteSerializer};
use support::{
    Place, TTL_MS, TestTime, acquire, acquire_op, fresh_grant_id, grant_id, options_at, principal,
    release,
};

/// The value of a series, 0 when it is not there.
fn value(registry: &Registry, series: &str) -> f64 {
    let mut text = String::new();
    encode(&mut text, registry).unwrap();
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
    line.map_or(0.0, |value| value.parse().unwrap())
}

fn answered(registry: &Registry, op: &str, outcome: &str, reason: &str) -> f64 {
    let labels = format!("op=\"{op}\",outcome=\"{outcome}\",reason=\"{reason}\"");
    value(registry, &format!("aster_transitions_total{{{labels}}}"))
}

fn rejected(registry: &Registry, reason: &str) -> f64 {
    let series = format!("aster_rejections_total{{reason=\"{reason}\"}}");
    value(registry, &series)
}

fn renew(fence: &Fence) -> LeaseOp {
    LeaseOp::Renew {
        holder: fence.holder.clone(),
        epoch: fence.epoch,
    }
}

#[tokio::test]
async fn answers_writes_and_rejections_are_counted() {
    let place = Place::new();
    let time = TestTime::new("boot");
    let mut registry = Registry::default();
    let options = SqliteOptions {
        metrics: Metrics::register(&mut registry),
        ..options_at(&time)
    };
    let store = SqliteSerializer::open_with(&place.path, options).unwrap();
    assert!(store.metrics().is_enabled());

    let old = acquire(&store, "catalog", "worker-a").await;
    let denied = acquire_op("worker-b", 30_000, grant_id(9));
    store.transition("catalog", denied).await.unwrap();
    store.transition("catalog", renew(&old)).await.unwrap();
    let many = vec![
        (old.resource.clone(), renew(&old)),
        (old.resource.clone(), renew(&old)),
    ];
    store.transition_many(many).await;
    release(&store, &old).await.unwrap();
    assert_eq!(answered(&registry, "acquire", "ok", ""), 1.0);
    assert_eq!(
        answered(&registry, "acquire", "denied", "held_by_other"),
        1.0
    );
    assert_eq!(answered(&registry, "renew", "ok", ""), 3.0);
    assert_eq!(answered(&registry, "release", "ok", ""), 1.0);
    let timed = "aster_transition_seconds_count{op=\"renew\"}";
    assert_eq!(value(&registry, timed), 3.0);

    let new = acquire(&store, "catalog", "worker-b").await;
    let any = ExpectedRevision::Any;
    let write = |fence: &Fence, writer: &'static str| {
        let (store, fence) = (store.clone(), fence.clone());
        async move {
            store
                .compare_and_set(&fence, writer, any, b"v".to_vec())
                .await
        }
    };
    write(&new, "worker-b").await.unwrap();
    write(&old, "worker-a").await.unwrap_err();
    write(&new, "worker-a").await.unwrap_err();
    let forged = Fence {
        epoch: u64::MAX,
        ..new.clone()
    };
    let closure = |fence: &Fence| store.mutate_fenced(fence, "worker-a", |_| Ok::<_, ()>(()));
    assert!(matches!(closure(&old), Err(FencedError::Rejected(_))));
    assert!(matches!(closure(&forged), Err(FencedError::Rejected(_))));
    let write_id = WriteId::from_bytes([1; 16]);
    store
        .release_with_value(&new, "worker-b", any, b"last".to_vec(), write_id)
        .await
        .unwrap();
    assert_eq!(answered(&registry, "register_write", "ok", ""), 1.0);
    assert_eq!(
        answered(&registry, "register_write", "denied", "rejected"),
        2.0
    );
    assert_eq!(answered(&registry, "release_with_value", "ok", ""), 1.0);
    assert_eq!(rejected(&registry, "stale_epoch"), 2.0);
    assert_eq!(rejected(&registry, "not_holder"), 1.0);
    assert_eq!(rejected(&registry, "future_epoch"), 1.0);
    assert_eq!(value(&registry, "aster_future_epochs_total"), 1.0);
}

/// A caller that waits in a task of its own, and stands in the queue when this returns.
async fn waiter(store: &SqliteSerializer, holder: &str, position: usize) -> Waiting {
    let request = WaitRequest {
        candidate: principal(holder),
        ttl: Ttl::from_millis(TTL_MS).unwrap(),
        grant_id: fresh_grant_id(),
        wait: Duration::from_secs(60),
    };
    let waiting = tokio::spawn({
        let store = store.clone();
        async move { store.acquire_wait("catalog", request).await.unwrap() }
    });
    while store.queue("catalog").await.unwrap().len() < position {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    waiting
}

type Waiting = tokio::task::JoinHandle<WaitOutcome>;

#[tokio::test(flavor = "multi_thread")]
async fn the_queue_its_hand_overs_and_its_lapsed_claims_are_counted() {
    let place = Place::new();
    let mut registry = Registry::default();
    let options = SqliteOptions {
        metrics: Metrics::register(&mut registry),
        claim_time: Duration::from_millis(200),
        ..SqliteOptions::default()
    };
    let store = SqliteSerializer::open_with(&place.path, options).unwrap();
    let first = acquire(&store, "catalog", "worker-a").await;
    let second = waiter(&store, "worker-b", 1).await;
    let third = waiter(&store, "worker-c", 2).await;
    assert_eq!(value(&registry, "aster_waiters"), 2.0);

    release(&store, &first).await.unwrap();
    assert!(matches!(
        second.await.unwrap(),
        WaitOutcome::Granted { claim: Some(_), .. }
    ));
    let hand_overs = |cause: &str| {
        let series = format!("aster_hand_overs_total{{cause=\"{cause}\"}}");
        value(&registry, &series)
    };
    assert_eq!(hand_overs("freed"), 1.0);
    // The second does not claim.
    assert!(matches!(
        third.await.unwrap(),
        WaitOutcome::Granted { claim: Some(_), .. }
    ));
    assert_eq!((hand_overs("freed"), hand_overs("expired")), (1.0, 1.0));
    assert_eq!(value(&registry, "aster_claims_lapsed_total"), 1.0);
    assert_eq!(value(&registry, "aster_waiters"), 0.0);
    assert_eq!(answered(&registry, "acquire_wait", "ok", ""), 2.0);
    assert_eq!(value(&registry, "aster_wait_seconds_count"), 2.0);
}
