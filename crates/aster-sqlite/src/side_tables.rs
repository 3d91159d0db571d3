//! The tables of the side file: renewals, watches, the witness. Those of the queue are in `waiters`.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use aster_core::ResourceName;
use rusqlite::{Connection, OptionalExtension, params};

use crate::judge::{Evidence, Renewal, Seen, Watched};
use crate::rows::StoredRow;
use crate::schema::{Id, count, signed};
use crate::side::{SideError, Witness};

/// How many rows a process without a named clock watches; past that it starts over, which only makes
/// leases last longer.
const PRIVATE_WATCHES_MAX: usize = 100_000;

/// The column `hold_off` of `watches`. No hold-off has epoch 0.
fn column_of(watched: Watched) -> i64 {
    match watched {
        Watched::Tenure => 0,
        Watched::HoldOff { epoch } => signed(epoch),
    }
}

/// What a process watches on a clock that nobody shares.
pub(crate) type PrivateWatches = Arc<Mutex<HashMap<ResourceName, Vec<(Watched, Seen)>>>>;

/// The side file's tables, inside a transaction.
#[derive(Debug)]
pub(crate) struct SideTransaction<'a> {
    pub(crate) connection: &'a Connection,
    pub(crate) era: Id,
    pub(crate) boot: Option<&'a str>,
    pub(crate) private: Option<&'a PrivateWatches>,
}

