//! Acquire: retries, cancellation, what is left behind.

mod support;

use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use aster_lease::{
    AcquireOutcome, Clock, DenyReason, ErrorKind, LeaseError, LeaseHandle, LeaseOptions,
    LeaseSerializer, LeaseStatus, MemorySerializer, SerializerError, SystemClock,
    TransitionOutcome,
};
use support::{
    Fault, Faulty, RESOURCE, SuspendedClock, TTL, acquire_raw, granted, options, settle,
};

#[tokio::test(start_paused = true)]
async fn a_second_acquire_is_denied_even_to_the_same_holder() {
    let store = Arc::new(MemorySerializer::new());
    let _lease = granted(&store, "a").await;
    for holder in ["a", "b"] {
        let outcome = LeaseHandle::acquire(store.clone(), RESOURCE, holder, options()).await;
        let Ok(AcquireOutcome::Denied(reason, snapshot)) = outcome else {
            panic!("{outcome:?}")
        };
        assert_eq!(reason, DenyReason::HeldByOther);
        assert_eq!(snapshot.holder.as_deref(), Some("a"));
        assert!(snapshot.held);
    }
}

#[tokio::test(start_paused = true)]
async fn a_lost_reply_finds_its_own_grant_again() {
    let network = Faulty::new();
    network.script([Fault::ReplyLost, Fault::RequestLost, Fault::ReplyLost]);
    let lease = granted(&network, "a").await;
    assert_eq!(lease.epoch(), 1, "no second epoch was spent");
    assert_eq!(network.count("acquire"), 4);
    assert!(lease.fence().is_some());
    settle().await;
    assert_eq!(network.count("cancel"), 0);
}

