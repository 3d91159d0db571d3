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
    /// We had to ask for those before us.
    has_asked: bool,
    /// We watch the row as if we were first.
    leads: bool,
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

    /// Whether we watch the row as if we were first: whoever had to ask for an advance because those
    /// before it did not takes them for stopped at the next expiry, and does not wait for them again.
    pub(crate) fn leads(&self, resource: &ResourceName, row: &Seen) -> bool {
        self.by_resource.get(resource).is_some_and(|plan| {
            match (plan.epoch, plan.revision) == (row.epoch, row.revision) {
                true => plan.leads,
                false => plan.has_asked,
            }
        })
    }

    pub(crate) fn set(
        &mut self,
        resource: &ResourceName,
        deadline_ns: u64,
        row: &Seen,
        due_ns: u64,
        has_asked: bool,
    ) {
        let leads = self.leads(resource, row);
        let had_asked = self.by_resource.get(resource).is_some_and(|plan| {
            plan.has_asked && (plan.epoch, plan.revision) == (row.epoch, row.revision)
        });
        self.forget(resource);
        let plan = Plan {
            epoch: row.epoch,
            revision: row.revision,
            deadline_ns,
            due_ns,
            has_asked: has_asked || had_asked,
            leads,
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

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
mod tests {
    use super::*;

    fn seen(epoch: u64) -> Seen {
        Seen {
            epoch,
            revision: epoch,
            remaining: Duration::ZERO,
            is_certain: true,
            is_foreign: false,
        }
    }

    #[test]
    fn who_had_to_ask_for_others_is_first_at_the_next_expiry_and_only_then() {
        let catalog = ResourceName::new("catalog").unwrap();
        let mut plans = Plans::default();
        assert!(!plans.leads(&catalog, &seen(1)));
        plans.set(&catalog, 1, &seen(1), 2, false);
        assert!(!plans.leads(&catalog, &seen(2)), "others asked in time");
        plans.set(&catalog, 1, &seen(1), 2, true);
        plans.set(&catalog, 1, &seen(1), 3, false);
        assert!(
            !plans.leads(&catalog, &seen(1)),
            "of this expiry it was not the first"
        );
        // Granted to one who may be stopped as well.
        plans.set(&catalog, 4, &seen(2), 5, false);
        assert!(plans.leads(&catalog, &seen(2)));
        // Claimed and released meanwhile: those before it are awake.
        assert!(!plans.leads(&catalog, &seen(3)));
        plans.set(&catalog, 4, &seen(2), 5, true);
        assert!(plans.leads(&catalog, &seen(3)));
        plans.forget(&catalog);
        assert!(!plans.leads(&catalog, &seen(3)));
    }
}
