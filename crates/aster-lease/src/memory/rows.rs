//! The rows of one lock, and one step of the rules on one of them.

use std::sync::Arc;
use std::time::Duration;

use aster_core::{
    Authority, Effect, Judged, LeaseOp, LeaseSnapshot, Principal, ResourceName, RowState, RowView,
    RuleError, TransitionOutcome, TtlBounds, floor_behind, transition,
};
use hashbrown::HashTable;

use super::board::Board;
use super::gate::Gated;
use super::holders::Holders;
use super::idle::Idle;
use super::queue::Seat;
use super::slab::{Id, Slab};
use super::slot::Slot;
use super::watches::Watches;
use super::{Hasher, hash_of};
use crate::audit::AuditRecord;
use crate::metrics::HandOver;
use crate::watching::LeaseWatch;

pub(super) struct Rows {
    hasher: Hasher,
    /// Where each name's row is.
    index: HashTable<Id>,
    pub(super) slots: Slab<Slot>,
    holders: Holders,
    /// The highest epoch among dropped rows. It rises under the same lock under which the row goes.
    pub(super) floor: u64,
    pub(super) idle: Idle,
    watches: Watches,
    pub(super) board: Arc<Board>,
}

/// A resource, hashed once.
#[derive(Clone, Copy)]
pub(super) struct Key<'a> {
    pub(super) resource: &'a ResourceName,
    pub(super) hash: u64,
}

/// What a store adds to the rules for one transition.
pub(super) struct Terms<'a> {
    pub(super) authority: Authority,
    pub(super) bounds: &'a TtlBounds,
    pub(super) now: Duration,
    pub(super) idle_retention: Duration,
    pub(super) idle_rows_max: usize,
    pub(super) claim_time: Duration,
    pub(super) waiters_max: usize,
}

/// What is left to do after the lock was given back.
#[derive(Default)]
pub(super) struct Aftermath {
    /// What changed, in its order.
    pub(super) records: Vec<AuditRecord>,
    /// Waiters that were told something, or have to look again.
    pub(super) rings: Vec<Arc<Seat>>,
    /// What is counted.
    pub(super) hand_overs: Vec<HandOver>,
    pub(super) claims_lapsed: usize,
}

impl Aftermath {
    /// What the audit and the metrics keep of a step.
    pub(super) fn note(&mut self, resource: &ResourceName, op: &LeaseOp, step: &Step) {
        self.records.extend(step.record(resource, op));
        self.claims_lapsed += usize::from(step.claim_lapsed);
    }
}

/// What a step of the rules answered, and what the audit wants to know about it.
pub(super) struct Step {
    pub(super) outcome: TransitionOutcome,
    /// The row, if ownership changed: not at a renewal, a retry or a denial.
    pub(super) changed: Option<Id>,
    /// It took the row from one who had waited for it and did not claim it.
    pub(super) claim_lapsed: bool,
    pub(super) held_before: Option<Principal>,
    pub(super) epoch_before: u64,
    pub(super) epoch: u64,
}

impl Rows {
    pub(super) fn new(hasher: Hasher, board: Arc<Board>) -> Self {
        Self {
            hasher,
            index: HashTable::new(),
            slots: Slab::default(),
            holders: Holders::default(),
            floor: 0,
            idle: Idle::default(),
            watches: Watches::default(),
            board,
        }
    }

    pub(super) fn find(&self, key: Key<'_>) -> Option<Id> {
        let is_it = |id: &Id| {
            self.slots
                .get(*id)
                .is_some_and(|slot| slot.name == *key.resource)
        };
        self.index.find(key.hash, is_it).copied()
    }

    pub(super) fn slot(&self, key: Key<'_>) -> Option<&Slot> {
        self.slots.get(self.find(key)?)
    }

