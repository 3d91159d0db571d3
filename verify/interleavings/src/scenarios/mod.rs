//! What threads and tasks do, and what must hold whatever the order of their steps.
//!
//! | file | what meets |
//! |---|---|
//! | `gate.rs` | protected closures, releases, register writes |
//! | `queue.rs` | waiters, hand-overs, withdrawals, expiry |
//! | `rows.rs` | dropping rows, registry of watches |
//! | `schedule.rs` | leases that join and leave, batches in flight, the task's end |
//! | `handle.rs` | release, renewal, loss, guard, drop |

mod engine;
mod gate;
mod handle;
mod queue;
mod rows;
mod schedule;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use aster_core::{Fence, GrantId, LeaseOp, Principal, TransitionOutcome, Ttl};
use shuttle::future::block_on;
use shuttle::thread::JoinHandle;
use stand_in::{point, tokio, world};

use super::lease::{
    Clock, Entropy, EntropyError, LeaseSerializer, MemoryOptions, MemorySerializer, Moment,
    SerializerError,
};
use crate::explore::Scenario;
use crate::record::Record;

/// All scenarios.
pub(crate) const ALL: &[Scenario] = &[
    gate::CLOSURES_EXCLUDE,
    gate::RELEASE_WAITS,
    gate::WAITING_WRITE,
    queue::HAND_OVER,
    queue::DROPPED_WAITER,
    queue::CANCELLED_WISH,
    queue::EXPIRY,
    queue::CLOSURE_OUTLIVES,
    queue::RESTART,
    queue::ASKED_TWICE,
    rows::DROPPED_ROWS,
    rows::WATCHES,
    rows::FAILED_WATCH,
    gate::REGISTERS,
    schedule::LAST_LEAVES,
    schedule::LEAVES_TWICE,
    schedule::TAKES_ITS_PLACE,
    schedule::TAKES_ITS_PLACE_IN_A_BATCH,
    schedule::ONE_SCHEDULE,
    schedule::JOINS_A_SLEEPER,
    schedule::RUNTIME_STOPS,
    handle::RELEASE_AGAINST_RENEWAL,
    handle::RELEASED_TWICE,
    handle::ENDS_ONCE,
    handle::GUARD_AGAINST_RELEASE,
    handle::GUARD_AGAINST_LOSS,
    handle::DROP,
    handle::DROPPED_ACQUIRE,
    handle::ENGINE_QUEUE,
    handle::ENDED_IS_FINAL,
    handle::ONE_USABLE_FENCE,
    handle::ONE_USABLE_GRANT,
];

const RESOURCE: &str = "catalog/current";
const TTL: Duration = Duration::from_secs(30);
/// Nothing here waits for longer than a few ttls of the world's time.
const LONGEST: Duration = Duration::from_secs(600);

/// The world's time, for the store and the engine. A point.
#[derive(Debug)]
struct WorldClock;

impl Clock for WorldClock {
    fn now(&self) -> Moment {
        point();
        let now = world::now();
        Moment {
            monotonic: now,
            boot: now,
        }
    }

    fn unix_ms(&self) -> u64 {
        0
    }
}

/// Numbers that differ, the same in each execution.
#[derive(Debug, Default)]
struct Counting(AtomicU64);

impl Entropy for Counting {
    fn fill(&self, bytes: &mut [u8]) -> Result<(), EntropyError> {
        let number = self.0.fetch_add(1, Ordering::Relaxed) + 1;
        for (at, byte) in bytes.iter_mut().enumerate() {
            *byte = number.to_le_bytes()[at % 8];
        }
        Ok(())
    }
}

/// A store, and the record of its one resource.
#[derive(Debug, Clone)]
struct Place {
    store: MemorySerializer,
    record: Record,
    grants: Arc<AtomicU64>,
}

impl Place {
    fn new() -> Self {
        Self::with(|_| ())
    }

    fn with(change: impl FnOnce(&mut MemoryOptions)) -> Self {
        let mut options = MemoryOptions {
            clock: Arc::new(WorldClock),
            entropy: Arc::new(Counting::default()),
            ..MemoryOptions::default()
        };
        change(&mut options);
        let Ok(store) = MemorySerializer::with_options(options) else {
            panic!("this entropy does not fail")
        };
        Self {
            store,
            record: Record::default(),
            grants: Arc::default(),
        }
    }

