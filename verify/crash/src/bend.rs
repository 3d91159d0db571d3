//! What is broken on purpose, so that the checks are known to notice.

use std::path::{Path, PathBuf};

use aster_sqlite::rusqlite;
use rusqlite::Connection;

use crate::store::{BUSY_BOUND, STORE, number};

/// A process that is broken on purpose.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bend {
    /// It tells of a register write before that is committed.
    TellsTooEarly,
    /// It drops idle rows in one transaction, and raises the floor in the next.
    FloorAfterDrop,
    /// It writes the audit record of a change in a commit after it.
    AuditLater,
    /// It writes a register's value in one transaction, and its revision in the next.
    RevisionLater,
    /// It writes the user's tables in a transaction each.
    TablesApart,
    /// It writes a register in one transaction, and releases in the next.
    ReleaseLater,
    /// It removes the store's log before it opens the store, as if its predecessor had left rubbish.
    RemovesLog,
}

impl Bend {
    /// All of them.
    pub const ALL: [Bend; 7] = [
        Bend::TellsTooEarly,
        Bend::FloorAfterDrop,
        Bend::AuditLater,
        Bend::RevisionLater,
        Bend::TablesApart,
        Bend::ReleaseLater,
        Bend::RemovesLog,
    ];

    /// What it does, in words.
    #[must_use]
    pub fn what(self) -> &'static str {
        match self {
            Bend::TellsTooEarly => "a write is acknowledged before it is committed",
            Bend::FloorAfterDrop => "the epoch floor rises in a commit after the drop",
            Bend::AuditLater => "the audit record is written in a commit after its change",
            Bend::RevisionLater => "a register's revision is written in a commit after its value",
            Bend::TablesApart => "the user's own write is spread over two commits",
            Bend::ReleaseLater => {
                "a release with a value writes first and releases in a later commit"
            }
            Bend::RemovesLog => "the log is removed before the store is opened",
        }
    }

    /// Its name on a command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Bend::TellsTooEarly => "tells-too-early",
            Bend::FloorAfterDrop => "floor-after-drop",
            Bend::AuditLater => "audit-later",
            Bend::RevisionLater => "revision-later",
            Bend::TablesApart => "tables-apart",
            Bend::ReleaseLater => "release-later",
            Bend::RemovesLog => "removes-log",
        }
    }

    /// The one of that name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|bend| bend.name() == name)
    }

    /// What of it comes before the store is opened.
    pub(crate) fn before_opening(self, directory: &Path, life: u64) {
        if self == Bend::RemovesLog && life > 0 {
            for suffix in ["-wal", "-shm"] {
                let _ = std::fs::remove_file(directory.join(format!("{STORE}{suffix}")));
            }
        }
    }

    /// What of it goes on beside the callers, if anything does.
    pub(crate) fn beside(
        self,
        directory: &Path,
    ) -> Option<fn(&Connection) -> rusqlite::Result<()>> {
        match self {
            Bend::FloorAfterDrop => Some(sweep_badly),
            Bend::AuditLater => hold_records_back(&directory.join(STORE))
                .is_ok()
                .then_some(put_records_down as _),
            _ => None,
        }
    }
}

fn open(path: &Path) -> rusqlite::Result<Connection> {
    let connection = Connection::open(path)?;
    connection.busy_timeout(BUSY_BOUND)?;
    Ok(connection)
}

/// Does `step` again and again, with a turn for the callers between.
pub(crate) async fn go_on_beside(
    directory: PathBuf,
    step: fn(&Connection) -> rusqlite::Result<()>,
    times: u64,
) {
    for _ in 0..times {
        // What fails here is no part of the control: then nothing was broken.
        let _ = open(&directory.join(STORE)).and_then(|connection| step(&connection));
        for _ in 0..8 {
            tokio::task::yield_now().await;
        }
    }
}

/// The commit of a grant has no record any more. Who judges what is left, and grants to its `successor`, is not
/// bent.
fn hold_records_back(path: &Path) -> rusqlite::Result<()> {
    open(path)?.execute_batch(
        "CREATE TABLE IF NOT EXISTS held_back AS SELECT * FROM aster_audit WHERE 0;
         CREATE TRIGGER IF NOT EXISTS hold_back AFTER INSERT ON aster_audit
             WHEN NEW.event = 'granted' AND NEW.holder NOT LIKE 'successor%'
                 AND NOT EXISTS (SELECT 1 FROM held_back WHERE id = NEW.id)
         BEGIN
             INSERT INTO held_back SELECT * FROM aster_audit WHERE id = NEW.id;
             DELETE FROM aster_audit WHERE id = NEW.id;
         END",
    )
}

/// The records come in a later one.
fn put_records_down(connection: &Connection) -> rusqlite::Result<()> {
    connection.execute_batch(
        "BEGIN IMMEDIATE;
         INSERT INTO aster_audit SELECT * FROM held_back;
         DELETE FROM held_back;
         COMMIT",
    )
}

/// Writes a register's value and then its revision. Answers the revision.
pub(crate) fn write_badly(directory: &Path, resource: &str, value: &[u8]) -> rusqlite::Result<u64> {
    let connection = open(&directory.join(STORE))?;
    connection.execute(
        "UPDATE aster_registers SET value = ?2 WHERE resource = ?1",
        rusqlite::params![resource, value],
    )?;
    connection.query_row(
        "UPDATE aster_registers SET value_revision = value_revision + 1 WHERE resource = ?1
         RETURNING value_revision",
        [resource],
        |row| row.get(0).map(number),
    )
}

/// Sweeps as the store must not: first the rows go, then the floor rises.
fn sweep_badly(connection: &Connection) -> rusqlite::Result<()> {
    let highest: Option<i64> = connection.query_row(
        "SELECT max(epoch) FROM aster_rows WHERE holder IS NULL AND resource LIKE 'once/%'",
        [],
        |row| row.get(0),
    )?;
    let Some(highest) = highest else {
        return Ok(());
    };
    connection.execute(
        "DELETE FROM aster_rows WHERE holder IS NULL AND resource LIKE 'once/%'",
        [],
    )?;
    connection
        .execute("UPDATE aster_store SET floor = max(floor, ?1)", [highest])
        .map(|_| ())
}
