//! A release, revoke or cancel that was confirmed makes the resource free at once, and its epoch is over
//! for good (design, "The rules").

use std::collections::BTreeMap;

use aster_core::{DenyReason, GrantId, ResourceName};

use super::Invariant;
use crate::history::{Entry, Event};

#[derive(Default)]
pub(crate) struct ReleasedIsFree {
    rows: BTreeMap<ResourceName, Row>,
}

#[derive(Default)]
struct Row {
    /// The highest epoch whose end was confirmed.
    over: u64,
    grants: BTreeMap<GrantId, u64>,
}

impl Invariant for ReleasedIsFree {
    fn name(&self) -> &'static str {
        "released_is_free"
    }

    fn see(&mut self, entry: &Entry) -> Result<(), String> {
        match &entry.event {
            Event::Granted {
                resource,
                epoch,
                grant,
                ..
            } => {
                let row = self.rows.entry(resource.clone()).or_default();
                row.grants.insert(*grant, *epoch);
            }
            Event::Ended {
                resource,
                epoch,
                grant,
                ..
            } => {
                let row = self.rows.entry(resource.clone()).or_default();
                let by_grant = grant.and_then(|grant| row.grants.get(&grant).copied());
                if let Some(epoch) = epoch.or(by_grant) {
                    row.over = row.over.max(epoch);
                }
            }
            Event::Set {
                resource,
                epoch,
                releases: true,
                ..
            } => {
                let row = self.rows.entry(resource.clone()).or_default();
                row.over = row.over.max(*epoch);
            }
            Event::Denied {
                resource,
                reason: DenyReason::HeldByOther | DenyReason::WaitRanOut,
                epoch,
                held: true,
                ..
            } => {
                let row = self.rows.entry(resource.clone()).or_default();
                if *epoch <= row.over {
                    return Err(format!(
                        "{resource} was denied as held at epoch {epoch}, which had ended (up to {})",
                        row.over
                    ));
                }
            }
            Event::Renewed {
                resource, epoch, ..
            } => {
                let row = self.rows.entry(resource.clone()).or_default();
                if *epoch <= row.over {
                    return Err(format!(
                        "epoch {epoch} of {resource} was renewed after its end"
                    ));
                }
            }
            _ => {}
        }
        Ok(())
    }
}
