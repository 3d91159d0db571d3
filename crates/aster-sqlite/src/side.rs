//! The side file `<path>-aster`: what need not survive a power loss. It is a SQLite database of its
//! own without fsync, so that a renewal costs no disk write and waits for no writer of the main file.
//!
//! It holds the newest renewal of each lease, what was watched of rows with foreign clocks, who waits
//! in queues, and a witness of the main file's count of changes, by which a restored file is noticed.
//! Losing it costs at most that every held row lasts one more ttl, and that whoever waits asks again.

use std::path::{Path, PathBuf};

use aster_core::Authority;
use aster_lease::SerializerError;
use rusqlite::{Connection, OptionalExtension, Transaction, TransactionBehavior, params};

use crate::connection::{Durability, connect};
use crate::error::{Fault, fault, is_full, storage};
use crate::identity::{FileId, JournalId, JournalPaths, beside, facts, still_names};
use crate::options::SqliteOptions;
use crate::schema::{Id, count, signed};
use crate::side_tables::{PrivateWatches, SideTransaction};
use crate::waiters;

/// How many clocks a side file remembers. An older one that is still in use is watched again.
const ERAS_MAX: i64 = 64;

const TABLES: &str = "
CREATE TABLE side (
    one INTEGER PRIMARY KEY CHECK (one = 1),
    id BLOB NOT NULL,
    authority BLOB NOT NULL,
    sequence INTEGER NOT NULL
) STRICT;
CREATE TABLE eras (
    made INTEGER PRIMARY KEY AUTOINCREMENT,
    domain TEXT NOT NULL UNIQUE,
    era BLOB NOT NULL,
    armed INTEGER NOT NULL
) STRICT;
CREATE TABLE renewals (
    resource TEXT PRIMARY KEY,
    epoch INTEGER NOT NULL,
    revision INTEGER NOT NULL,
    era BLOB NOT NULL,
    since_ns INTEGER NOT NULL,
    expired INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE TABLE watches (
    resource TEXT NOT NULL,
    era BLOB NOT NULL,
    hold_off INTEGER NOT NULL,
    epoch INTEGER NOT NULL,
    revision INTEGER NOT NULL,
    since_ns INTEGER NOT NULL,
    PRIMARY KEY (resource, era, hold_off)
) STRICT, WITHOUT ROWID;
";

/// The tables, with their columns that hold text, counts and ids.
const COLUMNS: [(&str, &str, &str, &str); 6] = [
    ("side", "", "sequence", "id authority"),
    ("eras", "domain", "made armed", "era"),
    (
        "renewals",
        "resource",
        "epoch revision since_ns expired",
        "era",
    ),
    (
        "watches",
        "resource",
        "hold_off epoch revision since_ns",
        "era",
    ),
    (
        "waiters",
        "resource candidate",
        "ticket ttl_ms since_ns until_ns",
        "grant_id process era",
    ),
    ("claims", "resource", "since_ns duration_ns", "grant_id era"),
];

/// Which clock this process reads, as far as it can be named.
#[derive(Debug, Clone)]
pub(crate) enum ClockName {
    /// Others with the same name read the same clock.
    Shared(String),
    /// Nobody shares it, so what is watched by it stays in memory.
    Private { seed: Id, watches: PrivateWatches },
}

/// Why the side file did not serve.
#[derive(Debug)]
pub(crate) enum SideError {
    /// It is missing, damaged or belongs to another store: make a new one under the main lock.
    NeedsRepair,
    Store(SerializerError),
}

impl From<SerializerError> for SideError {
    fn from(error: SerializerError) -> Self {
        SideError::Store(error)
    }
}

impl From<rusqlite::Error> for SideError {
    fn from(error: rusqlite::Error) -> Self {
        match fault(&error) {
            Fault::Busy | Fault::Full => SideError::Store(storage(error)),
            // Moved, cut, half made, damaged: whether it must go is looked at under the main lock.
            _ => SideError::NeedsRepair,
        }
    }
}

/// Whether a transaction changed anything.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    Commit,
    Rollback,
}

