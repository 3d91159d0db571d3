//! Rows behind one lock, and the gate of a running closure.
//!
//! The lock is held for a few instructions only. A protected closure runs outside it, behind the
//! *gate* of its own row: while the gate is closed, ownership of that row cannot change, but it can
//! be renewed and read.

use std::cell::Cell;
use std::collections::{HashMap, VecDeque};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use aster_core::{
    Authority, Effect, Fence, FenceRejection, HoldOff, Judged, LeaseOp, Principal, RegisterState,
    ResourceName, RowState, RowView, RuleError, TransitionOutcome, TtlBounds, check_fence,
    transition,
};
use tokio::sync::Notify;

/// How many idle rows one ownership change looks at, so that none of them pays for a million others.
const IDLE_STEPS: usize = 4;

thread_local! {
    /// How many gates this thread has closed. From inside a closure nothing waits for another gate:
    /// waiting while holding one is how deadlocks are made.
    static GATES_HELD: Cell<u32> = const { Cell::new(0) };
}

#[derive(Default)]
pub(super) struct Shard {
    state: Mutex<ShardState>,
    /// Wake those who wait for a gate: threads, and tasks.
    gate_opened: Condvar,
    gate_opened_async: Notify,
}

#[derive(Default)]
pub(super) struct ShardState {
    rows: HashMap<ResourceName, Slot>,
    /// The highest epoch among dropped rows. It rises under the same lock under which the row goes.
    floor: u64,
    /// Free rows in the order in which they became free, as far as known.
    idle: VecDeque<(ResourceName, Duration)>,
}

pub(super) struct Slot {
    pub(super) row: RowState,
    /// The instant of the last grant, renewal or end.
    pub(super) since: Duration,
    /// When each of the row's hold-offs began, by its epoch.
    hold_offs_since: Box<[(u64, Duration)]>,
    pub(super) register: Option<Box<Register>>,
    /// A closure runs.
    gate_closed: bool,
    /// Someone waits for the gate.
    contended: bool,
    /// An entry of `idle` names this row.
    idle_queued: bool,
}

pub(super) struct Register {
    pub(super) value: Vec<u8>,
    pub(super) state: RegisterState,
    pub(super) epoch: u64,
}

/// Someone else's closure runs on the row; the change has to wait for its gate.
pub(super) enum Gated {
    /// Wait, then try again.
    Wait,
    /// The caller is itself inside a closure: waiting would be a deadlock.
    Reentrant,
}

/// What a store adds to the rules for one transition.
pub(super) struct Terms<'a> {
    pub(super) authority: Authority,
    pub(super) bounds: &'a TtlBounds,
    pub(super) now: Duration,
    pub(super) idle_retention: Duration,
    pub(super) idle_rows_max: usize,
}

impl Shard {
    pub(super) fn lock(&self) -> MutexGuard<'_, ShardState> {
        // No user code runs under this lock, so a poisoned one still holds whole rows.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Checks the fence and closes the row's gate for this thread, in one step. The rejection comes
    /// with the row's epoch.
    pub(super) fn enter<'a>(
        &'a self,
        authority: Authority,
        fence: &'a Fence,
        writer: &str,
    ) -> Result<Gate<'a>, (FenceRejection, u64)> {
        let resource = &fence.resource;
        let mut state = self.lock();
        loop {
            let view = state.view(authority, resource);
            let current = view.epoch();
            check_fence(&view, fence, writer).map_err(|rejection| (rejection, current))?;
            let Some(slot) = state.rows.get_mut(resource) else {
                return Err((FenceRejection::NotHeld, current));
            };
            match slot.gate_for_this_thread() {
                Ok(()) => {
                    slot.gate_closed = true;
                    GATES_HELD.with(|held| held.set(held.get() + 1));
                    return Ok(Gate {
                        shard: self,
                        resource,
                    });
                }
                Err(Gated::Reentrant) => return Err((FenceRejection::Reentrant, current)),
                Err(Gated::Wait) => {
                    slot.contended = true;
                    state = self
                        .gate_opened
                        .wait(state)
                        .unwrap_or_else(PoisonError::into_inner);
                }
            }
        }
    }

    /// Runs `step` under the lock until no gate is in its way. Cancel safe: nothing has happened
    /// while it waits.
    pub(super) async fn when_ungated<R>(
        &self,
        mut step: impl FnMut(&mut ShardState) -> Result<R, Gated>,
    ) -> Result<R, Reentrant> {
        loop {
            let opened = {
                let mut state = self.lock();
                match step(&mut state) {
                    Ok(result) => return Ok(result),
                    Err(Gated::Reentrant) => return Err(Reentrant),
                    // Made before the lock is given back, so the opening cannot be missed.
                    Err(Gated::Wait) => self.gate_opened_async.notified(),
                }
            };
            opened.await;
        }
    }
}

