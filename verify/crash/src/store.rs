//! The store on the disk: opening it in one of the machine's boots, looking at all that is in it, and
//! going on with it.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use aster_lease::{
    AUDIT_PAGE_MAX, AuditLog, AuditQuery, DenyReason, ExpectedRevision, Fence, FencedError,
    GrantId, LIST_PAGE_MAX, LeaseOp, LeaseSerializer, ListQuery, Principal, Registers,
    ResourceName, TransitionOutcome, Ttl,
};
use aster_sqlite::{ClockDomain, OpenError, SqliteOptions, SqliteSerializer, StoreTime, rusqlite};
use rusqlite::{Connection, Transaction};

use crate::expected::{Expected, Found, FoundRecord, FoundRow};
use crate::rules::{Broken, Rule};
use crate::words::{Line, Word};

/// The store's file on a disk.
pub const STORE: &str = "leases.db";
/// So few idle rows stay that a life has to drop some.
const IDLE_ROWS_MAX: usize = 8;
/// Longer than anybody takes here: no lease expires by itself.
const TTL_MS: u64 = 600_000;
/// The resource for which everybody queues.
pub const QUEUE: &str = "queue";
/// What a dead waiter costs those behind it, when the store goes on after a death…
const CLAIM_TIME: Duration = Duration::from_millis(100);
/// …and there are not more of them than callers.
const GHOSTS_MAX: u32 = 16;
/// A store that does not answer is broken.
pub(crate) const BUSY_BOUND: Duration = Duration::from_secs(20);

/// The machine's clock after so many reboots: a power loss is one.
struct Boot(u64);

impl StoreTime for Boot {
    fn domain(&self) -> Option<ClockDomain> {
        Some(ClockDomain::new(format!("boot {}", self.0)))
    }

    fn now_ns(&self) -> u64 {
        u64::try_from(aster_lease::clock::boot_time().as_nanos()).unwrap_or(u64::MAX)
    }

    fn wall_unix_ms(&self) -> u64 {
        0
    }
}

/// Opens the store below `directory` after so many reboots.
///
/// # Errors
///
/// As the store's own.
pub fn open(directory: &Path, boot: u64) -> Result<SqliteSerializer, OpenError> {
    open_with(directory, boot, aster_lease::CLAIM_TIME)
}

/// The same for those who look at what a death has left: those who waited are dead.
///
/// # Errors
///
/// As the store's own.
pub fn open_after_death(directory: &Path, boot: u64) -> Result<SqliteSerializer, OpenError> {
    open_with(directory, boot, CLAIM_TIME)
}

fn open_with(
    directory: &Path,
    boot: u64,
    claim_time: Duration,
) -> Result<SqliteSerializer, OpenError> {
    let options = SqliteOptions {
        claim_time,
        time: Arc::new(Boot(boot)),
        idle_retention: Duration::from_secs(3_600),
        idle_rows_max: IDLE_ROWS_MAX,
        busy_bound: BUSY_BOUND,
        ..SqliteOptions::default()
    };
    SqliteSerializer::open_with(directory.join(STORE), options)
}

/// The ttl of all leases.
#[must_use]
pub fn ttl() -> Ttl {
    Ttl::from_millis(TTL_MS).unwrap()
}

/// A name that is known to be good.
#[must_use]
pub fn principal(name: &str) -> Principal {
    Principal::new(name).unwrap()
}

/// An id that the words pick.
#[must_use]
pub fn id_of(words: &str) -> [u8; 16] {
    use std::hash::{DefaultHasher, Hash, Hasher};
    let mut hasher = DefaultHasher::new();
    words.hash(&mut hasher);
    let half = hasher.finish().to_le_bytes();
    "and again".hash(&mut hasher);
    let other = hasher.finish().to_le_bytes();
    std::array::from_fn(|index| {
        if index < 8 {
            half[index]
        } else {
            other[index - 8]
        }
    })
}

/// Everything that is in the store, as its users and SQLite see it.
///
/// # Errors
///
/// What did not answer.
pub async fn look(store: &SqliteSerializer) -> Result<Found, String> {
    let mut found = Found::default();
    let mut query = ListQuery::default();
    loop {
        let page = store.list(query.clone()).await.map_err(text)?;
        for row in &page {
            found.rows.insert(
                row.resource.to_string(),
                FoundRow {
                    epoch: row.epoch,
                    holder: row.holder.as_ref().map(ToString::to_string),
                },
            );
        }
        let last = page.last().filter(|_| page.len() == LIST_PAGE_MAX);
        match last {
            Some(row) => query.after = Some(row.resource.clone()),
            None => break,
        }
    }
    found.floor = store
        .snapshot("nobody ever asks for this")
        .await
        .map_err(text)?
        .epoch;
    for resource in found.rows.keys() {
        if let Some(value) = store.read(resource).await.map_err(text)? {
            let value = (value.value_revision, value.epoch, value.value);
            found.values.insert(resource.clone(), value);
        }
    }
    // The newest come first, page by page; the trail of one life fits.
    let query = AuditQuery {
        resource: None,
        after: None,
        limit: AUDIT_PAGE_MAX,
    };
    found.audit = store
        .audit(query)
        .await
        .map_err(text)?
        .into_iter()
        .map(|record| FoundRecord {
            id: record.id,
            event: record.event.name(),
            resource: record.resource.map(|resource| resource.to_string()),
            carried: record.epoch_carried,
            current: record.epoch_current,
            holder: record.holder.map(|holder| holder.to_string()),
        })
        .collect();
    look_inside(store.path(), &mut found).map_err(text)?;
    Ok(found)
}

