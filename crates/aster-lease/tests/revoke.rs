//! Revoking over a network that misbehaves.

mod support;

use std::time::Duration;

use aster_lease::{Clock, ErrorKind, LeaseSerializer, RevokeOutcome, SystemClock, revoke};
use support::{Fault, Faulty, RESOURCE, granted};

/// An answer that will not change is not asked for again.
#[tokio::test(start_paused = true)]
async fn a_failure_that_does_not_pass_is_told_at_once() {
    for fault in [Fault::Closed, Fault::Storage] {
        let network = Faulty::new();
        let lease = granted(&network, "a").await;
        network.always(fault);
        let error = revoke(&*network, RESOURCE, "operator", Some(lease.epoch()))
            .await
            .unwrap_err();
        assert_ne!(error.kind(), ErrorKind::Retry, "{error}");
        assert_eq!(network.count("revoke"), 1);
    }
}

/// One that may pass is asked for again, less and less often, and not for ever.
#[tokio::test(start_paused = true)]
async fn a_failure_that_may_pass_is_waited_out_for_a_while() {
    let network = Faulty::new();
    let lease = granted(&network, "a").await;
    network.script([Fault::Busy, Fault::RequestLost, Fault::Busy]);
    let outcome = revoke(&*network, RESOURCE, "operator", Some(lease.epoch())).await;
    let ended = RevokeOutcome::Revoked {
        epoch: lease.epoch(),
        holder: None,
    };
    assert_eq!(outcome.unwrap(), ended);
    assert_eq!(network.count("revoke"), 4);
    assert!(!network.store.snapshot(RESOURCE).await.unwrap().held);

    network.always(Fault::Busy);
    let clock = SystemClock::new();
    let started = clock.now();
    let error = revoke(&*network, RESOURCE, "operator", Some(9))
        .await
        .unwrap_err();
    let took = clock.now().monotonic - started.monotonic;
    assert_eq!(error.kind(), ErrorKind::Retry, "{error}");
    assert_eq!(network.count("revoke"), 8);
    let (least, most) = (Duration::from_millis(700), Duration::from_millis(800));
    assert!(took >= least && took < most, "{took:?}");
}
