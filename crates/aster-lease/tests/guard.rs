//! Guarded work ends with its lease, and before its release.

mod support;

use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::thread::JoinHandle;
use std::time::Duration;

use aster_lease::{
    AcquireOutcome, EndedReason, ErrorKind, LeaseEnded, LeaseError, LeaseHandle, LeaseSerializer,
    LeaseStatus, MemorySerializer, Moment, ReleaseOutcome, SystemClock, revoke,
};
use aster_lease::{Clock, LeaseOp};
use support::{
    DrivenClock, Fault, Faulty, RESOURCE, SuspendedClock, TTL, granted, options, principal, settle,
    store_at,
};

const SECOND: Duration = Duration::from_secs(1);

/// Work that never finishes by itself: it counts its polls and notes when it is dropped.
struct Work {
    polls: Arc<AtomicUsize>,
    log: Log,
}

type Log = Arc<Mutex<Vec<&'static str>>>;

impl Work {
    fn new(log: &Log) -> (Self, Arc<AtomicUsize>) {
        let polls = Arc::<AtomicUsize>::default();
        let work = Self {
            polls: polls.clone(),
            log: log.clone(),
        };
        (work, polls)
    }
}

impl Future for Work {
    type Output = ();

    fn poll(self: Pin<&mut Self>, _context: &mut Context<'_>) -> Poll<()> {
        self.polls.fetch_add(1, Ordering::SeqCst);
        Poll::Pending
    }
}

impl Drop for Work {
    fn drop(&mut self) {
        note(&self.log, "work dropped");
    }
}

#[allow(clippy::unwrap_used, reason = "test code outside a #[test] function")]
fn note(log: &Log, line: &'static str) {
    log.lock().unwrap().push(line);
}

#[allow(clippy::unwrap_used, reason = "test code outside a #[test] function")]
fn noted(log: &Log) -> Vec<&'static str> {
    log.lock().unwrap().clone()
}

fn poll_once<F: Future>(future: Pin<&mut F>) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(Waker::noop()))
}

#[tokio::test(start_paused = true)]
async fn work_that_finishes_is_answered_and_delays_no_release() {
    let store = Arc::new(MemorySerializer::new());
    let lease = granted(&store, "a").await;
    // Neither 'static nor Send: it borrows, and holds an Rc across an await.
    let (borrowed, local) = (String::from("borrowed"), Rc::new(7));
    let work = async {
        tokio::time::sleep(TTL * 3).await;
        (borrowed.as_str(), *local)
    };
    assert_eq!(lease.guard(work).await, Ok(("borrowed", 7)));
    let clock = SystemClock::new();
    let before = clock.now();
    assert_eq!(lease.release().await.unwrap(), ReleaseOutcome::Released);
    assert_eq!(clock.now().monotonic, before.monotonic);
}

#[tokio::test(start_paused = true)]
async fn work_is_dropped_when_the_lease_is_lost() {
    for (name, reason) in [
        ("revoke", EndedReason::Revoked),
        ("cut", EndedReason::Unreachable),
        ("closed", EndedReason::StoreRefused),
        ("drop", EndedReason::Dropped),
    ] {
        let network = Faulty::new();
        let lease = granted(&network, "a").await;
        let log = Log::default();
        let (work, polls) = Work::new(&log);
        let guard = spawn(lease.guard(work));
        settle().await;
        assert!(polls.load(Ordering::SeqCst) > 0);
        let mut kept = Some(lease);
        match name {
            "revoke" => {
                let revoked = revoke(&network.store, RESOURCE, "operator", None).await;
                assert!(revoked.is_ok());
            }
            "cut" => network.always(Fault::RequestLost),
            "closed" => network.always(Fault::Closed),
            _ => kept = None,
        }
        let ended = tokio::time::timeout(TTL, guard).await.unwrap().unwrap();
        assert_eq!(ended, Err(LeaseEnded { reason }), "{name}");
        assert_eq!(noted(&log), ["work dropped"], "{name}");
        drop(kept);
    }
}

