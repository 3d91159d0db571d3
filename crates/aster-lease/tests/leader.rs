//! Leading, over and over, in one call.

mod support;

use std::ops::ControlFlow;
use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use aster_lease::{
    Clock, DenyReason, ErrorKind, LeaseError, LeaseHandle, LeaseSerializer, MemorySerializer,
    Moment, SystemClock, revoke, revoke_with_hold_off, run_while_leader,
};
use support::turns::{Turn, Turns};
use support::{Fault, Faulty, RESOURCE, TTL, granted, options, settle};

const SECOND: Duration = Duration::from_secs(1);

/// What the terms so far looked like.
type Epochs = Arc<Mutex<Vec<u64>>>;

/// Notes the epoch and answers `flow`.
#[allow(clippy::unwrap_used, reason = "test code outside a #[test] function")]
fn note(epochs: &Epochs, lease: &LeaseHandle) {
    assert!(lease.fence().is_some(), "work begins with a usable fence");
    epochs.lock().unwrap().push(lease.epoch());
}

/// Leads until it is lost, over and over.
async fn lead_for_ever<S: LeaseSerializer>(
    serializer: Arc<S>,
    holder: &'static str,
    epochs: Epochs,
) -> Result<(), LeaseError> {
    run_while_leader(serializer, RESOURCE, holder, options(), move |lease| {
        let epochs = epochs.clone();
        async move {
            note(&epochs, &lease);
            std::future::pending::<ControlFlow<()>>().await
        }
    })
    .await
}

