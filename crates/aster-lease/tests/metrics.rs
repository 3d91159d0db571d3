//! What is counted: each metric moves when its event happens, by as much as happened, and no label
//! is ever the name of a resource or a person.

#![allow(clippy::unwrap_used, reason = "helpers of tests may panic")]

mod support;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use aster_lease::metrics::prometheus_client::encoding::text::encode;
use aster_lease::metrics::prometheus_client::registry::Registry;
use aster_lease::{
    AcquireOutcome, DenyReason, ExpectedRevision, Fence, GrantId, LeaseHandle, LeaseOp,
    LeaseSerializer, MemoryOptions, MemorySerializer, Metrics, Registers, TransitionOutcome, Ttl,
    WaitOutcome, WaitRequest, WriteId, revoke,
};
use support::{Fault, Faulty, RESOURCE, TTL, options, principal, settle};
use tokio::runtime::Handle;

/// A store that counts in a registry of its own.
struct Counted {
    registry: Registry,
    metrics: Metrics,
    store: Arc<MemorySerializer>,
}

impl Counted {
    fn new() -> Self {
        let mut registry = Registry::default();
        let metrics = Metrics::register(&mut registry);
        let store = MemorySerializer::with_options(MemoryOptions {
            metrics: metrics.clone(),
            ..MemoryOptions::default()
        });
        Self {
            registry,
            metrics,
            store: Arc::new(store.unwrap()),
        }
    }

    fn text(&self) -> String {
        let mut text = String::new();
        encode(&mut text, &self.registry).unwrap();
        text
    }

    /// The value of a series, 0 when it is not there.
    fn value(&self, series: &str) -> f64 {
        let text = self.text();
        let line = text
            .lines()
            .find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
        line.map_or(0.0, |value| value.parse().unwrap())
    }

    /// How often `op` was answered so.
    fn answered(&self, op: &str, outcome: &str, reason: &str) -> f64 {
        let labels = format!("op=\"{op}\",outcome=\"{outcome}\",reason=\"{reason}\"");
        self.value(&format!("aster_transitions_total{{{labels}}}"))
    }

    fn labelled(&self, name: &str, label: &str, value: &str) -> f64 {
        self.value(&format!("{name}{{{label}=\"{value}\"}}"))
    }

    async fn ask(&self, op: LeaseOp) -> TransitionOutcome {
        self.store.transition(RESOURCE, op).await.unwrap()
    }

    async fn grant(&self, holder: &str, grant: u8) -> Fence {
        match self.ask(acquire(holder, grant)).await {
            TransitionOutcome::Granted(fence) => fence,
            other => panic!("{other:?}"),
        }
    }

    /// A caller that waits in a task of its own, and stands in the queue when this returns.
    async fn waiter(&self, holder: &str, grant: u8) -> Waiting {
        let request = wish(holder, grant);
        let store = self.store.clone();
        let waiting = Handle::current()
            .spawn(async move { store.acquire_wait(RESOURCE, request).await.unwrap() });
        settle().await;
        waiting
    }
}

type Waiting = tokio::task::JoinHandle<WaitOutcome>;

fn id(grant: u8) -> GrantId {
    GrantId::from_bytes([grant; 16])
}

fn acquire(holder: &str, grant: u8) -> LeaseOp {
    LeaseOp::Acquire {
        candidate: principal(holder),
        ttl: Ttl::new(TTL).unwrap(),
        grant_id: id(grant),
    }
}

fn wish(holder: &str, grant: u8) -> WaitRequest {
    WaitRequest {
        candidate: principal(holder),
        ttl: Ttl::new(TTL).unwrap(),
        grant_id: id(grant),
        wait: Duration::from_secs(3_600),
    }
}

fn renew(fence: &Fence) -> LeaseOp {
    LeaseOp::Renew {
        holder: fence.holder.clone(),
        epoch: fence.epoch,
    }
}

fn release(fence: &Fence) -> LeaseOp {
    LeaseOp::Release {
        holder: fence.holder.clone(),
        epoch: fence.epoch,
    }
}