/// The guard's own task was stuck while the lease ran out: the work does not run once more.
#[tokio::test(start_paused = true)]
async fn a_guard_that_is_polled_late_does_not_poll_its_work_again() {
    let store = Arc::new(MemorySerializer::new());
    let clock = SuspendedClock::new();
    let outcome = LeaseHandle::builder(store, RESOURCE, "a")
        .options(options())
        .clock(clock.clone())
        .acquire()
        .await;
    let Ok(AcquireOutcome::Granted(lease)) = outcome else {
        panic!("{outcome:?}")
    };
    let log = Log::default();
    let (work, polls) = Work::new(&log);
    let mut guard = pin!(lease.guard(work));
    assert!(poll_once(guard.as_mut()).is_pending());
    assert!(poll_once(guard.as_mut()).is_pending());
    assert_eq!(polls.load(Ordering::SeqCst), 2);
    clock.suspend(TTL);
    let reason = EndedReason::Unreachable;
    assert_eq!(
        poll_once(guard.as_mut()),
        Poll::Ready(Err(LeaseEnded { reason }))
    );
    assert_eq!(polls.load(Ordering::SeqCst), 2);
    assert_eq!(noted(&log), ["work dropped"]);
    // And work that had not begun does not begin.
    let (work, polls) = Work::new(&log);
    assert_eq!(lease.guard(work).await, Err(LeaseEnded { reason }));
    assert_eq!(polls.load(Ordering::SeqCst), 0);
}

/// The lease's own runtime stands still and renews nothing, tells nothing; the guard runs elsewhere.
#[test]
fn a_guard_notices_the_end_although_no_task_tells_it() {
    let clock = Arc::new(DrivenClock::default());
    let store = Arc::new(store_at(&clock));
    let runtime = || {
        tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .unwrap()
    };
    let (stuck, other) = (runtime(), runtime());
    let outcome = stuck.block_on(
        LeaseHandle::builder(store, RESOURCE, "a")
            .options(options())
            .clock(clock.clone())
            .acquire(),
    );
    let Ok(AcquireOutcome::Granted(lease)) = outcome else {
        panic!("{outcome:?}")
    };
    let log = Log::default();
    let (work, _) = Work::new(&log);
    let guard = lease.guard(work);
    other.block_on(async move {
        let guard = spawn(guard);
        settle().await;
        clock.advance(TTL);
        let ended = tokio::time::timeout(SECOND + SECOND / 100, guard).await;
        let reason = EndedReason::Unreachable;
        assert_eq!(ended.unwrap().unwrap(), Err(LeaseEnded { reason }));
    });
    assert_eq!(noted(&log), ["work dropped"]);
}

#[tokio::test(start_paused = true)]
async fn release_ends_the_fence_first_then_the_work_then_the_row() {
    let network = Faulty::new();
    let lease = granted(&network, "a").await;
    let log = Log::default();
    let guards: Vec<_> = (0..3)
        .map(|_| spawn(lease.guard(Work::new(&log).0)))
        .collect();
    settle().await;
    let mut release = pin!(lease.release());
    assert!(lease.fence().is_none(), "from the call's start");
    assert!(poll_once(release.as_mut()).is_pending());
    assert_eq!(network.count("release"), 0, "the work first");
    settle().await;
    assert_eq!(noted(&log).len(), 3, "the guards were woken");
    assert_eq!(network.count("release"), 0);
    assert_eq!(release.await.unwrap(), ReleaseOutcome::Released);
    for guard in guards {
        let reason = EndedReason::Released;
        assert_eq!(guard.await.unwrap(), Err(LeaseEnded { reason }));
    }
}

