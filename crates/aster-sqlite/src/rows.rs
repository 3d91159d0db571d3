//! Loading and storing a row: `aster_rows`, and its hold-offs in `aster_hold_offs`, which most rows
//! have none of.

use std::time::Duration;

use aster_core::{
    GrantId, HOLD_OFFS_MAX, HoldOff, HoldOffs, Principal, ResourceName, RowState, Tenure, Ttl,
};
use aster_lease::SerializerError;
use rusqlite::{Connection, OptionalExtension, Row, params};

use crate::error::{damaged_row, storage};
use crate::schema::{Id, count, signed};

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
    /// When each of its hold-offs began, by the epoch that names it.
    pub(crate) hold_offs_since: Vec<(u64, Stamp)>,
}

impl StoredRow {
    /// When the hold-off of that epoch began.
    pub(crate) fn hold_off_since(&self, epoch: u64) -> Option<Stamp> {
        stamp_of(&self.hold_offs_since, epoch)
    }
}

/// The instant that is kept under `epoch`.
pub(crate) fn stamp_of(stamps: &[(u64, Stamp)], epoch: u64) -> Option<Stamp> {
    let mut stamps = stamps.iter();
    stamps.find_map(|(of, stamp)| (*of == epoch).then_some(*stamp))
}

pub(crate) const COLUMNS: &str =
    "resource, epoch, revision, grant_id, holder, ttl_ms, era, since_ns, hold_offs";

pub(crate) fn load(
    connection: &Connection,
    resource: &ResourceName,
) -> Result<Option<StoredRow>, SerializerError> {
    // The columns of COLUMNS, in words: this is asked for every request.
    let sql = "SELECT resource, epoch, revision, grant_id, holder, ttl_ms, era, since_ns, hold_offs
         FROM main.aster_rows WHERE resource = ?1";
    let mut statement = connection.prepare_cached(sql).map_err(storage)?;
    let raw = statement
        .query_row([resource.as_str()], RawRow::read)
        .optional()
        .map_err(storage)?;
    raw.map(|raw| raw.parse(connection).map(|(_, row)| row))
        .transpose()
}

/// Writes the row in place of what was loaded as `before`, and its hold-offs.
pub(crate) fn store(
    connection: &Connection,
    resource: &ResourceName,
    row: &StoredRow,
    before: Option<&StoredRow>,
) -> Result<(), SerializerError> {
    let state = &row.state;
    connection
        .prepare_cached(
            "INSERT OR REPLACE INTO main.aster_rows
             (resource, epoch, revision, grant_id, holder, ttl_ms, era, since_ns, hold_offs)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)",
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
                signed(row.hold_offs_since.len() as u64),
            ])
        })
        .map_err(storage)?;
    for epoch in ended_hold_offs(row, before) {
        connection
            .prepare_cached("DELETE FROM main.aster_hold_offs WHERE resource = ?1 AND epoch = ?2")
            .and_then(|mut delete| delete.execute(params![resource.as_str(), signed(epoch)]))
            .map_err(storage)?;
    }
    for hold_off in state.hold_offs.iter() {
        let epoch = hold_off.epoch;
        let Some(stamp) = row.hold_off_since(epoch) else {
            continue;
        };
        if before.is_some_and(|before| before.hold_off_since(epoch).is_some()) {
            continue;
        }
        connection
            .prepare_cached("INSERT INTO main.aster_hold_offs VALUES (?1, ?2, ?3, ?4, ?5, ?6)")
            .and_then(|mut insert| {
                insert.execute(params![
                    resource.as_str(),
                    signed(epoch),
                    hold_off.holder.as_str(),
                    i64::try_from(hold_off.duration.as_millis()).unwrap_or(i64::MAX),
                    stamp.era,
                    signed(stamp.since_ns),
                ])
            })
            .map_err(storage)?;
    }
    Ok(())
}

