//! How a connection is set up, and how long it waits for others.

use std::path::Path;
use std::time::Duration;

use rusqlite::config::DbConfig;
use rusqlite::{Connection, OpenFlags};

use crate::error::{Fault, fault};
use crate::options::SqliteOptions;

const STATEMENTS_CACHED: usize = 48;
const PAUSE_MIN: Duration = Duration::from_micros(200);
const PAUSE_MAX: Duration = Duration::from_millis(5);
/// A journal larger than this is cut when it is started over, in bytes.
const JOURNAL_BYTES_KEPT: i64 = 4 * 1024 * 1024;

/// What a connection promises about its commits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Durability {
    /// The main file: a commit survives a power loss.
    Durable,
    /// The main file, made if it is missing.
    DurableCreate,
    /// The side file: a commit survives the process.
    Volatile,
}

/// Opens `path`, switches it to a write-ahead log, and makes waiting for others bounded.
pub(crate) fn connect(
    path: &Path,
    options: &SqliteOptions,
    durability: Durability,
) -> rusqlite::Result<Connection> {
    // No URI flag: a path is a path, also one that begins with `file:`. The lock of a connection is
    // ours: each belongs to one thread at a time.
    let mut flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    if durability == Durability::DurableCreate {
        flags |= OpenFlags::SQLITE_OPEN_CREATE;
    }
    let mut connection = Connection::open_with_flags(path, flags)?;
    use_write_ahead_log(&connection, options.busy_bound)?;
    wait_for_others(&mut connection, options.busy_bound)?;
    connection.set_prepared_statement_cache_capacity(STATEMENTS_CACHED);
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_DEFENSIVE, true)?;
    let synchronous = match durability {
        Durability::Durable | Durability::DurableCreate => "FULL",
        Durability::Volatile => "OFF",
    };
    connection.pragma_update(None, "synchronous", synchronous)?;
    // On macOS an ordinary fsync does not reach the medium. Elsewhere this changes nothing.
    connection.pragma_update(None, "fullfsync", true)?;
    connection.pragma_update(None, "checkpoint_fullfsync", true)?;
    connection.pragma_update(None, "journal_size_limit", JOURNAL_BYTES_KEPT)?;
    Ok(connection)
}

/// Makes SQLite wait in short, growing pauses while others hold a lock it needs, at most `bound`.
pub(crate) fn wait_for_others(
    connection: &mut Connection,
    bound: Duration,
) -> rusqlite::Result<()> {
    let mut waited = Duration::ZERO;
    connection.busy_handler(Some(move |count: i32| {
        if count == 0 {
            waited = Duration::ZERO;
        }
        if waited >= bound {
            return false;
        }
        waited += pause(count);
        true
    }))
}

fn pause(count: i32) -> Duration {
    let factor = 1 << count.clamp(0, 8);
    let pause = PAUSE_MIN.saturating_mul(factor).min(PAUSE_MAX);
    std::thread::sleep(pause);
    pause
}

/// Changing the journal's mode needs the file alone for a moment. SQLite waits for some of the locks
/// in its way and not for others, so here it waits for none, and we do, at most `bound` in all.
fn use_write_ahead_log(connection: &Connection, bound: Duration) -> rusqlite::Result<()> {
    connection.busy_timeout(Duration::ZERO)?;
    let mut waited = Duration::ZERO;
    for count in 0.. {
        match connection.query_row("PRAGMA journal_mode = WAL", [], |row| {
            row.get::<_, String>(0)
        }) {
            Ok(mode) if mode == "wal" => return Ok(()),
            // A read-only file or a file system without shared memory keeps its mode.
            Ok(mode) => {
                return Err(rusqlite::Error::SqliteFailure(
                    rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_READONLY),
                    Some(format!("the journal stays in mode {mode}, not wal")),
                ));
            }
            Err(error) if fault(&error) == Fault::Busy && waited < bound => {
                waited += pause(count);
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use rusqlite::Connection;

    use super::{Durability, connect};
    use crate::error::{Fault, fault};
    use crate::options::SqliteOptions;

    /// A reader of a file that is not in WAL mode yet keeps it from being switched for as long as it
    /// reads: that is waited for, but not bound after bound.
    #[test]
    fn a_file_that_cannot_be_switched_is_busy_after_one_bound() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("x.db");
        let reader = Connection::open(&path).unwrap();
        reader
            .execute_batch("CREATE TABLE t (x); BEGIN; SELECT * FROM t")
            .unwrap();
        let options = SqliteOptions {
            busy_bound: Duration::from_millis(200),
            ..SqliteOptions::default()
        };
        let before = aster_lease::clock::boot_time();
        let error = connect(&path, &options, Durability::Durable).unwrap_err();
        assert_eq!(fault(&error), Fault::Busy, "{error}");
        // Bound after bound it would be forty of them.
        assert!(aster_lease::clock::boot_time() - before < options.busy_bound * 20);
        reader.execute_batch("COMMIT").unwrap();
        connect(&path, &options, Durability::Durable).unwrap();
    }

    #[test]
    fn only_the_side_file_does_without_fsync() {
        let directory = tempfile::tempdir().unwrap();
        let options = SqliteOptions::default();
        for (durability, synchronous) in [
            (Durability::DurableCreate, 2),
            (Durability::Durable, 2),
            (Durability::Volatile, 0),
        ] {
            let connection = connect(&directory.path().join("x.db"), &options, durability).unwrap();
            let asked =
                |name| connection.pragma_query_value(None, name, |row| row.get::<_, i64>(0));
            assert_eq!(asked("synchronous").unwrap(), synchronous, "{durability:?}");
            let mode: String = connection
                .pragma_query_value(None, "journal_mode", |row| row.get(0))
                .unwrap();
            assert_eq!(mode, "wal");
        }
    }
}