/// The caller is inside a protected closure and would have to wait for a gate.
pub(super) struct Reentrant;

/// A closed gate; dropping it, also while unwinding, opens it again.
pub(super) struct Gate<'a> {
    shard: &'a Shard,
    resource: &'a ResourceName,
}

impl Drop for Gate<'_> {
    fn drop(&mut self) {
        GATES_HELD.with(|held| held.set(held.get().saturating_sub(1)));
        let mut state = self.shard.lock();
        // A held row with a closed gate is neither changed nor dropped, so it is still there.
        let Some(slot) = state.rows.get_mut(self.resource) else {
            return;
        };
        slot.gate_closed = false;
        let contended = std::mem::take(&mut slot.contended);
        drop(state);
        if contended {
            self.shard.gate_opened.notify_all();
            self.shard.gate_opened_async.notify_waiters();
        }
    }
}

impl Slot {
    fn judged(&self, now: Duration) -> Judged {
        let remaining = self
            .row
            .ttl()
            .map(|ttl| time_left(ttl.duration(), self.since, now));
        Judged {
            expired: remaining.is_some_and(|left| left.is_zero()),
            remaining,
        }
    }

    /// Lets go of the hold-offs that have had their time.
    fn end_hold_offs(&mut self, now: Duration) {
        let since = &self.hold_offs_since;
        self.row.hold_offs.retain(|hold_off| {
            let since = since_of(since, hold_off).unwrap_or(now);
            !time_left(hold_off.duration, since, now).is_zero()
        });
    }

    fn gate_for_this_thread(&self) -> Result<(), Gated> {
        match self.gate_closed {
            false => Ok(()),
            true if GATES_HELD.with(Cell::get) > 0 => Err(Gated::Reentrant),
            true => Err(Gated::Wait),
        }
    }
}

fn since_of(since: &[(u64, Duration)], hold_off: &HoldOff) -> Option<Duration> {
    let mut since = since.iter();
    since.find_map(|(epoch, since)| (*epoch == hold_off.epoch).then_some(*since))
}

/// The instants of a changed row's hold-offs: those that ran before keep theirs.
fn carried(before: &[(u64, Duration)], row: &RowState, now: Duration) -> Box<[(u64, Duration)]> {
    let hold_offs = row.hold_offs.iter();
    hold_offs
        .map(|hold_off| (hold_off.epoch, since_of(before, hold_off).unwrap_or(now)))
        .collect()
}

fn time_left(term: Duration, since: Duration, now: Duration) -> Duration {
    term.saturating_sub(now.saturating_sub(since))
}

