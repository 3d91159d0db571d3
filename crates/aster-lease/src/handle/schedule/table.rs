//! Which lease is renewed when, and with which others: plain data. Time comes in as an argument, what
//! is to be sent goes out as a [`Load`].
//!
//! A held lease is in one of three phases: it waits for its time, it is ready to be sent, or it has
//! been sent. Every operation costs the logarithm of the number of leases at most.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use crate::clock::Moment;
use crate::handle::attempt::LOOK_AGAIN;
use crate::handle::state::Shared;

use super::timing::{
    self, At, LANES, attempt_max, chance, lane_of, nanos, renew_at, retry_at, retry_pause,
};

/// How many batches of one lane may be on their way at once, not counting those that are *slow*: one
/// that hangs holds up the others for a part of an attempt only, and no lease is in two of them.
const BATCHES_MAX: usize = 16;
/// How many leases are asked for singly at once where the serializer takes batches; slow ones do not
/// count. Where it does not, every lease may have its one request on its way, so that none waits for
/// another.
const SINGLES_MAX: usize = 4_096;
/// How many timers are looked at under one lock.
pub(super) const STEP_MAX: usize = 4_096;

/// The place of a lease in the table. Used again after the lease has left.
pub(in crate::handle) type Slot = u32;
/// One request on its way. Never used again.
pub(super) type FlightId = u64;

#[derive(Default)]
pub(super) struct Table {
    entries: Vec<Option<Entry>>,
    free: Vec<Slot>,
    timers: BTreeSet<(At, Slot)>,
    /// Ready to travel together, the earliest self-limit first; by the length of their intervals, so
    /// that no long attempt keeps a short lease waiting.
    lanes: [Lane; LANES],
    /// Ready to be sent singly: those that failed least often first, so that leases whose requests
    /// hang cannot keep the others from their turn.
    singles: BTreeSet<(u32, At, Slot)>,
    singles_sent: usize,
    /// When those on their way turn slow.
    slow: BTreeSet<(At, FlightId)>,
    flights: HashMap<FlightId, Flying>,
    flight_next: FlightId,
    /// Requests whose leases have all left.
    orphans: Vec<FlightId>,
    /// Leases that became ready in this step.
    fresh: Vec<Slot>,
    /// Until when the task sleeps.
    wake_at: At,
    /// How many leases the serializer takes in one call; 0 before the first lease.
    batch_max: usize,
}

#[derive(Default)]
struct Lane {
    ready: BTreeSet<(At, Slot)>,
    /// How many are on their way and not slow.
    sent: usize,
}

struct Entry {
    shared: Arc<Shared>,
    /// Its one entry in `timers`.
    timer: Option<At>,
    phase: Phase,
    /// How many attempts have failed since the last success.
    failures: u32,
    /// A batch that it was part of did not come back: it is sent singly until that has worked.
    alone: bool,
    /// Its last renewal was overdue, and so were others: the next one is spread wider.
    crowded: bool,
    /// The state of its own randomness.
    chance: u64,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    Waiting,
    Ready { queue: Queue, limit: At },
    Sent(FlightId),
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Queue {
    Lane(usize),
    Singles,
}

struct Flying {
    queue: Queue,
    /// How many of its leases are still here.
    leases: usize,
    /// When it turns slow.
    slow_at: At,
}

/// Leases to be renewed in one call.
pub(super) struct Load {
    pub(super) id: FlightId,
    pub(super) leases: Vec<(Slot, Arc<Shared>)>,
    /// How long the call may take.
    pub(super) limit: Duration,
}

/// What a call meant for one of its leases.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    Renewed,
    /// To be tried again; this is left until its self-limit.
    Again {
        left: Duration,
        alone: bool,
    },
    /// It has ended.
    Over,
}

