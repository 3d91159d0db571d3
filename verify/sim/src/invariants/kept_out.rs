//! A hold-off keeps the revoked holder out for its whole time, also over other grants and restarts (design,
//! "The rules").

use std::collections::BTreeMap;

use aster_core::{Principal, ResourceName};

use super::Invariant;
use crate::history::{Entry, Event};

/// Events are taken down to the millisecond.
const SLACK_US: u64 = 1_000;

#[derive(Default)]
pub(crate) struct KeptOut {
    rows: BTreeMap<ResourceName, Row>,
}

#[derive(Default)]
struct Row {
    owners: BTreeMap<u64, Principal>,
    /// Until when each holder is kept out, on the serializer's clock.
    until_us: BTreeMap<Principal, u64>,
}

impl Invariant for KeptOut {
    fn name(&self) -> &'static str {
        "kept_out"
    }

    fn see(&mut self, entry: &Entry) -> Result<(), String> {
        match &entry.event {
            Event::Granted {
                resource,
                epoch,
                holder,
                monotonic_us,
                ..
            } => {
                let row = self.rows.entry(resource.clone()).or_default();
                // The same grant may be answered again, late.
                let is_new = row.owners.insert(*epoch, holder.clone()).is_none();
                let until_us = row.until_us.get(holder).copied().unwrap_or(0);
                if is_new && monotonic_us + SLACK_US < until_us {
                    return Err(format!(
                        "{holder} was granted epoch {epoch} of {resource} {} ms before its hold-off was over",
                        (until_us - monotonic_us) / 1_000
                    ));
                }
            }
            Event::Ended {
                resource,
                epoch: Some(epoch),
                hold_off_ms: hold_off_ms @ 1..,
                monotonic_us,
                ..
            } => {
                let row = self.rows.entry(resource.clone()).or_default();
                if let Some(holder) = row.owners.get(epoch) {
                    let until_us = row.until_us.entry(holder.clone()).or_default();
                    *until_us = (monotonic_us + hold_off_ms * 1_000).max(*until_us);
                }
            }
            _ => {}
        }
        Ok(())
    }
}