#[tokio::test(start_paused = true)]
async fn every_answer_is_counted_by_operation_outcome_and_reason() {
    let counted = Counted::new();
    let fence = counted.grant("a", 1).await;
    counted.ask(acquire("b", 2)).await;
    counted.ask(renew(&fence)).await;
    counted.ask(renew(&fence)).await;
    counted.ask(release(&fence)).await;
    counted.ask(release(&fence)).await;
    counted.grant("a", 3).await;
    revoke(&*counted.store, RESOURCE, "operator", None)
        .await
        .unwrap();
    counted.grant("a", 4).await;
    let cancel = LeaseOp::Cancel {
        candidate: principal("a"),
        grant_id: id(4),
    };
    counted.ask(cancel).await;
    let endless = LeaseOp::Acquire {
        candidate: principal("a"),
        ttl: Ttl::new(Duration::from_secs(1 << 20)).unwrap(),
        grant_id: id(5),
    };
    counted
        .store
        .transition(RESOURCE, endless)
        .await
        .unwrap_err();
    counted.store.set_authorizer(|_, _| false);
    counted.ask(renew(&fence)).await;

    for (op, outcome, reason, times) in [
        ("acquire", "ok", "", 3.0),
        ("acquire", "denied", "held_by_other", 1.0),
        ("acquire", "error", "fix_call", 1.0),
        ("renew", "ok", "", 2.0),
        ("renew", "denied", "unauthorized", 1.0),
        ("release", "ok", "", 1.0),
        ("release", "denied", "epoch_mismatch", 1.0),
        ("revoke", "ok", "", 1.0),
        ("cancel", "ok", "", 1.0),
    ] {
        let counted = counted.answered(op, outcome, reason);
        assert!(counted == times, "{op} {outcome} {reason}: {counted}");
    }
    let timed = |op| counted.labelled("aster_transition_seconds_count", "op", op);
    assert_eq!((timed("acquire"), timed("renew")), (5.0, 3.0));
}

#[tokio::test]
async fn every_rejection_is_counted_by_its_reason_also_that_of_a_closure() {
    let counted = Counted::new();
    let old = counted.grant("a", 1).await;
    counted.ask(release(&old)).await;
    let store = &counted.store;
    let not_held = Fence {
        epoch: old.epoch + 1,
        ..old.clone()
    };
    store.mutate_fenced(&not_held, "a", || ()).unwrap_err();
    let new = counted.grant("a", 2).await;
    for _ in 0..3 {
        store.mutate_fenced(&old, "a", || ()).unwrap_err();
    }
    store.mutate_fenced(&new, "b", || ()).unwrap_err();
    let forged = Fence {
        epoch: u64::MAX,
        ..new.clone()
    };
    store.mutate_fenced(&forged, "a", || ()).unwrap_err();
    store
        .mutate_fenced(&new, "a", || store.mutate_fenced(&new, "a", || ()))
        .unwrap()
        .unwrap_err();
    let elsewhere = Fence {
        authority: MemorySerializer::new().authority().await.unwrap(),
        ..new.clone()
    };
    let any = ExpectedRevision::Any;
    store
        .compare_and_set(&elsewhere, "a", any, Vec::new())
        .await
        .unwrap_err();
    store
        .compare_and_set(&old, "a", any, Vec::new())
        .await
        .unwrap_err();

    for (reason, times) in [
        ("stale_epoch", 4.0),
        ("not_held", 1.0),
        ("not_holder", 1.0),
        ("future_epoch", 1.0),
        ("reentrant", 1.0),
        ("wrong_authority", 1.0),
        ("wrong_resource", 0.0),
    ] {
        let counted = counted.labelled("aster_rejections_total", "reason", reason);
        assert!(counted == times, "{reason}: {counted}");
    }
    assert_eq!(counted.value("aster_future_epochs_total"), 1.0);
}

#[tokio::test]
async fn register_writes_are_counted_by_what_became_of_them() {
    let counted = Counted::new();
    let fence = counted.grant("a", 1).await;
    let store = &counted.store;
    let value = || b"v".to_vec();
    let write = |expected| store.compare_and_set(&fence, "a", expected, value());
    write(ExpectedRevision::Absent).await.unwrap();
    write(ExpectedRevision::Absent).await.unwrap_err();
    let write_id = WriteId::from_bytes([1; 16]);
    store
        .release_with_value(&fence, "a", ExpectedRevision::Any, value(), write_id)
        .await
        .unwrap();
    write(ExpectedRevision::Any).await.unwrap_err();

    assert_eq!(counted.answered("register_write", "ok", ""), 1.0);
    assert_eq!(
        counted.answered("register_write", "denied", "conflict"),
        1.0
    );
    assert_eq!(
        counted.answered("register_write", "denied", "rejected"),
        1.0
    );
    assert_eq!(counted.answered("release_with_value", "ok", ""), 1.0);
    assert_eq!(
        counted.labelled("aster_rejections_total", "reason", "stale_epoch"),
        1.0
    );
}

