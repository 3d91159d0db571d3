//! Release: at once, bounded, repeatable, whatever is in flight.

mod support;

use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Waker};
use std::time::Duration;

use aster_lease::{
    AcquireOutcome, Clock, DenyReason, EndedReason, ErrorKind, LeaseError, LeaseHandle, LeaseOp,
    LeaseSerializer, LeaseStatus, MemorySerializer, Moment, ReleaseOutcome, RevokeOutcome,
    SystemClock, TransitionOutcome, revoke,
};
use support::{
    DrivenClock, Fault, Faulty, RESOURCE, SuspendedClock, TTL, acquire_raw, granted, options,
    principal, settle, store_at,
};
use tokio::runtime::Runtime;

#[tokio::test(start_paused = true)]
async fn release_frees_at_once_and_advances_the_epoch() {
    let store = Arc::new(MemorySerializer::new());
    let lease = granted(&store, "a").await;
    assert_eq!(lease.release().await.unwrap(), ReleaseOutcome::Released);
    assert_eq!(lease.status(), LeaseStatus::Released);
    assert_eq!(lease.ended_reason(), Some(EndedReason::Released));
    let snapshot = store.snapshot(RESOURCE).await.unwrap();
    assert_eq!((snapshot.held, snapshot.epoch), (false, 2));
    assert_eq!(lease.release().await.unwrap(), ReleaseOutcome::AlreadyEnded);
    assert_eq!(granted(&store, "b").await.epoch(), 3);
}

#[tokio::test(start_paused = true)]
async fn release_works_through_an_arc_and_outlives_the_handle() {
    let store = Arc::new(MemorySerializer::new());
    let lease = Arc::new(granted(&store, "a").await);
    let release = Arc::clone(&lease).release();
    drop(lease);
    assert_eq!(release.await.unwrap(), ReleaseOutcome::Released);
}

/// A renewal is in flight, its answer will never come: the row is free at once all the same.
#[tokio::test(start_paused = true)]
async fn release_overlapping_a_renewal_frees_at_once() {
    for fault in [Fault::RequestLost, Fault::ReplyLost] {
        let network = Faulty::new();
        let lease = granted(&network, "a").await;
        network.script([fault.clone()]);
        while network.count("renew") == 0 {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        let (clock, before) = stopwatch();
        assert_eq!(
            lease.release().await.unwrap(),
            ReleaseOutcome::Released,
            "{fault:?}"
        );
        assert_eq!(
            clock.now().monotonic,
            before.monotonic,
            "{fault:?}: nothing was waited for"
        );
        assert!(
            !network.store.snapshot(RESOURCE).await.unwrap().held,
            "{fault:?}"
        );
    }
}

/// A row whose ttl has passed stays held until somebody takes it, and accepts its fence for so long. So a
/// release still has to end the epoch, or a write that is on its way would be accepted after it.
#[tokio::test(start_paused = true)]
async fn a_lease_that_the_store_saw_expire_is_released_all_the_same() {
    let network = Faulty::new();
    let lease = granted(&network, "a").await;
    network.script([Fault::Deny(DenyReason::Expired)]);
    assert_eq!(lease.lost().await, EndedReason::Expired);
    assert!(network.store.snapshot(RESOURCE).await.unwrap().held);
    assert_eq!(lease.release().await.unwrap(), ReleaseOutcome::Released);
    let snapshot = network.store.snapshot(RESOURCE).await.unwrap();
    assert_eq!((snapshot.held, snapshot.epoch), (false, 2));
}

/// The machine sleeps for longer than a release may take, just before it sends anything: the next owner
/// need not wait for a ttl because of that.
#[tokio::test(start_paused = true)]
async fn a_release_that_stood_still_before_its_first_attempt_is_sent_all_the_same() {
    struct SleepsWhenDropped(Arc<SuspendedClock>);
    impl Drop for SleepsWhenDropped {
        fn drop(&mut self) {
            self.0.suspend(TTL * 3);
        }
    }
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
    let sleeps = SleepsWhenDropped(clock);
    let guarded = lease.guard(async move {
        let _sleeps = sleeps;
        std::future::pending::<()>().await;
    });
    let guard = tokio::runtime::Handle::current().spawn(guarded);
    settle().await;
    assert_eq!(lease.release().await.unwrap(), ReleaseOutcome::Released);
    assert_eq!(network.count("release"), 1);
    assert!(guard.await.unwrap().is_err());
}

#[tokio::test(start_paused = true)]
async fn dropping_release_at_any_poll_still_stops_the_fence_and_the_renewal() {
    for polls in 0..12 {
        let network = Faulty::with_yields(3);
        let lease = granted(&network, "a").await;
        {
            let mut release = pin!(lease.release());
            assert!(lease.fence().is_none(), "from the call's start");
            let mut context = Context::from_waker(Waker::noop());
            for _ in 0..polls {
                if release.as_mut().poll(&mut context).is_ready() {
                    break;
                }
            }
        }
        assert!(lease.fence().is_none());
        let renewals = network.count("renew");
        tokio::time::sleep(TTL).await;
        assert_eq!(network.count("renew"), renewals, "after {polls} polls");
        let next = acquire_raw(&network.store, "b", 50).await;
        assert!(
            matches!(next, TransitionOutcome::Granted(_)),
            "after {polls} polls: {next:?}"
        );
        // A repeated release never touches the next holder.
        assert_eq!(lease.release().await.unwrap(), ReleaseOutcome::AlreadyEnded);
        assert!(network.store.snapshot(RESOURCE).await.unwrap().held);
    }
}

#[tokio::test(start_paused = true)]
async fn release_against_a_silent_server_is_bounded() {
    let network = Faulty::new();
    let lease = granted(&network, "a").await;
    network.always(Fault::RequestLost);
    let (clock, started) = stopwatch();
    let release = lease.release();
    assert!(lease.fence().is_none(), "no fence from the call's start");
    let error = release.await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Retry);
    let took = clock.now().monotonic - started.monotonic;
    assert!(took <= Duration::from_secs(11), "{took:?}");
    // It can be repeated when the server is back.
    network.always(Fault::None);
    assert_eq!(lease.release().await.unwrap(), ReleaseOutcome::Released);
}

