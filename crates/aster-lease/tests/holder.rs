//! The holder: renewal, self-limit, loss.

mod support;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use aster_lease::{
    AcquireOutcome, Clock, DenyReason, EndedReason, ErrorKind, ExpectedRevision, LeaseEnded,
    LeaseHandle, LeaseOptions, LeaseSerializer, LeaseStatus, MemorySerializer, Registers,
    ReleaseOutcome, SystemClock, TransitionOutcome, revoke,
};
use support::{
    Fault, Faulty, RESOURCE, SuspendedClock, TTL, acquire_raw, granted, options, principal, settle,
};

#[tokio::test(start_paused = true)]
async fn a_held_lease_outlives_many_ttls_under_one_epoch() {
    let store = Arc::new(MemorySerializer::new());
    let lease = granted(&store, "a").await;
    for _ in 0..20 {
        tokio::time::sleep(TTL / 2).await;
        assert_eq!(lease.fence().expect("still held").epoch, 1);
    }
    assert_eq!(lease.status(), LeaseStatus::Held);
    assert_eq!(lease.ended_reason(), None);
}

/// A network that swallows packets without closing, in either direction.
#[tokio::test(start_paused = true)]
async fn a_silent_network_ends_the_fence_within_one_ttl_of_the_last_renewal() {
    for fault in [Fault::RequestLost, Fault::ReplyLost] {
        let network = Faulty::new();
        let lease = granted(&network, "a").await;
        let lost = lease.lost();
        network.always(fault.clone());
        let usable = lease.remaining().expect("held");
        assert!(usable <= options().ttl - options().holder_margin);
        tokio::time::sleep(usable - Duration::from_millis(100)).await;
        assert!(
            lease.fence().is_some(),
            "{fault:?}: the holder may rely on it until its limit"
        );
        tokio::time::sleep(Duration::from_millis(100)).await;
        assert!(lease.fence().is_none(), "{fault:?}");
        assert_eq!(lease.status(), LeaseStatus::Lost, "{fault:?}");
        assert_eq!(lost.await, EndedReason::Unreachable, "{fault:?}");
    }
}

/// The fence must be gone before the serializer can give the lease to anybody else.
#[tokio::test(start_paused = true)]
async fn the_holder_stops_before_anyone_else_can_be_granted() {
    let network = Faulty::new();
    let lease = granted(&network, "a").await;
    network.always(Fault::RequestLost);
    for step in 0_u8..200 {
        tokio::time::sleep(TTL / 100).await;
        let fence_before = lease.fence();
        match acquire_raw(&network.store, "b", step + 1).await {
            TransitionOutcome::Granted(fence) => {
                assert_eq!(fence.epoch, 2);
                assert!(fence_before.is_none(), "two usable fences at once");
                return;
            }
            TransitionOutcome::Denied(DenyReason::HeldByOther, _) => {}
            other => panic!("{other:?}"),
        }
    }
    panic!("the lease of a holder that is cut off is never given away");
}

/// The serializer counts from when it carried a request out, so the holder counts from when it sent
/// it: an answer that takes its time must not lengthen the lease.
#[tokio::test(start_paused = true)]
async fn a_late_answer_does_not_lengthen_the_lease() {
    // Longer than the margin, shorter than an attempt may take.
    let late = Duration::from_secs(4);
    let usable = options().ttl - options().holder_margin;
    let network = Faulty::new();
    network.script([Fault::ReplyLate(late)]);
    let lease = granted(&network, "a").await;
    assert!(lease.remaining().expect("held") <= usable - late);

    network.script([Fault::ReplyLate(late)]);
    while network.count("renew") == 0 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    tokio::time::sleep(late).await;
    assert!(lease.remaining().expect("renewed") <= usable - late);
    network.always(Fault::RequestLost);
    for grant in 1..=u8::MAX {
        tokio::time::sleep(TTL / 100).await;
        let fence_before = lease.fence();
        if let TransitionOutcome::Granted(_) = acquire_raw(&network.store, "b", grant).await {
            assert!(fence_before.is_none(), "two usable fences at once");
            return;
        }
    }
    panic!("the lease of a holder that is cut off is never given away");
}

#[tokio::test(start_paused = true)]
async fn an_outage_of_less_than_the_self_limit_costs_nothing() {
    let network = Faulty::new();
    let lease = granted(&network, "a").await;
    network.always(Fault::RequestLost);
    tokio::time::sleep(TTL.mul_f64(0.4)).await;
    network.always(Fault::None);
    tokio::time::sleep(TTL * 3).await;
    assert_eq!(lease.fence().expect("no loss").epoch, 1);
}