/// Nobody polls the guard any more, so its work cannot run again: the release does not wait for it
/// for long.
#[tokio::test(start_paused = true)]
async fn a_guard_that_is_left_alone_delays_a_release_for_a_moment_only() {
    let network = Faulty::new();
    let lease = granted(&network, "a").await;
    let log = Log::default();
    let (work, polls) = Work::new(&log);
    let mut left_alone = pin!(lease.guard(work));
    assert!(poll_once(left_alone.as_mut()).is_pending());
    let clock = SystemClock::new();
    let before = clock.now();
    assert_eq!(lease.release().await.unwrap(), ReleaseOutcome::Released);
    let took = virtual_since(&clock, before);
    assert!(took > Duration::ZERO && took < SECOND / 2, "{took:?}");
    let _next = granted(&network, "b").await;
    // Polled after all: it still does not run.
    let reason = EndedReason::Released;
    assert_eq!(
        poll_once(left_alone.as_mut()),
        Poll::Ready(Err(LeaseEnded { reason }))
    );
    assert_eq!(polls.load(Ordering::SeqCst), 1);
}

/// A guard that was never polled has not begun, one that was dropped is gone, and a panic is an end:
/// none of them delays a release.
#[tokio::test(start_paused = true)]
async fn guards_that_have_no_work_left_delay_nothing() {
    let store = Arc::new(MemorySerializer::new());
    let lease = granted(&store, "a").await;
    let log = Log::default();
    let never_polled = lease.guard(Work::new(&log).0);
    {
        let mut dropped = pin!(lease.guard(Work::new(&log).0));
        assert!(poll_once(dropped.as_mut()).is_pending());
    }
    assert_eq!(noted(&log), ["work dropped"]);
    let panicked = spawn(lease.guard(async { panic!("the work failed") })).await;
    assert!(panicked.unwrap_err().is_panic());
    assert_eq!(lease.status(), LeaseStatus::Held, "its panic is its own");
    let clock = SystemClock::new();
    let before = clock.now();
    assert_eq!(lease.release().await.unwrap(), ReleaseOutcome::Released);
    assert_eq!(clock.now().monotonic, before.monotonic);
    drop(never_polled);
}

/// The misuse that the documentation names: a bounded end, no hang, free after the ttl.
#[tokio::test(start_paused = true)]
async fn work_that_releases_its_own_lease_ends_itself() {
    let network = Faulty::with_yields(1);
    let lease = Arc::new(granted(&network, "a").await);
    let inner = lease.clone();
    let ended = lease
        .guard(async move { inner.release().await.is_ok() })
        .await;
    let reason = EndedReason::Released;
    assert_eq!(ended, Err(LeaseEnded { reason }));
    assert_eq!(lease.release().await.unwrap(), ReleaseOutcome::Released);
}

/// Work that blocks its thread at a named step until the test lets it go on.
struct Blocking {
    at_step: Receiver<()>,
    go_on: Sender<()>,
    thread: JoinHandle<Option<Result<(), LeaseEnded>>>,
}

/// Where the work blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum At {
    /// While it is polled.
    Poll,
    /// While its guard drops it, because the lease has ended.
    Drop,
    /// While it is dropped with its guard.
    GuardDropped,
}

/// Polls a guard on a plain thread until it is done, or drops it there.
#[allow(clippy::unwrap_used, reason = "test code outside a #[test] function")]
fn blocking(lease: &LeaseHandle, log: &Log, at: At) -> Blocking {
    let in_drop = at != At::Poll;
    struct Step {
        reached: Sender<()>,
        go_on: Receiver<()>,
        log: Log,
        in_drop: bool,
        is_done: bool,
    }
    impl Step {
        fn run(&mut self) {
            self.reached.send(()).unwrap();
            self.go_on.recv().unwrap();
            note(&self.log, "work ran");
            self.is_done = true;
        }
    }
    impl Future for Step {
        type Output = ();
        fn poll(mut self: Pin<&mut Self>, _context: &mut Context<'_>) -> Poll<()> {
            if !self.in_drop && !self.is_done {
                self.run();
            }
            Poll::Pending
        }
    }
    impl Drop for Step {
        fn drop(&mut self) {
            if self.in_drop {
                self.run();
            }
        }
    }
    let (reached, at_step) = mpsc::channel();
    let (go_on, until) = mpsc::channel();
    let step = Step {
        reached,
        go_on: until,
        log: log.clone(),
        in_drop,
        is_done: false,
    };
    let mut guard = Box::pin(lease.guard(step));
    if in_drop {
        assert!(poll_once(guard.as_mut()).is_pending());
    }
    let lost = lease.lost();
    let run = move || {
        let mut lost = Box::pin(lost);
        loop {
            if in_drop && poll_once(lost.as_mut()).is_pending() {
                std::thread::yield_now();
            } else if at == At::GuardDropped {
                return None;
            } else if let Poll::Ready(output) = poll_once(guard.as_mut()) {
                return Some(output);
            }
        }
    };
    let thread = std::thread::Builder::new().spawn(run).unwrap();
    Blocking {
        at_step,
        go_on,
        thread,
    }
}