    pub(super) fn key<'a>(&self, resource: &'a ResourceName) -> Key<'a> {
        Key {
            resource,
            hash: hash_of(&self.hasher, resource),
        }
    }

    pub(super) fn view<'a>(
        &'a self,
        authority: Authority,
        found: Option<Id>,
        key: Key<'a>,
    ) -> RowView<'a> {
        let slot = found.and_then(|id| self.slots.get(id));
        RowView {
            authority,
            // The row's own, so that fences and snapshots of a row share one text.
            resource: slot.map_or(key.resource, |slot| &slot.name),
            floor: self.floor,
            row: slot.map(|slot| &slot.row),
        }
    }

    /// The row as it can be told, or the floor of an absent one.
    pub(super) fn snapshot(
        &self,
        terms: &Terms<'_>,
        found: Option<Id>,
        key: Key<'_>,
    ) -> LeaseSnapshot {
        let slot = found.and_then(|id| self.slots.get(id));
        let remaining = slot.and_then(|slot| slot.judged(terms.now).remaining);
        self.view(terms.authority, found, key).snapshot(remaining)
    }

    /// A watch of the row; `None` when it has too many.
    pub(super) fn watch(&mut self, terms: &Terms<'_>, key: Key<'_>) -> Option<LeaseWatch> {
        let present = self.snapshot(terms, self.find(key), key);
        self.watches.add(present)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Slot> {
        self.slots.iter()
    }

    /// The row, if no closure runs on it; for a change that excludes one.
    pub(super) fn ungated(&mut self, id: Id) -> Result<Option<&mut Slot>, Gated> {
        self.pass_gate(id)?;
        Ok(self.slots.get_mut(id))
    }

    /// One operation. A change of ownership waits for the gate, a renewal does not. Whoever waits in
    /// the queue comes before an Acquire, and gets the row in the same step that frees it.
    pub(super) fn transition(
        &mut self,
        terms: &Terms<'_>,
        key: Key<'_>,
        op: &LeaseOp,
        after: &mut Aftermath,
    ) -> Result<Result<TransitionOutcome, RuleError>, Gated> {
        let found = self.find(key);
        if let LeaseOp::Acquire { grant_id, .. } = op
            && let Some(id) = found
            && let Some(slot) = self.slots.get(id)
            && slot.row.grant_id != *grant_id
        {
            self.advance(terms, id, after)?;
        }
        if let LeaseOp::Cancel {
            candidate,
            grant_id,
        } = op
            && let Some(id) = found
        {
            self.withdraw(id, candidate, *grant_id, after);
        }
        let step = match self.step(terms, found, key, op)? {
            Ok(step) => step,
            Err(error) => return Ok(Err(error)),
        };
        after.note(key.resource, op, &step);
        if let Some(id) = step.changed {
            self.advance(terms, id, after)?;
            self.queue_idle(id);
            self.drop_idle(terms);
        }
        Ok(Ok(step.outcome))
    }

    /// One step of the rules, the queue left aside. `found` is the row of `key`.
    pub(super) fn step(
        &mut self,
        terms: &Terms<'_>,
        found: Option<Id>,
        key: Key<'_>,
        op: &LeaseOp,
    ) -> Result<Result<Step, RuleError>, Gated> {
        let (judged, unclaimed) = match found.and_then(|id| self.slots.get_mut(id)) {
            Some(slot) => {
                slot.end_hold_offs(terms.now);
                (slot.judged(terms.now), slot.is_unclaimed())
            }
            None => (Judged::default(), false),
        };
        let shared = self.with_shared_holder(op);
        let view = self.view(terms.authority, found, key);
        let held_before = view.row.and_then(|row| row.holder().cloned());
        let epoch_before = view.epoch();
        let op = shared.as_ref().unwrap_or(op);
        let decision = match transition(&view, &judged, terms.bounds, op) {
            Ok(decision) => decision,
            Err(error) => return Ok(Err(error)),
        };
        let (changed, epoch) = match decision.effect {
            Effect::Keep => (None, epoch_before),
            Effect::Rearm(row) => {
                if let Some(slot) = found.and_then(|id| self.slots.get_mut(id)) {
                    slot.rearm(row, terms.now);
                }
                (None, epoch_before)
            }
            Effect::Replace(row) => {
                if let Some(id) = found {
                    self.ungated(id)?;
                }
                let epoch = row.epoch;
                let id = self.replace(found, key, row, terms.now);
                self.publish(terms, id, key);
                (Some(id), epoch)
            }
        };
        Ok(Ok(Step {
            outcome: decision.outcome,
            changed,
            claim_lapsed: unclaimed && changed.is_some() && matches!(op, LeaseOp::Acquire { .. }),
            held_before,
            epoch_before,
            epoch,
        }))
    }

    /// The same Acquire with the candidate's text that other rows have already.
    fn with_shared_holder(&self, op: &LeaseOp) -> Option<LeaseOp> {
        let LeaseOp::Acquire {
            candidate,
            ttl,
            grant_id,
        } = op
        else {
            return None;
        };
        let candidate = self.holders.known(&self.hasher, candidate)?;
        Some(LeaseOp::Acquire {
            candidate,
            ttl: *ttl,
            grant_id: *grant_id,
        })
    }

    fn replace(&mut self, found: Option<Id>, key: Key<'_>, row: RowState, now: Duration) -> Id {
        if let Some(holder) = row.holder() {
            self.holders.add(&self.hasher, holder);
        }
        let Some((id, slot)) = found.and_then(|id| Some((id, self.slots.get_mut(id)?))) else {
            return self.insert(key, Slot::new(key.resource.clone(), row, now));
        };
        let before = slot.row.held.take();
        slot.replace(row, now);
        if let Some(before) = before {
            self.holders.remove(&self.hasher, &before.holder);
        }
        id
    }

    fn insert(&mut self, key: Key<'_>, slot: Slot) -> Id {
        let id = self.slots.insert(slot);
        let (slots, hasher) = (&self.slots, &self.hasher);
        let rehash = |id: &Id| slots.get(*id).map_or(0, |slot| hash_of(hasher, &slot.name));
        self.index.insert_unique(key.hash, id, rehash);
        id
    }

    /// Forgets a free row, which the floor stands for from now on.
    pub(super) fn remove(&mut self, id: Id) {
        let Some(slot) = self.slots.remove(id) else {
            return;
        };
        self.floor = floor_behind(self.floor, slot.row.epoch);
        let hash = self.key(&slot.name).hash;
        if let Ok(entry) = self.index.find_entry(hash, |at| *at == id) {
            entry.remove();
        }
    }

    fn publish(&mut self, terms: &Terms<'_>, id: Id, key: Key<'_>) {
        if !self.watches.is_empty() {
            let present = self.snapshot(terms, Some(id), key);
            self.watches.publish(present);
        }
    }

    /// Every held row and every hold-off gets its whole time again; the queues are forgotten.
    pub(super) fn restart(&mut self, now: Duration, after: &mut Aftermath) {
        for slot in self.slots.iter_mut() {
            slot.restart(now, &mut after.rings);
        }
    }

    pub(super) fn row_count(&self) -> usize {
        self.index.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use aster_core::{GrantId, Ttl};

    fn terms(bounds: &TtlBounds) -> Terms<'_> {
        Terms {
            authority: Authority::from_bytes([1; 16]),
            bounds,
            now: Duration::ZERO,
            idle_retention: Duration::ZERO,
            idle_rows_max: 0,
            claim_time: Duration::from_secs(1),
            waiters_max: 1,
        }
    }

    /// Takes over, frees and drops rows of many holders: every text goes with its last row.
    #[test]
    fn the_holders_that_are_kept_are_those_of_held_rows() {
        let bounds = TtlBounds::default();
        let terms = terms(&bounds);
        let mut rows = Rows::new(Hasher::new(&crate::SystemEntropy).unwrap(), Arc::default());
        let mut after = Aftermath::default();
        let mut run = |name: &str, op: &LeaseOp, later: Duration| {
            let terms = Terms {
                now: later,
                ..terms
            };
            let name = ResourceName::new(name).unwrap();
            let key = rows.key(&name);
            match rows.transition(&terms, key, op, &mut after) {
                Ok(Ok(outcome)) => (outcome, rows.holders.len(), rows.row_count()),
                _ => panic!("no closure runs and nothing is exhausted"),
            }
        };
        let ttl = Ttl::from_millis(100).unwrap();
        for number in 0..1_000_u32 {
            let mut grant = [0; 16];
            grant[..4].copy_from_slice(&number.to_le_bytes());
            let holder = Principal::new(format!("holder/{number}")).unwrap();
            let op = LeaseOp::Acquire {
                candidate: holder.clone(),
                ttl,
                grant_id: GrantId::from_bytes(grant),
            };
            let (outcome, holders, _) = run("taken over", &op, ttl.duration() * number);
            let TransitionOutcome::Granted(_) = outcome else {
                panic!("expired: {outcome:?}")
            };
            assert_eq!(holders, 1, "the one before it is forgotten");
            let name = format!("once/{number}");
            let (outcome, holders, _) = run(&name, &op, ttl.duration() * number);
            let TransitionOutcome::Granted(fence) = outcome else {
                panic!("free: {outcome:?}")
            };
            assert_eq!(holders, 1, "shared by both rows");
            let epoch = fence.epoch;
            let release = LeaseOp::Release { holder, epoch };
            let (_, holders, count) = run(&name, &release, ttl.duration() * number);
            assert_eq!((holders, count), (1, 1));
        }
    }
}
