//! The queue's tables in the side file: who waits for what, and the claims of grants that were waited
//! for. Volatile, like all of the side file: whoever lost a place asks for another one.

use std::time::Duration;

use aster_core::{GrantId, Principal, ResourceName, Ttl};
use rusqlite::{Connection, OptionalExtension, Row, params};

use crate::judge::Claim;
use crate::schema::{Id, count, signed, unsigned};
use crate::side::{SideError, boot_of};
use crate::side_tables::SideTransaction;

/// A side file of an earlier version has none of these.
pub(crate) const TABLES: &str = "
CREATE TABLE IF NOT EXISTS waiters (
    ticket INTEGER PRIMARY KEY AUTOINCREMENT,
    resource TEXT NOT NULL,
    candidate TEXT NOT NULL,
    ttl_ms INTEGER NOT NULL,
    grant_id BLOB NOT NULL CHECK (length(grant_id) = 16),
    process BLOB NOT NULL CHECK (length(process) = 8),
    era BLOB NOT NULL,
    since_ns INTEGER NOT NULL,
    until_ns INTEGER NOT NULL,
    UNIQUE (resource, grant_id)
) STRICT;
CREATE INDEX IF NOT EXISTS waiters_queue ON waiters (resource, ticket);
CREATE INDEX IF NOT EXISTS waiters_process ON waiters (process);
CREATE TABLE IF NOT EXISTS claims (
    resource TEXT PRIMARY KEY,
    grant_id BLOB NOT NULL CHECK (length(grant_id) = 16),
    era BLOB NOT NULL,
    since_ns INTEGER NOT NULL,
    duration_ns INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
";

const COLUMNS: &str = "ticket, candidate, ttl_ms, grant_id, process, era, since_ns, until_ns";

/// How far into a queue one looks for the processes that come before.
const AHEAD_MAX: i64 = 64;

/// One opening of a store by one process.
pub(crate) type ProcessId = [u8; 8];

/// One who waits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Queued {
    /// Its place: lower ones come first, and none is given twice.
    pub(crate) ticket: i64,
    pub(crate) candidate: Principal,
    pub(crate) ttl: Ttl,
    pub(crate) grant_id: GrantId,
    pub(crate) process: ProcessId,
    pub(crate) era: Id,
    pub(crate) since_ns: u64,
    /// When its wait is over, on the clock of its era.
    pub(crate) until_ns: u64,
}

/// What became of a wish to wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Joined {
    /// In the queue under this ticket.
    At(i64),
    /// Somebody else waits under this grant id, or with another ttl.
    Mismatch,
    /// Too many wait.
    Full,
}

