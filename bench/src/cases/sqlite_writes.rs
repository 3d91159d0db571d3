//! A fenced register write of the SQLite store beside a bare commit on the same disk.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use aster_lease::{ExpectedRevision, Fence, Registers};
use aster_sqlite::SqliteSerializer;
use rusqlite::{Connection, TransactionBehavior, params};
use tokio::runtime::Runtime;

use crate::leases::{TTL_LONG_MS, copy, grant, name};
use crate::measure::{Failure, Scale, nanos_each, now, pairs};
use crate::table::{Goal, Line};

const CASE: &str = "sqlite-write";
const WRITER: &str = "worker-a";
const VALUE: [u8; 100] = [b'v'; 100];
/// So many callers at once, and so many rows in a bare transaction.
const CALLERS: usize = 64;
/// One write may take this much longer than a bare commit.
const ONE_MAX: f64 = 1.3;
/// Many callers together reach at least this part of the bare rate.
const MANY_MIN: f64 = 0.5;

pub(super) fn run(scale: Scale) -> Result<Vec<Line>, Failure> {
    // Beside this program and not in a directory for temporary files, which may be in memory.
    let program = std::env::current_exe()?;
    let directory = tempfile::tempdir_in(program.parent().unwrap_or(Path::new(".")))?;
    let runtime = Runtime::new()?;
    let store = Arc::new(SqliteSerializer::open(directory.path().join("leases.db"))?);
    let mut fences = Vec::new();
    for index in 0..CALLERS {
        let resource = name(index);
        let granted = runtime.block_on(grant(&*store, &resource, WRITER, TTL_LONG_MS))?;
        fences.push(copy(&granted)?);
    }
    let bare = Bare::open(&directory.path().join("bare.db"))?;
    Ok(vec![
        one(scale, &runtime, &store, &fences[0], &bare)?,
        many(scale, &runtime, &store, &fences, &bare)?,
    ])
}

/// Microseconds for one write, one after the other.
fn one(
    scale: Scale,
    runtime: &Runtime,
    store: &SqliteSerializer,
    fence: &Fence,
    bare: &Bare,
) -> Result<Line, Failure> {
    let span = span(scale);
    let pair = pairs(
        scale.rounds(),
        || {
            let started = now();
            let writes = runtime.block_on(write_for(store, fence, span))?;
            Ok(nanos_each(started.elapsed(), writes) / 1e3)
        },
        || {
            let started = now();
            let commits = bare.commit_for(span, 1)?;
            Ok(nanos_each(started.elapsed(), commits) / 1e3)
        },
    )?;
    let what = "one fenced register write of 100 B; beside: a commit of one row, WAL and FULL";
    Ok(Line::pair(CASE, what, "µs", pair, Goal::AtMost(ONE_MAX)))
}

/// Thousand writes a second, all callers together.
fn many(
    scale: Scale,
    runtime: &Runtime,
    store: &Arc<SqliteSerializer>,
    fences: &[Fence],
    bare: &Bare,
) -> Result<Line, Failure> {
    let span = span(scale);
    let rate = |nanos: f64| 1e6 / nanos;
    let pair = pairs(
        scale.rounds(),
        || {
            let started = now();
            runtime.block_on(async {
                let mut callers = Vec::with_capacity(fences.len());
                for fence in fences {
                    let (store, fence) = (store.clone(), fence.clone());
                    let write = async move { write_for(&store, &fence, span).await };
                    callers.push(runtime.spawn(write));
                }
                let mut writes = 0;
                for caller in callers {
                    writes += caller.await??;
                }
                Ok::<_, Failure>(rate(nanos_each(started.elapsed(), writes)))
            })
        },
        || {
            let started = now();
            let rows = bare.commit_for(span, CALLERS)? * CALLERS;
            Ok(rate(nanos_each(started.elapsed(), rows)))
        },
    )?;
    let what = format!(
        "register writes of {CALLERS} callers at once; beside: commits of {CALLERS} rows each"
    );
    Ok(Line::pair(CASE, what, "k/s", pair, Goal::AtLeast(MANY_MIN)))
}

/// How long one measurement takes: a count of writes would take for ever on a slow disk.
fn span(scale: Scale) -> Duration {
    scale.pick(Duration::from_millis(500), Duration::from_millis(50))
}

/// Writes one after the other for `span`; answers how many.
async fn write_for(
    store: &SqliteSerializer,
    fence: &Fence,
    span: Duration,
) -> Result<usize, Failure> {
    let started = now();
    let mut writes = 0;
    while writes == 0 || started.elapsed() < span {
        let any = ExpectedRevision::Any;
        store
            .compare_and_set(fence, WRITER, any, VALUE.to_vec())
            .await?;
        writes += 1;
    }
    Ok(writes)
}

/// A table of values in a file of its own, as durable as the store.
struct Bare {
    connection: Connection,
}

impl Bare {
    fn open(path: &Path) -> Result<Self, Failure> {
        let connection = Connection::open(path)?;
        connection.pragma_update(None, "journal_mode", "WAL")?;
        connection.pragma_update(None, "synchronous", "FULL")?;
        connection.execute_batch(
            "CREATE TABLE registers (resource TEXT PRIMARY KEY, revision INTEGER, value BLOB)
             WITHOUT ROWID",
        )?;
        for index in 0..CALLERS {
            connection.execute(
                "INSERT INTO registers VALUES (?1, 0, ?2)",
                params![name(index), VALUE],
            )?;
        }
        Ok(Self { connection })
    }

    /// Commits one after the other for `span`; answers how many.
    fn commit_for(&self, span: Duration, rows: usize) -> Result<usize, Failure> {
        let started = now();
        let mut commits = 0;
        while commits == 0 || started.elapsed() < span {
            self.commit(rows)?;
            commits += 1;
        }
        Ok(commits)
    }

    /// One commit that changes `rows` rows.
    fn commit(&self, rows: usize) -> Result<(), Failure> {
        let behavior = TransactionBehavior::Immediate;
        let transaction = rusqlite::Transaction::new_unchecked(&self.connection, behavior)?;
        {
            let mut update = transaction.prepare_cached(
                "UPDATE registers SET revision = revision + 1, value = ?2 WHERE resource = ?1",
            )?;
            for index in 0..rows {
                update.execute(params![name(index), VALUE])?;
            }
        }
        transaction.commit()?;
        Ok(())
    }
}
