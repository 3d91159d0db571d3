//! The engine and the memory store's queue together: who leads after whom, and what it costs.

mod support;

use std::ops::ControlFlow;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use aster_lease::{
    AcquireOutcome, CLAIM_TIME, Clock, DenyReason, EndedReason, LeaseError, LeaseHandle,
    LeaseSerializer, MemorySerializer, Moment, ReleaseOutcome, SystemClock, TransitionOutcome,
    revoke, run_while_leader,
};
use support::{Fault, Faulty, RESOURCE, TTL, acquire_raw, granted, options, settle};
use tokio::task::JoinHandle;

const SECOND: Duration = Duration::from_secs(1);
const LONG: Duration = Duration::from_secs(3_600);
const MOMENT: Duration = Duration::from_millis(5);

type Answer = Result<AcquireOutcome, LeaseError>;

fn wait<S: LeaseSerializer>(
    serializer: &Arc<S>,
    holder: &str,
    limit: Duration,
) -> Pin<Box<dyn Future<Output = Answer> + Send + 'static>> {
    let (serializer, holder) = (serializer.clone(), holder.to_owned());
    Box::pin(async move {
        LeaseHandle::acquire_wait(serializer, RESOURCE, &holder, options(), limit).await
    })
}

#[allow(clippy::panic, reason = "test code outside a #[test] function")]
fn lease_of(answer: Answer) -> LeaseHandle {
    match answer {
        Ok(AcquireOutcome::Granted(lease)) => lease,
        other => panic!("not granted: {other:?}"),
    }
}

/// Waiters in this order, each in a task of its own.
async fn waiters<S: LeaseSerializer>(
    serializer: &Arc<S>,
    holders: &[&str],
) -> Vec<JoinHandle<Answer>> {
    let mut waiting = Vec::new();
    for holder in holders {
        waiting.push(spawn(wait(serializer, holder, LONG)));
        settle().await;
    }
    waiting
}

#[tokio::test(start_paused = true)]
async fn a_release_hands_over_at_once_and_in_order() {
    let store = Arc::new(MemorySerializer::new());
    let mut lease = granted(&store, "first").await;
    let mut epoch = lease.epoch();
    for waiting in waiters(&store, &["a", "b", "c"]).await {
        // Longer than a ttl: the requests to wait are old by the time of their grant.
        tokio::time::sleep(TTL * 2).await;
        let clock = SystemClock::new();
        let released = clock.now();
        assert_eq!(lease.release().await.unwrap(), ReleaseOutcome::Released);
        lease = lease_of(waiting.await.unwrap());
        assert!(virtual_since(&clock, released) < MOMENT, "at once");
        assert_eq!(lease.epoch(), epoch + 2, "freed, then granted");
        assert!(lease.remaining().unwrap() > TTL / 2, "it lasts a whole ttl");
        epoch = lease.epoch();
    }
    tokio::time::sleep(TTL * 2).await;
    assert!(lease.fence().is_some(), "and is renewed");
}

#[tokio::test(start_paused = true)]
async fn an_expiry_and_a_revoke_hand_over_too() {
    let store = Arc::new(MemorySerializer::new());
    let first = granted(&store, "first").await;
    let mut waiting = waiters(&store, &["a", "b"]).await.into_iter();
    let clock = SystemClock::new();
    let dropped = clock.now();
    drop(first);
    let second = lease_of(waiting.next().unwrap().await.unwrap());
    let took = virtual_since(&clock, dropped);
    assert!(took >= TTL - MOMENT && took < TTL + SECOND, "{took:?}");

    let revoked = clock.now();
    revoke(&*store, RESOURCE, "operator", None).await.unwrap();
    let third = lease_of(waiting.next().unwrap().await.unwrap());
    assert!(virtual_since(&clock, revoked) < MOMENT, "at once");
    assert_eq!(second.lost().await, EndedReason::Superseded);
    assert!(third.fence().is_some());
}