fn look_inside(path: &Path, found: &mut Found) -> rusqlite::Result<()> {
    let connection = Connection::open(path)?;
    connection.busy_timeout(BUSY_BOUND)?;
    found.integrity = connection.query_row("PRAGMA integrity_check", [], |row| row.get(0))?;
    let is_there = connection.table_exists(None, "numbers")?;
    if is_there {
        let mut select =
            connection.prepare("SELECT number, resource, epoch FROM numbers ORDER BY rowid")?;
        let rows = select.query_map([], |row| {
            Ok((number(row.get(0)?), row.get(1)?, number(row.get(2)?)))
        })?;
        found.numbers = rows.collect::<rusqlite::Result<_>>()?;
        let mut select = connection.prepare("SELECT number FROM numbers_too")?;
        let rows = select.query_map([], |row| row.get(0).map(number))?;
        found.numbers_too = rows.collect::<rusqlite::Result<_>>()?;
    }
    Ok(())
}

pub(crate) fn number(value: i64) -> u64 {
    u64::try_from(value).unwrap_or(0)
}

/// One protected write into the user's tables.
///
/// # Errors
///
/// As the store's own.
pub fn write_number(
    store: &SqliteSerializer,
    fence: &Fence,
    writer: &str,
    number: u64,
) -> Result<(), FencedError<rusqlite::Error>> {
    store.mutate_fenced(fence, writer, |tx| {
        write_first(tx, fence, number)?;
        write_second(tx, number)
    })
}

/// The same in two steps, as it must not be.
///
/// # Errors
///
/// As the store's own.
pub fn write_number_apart(
    store: &SqliteSerializer,
    fence: &Fence,
    writer: &str,
    number: u64,
) -> Result<(), FencedError<rusqlite::Error>> {
    store.mutate_fenced(fence, writer, |tx| write_first(tx, fence, number))?;
    store.mutate_fenced(fence, writer, |tx| write_second(tx, number))
}

fn write_first(tx: &Transaction<'_>, fence: &Fence, number: u64) -> rusqlite::Result<()> {
    let number = i64::try_from(number).unwrap_or(i64::MAX);
    let epoch = i64::try_from(fence.epoch).unwrap_or(i64::MAX);
    tx.execute_batch(
        "CREATE TABLE IF NOT EXISTS numbers (number INTEGER, resource TEXT, epoch INTEGER);
             CREATE TABLE IF NOT EXISTS numbers_too (number INTEGER)",
    )?;
    tx.execute(
        "INSERT INTO numbers VALUES (?1, ?2, ?3)",
        rusqlite::params![number, fence.resource.as_str(), epoch],
    )
    .map(|_| ())
}

fn write_second(tx: &Transaction<'_>, number: u64) -> rusqlite::Result<()> {
    let number = i64::try_from(number).unwrap_or(i64::MAX);
    tx.execute("INSERT INTO numbers_too VALUES (?1)", [number])
        .map(|_| ())
}

/// Works on after a death: who was held off stays out, what was free or held can be had again above every
/// epoch that was ever told or seen, an old fence is refused, and a new one writes. `tell` notes what is told.
///
/// # Errors
///
/// The rule that is broken, and what was seen.
pub async fn go_on(
    store: &SqliteSerializer,
    boot: u64,
    expected: &Expected,
    found: &Found,
    tell: &(dyn Fn(Line) + Sync),
) -> Result<(), Broken> {
    for (resource, holder) in expected.held_off() {
        if found
            .rows
            .get(resource)
            .is_none_or(|row| row.holder.is_some())
        {
            continue;
        }
        let op = acquire(holder, &format!("{boot} {resource} held off"));
        match store.transition(resource, op).await.map_err(stuck)? {
            TransitionOutcome::Denied(DenyReason::HeldOff, _) => {}
            other => {
                return Err(Rule::Durable.broken(format!(
                    "{resource}: {holder} was held off, and now: {other:?}"
                )));
            }
        }
    }
    let mut callers = Vec::new();
    for (resource, known) in expected.epochs() {
        let row = found.rows.get(resource).cloned();
        let highest = row.as_ref().map_or(known, |row| row.epoch.max(known));
        let stale = expected.some_grant(resource).map(|(epoch, holder)| Fence {
            authority: store.store_authority(),
            resource: ResourceName::new(resource).unwrap(),
            epoch,
            holder: principal(holder),
        });
        let holder = row.and_then(|row| row.holder);
        callers.push(take(store, boot, resource, holder, highest, stale, tell));
    }
    // All at once, so that they share a few commits.
    join_all(callers).await
}

