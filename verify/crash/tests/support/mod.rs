//! Mounting the disk.
#![allow(
    dead_code,
    unreachable_pub,
    reason = "each test file uses its own part of this"
)]
#![allow(
    clippy::print_stderr,
    clippy::unwrap_used,
    reason = "says what was skipped; a test that cannot go on fails"
)]

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

const ROLE: &str = "ASTER_CRASH_ROLE";

/// What this process is to do, if it is a child of a test: the words of [`in_child`].
pub fn role() -> Option<Vec<String>> {
    let words = std::env::var(ROLE).ok()?;
    Some(words.split('\n').map(str::to_owned).collect())
}

/// Runs the test `role_of_a_child` of the same file in a process of its own: who serves the disk must not use
/// SQLite on it, or the two wait for each other in the kernel. An error is what the child printed.
pub fn in_child(words: &[&str]) -> Result<(), String> {
    let output = std::process::Command::new(std::env::current_exe().unwrap())
        .args([
            "role_of_a_child",
            "--exact",
            "--nocapture",
            "--test-threads=1",
        ])
        .env(ROLE, words.join("\n"))
        .output()
        .unwrap();
    match output.status.success() {
        true => Ok(()),
        false => Err(String::from_utf8_lossy(&output.stderr).into_owned()),
    }
}
