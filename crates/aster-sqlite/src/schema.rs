//! Our tables in the user's file, and the one row that says which store it is.

use aster_core::Authority;
use aster_lease::SerializerError;
use rusqlite::{Connection, OptionalExtension, Row, params};

use crate::error::{damaged_row, storage};
use crate::identity::Birth;

/// The version that this code writes. Raise it with every change of the tables below, and keep a
/// database of the old one among the fixtures.
pub(crate) const SCHEMA_VERSION: u64 = 1;

/// All our names begin so; a protected closure cannot reach them.
pub(crate) const PREFIX: &str = "aster_";

const TABLES: &str = "
CREATE TABLE main.aster_store (
    one INTEGER PRIMARY KEY CHECK (one = 1),
    schema_version INTEGER NOT NULL,
    authority BLOB NOT NULL CHECK (length(authority) = 16),
    floor INTEGER NOT NULL,
    sequence INTEGER NOT NULL,
    inode INTEGER NOT NULL,
    birth_ns INTEGER NOT NULL,
    side_id BLOB NOT NULL CHECK (length(side_id) = 16)
) STRICT;
CREATE TABLE main.aster_rows (
    resource TEXT PRIMARY KEY,
    epoch INTEGER NOT NULL,
    revision INTEGER NOT NULL,
    grant_id BLOB NOT NULL CHECK (length(grant_id) = 16),
    holder TEXT,
    ttl_ms INTEGER,
    era BLOB NOT NULL,
    since_ns INTEGER NOT NULL,
    hold_offs INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX main.aster_rows_free ON aster_rows (era, since_ns) WHERE holder IS NULL;
CREATE INDEX main.aster_rows_held ON aster_rows (era) WHERE holder IS NOT NULL;
CREATE TABLE main.aster_hold_offs (
    resource TEXT NOT NULL,
    epoch INTEGER NOT NULL,
    holder TEXT NOT NULL,
    duration_ms INTEGER NOT NULL,
    era BLOB NOT NULL,
    since_ns INTEGER NOT NULL,
    PRIMARY KEY (resource, epoch)
) STRICT, WITHOUT ROWID;
CREATE TABLE main.aster_registers (
    resource TEXT PRIMARY KEY,
    value_revision INTEGER NOT NULL,
    epoch INTEGER NOT NULL,
    writer TEXT NOT NULL,
    write_id BLOB NOT NULL CHECK (length(write_id) = 16),
    value BLOB NOT NULL
) STRICT;
CREATE TABLE main.aster_audit (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    at_unix_ms INTEGER NOT NULL,
    event TEXT NOT NULL,
    resource TEXT,
    epoch_carried INTEGER,
    epoch_current INTEGER NOT NULL,
    holder TEXT,
    actor TEXT,
    detail TEXT,
    count INTEGER NOT NULL
) STRICT;
CREATE INDEX main.aster_audit_resource ON aster_audit (resource, id);
";

/// A random id of 16 bytes: of a side file, or of an era.
pub(crate) type Id = [u8; 16];

/// The row of `aster_store`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct StoreRow {
    pub(crate) schema_version: u64,
    pub(crate) authority: Authority,
    /// The highest epoch among dropped rows.
    pub(crate) floor: u64,
    /// Grows by one with every durable change of ours.
    pub(crate) sequence: u64,
    pub(crate) birth: Birth,
    /// Which side file belongs to it.
    pub(crate) side_id: Id,
}

/// Whether the file has our tables.
pub(crate) fn exists(connection: &Connection) -> rusqlite::Result<bool> {
    table_exists(connection, "aster_store")
}

fn table_exists(connection: &Connection, name: &str) -> rusqlite::Result<bool> {
    connection
        .query_row(
            "SELECT 1 FROM main.sqlite_schema WHERE type = 'table' AND name = ?1",
            [name],
            |_| Ok(()),
        )
        .optional()
        .map(|found| found.is_some())
}

/// Makes our tables. Inside a write transaction.
pub(crate) fn create(connection: &Connection, store: &StoreRow) -> rusqlite::Result<()> {
    connection.execute_batch(TABLES)?;
    connection.execute(
        "INSERT INTO main.aster_store
         (one, schema_version, authority, floor, sequence, inode, birth_ns, side_id)
         VALUES (1, ?1, ?2, ?3, ?4, ?5, ?6, ?7)",
        params![
            signed(store.schema_version),
            store.authority.as_bytes(),
            signed(store.floor),
            signed(store.sequence),
            store.birth.inode.cast_signed(),
            store.birth.birth_ns,
            store.side_id,
        ],
    )?;
    Ok(())
}