async fn take(
    store: &SqliteSerializer,
    boot: u64,
    resource: &str,
    holder: Option<String>,
    highest: u64,
    stale: Option<Fence>,
    tell: &(dyn Fn(Line) + Sync),
) -> Result<(), Broken> {
    let caller = format!("boot {boot} {resource}");
    let tell = |word| {
        let caller = caller.clone();
        tell(Line { caller, word });
    };
    if let Some(holder) = holder {
        let renew = LeaseOp::Renew {
            holder: principal(&holder),
            epoch: highest,
        };
        match store.transition(resource, renew).await.map_err(stuck)? {
            TransitionOutcome::Renewed => {}
            other => {
                return Err(Rule::Sound.broken(format!(
                    "{resource}: a held lease was not renewed: {other:?}"
                )));
            }
        }
        let revoke = LeaseOp::Revoke {
            operator: principal("operator"),
            epoch: highest,
            hold_off: None,
        };
        tell(Word::Asks(crate::words::Wish::End {
            resource: resource.to_owned(),
        }));
        match store.transition(resource, revoke).await.map_err(stuck)? {
            TransitionOutcome::Revoked => tell(Word::Ended {
                resource: resource.to_owned(),
                epoch: highest,
            }),
            other => {
                return Err(Rule::Sound.broken(format!(
                    "{resource}: a held lease was not revoked: {other:?}"
                )));
            }
        }
    }
    tell(Word::Asks(crate::words::Wish::Acquire {
        resource: resource.to_owned(),
    }));
    let successor = format!("successor in boot {boot}");
    let mut tries = 0;
    let fence = loop {
        let op = acquire(&successor, &format!("{boot} {resource}"));
        tries += 1;
        match store.transition(resource, op).await.map_err(stuck)? {
            TransitionOutcome::Granted(fence) => break fence,
            // Somebody dead was next in the queue, and that costs a claim time: as long as the machine runs,
            // and without sockets on this disk, nobody can tell that it is dead. A reboot tells.
            TransitionOutcome::Denied(DenyReason::HeldByOther, _)
                if resource == QUEUE && boot == 0 && tries < GHOSTS_MAX =>
            {
                tokio::time::sleep(CLAIM_TIME).await;
            }
            other => {
                let denied = format!("{resource}: free, and not granted: {other:?}");
                return Err(Rule::Sound.broken(denied));
            }
        }
    };
    if fence.epoch <= highest {
        return Err(Rule::Epochs.broken(format!(
            "{resource}: epoch {} was granted again; {highest} was told or seen before",
            fence.epoch
        )));
    }
    tell(Word::Granted {
        resource: resource.to_owned(),
        epoch: fence.epoch,
        holder: successor.clone(),
    });
    // A write takes a commit of its own, so not everybody writes.
    if !resource.starts_with("own") {
        return Ok(());
    }
    if let Some(stale) = stale {
        let any = ExpectedRevision::Any;
        let holder = stale.holder.to_string();
        let late = store
            .compare_and_set(&stale, &holder, any, b"late".to_vec())
            .await;
        if !matches!(late, Err(aster_lease::RegisterError::Rejected(_))) {
            return Err(Rule::Epochs.broken(format!(
                "{resource}: a write of epoch {} was answered {late:?}",
                stale.epoch
            )));
        }
    }
    let value = crate::words::Value {
        name: format!("{resource}@{}", fence.epoch),
        padding: 0,
    };
    tell(Word::Asks(crate::words::Wish::Write {
        resource: resource.to_owned(),
        value: value.clone(),
    }));
    let value_revision = store
        .compare_and_set(&fence, &successor, ExpectedRevision::Any, value.bytes())
        .await
        .map_err(stuck)?;
    tell(Word::Wrote {
        resource: resource.to_owned(),
        epoch: fence.epoch,
        value_revision,
        value,
    });
    Ok(())
}

/// Asks to be granted a resource, under the id that `words` pick.
#[must_use]
pub fn acquire(candidate: &str, words: &str) -> LeaseOp {
    LeaseOp::Acquire {
        candidate: principal(candidate),
        ttl: ttl(),
        grant_id: GrantId::from_bytes(id_of(words)),
    }
}

async fn join_all<F: Future<Output = Result<(), Broken>>>(futures: Vec<F>) -> Result<(), Broken> {
    let mut waiting: Vec<_> = futures.into_iter().map(Box::pin).collect();
    std::future::poll_fn(|context| {
        let mut failed = None;
        waiting.retain_mut(|future| match future.as_mut().poll(context) {
            std::task::Poll::Pending => true,
            std::task::Poll::Ready(Ok(())) => false,
            std::task::Poll::Ready(Err(error)) => {
                failed.get_or_insert(error);
                false
            }
        });
        match failed {
            Some(error) => std::task::Poll::Ready(Err(error)),
            None if waiting.is_empty() => std::task::Poll::Ready(Ok(())),
            None => std::task::Poll::Pending,
        }
    })
    .await
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

/// Who asks gets an answer.
fn stuck(error: impl std::fmt::Display) -> Broken {
    Rule::Sound.broken(error)
}