/// The hold-offs of `before` that `row` has no more.
pub(crate) fn ended_hold_offs(row: &StoredRow, before: Option<&StoredRow>) -> Vec<u64> {
    let before = before
        .into_iter()
        .flat_map(|before| &before.hold_offs_since);
    before
        .map(|(epoch, _)| *epoch)
        .filter(|epoch| row.hold_off_since(*epoch).is_none())
        .collect()
}

/// The hold-offs of a row, the oldest first.
fn load_hold_offs(
    connection: &Connection,
    resource: &ResourceName,
) -> Result<(HoldOffs, Vec<(u64, Stamp)>), SerializerError> {
    let mut select = connection
        .prepare_cached(
            "SELECT epoch, holder, duration_ms, era, since_ns FROM main.aster_hold_offs
             WHERE resource = ?1 ORDER BY epoch",
        )
        .map_err(storage)?;
    let mut rows = select.query([resource.as_str()]).map_err(storage)?;
    let mut hold_offs = HoldOffs::default();
    let mut since = Vec::new();
    while let Some(row) = rows.next().map_err(storage)? {
        let epoch = count(row, 0).map_err(storage)?;
        let holder: String = row.get(1).map_err(storage)?;
        hold_offs.push(HoldOff {
            holder: Principal::new(holder).map_err(damaged_row)?,
            duration: Duration::from_millis(count(row, 2).map_err(storage)?),
            epoch,
        });
        let stamp = Stamp {
            era: row.get(3).map_err(storage)?,
            since_ns: count(row, 4).map_err(storage)?,
        };
        since.push((epoch, stamp));
    }
    Ok((hold_offs, since))
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
    epoch: u64,
    revision: u64,
    grant_id: Id,
    holder: Option<String>,
    ttl_ms: Option<u64>,
    era: Id,
    since_ns: u64,
    hold_offs: u64,
}

impl RawRow {
    /// In the order of [`COLUMNS`].
    pub(crate) fn read(row: &Row<'_>) -> rusqlite::Result<Self> {
        Ok(Self {
            resource: row.get(0)?,
            epoch: count(row, 1)?,
            revision: count(row, 2)?,
            grant_id: row.get(3)?,
            holder: row.get(4)?,
            ttl_ms: row
                .get::<_, Option<i64>>(5)?
                .map(|_| count(row, 5))
                .transpose()?,
            era: row.get(6)?,
            since_ns: count(row, 7)?,
            hold_offs: count(row, 8)?,
        })
    }

    /// Inside the transaction in which it was read: the hold-offs come from a table of their own.
    pub(crate) fn parse(
        self,
        connection: &Connection,
    ) -> Result<(ResourceName, StoredRow), SerializerError> {
        let resource = ResourceName::new(&self.resource).map_err(damaged_row)?;
        let held = match (self.holder, self.ttl_ms) {
            (Some(holder), Some(ttl_ms)) => Some(Tenure {
                holder: Principal::new(holder).map_err(damaged_row)?,
                ttl: Ttl::from_millis(ttl_ms).map_err(damaged_row)?,
            }),
            (None, None) => None,
            _ => return Err(damaged_row(format!("half a holder at {resource}"))),
        };
        let (hold_offs, hold_offs_since) = match self.hold_offs {
            0 => (HoldOffs::default(), Vec::new()),
            count if count > HOLD_OFFS_MAX as u64 => {
                return Err(damaged_row(format!("{count} hold-offs of {resource}")));
            }
            _ => load_hold_offs(connection, &resource)?,
        };
        if hold_offs_since.len() as u64 != self.hold_offs {
            return Err(damaged_row(format!("a hold-off of {resource} is missing")));
        }
        let row = StoredRow {
            state: RowState {
                epoch: self.epoch,
                revision: self.revision,
                grant_id: GrantId::from_bytes(self.grant_id),
                held,
                hold_offs,
            },
            stamp: Stamp {
                era: self.era,
                since_ns: self.since_ns,
            },
            hold_offs_since,
        };
        Ok((resource, row))
    }
}
