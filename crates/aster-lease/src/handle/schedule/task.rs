//! The one task of a schedule.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use super::Schedule;
use super::flight::{Flights, Landing};
use super::timing::At;
use crate::handle::state::EndedReason;

/// How many calls may land before what is due is looked at again.
const LANDINGS_MAX: usize = 1_024;

/// What the task owns. However the task comes to its end, also if its runtime never ran it, this says
/// that nobody renews any more.
pub(super) struct Running {
    schedule: Arc<Schedule>,
    finished: bool,
}

impl Running {
    pub(super) fn new(schedule: Arc<Schedule>) -> Self {
        Self {
            schedule,
            finished: false,
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if self.finished {
            return;
        }
        let mut state = self.schedule.lock();
        state.running = false;
        let stranded = state.table.drain();
        drop(state);
        for lease in stranded {
            lease.end(EndedReason::RuntimeStopped);
        }
    }
}

/// Renews until there is no lease left.
pub(super) async fn run(mut running: Running) {
    let schedule = running.schedule.clone();
    let mut flights = Flights::default();
    loop {
        let Some(next) = send_due(&schedule, &mut flights) else {
            running.finished = true;
            return;
        };
        match next {
            Next::Now => tokio::task::yield_now().await,
            Next::In(pause) => {
                if let Some(landing) = wait(&schedule, &mut flights, pause).await {
                    land(&schedule, landing);
                }
            }
        }
        land_others(&schedule, &mut flights).await;
    }
}

enum Next {
    /// There is more to do than one step does.
    Now,
    In(Duration),
}

/// Sends what is due. `None` when there is no lease left; the next one to join starts another task.
fn send_due(schedule: &Schedule, flights: &mut Flights) -> Option<Next> {
    let now = schedule.clock.now();
    let mut over = Vec::new();
    let mut loads = Vec::new();
    let mut state = schedule.lock();
    let at = state.line.advance(now);
    let more = state.table.ripen(now, at, &mut over);
    while let Some(load) = state.table.load(at) {
        loads.push(load);
    }
    let orphans = state.table.take_orphans();
    let wake_at = state.table.rest(at);
    let is_last = state.table.len() == 0;
    if is_last {
        state.running = false;
    }
    drop(state);

    for id in orphans {
        flights.abandon(id);
    }
    for load in loads {
        flights.send(schedule, load, now, at);
    }
    for lease in over {
        // Past its self-limit, or ended by somebody who is about to say so here.
        lease.remaining_at(now);
    }
    match (is_last, more) {
        (true, _) => None,
        (false, true) => Some(Next::Now),
        (false, false) => Some(Next::In(Duration::from_nanos(wake_at.saturating_sub(at)))),
    }
}

/// Waits until a call lands, someone wakes the task, or `pause` is over.
async fn wait(schedule: &Schedule, flights: &mut Flights, pause: Duration) -> Option<Landing> {
    let mut woken = pin!(schedule.woken.notified());
    let mut sleep = pin!(tokio::time::sleep(pause));
    poll_fn(|context| {
        if let Poll::Ready(landing) = flights.poll_landing(context) {
            return Poll::Ready(Some(landing));
        }
        if woken.as_mut().poll(context).is_ready() || sleep.as_mut().poll(context).is_ready() {
            return Poll::Ready(None);
        }
        Poll::Pending
    })
    .await
}

/// Whatever else has landed meanwhile.
async fn land_others(schedule: &Schedule, flights: &mut Flights) {
    for _ in 0..LANDINGS_MAX {
        let landed = poll_fn(|context| {
            Poll::Ready(match flights.poll_landing(context) {
                Poll::Ready(landing) => Some(landing),
                Poll::Pending => None,
            })
        });
        match landed.await {
            Some(landing) => land(schedule, landing),
            None => return,
        }
    }
}

fn land(schedule: &Schedule, landing: Landing) {
    let (id, sent_at): (_, At) = (landing.id, landing.sent_at);
    let now = schedule.clock.now();
    let verdicts = landing.judge(now);
    let mut over = Vec::new();
    let mut state = schedule.lock();
    let at = state.line.advance(now);
    state.table.landed(id, sent_at, at, &verdicts, &mut over);
    drop(state);
    // Not under the lock: the last reference to a lease may take its serializer along.
    drop(over);
}
