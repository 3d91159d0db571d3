//! The model's queue and watches, and their faults.

use std::time::Duration;

use aster_lease::{
    DenyReason, GrantId, LeaseSnapshot, LeaseWatch, ResourceName, SerializerError,
    TransitionOutcome, WaitOutcome, WaitRequest, Waiter,
};
use tokio::sync::oneshot;

use super::{Fault, State, Store};

pub(super) const CLAIM: Duration = Duration::from_secs(2);
pub(super) const WAITERS: usize = 8;

type Answer = Result<WaitOutcome, SerializerError>;

/// One who waits.
pub(super) struct Waiting {
    ticket: u64,
    request: WaitRequest,
    until: Duration,
    told: oneshot::Sender<Answer>,
}

/// The caller's end of a [`Waiting`]: leaving is dropping it.
struct Seat {
    store: Store,
    resource: ResourceName,
    request: WaitRequest,
    ticket: u64,
    hears: oneshot::Receiver<Answer>,
}

impl Drop for Seat {
    fn drop(&mut self) {
        let mut state = self.store.lock();
        if self.store.fault != Fault::LeaverStays
            && let Some(queue) = state.queues.get_mut(&self.resource)
        {
            queue.retain(|waiting| waiting.ticket != self.ticket);
        }
        let is_granted = matches!(self.hears.try_recv(), Ok(Ok(WaitOutcome::Granted { .. })));
        if is_granted {
            let cancel = aster_lease::LeaseOp::Cancel {
                candidate: self.request.candidate.clone(),
                grant_id: self.request.grant_id,
            };
            let _ = self.store.step(&mut state, &self.resource, &cancel);
            self.store.show(&mut state, &self.resource);
            self.store.hand_over(&mut state, &self.resource);
        }
    }
}

impl Store {
    pub(super) async fn wait_in_line(
        &self,
        resource: ResourceName,
        request: WaitRequest,
    ) -> Answer {
        let mut seat = match self.take_a_seat(resource, request) {
            Ok(seat) => seat,
            Err(answer) => return *answer,
        };
        match (&mut seat.hears).await {
            Ok(answer) => answer,
            Err(_) => Err(forgotten()),
        }
    }

    /// A seat in the queue, or the answer at once.
    fn take_a_seat(
        &self,
        resource: ResourceName,
        request: WaitRequest,
    ) -> Result<Seat, Box<Answer>> {
        let mut state = self.lock();
        let is_mine = |state: &State| {
            let row = state.rows.get(&resource).map(|slot| slot.row.grant_id);
            row == Some(request.grant_id)
        };
        if !is_mine(&state) {
            self.hand_over(&mut state, &resource);
        }
        let outcome = self
            .step(&mut state, &resource, &request.acquire())
            .map_err(|error| Box::new(Err(error)))?;
        self.show(&mut state, &resource);
        let snapshot = match outcome {
            TransitionOutcome::Granted(fence) => {
                return Err(Box::new(Ok(WaitOutcome::Granted { fence, claim: None })));
            }
            TransitionOutcome::Denied(DenyReason::HeldByOther, snapshot) if !is_mine(&state) => {
                snapshot
            }
            TransitionOutcome::Denied(reason, snapshot) => {
                return Err(Box::new(Ok(WaitOutcome::Denied(reason, snapshot))));
            }
            other => unreachable!("an acquire was answered {other:?}"),
        };
        if request.wait.is_zero() && self.fault != Fault::QueuesTheImpatient {
            let reason = DenyReason::WaitRanOut;
            return Err(Box::new(Ok(WaitOutcome::Denied(reason, snapshot))));
        }
        self.queue_up(&mut state, resource.clone(), request)
    }

    fn queue_up(
        &self,
        state: &mut State,
        resource: ResourceName,
        request: WaitRequest,
    ) -> Result<Seat, Box<Answer>> {
        let (told, hears) = oneshot::channel();
        state.tickets += 1;
        let ticket = state.tickets;
        let waiting = Waiting {
            ticket,
            request: request.clone(),
            until: state.now + request.wait,
            told,
        };
        let queue = state.queues.entry(resource.clone()).or_default();
        let place = queue
            .iter()
            .position(|waiting| waiting.request.grant_id == request.grant_id);
        match place {
            Some(place) if self.fault != Fault::RetryLosesItsPlace => {
                let older = std::mem::replace(&mut queue[place], waiting);
                let _ = older.told.send(Err(forgotten()));
            }
            Some(place) => {
                queue.remove(place);
                queue.push_back(waiting);
            }
            None if queue.len() >= WAITERS && self.fault != Fault::QueueIsUnbounded => {
                let retry_after = Duration::from_secs(1);
                return Err(Box::new(Err(SerializerError::Overloaded { retry_after })));
            }
            None => queue.push_back(waiting),
        }
        Ok(Seat {
            store: self.clone(),
            resource,
            request,
            ticket,
            hears,
        })
    }

