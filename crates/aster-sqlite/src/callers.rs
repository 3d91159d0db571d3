//! The calls of this process that wait and watch, as plain data. What it means is in `waiting.rs`.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::os::unix::net::UnixDatagram;

use aster_core::{GrantId, ResourceName};
use aster_lease::WatchSender;

use crate::calls::{Answer, Left, Mine, Phase, Wait};
use crate::waiting::WAITS_MAX;

#[derive(Debug, Default)]
pub(crate) struct State {
    pub(crate) next_id: u64,
    pub(crate) waits: HashMap<u64, Wait>,
    /// All calls under one grant id, answered or not.
    pub(crate) calls: HashMap<GrantId, Vec<u64>>,
    pub(crate) resources: HashMap<ResourceName, Local>,
    pub(crate) watches: usize,
    /// When waits are over, on the store's clock.
    pub(crate) untils: BTreeSet<(u64, u64)>,
    /// What changed here and is to be looked at.
    pub(crate) changed: HashSet<ResourceName>,
    /// Who gave up, and has to leave the queue or give back a grant, and from when on.
    pub(crate) left: Vec<(u64, Left)>,
    pub(crate) bell: Option<UnixDatagram>,
    pub(crate) closed: bool,
}

/// What this process has to do with one resource.
#[derive(Debug, Default)]
pub(crate) struct Local {
    /// By ticket, so the first one comes first.
    pub(crate) queued: BTreeMap<i64, u64>,
    pub(crate) grants: HashMap<GrantId, u64>,
    pub(crate) watches: Vec<WatchSender>,
}

impl State {
    pub(crate) fn give_up(&mut self, from_ns: u64, left: Left) {
        // Nobody can be told any more: its place ends with its wait, its grant with the claim time.
        if self.left.len() >= WAITS_MAX {
            self.left.remove(0);
        }
        self.left.push((from_ns, left));
    }

    /// Whether that is a call which waits.
    pub(crate) fn set_over(
        &mut self,
        resource: &ResourceName,
        grant_id: GrantId,
        is_over: bool,
    ) -> bool {
        let local = self.resources.get(resource);
        let id = local.and_then(|local| local.grants.get(&grant_id).copied());
        let wait = id.and_then(|id| self.waits.get_mut(&id));
        let Some(wait) = wait.filter(|wait| matches!(wait.phase, Phase::Waits(_))) else {
            return false;
        };
        wait.is_over = is_over;
        true
    }

    pub(crate) fn ring(&self) {
        if let Some(bell) = &self.bell {
            // When it is full it has been rung.
            let _ = bell.send(&[1]);
        }
    }

    pub(crate) fn mine(&self, id: u64) -> Option<Mine> {
        let wait = self.waits.get(&id)?;
        let waits = matches!(wait.phase, Phase::Waits(_)) && !wait.is_over;
        waits.then(|| Mine {
            id,
            wish: wait.wish(),
            place: wait.place,
            until_ns: wait.until_ns,
        })
    }

    pub(crate) fn answer(&mut self, id: u64, answer: Answer) -> bool {
        let Some(wait) = self.waits.get_mut(&id) else {
            return false;
        };
        let answered = wait.answer(answer);
        if answered {
            self.unlink(id);
        }
        answered
    }

    pub(crate) fn remove(&mut self, id: u64) -> Option<Wait> {
        self.unlink(id);
        let wait = self.waits.remove(&id)?;
        if let Some(calls) = self.calls.get_mut(&wait.grant_id) {
            calls.retain(|call| *call != id);
            if calls.is_empty() {
                self.calls.remove(&wait.grant_id);
            }
        }
        Some(wait)
    }

    /// The caller of `seen` owns what it was granted: no other call under that grant id gives it back.
    pub(crate) fn owned(&mut self, seen: &Wait) {
        for id in self.calls.get(&seen.grant_id).into_iter().flatten() {
            if let Some(wait) = self.waits.get_mut(id)
                && wait.resource == seen.resource
            {
                wait.takes_nothing = true;
            }
        }
        self.left
            .retain(|(_, left)| left.grant_id != seen.grant_id || left.resource != seen.resource);
    }

    /// Whether another call under the grant id of `wait` has the place or the grant, and gives it up if
    /// need be.
    pub(crate) fn has_other_owner(&self, wait: &Wait) -> bool {
        let calls = self.calls.get(&wait.grant_id).into_iter().flatten();
        let mut others = calls.filter_map(|id| self.waits.get(id));
        others.any(|other| other.resource == wait.resource && other.has_to_leave())
    }

    /// Takes a call out of the queue of its resource, not out of the list of calls.
    pub(crate) fn unlink(&mut self, id: u64) {
        let Some(wait) = self.waits.get(&id) else {
            return;
        };
        self.untils.remove(&(wait.until_ns, id));
        let Some(local) = self.resources.get_mut(&wait.resource) else {
            return;
        };
        if let Some(place) = wait.place
            && local.queued.get(&place.ticket) == Some(&id)
        {
            local.queued.remove(&place.ticket);
        }
        if local.grants.get(&wait.grant_id) == Some(&id) {
            local.grants.remove(&wait.grant_id);
        }
        let resource = wait.resource.clone();
        self.forget_idle(&resource);
    }

    pub(crate) fn forget_idle(&mut self, resource: &ResourceName) {
        if self.resources.get(resource).is_some_and(Local::is_idle) {
            self.resources.remove(resource);
            self.changed.remove(resource);
        }
    }
}

impl Local {
    pub(crate) fn is_idle(&self) -> bool {
        self.queued.is_empty() && self.grants.is_empty() && self.watches.is_empty()
    }
}
