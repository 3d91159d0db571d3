//! Who of this process waits and who watches: callers put themselves down here, the writer and the
//! looking thread answer them.

use std::collections::HashSet;
use std::fmt;
use std::os::unix::net::UnixDatagram;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use aster_core::{GrantId, LeaseSnapshot, ResourceName};
use aster_lease::{Metrics, SerializerError, WaitRequest, WatchSender};
use tokio::sync::oneshot;

use crate::callers::State;
use crate::calls::{Answer, Ending, Left, Mine, Phase, Place, Wait, Wish, lost_place, replaced};
use crate::domain::StoreTime;
use crate::plans::after;
use crate::schema::Id;
use crate::waiters::ProcessId;

/// How many calls of one process wait at once, in all queues of a store.
pub(crate) const WAITS_MAX: usize = 100_000;
/// How many resources one process watches at once.
const WATCHES_MAX: usize = 100_000;
/// For how long a call that failed may ask again and find its place.
const FAILED_GRACE: Duration = Duration::from_secs(2);
/// How soon giving up is tried again that could not be carried out.
const LEAVE_AGAIN: Duration = Duration::from_millis(100);
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// Shared by all threads of one open store.
pub(crate) struct Waiting {
    /// The name of this opening in the queues.
    pub(crate) process: ProcessId,
    pub(crate) metrics: Metrics,
    time: Arc<dyn StoreTime>,
    state: Mutex<State>,
}

impl fmt::Debug for Waiting {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Waiting")
            .field("process", &self.process)
            .finish_non_exhaustive()
    }
}

impl Waiting {
    pub(crate) fn new(process: ProcessId, time: Arc<dyn StoreTime>, metrics: Metrics) -> Self {
        Self {
            process,
            metrics,
            time,
            state: Mutex::default(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts a call down, before it is sent to the writer. An earlier call under the same grant id is
    /// told that it was replaced.
    pub(crate) fn register(
        self: &Arc<Self>,
        resource: &ResourceName,
        request: &WaitRequest,
        until_ns: u64,
    ) -> Result<(Wish, oneshot::Receiver<Answer>), SerializerError> {
        let mut state = self.lock();
        if state.waits.len() >= WAITS_MAX {
            return Err(SerializerError::Overloaded {
                retry_after: RETRY_AFTER,
            });
        }
        let earlier = state
            .resources
            .get(resource)
            .and_then(|local| local.grants.get(&request.grant_id).copied());
        if let Some(id) = earlier {
            state.answer(id, Err(replaced()));
            if let Some(wait) = state.waits.get_mut(&id) {
                wait.phase = Phase::Replaced;
            }
        }
        // An earlier call that was dropped has not left yet: this one takes its place.
        state
            .left
            .retain(|(_, left)| left.grant_id != request.grant_id || left.resource != *resource);
        let id = state.next_id;
        state.next_id += 1;
        let (reply, receiver) = oneshot::channel();
        let wait = Wait {
            resource: resource.clone(),
            candidate: request.candidate.clone(),
            grant_id: request.grant_id,
            until_ns,
            place: None,
            counted: None,
            is_over: false,
            takes_nothing: false,
            phase: Phase::Waits(reply),
        };
        state.waits.insert(id, wait);
        state.calls.entry(request.grant_id).or_default().push(id);
        let local = state.resources.entry(resource.clone()).or_default();
        local.grants.insert(request.grant_id, id);
        Ok((Wish::new(id, self.clone()), receiver))
    }

    /// The call is over. `seen`: its caller has had its answer, and whether that was a grant.
    pub(crate) fn over(&self, id: u64, seen: Option<bool>) {
        let mut state = self.lock();
        let Some(wait) = state.remove(id) else {
            return;
        };
        match seen {
            Some(true) => state.owned(&wait),
            Some(false) => {}
            None if wait.has_to_leave() && !state.has_other_owner(&wait) => {
                state.give_up(0, wait.wish());
                state.ring();
            }
            None => {}
        }
    }

    /// Whether that call still waits for an answer.
    pub(crate) fn wants(&self, id: u64) -> bool {
        let state = self.lock();
        let wait = state.waits.get(&id);
        wait.is_some_and(|wait| matches!(wait.phase, Phase::Waits(_)))
    }

    /// That call is in the queue now.
    pub(crate) fn queued(&self, id: u64, place: Place) {
        let mut state = self.lock();
        let Some(wait) = state.waits.get_mut(&id) else {
            return;
        };
        if !matches!(wait.phase, Phase::Waits(_)) {
            return;
        }
        wait.place = Some(place);
        wait.counted.get_or_insert_with(|| self.metrics.waiter());
        let (until_ns, resource) = (wait.until_ns, wait.resource.clone());
        state.untils.insert((until_ns, id));
        let local = state.resources.entry(resource.clone()).or_default();
        local.queued.insert(place.ticket, id);
        state.changed.insert(resource);
        state.ring();
    }

    pub(crate) fn answer(&self, id: u64, answer: Answer) {
        self.lock().answer(id, answer);
    }

    /// That call failed. It may have a place all the same, which is given up unless it soon asks again.
    pub(crate) fn fail(&self, id: u64, error: SerializerError) {
        let from_ns = after(self.time.now_ns(), FAILED_GRACE);
        let mut state = self.lock();
        let has_to_leave = state.waits.get(&id).is_some_and(Wait::has_to_leave);
        if state.answer(id, Err(error))
            && has_to_leave
            && let Some(wait) = state.waits.get(&id)
            && !state.has_other_owner(wait)
        {
            let wish = wait.wish();
            state.give_up(from_ns, wish);
            state.ring();
        }
    }

    /// Answers who waits for `resource` under `grant_id`. `false` when that is nobody of ours.
    pub(crate) fn answer_grant(
        &self,
        resource: &ResourceName,
        grant_id: GrantId,
        answer: Answer,
    ) -> bool {
        let mut state = self.lock();
        let local = state.resources.get(resource);
        match local.and_then(|local| local.grants.get(&grant_id).copied()) {
            Some(id) => state.answer(id, answer),
            None => false,
        }
    }

    /// Those of `resources` that somebody here waits for or watches.
    pub(crate) fn concerned<'r>(
        &self,
        resources: impl IntoIterator<Item = &'r ResourceName>,
    ) -> Vec<ResourceName> {
        let state = self.lock();
        if state.resources.is_empty() {
            return Vec::new();
        }
        let resources = resources.into_iter();
        resources
            .filter(|resource| state.resources.contains_key(*resource))
            .cloned()
            .collect()
    }

    /// These resources have changed; whoever waits for them or watches them hears of it.
    pub(crate) fn changed<'r>(&self, resources: impl IntoIterator<Item = &'r ResourceName>) {
        let mut state = self.lock();
        if state.resources.is_empty() {
            return;
        }
        let mut concerns_us = false;
        for resource in resources {
            if state.resources.contains_key(resource) {
                state.changed.insert(resource.clone());
                concerns_us = true;
            }
        }
        if concerns_us {
            state.ring();
        }
    }

    /// These have to be looked at once more, at the next look.
    pub(crate) fn look_again<'r>(&self, resources: impl IntoIterator<Item = &'r ResourceName>) {
        let mut state = self.lock();
        for resource in resources {
            if state.resources.contains_key(resource) {
                state.changed.insert(resource.clone());
            }
        }
    }

