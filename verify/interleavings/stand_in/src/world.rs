//! One execution's time, timers and tasks.
//!
//! Time stands still until the *driver*, a task of the scheduler like any other, moves it to the next
//! timer. The scheduler lets it run only when nothing else can, so whatever takes no time must be done at
//! once; or, once a scenario says [`hurry`], at any point.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::future::poll_fn;
use std::sync::{Arc, Weak};
use std::task::{Poll, Waker};
use std::time::Duration;

use crate::tokio::task::Cell;

/// The scheduler's number of the driver: the first task that an execution starts.
pub const DRIVER: usize = 1;

/// A timer's place in the order in which they fire.
pub(crate) type TimerId = (Duration, u64);

#[derive(Default)]
struct World {
    now: Duration,
    end: Duration,
    timers: BTreeMap<TimerId, Option<Waker>>,
    timer_next: u64,
    driver: Option<Waker>,
    is_over: bool,
    is_hurried: bool,
    tasks: Vec<Weak<Cell>>,
    task_next: u64,
    is_stopped: bool,
}

thread_local! {
    // One execution at a time runs on a thread of the system, and none of its points lies within a
    // borrow of this.
    static WORLD: RefCell<World> = RefCell::default();
}

fn with<R>(look: impl FnOnce(&mut World) -> R) -> R {
    WORLD.with_borrow_mut(look)
}

/// Begins an execution's world at zero. To be called first, before anything is spawned. A scenario that
/// takes longer than `longest` of the world's time has failed: somebody waits for what never comes.
pub fn begin(longest: Duration) {
    with(|world| {
        *world = World {
            end: longest,
            ..World::default()
        }
    });
    // Detached, as every task of this world.
    drop(shuttle::future::spawn(drive()));
}

async fn drive() {
    assert_eq!(
        usize::from(shuttle::current::me()),
        DRIVER,
        "the world begins before anything else"
    );
    loop {
        let step = poll_fn(|context| {
            with(|world| {
                if world.is_over {
                    return Poll::Ready(None);
                }
                match world.timers.pop_first() {
                    Some(((at, _), waker)) => {
                        world.now = world.now.max(at);
                        Poll::Ready(Some((world.now > world.end, waker)))
                    }
                    None => {
                        world.driver = Some(context.waker().clone());
                        Poll::Pending
                    }
                }
            })
        });
        let Some((is_late, waker)) = step.await else {
            return;
        };
        assert!(
            !is_late,
            "somebody still waits, long after everything should be done"
        );
        if let Some(waker) = waker {
            waker.wake();
        }
        shuttle::future::yield_now().await;
    }
}

/// From now on time may move at any point, as if everyone had been stopped for that long, and not only
/// when nobody can run.
pub fn hurry() {
    with(|world| world.is_hurried = true);
}

/// Whether time may move while somebody can run.
#[must_use]
pub fn is_hurried() -> bool {
    with(|world| world.is_hurried)
}

/// Ends the world: time moves no more.
pub fn end() {
    let driver = with(|world| {
        world.is_over = true;
        world.driver.take()
    });
    if let Some(driver) = driver {
        driver.wake();
    }
}

/// The time since the world began. Not a point.
#[must_use]
pub fn now() -> Duration {
    with(|world| world.now)
}

/// How many tasks there are that were spawned and have not ended.
#[must_use]
pub fn tasks() -> usize {
    with(|world| {
        world.tasks.retain(|task| task.strong_count() > 0);
        world.tasks.len()
    })
}

/// As when a runtime is shut down: every task is dropped where it waits, and what is spawned from now
/// on never runs.
pub fn stop_runtime() {
    crate::point();
    let tasks = with(|world| {
        world.is_stopped = true;
        std::mem::take(&mut world.tasks)
    });
    for task in &tasks {
        if let Some(task) = task.upgrade() {
            task.abort();
        }
    }
    with(|world| world.tasks.extend(tasks));
}

pub(crate) fn is_stopped() -> bool {
    with(|world| world.is_stopped)
}

/// Takes in a task, and numbers it.
pub(crate) fn add_task(make: impl FnOnce(u64) -> Arc<Cell>) -> Arc<Cell> {
    with(|world| {
        world.task_next += 1;
        let task = make(world.task_next);
        world.tasks.push(Arc::downgrade(&task));
        task
    })
}

/// A timer that fires at `at`.
pub(crate) fn add_timer(at: Duration) -> TimerId {
    let (id, driver) = with(|world| {
        world.timer_next += 1;
        let id = (at, world.timer_next);
        world.timers.insert(id, None);
        (id, world.driver.take())
    });
    if let Some(driver) = driver {
        driver.wake();
    }
    id
}

/// Whether the timer has fired; if not, `waker` is told.
pub(crate) fn poll_timer(id: TimerId, waker: &Waker) -> bool {
    with(|world| match world.timers.get_mut(&id) {
        Some(told) => {
            *told = Some(waker.clone());
            false
        }
        None => true,
    })
}

pub(crate) fn remove_timer(id: TimerId) {
    // Also when the thread's own storage is gone already.
    let _ = WORLD.try_with(|world| {
        if let Ok(mut world) = world.try_borrow_mut() {
            world.timers.remove(&id);
        }
    });
}
