//! Mounting the disk.
#![allow(
    dead_code,
    unreachable_pub,
    reason = "each test file uses its own part of this"
)]
#![allow(clippy::print_stderr, reason = "says what was skipped")]

use std::path::Path;

use aster_crash::VolatileDisk;
use fuser::{BackgroundSession, Config};

/// `None`, with a word about it, where FUSE cannot be mounted.
pub fn mount(disk: &VolatileDisk, at: &Path) -> Option<BackgroundSession> {
    mount_as(disk, at, &Config::default())
}

/// The same with other options.
pub fn mount_as(disk: &VolatileDisk, at: &Path, config: &Config) -> Option<BackgroundSession> {
    match aster_crash::mount(disk, at, config) {
        Ok(session) => Some(session),
        Err(error) => {
            eprintln!("skipped: FUSE cannot be mounted here ({error}); run as root with /dev/fuse");
            None
        }
    }
}

/// Whether FUSE can be mounted; a word about it where not.
pub fn is_permitted() -> bool {
    let directory = tempfile::tempdir().unwrap();
    mount(&VolatileDisk::new(), directory.path()).is_some()
}
