//! A backup replaces an earlier backup and nothing else, a restore takes a backup and nothing else, and
//! a copy that was cut off does not stay.

#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "a test that cannot go on fails"
)]

mod support;

use std::fs;
use std::path::{Path, PathBuf};

use aster_core::{ErrorKind, ExpectedRevision};
use aster_lease::{LeaseSerializer, Registers};
use aster_sqlite::{
    Backup, CopyProgress, ExistingBackup, OpenError, RestoreFrom, SqliteOptions, SqliteSerializer,
};
use support::*;

fn replace(store: &SqliteSerializer, to: &Path) -> Result<Backup, OpenError> {
    store.backup(to, ExistingBackup::Replace)
}

fn restore_from(from: RestoreFrom, file: &Path, to: &Path) -> Result<(), OpenError> {
    let (operator, options) = (principal("operator"), SqliteOptions::default());
    SqliteSerializer::restore_while(file, to, &operator, &options, from, &mut |_| true).map(|_| ())
}

fn names(directory: &Path) -> Vec<String> {
    let mut names: Vec<_> = fs::read_dir(directory)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

/// Another program copies: a descriptor of ours on the file would drop SQLite's locks when closed.
fn copy(from: &Path, to: &Path) {
    let copied = std::process::Command::new("cp").arg(from).arg(to).status();
    assert!(copied.unwrap().success());
}

#[tokio::test]
async fn no_file_of_the_store_is_ever_replaced() {
    let place = Place::new();
    let store = place.open();
    let fence = acquire(&store, "catalog", "worker-a").await;
    let before = names(place.directory.path());
    let base = place.path.display();
    for suffix in [
        "",
        "-wal",
        "-shm",
        "-journal",
        "-aster",
        "-aster-wal",
        "-aster-shm",
        "-aster-journal",
        "-aster-0123456789abcdef",
    ] {
        let own = PathBuf::from(format!("{base}{suffix}"));
        for existing in [ExistingBackup::Keep, ExistingBackup::Replace] {
            let error = store.backup(&own, existing).unwrap_err();
            assert!(
                matches!(&error, OpenError::BelongsToDatabase { path, .. } if path.file_name() == own.file_name()),
                "{suffix}: {error}"
            );
            assert_eq!(error.kind(), ErrorKind::FixCall);
        }
        if !own.exists() {
            // Neither is a name that SQLite would give a meaning to taken by a restore.
            let backup = tempfile::tempdir().unwrap();
            let backup = backup.path().join("backup.db");
            store.backup(&backup, ExistingBackup::Keep).unwrap();
            let error = restore_from(RestoreFrom::Backup, &backup, &own).unwrap_err();
            assert!(
                matches!(error, OpenError::BelongsToDatabase { .. }),
                "{suffix}: {error}"
            );
            continue;
        }
        // Neither through links.
        let elsewhere = tempfile::tempdir_in(place.directory.path()).unwrap();
        let link = elsewhere.path().join("link.db");
        std::os::unix::fs::symlink(&own, &link).unwrap();
        let error = replace(&store, &link).unwrap_err();
        assert!(
            matches!(error, OpenError::BelongsToDatabase { .. }),
            "{suffix}: {error}"
        );
        fs::remove_file(&link).unwrap();
        if !suffix.is_empty() {
            fs::hard_link(&own, &link).unwrap();
            let error = replace(&store, &link).unwrap_err();
            assert!(
                matches!(&error, OpenError::BelongsToDatabase { database, .. } if *database == place.path.canonicalize().unwrap()),
                "{suffix}: {error}"
            );
        }
    }
    assert_eq!(names(place.directory.path()), before);
    assert_renewed(renew(&store, &fence).await);
    drop(store);
    assert_renewed(renew(&place.open(), &fence).await);
}

#[tokio::test]
async fn only_a_backup_is_replaced() {
    let place = Place::new();
    let store = place.open();
    acquire(&store, "catalog", "worker-a").await;
    let directory = place.directory.path();
    let backup = directory.join("backup.db");
    store.backup(&backup, ExistingBackup::Keep).unwrap();

    let text = directory.join("notes.txt");
    fs::write(&text, "precious").unwrap();
    let empty = directory.join("empty");
    fs::write(&empty, "").unwrap();
    let users = directory.join("users.db");
    let user = rusqlite::Connection::open(&users).unwrap();
    user.execute_batch("CREATE TABLE t (x)").unwrap();
    drop(user);
    let adopted = directory.join("adopted.db");
    fs::copy(&backup, &adopted).unwrap();
    SqliteSerializer::adopt(&adopted, &principal("operator")).unwrap();
    let restored = directory.join("restored.db");
    restore_from(RestoreFrom::Backup, &backup, &restored).unwrap();
    // A version that knows no mark leaves it in a file that it adopts.
    let adopted_by_another = directory.join("another.db");
    fs::copy(&backup, &adopted_by_another).unwrap();
    rusqlite::Connection::open(&adopted_by_another)
        .unwrap()
        .execute_batch("UPDATE aster_store SET authority = randomblob(16)")
        .unwrap();
    let copied = directory.join("copied.db");
    copy(&place.path, &copied);
    let idle = Place::new();
    drop(idle.open());
    let live = Place::new();
    let live_store = live.open();
    let live_fence = acquire(&live_store, "catalog", "worker-b").await;

    for file in [
        &text,
        &empty,
        &users,
        &adopted,
        &restored,
        &adopted_by_another,
        &copied,
        &idle.path,
    ] {
        let before = fs::read(file).unwrap();
        let error = replace(&store, file).unwrap_err();
        assert!(
            matches!(&error, OpenError::NotReplaced { path } if path.file_name() == file.file_name()),
            "{file:?}: {error}"
        );
        assert!(fs::read(file).unwrap() == before, "{file:?}");
    }
    let error = replace(&store, &live.path).unwrap_err();
    assert!(matches!(error, OpenError::Exists { .. }), "{error}");
    let error = replace(&store, &live.side()).unwrap_err();
    assert!(
        matches!(error, OpenError::BelongsToDatabase { .. }),
        "{error}"
    );
    assert_renewed(renew(&live_store, &live_fence).await);
    replace(&store, &backup).unwrap();
    // Also once it was copied elsewhere.
    let archived = directory.join("archived.db");
    fs::copy(&backup, &archived).unwrap();
    replace(&store, &archived).unwrap();
}

/// Somebody puts a file there while the copy is made.
#[tokio::test]
async fn what_appears_meanwhile_is_not_replaced_either() {
    let place = Place::new();
    let store = place.open();
    let to = place.directory.path().join("backup.db");
    for existing in [ExistingBackup::Keep, ExistingBackup::Replace] {
        let error = store
            .backup_while(&to, existing, &mut |_| {
                fs::write(&to, "precious").unwrap();
                true
            })
            .unwrap_err();
        assert!(
            matches!(
                error,
                OpenError::Exists { .. } | OpenError::NotReplaced { .. }
            ),
            "{error}"
        );
        assert_eq!(fs::read(&to).unwrap(), b"precious");
        fs::remove_file(&to).unwrap();
    }
}

#[tokio::test]
async fn only_a_backup_is_restored_unless_somebody_vouches_for_a_copy() {
    let place = Place::new();
    let store = place.open();
    acquire(&store, "catalog", "worker-a").await;
    let directory = place.directory.path();
    let to = directory.join("restored.db");
    let copied = directory.join("copied.db");
    copy(&place.path, &copied);
    for file in [&copied, &place.path] {
        let error = restore_from(RestoreFrom::Backup, file, &to).unwrap_err();
        assert!(matches!(error, OpenError::NotABackup { .. }), "{error}");
        assert_eq!(error.kind(), ErrorKind::FixCall);
        for words in ["--not-a-backup", "aster store adopt"] {
            assert!(error.to_string().contains(words), "{error}");
        }
        assert!(!to.exists());
    }
    let before = fs::read(&copied).unwrap();
    // What is only in the log of the store in use is in it too.
    for file in [&copied, &place.path] {
        restore_from(RestoreFrom::AnyCopy, file, &to).unwrap();
        assert!(
            !SqliteSerializer::open(&to)
                .unwrap()
                .snapshot("catalog")
                .await
                .unwrap()
                .held
        );
        for name in names(directory) {
            if name.starts_with("restored.db") {
                fs::remove_file(directory.join(name)).unwrap();
            }
        }
    }
    assert!(fs::read(&copied).unwrap() == before);
}

#[test]
fn what_cannot_be_restored_says_what_it_is() {
    let place = Place::new();
    let directory = place.directory.path();
    let to = directory.join("restored.db");
    let text = directory.join("text.db");
    fs::write(&text, "no database").unwrap();
    let error = restore_from(RestoreFrom::Backup, &text, &to).unwrap_err();
    assert!(error.to_string().contains("take another backup"), "{error}");
    assert!(!error.to_string().contains("adopt"), "{error}");
    let error = restore_from(RestoreFrom::Backup, directory, &to).unwrap_err();
    assert!(matches!(error, OpenError::NotAFile { .. }), "{error}");
}

/// A store of several steps.
async fn large(place: &Place) -> SqliteSerializer {
    let store = place.open();
    for number in 0..10 {
        let fence = acquire(&store, &format!("job/{number}"), "worker-a").await;
        let any = ExpectedRevision::Any;
        let value = vec![7; 1_000_000];
        store
            .compare_and_set(&fence, "worker-a", any, value)
            .await
            .unwrap();
    }
    store
}

#[tokio::test]
async fn a_copy_that_is_told_to_stop_leaves_nothing() {
    let place = Place::new();
    let store = large(&place).await;
    let archive = tempfile::tempdir().unwrap();
    let backup = archive.path().join("backup.db");
    let mut steps = 0;
    store
        .backup_while(&backup, ExistingBackup::Keep, &mut |_| {
            steps += 1;
            true
        })
        .unwrap();
    assert!(steps > 2, "{steps}");
    let before = fs::read(&backup).unwrap();
    let to = archive.path().join("restored.db");
    let (operator, options) = (principal("operator"), SqliteOptions::default());
    for stop_at in 0..steps {
        let mut asked = 0;
        let mut go_on = |_: CopyProgress| {
            asked += 1;
            asked <= stop_at
        };
        let error = store
            .backup_while(&backup, ExistingBackup::Replace, &mut go_on)
            .unwrap_err();
        assert!(matches!(error, OpenError::Stopped { .. }), "{error}");
        asked = 0;
        let mut go_on = |_: CopyProgress| {
            asked += 1;
            asked <= stop_at
        };
        let from = RestoreFrom::Backup;
        let error =
            SqliteSerializer::restore_while(&backup, &to, &operator, &options, from, &mut go_on)
                .unwrap_err();
        assert!(matches!(error, OpenError::Stopped { .. }), "{error}");
        assert_eq!(names(archive.path()), ["backup.db"]);
        assert!(fs::read(&backup).unwrap() == before);
    }
}

/// Between any two steps of the copy somebody commits, and the backup is still the moment at which it
/// began.
#[tokio::test]
async fn a_copy_of_many_steps_is_one_moment() {
    let place = Place::new();
    let store = large(&place).await;
    let outside = rusqlite::Connection::open(&place.path).unwrap();
    outside
        .execute_batch("CREATE TABLE first (n); CREATE TABLE pad (x); CREATE TABLE last (n);")
        .unwrap();
    let archive = tempfile::tempdir().unwrap();
    let backup = archive.path().join("backup.db");
    let mut steps = 0;
    let made = store
        .backup_while(&backup, ExistingBackup::Keep, &mut |_| {
            steps += 1;
            outside
                .execute_batch(
                    "BEGIN; INSERT INTO first VALUES (1); INSERT INTO last VALUES (1);
                     UPDATE aster_store SET sequence = sequence + 1; COMMIT;",
                )
                .unwrap();
            // A copy that began anew after every commit would never end.
            steps < 100
        })
        .unwrap();
    assert!((3..100).contains(&steps), "it does not begin anew: {steps}");
    let copied = rusqlite::Connection::open(&backup).unwrap();
    let count = |sql: &str| -> i64 { copied.query_row(sql, [], |row| row.get(0)).unwrap() };
    assert_eq!(count("SELECT count(*) FROM first"), 0);
    assert_eq!(count("SELECT count(*) FROM last"), 0);
    let sequence = count("SELECT sequence FROM aster_store");
    assert_eq!(made.sequence, sequence.cast_unsigned());
}

#[tokio::test]
async fn what_a_dead_process_has_left_is_removed_and_what_is_being_made_stays() {
    let place = Place::new();
    let store = place.open();
    let archive = tempfile::tempdir().unwrap();
    let directory = archive.path();
    let backup = directory.join("backup.db");
    let dead = "backup.db.draft-00000000000000aa";
    let locked = "backup.db.draft-00000000000000bb";
    let foreign = [
        "backup.db.draft-notes",
        "other.db.draft-00000000000000cc",
        "backup.db.old",
    ];
    let leave = || {
        for name in foreign.iter().copied().chain([dead, locked]) {
            fs::write(directory.join(name), "left").unwrap();
        }
        fs::write(directory.join(format!("{dead}-journal")), "left").unwrap();
    };
    leave();
    let working = fs::File::open(directory.join(locked)).unwrap();
    working.try_lock().unwrap();
    // While one is at work another begins, finishes, and does not take away what the first writes.
    let mut is_first = true;
    store
        .backup_while(&backup, ExistingBackup::Keep, &mut |_| {
            if std::mem::take(&mut is_first) {
                assert!(!directory.join(dead).exists());
                let drafts = names(directory).len();
                let error = restore_from(RestoreFrom::Backup, &directory.join("none"), &backup);
                assert!(matches!(error, Err(OpenError::NoBackup { .. })));
                store.backup(&backup, ExistingBackup::Keep).unwrap();
                assert_eq!(
                    names(directory).len(),
                    drafts + 1,
                    "the first is still there"
                );
                fs::remove_file(&backup).unwrap();
            }
            true
        })
        .unwrap();
    let mut expected: Vec<_> = foreign
        .iter()
        .copied()
        .chain([locked, "backup.db"])
        .collect();
    expected.sort_unstable();
    assert_eq!(names(directory), expected);
    // Its process dies, and its lock with it.
    drop(working);
    let to = directory.join("backup.db.restored");
    replace(&store, &backup).unwrap();
    assert!(!directory.join(locked).exists());
    // A restore sweeps for its own name.
    fs::write(
        directory.join("backup.db.restored.draft-00000000000000dd"),
        "left",
    )
    .unwrap();
    restore_from(RestoreFrom::Backup, &backup, &to).unwrap();
    assert!(!names(directory).iter().any(|name| name.ends_with("dd")));
}