impl ShardState {
    pub(super) fn view<'a>(
        &'a self,
        authority: Authority,
        resource: &'a ResourceName,
    ) -> RowView<'a> {
        let row = self.rows.get(resource).map(|slot| &slot.row);
        RowView {
            authority,
            resource,
            floor: self.floor,
            row,
        }
    }

    pub(super) fn remaining(&self, resource: &ResourceName, now: Duration) -> Option<Duration> {
        self.rows
            .get(resource)
            .and_then(|slot| slot.judged(now).remaining)
    }

    pub(super) fn names(&self) -> impl Iterator<Item = (&ResourceName, &RowState)> {
        self.rows.iter().map(|(name, slot)| (name, &slot.row))
    }

    /// The row, if no closure runs on it; for a change that excludes one.
    pub(super) fn ungated(&mut self, resource: &ResourceName) -> Result<Option<&mut Slot>, Gated> {
        match self.rows.get_mut(resource) {
            None => Ok(None),
            Some(slot) => {
                if let Err(gated) = slot.gate_for_this_thread() {
                    slot.contended = true;
                    return Err(gated);
                }
                Ok(Some(slot))
            }
        }
    }

    pub(super) fn slot(&self, resource: &ResourceName) -> Option<&Slot> {
        self.rows.get(resource)
    }

    /// One step of the rules. A change of ownership waits for the gate, a renewal does not.
    pub(super) fn transition(
        &mut self,
        terms: &Terms<'_>,
        resource: &ResourceName,
        op: &LeaseOp,
    ) -> Result<Result<Step, RuleError>, Gated> {
        let judged = self
            .rows
            .get_mut(resource)
            .map_or_else(Judged::default, |slot| {
                slot.end_hold_offs(terms.now);
                slot.judged(terms.now)
            });
        let view = self.view(terms.authority, resource);
        let (held_before, epoch_before) =
            (view.row.and_then(|row| row.holder().cloned()), view.epoch());
        let decision = match transition(&view, &judged, terms.bounds, op) {
            Ok(decision) => decision,
            Err(error) => return Ok(Err(error)),
        };
        let changed = matches!(decision.effect, Effect::Replace(_));
        match decision.effect {
            Effect::Keep => {}
            Effect::Rearm(row) => {
                if let Some(slot) = self.rows.get_mut(resource) {
                    slot.row = row;
                    slot.since = terms.now;
                }
            }
            Effect::Replace(row) => {
                self.ungated(resource)?;
                let freed = row.held.is_none();
                self.replace(resource, row, terms.now);
                if freed {
                    self.queue_idle(resource);
                }
                self.drop_idle(terms);
            }
        }
        let epoch = self.epoch(resource);
        Ok(Ok(Step {
            outcome: decision.outcome,
            changed,
            held_before,
            epoch_before,
            epoch,
        }))
    }

    fn epoch(&self, resource: &ResourceName) -> u64 {
        self.rows
            .get(resource)
            .map_or(self.floor, |slot| slot.row.epoch)
    }

    fn replace(&mut self, resource: &ResourceName, row: RowState, now: Duration) {
        match self.rows.get_mut(resource) {
            Some(slot) => {
                slot.hold_offs_since = carried(&slot.hold_offs_since, &row, now);
                slot.row = row;
                slot.since = now;
            }
            None => {
                let slot = Slot {
                    hold_offs_since: carried(&[], &row, now),
                    row,
                    since: now,
                    register: None,
                    gate_closed: false,
                    contended: false,
                    idle_queued: false,
                };
                self.rows.insert(resource.clone(), slot);
            }
        }
    }

    fn queue_idle(&mut self, resource: &ResourceName) {
        if let Some(slot) = self.rows.get_mut(resource)
            && !slot.idle_queued
        {
            slot.idle_queued = true;
            self.idle.push_back((resource.clone(), slot.since));
        }
    }

    /// Drops free rows that are old enough, or the oldest when there are too many. The floor rises in
    /// the same step, so a new row of the same name starts above every epoch that it ever had.
    fn drop_idle(&mut self, terms: &Terms<'_>) {
        for _ in 0..IDLE_STEPS {
            let Some((name, queued_since)) = self.idle.front() else {
                return;
            };
            let Some(slot) = self.rows.get_mut(name) else {
                self.idle.pop_front();
                continue;
            };
            slot.end_hold_offs(terms.now);
            let kept = slot.row.held.is_some() || slot.register.is_some() || slot.gate_closed;
            let since = slot.since;
            if kept || since != *queued_since {
                slot.idle_queued = false;
                let name = name.clone();
                self.idle.pop_front();
                if !kept {
                    self.queue_idle(&name);
                }
                continue;
            }
            let age = terms.now.saturating_sub(since);
            if age < terms.idle_retention && self.idle.len() <= terms.idle_rows_max {
                return;
            }
            if !slot.row.hold_offs.is_empty() {
                // Its turn comes again; the rows behind it do not wait for its hold-offs.
                self.idle.rotate_left(1);
                continue;
            }
            self.floor = self.floor.max(slot.row.epoch);
            if let Some((name, _)) = self.idle.pop_front() {
                self.rows.remove(&name);
            }
        }
    }

    pub(super) fn restart(&mut self, now: Duration) {
        for slot in self.rows.values_mut() {
            slot.since = now;
            for (_, since) in &mut slot.hold_offs_since {
                *since = now;
            }
        }
    }

    pub(super) fn row_count(&self) -> usize {
        self.rows.len()
    }
}

/// What a transition answered, and what the audit wants to know about it.
pub(super) struct Step {
    pub(super) outcome: TransitionOutcome,
    /// Ownership changed; false for a renewal, a retry and a denial.
    pub(super) changed: bool,
    pub(super) held_before: Option<Principal>,
    pub(super) epoch_before: u64,
    pub(super) epoch: u64,
}