impl SideTransaction<'_> {
    /// What is known of `row` beside the row itself.
    pub(crate) fn evidence(
        &self,
        resource: &ResourceName,
        row: Option<&StoredRow>,
    ) -> Result<Evidence, SideError> {
        let Some(row) = row else {
            return Ok(Evidence::default());
        };
        let mut seen_hold_offs = Vec::new();
        for (epoch, stamp) in &row.hold_offs_since {
            if stamp.era != self.era {
                seen_hold_offs.extend(self.seen(resource, Watched::HoldOff { epoch: *epoch })?);
            }
        }
        let renewal = self.renewal(resource)?;
        let renewed = renewal.filter(|renewal| renewal.epoch == row.state.epoch);
        let era = renewed.map_or(row.stamp.era, |renewal| renewal.era);
        let seen = match era == self.era {
            // Its instant was read from our own clock, so nothing that was watched counts.
            true => None,
            false => self.seen(resource, Watched::Tenure)?,
        };
        let claim = match row.state.held.is_some() && renewed.is_none() {
            true => self.claim(resource)?,
            false => None,
        };
        Ok(Evidence {
            renewal,
            claim,
            seen,
            seen_hold_offs,
        })
    }

    pub(crate) fn renewal(&self, resource: &ResourceName) -> Result<Option<Renewal>, SideError> {
        let mut select = self.connection.prepare_cached(
            "SELECT epoch, revision, era, since_ns, expired FROM renewals WHERE resource = ?1",
        )?;
        Ok(select
            .query_row([resource.as_str()], |row| {
                Ok(Renewal {
                    epoch: count(row, 0)?,
                    revision: count(row, 1)?,
                    era: row.get(2)?,
                    since_ns: count(row, 3)?,
                    expired: row.get(4)?,
                })
            })
            .optional()?)
    }

    pub(crate) fn put_renewal(
        &self,
        resource: &ResourceName,
        renewal: &Renewal,
    ) -> Result<(), SideError> {
        self.connection
            .prepare_cached("INSERT OR REPLACE INTO renewals VALUES (?1, ?2, ?3, ?4, ?5, ?6)")?
            .execute(params![
                resource.as_str(),
                signed(renewal.epoch),
                signed(renewal.revision),
                renewal.era,
                signed(renewal.since_ns),
                renewal.expired,
            ])?;
        Ok(())
    }

    fn seen(&self, resource: &ResourceName, watched: Watched) -> Result<Option<Seen>, SideError> {
        if let Some(watches) = self.private {
            let watches = watches.lock().unwrap_or_else(PoisonError::into_inner);
            let mut watches = watches.get(resource).into_iter().flatten();
            return Ok(watches.find_map(|(about, seen)| (*about == watched).then_some(*seen)));
        }
        let mut select = self.connection.prepare_cached(
            "SELECT epoch, revision, since_ns FROM watches
             WHERE resource = ?1 AND era = ?2 AND hold_off = ?3",
        )?;
        Ok(select
            .query_row(
                params![resource.as_str(), self.era, column_of(watched)],
                |row| {
                    Ok(Seen {
                        epoch: count(row, 0)?,
                        revision: count(row, 1)?,
                        since_ns: count(row, 2)?,
                    })
                },
            )
            .optional()?)
    }

    pub(crate) fn watch(
        &self,
        resource: &ResourceName,
        watched: Watched,
        seen: Seen,
    ) -> Result<(), SideError> {
        if let Some(watches) = self.private {
            let mut watches = watches.lock().unwrap_or_else(PoisonError::into_inner);
            if watches.len() >= PRIVATE_WATCHES_MAX {
                watches.clear();
            }
            let watches = watches.entry(resource.clone()).or_default();
            watches.retain(|(about, _)| *about != watched);
            watches.push((watched, seen));
            return Ok(());
        }
        self.connection
            .prepare_cached("INSERT OR REPLACE INTO watches VALUES (?1, ?2, ?3, ?4, ?5, ?6)")?
            .execute(params![
                resource.as_str(),
                self.era,
                column_of(watched),
                signed(seen.epoch),
                signed(seen.revision),
                signed(seen.since_ns),
            ])?;
        Ok(())
    }

    /// Drops what is kept of epochs below `epoch`: it can never matter again.
    pub(crate) fn forget_below(
        &self,
        resource: &ResourceName,
        epoch: u64,
    ) -> Result<(), SideError> {
        for sql in [
            "DELETE FROM renewals WHERE resource = ?1 AND epoch < ?2",
            // A hold-off is watched under the epoch that it began at, and outlives it.
            "DELETE FROM watches WHERE resource = ?1 AND epoch < ?2 AND hold_off = 0",
        ] {
            self.connection
                .prepare_cached(sql)?
                .execute(params![resource.as_str(), signed(epoch)])?;
        }
        self.forget_private(resource, Watched::Tenure);
        Ok(())
    }

    /// Drops what was watched of a hold-off that the row has no more.
    pub(crate) fn forget_hold_off(
        &self,
        resource: &ResourceName,
        epoch: u64,
    ) -> Result<(), SideError> {
        self.connection
            .prepare_cached("DELETE FROM watches WHERE resource = ?1 AND hold_off = ?2")?
            .execute(params![resource.as_str(), signed(epoch)])?;
        self.forget_private(resource, Watched::HoldOff { epoch });
        Ok(())
    }

    fn forget_private(&self, resource: &ResourceName, watched: Watched) {
        let Some(watches) = self.private else {
            return;
        };
        let mut watches = watches.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(of_row) = watches.get_mut(resource) {
            of_row.retain(|(about, _)| *about != watched);
            if of_row.is_empty() {
                watches.remove(resource);
            }
        }
    }

    /// Drops everything about a resource whose row is gone.
    pub(crate) fn forget(&self, resource: &ResourceName) -> Result<(), SideError> {
        for sql in [
            "DELETE FROM renewals WHERE resource = ?1",
            "DELETE FROM watches WHERE resource = ?1",
            "DELETE FROM claims WHERE resource = ?1",
        ] {
            self.connection
                .prepare_cached(sql)?
                .execute([resource.as_str()])?;
        }
        if let Some(watches) = self.private {
            let mut watches = watches.lock().unwrap_or_else(PoisonError::into_inner);
            watches.remove(resource);
        }
        Ok(())
    }

    /// Says how far the main file has come. Only after its commit is durable: a witness that ran
    /// ahead would refuse a healthy file.
    pub(crate) fn put_witness(&self, witness: Witness) -> Result<(), SideError> {
        self.connection
            .prepare_cached(
                "UPDATE side SET authority = ?1, sequence = ?2
                 WHERE one = 1 AND (authority <> ?1 OR sequence < ?2)",
            )?
            .execute(params![
                witness.authority.as_bytes(),
                signed(witness.sequence)
            ])?;
        Ok(())
    }

    /// The rows of other clocks are all watched now.
    pub(crate) fn set_armed(&self) -> Result<(), SideError> {
        self.connection
            .execute("UPDATE eras SET armed = 1 WHERE era = ?1", [self.era])?;
        Ok(())
    }
}
