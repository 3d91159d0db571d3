//! Renewing in the background: all leases of one serializer, clock and runtime on one schedule
//! (specification, "Connect the grant to enforcement": the handle renews in the background).
//!
//! | file | what lives there |
//! |---|---|
//! | `mod.rs` | [`Schedule`]: who shares one, joining and leaving |
//! | `registry.rs` | finding the schedule that exists already |
//! | `table.rs` | which lease is renewed when, and with which others: plain data |
//! | `timing.rs` | when a renewal is due, how long a failed one waits: pure |
//! | `task.rs` | the one task that sends what is due |
//! | `flight.rs` | one call on its way, and what its answer means for each lease |
//!
//! A schedule lives as long as anything refers to it, and its task as long as there are leases.

mod flight;
mod registry;
mod table;
#[cfg(test)]
mod table_tests;
mod task;
mod timing;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::runtime::Handle;
use tokio::sync::Notify;

use super::attempt::Parts;
use super::state::Shared;
use crate::clock::{Clock, Moment, SystemClock};
use crate::entropy::Entropy;
use crate::metrics::Metrics;
use crate::serializer::LeaseSerializer;
use registry::Key;
use table::Table;
use timing::{At, nanos};

pub(in crate::handle) use table::Slot;

/// The most leases that one call renews, whatever the serializer says.
const BATCH_ITEMS_MAX: usize = 4_096;

/// Renews leases that have a serializer, a clock and a runtime in common.
pub(in crate::handle) struct Schedule {
    key: Key,
    serializer: Arc<dyn LeaseSerializer>,
    clock: Arc<dyn Clock>,
    state: Mutex<State>,
    /// The task has to look again before it would.
    woken: Notify,
}

struct State {
    /// There is a task, or there will be.
    running: bool,
    line: TimeLine,
    table: Table,
}

/// Turns moments into points on one line. What passed between two looks is the larger of the two
/// clocks' answers, so the line may run ahead of either clock, which renews early, and never behind.
struct TimeLine {
    seen: Moment,
    at: At,
}

impl TimeLine {
    fn advance(&mut self, now: Moment) -> At {
        self.at = self.at.saturating_add(nanos(now.since(self.seen)));
        // Readings of several threads come in any order.
        self.seen = Moment {
            monotonic: now.monotonic.max(self.seen.monotonic),
            boot: now.boot.max(self.seen.boot),
        };
        self.at
    }
}

/// A serializer as its user gave it.
pub(super) struct Source {
    serializer: Arc<dyn LeaseSerializer>,
    /// Where it lies, which no other one can while this one lives.
    address: usize,
}

impl Source {
    pub(super) fn new<S: LeaseSerializer + ?Sized>(serializer: Arc<S>) -> Self {
        Self {
            address: Arc::as_ptr(&serializer).cast::<()>().addr(),
            // An Arc of an Arc, because a pointer to an unsized S cannot become a `dyn`.
            serializer: Arc::new(serializer),
        }
    }

    /// Where it counts.
    pub(super) fn metrics(&self) -> Metrics {
        self.serializer.metrics()
    }
}

impl Schedule {
    /// The schedule for these three; without a clock it has one of its own, which all leases without
    /// one share.
    pub(super) fn shared(
        source: Source,
        clock: Option<Arc<dyn Clock>>,
        runtime: &Handle,
    ) -> Arc<Self> {
        let key = Key {
            serializer: source.address,
            clock: clock
                .as_ref()
                .map(|clock| Arc::as_ptr(clock).cast::<()>().addr()),
            runtime: runtime.id(),
        };
        registry::find_or_insert(key, move || {
            let clock = clock.unwrap_or_else(|| Arc::new(SystemClock::new()));
            Self {
                key,
                serializer: source.serializer,
                state: Mutex::new(State {
                    running: false,
                    line: TimeLine {
                        seen: clock.now(),
                        at: 0,
                    },
                    table: Table::default(),
                }),
                clock,
                woken: Notify::new(),
            }
        })
    }

    /// What a lease on this schedule works with.
    pub(super) fn parts(self: Arc<Self>, entropy: Arc<dyn Entropy>, metrics: Metrics) -> Parts {
        Parts {
            serializer: self.serializer.clone(),
            clock: self.clock.clone(),
            entropy,
            schedule: self,
            metrics,
        }
    }

    /// From now on the lease is renewed, on `runtime`. If that has stopped, the lease ends.
    pub(super) fn join(self: &Arc<Self>, lease: &Arc<Shared>, runtime: &Handle) -> Slot {
        let batch_max = self.serializer.batch_max().clamp(1, BATCH_ITEMS_MAX);
        let mut seed = [0; 8];
        // A source that fails costs only the spreading.
        let _ = lease.parts.entropy.fill(&mut seed);
        let now = self.clock.now();
        let mut state = self.lock();
        let at = state.line.advance(now);
        let (slot, too_late) =
            state
                .table
                .insert(lease.clone(), u64::from_le_bytes(seed), batch_max, now, at);
        let was_running = std::mem::replace(&mut state.running, true);
        drop(state);
        if !was_running {
            runtime.spawn(task::run(task::Running::new(self.clone())));
        } else if too_late {
            self.woken.notify_one();
        }
        slot
    }

    /// The lease is not renewed any more. Can be repeated.
    pub(super) fn leave(&self, slot: Slot, lease: &Arc<Shared>) {
        let mut state = self.lock();
        let left = state.table.remove(slot, lease);
        let idle = state.table.len() == 0 || state.table.has_orphans();
        drop(state);
        if left.is_some() && idle {
            self.woken.notify_one();
        }
    }

    /// Nothing of the user's runs under this lock: no waker, no drop of a lease, no clock.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Schedule {
    fn drop(&mut self) {
        registry::remove(self.key, self);
    }
}