    /// Adds a watch. It is looked after from now on.
    pub(crate) fn watch(
        &self,
        resource: &ResourceName,
        watch: WatchSender,
    ) -> Result<(), SerializerError> {
        let mut state = self.lock();
        if state.watches >= WATCHES_MAX {
            return Err(SerializerError::Overloaded {
                retry_after: RETRY_AFTER,
            });
        }
        state.watches += 1;
        let local = state.resources.entry(resource.clone()).or_default();
        local.watches.push(watch);
        state.changed.insert(resource.clone());
        state.ring();
        Ok(())
    }

    /// Shows who owns `resource` to those who watch it.
    pub(crate) fn publish(&self, resource: &ResourceName, snapshot: &LeaseSnapshot) {
        let mut state = self.lock();
        let Some(local) = state.resources.get_mut(resource) else {
            return;
        };
        let before = local.watches.len();
        local
            .watches
            .retain(|watch| watch.publish(snapshot.clone()));
        let closed = before - local.watches.len();
        state.watches -= closed;
        state.forget_idle(resource);
    }

    /// Lets go of watches that nobody follows any more.
    pub(crate) fn drop_closed_watches(&self) {
        let mut state = self.lock();
        if state.watches == 0 {
            return;
        }
        let mut open = 0;
        state.resources.retain(|_, local| {
            local.watches.retain(|watch| !watch.is_closed());
            open += local.watches.len();
            !local.is_idle()
        });
        state.watches = open;
    }

    /// From now on this is rung when there is something to do.
    pub(crate) fn set_bell(&self, bell: UnixDatagram) {
        let mut state = self.lock();
        state.bell = Some(bell);
        state.ring();
    }

    pub(crate) fn close(&self) {
        let mut state = self.lock();
        state.closed = true;
        state.ring();
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.lock().closed
    }

    /// Nobody waits, watches or has to be given up.
    pub(crate) fn is_idle(&self) -> bool {
        let state = self.lock();
        state.resources.is_empty() && state.left.is_empty()
    }

    /// Sends off who gave up, as far as `send` can take them. A later call under the same grant id is
    /// sent after them, or takes their place.
    pub(crate) fn send_left(&self, now_ns: u64, mut send: impl FnMut(&Left) -> bool) {
        let mut state = self.lock();
        state
            .left
            .retain(|(from_ns, left)| *from_ns > now_ns || !send(left));
    }

