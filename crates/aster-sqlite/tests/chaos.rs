//! Real processes that are killed and stopped at any moment while they write under short leases. In
//! the order of the file, no write of an earlier epoch may follow one of a later epoch.

#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    clippy::print_stderr,
    reason = "a test that cannot go on fails, and it owns its threads"
)]

mod support;

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use aster_core::{ErrorKind, TransitionOutcome};
use aster_lease::{FencedError, LeaseSerializer};
use rusqlite::Connection;
use support::process::{Other, role, store_path};
use support::*;

const WRITERS: usize = 3;
const FAULTS: usize = 12;
/// How many writes have to be seen between two faults.
const WRITES_BETWEEN: i64 = 40;
const SHORT_TTL_MS: u64 = 100;
/// How long a test waits at most for one step on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

#[test]
fn writer_process() {
    let Some(role) = role() else { return };
    let fenced = role == "fenced";
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap();
    let store = aster_sqlite::SqliteSerializer::open(store_path()).unwrap();
    let name = format!("writer-{}", std::process::id());
    let unfenced = Connection::open(store_path()).unwrap();
    unfenced.busy_timeout(PATIENCE).unwrap();
    // Until it is killed. It never renews: it believes that it owns for as long as its writes go
    // through.
    loop {
        let wish = acquire_op(&name, SHORT_TTL_MS, fresh_grant_id());
        let fence = match runtime.block_on(store.transition("catalog", wish)) {
            Ok(TransitionOutcome::Granted(fence)) => fence,
            Ok(TransitionOutcome::Denied(..)) => {
                std::thread::sleep(Duration::from_millis(2));
                continue;
            }
            Err(error) if error.kind() == ErrorKind::Retry => continue,
            other => panic!("{other:?}"),
        };
        let epoch = i64::try_from(fence.epoch).unwrap();
        let sql = "INSERT INTO writes VALUES (?1, ?2)";
        let begun = Instant::now();
        while begun.elapsed() < PATIENCE {
            if !fenced {
                // Nothing ever tells it to stop: here it does so after one write too many.
                let later: i64 = unfenced
                    .query_row(
                        "SELECT count(*) FROM writes WHERE epoch > ?1",
                        [epoch],
                        |row| row.get(0),
                    )
                    .unwrap();
                unfenced.execute(sql, (epoch, &name)).unwrap();
                if later > 0 {
                    break;
                }
                std::thread::sleep(Duration::from_millis(1));
                continue;
            }
            match store.mutate_fenced(&fence, &name, |tx| tx.execute(sql, (epoch, &name))) {
                Ok(_) => {}
                Err(FencedError::Rejected(_)) => break,
                Err(other) => assert_eq!(other.kind(), ErrorKind::Retry, "{other}"),
            }
        }
    }
}

fn count(connection: &Connection) -> i64 {
    connection
        .query_row("SELECT count(*) FROM writes", [], |row| row.get(0))
        .unwrap()
}

fn wait_for_writes(connection: &Connection, more: i64) {
    let (begun, from) = (Instant::now(), count(connection));
    while count(connection) < from + more {
        assert!(begun.elapsed() < PATIENCE, "the writers make no progress");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// The writes in the order of the file.
fn run(path: &Path, role: &str) -> Vec<(i64, String)> {
    drop(aster_sqlite::SqliteSerializer::open(path).unwrap());
    let connection = Connection::open(path).unwrap();
    connection.busy_timeout(PATIENCE).unwrap();
    connection
        .execute_batch("CREATE TABLE writes (epoch INTEGER, writer TEXT)")
        .unwrap();
    let start = || Other::start("writer_process", role, path);
    let mut writers: Vec<_> = (0..WRITERS).map(|_| start()).collect();
    for fault in 0..FAULTS {
        wait_for_writes(&connection, WRITES_BETWEEN);
        let victim = fault % WRITERS;
        if fault % 2 == 0 {
            let killed = std::mem::replace(&mut writers[victim], start());
            killed.kill();
        } else {
            // Stopped for several ttl, perhaps with the lease in hand, and set free again. If it was
            // stopped inside a transaction, nobody can write meanwhile.
            writers[victim].signal("STOP");
            std::thread::sleep(Duration::from_millis(3 * SHORT_TTL_MS));
            writers[victim].signal("CONT");
        }
    }
    wait_for_writes(&connection, WRITES_BETWEEN);
    for writer in writers {
        writer.kill();
    }
    let mut select = connection
        .prepare("SELECT epoch, writer FROM writes ORDER BY rowid")
        .unwrap();
    let rows = select
        .query_map([], |row| Ok((row.get(0)?, row.get(1)?)))
        .unwrap();
    rows.collect::<Result<_, _>>().unwrap()
}

/// How many writes follow one of a later epoch.
fn stale_writes(writes: &[(i64, String)]) -> usize {
    let mut highest = 0;
    writes
        .iter()
        .filter(|(epoch, _)| {
            highest = highest.max(*epoch);
            *epoch < highest
        })
        .count()
}

#[test]
fn killed_and_stopped_writers_never_write_after_their_epoch() {
    let place = Place::new();
    let writes = run(&place.path, "fenced");
    assert_eq!(stale_writes(&writes), 0);
    let mut owners = BTreeMap::new();
    for (epoch, writer) in &writes {
        let owner = owners.entry(epoch).or_insert(writer);
        assert_eq!(owner, &writer, "two writers at epoch {epoch}");
    }
    eprintln!("{} writes in {} epochs", writes.len(), owners.len());
    assert!(owners.len() > 3, "only {} epochs", owners.len());
    // And the store is as sound as before.
    let connection = Connection::open(&place.path).unwrap();
    let sound: String = connection
        .query_row("PRAGMA integrity_check", [], |row| row.get(0))
        .unwrap();
    assert_eq!(sound, "ok");
    place.open();
}

/// The control: the same writers with the same leases, without the check.
#[test]
fn control_without_the_check_stale_writes_get_in() {
    let place = Place::new();
    let writes = run(&place.path, "unfenced");
    assert!(
        stale_writes(&writes) > 0,
        "the run would not notice a missing check"
    );
}