/// The first in the queue is dead: its task never runs again. It costs about a claim time, not a ttl.
#[tokio::test(start_paused = true)]
async fn a_dead_head_costs_the_next_one_about_a_claim_time() {
    let store = Arc::new(MemorySerializer::new());
    let first = granted(&store, "first").await;
    let mut dead = wait(&store, "dead", LONG);
    assert!(poll_once(dead.as_mut()).is_pending());
    let waiting = waiters(&store, &["a"]).await.remove(0);
    let clock = SystemClock::new();
    let released = clock.now();
    first.release().await.unwrap();
    let lease = lease_of(waiting.await.unwrap());
    let took = virtual_since(&clock, released);
    assert!(took <= CLAIM_TIME + 2 * SECOND, "{took:?}");
    // It was only paused: it queues again, under a new id, and gets its turn.
    let paused = spawn(dead);
    settle().await;
    assert_eq!(store.queue(RESOURCE).await.unwrap().len(), 1);
    lease.release().await.unwrap();
    assert!(lease_of(paused.await.unwrap()).fence().is_some());
}

/// The granted one hears of its grant, but its renewal does not get through in time: no fence is
/// handed out for a grant that somebody else has by now.
#[tokio::test(start_paused = true)]
async fn a_claim_that_comes_too_late_queues_again() {
    let network = Faulty::new();
    let other = Faulty::over(network.store.clone());
    let first = granted(&other, "first").await;
    let slow = spawn(wait(&network, "slow", LONG));
    settle().await;
    let next = waiters(&other, &["next"]).await.remove(0);
    // The renewal that claims the grant is lost, and answered again only after the claim time.
    network.script([Fault::RequestLost]);
    first.release().await.unwrap();
    let lease = lease_of(next.await.unwrap());
    tokio::time::sleep(10 * SECOND).await;
    assert!(lease.fence().is_some());
    assert!(!slow.is_finished(), "it waits again");
    assert_eq!(network.store.queue(RESOURCE).await.unwrap().len(), 1);
    lease.release().await.unwrap();
    let slow = lease_of(slow.await.unwrap());
    assert_eq!(slow.epoch(), lease.epoch() + 2);
}

/// The queue is forgotten: everyone comes back under the same wish, and each is granted once.
#[tokio::test(start_paused = true)]
async fn a_restart_loses_nobody_and_grants_nobody_twice() {
    let store = Arc::new(MemorySerializer::new());
    let first = granted(&store, "first").await;
    let holders = ["a", "b", "c", "d", "e"];
    let waiting = waiters(&store, &holders).await;
    store.restart();
    settle().await;
    tokio::time::sleep(10 * SECOND).await;
    let queue = store.queue(RESOURCE).await.unwrap();
    assert_eq!(queue.len(), holders.len(), "all are back, once");
    first.release().await.unwrap();
    let epochs = Arc::new(Mutex::new(Vec::new()));
    let served = waiting.into_iter().map(|waiting| {
        let epochs = epochs.clone();
        spawn(async move {
            let lease = lease_of(waiting.await.unwrap());
            epochs.lock().unwrap().push(lease.epoch());
            lease.release().await.unwrap();
        })
    });
    for served in served.collect::<Vec<_>>() {
        served.await.unwrap();
    }
    assert_eq!(*epochs.lock().unwrap(), [3, 5, 7, 9, 11]);
    let row = store.snapshot(RESOURCE).await.unwrap();
    assert_eq!((row.held, row.epoch), (false, 12), "no ghost grant");
}

/// Everybody finishes, in order, and a hand-over costs the same few requests however long the queue.
#[tokio::test(start_paused = true)]
async fn five_hundred_waiters_finish_in_order_with_few_requests() {
    const WAITERS: usize = 500;
    let network = Faulty::new();
    let first = granted(&network, "first").await;
    let finished = Arc::new(Mutex::new(Vec::new()));
    let mut waiting = Vec::new();
    for number in 0..WAITERS {
        let (turn, finished) = (
            wait(&network, &format!("w{number}"), LONG),
            finished.clone(),
        );
        waiting.push(spawn(async move {
            let lease = lease_of(turn.await);
            assert!(lease.fence().is_some());
            finished.lock().unwrap().push(number);
            lease.release().await.unwrap();
        }));
        tokio::task::yield_now().await;
    }
    settle().await;
    assert_eq!(
        network.store.queue(RESOURCE).await.unwrap().len(),
        WAITERS,
        "a control: all of them wait"
    );
    let before = network.requests();
    first.release().await.unwrap();
    for waiting in waiting {
        waiting.await.unwrap();
    }
    let finished = finished.lock().unwrap();
    assert!(finished.is_sorted() && finished.len() == WAITERS);
    let requests = network.requests() - before;
    // A renewal and a release each; nobody else is woken to ask.
    assert!(requests <= 2 * WAITERS + 10, "{requests} requests");
}

