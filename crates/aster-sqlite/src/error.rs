//! What can go wrong when a store is opened, and how SQLite's errors read to a caller.

use std::io;
use std::path::PathBuf;

use aster_core::{ErrorKind, ResourceName};
use aster_lease::{EntropyError, SerializerError};
use rusqlite::ErrorCode;

const ADOPT: &str = "make sure that no other copy is in use, then adopt it (`aster store adopt`, \
                     SqliteSerializer::adopt)";

/// A store cannot be opened. A file that is refused for what it is has not been changed. Where SQLite meets
/// damage only later, its log may be folded back by then and revisions raised; nothing is lost by that.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// An empty path, `:memory:`, or a path that no file can have.
    #[error(
        "{path:?} cannot be a durable store: give the path of a file (for a store that need \
             not be durable there is the memory store)"
    )]
    InvalidPath {
        /// What was given.
        path: PathBuf,
    },
    /// The file's name leaves no room for the names of the files beside it.
    #[error(
        "the name of {path:?} is too long: the files beside it are named after it, so give it \
             {bytes_max} bytes at most"
    )]
    NameTooLong {
        /// What was given.
        path: PathBuf,
        /// The longest name, in bytes.
        bytes_max: usize,
    },
    /// The directory of the file does not exist.
    #[error("the directory {directory:?} does not exist: create it first")]
    MissingDirectory {
        /// The directory.
        directory: PathBuf,
    },
    /// There is no such file, and only an existing one will do.
    #[error("there is no store at {path:?}: check the path; `aster run` makes a new one")]
    Missing {
        /// The path.
        path: PathBuf,
    },
    /// Something is there that must not be overwritten: a file in the place of a backup or a restored
    /// store, or what an earlier store has left beside it.
    #[error("{path:?} exists already: give another path, or move it away first")]
    Exists {
        /// What is there.
        path: PathBuf,
    },
    /// What stands in the place of a backup is no backup, or a store was made of it: a backup replaces
    /// only an earlier one.
    #[error(
        "{path:?} is not a backup that aster made, so it is not replaced: give another path, or \
             move it away first"
    )]
    NotReplaced {
        /// What is there.
        path: PathBuf,
    },
    /// A copy must not get this name: it is a file of a store, or SQLite would take it for a part of the
    /// database beside it.
    #[error("{path:?} belongs to the database {database:?}: give another path")]
    BelongsToDatabase {
        /// What was given.
        path: PathBuf,
        /// The database.
        database: PathBuf,
    },
    /// There is no file to restore.
    #[error("there is no backup at {path:?}: check the path")]
    NoBackup {
        /// The path.
        path: PathBuf,
    },
    /// A store is restored from what [`backup`](crate::SqliteSerializer::backup) has made.
    #[error(
        "{path:?} was not made by `aster store backup`: a copy of a file in use may mix two states of \
             it and miss the newest changes. Take a backup; if this is a whole copy, restore it with \
             --not-a-backup (RestoreFrom::AnyCopy), or put it in place and adopt it (`aster store adopt`)"
    )]
    NotABackup {
        /// The path.
        path: PathBuf,
    },
    /// The backup is not a SQLite database, or it is damaged.
    #[error(
        "the backup {path:?} is damaged or not a SQLite database ({message}): take another backup"
    )]
    DamagedBackup {
        /// The path.
        path: PathBuf,
        /// What SQLite or we found.
        message: String,
    },
    /// A backup or a restore was told to stop.
    #[error("the copy to {path:?} was stopped, and nothing was changed there")]
    Stopped {
        /// What would have been made.
        path: PathBuf,
    },
    /// The path is a directory, a device or something else that is no regular file.
    #[error("{path:?} is not a regular file: give the path of a file")]
    NotAFile {
        /// The path.
        path: PathBuf,
    },
    /// A file system that other machines share. Its locks cannot be trusted.
    #[error(
        "{path:?} is on a network file system ({file_system}): SQLite's locks do not hold \
             there. Use a local disk, or a grantor for several machines"
    )]
    NetworkFileSystem {
        /// The path.
        path: PathBuf,
        /// What kind.
        file_system: String,
    },
    /// A file with several names. SQLite would keep a journal under each, and they would not see each
    /// other's leases.
    #[error(
        "{path:?} has {links} hard links: remove the other names, or copy the file and adopt \
             the copy"
    )]
    HardLinked {
        /// The path.
        path: PathBuf,
        /// How many names the file has.
        links: u64,
    },
    /// The file or its directory cannot be written.
    #[error(
        "{path:?} cannot be written: give this user write permission on the file and its \
             directory, and mount the file system writable"
    )]
    ReadOnly {
        /// The path.
        path: PathBuf,
    },
    /// The file is not a SQLite database, or it is damaged.
    #[error(
        "{path:?} is damaged or not a SQLite database ({message}): stop its users, move it \
             away, and restore a backup in its place (`aster store restore`, SqliteSerializer::restore)"
    )]
    Damaged {
        /// The path.
        path: PathBuf,
        /// What SQLite or we found.
        message: String,
    },
    /// The file was written by a newer version.
    #[error(
        "{path:?} has schema version {found}, this version reads up to {supported}: use a \
             newer version"
    )]
    NewerSchema {
        /// The path.
        path: PathBuf,
        /// The file's version.
        found: u64,
        /// The highest that is understood.
        supported: u64,
    },
    /// The file is a copy, a restored backup or was moved between file systems. Fences that it would
    /// accept may have ended elsewhere.
    #[error("{path:?} was copied or restored and may have gone back in time: {ADOPT}")]
    Copied {
        /// The path.
        path: PathBuf,
    },
    /// The file is older than what was seen of it before.
    #[error(
        "{path:?} has gone back in time (it is at change {found}, change {seen} was seen): \
             {ADOPT}"
    )]
    WentBack {
        /// The path.
        path: PathBuf,
        /// The file's count of changes.
        found: u64,
        /// The highest count seen before.
        seen: u64,
    },
    /// The store is open, but refuses to serve until an operator acts.
    #[error("{path:?} refuses to serve: {message}")]
    Refused {
        /// The path.
        path: PathBuf,
        /// Why, and what the operator has to do.
        message: String,
    },
    /// There is no store in the file, and only an existing one will do.
    #[error("{path:?} holds no lease store: check the path")]
    NoStore {
        /// The path.
        path: PathBuf,
    },
    /// Others kept the file busy.
    #[error("{path:?} is busy: try again")]
    Busy {
        /// The path.
        path: PathBuf,
    },
    /// The medium failed: disk full, I/O error.
    #[error("{path:?} cannot be used: {message}")]
    Storage {
        /// The path.
        path: PathBuf,
        /// What failed and what to do.
        message: String,
        /// Why.
        #[source]
        source: Option<rusqlite::Error>,
    },
    /// The operating system refused something else.
    #[error("{path:?} cannot be used: {source}")]
    Io {
        /// The path.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// No randomness for an authority.
    #[error(transparent)]
    Entropy(#[from] EntropyError),
}

impl OpenError {
    /// What to do about it.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        match self {
            OpenError::InvalidPath { .. }
            | OpenError::NameTooLong { .. }
            | OpenError::MissingDirectory { .. }
            | OpenError::Missing { .. }
            | OpenError::NotAFile { .. }
            | OpenError::NetworkFileSystem { .. }
            | OpenError::NoStore { .. }
            | OpenError::NotReplaced { .. }
            | OpenError::BelongsToDatabase { .. }
            | OpenError::NoBackup { .. }
            | OpenError::NotABackup { .. }
            | OpenError::Exists { .. } => ErrorKind::FixCall,
            OpenError::Copied { .. }
            | OpenError::WentBack { .. }
            | OpenError::Refused { .. }
            | OpenError::HardLinked { .. }
            | OpenError::NewerSchema { .. } => ErrorKind::Stop,
            OpenError::Busy { .. } | OpenError::Stopped { .. } => ErrorKind::Retry,
            OpenError::ReadOnly { .. }
            | OpenError::Damaged { .. }
            | OpenError::DamagedBackup { .. }
            | OpenError::Storage { .. }
            | OpenError::Io { .. }
            | OpenError::Entropy(_) => ErrorKind::Report,
        }
    }
}

