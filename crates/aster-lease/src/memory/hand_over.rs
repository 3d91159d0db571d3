//! Handing a row to whoever waits for it.
//!
//! A hand-over happens in the very step that frees the row, under the row's lock. At an expiry
//! somebody has to notice: the first waiter does, and those behind it only if it does not.

use std::sync::Arc;
use std::time::Duration;

use aster_core::{DenyReason, Fence, GrantId, LeaseOp, Principal, RuleError, TransitionOutcome};

use super::gate::Gated;
use super::queue::{Claim, Entered, Seat, Told};
use super::rows::{Aftermath, Key, Rows, Terms};
use super::slab::Id;
use crate::metrics::HandOver;
use crate::waiting::WaitRequest;

/// A waiter looks at the row at least this often for each place that it has in the queue: a hand-over
/// rings the next one only, which may be dead.
const RELOOK: Duration = Duration::from_secs(1);
/// By which part of the claim time a waiter looks later at an expiry than the one before it.
const STAGGER_DIVISOR: u32 = 4;
/// Timers do not resolve less.
const NAP_MIN: Duration = Duration::from_millis(1);

/// What became of a request to wait.
pub(super) enum Joined {
    Decided(TransitionOutcome),
    Waits { ticket: u64, nap: Duration },
    Full,
}

/// What a waiter found when it looked.
pub(super) enum Looked {
    /// Its seat has the answer.
    Told,
    /// Look again after this time, or when the bell rings.
    Nap(Duration),
    /// The row changes hands only after a closure of this thread.
    Reentrant,
}

impl Rows {
    /// Grants the row to the first waiter if it may be taken. A waiter that is refused is told so, and
    /// the next one is asked.
    pub(super) fn advance(
        &mut self,
        terms: &Terms<'_>,
        id: Id,
        after: &mut Aftermath,
    ) -> Result<(), Gated> {
        loop {
            let due = self
                .slots
                .get(id)
                .is_some_and(|slot| slot.has_waiters() && slot.may_be_taken(terms.now));
            if !due {
                return Ok(());
            }
            let Some(slot) = self.ungated(id)? else {
                return Ok(());
            };
            let resource = slot.name.clone();
            let Some(first) = slot.rare_mut().queue.pop_first() else {
                return Ok(());
            };
            let op = first.request.acquire();
            let key = self.key(&resource);
            let told = match self.step(terms, Some(id), key, &op)? {
                Err(error) => Told::Failed(error),
                Ok(step) => {
                    after.note(&resource, &op, &step);
                    match step.outcome {
                        TransitionOutcome::Granted(fence) => {
                            after.hand_overs.push(match step.held_before {
                                Some(_) => HandOver::Expired,
                                None => HandOver::Freed,
                            });
                            self.claim(terms, id, fence.epoch);
                            Told::Granted(fence)
                        }
                        TransitionOutcome::Denied(reason, snapshot) => {
                            Told::Denied(reason, snapshot)
                        }
                        // An Acquire is granted or denied.
                        _ => Told::Restarted,
                    }
                }
            };
            first.seat.tell(told);
            after.rings.push(first.seat);
            self.ring_first(id, after);
            if let Some(slot) = self.slots.get_mut(id) {
                slot.tidy();
            }
            self.queue_idle(id);
        }
    }

    fn claim(&mut self, terms: &Terms<'_>, id: Id, epoch: u64) {
        if let Some(slot) = self.slots.get_mut(id) {
            slot.rare_mut().claim = Some(Claim {
                epoch,
                time: Some(terms.claim_time),
            });
        }
    }

    /// A cancelled wish waits no more.
    pub(super) fn withdraw(
        &mut self,
        id: Id,
        candidate: &Principal,
        grant_id: GrantId,
        after: &mut Aftermath,
    ) {
        let Some(slot) = self.slots.get_mut(id).filter(|slot| slot.has_waiters()) else {
            return;
        };
        let withdrawn = slot.rare_mut().queue.withdraw(candidate, grant_id);
        slot.tidy();
        if let Some((seat, was_first)) = withdrawn {
            seat.tell(Told::Withdrawn);
            after.rings.push(seat);
            if was_first {
                self.ring_first(id, after);
            }
        }
    }

    /// Whoever is first now has to watch the row's expiry.
    fn ring_first(&self, id: Id, after: &mut Aftermath) {
        let first = self
            .slots
            .get(id)
            .and_then(|slot| slot.rare.as_ref()?.queue.first());
        after.rings.extend(first.cloned());
    }

