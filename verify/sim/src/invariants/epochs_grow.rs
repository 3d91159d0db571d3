//! Epochs are unique and grow, and each end of an ownership takes one of its own (design, "The rules": epochs
//! never go back; a release makes the row free at the next epoch).

use std::collections::BTreeMap;

use aster_core::{GrantId, ResourceName};

use super::Invariant;
use crate::history::{Entry, Event};

#[derive(Default)]
pub(crate) struct EpochsGrow {
    granted: BTreeMap<ResourceName, BTreeMap<u64, GrantId>>,
    /// The epoch that the last end of an ownership took.
    ended: BTreeMap<ResourceName, u64>,
    /// The highest epoch that was known when a call began: what it is granted comes after it.
    before: BTreeMap<u64, u64>,
}

impl Invariant for EpochsGrow {
    fn name(&self) -> &'static str {
        "epochs_grow"
    }

    fn see(&mut self, entry: &Entry) -> Result<(), String> {
        match &entry.event {
            Event::Began { call, resource, .. } => {
                let granted = self.granted.get(resource);
                let highest = granted.and_then(|granted| granted.last_key_value());
                let highest = highest.map_or(0, |(epoch, _)| *epoch);
                let ended = self.ended.get(resource).copied().unwrap_or(0);
                self.before.insert(*call, highest.max(ended));
            }
            Event::Ended {
                resource,
                epoch: Some(epoch),
                ..
            } => {
                let ended = self.ended.entry(resource.clone()).or_default();
                *ended = epoch.saturating_add(1).max(*ended);
            }
            Event::Granted {
                call,
                resource,
                epoch,
                grant,
                ..
            } => {
                let before = self.before.remove(call).unwrap_or(0);
                let granted = self.granted.entry(resource.clone()).or_default();
                match granted.insert(*epoch, *grant) {
                    // The same grant, answered again.
                    Some(known) if known == *grant => {}
                    Some(_) => return Err(format!("epoch {epoch} of {resource} came twice")),
                    None if *epoch <= before => {
                        return Err(format!(
                            "epoch {epoch} of {resource} came after epoch {before}"
                        ));
                    }
                    None => {}
                }
            }
            Event::Denied { call, .. }
            | Event::Failed { call, .. }
            | Event::Read { call, .. }
            | Event::Left { call, .. } => {
                self.before.remove(call);
            }
            _ => {}
        }
        Ok(())
    }
}