/// What a SQLite error means, without the words.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    Busy,
    Full,
    ReadOnly,
    Damaged,
    CannotOpen,
    Other,
}

pub(crate) fn fault(error: &rusqlite::Error) -> Fault {
    match error.sqlite_error().map(|error| error.extended_code) {
        // On a full disk the shared memory beside the file cannot grow; SQLite calls that an I/O error.
        Some(rusqlite::ffi::SQLITE_IOERR_SHMSIZE) => return Fault::Full,
        // A page or a log that ends too early: somebody cut or removed it.
        Some(rusqlite::ffi::SQLITE_IOERR_SHORT_READ) => return Fault::Damaged,
        _ => {}
    }
    // Something in a column that we would never have written there.
    if matches!(
        error,
        rusqlite::Error::InvalidColumnType(..)
            | rusqlite::Error::FromSqlConversionFailure(..)
            | rusqlite::Error::IntegralValueOutOfRange(..)
            | rusqlite::Error::Utf8Error(..)
    ) {
        return Fault::Damaged;
    }
    match error.sqlite_error_code() {
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => Fault::Busy,
        Some(ErrorCode::DiskFull) => Fault::Full,
        Some(ErrorCode::ReadOnly) => Fault::ReadOnly,
        Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => Fault::Damaged,
        Some(ErrorCode::CannotOpen) => Fault::CannotOpen,
        _ => Fault::Other,
    }
}