    /// The first step of a request to wait: a decision, or a place in the queue.
    pub(super) fn join(
        &mut self,
        terms: &Terms<'_>,
        key: Key<'_>,
        request: &WaitRequest,
        seat: &Arc<Seat>,
        after: &mut Aftermath,
    ) -> Result<Joined, RuleError> {
        terms.bounds.check(request.ttl)?;
        let found = self.find(key);
        if let Some(slot) = found.and_then(|id| self.slots.get_mut(id)) {
            slot.end_hold_offs(terms.now);
        }
        if let Some(id) = found {
            // A closed gate makes the request wait; its owner's patience is not ours.
            let _gated = self.advance(terms, id, after);
        }
        if self.is_decided(terms, found, request) {
            let op = request.acquire();
            if let Ok(step) = self.step(terms, found, key, &op) {
                let step = step?;
                after.note(key.resource, &op, &step);
                self.drop_idle(terms);
                return Ok(Joined::Decided(step.outcome));
            }
        }
        let denied = |reason, rows: &Self| {
            let snapshot = rows.snapshot(terms, found, key);
            Ok(Joined::Decided(TransitionOutcome::Denied(reason, snapshot)))
        };
        let Some((id, slot)) = found.and_then(|id| Some((id, self.slots.get_mut(id)?))) else {
            return denied(DenyReason::NotHeld, self);
        };
        if slot.row.hold_offs.keep_out(&request.candidate) {
            return denied(DenyReason::HeldOff, self);
        }
        if request.wait.is_zero() {
            return denied(DenyReason::WaitRanOut, self);
        }
        let ticket = match slot
            .rare_mut()
            .queue
            .enter(request, seat, terms.now, terms.waiters_max)
        {
            Entered::AtTheEnd { ticket } => ticket,
            Entered::Again { ticket, older } => {
                after.rings.push(older);
                ticket
            }
            Entered::Full => return Ok(Joined::Full),
        };
        let nap = self.nap(terms, id, ticket, false).unwrap_or(NAP_MIN);
        Ok(Joined::Waits { ticket, nap })
    }

    /// The row's own grant asks again, or the row may be taken and nobody waits.
    fn is_decided(&self, terms: &Terms<'_>, found: Option<Id>, request: &WaitRequest) -> bool {
        let slot = found.and_then(|id| self.slots.get(id));
        slot.is_none_or(|slot| {
            slot.row.grant_id == request.grant_id
                || (slot.may_be_taken(terms.now) && !slot.has_waiters())
        })
    }

    /// A waiter looks: it hands the row to whoever is first if its time has passed.
    pub(super) fn look(
        &mut self,
        terms: &Terms<'_>,
        key: Key<'_>,
        ticket: u64,
        seat: &Arc<Seat>,
        after: &mut Aftermath,
    ) -> Looked {
        if seat.is_told() {
            return Looked::Told;
        }
        let Some(id) = self.find(key) else {
            return Looked::Told;
        };
        let handed_before = after.rings.len();
        match self.advance(terms, id, after) {
            Ok(()) => {}
            Err(Gated::Reentrant) => return Looked::Reentrant,
            Err(Gated::Wait) => {
                if let Some(slot) = self.slots.get_mut(id) {
                    slot.ring_when_open(seat);
                }
                return Looked::Nap(RELOOK);
            }
        }
        if seat.is_told() {
            return Looked::Told;
        }
        // Who had to do it for those before it watches the row as if it were first: they are dead.
        let watches = after.rings.len() > handed_before;
        match self.nap(terms, id, ticket, watches) {
            Some(nap) => Looked::Nap(nap),
            None => Looked::Told,
        }
    }

    /// How long a waiter may sleep; `None` when it has no place.
    fn nap(&self, terms: &Terms<'_>, id: Id, ticket: u64, watches: bool) -> Option<Duration> {
        let slot = self.slots.get(id)?;
        let position = slot.rare.as_ref()?.queue.position(ticket)?;
        let places = u32::try_from(position).unwrap_or(u32::MAX);
        let left = slot.judged(terms.now).remaining.unwrap_or_default();
        let later = match watches {
            true => Duration::ZERO,
            false => (terms.claim_time / STAGGER_DIVISOR).saturating_mul(places),
        };
        let longest = RELOOK.saturating_mul(places.saturating_add(1));
        Some(left.saturating_add(later).min(longest).max(NAP_MIN))
    }

    /// The caller waits no more. What it was granted and has not seen goes to the next one, unless a
    /// closure runs on it: then it lapses after its claim time.
    pub(super) fn leave(
        &mut self,
        terms: &Terms<'_>,
        key: Key<'_>,
        ticket: u64,
        seat: &Arc<Seat>,
        after: &mut Aftermath,
    ) {
        if let Some(Told::Granted(fence)) = seat.told() {
            self.give_back(terms, key, &fence, after);
            return;
        }
        let Some((id, slot)) = self
            .find(key)
            .and_then(|id| Some((id, self.slots.get_mut(id)?)))
        else {
            return;
        };
        let Some(rare) = &mut slot.rare else {
            return;
        };
        let was_first = rare.queue.leave(ticket, seat);
        slot.tidy();
        if was_first {
            self.ring_first(id, after);
        }
    }

    /// A grant that nobody has seen and nobody has claimed.
    fn give_back(&mut self, terms: &Terms<'_>, key: Key<'_>, fence: &Fence, after: &mut Aftermath) {
        let Some(slot) = self.slot(key) else {
            return;
        };
        if slot.row.epoch != fence.epoch || slot.claim().is_none() {
            return;
        }
        let op = LeaseOp::Cancel {
            candidate: fence.holder.clone(),
            grant_id: slot.row.grant_id,
        };
        // Gated or exhausted, the grant ends with its claim time.
        let _lapses = self.transition(terms, key, &op, after);
    }

    /// Whether what `seat` was granted lasts still, and for how long without a renewal.
    pub(super) fn claimable(
        &self,
        terms: &Terms<'_>,
        key: Key<'_>,
        epoch: u64,
    ) -> Option<Duration> {
        let slot = self.slot(key)?;
        let left = slot.judged(terms.now).remaining?;
        (slot.row.epoch == epoch && !left.is_zero()).then(|| left.min(terms.claim_time))
    }
}
