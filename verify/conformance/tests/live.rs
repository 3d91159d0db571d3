//! The suites at a store that holds other things already.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "test code outside a #[test] function"
)]

use std::sync::{Arc, Mutex};

use aster_conformance::{Live, Progress, Rule};
use aster_lease::{
    GrantId, LeaseOp, LeaseSerializer, LeaseSnapshot, ListQuery, MemorySerializer, Principal,
    SerializerError, SystemEntropy, TransitionOutcome, Ttl,
};
use async_trait::async_trait;

fn acquire(candidate: &str) -> LeaseOp {
    LeaseOp::Acquire {
        candidate: Principal::new(candidate).unwrap(),
        ttl: Ttl::from_millis(600_000).unwrap(),
        grant_id: GrantId::from_bytes([1; 16]),
    }
}

async fn rows(store: &MemorySerializer, held_only: bool) -> Vec<LeaseSnapshot> {
    let query = ListQuery {
        held_only,
        ..ListQuery::default()
    };
    let rows = store.list(query).await.unwrap().into_iter();
    rows.map(|row| LeaseSnapshot {
        remaining: None,
        ..row
    })
    .collect()
}

#[tokio::test]
async fn a_store_in_use_is_verified_and_left_as_it_was() {
    let store = MemorySerializer::new();
    for name in ["catalog/current", "batch/1", "aster-verify/mine"] {
        store.transition(name, acquire("worker-a")).await.unwrap();
    }
    let before = rows(&store, true).await;
    let shared = Arc::new(store.clone());
    let seen = Arc::new(Mutex::new(0));
    let live = Live::new(shared.clone(), Some(shared), &SystemEntropy)
        .unwrap()
        .on_progress({
            let seen = Arc::clone(&seen);
            move |progress| {
                if let Progress::Ended { .. } = progress {
                    *seen.lock().unwrap() += 1;
                }
            }
        });
    let reports = live.run().await;
    for report in &reports {
        report.assert_passed();
        println!("{report}");
    }
    let cases: usize = reports.iter().map(|report| report.cases().len()).sum();
    assert_eq!(*seen.lock().unwrap(), cases);
    assert_eq!(rows(&store, true).await, before);
    for row in rows(&store, false).await {
        let is_ours = before.iter().any(|held| held.resource == row.resource);
        assert!(
            is_ours || row.resource.starts_with(live.prefix()),
            "{row:?}"
        );
    }
    let passed = |name: &str| {
        let mut cases = reports.iter().flat_map(|report| report.cases());
        let case = cases.find(|case| case.name == name).unwrap();
        case.outcome == aster_conformance::Outcome::Passed
    };
    for name in [
        "a_list_is_in_byte_order_and_pages",
        "a_lease_is_taken_over_after_its_ttl_and_no_sooner",
        "an_expiry_hands_over",
        "a_claim_that_is_not_renewed_lapses",
        "a_delayed_write_after_a_takeover_is_rejected",
        "a_release_with_a_value_does_both",
    ] {
        assert!(passed(name), "{name} can be checked at a live store");
    }
}

/// Says that it released, and did not.
struct Lazy(MemorySerializer);

#[async_trait]
impl LeaseSerializer for Lazy {
    async fn transition(
        &self,
        resource: &str,
        op: LeaseOp,
    ) -> Result<TransitionOutcome, SerializerError> {
        match op {
            LeaseOp::Release { .. } => Ok(TransitionOutcome::Released),
            op => self.0.transition(resource, op).await,
        }
    }

    async fn snapshot(&self, resource: &str) -> Result<LeaseSnapshot, SerializerError> {
        self.0.snapshot(resource).await
    }
}

#[tokio::test]
async fn a_broken_store_in_use_is_caught() {
    let store = MemorySerializer::new();
    let live = Live::new(
        Arc::new(Lazy(store.clone())),
        Some(Arc::new(store)),
        &SystemEntropy,
    )
    .unwrap();
    let reports = live.run().await;
    for rule in [Rule::FreeIsGranted, Rule::StaleFenceIsRejected] {
        let mut failed = reports.iter().flat_map(|report| report.failed());
        assert!(failed.any(|case| case.rule == rule), "{reports:?}");
    }
}
