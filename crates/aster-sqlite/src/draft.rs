//! A copy that is being made: beside the place that it is for, under a name that nobody asks for, and
//! locked, so that what a dead process has left is told from what is being written.

use std::fs::{File, Permissions, TryLockError};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use aster_lease::Entropy;
use rusqlite::backup::{Backup, StepResult};
use rusqlite::{Connection, OpenFlags};

use crate::backup::{CopyProgress, ExistingBackup};
use crate::connection::wait_for_others;
use crate::error::{OpenError, open_error};
use crate::file_system::network_file_system;
use crate::identity::{beside, sync_directory};
use crate::options::SqliteOptions;

/// How many pages are copied before it is asked again whether to go on: 4 MiB of a usual file.
const PAGES_PER_STEP: i32 = 1024;
/// A new name is taken by somebody else, or its file swept before it was locked, at most so often.
const NAMES_MAX: u32 = 8;
const INFIX: &[u8] = b".draft-";
const ID_DIGITS: usize = 16;

/// It is removed when it is dropped before it was published, and by the next copy to the same place
/// when its process was killed.
#[derive(Debug)]
pub(crate) struct Draft {
    pub(crate) path: PathBuf,
    to: PathBuf,
    /// Holds the lock. Nobody else uses the file, so closing it harms no lock of SQLite's.
    file: File,
}

