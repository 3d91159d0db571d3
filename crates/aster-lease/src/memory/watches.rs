//! Who follows the rows of one lock.

use std::collections::HashMap;

use aster_core::{LeaseSnapshot, ResourceName};

use crate::watching::{LeaseWatch, WatchSender};

/// How many may watch one resource.
const WATCHERS_MAX: usize = 10_000;
/// Below this many watched resources nobody looks for those that nobody watches any more.
const SWEEP_MIN: usize = 16;

/// The watches of some resources. A watcher that is gone is forgotten at the next change or watch of
/// its resource, or when the resources have doubled.
#[derive(Default)]
pub(super) struct Watches {
    senders: HashMap<ResourceName, Vec<WatchSender>>,
    kept_at_last_sweep: usize,
}

impl Watches {
    pub(super) fn is_empty(&self) -> bool {
        self.senders.is_empty()
    }

    /// `None` when the resource has too many.
    pub(super) fn add(&mut self, present: LeaseSnapshot) -> Option<LeaseWatch> {
        self.sweep();
        let senders = self.senders.entry(present.resource.clone()).or_default();
        senders.retain(|sender| !sender.is_closed());
        if senders.len() >= WATCHERS_MAX {
            return None;
        }
        let (sender, watch) = LeaseWatch::channel(present);
        senders.push(sender);
        Some(watch)
    }

    pub(super) fn publish(&mut self, present: LeaseSnapshot) {
        let Some(senders) = self.senders.get_mut(&present.resource) else {
            return;
        };
        senders.retain(|sender| sender.publish(present.clone()));
        if senders.is_empty() {
            self.senders.remove(&present.resource);
        }
    }

    fn sweep(&mut self) {
        if self.senders.len() < SWEEP_MIN.max(2 * self.kept_at_last_sweep) {
            return;
        }
        self.senders
            .retain(|_, senders| senders.iter().any(|sender| !sender.is_closed()));
        self.kept_at_last_sweep = self.senders.len();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn present(number: usize) -> LeaseSnapshot {
        LeaseSnapshot::withheld(ResourceName::new(format!("name/{number}")).unwrap())
    }

    #[test]
    fn watchers_that_are_gone_are_forgotten_and_the_others_are_not() {
        for living in [10, 100] {
            let mut watches = Watches::default();
            let kept = (0..living).map(|number| watches.add(present(number)));
            let _kept: Vec<_> = kept.collect();
            for number in living..10_000 {
                drop(watches.add(present(number)));
                assert!(
                    watches.senders.len() <= 2 * SWEEP_MIN.max(living),
                    "{number}"
                );
            }
            watches.sweep();
            for number in 0..living {
                assert!(watches.senders.contains_key(&present(number).resource));
                watches.publish(present(number));
            }
        }
    }

    #[test]
    fn one_resource_has_so_many_watchers_and_no_more() {
        let mut watches = Watches::default();
        let mut all: Vec<_> = (0..WATCHERS_MAX).map(|_| watches.add(present(1))).collect();
        assert!(watches.add(present(1)).is_none());
        assert!(watches.add(present(2)).is_some());
        all.pop();
        assert!(watches.add(present(1)).is_some(), "one has gone");
    }
}