/// How far the main file had come when it was last seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Witness {
    pub(crate) authority: Authority,
    pub(crate) sequence: u64,
}

/// One connection to the side file.
#[derive(Debug)]
pub(crate) struct SideFile {
    connection: Connection,
    pub(crate) id: Id,
    /// Our clock's name in it.
    pub(crate) era: Id,
    /// Which boot our clock belongs to, if it has a name.
    boot: Option<String>,
    private: Option<PrivateWatches>,
    path: PathBuf,
    file: FileId,
    journal: JournalId,
    journal_paths: JournalPaths,
}

/// `<path>-aster`, beside the main file.
pub(crate) fn path_of(main: &Path) -> PathBuf {
    beside(main, "-aster")
}

/// What the present side file says of the main file, if there is one that can be read.
pub(crate) fn witness(path: &Path, options: &SqliteOptions) -> Option<Witness> {
    facts(path).ok()?;
    let connection = connect(path, options, Durability::Volatile).ok()?;
    connection
        .query_row(
            "SELECT authority, sequence FROM side WHERE one = 1",
            [],
            |row| {
                Ok(Witness {
                    authority: Authority::from_bytes(row.get(0)?),
                    sequence: count(row, 1)?,
                })
            },
        )
        .ok()
}

/// Makes a new, empty side file in place of whatever is there. The caller holds the main write lock,
/// so that no two processes do it at once.
pub(crate) fn create(
    main: &Path,
    options: &SqliteOptions,
    id: Id,
    witness: Witness,
) -> Result<(), SerializerError> {
    let path = &path_of(main);
    for suffix in ["", "-wal", "-shm"] {
        let name = beside(path, suffix);
        match std::fs::remove_file(&name) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(SerializerError::Storage {
                    message: format!("cannot replace {name:?}: check its permissions ({error})"),
                    source: Some(Box::new(error)),
                });
            }
            _ => {}
        }
    }
    make_like(main, path).map_err(|error| SerializerError::Storage {
        message: format!("cannot make {path:?}: check the directory ({error})"),
        source: Some(Box::new(error)),
    })?;
    fill(path, options, id, witness).map_err(|error| match fault(&error) {
        Fault::Busy | Fault::Full | Fault::ReadOnly => storage(error),
        _ => SerializerError::Unavailable {
            message: format!(
                "its side file {path:?} cannot be made; check the directory ({error})"
            ),
            source: Some(Box::new(error)),
        },
    })
}

/// An empty file that the same users may write as the main file; SQLite gives its journals the same.
fn make_like(main: &Path, path: &Path) -> std::io::Result<()> {
    std::fs::File::create_new(path)?;
    make_alike(main, path)
}

/// Gives `path` the mode of the main file, and its owners.
pub(crate) fn make_alike(main: &Path, path: &Path) -> std::io::Result<()> {
    use std::os::unix::fs::{MetadataExt, chown};

    let like = std::fs::metadata(main)?;
    std::fs::set_permissions(path, like.permissions())?;
    // As far as we may: root can, and a member of the group can give it the group.
    let _ = chown(path, None, Some(like.gid()));
    let _ = chown(path, Some(like.uid()), None);
    Ok(())
}

fn fill(path: &Path, options: &SqliteOptions, id: Id, witness: Witness) -> rusqlite::Result<()> {
    let mut connection = connect(path, options, Durability::Volatile)?;
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    transaction.execute_batch(TABLES)?;
    transaction.execute_batch(waiters::TABLES)?;
    transaction.execute(
        "INSERT INTO side (one, id, authority, sequence) VALUES (1, ?1, ?2, ?3)",
        params![id, witness.authority.as_bytes(), signed(witness.sequence)],
    )?;
    transaction.commit()
}