impl Table {
    /// Takes a lease in. `true` when the task sleeps for longer than it may now.
    pub(super) fn insert(
        &mut self,
        shared: Arc<Shared>,
        seed: u64,
        batch_max: usize,
        now: Moment,
        at: At,
    ) -> (Slot, bool) {
        self.batch_max = batch_max;
        let slot = self.free.pop().unwrap_or_else(|| {
            self.entries.push(None);
            // More leases than this do not fit into memory.
            Slot::try_from(self.entries.len() - 1).unwrap_or(Slot::MAX)
        });
        let anchor = at.saturating_sub(nanos(shared.since_anchor_at(now)));
        let crowded = self.len() > batch_max;
        let mut entry = Entry {
            shared,
            timer: None,
            phase: Phase::Waiting,
            failures: 0,
            alone: false,
            crowded,
            chance: seed ^ u64::from(slot).wrapping_mul(timing::GOLDEN),
        };
        let due = entry.due(anchor);
        self.entries[slot as usize] = Some(entry);
        self.set_timer(slot, Some(due));
        (slot, due < self.wake_at)
    }

    /// Takes a lease out, if it is still there.
    pub(super) fn remove(&mut self, slot: Slot, shared: &Arc<Shared>) -> Option<Arc<Shared>> {
        let entry = self.entries.get(slot as usize)?.as_ref()?;
        match Arc::ptr_eq(&entry.shared, shared) {
            true => self.take(slot),
            false => None,
        }
    }

    /// Everything that is here, and an empty table.
    pub(super) fn drain(&mut self) -> Vec<Arc<Shared>> {
        let entries = std::mem::take(self).entries.into_iter();
        entries.flatten().map(|entry| entry.shared).collect()
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len() - self.free.len()
    }

    pub(super) fn has_orphans(&self) -> bool {
        !self.orphans.is_empty()
    }

    pub(super) fn take_orphans(&mut self) -> Vec<FlightId> {
        std::mem::take(&mut self.orphans)
    }

    /// Whose time has come by `at` is made ready; who has reached the self-limit leaves into `over`.
    /// `true` when there is more to do.
    pub(super) fn ripen(&mut self, now: Moment, at: At, over: &mut Vec<Arc<Shared>>) -> bool {
        while let Some(&(slow_at, id)) = self.slow.first()
            && slow_at <= at
        {
            self.count_no_more(slow_at, id);
        }
        for _ in 0..STEP_MAX {
            let Some(&(due, slot)) = self.timers.first().filter(|(due, _)| *due <= at) else {
                return false;
            };
            self.timers.pop_first();
            let others = self.len() > self.batch_max;
            let Some(entry) = self.entries[slot as usize].as_mut() else {
                continue;
            };
            entry.timer = None;
            let Some(left) = entry.shared.left_at(now) else {
                over.extend(self.take(slot));
                continue;
            };
            let limit = at.saturating_add(nanos(left));
            if entry.phase != Phase::Waiting {
                self.set_timer(slot, Some(limit));
                continue;
            }
            let overdue = at - due > nanos(entry.shared.timing.renew_interval) / timing::LATE_PARTS;
            entry.crowded = others && (overdue || entry.failures > 0);
            let queue = match entry.alone || self.batch_max <= 1 {
                true => Queue::Singles,
                false => Queue::Lane(lane_of(entry.shared.timing.renew_interval)),
            };
            entry.phase = Phase::Ready { queue, limit };
            match queue {
                Queue::Lane(lane) => self.lanes[lane].ready.insert((limit, slot)),
                Queue::Singles => self.singles.insert((entry.failures, limit, slot)),
            };
            self.fresh.push(slot);
        }
        true
    }

    /// The next call to make, if another may be on its way.
    pub(super) fn load(&mut self, at: At) -> Option<Load> {
        let singles_max = match self.batch_max {
            0 | 1 => usize::MAX,
            _ => SINGLES_MAX,
        };
        if self.singles_sent < singles_max
            && let Some((_, limit, slot)) = self.singles.pop_first()
        {
            self.singles_sent += 1;
            return Some(self.loaded(Queue::Singles, vec![(limit, slot)], at));
        }
        let mut lanes = self.lanes.iter_mut().enumerate();
        let (lane, free) =
            lanes.find(|(_, lane)| lane.sent < BATCHES_MAX && !lane.ready.is_empty())?;
        free.sent += 1;
        let count = free.ready.len().min(self.batch_max);
        let mut taken = Vec::with_capacity(count);
        while taken.len() < count
            && let Some(next) = free.ready.pop_first()
        {
            taken.push(next);
        }
        Some(self.loaded(Queue::Lane(lane), taken, at))
    }

