//! A grant id is granted at most once while the row remembers it, which is until the next grant, or until
//! an idle row is dropped (design, "The rules").

use std::collections::BTreeMap;
use std::time::Duration;

use aster_core::{GrantId, ResourceName};

use super::Invariant;
use crate::history::{Entry, Event};

pub(crate) struct GrantIdOnce {
    idle_retention_ms: u64,
    drops_early: bool,
    rows: BTreeMap<ResourceName, Row>,
}

#[derive(Default)]
struct Row {
    grants: BTreeMap<GrantId, u64>,
    highest: u64,
    ended_at_ms: Option<u64>,
    /// Somebody who waited went away since the last grant: it may have been granted unheard.
    is_unsure: bool,
}

impl GrantIdOnce {
    pub(crate) fn new(idle_retention: Duration, drops_early: bool) -> Self {
        Self {
            idle_retention_ms: u64::try_from(idle_retention.as_millis()).unwrap_or(u64::MAX),
            drops_early,
            rows: BTreeMap::new(),
        }
    }
}

impl Invariant for GrantIdOnce {
    fn name(&self) -> &'static str {
        "grant_id_once"
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
                let known = row.grants.insert(*grant, *epoch);
                let was_last = known == Some(row.highest);
                let may_be_dropped = row.ended_at_ms.is_some_and(|ended_at_ms| {
                    // Clocks differ by a thousandth.
                    let age_ms = (entry.at_ms - ended_at_ms) * 1_001 / 1_000 + 2;
                    self.drops_early || age_ms >= self.idle_retention_ms
                });
                if let Some(known) = known
                    && known != *epoch
                    && was_last
                    && !may_be_dropped
                    && !row.is_unsure
                {
                    return Err(format!(
                        "grant {grant} of {resource} got epoch {known}, and then {epoch}"
                    ));
                }
                if *epoch > row.highest {
                    row.highest = *epoch;
                    row.ended_at_ms = None;
                    row.is_unsure = false;
                }
            }
            Event::Ended { resource, .. }
            | Event::Set {
                resource,
                releases: true,
                ..
            } => {
                let row = self.rows.entry(resource.clone()).or_default();
                row.ended_at_ms = Some(entry.at_ms);
            }
            Event::Left { resource, .. } => {
                let row = self.rows.entry(resource.clone()).or_default();
                row.is_unsure = true;
                row.ended_at_ms = row.ended_at_ms.or(Some(entry.at_ms));
            }
            _ => {}
        }
        Ok(())
    }
}
