//! A write by a worker whose ownership has ended is rejected by the resource, whatever the worker
//! believes, however late the write arrives (design, "The promise").

use std::collections::{BTreeMap, BTreeSet};

use aster_core::{GrantId, Principal, ResourceName, WriteId};

use super::Invariant;
use crate::history::{Entry, Event};

#[derive(Default)]
pub(crate) struct AcceptedWrites {
    rows: BTreeMap<ResourceName, Row>,
}

#[derive(Default)]
struct Row {
    /// Every ownership up to this epoch is over.
    over: u64,
    owners: BTreeMap<u64, Principal>,
    grants: BTreeMap<GrantId, u64>,
    /// Writes that were carried out: their retries are answered, not written.
    written: BTreeSet<WriteId>,
}

impl Row {
    fn accept(&self, epoch: u64, holder: &Principal, writer: &str) -> Result<(), String> {
        if epoch <= self.over {
            return Err(format!(
                "a write of epoch {epoch} by {writer} was accepted, but ownership up to {} had ended",
                self.over
            ));
        }
        if *holder != *writer {
            return Err(format!(
                "{writer} wrote under a fence of {holder} (epoch {epoch})"
            ));
        }
        match self.owners.get(&epoch) {
            Some(owner) if owner == holder => Ok(()),
            owner => Err(format!(
                "{writer} wrote under epoch {epoch}, which was granted to {owner:?}"
            )),
        }
    }
}

impl Invariant for AcceptedWrites {
    fn name(&self) -> &'static str {
        "accepted_writes"
    }

    fn see(&mut self, entry: &Entry) -> Result<(), String> {
        match &entry.event {
            Event::Granted {
                resource,
                epoch,
                grant,
                holder,
                ..
            } => {
                let row = self.rows.entry(resource.clone()).or_default();
                row.over = row.over.max(epoch - 1);
                row.owners.insert(*epoch, holder.clone());
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
            Event::Wrote {
                resource,
                epoch,
                holder,
                writer,
            } => {
                let row = self.rows.entry(resource.clone()).or_default();
                return row.accept(*epoch, holder, writer);
            }
            Event::Set {
                resource,
                epoch,
                holder,
                writer,
                write,
                releases,
                ..
            } => {
                let row = self.rows.entry(resource.clone()).or_default();
                if row.written.insert(*write) {
                    row.accept(*epoch, holder, writer)?;
                }
                if *releases {
                    row.over = row.over.max(*epoch);
                }
            }
            _ => {}
        }
        Ok(())
    }
}
