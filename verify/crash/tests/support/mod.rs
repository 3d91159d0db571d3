//! Mounting the disk.
#![allow(
    unreachable_pub,
    clippy::print_stderr,
    reason = "says what was skipped"
)]

use std::path::Path;

use aster_crash::VolatileDisk;
use fuser::{BackgroundSession, Config};

/// `None`, with a word about it, where FUSE cannot be mounted.
pub fn mount(disk: &VolatileDisk, at: &Path) -> Option<BackgroundSession> {
    match fuser::spawn_mount(disk.clone(), at, &Config::default()) {
        Ok(session) => Some(session),
        Err(error) => {
            eprintln!("skipped: FUSE cannot be mounted here ({error}); run as root with /dev/fuse");
            None
        }
    }
}