impl SideTransaction<'_> {
    /// Puts `waiter` at the end of the queue, or leaves it where it is when it asks again.
    pub(crate) fn join_queue(
        &self,
        resource: &ResourceName,
        waiter: &Queued,
        waiters_max: usize,
    ) -> Result<Joined, SideError> {
        if let Some(found) = self.waiter(resource, waiter.grant_id)? {
            if found.candidate != waiter.candidate || found.ttl != waiter.ttl {
                return Ok(Joined::Mismatch);
            }
            self.connection
                .prepare_cached(
                    "UPDATE waiters SET process = ?2, era = ?3, until_ns = ?4 WHERE ticket = ?1",
                )?
                .execute(params![
                    found.ticket,
                    waiter.process,
                    waiter.era,
                    signed(waiter.until_ns)
                ])?;
            return Ok(Joined::At(found.ticket));
        }
        let waiting: i64 = self
            .connection
            .prepare_cached("SELECT count(*) FROM waiters WHERE resource = ?1")?
            .query_row([resource.as_str()], |row| row.get(0))?;
        if unsigned(waiting) >= waiters_max as u64 {
            return Ok(Joined::Full);
        }
        self.connection
            .prepare_cached(
                "INSERT INTO waiters
                 (resource, candidate, ttl_ms, grant_id, process, era, since_ns, until_ns)
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)",
            )?
            .execute(params![
                resource.as_str(),
                waiter.candidate.as_str(),
                signed(waiter.ttl.as_millis()),
                waiter.grant_id.as_bytes(),
                waiter.process,
                waiter.era,
                signed(waiter.since_ns),
                signed(waiter.until_ns),
            ])?;
        Ok(Joined::At(self.connection.last_insert_rowid()))
    }

    /// Who waits under this grant id.
    pub(crate) fn waiter(
        &self,
        resource: &ResourceName,
        grant_id: GrantId,
    ) -> Result<Option<Queued>, SideError> {
        let sql = format!("SELECT {COLUMNS} FROM waiters WHERE resource = ?1 AND grant_id = ?2");
        let mut select = self.connection.prepare_cached(&sql)?;
        let found = select
            .query_row(params![resource.as_str(), grant_id.as_bytes()], read)
            .optional()?;
        Ok(found.and_then(Raw::parse))
    }

    /// The next of the queue after the ticket `passed`; `None` in it for what we would never have
    /// written.
    pub(crate) fn next_waiter(
        &self,
        resource: &ResourceName,
        passed: i64,
    ) -> Result<Option<(i64, Option<Queued>)>, SideError> {
        let sql = format!(
            "SELECT {COLUMNS} FROM waiters WHERE resource = ?1 AND ticket > ?2
             ORDER BY ticket LIMIT 1"
        );
        let mut select = self.connection.prepare_cached(&sql)?;
        let next = select.query_row(params![resource.as_str(), passed], read);
        Ok(next.optional()?.map(|raw| (raw.ticket, raw.parse())))
    }

    /// The whole queue, the first one first.
    pub(crate) fn waiters(&self, resource: &ResourceName) -> Result<Vec<Queued>, SideError> {
        let sql = format!("SELECT {COLUMNS} FROM waiters WHERE resource = ?1 ORDER BY ticket");
        let mut select = self.connection.prepare_cached(&sql)?;
        let mut rows = select.query([resource.as_str()])?;
        let mut waiters = Vec::new();
        while let Some(row) = rows.next()? {
            waiters.extend(read(row)?.parse());
        }
        Ok(waiters)
    }

    /// The processes that have somebody before `ticket` in the queue, in order and each once, as far
    /// as one looks.
    pub(crate) fn processes_ahead(
        &self,
        resource: &ResourceName,
        ticket: i64,
        granted: Option<GrantId>,
        now_ns: u64,
    ) -> Result<Vec<ProcessId>, SideError> {
        let sql = format!(
            "SELECT {COLUMNS} FROM waiters WHERE resource = ?1 AND ticket < ?2
             ORDER BY ticket LIMIT ?3"
        );
        let mut select = self.connection.prepare_cached(&sql)?;
        let mut rows = select.query(params![resource.as_str(), ticket, AHEAD_MAX])?;
        let mut ahead = Vec::new();
        while let Some(row) = rows.next()? {
            let Some(waiter) = read(row)?.parse() else {
                continue;
            };
            if Some(waiter.grant_id) != granted
                && !ahead.contains(&waiter.process)
                && !self.is_ghost(&waiter, now_ns)?
            {
                ahead.push(waiter.process);
            }
        }
        Ok(ahead)
    }

    /// Whether that place in the queue is still taken.
    pub(crate) fn has_ticket(&self, ticket: i64) -> Result<bool, SideError> {
        Ok(self
            .connection
            .prepare_cached("SELECT 1 FROM waiters WHERE ticket = ?1")?
            .exists([ticket])?)
    }

    pub(crate) fn drop_ticket(&self, ticket: i64) -> Result<(), SideError> {
        self.connection
            .prepare_cached("DELETE FROM waiters WHERE ticket = ?1")?
            .execute([ticket])?;
        Ok(())
    }

    /// Drops the place of a grant id. Whether there was one.
    pub(crate) fn leave_queue(
        &self,
        resource: &ResourceName,
        grant_id: GrantId,
    ) -> Result<bool, SideError> {
        let left = self
            .connection
            .prepare_cached("DELETE FROM waiters WHERE resource = ?1 AND grant_id = ?2")?
            .execute(params![resource.as_str(), grant_id.as_bytes()])?;
        Ok(left > 0)
    }

    /// Drops everybody of a process that is gone.
    pub(crate) fn drop_process(&self, process: ProcessId) -> Result<(), SideError> {
        self.connection
            .prepare_cached("DELETE FROM waiters WHERE process = ?1")?
            .execute([process])?;
        Ok(())
    }

    /// Drops everybody from all queues, also if the file is not sound.
    pub(crate) fn drop_everybody(&self) -> Result<(), SideError> {
        self.connection.execute("DELETE FROM waiters", [])?;
        Ok(())
    }

    /// The processes that have somebody in any queue.
    pub(crate) fn waiting_processes(&self) -> Result<Vec<ProcessId>, SideError> {
        let mut select = self
            .connection
            .prepare("SELECT DISTINCT process FROM waiters NOT INDEXED")?;
        let processes = select.query_map([], |row| row.get(0))?;
        Ok(processes.collect::<Result<_, _>>()?)
    }

    /// Drops everybody whose wait was over on our clock. Whether there was anybody.
    pub(crate) fn drop_late(
        &self,
        resource: &ResourceName,
        now_ns: u64,
    ) -> Result<bool, SideError> {
        let dropped = self
            .connection
            .prepare_cached(
                "DELETE FROM waiters WHERE resource = ?1 AND era = ?2 AND until_ns <= ?3",
            )?
            .execute(params![resource.as_str(), self.era, signed(now_ns)])?;
        Ok(dropped > 0)
    }

    /// The processes that have somebody in the queue.
    pub(crate) fn processes(&self, resource: &ResourceName) -> Result<Vec<ProcessId>, SideError> {
        let mut select = self
            .connection
            .prepare_cached("SELECT DISTINCT process FROM waiters WHERE resource = ?1")?;
        let processes = select.query_map([resource.as_str()], |row| row.get(0))?;
        Ok(processes.collect::<Result<_, _>>()?)
    }

    /// Whether the wait of `waiter` is over, or its boot is: then nobody waits any more.
    pub(crate) fn is_ghost(&self, waiter: &Queued, now_ns: u64) -> Result<bool, SideError> {
        if waiter.era == self.era {
            return Ok(now_ns >= waiter.until_ns);
        }
        let domain: Option<String> = self
            .connection
            .prepare_cached("SELECT domain FROM eras WHERE era = ?1")?
            .query_row([waiter.era], |row| row.get(0))
            .optional()?;
        // A clock without a name may be of this boot.
        Ok(match (domain, self.boot) {
            (Some(domain), Some(boot)) => boot_of(&domain) != boot,
            _ => false,
        })
    }

    pub(crate) fn claim(&self, resource: &ResourceName) -> Result<Option<Claim>, SideError> {
        let mut select = self.connection.prepare_cached(
            "SELECT grant_id, era, since_ns, duration_ns FROM claims WHERE resource = ?1",
        )?;
        Ok(select
            .query_row([resource.as_str()], |row| {
                Ok(Claim {
                    grant_id: GrantId::from_bytes(row.get(0)?),
                    era: row.get(1)?,
                    since_ns: count(row, 2)?,
                    duration: Duration::from_nanos(count(row, 3)?),
                })
            })
            .optional()?)
    }

    /// Puts down the claim of a grant that is about to be made.
    pub(crate) fn put_claim(
        &self,
        resource: &ResourceName,
        claim: &Claim,
    ) -> Result<(), SideError> {
        let duration_ns = i64::try_from(claim.duration.as_nanos()).unwrap_or(i64::MAX);
        self.connection
            .prepare_cached("INSERT OR REPLACE INTO claims VALUES (?1, ?2, ?3, ?4, ?5)")?
            .execute(params![
                resource.as_str(),
                claim.grant_id.as_bytes(),
                claim.era,
                signed(claim.since_ns),
                duration_ns,
            ])?;
        Ok(())
    }

    /// Lets a claim begin at `now_ns`, if it is still that of the row's grant.
    pub(crate) fn restart_claim(
        &self,
        resource: &ResourceName,
        claim: &Claim,
        now_ns: u64,
    ) -> Result<(), SideError> {
        self.connection
            .prepare_cached(
                "UPDATE claims SET since_ns = ?3
                 WHERE resource = ?1 AND grant_id = ?2 AND era = ?4",
            )?
            .execute(params![
                resource.as_str(),
                claim.grant_id.as_bytes(),
                signed(now_ns),
                claim.era,
            ])?;
        Ok(())
    }

    /// The grant that is about to be made has no claim. Whether an earlier one had.
    pub(crate) fn drop_claim(&self, resource: &ResourceName) -> Result<bool, SideError> {
        let dropped = self
            .connection
            .prepare_cached("DELETE FROM claims WHERE resource = ?1")?
            .execute([resource.as_str()])?;
        Ok(dropped > 0)
    }
}

