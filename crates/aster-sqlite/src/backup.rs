//! A consistent copy of a store in use, and a store made from such a copy.

use std::fs::Permissions;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use aster_core::{Authority, Principal};
use aster_lease::Entropy;
use rusqlite::backup::StepResult;
use rusqlite::{Connection, OpenFlags, TransactionBehavior};

use crate::connection::wait_for_others;
use crate::error::{OpenError, open_error};
use crate::identity::{beside, check_place, facts, resolve, sync_directory};
use crate::open::{self, Adopted, as_open_error};
use crate::options::SqliteOptions;
use crate::schema;
use crate::serializer::SqliteSerializer;

/// What a backup may do with a file that is there already.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum ExistingBackup {
    /// Leave it, and fail with [`OpenError::Exists`].
    #[default]
    Keep,
    /// Take its place in one step, once the new backup is whole and on the disk.
    Replace,
}

/// A backup that was made.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Backup {
    /// Where it is: absolute, links followed.
    pub path: PathBuf,
    /// The store's authority. A restored store has another one.
    pub authority: Authority,
    /// The store's count of changes that the backup contains.
    pub sequence: u64,
    /// The size of the file, in bytes.
    pub bytes: u64,
}

impl SqliteSerializer {
    /// Copies the whole file, the user's own tables included, to a new file at `to`, while the store
    /// goes on serving. The copy is one consistent state, in which everything is that was acknowledged
    /// before the call. It is durable when the call returns, and until then there is nothing at `to`.
    ///
    /// A backup is for [`restore`](Self::restore). Opened as a store it is refused: its fences may have
    /// ended since.
    ///
    /// Blocks for as long as copying takes; call it from where blocking is allowed. Nobody else waits
    /// for it.
    ///
    /// # Errors
    ///
    /// [`OpenError`] about `to` or about the store, [`OpenError::Exists`] among them; then there is no
    /// backup, and what was at `to` is still there.
    pub fn backup(
        &self,
        to: impl AsRef<Path>,
        existing: ExistingBackup,
    ) -> Result<Backup, OpenError> {
        let shared = &*self.inner.shared;
        let failed = |error| as_open_error(&shared.path, error);
        let to = resolve(to.as_ref())?;
        check_target(&to, existing)?;
        if facts(&to).is_ok_and(|facts| facts.id == shared.file) {
            return Err(OpenError::Exists { path: to });
        }
        let from = shared.connect().map_err(failed)?;
        // Is it still the store that was opened?
        let looked = shared.begin(&from, TransactionBehavior::Deferred);
        looked
            .map_err(failed)?
            .0
            .rollback()
            .map_err(|error| open_error(&shared.path, error))?;
        let draft = Draft::new(&to, &shared.path, &*shared.options.entropy)?;
        let copy = draft.copy(&from, &shared.options)?;
        let store = schema::load(&copy).map_err(failed)?;
        drop(copy);
        let bytes = draft.publish(existing)?;
        Ok(Backup {
            path: to,
            authority: store.authority,
            sequence: store.sequence,
            bytes,
        })
    }

    /// Makes a store at `to` from a backup, with a new authority, as [`adopt`](Self::adopt) does: every
    /// lease of the backup ends, values and audit records stay, and fences of the old store are refused.
    /// `to` must not exist. The backup is only read.
    ///
    /// A restore that fails, or is cut off by a power loss, leaves no store at `to`.
    ///
    /// This is an operator's decision: first make sure that the old store is out of use.
    ///
    /// # Errors
    ///
    /// [`OpenError`] about either file, [`OpenError::Exists`] among them; then nothing is at `to` that
    /// was not there before.
    pub fn restore(
        backup: impl AsRef<Path>,
        to: impl AsRef<Path>,
        operator: &Principal,
    ) -> Result<Adopted, OpenError> {
        Self::restore_with(backup, to, operator, &SqliteOptions::default())
    }

    /// [`restore`](Self::restore) with other options.
    ///
    /// # Errors
    ///
    /// As [`restore`](Self::restore).
    pub fn restore_with(
        backup: impl AsRef<Path>,
        to: impl AsRef<Path>,
        operator: &Principal,
        options: &SqliteOptions,
    ) -> Result<Adopted, OpenError> {
        let (backup, to) = (resolve(backup.as_ref())?, resolve(to.as_ref())?);
        check_place(&to)?;
        check_target(&to, ExistingBackup::Keep)?;
        let from = open_backup(&backup)?;
        let draft = Draft::new(&to, &backup, &*options.entropy)?;
        let copy = draft.copy(&from, options)?;
        check_sound(&copy, &backup)?;
        let adopted = open::adopt_copy(&copy, &draft.path, operator, options)?;
        drop(copy);
        draft.publish(ExistingBackup::Keep)?;
        Ok(adopted)
    }
}

/// Refuses a target that is there, and one beside which another database has left its log: SQLite
/// would play that log into the new file.
fn check_target(to: &Path, existing: ExistingBackup) -> Result<(), OpenError> {
    for suffix in ["-wal", "-shm", "-journal"] {
        let left = beside(to, suffix);
        if std::fs::symlink_metadata(&left).is_ok() {
            return Err(OpenError::Exists { path: left });
        }
    }
    match std::fs::symlink_metadata(to) {
        Ok(there) if !there.is_file() => Err(OpenError::NotAFile {
            path: to.to_owned(),
        }),
        Ok(_) if existing == ExistingBackup::Keep => Err(OpenError::Exists {
            path: to.to_owned(),
        }),
        Ok(_) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(source) => Err(OpenError::Io {
            path: to.to_owned(),
            source,
        }),
    }
}

