//! The disk itself: it keeps what was synced, and it forgets what was not. Without this control a
//! test on it would show nothing. What SQLite loses on it without syncs is among what is planted.

#![cfg(target_os = "linux")]

mod support;

use std::fs;
use std::io::Write;
use std::os::unix::fs::FileExt;

use aster_crash::{Loss, VolatileDisk};
use support::mount;

#[test]
fn what_was_not_synced_is_lost_and_what_was_synced_is_kept() {
    let directory = tempfile::tempdir().unwrap();
    let disk = VolatileDisk::new();
    let Some(session) = mount(&disk, directory.path()) else {
        return;
    };
    let path = directory.path().join("file");
    let mut file = fs::File::create(&path).unwrap();
    file.write_all(b"synced").unwrap();
    file.sync_all().unwrap();
    fs::File::open(directory.path())
        .unwrap()
        .sync_all()
        .unwrap();
    file.write_all_at(b"UNSYNC", 0).unwrap();
    fs::write(
        directory.path().join("nameless"),
        b"its name was never synced",
    )
    .unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"UNSYNC");
    drop(file);
    drop(session);

    let mut seen = std::collections::BTreeSet::new();
    for seed in [3, 5, 7, 11, 13, 17] {
        // Each seed starts from the same disk: cut it, look, and write the page again.
        disk.power_cycle(Loss::Pages, seed);
        let Some(session) = mount(&disk, directory.path()) else {
            return;
        };
        assert!(!directory.path().join("nameless").exists());
        seen.insert(fs::read(&path).unwrap());
        let file = fs::File::options().write(true).open(&path).unwrap();
        file.write_all_at(b"synced", 0).unwrap();
        file.sync_all().unwrap();
        file.write_all_at(b"UNSYNC", 0).unwrap();
        drop((file, session));
    }
    assert_eq!(
        seen.len(),
        2,
        "an unsynced page is either there or not: {seen:?}"
    );
}
