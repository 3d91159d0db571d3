//! Who waits for a row, and where they are told.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use aster_core::{DenyReason, Fence, GrantId, LeaseSnapshot, Principal, RuleError};
use tokio::sync::Notify;

use crate::waiting::{WaitRequest, Waiter};

/// A grant that was waited for: until its first renewal it lasts for the claim time only.
pub(super) struct Claim {
    pub(super) epoch: u64,
    /// `None` after a restart, which forgets when it was made: the whole ttl counts again.
    pub(super) time: Option<Duration>,
}

/// Where one waiting caller hears its answer.
#[derive(Default)]
pub(super) struct Seat {
    told: Mutex<Option<Told>>,
    bell: Notify,
}

/// What a waiter is told.
#[derive(Clone)]
pub(super) enum Told {
    Granted(Fence),
    Denied(DenyReason, LeaseSnapshot),
    Failed(RuleError),
    /// The same wish was asked for again: the newer call has its place.
    Replaced,
    Restarted,
    /// Its wish was cancelled.
    Withdrawn,
}

impl Seat {
    pub(super) fn tell(&self, told: Told) {
        *self.told.lock().unwrap_or_else(PoisonError::into_inner) = Some(told);
    }

    pub(super) fn is_told(&self) -> bool {
        self.told
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .is_some()
    }

    pub(super) fn told(&self) -> Option<Told> {
        self.told
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// The caller looks again.
    pub(super) fn ring(&self) {
        self.bell.notify_one();
    }

    /// Until somebody rings, also if that was before.
    pub(super) async fn rung(&self) {
        self.bell.notified().await;
    }
}

pub(super) struct Waiting {
    ticket: u64,
    pub(super) request: WaitRequest,
    since: Duration,
    pub(super) seat: Arc<Seat>,
}

/// The waiters of one row, the next one first. Tickets grow along it.
#[derive(Default)]
pub(super) struct Queue {
    waiting: VecDeque<Waiting>,
    tickets: HashMap<(GrantId, Principal), u64>,
    last_ticket: u64,
}

impl Queue {
    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Takes a place at the end, or the place that the same wish has already.
    pub(super) fn enter(
        &mut self,
        request: &WaitRequest,
        seat: &Arc<Seat>,
        now: Duration,
        waiters_max: usize,
    ) -> Entered {
        let wish = (request.grant_id, request.candidate.clone());
        let known = self.tickets.get(&wish).copied();
        if let Some(position) = known.and_then(|ticket| self.position(ticket)) {
            let place = &mut self.waiting[position];
            place.request = request.clone();
            let older = std::mem::replace(&mut place.seat, seat.clone());
            older.tell(Told::Replaced);
            let ticket = place.ticket;
            return Entered::Again { ticket, older };
        }
        if self.waiting.len() >= waiters_max {
            return Entered::Full;
        }
        self.last_ticket += 1;
        let ticket = self.last_ticket;
        self.tickets.insert(wish, ticket);
        self.waiting.push_back(Waiting {
            ticket,
            request: request.clone(),
            since: now,
            seat: seat.clone(),
        });
        Entered::AtTheEnd { ticket }
    }

    pub(super) fn position(&self, ticket: u64) -> Option<usize> {
        self.waiting
            .binary_search_by_key(&ticket, |waiting| waiting.ticket)
            .ok()
    }

    pub(super) fn first(&self) -> Option<&Arc<Seat>> {
        self.waiting.front().map(|waiting| &waiting.seat)
    }

    pub(super) fn pop_first(&mut self) -> Option<Waiting> {
        self.remove(0)
    }

    /// The caller at `seat` gives up its place; whether that was the first one.
    pub(super) fn leave(&mut self, ticket: u64, seat: &Arc<Seat>) -> bool {
        let place = self
            .position(ticket)
            .filter(|position| Arc::ptr_eq(&self.waiting[*position].seat, seat));
        place.and_then(|position| self.remove(position)).is_some() && place == Some(0)
    }

    /// Whoever asked under this wish gave it up; its seat, and whether it was the first.
    pub(super) fn withdraw(
        &mut self,
        candidate: &Principal,
        grant_id: GrantId,
    ) -> Option<(Arc<Seat>, bool)> {
        let ticket = *self.tickets.get(&(grant_id, candidate.clone()))?;
        let position = self.position(ticket)?;
        let waiting = self.remove(position)?;
        Some((waiting.seat, position == 0))
    }

    fn remove(&mut self, position: usize) -> Option<Waiting> {
        let waiting = self.waiting.remove(position)?;
        let wish = (waiting.request.grant_id, waiting.request.candidate.clone());
        self.tickets.remove(&wish);
        Some(waiting)
    }

    /// After a restart: everyone is told, and nobody waits.
    pub(super) fn forget(&mut self, rings: &mut Vec<Arc<Seat>>) {
        for waiting in std::mem::take(&mut self.waiting) {
            waiting.seat.tell(Told::Restarted);
            rings.push(waiting.seat);
        }
        self.tickets = HashMap::new();
    }

    pub(super) fn list(&self, now: Duration) -> Vec<Waiter> {
        let waiting = self.waiting.iter().enumerate();
        waiting
            .map(|(position, waiting)| Waiter {
                position,
                candidate: waiting.request.candidate.clone(),
                ttl: waiting.request.ttl,
                waiting: Some(now.saturating_sub(waiting.since)),
            })
            .collect()
    }
}

/// What became of the wish for a place.
pub(super) enum Entered {
    AtTheEnd { ticket: u64 },
    Again { ticket: u64, older: Arc<Seat> },
    Full,
}