#[tokio::test(start_paused = true)]
async fn a_lost_reply_to_a_release_is_recognized_and_spares_the_next_lease() {
    let network = Faulty::new();
    let lease = granted(&network, "a").await;
    network.script([Fault::ReplyLost]);
    let mut release = pin!(lease.release());
    let mut context = Context::from_waker(Waker::noop());
    assert!(release.as_mut().poll(&mut context).is_pending());
    // The same holder has a newer lease before the retry is sent.
    let newer = granted(&Arc::new(network.store.clone()), "a").await;
    assert_eq!(release.await.unwrap(), ReleaseOutcome::AlreadyEnded);
    assert_eq!(
        network.store.snapshot(RESOURCE).await.unwrap().epoch,
        newer.epoch()
    );
    assert!(newer.fence().is_some());
}

#[tokio::test(start_paused = true)]
async fn a_lost_reply_to_a_revoke_never_ends_the_next_holder() {
    let network = Faulty::new();
    let _old = granted(&network, "a").await;
    network.script([Fault::ReplyLost]);
    let mut call = pin!(revoke(&*network, RESOURCE, "operator", None));
    let mut context = Context::from_waker(Waker::noop());
    assert!(call.as_mut().poll(&mut context).is_pending());
    let next = granted(&Arc::new(network.store.clone()), "b").await;
    assert_eq!(call.await.unwrap(), RevokeOutcome::AlreadyEnded);
    assert_eq!(
        network.store.snapshot(RESOURCE).await.unwrap().epoch,
        next.epoch()
    );
}

#[tokio::test(start_paused = true)]
async fn someone_elses_release_is_denied_and_harms_nobody() {
    let store = Arc::new(MemorySerializer::new());
    let lease = granted(&store, "a").await;
    let op = LeaseOp::Release {
        holder: principal("b"),
        epoch: lease.epoch(),
    };
    let outcome = store.transition(RESOURCE, op).await.unwrap();
    assert!(
        matches!(outcome, TransitionOutcome::Denied(DenyReason::NotHolder, _)),
        "{outcome:?}"
    );
    tokio::time::sleep(TTL * 2).await;
    assert!(lease.fence().is_some());
}

/// A lease that was lost but not taken can still be released, and the row is free then.
#[tokio::test(start_paused = true)]
async fn a_lost_lease_can_still_be_released() {
    let network = Faulty::new();
    let lease = granted(&network, "a").await;
    network.always(Fault::RequestLost);
    lease.lost().await;
    network.always(Fault::None);
    assert!(network.store.snapshot(RESOURCE).await.unwrap().held);
    assert_eq!(lease.release().await.unwrap(), ReleaseOutcome::Released);
    assert_eq!(
        lease.status(),
        LeaseStatus::Lost,
        "the end and its reason stay"
    );
    assert!(!network.store.snapshot(RESOURCE).await.unwrap().held);
}

#[tokio::test(start_paused = true)]
async fn releasing_what_was_revoked_is_already_ended_without_asking() {
    let network = Faulty::new();
    let lease = granted(&network, "a").await;
    revoke(&network.store, RESOURCE, "operator", None)
        .await
        .unwrap();
    lease.lost().await;
    assert_eq!(lease.release().await.unwrap(), ReleaseOutcome::AlreadyEnded);
    assert_eq!(network.count("release"), 0);
}

#[tokio::test(start_paused = true)]
async fn a_release_that_is_not_authorized_says_so() {
    let network = Faulty::new();
    let lease = granted(&network, "a").await;
    network.always(Fault::Deny(DenyReason::Unauthorized));
    let error = lease.release().await.unwrap_err();
    assert!(
        matches!(
            error,
            LeaseError::Denied {
                reason: DenyReason::Unauthorized,
                ..
            }
        ),
        "{error}"
    );
}

