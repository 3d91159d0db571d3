//! The ways to keep the data. They differ in the check alone.
//!
//! Fenced, the register is the store's own and the user's tables are written inside
//! [`SqliteSerializer::mutate_fenced`]. Unfenced, both are tables of the user's that are written by the
//! same statements without a fence: what an ordinary lock around ordinary writes amounts to. To check
//! the row before such a write helps nothing: the write is on its way for as long as it is.

use std::path::Path;
use std::time::Duration;

use aster_lease::{
    ErrorKind, ExpectedRevision, Fence, FenceRejection, FencedError, LeaseSerializer as _,
    RegisterError, Registers as _, SerializerError, SystemEntropy, entropy,
};
use aster_sqlite::SqliteSerializer;
use aster_sqlite::rusqlite::{
    self, Connection, OptionalExtension as _, Transaction, TransactionBehavior, params,
};
use serde::{Deserialize, Serialize};

use crate::history::{Answer, Entry, Found, Mark, Value};

/// How long a plain connection waits for others. A process that is stopped while it writes keeps them
/// waiting for as long as it stands still.
const BUSY_WAIT: Duration = Duration::from_secs(15);
/// How often a register write is sent when it had no answer.
const WRITE_ATTEMPTS_MAX: u32 = 3;

const TABLES: &str = "
    CREATE TABLE counters (resource TEXT PRIMARY KEY, count INTEGER NOT NULL, mark TEXT NOT NULL);
    CREATE TABLE entries (
        resource TEXT NOT NULL, position INTEGER NOT NULL, mark TEXT NOT NULL, epoch INTEGER NOT NULL,
        PRIMARY KEY (resource, position)
    );
    CREATE TABLE registers (
        resource TEXT PRIMARY KEY, value TEXT NOT NULL, revision INTEGER NOT NULL, epoch INTEGER NOT NULL
    );
";

/// Makes the user's tables in the file at `database`, before anybody works.
///
/// # Errors
///
/// [`rusqlite::Error`] if the file cannot be written.
pub fn create_tables(database: &Path) -> rusqlite::Result<()> {
    Connection::open(database)?.execute_batch(TABLES)
}

/// When the fence is compared with the row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Check {
    /// In the operation that writes, as the specification demands ("Enforce at the write boundary").
    Within,
    /// Before the write is sent.
    Before,
    /// Never. The holder's own belief has to do.
    Never,
}

/// The data, as one process reaches it.
#[derive(Debug)]
pub struct Storage {
    store: SqliteSerializer,
    plain: Connection,
    check: Check,
}

impl Storage {
    /// Reaches the data in the file that `store` has open.
    ///
    /// # Errors
    ///
    /// [`rusqlite::Error`] if the file cannot be opened.
    pub fn open(store: SqliteSerializer, check: Check) -> rusqlite::Result<Self> {
        let plain = Connection::open(store.path())?;
        plain.busy_timeout(BUSY_WAIT)?;
        Ok(Self {
            store,
            plain,
            check,
        })
    }

    /// Whether a write checks its fence itself.
    #[must_use]
    pub fn is_fenced(&self) -> bool {
        self.check == Check::Within
    }

    /// What a write that is about to be sent finds if the row is checked now; a check within the write
    /// comes later.
    pub async fn may_send(&self, fence: &Fence) -> bool {
        if self.check != Check::Before {
            return true;
        }
        let row = self.store.snapshot(&fence.resource).await;
        row.is_ok_and(|row| row.held && row.epoch == fence.epoch)
    }

    /// The register. Anybody may read it.
    pub async fn read(&self, resource: &str) -> Answer {
        if !self.is_fenced() {
            return told(read_plain_register(&self.plain, resource).map(Answer::Read));
        }
        match self.store.read(resource).await {
            Ok(None) => Answer::Read(None),
            Ok(Some(held)) => match serde_json::from_slice(&held.value) {
                Ok(value) => Answer::Read(Some(Found {
                    value,
                    revision: held.value_revision,
                    epoch: held.epoch,
                })),
                Err(error) => Answer::Unexpected {
                    message: format!("the register holds what nobody wrote: {error}"),
                },
            },
            Err(error) => failed(&error),
        }
    }

