//! A consistent copy of a store in use, and a store made from such a copy.

use std::io;
use std::path::{Path, PathBuf};

use aster_core::{Authority, Principal};
use rusqlite::{Connection, TransactionBehavior};

use crate::draft::Draft;
use crate::error::{OpenError, open_error};
use crate::identity::{check_place, facts, resolve};
use crate::open::{self, Adopted, as_open_error};
use crate::options::SqliteOptions;
use crate::schema;
use crate::serializer::SqliteSerializer;
use crate::target::{check_apart, check_target};
use crate::untouched;

/// What a backup may do with a file that is there already.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum ExistingBackup {
    /// Leave it, and fail with [`OpenError::Exists`].
    #[default]
    Keep,
    /// Take its place in one step, once the new backup is whole and on the disk. Only a backup that
    /// nobody has made a store of is replaced; anything else is left, and fails with
    /// [`OpenError::NotReplaced`].
    Replace,
}

/// What a store may be restored from.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum RestoreFrom {
    /// A file that [`backup`](SqliteSerializer::backup) has made. Anything else fails with
    /// [`OpenError::NotABackup`].
    #[default]
    Backup,
    /// Any file with a store in it. The caller vouches that it was copied whole: `cp` of a file in use
    /// may mix two states of it, and leaves out what is still in the log.
    AnyCopy,
}

/// How far a copy has come. An estimate until the end: the size is known after the first step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct CopyProgress {
    /// All pages of the file, 0 before the first step.
    pub pages: u64,
    /// Those that were copied.
    pub pages_copied: u64,
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
    /// backup, and what was at `to` is still there. No file of this store is ever replaced.
    pub fn backup(
        &self,
        to: impl AsRef<Path>,
        existing: ExistingBackup,
    ) -> Result<Backup, OpenError> {
        self.backup_while(to, existing, &mut |_| true)
    }

    /// [`backup`](Self::backup) that asks `go_on` again and again, and stops when the answer is `false`.
    ///
    /// # Errors
    ///
    /// As [`backup`](Self::backup), and [`OpenError::Stopped`].
    pub fn backup_while(
        &self,
        to: impl AsRef<Path>,
        existing: ExistingBackup,
        go_on: &mut dyn FnMut(CopyProgress) -> bool,
    ) -> Result<Backup, OpenError> {
        let shared = &*self.inner.shared;
        let failed = |error| as_open_error(&shared.path, error);
        let to = resolve(to.as_ref())?;
        check_apart(&to, &shared.path)?;
        check_target(&to, existing)?;
        let from = shared.connect().map_err(failed)?;
        // Is it still the store that was opened? And this is the moment that is copied.
        let (moment, _) = shared
            .begin(&from, TransactionBehavior::Deferred)
            .map_err(failed)?;
        let draft = Draft::new(&to, &shared.path, &*shared.options.entropy)?;
        let copy = draft.copy(&from, &shared.path, &shared.options, go_on)?;
        drop(moment);
        let store = schema::load(&copy).map_err(failed)?;
        schema::mark_as_backup(&copy).map_err(|error| open_error(&to, error))?;
        drop(copy);
        // Somebody may have put something else there meanwhile.
        check_target(&to, existing)?;
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
        let from = RestoreFrom::Backup;
        Self::restore_while(backup, to, operator, options, from, &mut |_| true)
    }

    /// [`restore`](Self::restore) from whatever `from` allows, that asks `go_on` again and again, and
    /// stops when the answer is `false`.
    ///
    /// # Errors
    ///
    /// As [`restore`](Self::restore), and [`OpenError::Stopped`].
    pub fn restore_while(
        backup: impl AsRef<Path>,
        to: impl AsRef<Path>,
        operator: &Principal,
        options: &SqliteOptions,
        from: RestoreFrom,
        go_on: &mut dyn FnMut(CopyProgress) -> bool,
    ) -> Result<Adopted, OpenError> {
        let (backup, to) = (resolve(backup.as_ref())?, resolve(to.as_ref())?);
        check_place(&to)?;
        check_target(&to, ExistingBackup::Keep)?;
        let restored = restore_resolved(&backup, &to, operator, options, from, go_on);
        restored.map_err(|error| match error {
            OpenError::Damaged { path, message } if path == backup => {
                OpenError::DamagedBackup { path, message }
            }
            error => error,
        })
    }
}

fn restore_resolved(
    backup: &Path,
    to: &Path,
    operator: &Principal,
    options: &SqliteOptions,
    from: RestoreFrom,
    go_on: &mut dyn FnMut(CopyProgress) -> bool,
) -> Result<Adopted, OpenError> {
    let source = Source::open(backup, options, from)?;
    let draft = Draft::new(to, backup, &*options.entropy)?;
    let copy = source.copy(&draft, options, go_on)?;
    check_sound(&copy, backup)?;
    let adopted = open::adopt_copy(&copy, &draft.path, to, operator, options)?;
    drop(copy);
    draft.publish(ExistingBackup::Keep)?;
    Ok(adopted)
}

/// A file that holds a store, for reading alone.
struct Source<'a> {
    path: &'a Path,
    connection: Connection,
    /// Nobody had it open for writing when we came, and no lock of ours would keep them out.
    is_alone: bool,
}

impl<'a> Source<'a> {
    fn open(path: &'a Path, options: &SqliteOptions, from: RestoreFrom) -> Result<Self, OpenError> {
        match facts(path) {
            Ok(facts) if !facts.is_file => {
                return Err(OpenError::NotAFile {
                    path: path.to_owned(),
                });
            }
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(OpenError::NoBackup {
                    path: path.to_owned(),
                });
            }
            Err(source) => {
                return Err(OpenError::Io {
                    path: path.to_owned(),
                    source,
                });
            }
        }
        let is_alone = !untouched::has_log(path);
        let connection = match is_alone {
            true => untouched::connect_alone(path)?,
            false => untouched::connect_among_others(path, options.busy_bound)?,
        };
        open::check_version(&connection, path)?;
        let is_backup = schema::is_backup(&connection).map_err(|error| open_error(path, error))?;
        if from == RestoreFrom::Backup && !(is_backup && is_alone) {
            return Err(OpenError::NotABackup {
                path: path.to_owned(),
            });
        }
        Ok(Self {
            path,
            connection,
            is_alone,
        })
    }

    fn copy(
        &self,
        draft: &Draft,
        options: &SqliteOptions,
        go_on: &mut dyn FnMut(CopyProgress) -> bool,
    ) -> Result<Connection, OpenError> {
        let failed = |error| open_error(self.path, error);
        let moment = self.connection.unchecked_transaction().map_err(failed)?;
        schema::exists(&moment).map_err(failed)?;
        let copy = draft.copy(&self.connection, self.path, options, go_on)?;
        if self.is_alone && untouched::has_log(self.path) {
            return Err(OpenError::Busy {
                path: self.path.to_owned(),
            });
        }
        Ok(copy)
    }
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
