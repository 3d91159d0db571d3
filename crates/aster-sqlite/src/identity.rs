//! Is it the same file? A copy or a restored backup may have gone back in time: its rows would accept
//! fences that have ended, so it is refused until an operator adopts it.

use std::io;
use std::path::{Path, PathBuf};

use crate::error::OpenError;
use crate::file_system::network_file_system;

/// The longest name of a store's file: file systems take 255 bytes, and the longest name beside it is that of
/// a socket that is not yet in place, `<name>-aster-<16 digits>.new`.
const FILE_NAME_BYTES_MAX: usize = 255 - "-aster-0123456789abcdef.new".len();

/// A file while the machine is up: enough to notice that a path names another one now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FileId {
    device: u64,
    inode: u64,
}

/// A file across restarts: what `cp`, a restored backup and another file system cannot keep. Device
/// numbers change at a reboot, so they are no part of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Birth {
    pub(crate) inode: u64,
    /// Nanoseconds since 1970; 0 where the file system does not keep it.
    pub(crate) birth_ns: i64,
}

/// What is known about the file at a path, without opening it: closing any descriptor of a database
/// would drop SQLite's own locks on it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FileFacts {
    pub(crate) id: FileId,
    pub(crate) birth: Birth,
    pub(crate) links: u64,
    pub(crate) is_file: bool,
}

pub(crate) fn facts(path: &Path) -> io::Result<FileFacts> {
    use std::os::unix::fs::MetadataExt;
    let metadata = std::fs::metadata(path)?;
    let birth_ns = metadata
        .created()
        .ok()
        .and_then(|created| created.duration_since(std::time::UNIX_EPOCH).ok())
        .and_then(|since| i64::try_from(since.as_nanos()).ok())
        .unwrap_or(0);
    Ok(FileFacts {
        id: FileId {
            device: metadata.dev(),
            inode: metadata.ino(),
        },
        birth: Birth {
            inode: metadata.ino(),
            birth_ns,
        },
        links: metadata.nlink(),
        is_file: metadata.is_file(),
    })
}

/// Whether the path still names this file.
pub(crate) fn still_names(path: &Path, id: FileId) -> bool {
    facts(path).is_ok_and(|facts| facts.id == id)
}

/// SQLite's log and shared index beside a database. Whoever has others open sees another database.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct JournalId {
    log: FileId,
    index: FileId,
}

/// Where SQLite keeps the log and the shared index of a database.
#[derive(Debug, Clone)]
pub(crate) struct JournalPaths {
    log: PathBuf,
    index: PathBuf,
}

impl JournalPaths {
    pub(crate) fn of(database: &Path) -> Self {
        Self {
            log: beside(database, "-wal"),
            index: beside(database, "-shm"),
        }
    }

    /// Makes the log durable as it is, and its name. A process that was killed while it committed may have
    /// left changes there that never reached the disk: before anybody is told of them they have to, or a
    /// power loss would take them back.
    pub(crate) fn make_durable(&self) -> io::Result<()> {
        // SQLite keeps no locks on its log that closing a descriptor would drop.
        match std::fs::File::open(&self.log) {
            Ok(log) => log.sync_data()?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
        // SQLite syncs the directory, too, but goes on when that fails.
        sync_directory(&self.log)
    }

    /// What is there now. While a connection is open and has read once, both files stay.
    pub(crate) fn find(&self) -> Option<JournalId> {
        let id = |path| facts(path).ok().map(|facts| facts.id);
        Some(JournalId {
            log: id(&self.log)?,
            index: id(&self.index)?,
        })
    }
}

/// The path with something more at the end of its name.
pub(crate) fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    PathBuf::from(name)
}

/// The path under which SQLite will keep the journal: absolute, links followed. Two processes that
/// came by different links must agree on it.
pub(crate) fn resolve(path: &Path) -> Result<PathBuf, OpenError> {
    let invalid = || OpenError::InvalidPath {
        path: path.to_owned(),
    };
    if path.as_os_str().is_empty() || path == Path::new(":memory:") {
        return Err(invalid());
    }
    let io = |source| OpenError::Io {
        path: path.to_owned(),
        source,
    };
    match std::fs::canonicalize(path) {
        Ok(existing) => Ok(existing),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let name = path.file_name().ok_or_else(invalid)?;
            let directory = match path.parent() {
                Some(parent) if !parent.as_os_str().is_empty() => parent,
                _ => Path::new("."),
            };
            match std::fs::canonicalize(directory) {
                Ok(directory) => Ok(directory.join(name)),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    Err(OpenError::MissingDirectory {
                        directory: directory.to_owned(),
                    })
                }
                Err(error) => Err(io(error)),
            }
        }
        Err(error) => Err(io(error)),
    }
}

/// Makes the names in the file's directory survive a power loss.
pub(crate) fn sync_directory(path: &Path) -> io::Result<()> {
    let directory = path.parent().unwrap_or(Path::new("/"));
    std::fs::File::open(directory)?.sync_all()
}

/// Refuses what cannot be a store: no regular file, several names, a shared file system.
pub(crate) fn check_place(path: &Path) -> Result<(), OpenError> {
    let io = |source| OpenError::Io {
        path: path.to_owned(),
        source,
    };
    if path
        .file_name()
        .is_some_and(|name| name.len() > FILE_NAME_BYTES_MAX)
    {
        return Err(OpenError::NameTooLong {
            path: path.to_owned(),
            bytes_max: FILE_NAME_BYTES_MAX,
        });
    }
    let directory = path.parent().unwrap_or(Path::new("/"));
    if let Some(file_system) = network_file_system(directory).map_err(io)? {
        return Err(OpenError::NetworkFileSystem {
            path: path.to_owned(),
            file_system,
        });
    }
    match facts(path) {
        Ok(facts) if !facts.is_file => Err(OpenError::NotAFile {
            path: path.to_owned(),
        }),
        Ok(facts) if facts.links > 1 => Err(OpenError::HardLinked {
            path: path.to_owned(),
            links: facts.links,
        }),
        Ok(_) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(io(error)),
    }
}
