//! A file system behind which other machines stand is refused where it can be seen: here a real mount
//! that calls itself what sshfs calls itself. Under another name the same mount is accepted.

#![cfg(target_os = "linux")]

mod support;

use aster_crash::VolatileDisk;
use aster_sqlite::{OpenError, SqliteSerializer};
use fuser::{Config, MountOption};
use support::mount_as;

#[test]
fn a_store_on_a_mount_of_another_machine_is_refused_and_nothing_is_made() {
    for (subtype, refused) in [("sshfs", true), ("gocryptfs", false)] {
        let directory = tempfile::tempdir().unwrap();
        let disk = VolatileDisk::new();
        let mut config = Config::default();
        config
            .mount_options
            .push(MountOption::CUSTOM(format!("subtype={subtype}")));
        let Some(_session) = mount_as(&disk, directory.path(), &config) else {
            return;
        };
        let path = directory.path().join("leases.db");
        match SqliteSerializer::open(&path) {
            Err(error @ OpenError::NetworkFileSystem { .. }) => {
                assert!(refused, "{subtype}: {error}");
                assert!(error.to_string().contains("fuse.sshfs"), "{error}");
                assert!(!path.exists());
            }
            other => assert!(!refused && other.is_ok(), "{subtype}: {other:?}"),
        }
    }
}