/// Places are asked for again every so often; nobody loses its place by that.
#[tokio::test(start_paused = true)]
async fn a_long_wait_keeps_the_order() {
    let network = Faulty::new();
    let first = granted(&network, "first").await;
    let mut waiting = Vec::new();
    for (holder, limit) in [("a", 1_900), ("b", 3_600), ("c", 1_200)] {
        waiting.push(spawn(wait(&network, holder, Duration::from_secs(limit))));
        tokio::time::sleep(SECOND * 7).await;
    }
    tokio::time::sleep(SECOND * 1_000).await;
    assert!(network.waits() > 30, "a control: they were asked again");
    assert!(network.waits() < 150, "{} requests", network.waits());
    let queue = network.store.queue(RESOURCE).await.unwrap();
    let order: Vec<_> = queue.iter().map(|it| it.candidate.as_str()).collect();
    assert_eq!(order, ["a", "b", "c"]);
    first.release().await.unwrap();
    for waiting in waiting {
        let lease = lease_of(waiting.await.unwrap());
        lease.release().await.unwrap();
    }
}

/// A waiter that timed out is no ghost in the queue.
#[tokio::test(start_paused = true)]
async fn who_gave_up_waiting_stands_in_nobodys_way() {
    let store = Arc::new(MemorySerializer::new());
    let first = granted(&store, "first").await;
    for limit in [Duration::ZERO, SECOND] {
        let answer = wait(&store, "impatient", limit).await;
        let Ok(AcquireOutcome::Denied(reason, snapshot)) = answer else {
            panic!("{answer:?}")
        };
        assert_eq!(reason, DenyReason::WaitRanOut);
        assert_eq!(snapshot.holder.as_deref(), Some("first"));
    }
    assert!(store.queue(RESOURCE).await.unwrap().is_empty());
    first.release().await.unwrap();
    let third = granted(&store, "third").await;
    assert_eq!(third.epoch(), 3, "at once, and no grant in between");
}

/// Dropping the future at every await point: no place in the queue, no grant, whoever is next goes on.
#[tokio::test(start_paused = true)]
async fn dropping_a_waiter_at_any_await_leaves_nothing_behind() {
    let mut dropped_while = [0, 0];
    for polls in 1..40 {
        let network = Faulty::with_yields(2);
        let first = granted(&Arc::new(network.store.clone()), "first").await;
        let next = {
            let mut dropped = wait(&network, "dropped", LONG);
            assert!(poll_once(dropped.as_mut()).is_pending());
            let next = waiters(&Arc::new(network.store.clone()), &["next"])
                .await
                .remove(0);
            if polls % 2 == 0 {
                first.release().await.unwrap();
            }
            let mut finished = false;
            for _ in 1..polls {
                finished = finished || poll_once(dropped.as_mut()).is_ready();
                settle().await;
            }
            if finished {
                // Dropped with its lease inside.
                continue;
            }
            let queue = network.store.queue(RESOURCE).await.unwrap();
            let row = network.store.snapshot(RESOURCE).await.unwrap();
            let is_waiting = queue.iter().any(|it| it.candidate.as_str() == "dropped");
            dropped_while[0] += usize::from(is_waiting);
            dropped_while[1] += usize::from(row.holder.as_deref() == Some("dropped"));
            next
        };
        let queue = network.store.queue(RESOURCE).await.unwrap();
        assert!(queue.iter().all(|it| it.candidate.as_str() != "dropped"));
        settle().await;
        first.release().await.unwrap();
        let clock = SystemClock::new();
        let dropped = clock.now();
        let next = lease_of(next.await.unwrap());
        let took = virtual_since(&clock, dropped);
        assert!(took < MOMENT, "after {polls} polls: {took:?}");
        next.release().await.unwrap();
        assert!(matches!(
            acquire_raw(&network.store, "third", 3).await,
            TransitionOutcome::Granted(_)
        ));
    }
    assert!(
        dropped_while.iter().all(|&times| times > 0),
        "some drops met the queue, some a grant already made: {dropped_while:?}"
    );
}