/// The same words for a failed call and a failed open.
fn advice(fault: Fault) -> &'static str {
    match fault {
        Fault::Busy => "others write to the file",
        Fault::Full => {
            "the disk is full; free some space, then try again (nothing was acknowledged)"
        }
        Fault::ReadOnly => "the file cannot be written; check its permissions and its mount",
        Fault::Damaged => {
            "the file is damaged; stop its users, move it away, and restore a backup in its place \
             (`aster store restore`)"
        }
        Fault::CannotOpen => "the file or its journal cannot be opened; check the directory",
        Fault::Other => "SQLite reports an error; check the disk and the system's log",
    }
}

/// What SQLite said, with the code that its documentation explains.
fn said(error: &rusqlite::Error) -> String {
    match error.sqlite_error() {
        Some(code) => format!("{error}, SQLite code {}", code.extended_code),
        None => error.to_string(),
    }
}

/// How a SQLite error reads to the caller of a store that is open.
pub(crate) fn storage(error: rusqlite::Error) -> SerializerError {
    let fault = fault(&error);
    let message = format!("{} ({})", advice(fault), said(&error));
    match fault {
        Fault::Busy => SerializerError::Busy { message },
        Fault::CannotOpen => SerializerError::Unavailable {
            message,
            source: Some(Box::new(error)),
        },
        _ => SerializerError::Storage {
            message,
            source: Some(Box::new(error)),
        },
    }
}

/// How a SQLite error reads to someone who opens a store.
pub(crate) fn open_error(path: &std::path::Path, error: rusqlite::Error) -> OpenError {
    let path = path.to_owned();
    match fault(&error) {
        Fault::Busy => OpenError::Busy { path },
        Fault::ReadOnly => OpenError::ReadOnly { path },
        Fault::Damaged => OpenError::Damaged {
            path,
            message: said(&error),
        },
        // SQLite says this too when it may not create its journal in the directory.
        Fault::CannotOpen => OpenError::ReadOnly { path },
        fault => OpenError::Storage {
            path,
            message: format!("{} ({})", advice(fault), said(&error)),
            source: Some(error),
        },
    }
}

/// Something in our tables that we would never write.
pub(crate) fn damaged_row(what: impl std::fmt::Display) -> SerializerError {
    SerializerError::Storage {
        message: format!("{} ({what})", advice(Fault::Damaged)),
        source: None,
    }
}

/// A row at a lower epoch than one that is known to have been granted.
pub(crate) fn went_back(resource: &ResourceName, row: u64, known: u64) -> SerializerError {
    SerializerError::Refused {
        message: format!(
            "it has gone back in time, or it is damaged ({resource} is at epoch {row}, and epoch {known} \
             was renewed): stop its users, then adopt it (`aster store adopt`)"
        ),
    }
}

/// Whether it is about one row alone: something in it that we would never have written. The transaction
/// goes on, and so do the others who share it.
pub(crate) fn is_of_one_row(error: &SerializerError) -> bool {
    match error {
        SerializerError::Storage {
            source: Some(source),
            ..
        } => source
            .downcast_ref::<rusqlite::Error>()
            .is_some_and(|error| error.sqlite_error().is_none() && fault(error) == Fault::Damaged),
        SerializerError::Storage { source: None, .. } => true,
        _ => false,
    }
}

/// Whether the disk was full.
pub(crate) fn is_full(error: &SerializerError) -> bool {
    let SerializerError::Storage {
        source: Some(source),
        ..
    } = error
    else {
        return false;
    };
    source
        .downcast_ref::<rusqlite::Error>()
        .is_some_and(|error| fault(error) == Fault::Full)
}

/// The same failure for another request.
pub(crate) fn again(error: &SerializerError) -> SerializerError {
    let message = error.to_string();
    match error {
        SerializerError::Busy { message } => SerializerError::Busy {
            message: message.clone(),
        },
        SerializerError::Refused { message } => SerializerError::Refused {
            message: message.clone(),
        },
        SerializerError::Unavailable { message, .. } => SerializerError::Unavailable {
            message: message.clone(),
            source: None,
        },
        SerializerError::Storage { message, .. } => SerializerError::Storage {
            message: message.clone(),
            source: None,
        },
        _ => SerializerError::Unexpected { message },
    }
}