impl SideFile {
    /// Opens the side file that belongs to the main file, which names it by `id`.
    pub(crate) fn open(
        path: &Path,
        options: &SqliteOptions,
        clock: &ClockName,
        id: Id,
    ) -> Result<Self, SideError> {
        let before = facts(path).map_err(|_| SideError::NeedsRepair)?.id;
        let connection = connect(path, options, Durability::Volatile)?;
        if connection.is_readonly("main")? {
            return Err(SideError::NeedsRepair);
        }
        let found: Option<Id> = connection
            .query_row("SELECT id FROM side WHERE one = 1", [], |row| row.get(0))
            .optional()?;
        let journal_paths = JournalPaths::of(path);
        let journal = journal_paths.find().ok_or(SideError::NeedsRepair)?;
        if found != Some(id) || !still_names(path, before) {
            return Err(SideError::NeedsRepair);
        }
        waiters::make_tables(&connection)?;
        let (era, private) = match clock {
            // With a side file the newest renewals are lost, so an era ends with its side file:
            // otherwise a row would be judged by its grant alone.
            ClockName::Private { seed, watches } => (mix(*seed, id), Some(watches.clone())),
            ClockName::Shared(_) => ([0; 16], None),
        };
        let boot = match clock {
            ClockName::Shared(domain) => Some(boot_of(domain).to_owned()),
            ClockName::Private { .. } => None,
        };
        let mut side = Self {
            connection,
            id,
            era,
            boot,
            private,
            path: path.to_owned(),
            file: before,
            journal,
            journal_paths,
        };
        if let ClockName::Shared(domain) = clock {
            side.era = match side.find_era(domain)? {
                Some((era, _)) => era,
                None => {
                    let mut era = [0; 16];
                    options
                        .entropy
                        .fill(&mut era)
                        .map_err(SerializerError::from)?;
                    side.add_era(domain, era)?
                }
            };
        }
        Ok(side)
    }

    /// Whether this is still the file that the main file means.
    pub(crate) fn serves(&self, id: Id) -> bool {
        self.id == id
            && still_names(&self.path, self.file)
            && self.journal_paths.find() == Some(self.journal)
    }