/// Makes the tables in a side file that has none.
pub(crate) fn make_tables(connection: &Connection) -> rusqlite::Result<()> {
    let exists = connection
        .prepare("SELECT 1 FROM sqlite_schema WHERE type = 'table' AND name = 'claims'")?
        .exists([])?;
    if exists {
        return Ok(());
    }
    connection.execute_batch(&format!("BEGIN IMMEDIATE; {TABLES} COMMIT;"))
}

/// The columns as they are.
struct Raw {
    ticket: i64,
    candidate: String,
    ttl_ms: u64,
    grant_id: Id,
    process: ProcessId,
    era: Id,
    since_ns: u64,
    until_ns: u64,
}

fn read(row: &Row<'_>) -> rusqlite::Result<Raw> {
    Ok(Raw {
        ticket: row.get(0)?,
        candidate: row.get(1)?,
        ttl_ms: count(row, 2)?,
        grant_id: row.get(3)?,
        process: row.get(4)?,
        era: row.get(5)?,
        since_ns: count(row, 6)?,
        until_ns: count(row, 7)?,
    })
}

impl Raw {
    /// `None` for what we would never have written.
    fn parse(self) -> Option<Queued> {
        Some(Queued {
            ticket: self.ticket,
            candidate: Principal::new(self.candidate).ok()?,
            ttl: Ttl::from_millis(self.ttl_ms).ok()?,
            grant_id: GrantId::from_bytes(self.grant_id),
            process: self.process,
            era: self.era,
            since_ns: self.since_ns,
            until_ns: self.until_ns,
        })
    }
}