    /// Grants what may be taken to who waits for it.
    pub(super) fn hand_over(&self, state: &mut State, resource: &ResourceName) {
        while self.may_be_taken(state, resource) && self.fault != Fault::NeverHandsOver {
            let Some(waiting) = self.next_waiter(state, resource) else {
                return;
            };
            let acquire = waiting.request.acquire();
            let answer = match self.step(state, resource, &acquire) {
                Ok(TransitionOutcome::Granted(fence)) => {
                    let ttl = waiting.request.ttl.duration();
                    let is_claim = self.fault != Fault::HandsOverForTheWholeTtl;
                    if let Some(slot) = state.rows.get_mut(resource) {
                        slot.is_claim = is_claim;
                    }
                    let claim = is_claim.then(|| CLAIM.min(ttl));
                    Ok(WaitOutcome::Granted { fence, claim })
                }
                Ok(TransitionOutcome::Denied(reason, snapshot)) => {
                    if self.fault == Fault::HeldOffBlocksTheQueue {
                        let queue = state.queues.entry(resource.clone()).or_default();
                        queue.push_front(waiting);
                        return;
                    }
                    Ok(WaitOutcome::Denied(reason, snapshot))
                }
                Ok(other) => unreachable!("an acquire was answered {other:?}"),
                Err(error) => Err(error),
            };
            if self.fault != Fault::WatchMissesHandOvers {
                self.show(state, resource);
            }
            let _ = waiting.told.send(answer);
        }
    }

    fn next_waiter(&self, state: &mut State, resource: &ResourceName) -> Option<Waiting> {
        let queue = state.queues.get_mut(resource)?;
        match self.fault {
            Fault::ServesTheLastFirst => queue.pop_back(),
            _ => queue.pop_front(),
        }
    }

    fn may_be_taken(&self, state: &State, resource: &ResourceName) -> bool {
        state
            .rows
            .get(resource)
            .is_none_or(|slot| slot.row.held.is_none() || self.judge(state, slot).expired)
    }

    /// After the clock has moved: waits that ran out, and what has expired.
    pub(super) fn tend(&self, state: &mut State) {
        let now = state.now;
        for resource in state.queues.keys().cloned().collect::<Vec<_>>() {
            if self.fault != Fault::ShortWaitStays {
                self.end_waits(state, &resource, now);
            }
            let tends = !matches!(
                self.fault,
                Fault::DoesNotHandOverAtExpiry | Fault::PlainAcquireOvertakes
            );
            if tends {
                self.hand_over(state, &resource);
            }
        }
    }

    fn end_waits(&self, state: &mut State, resource: &ResourceName, now: Duration) {
        let snapshot = self.shown(state, resource);
        let queue = state.queues.entry(resource.clone()).or_default();
        let (over, waiting) = queue.drain(..).partition(|waiting| waiting.until <= now);
        *queue = waiting;
        let reason = match self.fault {
            Fault::ShortWaitIsHeldByOther => DenyReason::HeldByOther,
            _ => DenyReason::WaitRanOut,
        };
        for waiting in Vec::from(over) {
            let denied = WaitOutcome::Denied(reason, snapshot.clone());
            let _ = waiting.told.send(Ok(denied));
        }
    }

    pub(super) fn forget_the_queues(&self, state: &mut State) {
        let queues = std::mem::take(&mut state.queues);
        if self.fault != Fault::RestartGrantsThoseItForgot {
            for waiting in queues.into_values().flatten() {
                let _ = waiting.told.send(Err(forgotten()));
            }
            return;
        }
        // They stay in the queue under another name for their wish, so that nobody can ask again.
        for (resource, queue) in queues {
            for mut waiting in queue {
                let (told, nobody) = oneshot::channel();
                drop(nobody);
                let _ = std::mem::replace(&mut waiting.told, told).send(Err(forgotten()));
                waiting.ticket = 0;
                waiting.request.grant_id = GrantId::from_bytes([200; 16]);
                let queue = state.queues.entry(resource.clone()).or_default();
                queue.push_back(waiting);
            }
        }
    }

    pub(super) fn who_waits(&self, resource: &ResourceName) -> Vec<Waiter> {
        let state = self.lock();
        let waiting = state.queues.get(resource).into_iter().flatten();
        let mut waiters: Vec<_> = waiting
            .enumerate()
            .map(|(position, waiting)| Waiter {
                position,
                candidate: waiting.request.candidate.clone(),
                ttl: waiting.request.ttl,
                waiting: None,
            })
            .collect();
        if self.fault == Fault::QueueShowsTheLastFirst {
            waiters.reverse();
        }
        waiters
    }

    pub(super) fn new_watch(&self, resource: ResourceName) -> LeaseWatch {
        let mut state = self.lock();
        let (sender, watch) = LeaseWatch::channel(self.shown(&state, &resource));
        state.watches.entry(resource).or_default().push(sender);
        watch
    }

    pub(super) fn show(&self, state: &mut State, resource: &ResourceName) {
        let shown = self.shown(state, resource);
        for watch in state.watches.get(resource).into_iter().flatten() {
            watch.publish(shown.clone());
        }
    }

    fn shown(&self, state: &State, resource: &ResourceName) -> LeaseSnapshot {
        self.view(state, resource, state.rows.get(resource))
            .snapshot(None)
    }
}

fn forgotten() -> SerializerError {
    SerializerError::Unavailable {
        message: "the queue was forgotten".to_owned(),
        source: None,
    }
}
