//! While clock rates differ by no more than one part in a thousand, no holder has a usable fence once
//! another was granted, unless an operator took it away (design, "Time").

use std::collections::{BTreeMap, BTreeSet};

use aster_core::ResourceName;

use super::Invariant;
use crate::history::{Entry, Event};

#[derive(Default)]
pub(crate) struct OneUsableFence {
    rows: BTreeMap<ResourceName, Row>,
}

#[derive(Default)]
struct Row {
    /// When each epoch was granted.
    granted: BTreeMap<u64, u64>,
    /// A holder cannot know of a revoke at once.
    revoked: BTreeSet<u64>,
}

impl Invariant for OneUsableFence {
    fn name(&self) -> &'static str {
        "one_usable_fence"
    }

    fn see(&mut self, entry: &Entry) -> Result<(), String> {
        match &entry.event {
            Event::Granted {
                resource, epoch, ..
            } => {
                let row = self.rows.entry(resource.clone()).or_default();
                row.granted.entry(*epoch).or_insert(entry.at_ms);
            }
            Event::Ended {
                resource,
                epoch: Some(epoch),
                how: "revoke",
                ..
            } => {
                let row = self.rows.entry(resource.clone()).or_default();
                row.revoked.insert(*epoch);
            }
            Event::Usable {
                resource, epoch, ..
            } => {
                let row = self.rows.entry(resource.clone()).or_default();
                let next = row.granted.range(epoch + 1..).next();
                // Within one millisecond the order of two machines is anybody's guess.
                if let Some((next, at_ms)) = next
                    && *at_ms < entry.at_ms
                    && !row.revoked.contains(epoch)
                {
                    return Err(format!(
                        "the fence of epoch {epoch} of {resource} was usable {} ms after epoch {next} was granted",
                        entry.at_ms - at_ms
                    ));
                }
            }
            _ => {}
        }
        Ok(())
    }
}