    /// Writes the register, whatever is there. A lost answer is asked for again under one write id.
    pub async fn write(&self, fence: &Fence, writer: &str, value: Value) -> Answer {
        let text = match serde_json::to_vec(&value) {
            Ok(text) => text,
            Err(error) => return unexpected(&error),
        };
        if !self.is_fenced() {
            return told(write_plain_register(&self.plain, fence, &text));
        }
        let write_id = match entropy::write_id(&SystemEntropy) {
            Ok(write_id) => write_id,
            Err(error) => return unexpected(&error),
        };
        let mut unanswered = None;
        for _ in 0..WRITE_ATTEMPTS_MAX {
            let expected = ExpectedRevision::Any;
            let written = self
                .store
                .compare_and_set_with_id(fence, writer, expected, text.clone(), write_id)
                .await;
            match written {
                Ok(revision) => return Answer::Written { revision },
                // The attempt before may have been carried out.
                Err(RegisterError::Rejected(_)) if unanswered.is_some() => break,
                Err(RegisterError::Rejected(rejection)) => return refused(&rejection),
                Err(error) if error.kind() == ErrorKind::Retry => {
                    unanswered = Some(error.to_string());
                }
                Err(error) => return unexpected(&error),
            }
        }
        Answer::Unknown {
            message: unanswered.unwrap_or_default(),
        }
    }

    /// The user's counter.
    pub fn count(&self, resource: &str) -> Answer {
        told(
            read_counter(&self.plain, resource).map(|counter| match counter {
                None => Answer::Counted {
                    count: 0,
                    mark: None,
                },
                Some((count, mark)) => Answer::Counted {
                    count,
                    mark: Some(mark),
                },
            }),
        )
    }

    /// The user's whole list.
    pub fn list(&self, resource: &str) -> Answer {
        told(read_list(&self.plain, resource).map(Answer::Listed))
    }

    /// Sets the user's counter to `position` and puts `mark` there in the user's list, whatever is
    /// there, in one transaction. A fenced one runs where blocking is allowed, so that the lease is
    /// renewed meanwhile.
    pub async fn append(
        &mut self,
        fence: &Fence,
        writer: &str,
        position: u64,
        mark: Mark,
    ) -> Answer {
        let entry = Entry {
            position,
            mark,
            epoch: fence.epoch,
        };
        if !self.is_fenced() {
            return told(append_plain(&mut self.plain, &fence.resource, entry));
        }
        let (store, fence, writer) = (self.store.clone(), fence.clone(), writer.to_owned());
        let appended = tokio::task::spawn_blocking(move || {
            store.mutate_fenced(&fence, &writer, |tx| append(tx, &fence.resource, entry))
        });
        let appended = match appended.await {
            Ok(appended) => appended,
            Err(panicked) => return unexpected(&panicked),
        };
        match appended {
            Ok(before) => Answer::Appended { before },
            Err(FencedError::Rejected(rejection)) => refused(&rejection),
            Err(FencedError::Store(error)) if error.kind() == ErrorKind::Retry => Answer::Undone {
                message: error.to_string(),
            },
            Err(error) => unexpected(&error),
        }
    }
}

/// What a rejection is to the history. Only a moved epoch may be the reason in these runs.
pub(crate) fn refused(rejection: &FenceRejection) -> Answer {
    match *rejection {
        FenceRejection::StaleEpoch { carried, current } => Answer::Stale { carried, current },
        _ => unexpected(rejection),
    }
}

/// What a serializer's error is to the history.
pub(crate) fn failed(error: &SerializerError) -> Answer {
    match error.kind() {
        ErrorKind::Retry => Answer::Unknown {
            message: error.to_string(),
        },
        _ => unexpected(error),
    }
}

pub(crate) fn unexpected(error: &dyn std::error::Error) -> Answer {
    let mut message = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        message.push_str(&format!(": {error}"));
        cause = error.source();
    }
    Answer::Unexpected { message }
}