/// A file that holds a store, for reading alone.
fn open_backup(path: &Path) -> Result<Connection, OpenError> {
    if facts(path).is_err() {
        return Err(OpenError::Missing {
            path: path.to_owned(),
        });
    }
    let error = |error| open_error(path, error);
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags).map_err(error)?;
    if !schema::exists(&connection).map_err(error)? {
        return Err(OpenError::NoStore {
            path: path.to_owned(),
        });
    }
    open::check_version(&connection, path)?;
    Ok(connection)
}

/// A restore is rare, and the one moment at which a bad backup may still be replaced by another.
fn check_sound(copy: &Connection, backup: &Path) -> Result<(), OpenError> {
    let answer: String = copy
        .query_row("PRAGMA quick_check(1)", [], |row| row.get(0))
        .map_err(|error| open_error(backup, error))?;
    if answer == "ok" {
        return Ok(());
    }
    Err(OpenError::Damaged {
        path: backup.to_owned(),
        message: answer,
    })
}

/// A copy that is being made, beside the place that it is for and under a name that nobody asks for.
/// It is removed when it is dropped before it was published.
#[derive(Debug)]
struct Draft {
    path: PathBuf,
    to: PathBuf,
}

impl Draft {
    /// An empty file with the permissions of `like`, and write permission for its owner.
    fn new(to: &Path, like: &Path, entropy: &dyn Entropy) -> Result<Self, OpenError> {
        let mut id = [0; 8];
        entropy.fill(&mut id)?;
        let draft = Self {
            path: beside(to, &format!(".draft-{:016x}", u64::from_le_bytes(id))),
            to: to.to_owned(),
        };
        let made = || {
            let mode = std::fs::metadata(like)?.permissions().mode();
            let file = std::fs::File::create_new(&draft.path)?;
            file.set_permissions(Permissions::from_mode(mode | 0o600))
        };
        made().map_err(|source| draft.io(source))?;
        Ok(draft)
    }

    /// Fills the draft with all of `from` as it is at one moment. The answer is the one connection to it.
    fn copy(&self, from: &Connection, options: &SqliteOptions) -> Result<Connection, OpenError> {
        let error = |error| open_error(&self.path, error);
        let mut copy = self.connect(options).map_err(error)?;
        // Until it is published a draft that was cut off is worth nothing, so it needs no journal.
        copy.pragma_update(None, "journal_mode", "OFF")
            .map_err(error)?;
        copy.pragma_update(None, "synchronous", "OFF")
            .map_err(error)?;
        {
            let all = rusqlite::backup::Backup::new(from, &mut copy).map_err(error)?;
            // One step is one moment of the source. Writers do not wait for it, nor it for them.
            match all.step(-1).map_err(error)? {
                StepResult::Done => {}
                _ => {
                    return Err(OpenError::Busy {
                        path: self.path.clone(),
                    });
                }
            }
        }
        drop(copy);
        // It says that it has a log, as the source has. Without one it is complete in itself, and can
        // be read where nothing can be written.
        let copy = self.connect(options).map_err(error)?;
        copy.pragma_update(None, "journal_mode", "DELETE")
            .map_err(error)?;
        copy.pragma_update(None, "synchronous", "FULL")
            .map_err(error)?;
        Ok(copy)
    }

    fn connect(&self, options: &SqliteOptions) -> rusqlite::Result<Connection> {
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let mut connection = Connection::open_with_flags(&self.path, flags)?;
        wait_for_others(&mut connection, options.busy_bound)?;
        Ok(connection)
    }

    /// Makes the draft durable, and only then gives it its name, durably too. Answers its size. No
    /// connection to it may be open.
    fn publish(self, existing: ExistingBackup) -> Result<u64, OpenError> {
        let io = |source| self.io(source);
        let file = std::fs::File::open(&self.path).map_err(io)?;
        file.sync_all().map_err(io)?;
        let bytes = file.metadata().map_err(io)?.len();
        match existing {
            ExistingBackup::Replace => std::fs::rename(&self.path, &self.to).map_err(io)?,
            ExistingBackup::Keep => match rename_to_free_name(&self.path, &self.to) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                    return Err(OpenError::Exists {
                        path: self.to.clone(),
                    });
                }
                renamed => renamed.map_err(io)?,
            },
        }
        sync_directory(&self.to).map_err(io)?;
        Ok(bytes)
    }

    fn io(&self, source: io::Error) -> OpenError {
        OpenError::Io {
            path: self.to.clone(),
            source,
        }
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        for suffix in ["", "-wal", "-shm", "-journal"] {
            // After it was published there is nothing under this name.
            let _ = std::fs::remove_file(beside(&self.path, suffix));
        }
    }
}

/// In one step, so that two who come together do not overwrite each other.
#[cfg(target_os = "linux")]
fn rename_to_free_name(from: &Path, to: &Path) -> io::Result<()> {
    use rustix::fs::{CWD, RenameFlags, renameat_with};
    match renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE) {
        // Some file systems do not know this.
        Err(rustix::io::Errno::INVAL | rustix::io::Errno::NOSYS) => link_to_free_name(from, to),
        renamed => Ok(renamed?),
    }
}

#[cfg(not(target_os = "linux"))]
fn rename_to_free_name(from: &Path, to: &Path) -> io::Result<()> {
    link_to_free_name(from, to)
}

/// The same where it takes two steps: between them the file has two names, and no store opens that.
fn link_to_free_name(from: &Path, to: &Path) -> io::Result<()> {
    std::fs::hard_link(from, to)?;
    std::fs::remove_file(from)
}
