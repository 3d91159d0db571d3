//! The disk itself: it keeps what was synced, and it forgets what was not. Without this control a
//! test on it would show nothing.

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

/// SQLite with a setting that does not sync commits loses acknowledged ones on this disk, and with
/// the one that the store uses it does not.
#[test]
fn a_commit_without_a_sync_is_lost_and_one_with_a_sync_is_kept() {
    for (synchronous, kept) in [("FULL", true), ("NORMAL", false)] {
        let directory = tempfile::tempdir().unwrap();
        let disk = VolatileDisk::new();
        let Some(session) = mount(&disk, directory.path()) else {
            return;
        };
        let path = directory.path().join("plain.db");
        let mut lost = false;
        {
            let connection = aster_sqlite::rusqlite::Connection::open(&path).unwrap();
            connection
                .pragma_update(None, "journal_mode", "WAL")
                .unwrap();
            connection
                .pragma_update(None, "synchronous", synchronous)
                .unwrap();
            connection
                .execute_batch("CREATE TABLE acknowledged (number INTEGER)")
                .unwrap();
            connection
                .execute_batch("PRAGMA wal_checkpoint(TRUNCATE)")
                .unwrap();
            fs::File::open(directory.path())
                .unwrap()
                .sync_all()
                .unwrap();
            for number in 1..=20 {
                connection
                    .execute("INSERT INTO acknowledged VALUES (?1)", [number])
                    .unwrap();
            }
            // Power is lost before the connection could close and write back.
            disk.cut_after(0, Loss::Pages, 9);
        }
        drop(session);
        disk.power_cycle(Loss::Pages, 9);
        let Some(session) = mount(&disk, directory.path()) else {
            return;
        };
        {
            let connection = aster_sqlite::rusqlite::Connection::open(&path).unwrap();
            let count = "SELECT count(*) FROM acknowledged";
            let left: i64 = connection
                .query_row(count, [], |row| row.get(0))
                .unwrap_or(0);
            lost |= left < 20;
        }
        drop(session);
        assert_eq!(!lost, kept, "synchronous={synchronous}");
    }
}
