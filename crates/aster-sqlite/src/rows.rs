//! Loading and storing a row of `aster_rows`.

use std::time::Duration;

use aster_core::{GrantId, HoldOff, Principal, ResourceName, RowState, Tenure, Ttl};
use aster_lease::SerializerError;
use rusqlite::{Connection, OptionalExtension, Row, params};

use crate::error::{damaged_row, storage};
use crate::schema::{Id, signed, unsigned};

/// How far revisions jump when a side file is lost, and with it the newest renewals: more renewals
/// than any lease can have.
pub(crate) const REVISION_STRIDE: u64 = 1 << 40;

/// An instant and the clock that it was read from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Stamp {
    pub(crate) era: Id,
    pub(crate) since_ns: u64,
}

/// A row as it is stored, with the instants that the rules leave to the store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct StoredRow {
    pub(crate) state: RowState,
    /// When it was granted or became free.
    pub(crate) stamp: Stamp,
    /// When its hold-off began, and at which epoch.
    pub(crate) hold_off: Option<(Stamp, u64)>,
}

pub(crate) const COLUMNS: &str =
    "resource, epoch, revision, grant_id, holder, ttl_ms, era, since_ns,
     hold_off_holder, hold_off_ms, hold_off_epoch, hold_off_era, hold_off_since_ns";

pub(crate) fn load(
    connection: &Connection,
    resource: &ResourceName,
) -> Result<Option<StoredRow>, SerializerError> {
    let sql = format!("SELECT {COLUMNS} FROM main.aster_rows WHERE resource = ?1");
    let mut statement = connection.prepare_cached(&sql).map_err(storage)?;
    let raw = statement
        .query_row([resource.as_str()], RawRow::read)
        .optional()
        .map_err(storage)?;
    raw.map(|raw| raw.parse().map(|(_, row)| row)).transpose()
}

pub(crate) fn store(
    connection: &Connection,
    resource: &ResourceName,
    row: &StoredRow,
) -> Result<(), SerializerError> {
    let state = &row.state;
    let hold_off = state.hold_off.as_deref();
    connection
        .prepare_cached(
            "INSERT OR REPLACE INTO main.aster_rows
             (resource, epoch, revision, grant_id, holder, ttl_ms, era, since_ns,
              hold_off_holder, hold_off_ms, hold_off_epoch, hold_off_era, hold_off_since_ns)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13)",
        )
        .and_then(|mut insert| {
            insert.execute(params![
                resource.as_str(),
                signed(state.epoch),
                signed(state.revision),
                state.grant_id.as_bytes(),
                state.holder().map(Principal::as_str),
                state.ttl().map(|ttl| signed(ttl.as_millis())),
                row.stamp.era,
                signed(row.stamp.since_ns),
                hold_off.map(|hold_off| hold_off.holder.as_str()),
                hold_off.map(
                    |hold_off| i64::try_from(hold_off.duration.as_millis()).unwrap_or(i64::MAX)
                ),
                row.hold_off.map(|(_, epoch)| signed(epoch)),
                row.hold_off.map(|(stamp, _)| stamp.era),
                row.hold_off.map(|(stamp, _)| signed(stamp.since_ns)),
            ])
        })
        .map(|_| ())
        .map_err(storage)
}

/// The renewals of the last while are lost, but revisions never go back.
pub(crate) fn raise_revisions(connection: &Connection) -> Result<(), SerializerError> {
    connection
        .execute(
            "UPDATE main.aster_rows SET revision = revision + ?1
             WHERE holder IS NOT NULL AND revision <= ?2",
            params![signed(REVISION_STRIDE), i64::MAX - signed(REVISION_STRIDE)],
        )
        .map(|_| ())
        .map_err(storage)
}

/// The columns as they are; reading and parsing are two steps because they fail differently.
pub(crate) struct RawRow {
    resource: String,
    epoch: i64,
    revision: i64,
    grant_id: Id,
    holder: Option<String>,
    ttl_ms: Option<i64>,
    era: Id,
    since_ns: i64,
    hold_off_holder: Option<String>,
    hold_off_ms: Option<i64>,
    hold_off_epoch: Option<i64>,
    hold_off_era: Option<Id>,
    hold_off_since_ns: Option<i64>,
}

impl RawRow {
    /// In the order of [`COLUMNS`].
    pub(crate) fn read(row: &Row<'_>) -> rusqlite::Result<Self> {
        Ok(Self {
            resource: row.get(0)?,
            epoch: row.get(1)?,
            revision: row.get(2)?,
            grant_id: row.get(3)?,
            holder: row.get(4)?,
            ttl_ms: row.get(5)?,
            era: row.get(6)?,
            since_ns: row.get(7)?,
            hold_off_holder: row.get(8)?,
            hold_off_ms: row.get(9)?,
            hold_off_epoch: row.get(10)?,
            hold_off_era: row.get(11)?,
            hold_off_since_ns: row.get(12)?,
        })
    }

    pub(crate) fn parse(self) -> Result<(ResourceName, StoredRow), SerializerError> {
        let resource = ResourceName::new(&self.resource).map_err(damaged_row)?;
        let held = match (self.holder, self.ttl_ms) {
            (Some(holder), Some(ttl_ms)) => Some(Tenure {
                holder: Principal::new(holder).map_err(damaged_row)?,
                ttl: Ttl::from_millis(unsigned(ttl_ms)).map_err(damaged_row)?,
            }),
            (None, None) => None,
            _ => return Err(damaged_row(format!("half a holder at {resource}"))),
        };
        let (hold_off, hold_off_stamp) = match (
            self.hold_off_holder,
            self.hold_off_ms,
            self.hold_off_epoch,
            self.hold_off_era,
            self.hold_off_since_ns,
        ) {
            (Some(holder), Some(duration_ms), Some(epoch), Some(era), Some(since_ns)) => (
                Some(Box::new(HoldOff {
                    holder: Principal::new(holder).map_err(damaged_row)?,
                    duration: Duration::from_millis(unsigned(duration_ms)),
                })),
                Some((
                    Stamp {
                        era,
                        since_ns: unsigned(since_ns),
                    },
                    unsigned(epoch),
                )),
            ),
            (None, None, None, None, None) => (None, None),
            _ => return Err(damaged_row(format!("half a hold-off at {resource}"))),
        };
        let epoch = u64::try_from(self.epoch).map_err(damaged_row)?;
        let row = StoredRow {
            state: RowState {
                epoch,
                revision: unsigned(self.revision),
                grant_id: GrantId::from_bytes(self.grant_id),
                held,
                hold_off,
            },
            stamp: Stamp {
                era: self.era,
                since_ns: unsigned(self.since_ns),
            },
            hold_off: hold_off_stamp,
        };
        Ok((resource, row))
    }
}