/// Guarded work of one owner is over before the next waiter is granted.
#[tokio::test(start_paused = true)]
async fn guarded_work_ends_before_the_next_waiter_is_granted() {
    struct Notes(Arc<Mutex<Vec<&'static str>>>);
    impl Drop for Notes {
        fn drop(&mut self) {
            if let Ok(mut log) = self.0.lock() {
                log.push("work ended");
            }
        }
    }
    let store = Arc::new(MemorySerializer::new());
    let log = Arc::new(Mutex::new(Vec::new()));
    let lease = granted(&store, "first").await;
    let notes = Notes(log.clone());
    let work = spawn(lease.guard(async move {
        let _notes = notes;
        std::future::pending::<()>().await;
    }));
    let next = spawn({
        let (turn, log) = (wait(&store, "next", LONG), log.clone());
        async move {
            let lease = lease_of(turn.await);
            log.lock().unwrap().push("next granted");
            lease
        }
    });
    settle().await;
    lease.release().await.unwrap();
    assert!(next.await.unwrap().fence().is_some());
    assert!(work.await.unwrap().is_err());
    assert_eq!(*log.lock().unwrap(), ["work ended", "next granted"]);
}

/// Three candidates take turns: whoever steps down queues behind the others.
#[tokio::test(start_paused = true)]
async fn leaders_take_turns() {
    let store = Arc::new(MemorySerializer::new());
    let terms = Arc::new(Mutex::new(Vec::new()));
    let mut leaders = Vec::new();
    for holder in ["a", "b", "c"] {
        let (store, terms) = (store.clone(), terms.clone());
        leaders.push(spawn(async move {
            run_while_leader(store, RESOURCE, holder, options(), |lease| {
                let terms = terms.clone();
                async move {
                    terms.lock().unwrap().push(holder);
                    tokio::time::sleep(SECOND).await;
                    match lease.epoch() {
                        0..13 => ControlFlow::Continue(()),
                        _ => ControlFlow::Break(()),
                    }
                }
            })
            .await
        }));
        settle().await;
    }
    for leader in leaders {
        leader.await.unwrap().unwrap();
    }
    let terms = terms.lock().unwrap();
    assert_eq!(*terms, ["a", "b", "c", "a", "b", "c", "a", "b", "c"]);
}

/// Real threads, and callers that go away at random: there is one owner at a time, everybody who stays
/// gets its turns, and nothing is left at the end.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_crowd_in_which_many_go_away_has_one_owner_at_a_time() {
    const WORKERS: usize = 16;
    const TURNS: usize = 20;
    let store = Arc::new(MemorySerializer::new());
    let owners = Arc::new(AtomicUsize::new(0));
    let crowd = (0..WORKERS).map(|number| {
        let (store, owners) = (store.clone(), owners.clone());
        spawn(async move {
            let holder = format!("w{number}");
            for turn in 0..TURNS {
                // A request that is dropped after some polls, at a place that the schedule chooses.
                let mut dropped = wait(&store, &holder, LONG);
                for _ in 0..(number + turn) % 4 {
                    if let Poll::Ready(answer) = poll_once(dropped.as_mut()) {
                        lease_of(answer).release().await.unwrap();
                        break;
                    }
                    tokio::task::yield_now().await;
                }
                drop(dropped);
                let lease = lease_of(wait(&store, &holder, LONG).await);
                let fence = lease.fence().unwrap();
                store
                    .mutate_fenced(&fence, holder.as_str(), || {
                        assert_eq!(owners.fetch_add(1, Ordering::SeqCst), 0, "two owners");
                    })
                    .unwrap();
                tokio::task::yield_now().await;
                assert_eq!(owners.fetch_sub(1, Ordering::SeqCst), 1);
                lease.release().await.unwrap();
            }
        })
    });
    for worker in crowd.collect::<Vec<_>>() {
        worker.await.unwrap();
    }
    assert!(store.queue(RESOURCE).await.unwrap().is_empty());
    // The last cancels may still be on their way.
    while store.snapshot(RESOURCE).await.unwrap().held {
        tokio::task::yield_now().await;
    }
}

fn poll_once<F: Future + ?Sized>(future: Pin<&mut F>) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(Waker::noop()))
}

/// Time on the test's own clock alone: the machine's may be busy.
fn virtual_since(clock: &SystemClock, started: Moment) -> Duration {
    clock.now().monotonic - started.monotonic
}

/// A task of the test's own, on its own runtime.
fn spawn<T: Send + 'static>(task: impl Future<Output = T> + Send + 'static) -> JoinHandle<T> {
    tokio::runtime::Handle::current().spawn(task)
}
