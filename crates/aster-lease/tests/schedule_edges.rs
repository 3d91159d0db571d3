//! Leases that join or leave a schedule at the wrong moment, and what others notice of it: nothing.

mod support;

use std::sync::Arc;
use std::time::Duration;

use aster_lease::{
    AcquireOutcome, EndedReason, LeaseHandle, LeaseOptions, LeaseStatus, RevokeOutcome, revoke,
};
use support::batching::{Bad, Batching};
use support::settle;
use tokio::time::sleep;

const TTL: Duration = Duration::from_secs(10);
const BATCH_MAX: usize = 512;

async fn acquire(network: &Arc<Batching>, resource: &str, ttl: Duration) -> LeaseHandle {
    let outcome = LeaseHandle::builder(network.clone(), resource, "a")
        .options(LeaseOptions::with_ttl(ttl))
        .clock(network.clock.clone())
        .acquire()
        .await;
    match outcome {
        Ok(AcquireOutcome::Granted(lease)) => lease,
        other => panic!("{resource}: {other:?}"),
    }
}

async fn hold(network: &Arc<Batching>, leases: usize) -> Vec<LeaseHandle> {
    let mut held = Vec::new();
    for number in 0..leases {
        held.push(acquire(network, &format!("resource/{number}"), TTL).await);
    }
    held
}

/// Until `leases` renewals are on their way.
async fn sent(network: &Arc<Batching>, leases: usize) {
    let mut sent = 0;
    while sent < leases {
        sleep(Duration::from_millis(10)).await;
        let calls = network.take_calls();
        sent += calls.iter().map(|call| call.resources.len()).sum::<usize>();
    }
}

/// The task sleeps because of a lease for a day; a short one that joins wakes it.
#[tokio::test(start_paused = true)]
async fn a_short_lease_that_joins_a_long_one_is_renewed_in_time() {
    for batch_max in [1, BATCH_MAX] {
        let network = Batching::new(batch_max);
        let _long = acquire(&network, "long", TTL * 8_640).await;
        for round in 0..10 {
            sleep(Duration::from_millis(1_037)).await;
            let short = acquire(&network, "short", Duration::from_millis(150)).await;
            sleep(Duration::from_secs(2)).await;
            assert_eq!(short.status(), LeaseStatus::Held, "round {round}");
            short.release().await.unwrap();
        }
    }
}

/// The last lease of a call leaves while that call is on its way and will never come back.
#[tokio::test(start_paused = true)]
async fn a_hung_renewal_is_dropped_with_its_lease() {
    for count in [1, 100] {
        let network = Batching::new(BATCH_MAX);
        let stays = acquire(&network, "stays", TTL * 1_000).await;
        let leases = hold(&network, count).await;
        let gate = network.close_gate();
        sent(&network, count).await;
        // Each call that is held up keeps the gate.
        assert!(Arc::strong_count(&gate) > 2, "a control");
        drop(leases);
        settle().await;
        assert_eq!(Arc::strong_count(&gate), 2, "ours and the network's");
        assert!(stays.fence().is_some());
    }
}

/// Its call is given up with it, and no other call is taken for it.
#[tokio::test(start_paused = true)]
async fn a_lease_that_leaves_while_its_renewal_hangs_ends_no_other() {
    let network = Batching::new(1);
    let mut leases = hold(&network, 20).await;
    let gate = network.close_gate();
    sent(&network, leases.len()).await;
    let leaving = leases.split_off(10);
    drop(leaving);
    settle().await;
    for lease in &leases {
        assert_eq!(lease.status(), LeaseStatus::Held);
    }
    network.open_gate();
    gate.add_permits(leases.len());
    sleep(TTL * 5).await;
    for lease in &leases {
        assert_eq!(lease.ended_reason(), None);
    }
}

/// A store that takes no batches has as many requests on their way as there are leases: any number of them
/// may hang, and the others are renewed.
#[tokio::test(start_paused = true)]
async fn a_thousand_requests_that_hang_delay_no_other() {
    let network = Batching::new(1);
    let leases = hold(&network, 1_050).await;
    let (hang, work) = leases.split_at(1_000);
    for lease in hang {
        network.spoil(lease.resource(), Bad::Hangs);
    }
    sleep(TTL * 3).await;
    for lease in work {
        assert_eq!(lease.status(), LeaseStatus::Held);
    }
    assert!(
        hang.iter().all(|lease| lease.fence().is_none()),
        "a control"
    );
}

/// A serializer that answers a batch with one answer too few: nobody knows whose it is, so no answer is
/// taken for anybody's, and each lease is asked for alone.
#[tokio::test(start_paused = true)]
async fn a_batch_with_too_few_answers_ends_those_that_have_ended_and_no_other() {
    let network = Batching::new(BATCH_MAX);
    let leases = hold(&network, 20).await;
    for lease in &leases {
        network.spoil(lease.resource(), Bad::Shortens);
    }
    for lease in leases.iter().step_by(2) {
        let revoked = revoke(&network.store, lease.resource(), "operator", None).await;
        assert!(matches!(revoked, Ok(RevokeOutcome::Revoked { .. })));
    }
    sleep(TTL).await;
    for (number, lease) in leases.iter().enumerate() {
        let ended = (number % 2 == 0).then_some(EndedReason::Revoked);
        assert_eq!(lease.ended_reason(), ended, "{number}");
    }
    let batches = network.take_calls();
    assert!(
        batches.iter().any(|call| call.resources.len() > 2),
        "a control: some travelled together"
    );
    sleep(TTL * 5).await;
    for lease in leases.iter().skip(1).step_by(2) {
        assert_eq!(lease.status(), LeaseStatus::Held);
    }
}
