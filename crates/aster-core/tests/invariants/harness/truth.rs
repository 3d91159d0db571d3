//! The true history of a resource, kept from requests and answers alone. It never looks at a row and
//! calls nothing of the core, so it can contradict the core.

use std::collections::{BTreeMap, BTreeSet};

use aster_core::{GrantId, LeaseOp, Principal, TransitionOutcome};

#[derive(Debug, Clone, Default)]
pub(crate) struct Truth {
    /// The highest epoch that this resource ever had, dropped rows included.
    pub(crate) highest_epoch: u64,
    pub(crate) owner: Option<Owner>,
    /// The last grant, until an idle row was dropped.
    pub(crate) remembered: Option<GrantId>,
    /// Whom revokes with a hold-off keep out, and until when at the earliest.
    pub(crate) held_off: BTreeMap<Principal, u64>,
    /// Epochs that were granted and have ended.
    pub(crate) ended_epochs: BTreeSet<u64>,
    /// Every epoch that was ever granted.
    pub(crate) granted_epochs: BTreeSet<u64>,
}

#[derive(Debug, Clone)]
pub(crate) struct Owner {
    pub(crate) epoch: u64,
    pub(crate) holder: Principal,
    pub(crate) ttl_ms: u64,
    pub(crate) grant_id: GrantId,
    /// When the last grant or renewal was answered.
    pub(crate) armed_at_ms: u64,
}

impl Owner {
    /// Whether the ttl has really passed.
    pub(crate) fn is_past_ttl(&self, now_ms: u64) -> bool {
        now_ms >= self.armed_at_ms + self.ttl_ms
    }
}

impl Truth {
    /// The present epoch: the last one of a resource that the store still remembers, else the floor.
    pub(crate) fn epoch(&self, floor: u64) -> u64 {
        if self.remembered.is_some() {
            self.highest_epoch
        } else {
            floor
        }
    }

    /// Whether `candidate` is kept out by a hold-off that is not among those that the store judges over.
    pub(crate) fn keeps_out(&self, candidate: &Principal, over: &[Principal]) -> bool {
        self.held_off.contains_key(candidate) && !over.contains(candidate)
    }

    /// The store judged these hold-offs over and let go of them, whatever it answers then.
    pub(crate) fn let_go(&mut self, over: &[Principal]) {
        self.held_off.retain(|holder, _| !over.contains(holder));
    }

    pub(crate) fn learn(&mut self, now_ms: u64, op: &LeaseOp, outcome: &TransitionOutcome) {
        match (op, outcome) {
            (
                LeaseOp::Acquire {
                    candidate,
                    ttl,
                    grant_id,
                },
                TransitionOutcome::Granted(fence),
            ) => {
                let is_same =
                    |owner: &Owner| owner.epoch == fence.epoch && owner.grant_id == *grant_id;
                if !self.owner.as_ref().is_some_and(is_same) {
                    self.end_ownership();
                    self.highest_epoch = self.highest_epoch.max(fence.epoch);
                }
                self.granted_epochs.insert(fence.epoch);
                self.remembered = Some(*grant_id);
                self.owner = Some(Owner {
                    epoch: fence.epoch,
                    holder: candidate.clone(),
                    ttl_ms: ttl.as_millis(),
                    grant_id: *grant_id,
                    armed_at_ms: now_ms,
                });
            }
            (_, TransitionOutcome::Renewed) => {
                if let Some(owner) = &mut self.owner {
                    owner.armed_at_ms = now_ms;
                }
            }
            (LeaseOp::Revoke { hold_off, .. }, TransitionOutcome::Revoked) => {
                if let (Some(duration), Some(owner)) = (hold_off, &self.owner) {
                    let until_ms = now_ms + u64::try_from(duration.as_millis()).unwrap();
                    self.held_off.insert(owner.holder.clone(), until_ms);
                }
                self.free();
            }
            (_, TransitionOutcome::Released | TransitionOutcome::Cancelled) => self.free(),
            _ => {}
        }
    }

    /// An idle row was dropped: its last grant is forgotten, and its hold-offs were over.
    pub(crate) fn forget_row(&mut self) {
        self.remembered = None;
        self.held_off.clear();
    }

    pub(crate) fn restart(&mut self, now_ms: u64) {
        if let Some(owner) = &mut self.owner {
            owner.armed_at_ms = now_ms;
        }
    }

    /// Being free is an epoch of its own.
    fn free(&mut self) {
        if let Some(epoch) = self.end_ownership() {
            self.highest_epoch = self.highest_epoch.max(epoch + 1);
        }
    }

    fn end_ownership(&mut self) -> Option<u64> {
        let epoch = self.owner.take()?.epoch;
        self.ended_epochs.insert(epoch);
        Some(epoch)
    }
}