impl Draft {
    /// An empty file with the permissions of `like`, and write permission for its owner.
    pub(crate) fn new(to: &Path, like: &Path, entropy: &dyn Entropy) -> Result<Self, OpenError> {
        let io = |source| OpenError::Io {
            path: to.to_owned(),
            source,
        };
        // There, a lock on the file would get into the way of SQLite's own.
        let can_lock = network_file_system(to.parent().unwrap_or(Path::new("/")))
            .map_err(io)?
            .is_none();
        if can_lock {
            sweep(to);
        }
        let mode = std::fs::metadata(like).map_err(io)?.permissions().mode();
        for _ in 0..NAMES_MAX {
            let mut id = [0; 8];
            entropy.fill(&mut id)?;
            let path = beside(to, &format!(".draft-{:016x}", u64::from_le_bytes(id)));
            let file = match File::create_new(&path) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => continue,
                made => made.map_err(io)?,
            };
            let draft = Self {
                path,
                to: to.to_owned(),
                file,
            };
            // Whoever sweeps may have come in between. Where nobody can lock, nobody sweeps.
            let is_swept =
                can_lock && matches!(draft.file.try_lock(), Err(TryLockError::WouldBlock));
            if is_swept || !names(&draft.path, &draft.file) {
                continue;
            }
            let permissions = Permissions::from_mode(mode | 0o600);
            draft.file.set_permissions(permissions).map_err(io)?;
            return Ok(draft);
        }
        Err(OpenError::Busy {
            path: to.to_owned(),
        })
    }

    /// Fills the draft with all of `from`, the file at `source`, as it is at the one moment that the
    /// transaction open on it sees. The answer is the one connection to the draft.
    pub(crate) fn copy(
        &self,
        from: &Connection,
        source: &Path,
        options: &SqliteOptions,
        go_on: &mut dyn FnMut(CopyProgress) -> bool,
    ) -> Result<Connection, OpenError> {
        let error = |error| match open_error(&self.to, error) {
            // The draft is new.
            OpenError::Damaged { message, .. } => OpenError::Damaged {
                path: source.to_owned(),
                message,
            },
            error => error,
        };
        let mut copy = self.connect(options).map_err(error)?;
        // Until it is published a draft that was cut off is worth nothing, so it needs no journal.
        copy.pragma_update(None, "journal_mode", "OFF")
            .map_err(error)?;
        copy.pragma_update(None, "synchronous", "OFF")
            .map_err(error)?;
        {
            let all = Backup::new(from, &mut copy).map_err(error)?;
            // Writers do not wait for it, nor it for them: it reads what its transaction sees. So no
            // step has to begin again, and each one comes nearer to the end.
            loop {
                let progress = all.progress();
                self.ask(go_on, progress.pagecount, progress.remaining)?;
                match all.step(PAGES_PER_STEP).map_err(error)? {
                    StepResult::Done => break,
                    StepResult::More => {}
                    _ => {
                        return Err(OpenError::Busy {
                            path: source.to_owned(),
                        });
                    }
                }
            }
            let progress = all.progress();
            self.ask(go_on, progress.pagecount, 0)?;
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

    fn ask(
        &self,
        go_on: &mut dyn FnMut(CopyProgress) -> bool,
        all: i32,
        left: i32,
    ) -> Result<(), OpenError> {
        let count = |pages: i32| u64::try_from(pages).unwrap_or(0);
        let progress = CopyProgress {
            pages: count(all),
            pages_copied: count(all.saturating_sub(left)),
        };
        if go_on(progress) {
            return Ok(());
        }
        Err(OpenError::Stopped {
            path: self.to.clone(),
        })
    }

    fn connect(&self, options: &SqliteOptions) -> rusqlite::Result<Connection> {
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let mut connection = Connection::open_with_flags(&self.path, flags)?;
        wait_for_others(&mut connection, options.busy_bound)?;
        Ok(connection)
    }

    /// Makes the draft durable, and only then gives it its name, durably too. Answers its size. No
    /// connection to it may be open.
    pub(crate) fn publish(self, existing: ExistingBackup) -> Result<u64, OpenError> {
        let io = |source| OpenError::Io {
            path: self.to.clone(),
            source,
        };
        self.file.sync_all().map_err(io)?;
        let bytes = self.file.metadata().map_err(io)?.len();
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
}

impl Drop for Draft {
    fn drop(&mut self) {
        // After it was published there is nothing under this name.
        remove(&self.path);
    }
}

fn remove(draft: &Path) {
    for suffix in ["-wal", "-shm", "-journal", ""] {
        let _ = std::fs::remove_file(beside(draft, suffix));
    }
}

/// Removes the drafts for `to` whose processes are gone: a lock dies with its process.
fn sweep(to: &Path) {
    let (Some(directory), Some(name)) = (to.parent(), to.file_name()) else {
        return;
    };
    let Ok(entries) = std::fs::read_dir(directory) else {
        return;
    };
    for entry in entries.flatten() {
        let is_regular = entry.file_type().is_ok_and(|kind| kind.is_file());
        if !is_regular || !is_draft_of(entry.file_name().as_bytes(), name.as_bytes()) {
            continue;
        }
        let path = entry.path();
        let Ok(file) = File::open(&path) else {
            continue;
        };
        match file.try_lock() {
            // It may have been published meanwhile, and is no draft any more.
            Ok(()) if names(&path, &file) => {
                tracing::debug!(?path, "removing what a dead process has left");
                remove(&path);
            }
            Ok(()) | Err(TryLockError::WouldBlock) => {}
            Err(TryLockError::Error(error)) => {
                tracing::debug!(?path, %error, "a draft stays: it cannot be locked");
            }
        }
    }
}

fn is_draft_of(name: &[u8], of: &[u8]) -> bool {
    name.strip_prefix(of)
        .and_then(|rest| rest.strip_prefix(INFIX))
        .is_some_and(|id| id.len() == ID_DIGITS && id.iter().all(u8::is_ascii_hexdigit))
}

/// Whether the path still names this file.
fn names(path: &Path, file: &File) -> bool {
    let at_path = std::fs::symlink_metadata(path);
    match (at_path, file.metadata()) {
        (Ok(a), Ok(b)) => (a.dev(), a.ino()) == (b.dev(), b.ino()),
        _ => false,
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

#[cfg(test)]
mod tests {
    use super::is_draft_of;

    #[test]
    fn only_a_draft_is_taken_for_one() {
        assert!(is_draft_of(b"b.db.draft-0123456789abcdef", b"b.db"));
        for other in [
            &b"b.db.draft-0123456789abcde"[..],
            b"b.db.draft-0123456789abcdefa",
            b"b.db.draft-0123456789abcdeg",
            b"c.db.draft-0123456789abcdef",
            b"b.db",
            b"b.db.draft-",
        ] {
            assert!(!is_draft_of(other, b"b.db"), "{other:?}");
        }
    }
}