    fn loaded(&mut self, queue: Queue, taken: Vec<(At, Slot)>, at: At) -> Load {
        let id = self.flight_next;
        self.flight_next += 1;
        let mut limit = match queue {
            Queue::Lane(_) => timing::BATCH_ATTEMPT_MAX,
            Queue::Singles => Duration::MAX,
        };
        let mut leases = Vec::with_capacity(taken.len());
        for &(_, slot) in &taken {
            if let Some(entry) = self.entries[slot as usize].as_mut() {
                entry.phase = Phase::Sent(id);
                limit = limit.min(attempt_max(entry.shared.timing.renew_interval));
                leases.push((slot, entry.shared.clone()));
            }
        }
        let back_at = at.saturating_add(nanos(limit));
        for (self_limit, slot) in taken {
            // Whose self-limit comes after the call's end is looked at again then.
            self.set_timer(slot, Some(self_limit).filter(|limit| *limit < back_at));
        }
        let flying = Flying {
            queue,
            leases: leases.len(),
            slow_at: at.saturating_add(nanos(limit / timing::SLOW_PARTS)),
        };
        self.slow.insert((flying.slow_at, id));
        self.flights.insert(id, flying);
        Load { id, leases, limit }
    }

    /// Ends a step: whoever could not be sent is looked at again at the self-limit. Answers until when
    /// there is nothing to do.
    pub(super) fn rest(&mut self, at: At) -> At {
        for slot in std::mem::take(&mut self.fresh) {
            if let Some(Some(entry)) = self.entries.get(slot as usize)
                && let Phase::Ready { limit, .. } = entry.phase
            {
                self.set_timer(slot, Some(limit));
            }
        }
        let look_again = at.saturating_add(nanos(LOOK_AGAIN));
        let mut lanes = self.lanes.iter();
        let is_behind = !self.singles.is_empty() || lanes.any(|lane| !lane.ready.is_empty());
        let due = self.timers.first().map(|(due, _)| *due);
        let slow = self.slow.first().map(|(slow_at, _)| *slow_at);
        let slow = slow.filter(|_| is_behind);
        let first = due.into_iter().chain(slow).fold(look_again, At::min);
        self.wake_at = first;
        first
    }

    /// A call is over. `sent_at` is when it was sent. What has left with it goes into `over`.
    pub(super) fn landed(
        &mut self,
        id: FlightId,
        sent_at: At,
        at: At,
        verdicts: &[(Slot, Verdict)],
        over: &mut Vec<Arc<Shared>>,
    ) {
        self.forget(id);
        for &(slot, verdict) in verdicts {
            let Some(Some(entry)) = self.entries.get_mut(slot as usize) else {
                continue;
            };
            if entry.phase != Phase::Sent(id) {
                continue;
            }
            entry.phase = Phase::Waiting;
            let next = match verdict {
                Verdict::Renewed => {
                    entry.failures = 0;
                    entry.alone = false;
                    entry.due(sent_at).max(at + nanos(timing::PAUSE_MIN))
                }
                Verdict::Again { left, alone } => {
                    entry.alone |= alone;
                    entry.retry(left, at)
                }
                Verdict::Over => {
                    over.extend(self.take(slot));
                    continue;
                }
            };
            self.set_timer(slot, Some(next));
        }
    }

    fn take(&mut self, slot: Slot) -> Option<Arc<Shared>> {
        self.set_timer(slot, None);
        let entry = self.entries.get_mut(slot as usize)?.take()?;
        self.free.push(slot);
        match entry.phase {
            Phase::Waiting => {}
            Phase::Ready { queue, limit } => match queue {
                Queue::Lane(lane) => drop(self.lanes[lane].ready.remove(&(limit, slot))),
                Queue::Singles => drop(self.singles.remove(&(entry.failures, limit, slot))),
            },
            Phase::Sent(id) => {
                if let Some(flying) = self.flights.get_mut(&id) {
                    flying.leases -= 1;
                    if flying.leases == 0 {
                        self.forget(id);
                        self.orphans.push(id);
                    }
                }
            }
        }
        if self.len() == 0 {
            // A schedule that many leases have left keeps no room for them.
            self.entries = Vec::new();
            self.free = Vec::new();
        }
        Some(entry.shared)
    }

