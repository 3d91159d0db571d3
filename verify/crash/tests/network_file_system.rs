//! A file system behind which other machines stand is refused where it can be seen: here a real mount
//! that calls itself what sshfs calls itself. Under another name the same mount is accepted.

#![cfg(target_os = "linux")]

mod support;

use aster_crash::VolatileDisk;
use aster_sqlite::{OpenError, SqliteSerializer};
use fuser::{Config, MountOption};
use support::{in_child, mount_as, role};

#[test]
fn role_of_a_child() {
    let Some(words) = role() else { return };
    match SqliteSerializer::open(&words[0]) {
        Err(error @ OpenError::NetworkFileSystem { .. }) => panic!("refused: {error}"),
        other => drop(other.unwrap()),
    }
}

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
        let opened = in_child(&[path.to_str().unwrap()]);
        match refused {
            true => {
                let error = opened.unwrap_err();
                assert!(error.contains("refused: "), "{subtype}: {error}");
                assert!(error.contains("fuse.sshfs"), "{error}");
                assert!(!path.exists());
            }
            false => opened.unwrap(),
        }
    }
}
