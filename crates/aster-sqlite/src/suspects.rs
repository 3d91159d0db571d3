//! Whose requests are looked at by a plain read before they are queued for the writer thread.
//!
//! Most requests succeed, and a look beforehand would only cost them time. Whoever was refused once
//! is likely to be refused again, and must not take a lock from others for that.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use aster_core::{LeaseOp, ResourceName};

/// How many suspects are remembered, of each kind. Past that we begin anew, which costs each of them
/// one more turn in the queue.
const SUSPECTS_MAX: usize = 1_024;

/// Who was refused lately. A hint about where to ask first, never an answer.
#[derive(Debug, Default)]
pub(crate) struct Suspects {
    /// Spares the rightful a lock and a hash, while there are none.
    any: AtomicBool,
    kept: Mutex<Kept>,
}

#[derive(Debug, Default)]
struct Kept {
    /// The highest epoch under which somebody was refused at a resource.
    stale: HashMap<ResourceName, HashMap<String, u64>>,
    /// How many pairs of resource and identity are in `stale`.
    stale_count: usize,
    /// Resources at which an acquire was denied.
    contended: HashSet<ResourceName>,
}

impl Suspects {
    /// `who` was refused at `resource` under `epoch`.
    pub(crate) fn refused(&self, resource: &ResourceName, who: &str, epoch: u64) {
        self.any.store(true, Ordering::Release);
        let mut kept = self.lock();
        if kept.stale_count >= SUSPECTS_MAX {
            kept.stale.clear();
            kept.stale_count = 0;
        }
        let of_resource = kept.stale.entry(resource.clone()).or_default();
        match of_resource.get_mut(who) {
            Some(highest) => *highest = epoch.max(*highest),
            None => {
                of_resource.insert(who.to_owned(), epoch);
                kept.stale_count += 1;
            }
        }
    }

    /// Whether `who` was refused at `resource` under this epoch or a higher one: epochs do not come
    /// back, so it will most likely be refused again.
    pub(crate) fn is_suspect(&self, resource: &ResourceName, who: &str, epoch: u64) -> bool {
        self.any.load(Ordering::Acquire)
            && self
                .lock()
                .stale
                .get(resource)
                .and_then(|of_resource| of_resource.get(who))
                .is_some_and(|highest| epoch <= *highest)
    }

    /// What became of an ownership change.
    pub(crate) fn answered(&self, resource: &ResourceName, op: &LeaseOp, is_denied: bool) {
        match (op, epoch_of(op)) {
            (LeaseOp::Acquire { .. }, _) if is_denied => {
                self.any.store(true, Ordering::Release);
                let mut kept = self.lock();
                if kept.contended.len() >= SUSPECTS_MAX {
                    kept.contended.clear();
                }
                kept.contended.insert(resource.clone());
            }
            (LeaseOp::Acquire { .. }, _) if self.any.load(Ordering::Acquire) => {
                self.lock().contended.remove(resource);
            }
            (_, Some(epoch)) if is_denied => self.refused(resource, op.actor(), epoch),
            _ => {}
        }
    }

    /// Whether this ownership change is likely to be denied.
    pub(crate) fn is_likely_denied(&self, resource: &ResourceName, op: &LeaseOp) -> bool {
        match (op, epoch_of(op)) {
            (LeaseOp::Acquire { .. }, _) => {
                self.any.load(Ordering::Acquire) && self.lock().contended.contains(resource)
            }
            (_, Some(epoch)) => self.is_suspect(resource, op.actor(), epoch),
            // A cancel is rare, and has no epoch to tell by.
            (_, None) => true,
        }
    }

    fn lock(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn epoch_of(op: &LeaseOp) -> Option<u64> {
    match op {
        LeaseOp::Renew { epoch, .. }
        | LeaseOp::Release { epoch, .. }
        | LeaseOp::Revoke { epoch, .. } => Some(*epoch),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use aster_core::{GrantId, LeaseOp, Principal, ResourceName, Ttl};

    use super::{SUSPECTS_MAX, Suspects};

    fn name(text: &str) -> ResourceName {
        ResourceName::new(text).unwrap()
    }

    #[test]
    fn only_who_was_refused_and_only_up_to_that_epoch() {
        let suspects = Suspects::default();
        let catalog = name("catalog");
        assert!(!suspects.is_suspect(&catalog, "zombie", 1));
        suspects.refused(&catalog, "zombie", 5);
        suspects.refused(&catalog, "zombie", 3);
        assert!(suspects.is_suspect(&catalog, "zombie", 5));
        assert!(!suspects.is_suspect(&catalog, "zombie", 6), "a new grant");
        assert!(!suspects.is_suspect(&catalog, "owner", 5));
        assert!(!suspects.is_suspect(&name("other"), "zombie", 5));
    }

    #[test]
    fn a_contended_resource_is_looked_at_until_somebody_gets_it() {
        let suspects = Suspects::default();
        let catalog = name("catalog");
        let acquire = LeaseOp::Acquire {
            candidate: Principal::new("worker").unwrap(),
            ttl: Ttl::from_millis(1_000).unwrap(),
            grant_id: GrantId::from_bytes([1; 16]),
        };
        assert!(!suspects.is_likely_denied(&catalog, &acquire));
        suspects.answered(&catalog, &acquire, true);
        assert!(suspects.is_likely_denied(&catalog, &acquire));
        suspects.answered(&catalog, &acquire, false);
        assert!(!suspects.is_likely_denied(&catalog, &acquire));
    }

    #[test]
    fn many_suspects_stay_bounded() {
        let suspects = Suspects::default();
        for number in 0..10 * SUSPECTS_MAX as u64 {
            suspects.refused(
                &name(&format!("job/{}", number % 50)),
                &number.to_string(),
                1,
            );
        }
        let kept = suspects.lock();
        let all: usize = kept.stale.values().map(|of| of.len()).sum();
        assert!(all <= SUSPECTS_MAX && all == kept.stale_count, "{all}");
    }
}