    fn forget(&mut self, id: FlightId) {
        if let Some(flying) = self.flights.get(&id) {
            self.count_no_more(flying.slow_at, id);
            self.flights.remove(&id);
        }
    }

    /// Another may be sent in its place; the first time only.
    fn count_no_more(&mut self, slow_at: At, id: FlightId) {
        if !self.slow.remove(&(slow_at, id)) {
            return;
        }
        match self.flights.get(&id).map(|flying| flying.queue) {
            Some(Queue::Lane(lane)) => self.lanes[lane].sent -= 1,
            Some(Queue::Singles) => self.singles_sent -= 1,
            None => {}
        }
    }

    fn set_timer(&mut self, slot: Slot, timer: Option<At>) {
        let Some(Some(entry)) = self.entries.get_mut(slot as usize) else {
            return;
        };
        if let Some(old) = std::mem::replace(&mut entry.timer, timer) {
            self.timers.remove(&(old, slot));
        }
        if let Some(timer) = timer {
            self.timers.insert((timer, slot));
        }
    }
}

impl Entry {
    /// When to renew what was granted or renewed at `anchor`.
    fn due(&mut self, anchor: At) -> At {
        let chance = chance(&mut self.chance);
        renew_at(
            anchor,
            self.shared.timing.renew_interval,
            chance,
            self.crowded,
        )
    }

    fn retry(&mut self, left: Duration, at: At) -> At {
        let interval = self.shared.timing.renew_interval;
        let pause = retry_pause(interval, self.failures, chance(&mut self.chance));
        self.failures = self.failures.saturating_add(1);
        let latest = at.saturating_add(nanos(left));
        retry_at(at, pause, interval).min(latest)
    }
}

#[cfg(test)]
impl Table {
    pub(super) fn timers(&self) -> usize {
        self.timers.len()
    }

    /// Nothing is left of any lease.
    pub(super) fn is_bare(&self) -> bool {
        let mut lanes = self.lanes.iter();
        self.entries.is_empty()
            && self.timers.is_empty()
            && self.singles.is_empty()
            && lanes.all(|lane| lane.ready.is_empty() && lane.sent == 0)
            && self.singles_sent == 0
            && self.flights.is_empty()
            && self.slow.is_empty()
    }

    /// Everything is where its entry says, and nothing else is anywhere.
    pub(super) fn check(&self) {
        let (mut timers, mut ready, mut sent) = (0, 0, 0);
        for (slot, entry) in self.entries.iter().enumerate() {
            let slot = Slot::try_from(slot).unwrap();
            let Some(entry) = entry else {
                assert!(self.free.contains(&slot));
                continue;
            };
            if let Some(timer) = entry.timer {
                timers += 1;
                assert!(self.timers.contains(&(timer, slot)));
            }
            match entry.phase {
                Phase::Waiting => assert!(entry.timer.is_some(), "nobody would renew it"),
                Phase::Ready { queue, limit } => {
                    ready += 1;
                    assert!(entry.timer.is_some(), "nobody would report its loss");
                    assert!(match queue {
                        Queue::Lane(lane) => self.lanes[lane].ready.contains(&(limit, slot)),
                        Queue::Singles => self.singles.contains(&(entry.failures, limit, slot)),
                    });
                }
                Phase::Sent(id) => {
                    sent += 1;
                    assert!(self.flights.contains_key(&id));
                }
            }
        }
        let lanes = self.lanes.iter();
        let queued: usize = lanes.map(|lane| lane.ready.len()).sum();
        assert_eq!(timers, self.timers.len());
        assert_eq!(ready, self.singles.len() + queued);
        let flying = self.flights.values();
        assert_eq!(sent, flying.map(|flying| flying.leases).sum::<usize>());
        let lanes = self.lanes.iter();
        let counted: usize = lanes.map(|lane| lane.sent).sum();
        assert_eq!(counted + self.singles_sent, self.slow.len());
    }
}
