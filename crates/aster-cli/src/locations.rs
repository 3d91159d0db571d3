//! Where things are unless the user says otherwise.

use std::ffi::OsString;
use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use crate::failure::{Failure, FailureKind};

/// Mode of every directory that we create.
const DIRECTORY_MODE: u32 = 0o700;

/// `$XDG_DATA_HOME/aster/leases.db`, normally `~/.local/share/aster/leases.db`.
pub(crate) fn default_store(
    environment: impl Fn(&str) -> Option<OsString>,
) -> Result<PathBuf, Failure> {
    base("XDG_DATA_HOME", ".local/share", "--store", environment)
        .map(|base| base.join("aster/leases.db"))
}

/// `$XDG_CONFIG_HOME/aster/identity`, normally `~/.config/aster/identity`.
pub(crate) fn default_identity(
    environment: impl Fn(&str) -> Option<OsString>,
) -> Result<PathBuf, Failure> {
    base("XDG_CONFIG_HOME", ".config", "--identity", environment)
        .map(|base| base.join("aster/identity"))
}

/// The variable if it is an absolute path (the others are to be ignored), else the place below `HOME`.
fn base(
    variable: &str,
    below_home: &str,
    option: &str,
    environment: impl Fn(&str) -> Option<OsString>,
) -> Result<PathBuf, Failure> {
    let absolute = |value: OsString| Some(PathBuf::from(value)).filter(|path| path.is_absolute());
    if let Some(base) = environment(variable).and_then(absolute) {
        return Ok(base);
    }
    match environment("HOME").and_then(absolute) {
        Some(home) => Ok(home.join(below_home)),
        None => Err(Failure::new(
            FailureKind::InvalidInput,
            format!("neither {variable} nor HOME is set to an absolute path: give {option}"),
        )),
    }
}

/// Creates the directory of `file` if it is missing, for this user only.
pub(crate) fn create_private_parent(file: &Path) -> Result<(), Failure> {
    let Some(parent) = file
        .parent()
        .filter(|parent| !parent.as_os_str().is_empty())
    else {
        return Ok(());
    };
    DirBuilder::new()
        .recursive(true)
        .mode(DIRECTORY_MODE)
        .create(parent)
        .map_err(|error| Failure::io(format!("cannot create {}", parent.display()), &error))
}

/// Creates exactly this directory for this user only; one that exists already is an error.
pub(crate) fn create_private_directory(path: &Path) -> std::io::Result<()> {
    DirBuilder::new().mode(DIRECTORY_MODE).create(path)
}