#[tokio::test(start_paused = true)]
async fn one_lost_reply_to_a_renewal_costs_nothing() {
    let network = Faulty::new();
    let lease = granted(&network, "a").await;
    network.script([Fault::ReplyLost]);
    tokio::time::sleep(TTL * 3).await;
    assert_eq!(lease.fence().expect("no loss").epoch, 1);
    assert!(network.count("renew") >= 8, "renewals go on");
}

/// The suspension is seen by the clock at the next look, without any task having run.
#[tokio::test(start_paused = true)]
async fn a_suspended_machine_finds_its_fence_gone_at_once() {
    let store = Arc::new(MemorySerializer::new());
    let clock = SuspendedClock::new();
    let outcome = LeaseHandle::builder(store.clone(), RESOURCE, "a")
        .options(options())
        .clock(clock.clone())
        .acquire()
        .await;
    let Ok(AcquireOutcome::Granted(lease)) = outcome else {
        panic!("{outcome:?}")
    };
    let mut events = lease.watch();
    assert!(lease.fence().is_some());
    clock.suspend(TTL * 3);
    assert!(lease.fence().is_none());
    assert_eq!(lease.status(), LeaseStatus::Lost);
    assert_eq!(lease.lost().await, EndedReason::Unreachable);
    // The next one owns it; the first one wakes and stays lost, with one event.
    tokio::time::sleep(TTL * 2).await;
    assert!(matches!(
        acquire_raw(&*store, "b", 9).await,
        TransitionOutcome::Granted(_)
    ));
    settle().await;
    assert!(lease.fence().is_none());
    assert!(events.has_changed().unwrap());
    assert_eq!(*events.borrow_and_update(), LeaseStatus::Lost);
    assert!(!events.has_changed().unwrap(), "exactly one loss event");
}

/// Nobody looked between the suspension and the call: a release is no way around the self-limit.
#[tokio::test(start_paused = true)]
async fn a_suspended_machine_that_releases_first_has_lost_its_lease() {
    let store = Arc::new(MemorySerializer::new());
    for with_value in [true, false] {
        let clock = SuspendedClock::new();
        let outcome = LeaseHandle::builder(store.clone(), RESOURCE, "a")
            .options(options())
            .clock(clock.clone())
            .acquire()
            .await;
        let Ok(AcquireOutcome::Granted(lease)) = outcome else {
            panic!("{outcome:?}")
        };
        clock.suspend(TTL * 3);
        if with_value {
            let any = ExpectedRevision::Any;
            let late = lease.release_with_value(store.clone(), "a", any, b"late".to_vec());
            let error = late.await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Stop, "{error}");
            assert_eq!(Registers::read(&*store, RESOURCE).await.unwrap(), None);
        }
        let released = lease.release().await.unwrap();
        assert_eq!(released, ReleaseOutcome::Released, "the row is freed");
        assert_eq!(lease.status(), LeaseStatus::Lost);
        assert_eq!(lease.lost().await, EndedReason::Unreachable);
    }
}

