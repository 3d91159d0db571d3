//! A serializer may hold a lease longer than its ttl, never shorter (design, "The rules").

use std::collections::BTreeMap;

use aster_core::{GrantId, ResourceName};

use super::Invariant;
use crate::history::{Entry, Event};

/// Events are taken down to the millisecond.
const SLACK_US: u64 = 1_000;

#[derive(Default)]
pub(crate) struct HeldForItsTtl {
    rows: BTreeMap<ResourceName, Row>,
}

#[derive(Default)]
struct Row {
    grants: BTreeMap<GrantId, u64>,
    latest: Option<Lease>,
}

struct Lease {
    epoch: u64,
    armed_us: u64,
    ttl_ms: u64,
    /// It was waited for and has not been renewed: it lasts for the claim time only.
    is_claim: bool,
    has_ended: bool,
}

impl Invariant for HeldForItsTtl {
    fn name(&self) -> &'static str {
        "held_for_its_ttl"
    }

    fn see(&mut self, entry: &Entry) -> Result<(), String> {
        match &entry.event {
            Event::Granted {
                resource,
                epoch,
                grant,
                ttl_ms,
                is_claim,
                monotonic_us,
                ..
            } => {
                let row = self.rows.entry(resource.clone()).or_default();
                row.grants.insert(*grant, *epoch);
                let before = row.latest.as_ref();
                let (known, is_older) = (
                    before.is_some_and(|before| before.epoch == *epoch),
                    before.is_some_and(|before| before.epoch > *epoch),
                );
                if is_older {
                    return Ok(());
                }
                if let Some(before) = before
                    && !known
                    && !before.has_ended
                    && !before.is_claim
                    && monotonic_us - before.armed_us + SLACK_US < before.ttl_ms * 1_000
                {
                    return Err(format!(
                        "epoch {} of {resource} was taken over {} ms after its last renewal, its ttl is {} ms",
                        before.epoch,
                        (monotonic_us - before.armed_us) / 1_000,
                        before.ttl_ms
                    ));
                }
                row.latest = Some(Lease {
                    epoch: *epoch,
                    armed_us: *monotonic_us,
                    ttl_ms: *ttl_ms,
                    is_claim: *is_claim,
                    has_ended: known && before.is_some_and(|before| before.has_ended),
                });
            }
            Event::Renewed {
                resource,
                epoch,
                monotonic_us,
            } => {
                let row = self.rows.entry(resource.clone()).or_default();
                if let Some(lease) = &mut row.latest
                    && lease.epoch == *epoch
                {
                    lease.armed_us = *monotonic_us;
                    lease.is_claim = false;
                }
            }
            Event::Restarted { monotonic_us } => {
                for lease in self.rows.values_mut().filter_map(|row| row.latest.as_mut()) {
                    lease.armed_us = *monotonic_us;
                }
            }
            Event::Ended {
                resource,
                epoch,
                grant,
                ..
            } => {
                let row = self.rows.entry(resource.clone()).or_default();
                let by_grant = grant.and_then(|grant| row.grants.get(&grant).copied());
                let epoch = epoch.or(by_grant);
                if let Some(lease) = &mut row.latest
                    && epoch.is_none_or(|epoch| epoch == lease.epoch)
                {
                    lease.has_ended = true;
                }
            }
            Event::Set {
                resource,
                epoch,
                releases: true,
                ..
            } => {
                let row = self.rows.entry(resource.clone()).or_default();
                if let Some(lease) = &mut row.latest
                    && lease.epoch == *epoch
                {
                    lease.has_ended = true;
                }
            }
            _ => {}
        }
        Ok(())
    }
}