/// The work is in the middle of a step when its lease is released. The next owner comes after it.
#[tokio::test(start_paused = true)]
async fn a_release_waits_for_work_in_the_middle_of_a_step() {
    for at in [At::Poll, At::Drop, At::GuardDropped] {
        let network = Faulty::new();
        let lease = granted(&network, "a").await;
        let log = Log::default();
        let work = blocking(&lease, &log, at);
        if at == At::Poll {
            work.at_step.recv().unwrap();
        }
        let mut release = pin!(lease.release());
        if at != At::Poll {
            work.at_step.recv().unwrap();
        }
        assert!(poll_once(release.as_mut()).is_pending());
        settle().await;
        assert_eq!(network.count("release"), 0, "not under running work");
        work.go_on.send(()).unwrap();
        let reason = EndedReason::Released;
        let ended = match at {
            At::GuardDropped => None,
            _ => Some(Err(LeaseEnded { reason })),
        };
        assert_eq!(work.thread.join().unwrap(), ended);
        assert_eq!(release.await.unwrap(), ReleaseOutcome::Released);
        let _next = granted(&network, "b").await;
        note(&log, "next granted");
        assert_eq!(noted(&log), ["work ran", "next granted"], "{at:?}");
    }
}

/// The control: a release that does not wait lets the work run in the time of the next owner.
#[tokio::test(start_paused = true)]
async fn control_without_the_wait_work_runs_after_the_next_grant() {
    let network = Faulty::new();
    let lease = granted(&network, "a").await;
    let log = Log::default();
    let work = blocking(&lease, &log, At::Poll);
    work.at_step.recv().unwrap();
    let op = LeaseOp::Release {
        holder: principal("a"),
        epoch: lease.epoch(),
    };
    network.store.transition(RESOURCE, op).await.unwrap();
    let _next = granted(&Arc::new(network.store.clone()), "b").await;
    note(&log, "next granted");
    work.go_on.send(()).unwrap();
    drop(lease);
    assert!(work.thread.join().unwrap().unwrap().is_err());
    assert_eq!(noted(&log), ["next granted", "work ran"]);
}

/// Work that does not come back: the resource is not released under it.
#[tokio::test(start_paused = true)]
async fn a_release_gives_up_before_it_frees_the_row_under_running_work() {
    let network = Faulty::new();
    let lease = granted(&network, "a").await;
    let log = Log::default();
    let work = blocking(&lease, &log, At::Poll);
    work.at_step.recv().unwrap();
    let clock = SystemClock::new();
    let before = clock.now();
    let error = lease.release().await.unwrap_err();
    let took = virtual_since(&clock, before);
    assert!(took <= 10 * SECOND, "bounded: {took:?}");
    assert!(
        matches!(error, LeaseError::StillWorking { guards: 1 }),
        "{error}"
    );
    assert_eq!(error.kind(), ErrorKind::Retry);
    assert!(lease.fence().is_none());
    assert_eq!(network.count("release"), 0);
    assert!(network.store.snapshot(RESOURCE).await.unwrap().held);
    // Once it has come back, the same release goes through.
    work.go_on.send(()).unwrap();
    assert!(work.thread.join().unwrap().unwrap().is_err());
    assert_eq!(lease.release().await.unwrap(), ReleaseOutcome::Released);
    assert_eq!(noted(&log), ["work ran"]);
}