    /// Runs `step` under the side file's write lock. It may run twice: a full disk is tried again
    /// once after the journal was folded back.
    pub(crate) fn write<T>(
        &mut self,
        mut step: impl FnMut(&SideTransaction<'_>) -> Result<(T, End), SideError>,
    ) -> Result<T, SideError> {
        match self.write_once(&mut step) {
            Err(SideError::Store(error)) if is_full(&error) => {
                self.fold_journal();
                self.write_once(&mut step)
            }
            other => other,
        }
    }

    /// Folds the journal back, which gives its room back to the disk.
    pub(crate) fn fold_journal(&self) {
        // Its result does not matter: whoever needs the room tries again and sees.
        let _ = self
            .connection
            .query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()));
    }

    /// Runs `step` under the side file's write lock, once.
    pub(crate) fn write_once<T>(
        &self,
        step: impl FnOnce(&SideTransaction<'_>) -> Result<(T, End), SideError>,
    ) -> Result<T, SideError> {
        let transaction =
            Transaction::new_unchecked(&self.connection, TransactionBehavior::Immediate)?;
        let (value, end) = step(&SideTransaction {
            connection: &transaction,
            era: self.era,
            boot: self.boot.as_deref(),
            private: self.private.as_ref(),
        })?;
        match end {
            End::Commit => transaction.commit()?,
            End::Rollback => transaction.rollback()?,
        }
        Ok(value)
    }

    /// Runs `step` on one consistent state, without any lock.
    pub(crate) fn read<T>(
        &self,
        step: impl FnOnce(&SideTransaction<'_>) -> Result<T, SideError>,
    ) -> Result<T, SideError> {
        let transaction =
            Transaction::new_unchecked(&self.connection, TransactionBehavior::Deferred)?;
        let value = step(&SideTransaction {
            connection: &transaction,
            era: self.era,
            boot: self.boot.as_deref(),
            private: self.private.as_ref(),
        })?;
        transaction.rollback()?;
        Ok(value)
    }

    /// The era of a clock and whether the rows of other clocks have been watched since it began.
    pub(crate) fn find_era(&self, domain: &str) -> Result<Option<(Id, bool)>, SideError> {
        Ok(self
            .connection
            .query_row(
                "SELECT era, armed FROM eras WHERE domain = ?1",
                [domain],
                |row| Ok((row.get(0)?, row.get(1)?)),
            )
            .optional()?)
    }

    /// Whether a clock of the same boot has been here: then no power was lost since, and no renewal.
    pub(crate) fn knows_boot_of(&self, domain: &str) -> Result<bool, SideError> {
        let mut select = self.connection.prepare("SELECT domain FROM eras")?;
        let mut known = select.query([])?;
        while let Some(row) = known.next()? {
            let known: String = row.get(0)?;
            if boot_of(&known) == boot_of(domain) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Gives a clock its era, unless somebody else just did.
    fn add_era(&self, domain: &str, era: Id) -> Result<Id, SideError> {
        self.write_once(|side| {
            side.connection.execute(
                "INSERT OR IGNORE INTO eras (domain, era, armed) VALUES (?1, ?2, 0)",
                params![domain, era],
            )?;
            side.connection.execute(
                "DELETE FROM eras WHERE made <= (SELECT max(made) FROM eras) - ?1",
                [ERAS_MAX],
            )?;
            side.connection.execute(
                "DELETE FROM watches WHERE era NOT IN (SELECT era FROM eras)",
                [],
            )?;
            let era = side.connection.query_row(
                "SELECT era FROM eras WHERE domain = ?1",
                [domain],
                |row| row.get(0),
            )?;
            Ok((era, End::Commit))
        })
    }

    /// Looks for damage that a lost page cache left behind, for tables that are not ours, and for values
    /// that we would never have written: whoever meets one asks for a new side file.
    pub(crate) fn is_sound(&self) -> bool {
        let is_sound = |(table, texts, counts, ids): &(&str, &str, &str, &str)| {
            let texts = each(texts, |column| format!("typeof({column}) <> 'text'"));
            let counts = each(counts, |column| {
                format!("typeof({column}) <> 'integer' OR {column} < 0")
            });
            let ids = each(ids, |column| {
                let bytes = if column == "process" { 8 } else { 16 };
                format!("typeof({column}) <> 'blob' OR length({column}) <> {bytes}")
            });
            let wrong = texts.chain(counts).chain(ids).collect::<Vec<_>>();
            let wrong = wrong.join(" OR ");
            self.connection
                .prepare(&format!("SELECT 1 FROM {table} WHERE {wrong}"))
                .is_ok_and(|mut select| select.exists([]).is_ok_and(|is_wrong| !is_wrong))
        };
        COLUMNS.iter().all(is_sound)
            && self
                .connection
                .query_row("PRAGMA integrity_check(1)", [], |row| {
                    row.get::<_, String>(0)
                })
                .is_ok_and(|answer| answer == "ok")
            && self.can_be_written()
    }

    /// Whether a row can be put into the tables that number theirs: what SQLite numbers them by is looked at
    /// by no check. Nothing stays of it.
    fn can_be_written(&self) -> bool {
        let probe = || {
            let transaction =
                Transaction::new_unchecked(&self.connection, TransactionBehavior::Immediate)?;
            transaction.execute_batch(
                "INSERT INTO eras (domain, era, armed) VALUES ('', zeroblob(16), 0);
                 INSERT INTO waiters
                     (resource, candidate, ttl_ms, grant_id, process, era, since_ns, until_ns)
                     VALUES ('', '', 1, zeroblob(16), zeroblob(8), zeroblob(16), 0, 0);",
            )?;
            transaction.rollback()
        };
        match probe() {
            Ok(()) => true,
            Err(error) => matches!(fault(&error), Fault::Busy | Fault::Full | Fault::ReadOnly),
        }
    }
}

/// What `step` makes of each of these words.
fn each(words: &str, step: impl Fn(&str) -> String) -> impl Iterator<Item = String> {
    words.split_ascii_whitespace().map(step)
}

/// A clock's name begins with its boot.
pub(crate) fn boot_of(domain: &str) -> &str {
    domain.split_once('/').map_or(domain, |(boot, _)| boot)
}

/// An id that is as random as both and belongs to both.
fn mix(seed: Id, id: Id) -> Id {
    std::array::from_fn(|index| seed[index] ^ id[index])
}