#[tokio::test(start_paused = true)]
async fn who_waits_who_is_handed_over_to_and_who_does_not_claim_is_counted() {
    let counted = Counted::new();
    let first = counted.grant("a", 1).await;
    let second = counted.waiter("b", 2).await;
    let third = counted.waiter("c", 3).await;
    let impatient = counted.waiter("d", 4).await;
    assert_eq!(counted.value("aster_waiters"), 3.0);
    impatient.abort();
    settle().await;
    assert_eq!(counted.value("aster_waiters"), 2.0);

    counted.ask(release(&first)).await;
    second.await.unwrap();
    let hand_overs = |cause| counted.labelled("aster_hand_overs_total", "cause", cause);
    assert_eq!((hand_overs("freed"), hand_overs("expired")), (1.0, 0.0));
    assert_eq!(counted.value("aster_claims_lapsed_total"), 0.0);

    // The second one does not claim: the third is granted once its time has passed.
    let WaitOutcome::Granted { fence, .. } = third.await.unwrap() else {
        panic!("the third was not granted");
    };
    assert_eq!((hand_overs("freed"), hand_overs("expired")), (1.0, 1.0));
    assert_eq!(counted.value("aster_claims_lapsed_total"), 1.0);
    assert_eq!(counted.value("aster_waiters"), 0.0);

    // The third claims, and then lets its whole ttl pass: that is no lapsed claim.
    assert_eq!(counted.ask(renew(&fence)).await, TransitionOutcome::Renewed);
    tokio::time::sleep(TTL).await;
    counted.grant("e", 5).await;
    assert_eq!(counted.value("aster_claims_lapsed_total"), 1.0);

    let mut impatient = wish("f", 6);
    impatient.wait = Duration::ZERO;
    let ran_out = counted.store.acquire_wait(RESOURCE, impatient).await;
    assert!(matches!(
        ran_out,
        Ok(WaitOutcome::Denied(DenyReason::WaitRanOut, _))
    ));
    assert_eq!(counted.answered("acquire_wait", "ok", ""), 2.0);
    assert_eq!(
        counted.answered("acquire_wait", "denied", "wait_ran_out"),
        1.0
    );
    assert_eq!(counted.value("aster_wait_seconds_count"), 3.0);
}

/// Real time, because that is what an operator waits for.
#[tokio::test]
async fn how_long_answers_took_is_measured() {
    let counted = Counted::new();
    counted.grant("a", 1).await;
    let wait = Duration::from_millis(20);
    let waited = counted.store.acquire_wait(
        RESOURCE,
        WaitRequest {
            wait,
            ..wish("b", 2)
        },
    );
    assert!(matches!(waited.await, Ok(WaitOutcome::Denied(..))));
    assert!(counted.value("aster_wait_seconds_sum") >= wait.as_secs_f64());
    let took = "aster_transition_seconds_sum{op=\"acquire\"}";
    assert!(counted.value(took) > 0.0, "{}", counted.text());
}

#[tokio::test(start_paused = true)]
async fn leases_are_counted_while_they_are_held_and_by_why_they_ended() {
    let counted = Counted::new();
    let ended = |reason| counted.labelled("aster_leases_ended_total", "reason", reason);
    let hold = async |resource: &str| {
        let serializer = counted.store.clone();
        match LeaseHandle::acquire(serializer, resource, "a", options()).await {
            Ok(AcquireOutcome::Granted(lease)) => lease,
            other => panic!("{other:?}"),
        }
    };
    let (released, dropped, revoked) = (hold("x").await, hold("y").await, hold("z").await);
    assert_eq!(counted.value("aster_leases_held"), 3.0);
    released.release().await.unwrap();
    drop(released);
    drop(dropped);
    revoke(&*counted.store, "z", "operator", None)
        .await
        .unwrap();
    revoked.lost().await;
    assert_eq!(counted.value("aster_leases_held"), 0.0);
    assert_eq!(
        (ended("released"), ended("dropped"), ended("revoked")),
        (1.0, 1.0, 1.0)
    );
}

