//! Reads a file without writing to it, so that one that is refused stays byte for byte as it was.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::config::DbConfig;
use rusqlite::{Connection, OpenFlags};

use crate::connection::wait_for_others;
use crate::error::{OpenError, open_error};
use crate::identity::beside;

/// What `read` finds in the file at `path`; nothing when only a writer could read it (a crashed
/// transaction to roll back, a log in a directory that is not ours).
///
/// A file without a log is read as it is. With one, others may be at work, and SQLite's locks are kept.
pub(crate) fn look<T>(
    path: &Path,
    busy_bound: Duration,
    read: impl Fn(&Connection) -> Result<T, OpenError>,
) -> Result<Option<T>, OpenError> {
    if !has_log(path) {
        let seen = connect_alone(path).and_then(|connection| read(&connection));
        // Without locks half of a change may be seen, so that only what makes sense counts.
        let is_sure = match &seen {
            Ok(_) => true,
            Err(error) => matches!(
                error,
                OpenError::NoStore { .. }
                    | OpenError::NewerSchema { .. }
                    | OpenError::Copied { .. }
            ),
        };
        if is_sure && !has_log(path) {
            return seen.map(Some);
        }
    }
    let seen = connect_among_others(path, busy_bound).and_then(|connection| read(&connection));
    match seen {
        Err(OpenError::ReadOnly { .. }) => Ok(None),
        seen => seen.map(Some),
    }
}

/// Whether there is a log beside the file, of either kind.
pub(crate) fn has_log(path: &Path) -> bool {
    ["-wal", "-journal"]
        .iter()
        .any(|suffix| std::fs::symlink_metadata(beside(path, suffix)).is_ok())
}

/// A connection that takes no lock, makes no file, and sees the main file alone.
pub(crate) fn connect_alone(path: &Path) -> Result<Connection, OpenError> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY
        | OpenFlags::SQLITE_OPEN_NO_MUTEX
        | OpenFlags::SQLITE_OPEN_URI;
    Connection::open_with_flags(immutable(path), flags).map_err(|error| open_error(path, error))
}

/// A connection that sees the log too, and leaves it where it is when it is closed.
pub(crate) fn connect_among_others(
    path: &Path,
    busy_bound: Duration,
) -> Result<Connection, OpenError> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connect = || {
        let mut connection = Connection::open_with_flags(path, flags)?;
        connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true)?;
        wait_for_others(&mut connection, busy_bound)?;
        Ok(connection)
    };
    connect().map_err(|error| open_error(path, error))
}

/// The name by which SQLite reads a file that nobody changes.
fn immutable(path: &Path) -> PathBuf {
    let mut name = b"file:".to_vec();
    for byte in path.as_os_str().as_bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'/' | b'.' | b'-' | b'_' => {
                name.push(*byte);
            }
            _ => name.extend(format!("%{byte:02X}").bytes()),
        }
    }
    name.extend(b"?immutable=1");
    PathBuf::from(OsString::from_vec(name))
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;
    use std::path::Path;

    use super::immutable;

    #[test]
    fn a_name_means_itself() {
        let odd = Path::new(OsStr::from_bytes(b"/a b/50%?x#\xFF.db"));
        let expected = "file:/a%20b/50%25%3Fx%23%FF.db?immutable=1";
        assert_eq!(immutable(odd).to_str(), Some(expected));
    }
}
