//! Where a copy may go: never over anything but an earlier backup, and never under a name that SQLite or
//! a store gives a meaning to.

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use crate::backup::ExistingBackup;
use crate::error::OpenError;
use crate::identity::{beside, facts};
use crate::schema;
use crate::untouched;

const LOGS: [&str; 3] = ["-wal", "-shm", "-journal"];
const SIDE: &str = "-aster";

/// Refuses a target that must not be overwritten, one that belongs to another database, and one beside
/// which another database has left its log: SQLite would play that log into the new file.
pub(crate) fn check_target(to: &Path, existing: ExistingBackup) -> Result<(), OpenError> {
    let path = || to.to_owned();
    if let Some(database) = owner(to) {
        return Err(OpenError::BelongsToDatabase {
            path: path(),
            database,
        });
    }
    for suffix in LOGS {
        let left = beside(to, suffix);
        if std::fs::symlink_metadata(&left).is_ok() {
            return Err(OpenError::Exists { path: left });
        }
    }
    match std::fs::symlink_metadata(to) {
        Ok(there) if !there.is_file() => Err(OpenError::NotAFile { path: path() }),
        Ok(_) if existing == ExistingBackup::Keep => Err(OpenError::Exists { path: path() }),
        Ok(_) if !is_backup(to) => Err(OpenError::NotReplaced { path: path() }),
        Ok(_) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(source) => Err(OpenError::Io {
            path: path(),
            source,
        }),
    }
}

/// Refuses every file of the store at `store`, by whatever name it is reached.
pub(crate) fn check_apart(to: &Path, store: &Path) -> Result<(), OpenError> {
    let refused = || OpenError::BelongsToDatabase {
        path: to.to_owned(),
        database: store.to_owned(),
    };
    if to == store {
        return Err(refused());
    }
    let Ok(target) = facts(to) else {
        return Ok(());
    };
    let is_target = |path: &Path| facts(path).is_ok_and(|facts| facts.id == target.id);
    if is_target(store) || LOGS.iter().any(|suffix| is_target(&beside(store, suffix))) {
        return Err(refused());
    }
    let (Some(directory), Some(name)) = (store.parent(), store.file_name()) else {
        return Ok(());
    };
    let side = [name.as_bytes(), SIDE.as_bytes()].concat();
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    for entry in entries {
        if entry.file_name().as_bytes().starts_with(&side) && is_target(&entry.path()) {
            return Err(refused());
        }
    }
    Ok(())
}

/// A backup that nobody uses as a store.
fn is_backup(path: &Path) -> bool {
    if std::fs::symlink_metadata(beside(path, SIDE)).is_ok() {
        return false;
    }
    untouched::connect_alone(path)
        .is_ok_and(|connection| schema::is_backup(&connection).is_ok_and(|is_backup| is_backup))
}

/// The database beside it for which SQLite, or a store, would take this name.
fn owner(path: &Path) -> Option<PathBuf> {
    let name = path.file_name()?.as_bytes();
    let of_log = LOGS
        .iter()
        .find_map(|log| name.strip_suffix(log.as_bytes()));
    let without_log = of_log.unwrap_or(name);
    let of_side = without_log
        .strip_suffix(SIDE.as_bytes())
        .or_else(|| owner_of_socket(name));
    [of_log, of_side]
        .into_iter()
        .flatten()
        .filter(|owner| !owner.is_empty())
        .map(|owner| path.with_file_name(OsStr::from_bytes(owner)))
        .find(|owner| std::fs::symlink_metadata(owner).is_ok_and(|there| !there.is_dir()))
}

/// `FILE-aster-<16 hex digits>`, by which processes wake each other.
pub(crate) fn owner_of_socket(name: &[u8]) -> Option<&[u8]> {
    let (rest, id) = name.split_at_checked(name.len().checked_sub(16)?)?;
    let is_id = id.iter().all(u8::is_ascii_hexdigit);
    let side = rest.strip_suffix(b"-").filter(|_| is_id)?;
    side.strip_suffix(SIDE.as_bytes())
}