#[tokio::test(start_paused = true)]
async fn break_ends_the_call_with_its_value_and_the_resource_is_free() {
    for turn in [
        Turn::AtOnce,
        Turn::Waited(SECOND, SECOND),
        Turn::Unsupported,
    ] {
        let turns = Turns::new(turn.clone());
        let value = run_while_leader(
            turns.clone(),
            RESOURCE,
            "a",
            options(),
            |lease| async move { ControlFlow::Break(lease.epoch()) },
        )
        .await;
        assert_eq!(value.unwrap(), 1, "{turn:?}");
        let row = turns.network.store.snapshot(RESOURCE).await.unwrap();
        assert_eq!((row.held, row.epoch), (false, 2), "{turn:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn continue_steps_down_and_leads_again_under_a_later_epoch() {
    let turns = Turns::new(Turn::AtOnce);
    let epochs = Epochs::default();
    let terms = run_while_leader(turns.clone(), RESOURCE, "a", options(), |lease| {
        let epochs = epochs.clone();
        async move {
            note(&epochs, &lease);
            match epochs.lock().unwrap().len() {
                3 => ControlFlow::Break(3),
                _ => ControlFlow::Continue(()),
            }
        }
    })
    .await;
    assert_eq!(terms.unwrap(), 3);
    assert_eq!(*epochs.lock().unwrap(), [1, 3, 5]);
    let asked = turns.asked();
    assert_ne!(asked[0].grant_id, asked[1].grant_id);
}

/// Terms that end as soon as they begin must not load the serializer.
#[tokio::test(start_paused = true)]
async fn terms_that_end_at_once_are_no_tight_loop() {
    let turns = Turns::new(Turn::AtOnce);
    let restless = run_while_leader(turns.clone(), RESOURCE, "a", options(), |_| async {
        ControlFlow::<()>::Continue(())
    });
    assert!(tokio::time::timeout(60 * SECOND, restless).await.is_err());
    let terms = turns.asked().len();
    assert!((3..=30).contains(&terms), "{terms} terms in a minute");
}

#[tokio::test(start_paused = true)]
async fn a_lost_lead_drops_the_work_and_leads_again() {
    let turns = Turns::new(Turn::AtOnce);
    let epochs = Epochs::default();
    let leader = spawn(lead_for_ever(turns.clone(), "a", epochs.clone()));
    let clock = SystemClock::new();
    for terms in 1..=3 {
        let started = clock.now();
        while epochs.lock().unwrap().len() < terms {
            tokio::time::sleep(SECOND / 10).await;
        }
        let took = virtual_since(&clock, started);
        assert!(took < TTL * 2, "{took:?}");
        let revoked = revoke(&turns.network.store, RESOURCE, "operator", None).await;
        assert!(revoked.is_ok());
    }
    assert_eq!(*epochs.lock().unwrap(), [1, 3, 5]);
    leader.abort();
}

/// One leader is cut off; the other, on a store without a queue, takes over soon after the expiry, and
/// the first stops before.
#[tokio::test(start_paused = true)]
async fn without_a_queue_the_next_leader_comes_soon_after_the_expiry() {
    for _ in 0..20 {
        let network = Faulty::new();
        let first = granted(&network, "a").await;
        network.always(Fault::RequestLost);
        // The second one reaches the same rows over a network that works.
        let second = Turns::over(network.store.clone(), Turn::Unsupported);
        let epochs = Epochs::default();
        let leader = spawn(lead_for_ever(second.clone(), "b", epochs.clone()));
        let clock = SystemClock::new();
        let started = clock.now();
        while epochs.lock().unwrap().is_empty() {
            tokio::time::sleep(SECOND / 100).await;
            if first.fence().is_some() {
                assert!(epochs.lock().unwrap().is_empty(), "two leaders at once");
            }
        }
        let took = virtual_since(&clock, started);
        assert!(took >= TTL && took < TTL + SECOND, "{took:?}");
        // One before each renewal of the present leader, and one after its expiry.
        let asked = second.network.count("acquire");
        assert!((3..10).contains(&asked), "{asked} attempts");
        leader.abort();
    }
}

/// A present leader that renews is asked after from time to time, so that its release is not noticed
/// only at an expiry that never comes.
#[tokio::test(start_paused = true)]
async fn without_a_queue_a_release_is_noticed_within_a_renew_interval() {
    let turns = Turns::new(Turn::Unsupported);
    let first = granted(&turns, "a").await;
    let epochs = Epochs::default();
    let leader = spawn(lead_for_ever(turns.clone(), "b", epochs.clone()));
    tokio::time::sleep(TTL * 10).await;
    assert!(first.fence().is_some() && epochs.lock().unwrap().is_empty());
    first.release().await.unwrap();
    tokio::time::sleep(options().renew_interval).await;
    assert_eq!(*epochs.lock().unwrap(), [3]);
    leader.abort();
}

/// Dropping the call drops the work at once and frees the resource in the background.
#[tokio::test(start_paused = true)]
async fn dropping_the_call_releases_in_the_background() {
    let turns = Turns::new(Turn::AtOnce);
    let epochs = Epochs::default();
    let log = Arc::<AtomicUsize>::default();
    {
        let running = run_while_leader(turns.clone(), RESOURCE, "a", options(), |lease| {
            let (epochs, dropped) = (epochs.clone(), CountsDrop(log.clone()));
            async move {
                note(&epochs, &lease);
                let _dropped = dropped;
                std::future::pending::<ControlFlow<()>>().await
            }
        });
        let mut running = pin!(running);
        let mut context = Context::from_waker(Waker::noop());
        for _ in 0..20 {
            assert!(running.as_mut().poll(&mut context).is_pending());
        }
        assert_eq!(epochs.lock().unwrap().len(), 1);
    }
    assert_eq!(log.load(Ordering::SeqCst), 1, "the work is gone already");
    settle().await;
    let row = turns.network.store.snapshot(RESOURCE).await.unwrap();
    assert_eq!((row.held, row.epoch), (false, 2));
}

/// At every await point: no work, no queue entry, no grant is left.
#[tokio::test(start_paused = true)]
async fn dropping_the_call_at_any_await_leaves_nothing_behind() {
    for turn in [Turn::AtOnce, Turn::Waited(Duration::ZERO, SECOND)] {
        for polls in 1..40 {
            let turns = Turns::with_yields(turn.clone(), 2);
            {
                let steps_down =
                    run_while_leader(turns.clone(), RESOURCE, "a", options(), |_| async move {
                        tokio::task::yield_now().await;
                        ControlFlow::<()>::Continue(())
                    });
                let mut steps_down = pin!(steps_down);
                let mut context = Context::from_waker(Waker::noop());
                for _ in 0..polls {
                    let polled = steps_down.as_mut().poll(&mut context);
                    assert!(matches!(polled, Poll::Pending));
                    tokio::time::advance(Duration::from_millis(1)).await;
                }
            }
            settle().await;
            assert_eq!(turns.waiting(), 0);
            let row = turns.network.store.snapshot(RESOURCE).await.unwrap();
            assert!(!row.held, "{turn:?} after {polls} polls");
        }
    }
}

struct CountsDrop(Arc<AtomicUsize>);

impl Drop for CountsDrop {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

/// A panic of the work is the caller's, and the resource is free.
#[tokio::test(start_paused = true)]
async fn a_panic_of_the_work_reaches_the_caller_and_releases() {
    let turns = Turns::new(Turn::AtOnce);
    let running = spawn({
        let turns = turns.clone();
        async move {
            run_while_leader(turns, RESOURCE, "a", options(), |_| async {
                match std::hint::black_box(true) {
                    true => panic!("the work failed"),
                    false => ControlFlow::Break(()),
                }
            })
            .await
        }
    });
    assert!(running.await.unwrap_err().is_panic());
    settle().await;
    assert!(!turns.network.store.snapshot(RESOURCE).await.unwrap().held);
}

/// An operator keeps the old leader out; it waits until it may come back.
#[tokio::test(start_paused = true)]
async fn who_is_held_off_comes_back_afterwards() {
    let store = Arc::new(MemorySerializer::new());
    let epochs = Epochs::default();
    let leader = spawn(lead_for_ever(store.clone(), "a", epochs.clone()));
    while epochs.lock().unwrap().is_empty() {
        tokio::time::sleep(SECOND / 10).await;
    }
    let hold_off = 100 * SECOND;
    revoke_with_hold_off(&*store, RESOURCE, "operator", None, hold_off)
        .await
        .unwrap();
    tokio::time::sleep(hold_off - SECOND).await;
    assert_eq!(epochs.lock().unwrap().len(), 1, "kept out");
    tokio::time::sleep(20 * SECOND).await;
    assert_eq!(epochs.lock().unwrap().len(), 2, "and back");
    leader.abort();
}

/// Roles may be reloading; who stays unauthorized hears of it.
#[tokio::test(start_paused = true)]
async fn who_stays_unauthorized_is_told() {
    let turns = Turns::new(Turn::AtOnce);
    turns.script([
        Turn::Denied(DenyReason::Unauthorized),
        Turn::Denied(DenyReason::Unauthorized),
    ]);
    let value = run_while_leader(turns.clone(), RESOURCE, "a", options(), |_| async {
        ControlFlow::Break(7)
    })
    .await;
    assert_eq!(value.unwrap(), 7, "for a moment only");
    turns.always(Turn::Denied(DenyReason::Unauthorized));
    let clock = SystemClock::new();
    let started = clock.now();
    let error = lead_for_ever(turns.clone(), "a", Epochs::default())
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Stop, "{error}");
    let took = virtual_since(&clock, started);
    assert!(took >= TTL && took < TTL * 2, "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn errors_that_do_not_pass_end_the_call_and_others_are_waited_out() {
    let turns = Turns::new(Turn::Closed);
    let error = lead_for_ever(turns, "a", Epochs::default())
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Stop);

    let turns = Turns::new(Turn::AtOnce);
    let error = run_while_leader(turns, "", "a", options(), |_| async {
        ControlFlow::Break(())
    })
    .await
    .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::FixCall);

    // A long outage: first of the serializer, then of its network.
    let turns = Turns::new(Turn::Unavailable);
    let epochs = Epochs::default();
    let leader = spawn(lead_for_ever(turns.clone(), "a", epochs.clone()));
    tokio::time::sleep(TTL * 20).await;
    turns.always(Turn::Silent);
    tokio::time::sleep(TTL * 20).await;
    turns.always(Turn::AtOnce);
    tokio::time::sleep(TTL * 4).await;
    assert_eq!(*epochs.lock().unwrap(), [1]);
    leader.abort();
}

/// The work is done, and the serializer does not answer the release: the value is not lost.
#[tokio::test(start_paused = true)]
async fn a_value_is_not_lost_when_its_release_fails() {
    let turns = Turns::new(Turn::AtOnce);
    support::turns::cut(&turns);
    let value = run_while_leader(turns.clone(), RESOURCE, "a", options(), |_| async {
        ControlFlow::Break("done")
    })
    .await;
    assert_eq!(value.unwrap(), "done");
}

/// Stepping down into a failure that does not pass ends the call; one that may pass does not.
#[tokio::test(start_paused = true)]
async fn stepping_down_fails_for_good_or_for_a_while() {
    let turns = Turns::new(Turn::AtOnce);
    turns.network.script([Fault::Closed]);
    let error = run_while_leader(turns.clone(), RESOURCE, "a", options(), |_| async {
        ControlFlow::<()>::Continue(())
    })
    .await
    .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Stop, "{error}");

    let turns = Turns::new(Turn::AtOnce);
    support::turns::cut(&turns);
    let terms = Arc::<AtomicUsize>::default();
    let leader = spawn({
        let (turns, terms) = (turns.clone(), terms.clone());
        run_while_leader(turns, RESOURCE, "a", options(), move |_| {
            let term = terms.fetch_add(1, Ordering::SeqCst);
            async move {
                match term {
                    0 => ControlFlow::Continue(()),
                    _ => ControlFlow::Break(term),
                }
            }
        })
    });
    tokio::time::sleep(TTL / 2).await;
    assert_eq!(terms.load(Ordering::SeqCst), 1, "it cannot release");
    turns.network.always(Fault::None);
    assert_eq!(leader.await.unwrap().unwrap(), 1, "and leads again");
}