#[tokio::test(start_paused = true)]
async fn renewals_are_counted_by_result() {
    let counted = Counted::new();
    let faulty = Faulty::new();
    let acquired = LeaseHandle::builder(faulty.clone(), RESOURCE, "a")
        .options(options())
        .metrics(counted.metrics.clone())
        .acquire()
        .await;
    let Ok(AcquireOutcome::Granted(lease)) = acquired else {
        panic!("{acquired:?}");
    };
    let results = |result| counted.labelled("aster_renewals_total", "result", result);
    faulty.script([Fault::Busy, Fault::Busy, Fault::None]);
    tokio::time::sleep(TTL / 2).await;
    assert_eq!((results("retried"), results("ok")), (2.0, 1.0));
    revoke(&faulty.store, RESOURCE, "operator", None)
        .await
        .unwrap();
    lease.lost().await;
    assert_eq!(results("denied"), 1.0);
    assert_eq!(counted.value("aster_renewal_batch_size_count"), 4.0);
}

#[tokio::test(start_paused = true)]
async fn renewals_that_travel_together_are_counted_as_a_batch() {
    let counted = Counted::new();
    let mut leases = Vec::new();
    for number in 0..200 {
        let resource = format!("resource-{number}");
        let acquired = LeaseHandle::acquire(counted.store.clone(), &resource, "a", options()).await;
        leases.push(acquired.unwrap());
    }
    tokio::time::sleep(TTL / 2).await;
    let batches = counted.value("aster_renewal_batch_size_count");
    let renewals = counted.value("aster_renewal_batch_size_sum");
    assert!(renewals >= 200.0, "{renewals} renewals");
    assert!(batches <= renewals / 4.0, "{batches} batches");
    assert_eq!(counted.answered("renew", "ok", ""), renewals);
}

#[tokio::test]
async fn a_thousand_resources_holders_and_writers_add_no_series_and_no_name_is_a_label() {
    let counted = Counted::new();
    let series = |text: &str| {
        let lines = text.lines().filter(|line| !line.starts_with('#'));
        lines.count()
    };
    let mut before = 0;
    for number in 0..1_000 {
        let name = format!("somename-{number}");
        let acquire = LeaseOp::Acquire {
            candidate: principal(&name),
            ttl: Ttl::new(TTL).unwrap(),
            grant_id: id(1),
        };
        let granted = counted.store.transition(&name, acquire).await.unwrap();
        let TransitionOutcome::Granted(fence) = granted else {
            panic!("{granted:?}");
        };
        counted
            .store
            .mutate_fenced(&fence, &format!("{name}-other"), || ())
            .unwrap_err();
        counted
            .store
            .transition(&name, release(&fence))
            .await
            .unwrap();
        if number == 0 {
            before = series(&counted.text());
        }
    }
    let text = counted.text();
    assert_eq!(series(&text), before);
    assert!(!text.contains("somename"), "{text}");
}

#[test]
fn the_page_describes_every_metric_and_no_other() {
    let mut registry = Registry::default();
    let metrics = Metrics::register(&mut registry);
    // The only ones that are not there before something happens.
    metrics.transition("renew", &Ok(TransitionOutcome::Renewed), metrics.timer());
    let mut text = String::new();
    encode(&mut text, &registry).unwrap();
    let encoded: BTreeMap<String, String> = text
        .lines()
        .filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' '))
        .map(|(name, kind)| (name.to_owned(), kind.to_owned()))
        .collect();
    let page = include_str!("../../../docs/metrics.md");
    let described: BTreeMap<String, String> = page
        .lines()
        .filter_map(|line| {
            let (name, rest) = line.strip_prefix("| `")?.split_once("` | ")?;
            Some((name.to_owned(), rest.split_once(" |")?.0.to_owned()))
        })
        .collect();
    assert_eq!(described, encoded);
    assert_eq!(encoded.len(), 12);
}

#[tokio::test]
async fn without_a_registry_nothing_is_counted() {
    let metrics = Metrics::default();
    assert!(!metrics.is_enabled());
    metrics.claim_lapsed();
    drop(metrics.waiter());
    assert!(!MemorySerializer::new().metrics().is_enabled());
}
