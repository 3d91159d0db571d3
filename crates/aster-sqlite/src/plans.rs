//! When to look at which resource again.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use aster_core::ResourceName;

/// How the row stands.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Seen {
    pub(crate) epoch: u64,
    pub(crate) revision: u64,
    /// Until it may be taken; zero when it may be.
    pub(crate) remaining: Duration,
    /// Nothing has to be written down to judge better later.
    pub(crate) is_certain: bool,
    /// Its instant was read from another clock.
    pub(crate) is_foreign: bool,
}

/// When which resource is to be looked at, on the store's clock.
#[derive(Debug, Default)]
pub(crate) struct Plans {
    by_resource: HashMap<ResourceName, Plan>,
    dues: BTreeSet<(u64, ResourceName)>,
}

#[derive(Debug, Clone, Copy)]
struct Plan {
    epoch: u64,
    revision: u64,
    deadline_ns: u64,
    due_ns: u64,
}

impl Plans {
    /// Since when or from when on the row may be taken.
    pub(crate) fn of(&self, resource: &ResourceName, row: &Seen, now_ns: u64) -> u64 {
        if row.remaining.is_zero()
            && let Some(plan) = self.by_resource.get(resource)
            && (plan.epoch, plan.revision) == (row.epoch, row.revision)
        {
            return plan.deadline_ns.min(now_ns);
        }
        after(now_ns, row.remaining)
    }

    pub(crate) fn set(
        &mut self,
        resource: &ResourceName,
        deadline_ns: u64,
        row: &Seen,
        due_ns: u64,
    ) {
        self.forget(resource);
        let plan = Plan {
            epoch: row.epoch,
            revision: row.revision,
            deadline_ns,
            due_ns,
        };
        self.by_resource.insert(resource.clone(), plan);
        self.dues.insert((due_ns, resource.clone()));
    }

    pub(crate) fn forget(&mut self, resource: &ResourceName) {
        if let Some(plan) = self.by_resource.remove(resource) {
            self.dues.remove(&(plan.due_ns, resource.clone()));
        }
    }

    /// Those that are due. Their plans stay until they are made anew.
    pub(crate) fn take_due(&mut self, now_ns: u64) -> Vec<ResourceName> {
        let mut due = Vec::new();
        while let Some((due_ns, _)) = self.dues.first()
            && *due_ns <= now_ns
            && let Some((_, resource)) = self.dues.pop_first()
        {
            due.push(resource);
        }
        due
    }

    pub(crate) fn next_ns(&self) -> Option<u64> {
        self.dues.first().map(|(due_ns, _)| *due_ns)
    }
}

pub(crate) fn after(now_ns: u64, time: Duration) -> u64 {
    now_ns.saturating_add(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX))
}
