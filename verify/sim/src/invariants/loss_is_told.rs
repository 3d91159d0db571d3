//! Timers that report loss look again at least every second: a holder on a running machine hears of its
//! loss within that time of the moment at which another may be granted, and within a ttl more when it was
//! revoked (design, "Time").

use std::collections::{BTreeMap, BTreeSet};

use aster_core::ResourceName;

use super::Invariant;
use crate::history::{Entry, Event};

/// A second for the timer to look again, and a little for rounding and for clocks that differ.
const TOLD_WITHIN_MS: u64 = 1_150;

#[derive(Default)]
pub(crate) struct LossIsTold {
    leases: BTreeMap<u64, Lease>,
    ttls_ms: BTreeMap<(ResourceName, u64), u64>,
    revoked: BTreeSet<(ResourceName, u64)>,
    still: BTreeSet<usize>,
    /// The earliest time at which somebody has to have been told.
    next_ms: Option<u64>,
}

struct Lease {
    host: usize,
    resource: ResourceName,
    epoch: u64,
    due_ms: Option<u64>,
}

impl LossIsTold {
    /// The lease of `epoch` was granted: for the holders of those before it, all is over.
    fn is_granted(&mut self, resource: &ResourceName, epoch: u64, at_ms: u64) {
        for lease in self.leases.values_mut() {
            if lease.resource != *resource || lease.epoch >= epoch || lease.due_ms.is_some() {
                continue;
            }
            let key = (lease.resource.clone(), lease.epoch);
            let after_ms = match self.revoked.contains(&key) {
                true => self.ttls_ms.get(&key).copied().unwrap_or(0),
                false => 0,
            };
            let due_ms = at_ms + after_ms + TOLD_WITHIN_MS;
            lease.due_ms = Some(due_ms);
            self.next_ms = Some(self.next_ms.map_or(due_ms, |next| next.min(due_ms)));
        }
    }

    fn late(&mut self, now_ms: u64) -> Result<(), String> {
        if self.next_ms.is_none_or(|next| next >= now_ms) {
            return Ok(());
        }
        let mut due = self.leases.iter();
        if let Some((number, lease)) = due.find(|(_, lease)| {
            lease.due_ms.is_some_and(|due_ms| due_ms < now_ms) && !self.still.contains(&lease.host)
        }) {
            return Err(format!(
                "nobody was told that lease {number} (epoch {} of {}) was lost",
                lease.epoch, lease.resource
            ));
        }
        self.next_ms = self.leases.values().filter_map(|lease| lease.due_ms).min();
        Ok(())
    }
}

impl Invariant for LossIsTold {
    fn name(&self) -> &'static str {
        "loss_is_told"
    }

    fn see(&mut self, entry: &Entry) -> Result<(), String> {
        match &entry.event {
            Event::Holds {
                lease,
                resource,
                epoch,
                ..
            } => {
                let lease_now = Lease {
                    host: entry.host,
                    resource: resource.clone(),
                    epoch: *epoch,
                    due_ms: None,
                };
                self.leases.insert(*lease, lease_now);
            }
            Event::Lost { lease, .. } => {
                self.leases.remove(lease);
            }
            Event::Granted {
                resource,
                epoch,
                ttl_ms,
                ..
            } => {
                let key = (resource.clone(), *epoch);
                if self.ttls_ms.insert(key, *ttl_ms).is_none() {
                    self.is_granted(resource, *epoch, entry.at_ms);
                }
            }
            Event::Ended {
                resource,
                epoch: Some(epoch),
                how: "revoke",
                ..
            } => {
                self.revoked.insert((resource.clone(), *epoch));
            }
            Event::Killed { machine } => {
                self.leases.retain(|_, lease| lease.host != *machine);
                self.still.remove(machine);
            }
            Event::StandsStill { machine } => {
                self.still.insert(*machine);
            }
            Event::GoesOn { machine } => {
                self.still.remove(machine);
                for lease in self.leases.values_mut() {
                    if lease.host == *machine
                        && let Some(due_ms) = &mut lease.due_ms
                    {
                        *due_ms = (*due_ms).max(entry.at_ms + TOLD_WITHIN_MS);
                    }
                }
            }
            _ => {}
        }
        self.late(entry.at_ms)
    }
}
