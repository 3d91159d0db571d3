//! What is broken on purpose, so that the checks are known to notice.

use std::path::PathBuf;

use aster_sqlite::rusqlite;
use rusqlite::Connection;

/// A process that is broken on purpose.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bend {
    /// It tells of a register write before that is committed.
    TellsTooEarly,
    /// It drops idle rows in one transaction, and raises the floor in the next.
    FloorAfterDrop,
}

impl Bend {
    /// All of them.
    pub const ALL: [Bend; 2] = [Bend::TellsTooEarly, Bend::FloorAfterDrop];

    /// Its name on a command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Bend::TellsTooEarly => "tells-too-early",
            Bend::FloorAfterDrop => "floor-after-drop",
        }
    }

    /// The one of that name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|bend| bend.name() == name)
    }
}

/// Sweeps as the store must not: first the rows go, then the floor rises.
pub(crate) async fn sweep_badly(path: PathBuf, times: u64) {
    for _ in 0..times {
        // What fails here is no part of the control: then nothing was broken.
        let _ = sweep_once(&path);
        for _ in 0..8 {
            tokio::task::yield_now().await;
        }
    }
}

fn sweep_once(path: &std::path::Path) -> rusqlite::Result<()> {
    let connection = Connection::open(path)?;
    connection.busy_timeout(std::time::Duration::from_secs(5))?;
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