/// Where there is no queue, an outage is waited out too, and a store that cannot even be asked says so.
#[tokio::test(start_paused = true)]
async fn without_a_queue_an_outage_passes_and_a_store_that_cannot_grant_ends_the_call() {
    let turns = Turns::new(Turn::Unsupported);
    support::turns::cut(&turns);
    let epochs = Epochs::default();
    let leader = spawn(lead_for_ever(turns.clone(), "a", epochs.clone()));
    tokio::time::sleep(TTL * 20).await;
    assert!(!leader.is_finished() && epochs.lock().unwrap().is_empty());
    turns.network.always(Fault::None);
    tokio::time::sleep(TTL * 4).await;
    assert_eq!(*epochs.lock().unwrap(), [1]);
    leader.abort();

    let turns = Turns::new(Turn::Unsupported);
    turns.network.always(Fault::Unsupported);
    let error = lead_for_ever(turns, "a", Epochs::default())
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::FixCall, "{error}");
}

/// Time on the test's own clock alone: the machine's may be busy.
fn virtual_since(clock: &SystemClock, started: Moment) -> Duration {
    clock.now().monotonic - started.monotonic
}

/// A task of the test's own, on its own runtime.
fn spawn<T: Send + 'static>(
    task: impl Future<Output = T> + Send + 'static,
) -> tokio::task::JoinHandle<T> {
    tokio::runtime::Handle::current().spawn(task)
}