/// Roles may be reloading: a release is refused for good only when that does not pass.
#[tokio::test(start_paused = true)]
async fn a_release_that_is_not_authorized_for_a_moment_goes_through() {
    let network = Faulty::new();
    let lease = granted(&network, "a").await;
    network.script([Fault::Deny(DenyReason::Unauthorized)]);
    assert_eq!(lease.release().await.unwrap(), ReleaseOutcome::Released);
}

/// What cannot get better is said at once, and the same call again goes through when it has.
#[tokio::test(start_paused = true)]
async fn an_answer_that_will_not_change_is_not_asked_for_again() {
    for fault in [
        Fault::Closed,
        Fault::Storage,
        Fault::Deny(DenyReason::NotHolder),
    ] {
        let network = Faulty::new();
        let lease = granted(&network, "a").await;
        network.always(fault.clone());
        let error = lease.release().await.unwrap_err();
        assert_ne!(error.kind(), ErrorKind::Retry, "{fault:?}");
        assert_eq!(network.count("release"), 1, "{fault:?}");
        network.always(Fault::None);
        assert_eq!(lease.release().await.unwrap(), ReleaseOutcome::Released);
    }
}

/// Drop stops renewing and does not release.
#[tokio::test(start_paused = true)]
async fn drop_lets_the_lease_run_out() {
    let network = Faulty::new();
    let lease = granted(&network, "a").await;
    let (lost, mut events) = (lease.lost(), lease.watch());
    drop(lease);
    assert_eq!(lost.await, EndedReason::Dropped);
    assert_eq!(*events.borrow_and_update(), LeaseStatus::Released);
    assert!(network.store.snapshot(RESOURCE).await.unwrap().held);
    tokio::time::sleep(TTL).await;
    assert_eq!(network.count("renew"), 0);
    assert_eq!(granted(&network, "b").await.epoch(), 2);
}

/// The paused clock of the test, and what it shows now.
fn stopwatch() -> (SystemClock, Moment) {
    let clock = SystemClock::new();
    (clock, clock.now())
}

/// A lease that was acquired in a runtime of its own, and the runtime.
#[allow(clippy::unwrap_used, reason = "test code outside a #[test] function")]
fn held_in_a_runtime(store: &Arc<MemorySerializer>) -> (LeaseHandle, Runtime) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .unwrap();
    let lease = runtime.block_on(granted(store, "a"));
    (lease, runtime)
}

/// Whatever became of the handle and its runtime, the lease is over by its ttl and not before.
#[allow(clippy::unwrap_used, reason = "test code outside a #[test] function")]
fn assert_free_after_a_ttl(store: &MemorySerializer, clock: &DrivenClock) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap();
    let denied = runtime.block_on(acquire_raw(store, "b", 10));
    assert!(
        matches!(denied, TransitionOutcome::Denied(..)),
        "{denied:?}"
    );
    clock.advance(TTL);
    let next = runtime.block_on(acquire_raw(store, "b", 11));
    assert!(matches!(next, TransitionOutcome::Granted(_)), "{next:?}");
}

#[test]
fn a_handle_whose_runtime_is_gone_says_so_and_drops_quietly() {
    let clock = Arc::new(DrivenClock::default());
    let store = Arc::new(store_at(&clock));
    let (lease, runtime) = held_in_a_runtime(&store);
    drop(runtime);
    assert!(lease.fence().is_none(), "nobody renews it any more");
    assert_eq!(lease.ended_reason(), Some(EndedReason::RuntimeStopped));
    std::thread::Builder::new()
        .spawn(move || drop(lease))
        .unwrap()
        .join()
        .unwrap();
    assert_free_after_a_ttl(&store, &clock);
}

#[test]
fn a_handle_drops_quietly_on_a_plain_thread() {
    let clock = Arc::new(DrivenClock::default());
    let store = Arc::new(store_at(&clock));
    let (lease, runtime) = held_in_a_runtime(&store);
    std::thread::Builder::new()
        .spawn(move || drop(lease))
        .unwrap()
        .join()
        .unwrap();
    runtime.block_on(settle());
    assert_free_after_a_ttl(&store, &clock);
}

#[test]
fn a_handle_drops_quietly_while_unwinding() {
    let clock = Arc::new(DrivenClock::default());
    let store = Arc::new(store_at(&clock));
    let (lease, runtime) = held_in_a_runtime(&store);
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(move || {
        let _lease = lease;
        panic!("the work failed");
    }));
    assert!(panicked.is_err());
    runtime.block_on(settle());
    assert_free_after_a_ttl(&store, &clock);
}

#[test]
fn without_a_runtime_acquire_is_a_typed_error() {
    let store = Arc::new(MemorySerializer::new());
    let mut acquire = pin!(LeaseHandle::acquire(
        store.clone(),
        RESOURCE,
        "a",
        options()
    ));
    let mut context = Context::from_waker(Waker::noop());
    match acquire.as_mut().poll(&mut context) {
        std::task::Poll::Ready(Err(error)) => assert_eq!(error.kind(), ErrorKind::FixCall),
        other => panic!("{other:?}"),
    }
    assert_eq!(store.row_count(), 0);
}