    /// That one could not be given up yet. A later call under its grant id, if there is one, has the
    /// place instead: it has not been answered before this one failed.
    pub(crate) fn put_back(&self, left: Left) {
        if self.expects(&left.resource, left.grant_id) {
            return;
        }
        let from_ns = after(self.time.now_ns(), LEAVE_AGAIN);
        let mut state = self.lock();
        state.give_up(from_ns, left);
        state.ring();
    }

    pub(crate) fn take_changed(&self) -> HashSet<ResourceName> {
        std::mem::take(&mut self.lock().changed)
    }

    /// Who waits longer than it wanted to. Each is told of once.
    pub(crate) fn take_over(&self, now_ns: u64) -> Vec<Mine> {
        let mut state = self.lock();
        let later = state.untils.split_off(&(now_ns.saturating_add(1), 0));
        let over = std::mem::replace(&mut state.untils, later);
        let over = over.into_iter().map(|(_, id)| id);
        let mut waits = Vec::new();
        for id in over {
            if let Some(wait) = state.waits.get_mut(&id) {
                wait.is_over = false;
                waits.extend(state.mine(id));
            }
            if let Some(wait) = state.waits.get_mut(&id) {
                wait.is_over = true;
            }
        }
        waits
    }

    /// The writer is about to end the wait under that grant id; nobody else answers it until the answer
    /// is dropped.
    pub(crate) fn end(self: &Arc<Self>, resource: &ResourceName, grant_id: GrantId) -> Ending {
        self.lock().set_over(resource, grant_id, true);
        Ending {
            waiting: self.clone(),
            resource: resource.clone(),
            grant_id,
        }
    }

    /// It has not ended, or has lost its place halfway: somebody has to look.
    pub(crate) fn not_ended(&self, resource: &ResourceName, grant_id: GrantId) {
        let mut state = self.lock();
        if state.set_over(resource, grant_id, false) {
            state.changed.insert(resource.clone());
            state.ring();
        }
    }

    /// That call's wait is to be looked at once more.
    pub(crate) fn put_off(&self, id: u64, until_ns: u64) {
        let mut state = self.lock();
        if let Some(wait) = state.waits.get_mut(&id)
            && matches!(wait.phase, Phase::Waits(_))
        {
            wait.until_ns = until_ns;
            wait.is_over = false;
            state.untils.insert((until_ns, id));
        }
    }

    /// When the next wait is over.
    pub(crate) fn next_until_ns(&self) -> Option<u64> {
        self.lock().untils.first().map(|(until_ns, _)| *until_ns)
    }

    /// Everything that somebody here waits for or watches.
    pub(crate) fn resources(&self) -> Vec<ResourceName> {
        self.lock().resources.keys().cloned().collect()
    }

    pub(crate) fn concerns(&self, resource: &ResourceName) -> bool {
        self.lock().resources.contains_key(resource)
    }

    pub(crate) fn is_watched(&self, resource: &ResourceName) -> bool {
        let state = self.lock();
        let local = state.resources.get(resource);
        local.is_some_and(|local| !local.watches.is_empty())
    }

    /// The first of ours in the queue of `resource`.
    pub(crate) fn first(&self, resource: &ResourceName) -> Option<Mine> {
        let state = self.lock();
        let mut queued = state.resources.get(resource)?.queued.values();
        queued.find_map(|id| state.mine(*id))
    }

    /// Who of ours waits under that grant id.
    pub(crate) fn of_grant(&self, resource: &ResourceName, grant_id: GrantId) -> Option<Mine> {
        let state = self.lock();
        let id = *state.resources.get(resource)?.grants.get(&grant_id)?;
        state.mine(id)
    }

    /// Whether a call of ours waits under that grant id.
    pub(crate) fn expects(&self, resource: &ResourceName, grant_id: GrantId) -> bool {
        let state = self.lock();
        let local = state.resources.get(resource);
        local.is_some_and(|local| local.grants.contains_key(&grant_id))
    }

    /// The queue was lost with its side file: whoever is not in the one of `side` asks again.
    pub(crate) fn fail_lost(&self, side: Id) {
        let mut state = self.lock();
        let lost = state.waits.iter();
        let lost = lost.filter(|(_, wait)| wait.place.is_some_and(|place| place.side != side));
        for id in lost.map(|(id, _)| *id).collect::<Vec<_>>() {
            state.answer(id, Err(lost_place()));
        }
    }

    /// The store serves no more: everybody who waits or watches hears why.
    pub(crate) fn fail_all(&self, mut error: impl FnMut() -> SerializerError) {
        let mut state = self.lock();
        for id in state.waits.keys().copied().collect::<Vec<_>>() {
            state.answer(id, Err(error()));
        }
        state.resources.retain(|_, local| {
            for watch in local.watches.drain(..) {
                watch.fail(error());
            }
            !local.is_idle()
        });
        state.watches = 0;
    }
}
