//! What the harnesses of the SQLite store share.

use std::path::Path;

use aster_conformance::Written;
use aster_lease::FencedError;
use aster_sqlite::rusqlite::{self, Connection, OptionalExtension, Transaction};

/// How many may wait for one resource, so that a case can fill the queue.
pub const WAITERS_MAX: usize = 8;

/// The store sweeps after every 256 changes of ownership.
pub const GRANTS_UNTIL_IDLE_ROWS_GO: usize = 150;

pub fn make_catalog(path: &Path) {
    Connection::open(path)
        .unwrap()
        .execute_batch("CREATE TABLE catalog (resource TEXT PRIMARY KEY, value TEXT NOT NULL)")
        .unwrap();
}

/// The user's own write, in the transaction of the check.
pub fn put(tx: &Transaction<'_>, resource: &str, value: &str) -> rusqlite::Result<usize> {
    tx.execute(
        "INSERT INTO catalog (resource, value) VALUES (?1, ?2)
         ON CONFLICT (resource) DO UPDATE SET value = excluded.value",
        [resource, value],
    )
}

pub fn written<R>(result: Result<R, FencedError<rusqlite::Error>>) -> Written {
    match result {
        Ok(_) => Written::Accepted,
        Err(FencedError::Rejected(rejection)) => Written::Rejected(Some(rejection)),
        Err(error) => Written::Failed(error.to_string()),
    }
}

pub fn read(path: &Path, resource: &str) -> Option<String> {
    let connection = Connection::open(path).unwrap();
    let sql = "SELECT value FROM catalog WHERE resource = ?1";
    connection
        .query_row(sql, [resource], |row| row.get(0))
        .optional()
        .unwrap()
}