/// Work that ends while a release waits gives the rest of the work no more time than there was.
#[tokio::test(start_paused = true)]
async fn a_release_waits_no_longer_because_some_of_the_work_has_ended() {
    let network = Faulty::new();
    let lease = granted(&network, "a").await;
    let log = Log::default();
    let work: [Blocking; 2] = [(); 2].map(|()| blocking(&lease, &log, At::Poll));
    for work in &work {
        work.at_step.recv().unwrap();
    }
    let [ends, stays] = work;
    let clock = SystemClock::new();
    let before = clock.now();
    let release = spawn(lease.release());
    tokio::time::sleep(4 * SECOND).await;
    ends.go_on.send(()).unwrap();
    assert!(ends.thread.join().unwrap().unwrap().is_err());
    let error = release.await.unwrap().unwrap_err();
    assert!(virtual_since(&clock, before) <= 10 * SECOND, "{error}");
    assert!(matches!(error, LeaseError::StillWorking { guards: 1 }));
    stays.go_on.send(()).unwrap();
    assert!(stays.thread.join().unwrap().unwrap().is_err());
}

/// A thousand leases with guards are given up at once, on several threads, while their runtime shuts
/// down under them: nothing hangs, nothing panics, every guard has ended.
#[test]
fn a_thousand_releases_while_the_runtime_shuts_down() {
    let store = Arc::new(MemorySerializer::new());
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_time()
        .build()
        .unwrap();
    let mut guards = Vec::new();
    for number in 0..1_000 {
        let resource = format!("resource/{number}");
        let acquire = LeaseHandle::acquire(store.clone(), &resource, "a", options());
        let Ok(AcquireOutcome::Granted(lease)) = runtime.block_on(acquire) else {
            panic!("{resource} was not granted")
        };
        let lease = Arc::new(lease);
        guards.push(Box::pin(lease.guard(std::future::pending::<()>())));
        let lost = lease.lost();
        runtime.spawn(lease.guard(std::future::pending::<()>()));
        // A release from inside a callback that hears of the end, and one from outside.
        let inner = lease.clone();
        runtime.spawn(async move {
            lost.await;
            inner.release().await.is_ok()
        });
        runtime.spawn(async move { lease.release().await.is_ok() });
    }
    drop(runtime);
    for mut guard in guards {
        assert!(matches!(poll_once(guard.as_mut()), Poll::Ready(Err(_))));
    }
}

/// Guards polled in tight loops on two threads while the lease is released: whatever the schedule, no
/// work is seen to run once the next owner has its grant.
#[test]
fn no_schedule_lets_work_run_after_the_release() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .unwrap();
    let mut ran = 0;
    for _ in 0..300 {
        let store = Arc::new(MemorySerializer::new());
        let lease = runtime.block_on(granted(&store, "a"));
        let owner = Arc::new(AtomicUsize::new(1));
        let threads: Vec<_> = (0..2)
            .map(|_| {
                let owner = owner.clone();
                let guard = lease.guard(std::future::poll_fn(move |_| {
                    assert_eq!(owner.load(Ordering::SeqCst), 1, "the next owner's time");
                    Poll::<()>::Pending
                }));
                let run = move || {
                    let (mut guard, mut polls) = (Box::pin(guard), 0);
                    while poll_once(guard.as_mut()).is_pending() {
                        polls += 1;
                    }
                    polls
                };
                std::thread::Builder::new().spawn(run).unwrap()
            })
            .collect();
        std::thread::yield_now();
        runtime.block_on(lease.release()).unwrap();
        owner.store(2, Ordering::SeqCst);
        for thread in threads {
            ran += thread.join().unwrap();
        }
    }
    assert!(ran > 0, "some work ran before the release");
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