/// Says that this file is a backup. Only a finished backup gets the mark, and adopting takes it away. It
/// names what it was made of, so that it says nothing of a file that went on regardless.
pub(crate) fn mark_as_backup(connection: &Connection) -> rusqlite::Result<()> {
    connection.execute_batch(
        "BEGIN IMMEDIATE;
         DROP TABLE IF EXISTS main.aster_backup;
         CREATE TABLE main.aster_backup (
             one INTEGER PRIMARY KEY CHECK (one = 1),
             authority BLOB NOT NULL,
             sequence INTEGER NOT NULL
         ) STRICT;
         INSERT INTO main.aster_backup (one, authority, sequence)
             SELECT one, authority, sequence FROM main.aster_store WHERE one = 1;
         COMMIT;",
    )
}

pub(crate) fn remove_backup_mark(connection: &Connection) -> rusqlite::Result<()> {
    connection.execute_batch("DROP TABLE IF EXISTS main.aster_backup")
}

/// Whether the file is a backup, and no store was made of it since. A file of a version that knew no mark
/// is none.
pub(crate) fn is_backup(connection: &Connection) -> rusqlite::Result<bool> {
    if !table_exists(connection, "aster_backup")? || !exists(connection)? {
        return Ok(false);
    }
    connection
        .query_row(
            "SELECT 1 FROM main.aster_backup JOIN main.aster_store USING (one, authority, sequence)",
            [],
            |_| Ok(()),
        )
        .optional()
        .map(|found| found.is_some())
}

/// The version alone: the one thing that a newer schema is sure to keep.
pub(crate) fn version(connection: &Connection) -> rusqlite::Result<Option<i64>> {
    connection
        .query_row(
            "SELECT schema_version FROM main.aster_store WHERE one = 1",
            [],
            |row| row.get(0),
        )
        .optional()
}

/// Whether all our tables are there, with the columns that we read and write.
pub(crate) fn check_tables(connection: &Connection) -> rusqlite::Result<()> {
    for sql in [
        "SELECT resource, epoch, revision, grant_id, holder, ttl_ms, era, since_ns, hold_offs
         FROM main.aster_rows",
        "SELECT resource, epoch, holder, duration_ms, era, since_ns FROM main.aster_hold_offs",
        "SELECT resource, value_revision, epoch, writer, write_id, value FROM main.aster_registers",
        "SELECT id, at_unix_ms, event, resource, epoch_carried, epoch_current, holder, actor, detail, count
         FROM main.aster_audit",
    ] {
        connection.prepare(sql)?;
    }
    Ok(())
}

pub(crate) fn load(connection: &Connection) -> Result<StoreRow, SerializerError> {
    let mut statement = connection
        .prepare_cached(
            "SELECT schema_version, authority, floor, sequence, inode, birth_ns, side_id
             FROM main.aster_store WHERE one = 1",
        )
        .map_err(storage)?;
    statement
        .query_row([], |row| {
            Ok(StoreRow {
                schema_version: count(row, 0)?,
                authority: Authority::from_bytes(row.get(1)?),
                floor: count(row, 2)?,
                sequence: count(row, 3)?,
                birth: Birth {
                    inode: row.get::<_, i64>(4)?.cast_unsigned(),
                    birth_ns: row.get(5)?,
                },
                side_id: row.get(6)?,
            })
        })
        .optional()
        .map_err(storage)?
        .ok_or_else(|| damaged_row("the store's own row is missing"))
}

/// Counts one durable change. Every commit of ours goes through here.
pub(crate) fn count_change(
    connection: &Connection,
    store: &mut StoreRow,
) -> Result<(), SerializerError> {
    store.sequence = store.sequence.saturating_add(1);
    connection
        .prepare_cached("UPDATE main.aster_store SET sequence = ?1, floor = ?2 WHERE one = 1")
        .and_then(|mut update| update.execute(params![signed(store.sequence), signed(store.floor)]))
        .map(|_| ())
        .map_err(storage)
}

/// Our counts stay below 2^63; anything else reads as the largest.
pub(crate) fn signed(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

/// A count that SQLite made; it is never negative.
pub(crate) fn unsigned(value: i64) -> u64 {
    u64::try_from(value).unwrap_or(0)
}

/// A count of ours in a column. A negative one is damage: read as anything else it would go back.
pub(crate) fn count(row: &Row<'_>, index: usize) -> rusqlite::Result<u64> {
    let value: i64 = row.get(index)?;
    u64::try_from(value).map_err(|_| rusqlite::Error::IntegralValueOutOfRange(index, value))
}