/// Plain SQL may find the file busy; anything else is not expected.
fn told(answer: rusqlite::Result<Answer>) -> Answer {
    answer.unwrap_or_else(|error| match error.sqlite_error_code() {
        Some(rusqlite::ErrorCode::DatabaseBusy) => Answer::Unknown {
            message: error.to_string(),
        },
        _ => unexpected(&error),
    })
}

fn append(tx: &Transaction<'_>, resource: &str, entry: Entry) -> rusqlite::Result<u64> {
    let before = read_counter(tx, resource)?.map_or(0, |(count, _)| count);
    let mark = entry.mark.to_string();
    tx.prepare_cached("INSERT OR REPLACE INTO counters VALUES (?1, ?2, ?3)")?
        .execute(params![resource, signed(entry.position), mark])?;
    tx.prepare_cached("INSERT OR REPLACE INTO entries VALUES (?1, ?2, ?3, ?4)")?
        .execute(params![
            resource,
            signed(entry.position),
            mark,
            signed(entry.epoch)
        ])?;
    Ok(before)
}

fn append_plain(plain: &mut Connection, resource: &str, entry: Entry) -> rusqlite::Result<Answer> {
    let tx = plain.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let before = append(&tx, resource, entry)?;
    tx.commit()?;
    Ok(Answer::Appended { before })
}

fn write_plain_register(
    plain: &Connection,
    fence: &Fence,
    value: &[u8],
) -> rusqlite::Result<Answer> {
    let revision = plain
        .prepare_cached(
            "INSERT INTO registers VALUES (?1, ?2, 1, ?3) ON CONFLICT (resource)
             DO UPDATE SET value = ?2, revision = revision + 1, epoch = ?3 RETURNING revision",
        )?
        .query_row(
            params![
                fence.resource.as_str(),
                String::from_utf8_lossy(value),
                signed(fence.epoch)
            ],
            |row| row.get::<_, i64>(0),
        )?;
    Ok(Answer::Written {
        revision: unsigned(revision),
    })
}

fn read_plain_register(plain: &Connection, resource: &str) -> rusqlite::Result<Option<Found>> {
    let row = plain
        .prepare_cached("SELECT value, revision, epoch FROM registers WHERE resource = ?1")?
        .query_row([resource], |row| {
            let value: String = row.get(0)?;
            let (revision, epoch) = (unsigned(row.get(1)?), unsigned(row.get(2)?));
            Ok((value, revision, epoch))
        })
        .optional()?;
    row.map(|(text, revision, epoch)| {
        let value = serde_json::from_str(&text).map_err(|error| of_text(0, error))?;
        Ok(Found {
            value,
            revision,
            epoch,
        })
    })
    .transpose()
}

fn read_counter(connection: &Connection, resource: &str) -> rusqlite::Result<Option<(u64, Mark)>> {
    connection
        .prepare_cached("SELECT count, mark FROM counters WHERE resource = ?1")?
        .query_row([resource], |row| {
            Ok((unsigned(row.get(0)?), mark_in(row, 1)?))
        })
        .optional()
}

fn read_list(connection: &Connection, resource: &str) -> rusqlite::Result<Vec<Entry>> {
    connection
        .prepare_cached(
            "SELECT position, mark, epoch FROM entries WHERE resource = ?1 ORDER BY position",
        )?
        .query_map([resource], |row| {
            Ok(Entry {
                position: unsigned(row.get(0)?),
                mark: mark_in(row, 1)?,
                epoch: unsigned(row.get(2)?),
            })
        })?
        .collect()
}

fn mark_in(row: &rusqlite::Row<'_>, column: usize) -> rusqlite::Result<Mark> {
    let text: String = row.get(column)?;
    text.parse().map_err(|error| of_text(column, error))
}

fn of_text<E: std::error::Error + Send + Sync + 'static>(
    column: usize,
    error: E,
) -> rusqlite::Error {
    rusqlite::Error::FromSqlConversionFailure(column, rusqlite::types::Type::Text, Box::new(error))
}

/// Epochs and revisions end at 2^63 - 1.
fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

fn unsigned(number: i64) -> u64 {
    u64::try_from(number).unwrap_or(0)
}