#[tokio::test(start_paused = true)]
async fn a_busy_store_is_asked_again() {
    let network = Faulty::new();
    network.script([Fault::Busy, Fault::Busy]);
    assert_eq!(granted(&network, "a").await.epoch(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_store_that_fails_grants_nothing_and_says_so() {
    for (fault, kind) in [
        (Fault::Storage, ErrorKind::Report),
        (Fault::Closed, ErrorKind::Stop),
        (Fault::Busy, ErrorKind::Retry),
        (Fault::RequestLost, ErrorKind::Retry),
    ] {
        let network = Faulty::new();
        network.always(fault.clone());
        let error = LeaseHandle::acquire(network.clone(), RESOURCE, "a", options())
            .await
            .unwrap_err();
        assert_eq!(error.kind(), kind, "{fault:?}: {error}");
    }
}

/// However long the ttl, a busy store is asked again soon, and a silent one is given up in a minute.
#[tokio::test(start_paused = true)]
async fn a_long_ttl_makes_nobody_wait_for_hours() {
    let options = LeaseOptions::with_ttl(Duration::from_secs(24 * 60 * 60));
    let network = Faulty::new();
    network.script([Fault::Busy, Fault::ReplyLost]);
    let clock = SystemClock::new();
    let started = clock.now();
    let acquire = || LeaseHandle::acquire(network.clone(), RESOURCE, "a", options);
    let Ok(AcquireOutcome::Granted(lease)) = acquire().await else {
        panic!("not granted")
    };
    let took = clock.now().since(started);
    assert!(took < Duration::from_secs(15), "{took:?}");
    lease.release().await.unwrap();

    network.always(Fault::ReplyLost);
    let started = clock.now();
    assert_eq!(acquire().await.unwrap_err().kind(), ErrorKind::Retry);
    let took = clock.now().since(started);
    assert!(took < Duration::from_secs(80), "{took:?}");
    tokio::time::sleep(Duration::from_secs(60)).await;
    let row = network.store.snapshot(RESOURCE).await.unwrap();
    assert!(!row.held, "and what was granted is given back");
}

/// A silent server: the acquire ends, and a grant that was made is given back.
#[tokio::test(start_paused = true)]
async fn a_grant_whose_answer_never_came_is_given_back() {
    let network = Faulty::new();
    network.always(Fault::ReplyLost);
    let error = LeaseHandle::acquire(network.clone(), RESOURCE, "a", options())
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Retry);
    assert!(
        network.store.snapshot(RESOURCE).await.unwrap().held,
        "a control: it was granted"
    );
    tokio::time::sleep(TTL).await;
    assert!(
        !network.store.snapshot(RESOURCE).await.unwrap().held,
        "and cancelled"
    );
    assert_eq!(network.count("renew"), 0);
}

/// The grant was made and its answer lost; what the retry was told is not the whole story.
#[tokio::test(start_paused = true)]
async fn a_grant_is_given_back_when_its_retry_is_denied() {
    let network = Faulty::new();
    network.script([Fault::ReplyLost, Fault::Deny(DenyReason::Unauthorized)]);
    let outcome = LeaseHandle::acquire(network.clone(), RESOURCE, "a", options()).await;
    assert!(
        matches!(
            outcome,
            Ok(AcquireOutcome::Denied(DenyReason::Unauthorized, _))
        ),
        "{outcome:?}"
    );
    settle().await;
    let row = network.store.snapshot(RESOURCE).await.unwrap();
    assert_eq!((row.held, row.epoch), (false, 2), "granted and cancelled");
}

/// The machine slept while the answer was on its way: the grant may be somebody else's by now, so a
/// fresh answer is asked for.
#[tokio::test(start_paused = true)]
async fn a_grant_that_arrives_after_its_self_limit_is_not_handed_out() {
    let late = Duration::from_millis(500);
    let network = Faulty::new();
    network.script([Fault::ReplyLate(late)]);
    let clock = SuspendedClock::new();
    let acquire = LeaseHandle::builder(network.clone(), RESOURCE, "a")
        .options(options())
        .clock(clock.clone())
        .acquire();
    let sleep = async {
        tokio::time::sleep(late / 2).await;
        clock.suspend(TTL);
    };
    let (outcome, ()) = tokio::join!(acquire, sleep);
    match outcome {
        Ok(AcquireOutcome::Granted(lease)) => assert!(lease.fence().is_some(), "{lease:?}"),
        Ok(AcquireOutcome::Denied(reason, _)) => panic!("{reason}"),
        Err(error) => assert_eq!(error.kind(), ErrorKind::Retry, "{error}"),
    }
}

/// Dropping the future at every await point leaves nothing behind that outlives one ttl.
#[tokio::test(start_paused = true)]
async fn dropping_acquire_at_any_await_leaves_nothing_behind() {
    let mut dropped_while_granted = 0;
    for polls in 1..40 {
        let network = Faulty::with_yields(3);
        let finished = {
            let mut acquire = pin!(LeaseHandle::acquire(
                network.clone(),
                RESOURCE,
                "a",
                options()
            ));
            let mut context = Context::from_waker(Waker::noop());
            (0..polls).any(|_| matches!(acquire.as_mut().poll(&mut context), Poll::Ready(_)))
        };
        if network.store.snapshot(RESOURCE).await.unwrap().held {
            dropped_while_granted += usize::from(!finished);
        }
        // Nobody moves the clock: the cancel alone has to free it (a finished one was dropped as a
        // handle, whose lease ends by its ttl).
        settle().await;
        if finished {
            tokio::time::sleep(TTL).await;
        }
        let next = acquire_raw(&network.store, "b", 77).await;
        assert!(
            matches!(next, TransitionOutcome::Granted(_)),
            "after {polls} polls: {next:?}"
        );
        let renewals = network.count("renew");
        tokio::time::sleep(TTL * 2).await;
        assert_eq!(
            network.count("renew"),
            renewals,
            "after {polls} polls: no renewals go on"
        );
    }
    assert!(
        dropped_while_granted > 0,
        "some drops must have met a grant already made"
    );
}

/// Asked for, granted unheard, and dropped.
#[allow(clippy::unwrap_used, reason = "test code outside a #[test] function")]
async fn dropped_while_granted(network: &Arc<Faulty>, options: LeaseOptions) {
    network.script([Fault::ReplyLost]);
    let mut acquire = pin!(LeaseHandle::acquire(
        network.clone(),
        RESOURCE,
        "a",
        options
    ));
    let mut context = Context::from_waker(Waker::noop());
    assert!(acquire.as_mut().poll(&mut context).is_pending());
    let row = network.store.snapshot(RESOURCE).await;
    assert!(row.is_ok_and(|row| row.held), "a control: it was granted");
}

/// Giving a grant back is tried again where that can help, and only there.
#[tokio::test(start_paused = true)]
async fn a_grant_is_given_back_over_a_network_that_is_busy_for_a_moment() {
    let network = Faulty::new();
    dropped_while_granted(&network, options()).await;
    network.script([Fault::Busy, Fault::Busy]);
    tokio::time::sleep(TTL / 5).await;
    assert!(!network.store.snapshot(RESOURCE).await.unwrap().held);
    assert_eq!(network.count("cancel"), 3);

    let network = Faulty::new();
    dropped_while_granted(&network, options()).await;
    network.always(Fault::Closed);
    tokio::time::sleep(TTL).await;
    assert_eq!(network.count("cancel"), 1, "nobody is there any more");
}

/// Nothing of a call that was given up outlives one ttl, also where nobody answers.
#[tokio::test(start_paused = true)]
async fn giving_a_grant_back_ends_within_its_ttl() {
    let ttl = Duration::from_secs(2);
    let network = Faulty::new();
    dropped_while_granted(&network, LeaseOptions::with_ttl(ttl)).await;
    network.always(Fault::RequestLost);
    settle().await;
    assert!(Arc::strong_count(&network) > 1, "a control: it is tried");
    tokio::time::sleep(ttl * 2).await;
    assert_eq!(Arc::strong_count(&network), 1);
    assert!(network.count("cancel") > 1);
}

/// The cancel of an old wish never ends the lease of somebody who came later.
#[tokio::test(start_paused = true)]
async fn a_late_cancel_leaves_the_next_holder_alone() {
    let network = Faulty::new();
    network.script([Fault::ReplyLost]);
    {
        let mut acquire = pin!(LeaseHandle::acquire(
            network.clone(),
            RESOURCE,
            "a",
            options()
        ));
        let mut context = Context::from_waker(Waker::noop());
        assert!(acquire.as_mut().poll(&mut context).is_pending());
        network.script([Fault::Busy]); // the cancel's first attempt fails, so it comes late
    }
    let epoch = network.store.snapshot(RESOURCE).await.unwrap().epoch;
    aster_lease::revoke(&network.store, RESOURCE, "operator", Some(epoch))
        .await
        .unwrap();
    let next = granted(&Arc::new(network.store.clone()), "b").await;
    tokio::time::sleep(Duration::from_secs(10)).await;
    assert!(network.count("cancel") >= 1);
    assert_eq!(next.status(), LeaseStatus::Held);
    assert_eq!(
        network.store.snapshot(RESOURCE).await.unwrap().epoch,
        next.epoch()
    );
}

#[tokio::test]
async fn expiry_and_takeover_work_with_authorization_switched_on() {
    let store = MemorySerializer::new();
    store.set_authorizer(|op, _| op.actor() != "intruder" && op.name() != "revoke");
    assert!(matches!(
        acquire_raw(&store, "a", 1).await,
        TransitionOutcome::Granted(_)
    ));
    let denied = acquire_raw(&store, "intruder", 2).await;
    let TransitionOutcome::Denied(DenyReason::Unauthorized, snapshot) = denied else {
        panic!("{denied:?}")
    };
    assert_eq!(
        (snapshot.epoch, snapshot.holder, snapshot.held),
        (0, None, false),
        "withheld"
    );
    // A plain role that names the holder in its request still may not revoke.
    let error = aster_lease::revoke(&store, RESOURCE, "a", None)
        .await
        .unwrap_err();
    assert!(error.to_string().contains("not authorized"), "{error}");
    assert_eq!(
        store.snapshot(RESOURCE).await.unwrap().epoch,
        1,
        "no epoch was spent"
    );
}

#[tokio::test(start_paused = true)]
async fn what_a_busy_store_said_is_told_and_not_only_that_time_ran_out() {
    let network = Faulty::new();
    network.script([Fault::Busy]);
    network.always(Fault::RequestLost);
    let error = LeaseHandle::acquire(network.clone(), RESOURCE, "a", options())
        .await
        .unwrap_err();
    assert!(error.to_string().contains("busy"), "{error}");

    // A store that never said a word is told with the whole time that it was given.
    network.always(Fault::RequestLost);
    let error = LeaseHandle::acquire(network.clone(), RESOURCE, "a", options())
        .await
        .unwrap_err();
    let LeaseError::Serializer(SerializerError::Timeout { after }) = error else {
        panic!("{error}");
    };
    assert!(after >= LeaseOptions::default().ttl / 2, "{after:?}");
}
