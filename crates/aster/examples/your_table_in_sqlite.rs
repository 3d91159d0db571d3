//! Your own table, in the same file as the lease and changed only under its fence.
//!
//! `cargo run --example your_table_in_sqlite`
#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "an example shows what happens"
)]

// begin: uses
use std::error::Error;
use std::sync::Arc;

use aster::lease::{AcquireOutcome, FenceRejection, FencedError, LeaseHandle, LeaseOptions};
use aster::sqlite::SqliteSerializer;
use aster::sqlite::rusqlite::{self, Connection};
// end: uses

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let directory = tempfile::tempdir()?;
    let path = directory.path().join("app.db");

    // begin: table
    // The file is yours. Our tables in it are named aster_*, and nothing else is touched.
    let connection = Connection::open(&path)?;
    connection
        .execute_batch("CREATE TABLE IF NOT EXISTS price (item TEXT PRIMARY KEY, cents INTEGER)")?;
    // end: table

    // begin: write
    let store = Arc::new(SqliteSerializer::open(&path)?);
    let node = "importer-1";
    let outcome =
        LeaseHandle::acquire(store.clone(), "prices", node, LeaseOptions::default()).await?;
    let AcquireOutcome::Granted(lease) = outcome else {
        return Err("somebody else imports prices".into());
    };

    let fence = lease.fence().ok_or("the lease is over")?;
    let rows_changed = store.mutate_fenced(&fence, node, |tx| {
        // One transaction: the check of the fence and both statements commit together or not at all.
        let removed = tx.execute("DELETE FROM price", [])?;
        let added = tx.execute("INSERT INTO price VALUES ('tea', 350), ('bread', 420)", [])?;
        Ok::<_, rusqlite::Error>(removed + added)
    })?;
    assert_eq!(rows_changed, 2);
    // end: write

    // begin: stale
    let stale = lease.fence().ok_or("the lease is over")?;
    lease.release().await?;

    let refused = store.mutate_fenced(&stale, node, |tx| tx.execute("DELETE FROM price", []));
    match refused {
        Err(FencedError::Rejected(FenceRejection::StaleEpoch { carried, current })) => {
            println!("rejected: the fence carries epoch {carried}, the row is at {current}");
        }
        other => return Err(format!("a released fence passed: {other:?}").into()),
    }
    // end: stale

    // begin: refused
    let outcome =
        LeaseHandle::acquire(store.clone(), "prices", node, LeaseOptions::default()).await?;
    let AcquireOutcome::Granted(lease) = outcome else {
        return Err("a released lease is free at once".into());
    };
    let fence = lease.fence().ok_or("the lease is over")?;
    for forbidden in [
        "COMMIT",
        "ATTACH 'other.db' AS other",
        "PRAGMA synchronous = OFF",
        "DELETE FROM aster_rows",
    ] {
        let refused = store.mutate_fenced(&fence, node, |tx| tx.execute_batch(forbidden));
        assert!(refused.is_err(), "{forbidden} went through");
    }
    // end: refused

    let prices: i64 = connection.query_row("SELECT count(*) FROM price", [], |row| row.get(0))?;
    assert_eq!(prices, 2);
    println!("{prices} prices are there");
    lease.release().await?;
    Ok(())
}
