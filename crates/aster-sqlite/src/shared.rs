//! What all threads of one open store share.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use aster_core::Authority;
use aster_lease::SerializerError;
use rusqlite::{Connection, Transaction, TransactionBehavior};

use crate::connection::{Durability, connect};
use crate::error::storage;
use crate::gate::{Gate, is_inside};
use crate::identity::{FileId, JournalId, JournalPaths, still_names};
use crate::options::SqliteOptions;
use crate::rejections::Rejections;
use crate::schema::{self, SCHEMA_VERSION, StoreRow};
use crate::side::{ClockName, SideError, SideFile};
use crate::suspects::Suspects;
use crate::waiting::Waiting;

/// How many connections for plain reads are kept.
const READING_MAX: usize = 4;

#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) path: PathBuf,
    pub(crate) side_path: PathBuf,
    pub(crate) options: SqliteOptions,
    pub(crate) authority: Authority,
    pub(crate) file: FileId,
    /// Its log, once a connection is open that stays.
    pub(crate) journal: OnceLock<JournalId>,
    pub(crate) journal_paths: JournalPaths,
    pub(crate) clock: ClockName,
    pub(crate) gate: Gate,
    pub(crate) rejections: Rejections,
    pub(crate) suspects: Suspects,
    /// Who of this process waits and watches.
    pub(crate) waiting: Arc<Waiting>,
    /// The highest count of changes that this process saw.
    pub(crate) seen_sequence: AtomicU64,
    /// How long this process's last commit took.
    pub(crate) commit_took_ns: AtomicU64,
    /// Connections for plain reads on callers' threads.
    pub(crate) reading: Mutex<Vec<Connection>>,
    /// The writer thread waits for a lock that others hold.
    pub(crate) blocked: AtomicBool,
    /// A new side file is on order.
    pub(crate) repair_queued: AtomicBool,
}

impl Shared {
    /// Another connection to the file that was opened, and to no other that has taken its name.
    pub(crate) fn connect(&self) -> Result<Connection, SerializerError> {
        self.check_file()?;
        let connection =
            connect(&self.path, &self.options, Durability::Durable).map_err(storage)?;
        self.check_file()?;
        Ok(connection)
    }

    /// Makes sure that the file still has its name and its log.
    pub(crate) fn check_file(&self) -> Result<(), SerializerError> {
        let path = &self.path;
        let message = if !still_names(path, self.file) {
            format!(
                "{path:?} was replaced or removed while it was open: close it and open it again; if \
                 another file is there now, it has to be adopted first"
            )
        } else if self
            .journal
            .get()
            .is_some_and(|opened| self.journal_paths.find() != Some(*opened))
        {
            format!(
                "the log of {path:?} was replaced or removed while it was open, and changes may be \
                 lost with it: stop its users, then adopt it (`aster store adopt`)"
            )
        } else {
            return Ok(());
        };
        Err(SerializerError::Refused { message })
    }

    /// From now on the log has to stay the same. A connection that has read is open, and stays.
    pub(crate) fn keep_journal(&self) {
        if let Some(journal) = self.journal_paths.find() {
            // Set once, at opening.
            let _ = self.journal.set(journal);
        }
    }

    pub(crate) fn now_ns(&self) -> u64 {
        self.options.time.now_ns()
    }

    /// Whether a request would wait for a lock that others hold: then a plain read goes first, so that
    /// whoever is denied anyway does not wait for that.
    pub(crate) fn is_blocked(&self) -> bool {
        self.blocked.load(Ordering::Acquire)
    }

    /// Refuses a request from inside a protected closure, which would wait for itself.
    pub(crate) fn refuse_inside(&self) -> Result<(), SerializerError> {
        if is_inside(self.file) {
            return Err(SerializerError::Reentrant);
        }
        Ok(())
    }

    /// Begins a transaction and makes sure that the file is still the store that was opened. Every
    /// access goes through here.
    pub(crate) fn begin<'c>(
        &self,
        connection: &'c Connection,
        behavior: TransactionBehavior,
    ) -> Result<(Transaction<'c>, StoreRow), SerializerError> {
        self.check_file()?;
        // Read before the transaction begins: a snapshot may be older than what another thread
        // has seen since.
        let seen = self.seen_sequence.load(Ordering::Acquire);
        let transaction = Transaction::new_unchecked(connection, behavior).map_err(storage)?;
        let store = schema::load(&transaction)?;
        self.check(&store, seen)?;
        self.saw(store.sequence);
        Ok((transaction, store))
    }

    /// Runs `step` with a connection that nobody else uses meanwhile.
    pub(crate) fn with_reading_connection<T>(
        &self,
        step: impl FnOnce(&Connection) -> Result<T, SerializerError>,
    ) -> Result<T, SerializerError> {
        let kept = self
            .reading
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .pop();
        let connection = match kept {
            Some(connection) => connection,
            None => self.connect()?,
        };
        let result = step(&connection);
        let mut reading = self.reading.lock().unwrap_or_else(PoisonError::into_inner);
        if reading.len() < READING_MAX {
            reading.push(connection);
        }
        result
    }

    pub(crate) fn saw(&self, sequence: u64) {
        self.seen_sequence.fetch_max(sequence, Ordering::AcqRel);
    }

    fn check(&self, store: &StoreRow, seen: u64) -> Result<(), SerializerError> {
        let message = if store.schema_version != SCHEMA_VERSION {
            format!(
                "schema version {} was put in place while this process had it open: close it and \
                 open it with that version",
                store.schema_version
            )
        } else if store.authority != self.authority {
            "an operator adopted it and gave it a new authority: close it and open it again; every \
             lease from before has ended"
                .to_owned()
        } else if store.sequence < seen {
            format!(
                "it has gone back in time (it is at change {}, change {seen} was seen): stop its \
                 users, then adopt it (`aster store adopt`)",
                store.sequence
            )
        } else {
            return Ok(());
        };
        Err(SerializerError::Refused { message })
    }

    /// The thread's connection to the side file, opened again when the main file means another.
    pub(crate) fn side<'s>(
        &self,
        slot: &'s mut Option<SideFile>,
        store: &StoreRow,
    ) -> Result<&'s mut SideFile, SideError> {
        let serves = slot.as_ref().is_some_and(|side| side.serves(store.side_id));
        if !serves {
            *slot = None;
        }
        match slot {
            Some(side) => Ok(side),
            None => {
                let side =
                    SideFile::open(&self.side_path, &self.options, &self.clock, store.side_id)?;
                Ok(slot.insert(side))
            }
        }
    }
}

/// What a caller hears while the side file is being replaced.
pub(crate) fn side_unavailable() -> SerializerError {
    SerializerError::Unavailable {
        message: "its side file is being replaced; try again".to_owned(),
        source: None,
    }
}