    fn ask(&self, op: LeaseOp) -> Result<TransitionOutcome, SerializerError> {
        block_on(self.store.transition(RESOURCE, op))
    }

    fn wish(&self, holder: &str, ttl: Duration) -> LeaseOp {
        LeaseOp::Acquire {
            candidate: principal(holder),
            ttl: ttl_of(ttl),
            grant_id: self.grant_id(),
        }
    }

    fn grant_id(&self) -> GrantId {
        let number = self.grants.fetch_add(1, Ordering::Relaxed) + 1;
        GrantId::from_bytes(u128::from(number).to_le_bytes())
    }

    /// Acquires the resource, which has to be free.
    fn acquire(&self, holder: &str) -> Fence {
        self.acquire_for(holder, TTL)
    }

    fn acquire_for(&self, holder: &str, ttl: Duration) -> Fence {
        match self.try_acquire(holder, ttl) {
            Some(fence) => fence,
            None => panic!("BROKEN released is free: {holder} was denied"),
        }
    }

    fn try_acquire(&self, holder: &str, ttl: Duration) -> Option<Fence> {
        let ended_up_to = self.record.ended_up_to();
        match self.ask(self.wish(holder, ttl)) {
            Ok(TransitionOutcome::Granted(fence)) => {
                self.record.granted(fence.epoch, ended_up_to);
                Some(fence)
            }
            Ok(TransitionOutcome::Denied(..)) => None,
            other => panic!("BROKEN an acquire was answered with {other:?}"),
        }
    }

    fn release(&self, fence: &Fence) {
        let op = LeaseOp::Release {
            holder: fence.holder.clone(),
            epoch: fence.epoch,
        };
        match self.ask(op) {
            Ok(TransitionOutcome::Released) => self.record.ended(fence.epoch),
            other => panic!("BROKEN a release by the holder was answered with {other:?}"),
        }
    }

    /// A protected write, recorded by its closure. Whether it was accepted.
    fn write(&self, fence: &Fence) -> bool {
        self.write_for(fence, point)
    }

    /// The same with something to do within.
    fn write_for(&self, fence: &Fence, work: impl FnOnce()) -> bool {
        let writer = fence.holder.to_string();
        let accepted = self.store.mutate_fenced(fence, &writer, || {
            self.record.write_begins(fence.epoch);
            work();
            self.record.write_ends();
        });
        accepted.is_ok()
    }
}

fn principal(holder: &str) -> Principal {
    match Principal::new(holder) {
        Ok(principal) => principal,
        Err(error) => panic!("{holder}: {error}"),
    }
}

fn ttl_of(ttl: Duration) -> Ttl {
    match Ttl::new(ttl) {
        Ok(ttl) => ttl,
        Err(error) => panic!("{ttl:?}: {error}"),
    }
}

/// A thread of the scheduler.
fn thread<R: Send + 'static>(work: impl FnOnce() -> R + Send + 'static) -> JoinHandle<R> {
    shuttle::thread::spawn(work)
}

fn join<R>(thread: JoinHandle<R>) -> R {
    match thread.join() {
        Ok(result) => result,
        Err(panic) => std::panic::resume_unwind(panic),
    }
}

/// A task of the world's runtime.
fn task(work: impl Future<Output = ()> + Send + 'static) -> tokio::task::JoinHandle {
    match tokio::runtime::Handle::try_current() {
        Ok(runtime) => runtime.spawn(work),
        Err(error) => panic!("{error}"),
    }
}

fn sleep(time: Duration) {
    block_on(tokio::time::sleep(time));
}

/// Where time is patient: until nobody has anything to do.
fn until_idle() {
    sleep(Duration::from_nanos(1));
}

/// No task of the engine's is there any more, once everyone has gone.
fn nothing_is_left() {
    until_idle();
    let tasks = world::tasks();
    assert_eq!(
        tasks, 0,
        "BROKEN nothing is left behind: {tasks} tasks go on"
    );
}