/// Nobody looks at the handle; its timers stood still while the machine slept, and look again within
/// a second: between two renewals, and while one is on its way.
#[tokio::test(start_paused = true)]
async fn a_suspended_machine_reports_the_loss_within_a_second() {
    for is_on_its_way in [false, true] {
        let network = Faulty::new();
        let clock = SuspendedClock::new();
        let outcome = LeaseHandle::builder(network.clone(), RESOURCE, "a")
            .options(options())
            .clock(clock.clone())
            .acquire()
            .await;
        let Ok(AcquireOutcome::Granted(lease)) = outcome else {
            panic!("{outcome:?}")
        };
        // It waits already: its first poll would look at the clock itself.
        let (lost, mut events) = (spawn(lease.lost()), lease.watch());
        if is_on_its_way {
            network.always(Fault::RequestLost);
            while network.count("renew") == 0 {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        }
        settle().await;
        clock.suspend(TTL * 3);
        let within = Duration::from_millis(1_010);
        let reason = tokio::time::timeout(within, lost).await;
        let reason = reason.expect("nobody looked").unwrap();
        assert_eq!(reason, EndedReason::Unreachable, "{is_on_its_way}");
        assert!(events.has_changed().unwrap());
        assert_eq!(*events.borrow_and_update(), LeaseStatus::Lost);
    }
}

/// A store of the user's own panics in the renewal; one of those who wait for the end panics too.
#[tokio::test(start_paused = true)]
async fn a_panic_in_a_callback_ends_the_lease_and_everybody_hears_of_it_once() {
    let network = Faulty::new();
    let lease = granted(&network, "a").await;
    let mut events = [lease.watch(), lease.watch()];
    let (first, second) = (lease.lost(), lease.lost());
    let panicking = spawn(async move { panic!("told: {}", first.await) });
    network.always(Fault::Panic);
    let reason = tokio::time::timeout(TTL, second).await;
    assert_eq!(reason, Ok(EndedReason::RuntimeStopped));
    assert!(panicking.await.unwrap_err().is_panic());
    assert!(lease.fence().is_none());
    for events in &mut events {
        assert!(events.has_changed().unwrap());
        assert_eq!(*events.borrow_and_update(), LeaseStatus::Lost);
        assert!(!events.has_changed().unwrap(), "one event");
    }
    // An acquire hands the panic to its caller.
    let acquire = LeaseHandle::acquire(network.clone(), RESOURCE, "b", options());
    let panicked = spawn(async move { acquire.await.is_ok() }).await;
    assert!(panicked.unwrap_err().is_panic());
    // And the lease can still be given up.
    network.always(Fault::None);
    lease.release().await.unwrap();
    assert_eq!(granted(&network, "b").await.epoch(), 3);
}

/// A renewal sent before the limit whose answer arrives after it does not revive the handle.
#[tokio::test(start_paused = true)]
async fn a_late_reply_does_not_revive_an_ended_lease() {
    let network = Faulty::with_yields(1);
    let clock = SuspendedClock::new();
    let outcome = LeaseHandle::builder(network.clone(), RESOURCE, "a")
        .options(options())
        .clock(clock.clone())
        .acquire()
        .await;
    let Ok(AcquireOutcome::Granted(lease)) = outcome else {
        panic!("{outcome:?}")
    };
    // The renewal task has sent its request and waits for the answer when the machine sleeps.
    while network.count("renew") == 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let before = network.count("renew");
    clock.suspend(TTL);
    settle().await;
    assert!(lease.fence().is_none());
    assert_eq!(network.count("renew"), before, "and no renewal follows");
    assert_eq!(lease.status(), LeaseStatus::Lost);
}

/// The same when nobody looked in between, and the renewal itself would still have counted for a while.
#[tokio::test(start_paused = true)]
async fn a_late_reply_does_not_revive_a_lease_at_which_nobody_looked() {
    let late = Duration::from_millis(500);
    let network = Faulty::new();
    let clock = SuspendedClock::new();
    let outcome = LeaseHandle::builder(network.clone(), RESOURCE, "a")
        .options(options())
        .clock(clock.clone())
        .acquire()
        .await;
    let Ok(AcquireOutcome::Granted(lease)) = outcome else {
        panic!("{outcome:?}")
    };
    network.script([Fault::RequestLost, Fault::ReplyLate(late)]);
    while network.count("renew") < 2 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let left = lease.remaining().expect("held");
    assert!(left < TTL / 2, "a control: by its own sending it lasts on");
    clock.suspend(left);
    tokio::time::sleep(late).await;
    assert!(lease.fence().is_none());
    assert_eq!(lease.ended_reason(), Some(EndedReason::Unreachable));
}

#[tokio::test(start_paused = true)]
async fn a_revoke_ends_the_lease_at_its_next_renewal() {
    let store = Arc::new(MemorySerializer::new());
    let lease = granted(&store, "a").await;
    revoke(&*store, RESOURCE, "operator", None).await.unwrap();
    assert_eq!(lease.lost().await, EndedReason::Revoked);
    assert_eq!(lease.status(), LeaseStatus::Fenced);
    assert!(lease.fence().is_none());
}

#[tokio::test(start_paused = true)]
async fn a_takeover_ends_the_lease_as_superseded() {
    let store = Arc::new(MemorySerializer::new());
    let lease = granted(&store, "a").await;
    revoke(&*store, RESOURCE, "operator", None).await.unwrap();
    let _next = granted(&store, "b").await;
    assert_eq!(lease.lost().await, EndedReason::Superseded);
}

#[tokio::test(start_paused = true)]
async fn unauthorized_is_believed_only_at_the_self_limit() {
    let network = Faulty::new();
    let lease = granted(&network, "a").await;
    network.always(Fault::Deny(DenyReason::Unauthorized));
    tokio::time::sleep(TTL / 2).await;
    assert!(lease.fence().is_some(), "roles may be reloading");
    network.always(Fault::None);
    tokio::time::sleep(TTL * 2).await;
    assert!(lease.fence().is_some());
    network.always(Fault::Deny(DenyReason::Unauthorized));
    assert_eq!(lease.lost().await, EndedReason::Unauthorized);
}

#[tokio::test(start_paused = true)]
async fn a_closed_store_ends_the_lease_at_once() {
    let network = Faulty::new();
    let lease = granted(&network, "a").await;
    network.always(Fault::Closed);
    assert_eq!(lease.lost().await, EndedReason::StoreRefused);
    assert_eq!(lease.status(), LeaseStatus::Fenced);
}

/// What a definite denial of a renewal says about the lease.
#[tokio::test(start_paused = true)]
async fn the_reason_of_the_end_follows_from_the_denial() {
    for (denial, reason) in [
        (DenyReason::Expired, EndedReason::Expired),
        (DenyReason::NotHeld, EndedReason::Revoked),
        (DenyReason::HeldOff, EndedReason::Revoked),
        (DenyReason::NotHolder, EndedReason::Superseded),
    ] {
        let network = Faulty::new();
        let lease = granted(&network, "a").await;
        network.always(Fault::Deny(denial));
        assert_eq!(lease.lost().await, reason, "{denial:?}");
        assert_eq!(lease.status(), LeaseStatus::Fenced, "{denial:?}");
    }
}

/// Nobody looks at the fence: the loss is told when it has come, and not when the last request is given up.
#[tokio::test(start_paused = true)]
async fn a_loss_is_told_in_time_while_a_renewal_hangs() {
    let network = Faulty::new();
    let lease = granted(&network, "a").await;
    network.always(Fault::RequestLost);
    let clock = SystemClock::new();
    let started = clock.now();
    assert_eq!(lease.lost().await, EndedReason::Unreachable);
    let took = clock.now().monotonic - started.monotonic;
    let usable = TTL - options().holder_margin;
    assert!(
        took >= usable && took <= usable + Duration::from_secs(1),
        "{took:?}"
    );
}

/// The lease counts from the sending of its acquire, and so does its first renewal.
#[tokio::test(start_paused = true)]
async fn a_slow_grant_is_renewed_no_later_than_a_quick_one() {
    const LEASES: usize = 50;
    let network = Faulty::new();
    let late = Duration::from_secs(5);
    network.script(vec![Fault::ReplyLate(late); LEASES]);
    let acquiring = (0..LEASES).map(|number| {
        let network = network.clone();
        spawn(async move {
            LeaseHandle::acquire(network, &format!("job/{number}"), "a", options()).await
        })
    });
    let acquiring: Vec<_> = acquiring.collect();
    tokio::time::sleep(late + Duration::from_millis(1)).await;
    let mut leases = Vec::new();
    for acquired in acquiring {
        match acquired.await.unwrap().unwrap() {
            AcquireOutcome::Granted(lease) => leases.push(lease),
            denied => panic!("{denied:?}"),
        }
    }
    tokio::time::sleep(options().renew_interval - late).await;
    let usable = TTL - options().holder_margin;
    for lease in &leases {
        let left = lease.remaining().unwrap();
        assert!(left > usable - options().renew_interval, "{left:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_restarted_serializer_keeps_the_holder_and_its_epoch() {
    let store = Arc::new(MemorySerializer::new());
    let lease = granted(&store, "a").await;
    tokio::time::sleep(TTL / 2).await;
    store.restart();
    let snapshot = store.snapshot(RESOURCE).await.unwrap();
    assert_eq!(snapshot.remaining, Some(TTL), "one full ttl again");
    tokio::time::sleep(TTL * 2).await;
    assert_eq!(lease.fence().expect("held").epoch, 1);
}

/// Two full chances to renew are left after the first failure, whatever the ttl.
#[tokio::test(start_paused = true)]
async fn every_allowed_ttl_is_renewed_in_time() {
    for millis in [100, 101, 1_500, 30_000, 86_400_000] {
        let ttl = Duration::from_millis(millis);
        let store = Arc::new(MemorySerializer::new());
        let outcome = LeaseHandle::acquire(store, RESOURCE, "a", LeaseOptions::with_ttl(ttl)).await;
        let Ok(AcquireOutcome::Granted(lease)) = outcome else {
            panic!("{ttl:?}: {outcome:?}")
        };
        tokio::time::sleep(ttl * 3).await;
        assert!(lease.fence().is_some(), "{ttl:?}");
    }
}

#[tokio::test]
async fn options_that_leave_no_time_are_refused_before_anything_is_sent() {
    let network = Faulty::new();
    let second = Duration::from_secs(1);
    let with = |ttl, renew_interval, holder_margin| LeaseOptions {
        ttl,
        renew_interval,
        holder_margin,
    };
    for options in [
        with(Duration::ZERO, second, second),
        with(Duration::from_nanos(1), second, second),
        with(Duration::MAX, second, second),
        with(Duration::from_micros(1_500_500), second / 4, second / 4),
        with(second, Duration::ZERO, second / 10),
        with(second, second / 2, Duration::ZERO),
        with(second, second / 2, Duration::from_micros(999)),
        with(second, second / 2, second / 2),
        with(second, second, second),
        with(second, Duration::MAX, Duration::MAX),
    ] {
        let error = LeaseHandle::acquire(network.clone(), RESOURCE, "a", options)
            .await
            .unwrap_err();
        assert_eq!(
            error.kind(),
            aster_lease::ErrorKind::FixCall,
            "{options:?}: {error}"
        );
    }
    for (resource, holder) in [
        ("", "a"),
        ("new\nline", "a"),
        (&*"x".repeat(513), "a"),
        (RESOURCE, ""),
        (RESOURCE, &"h".repeat(257)),
    ] {
        let error = LeaseHandle::acquire(network.clone(), resource, holder, options())
            .await
            .unwrap_err();
        assert_eq!(error.kind(), aster_lease::ErrorKind::FixCall, "{error}");
    }
    assert_eq!(network.count("acquire"), 0);
    let smallest = with(second, second / 2, second / 1_000);
    let outcome = LeaseHandle::acquire(network.clone(), RESOURCE, "a", smallest).await;
    assert!(
        matches!(outcome, Ok(AcquireOutcome::Granted(_))),
        "a thousandth will do"
    );
}

#[tokio::test]
async fn a_ttl_outside_the_serializers_bounds_is_refused_and_changes_nothing() {
    let network = Faulty::new();
    for millis in [1, 99, 86_400_001] {
        let options = LeaseOptions::with_ttl(Duration::from_millis(millis));
        let error = LeaseHandle::acquire(network.clone(), RESOURCE, "a", options)
            .await
            .unwrap_err();
        assert_eq!(
            error.kind(),
            aster_lease::ErrorKind::FixCall,
            "{millis}: {error}"
        );
    }
    assert_eq!(network.store.row_count(), 0);
    assert_eq!(principal("a").as_str(), "a");
}

/// The last lease to leave takes its serializer along at once, and not when it would have been renewed.
#[tokio::test(start_paused = true)]
async fn nothing_is_kept_of_a_serializer_whose_last_lease_has_left() {
    let store = Arc::new(MemorySerializer::new());
    for is_released in [true, false] {
        let lease = granted(&store, "a").await;
        // The renewal rests.
        tokio::time::sleep(TTL / 100).await;
        if is_released {
            lease.release().await.unwrap();
        }
        drop(lease);
        settle().await;
        assert_eq!(Arc::strong_count(&store), 1, "released: {is_released}");
    }
}

/// Whoever loses a lease reads why.
#[test]
fn every_reason_of_an_end_tells_a_person_something_of_its_own() {
    let reasons = [
        (EndedReason::Released, "released"),
        (EndedReason::Dropped, "dropped"),
        (EndedReason::Superseded, "superseded"),
        (EndedReason::Revoked, "revoked"),
        (EndedReason::Expired, "expired"),
        (EndedReason::Unauthorized, "unauthorized"),
        (EndedReason::Unreachable, "unreachable"),
        (EndedReason::StoreRefused, "store_refused"),
        (EndedReason::RuntimeStopped, "runtime_stopped"),
    ];
    let texts: BTreeSet<String> = reasons.map(|(reason, _)| reason.to_string()).into();
    assert_eq!(texts.len(), reasons.len());
    for (reason, name) in reasons {
        assert_eq!(reason.name(), name);
        let error = LeaseEnded { reason }.to_string();
        assert!(
            error.ends_with(&reason.to_string()) && reason.to_string().len() > 10,
            "{error}"
        );
    }
}

/// A task of the test's own, on its own runtime.
fn spawn<T: Send + 'static>(
    task: impl Future<Output = T> + Send + 'static,
) -> tokio::task::JoinHandle<T> {
    tokio::runtime::Handle::current().spawn(task)
}
