//! A file that is refused at open stays byte for byte as it was.

#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "a test that cannot go on fails"
)]

mod support;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use aster_core::ExpectedRevision;
use aster_lease::Registers;
use aster_sqlite::{ExistingBackup, OpenError, SqliteOptions, SqliteSerializer};
use support::*;

/// Every file in the directory, by name, apart from what SQLite and the store may rebuild: shared
/// memory, and the side file.
fn contents(directory: &Path) -> BTreeMap<String, Vec<u8>> {
    fs::read_dir(directory)
        .unwrap()
        .map(|entry| entry.unwrap())
        .map(|entry| (entry.file_name().into_string().unwrap(), entry.path()))
        .filter(|(name, _)| !name.ends_with("-shm") && !name.contains("-aster"))
        .map(|(name, path)| (name, fs::read(path).unwrap()))
        .collect()
}

/// A store with a value, closed again.
async fn with_a_value(place: &Place) {
    let store = place.open();
    let fence = acquire(&store, "catalog", "worker-a").await;
    store
        .compare_and_set(&fence, "worker-a", ExpectedRevision::Any, vec![7; 300_000])
        .await
        .unwrap();
}

fn rename_version(path: &Path) {
    rusqlite::Connection::open(path)
        .unwrap()
        .execute_batch("UPDATE aster_store SET schema_version = 1000")
        .unwrap();
}

#[tokio::test]
async fn whatever_is_refused_stays_as_it_was() {
    let place = Place::new();
    with_a_value(&place).await;
    let store = place.open();
    let backup = place.directory.path().join("backup.db");
    store.backup(&backup, ExistingBackup::Keep).unwrap();
    acquire(&store, "another", "worker-b").await;

    type Make<'a> = &'a dyn Fn(&Path);
    type Expected = fn(&OpenError) -> bool;
    let copied: Expected = |error| matches!(error, OpenError::Copied { .. });
    let newer: Expected = |error| matches!(error, OpenError::NewerSchema { .. });
    let damaged: Expected = |error| matches!(error, OpenError::Damaged { .. });
    let no_store: Expected = |error| matches!(error, OpenError::NoStore { .. });
    let copy_all = |to: &Path| {
        for suffix in ["", "-wal", "-shm", "-aster", "-aster-wal", "-aster-shm"] {
            let from = format!("{}{suffix}", place.path.display());
            let to = format!("{}{suffix}", to.display());
            // Other descriptors on the file in use must not be closed here.
            let copied = std::process::Command::new("cp").arg(from).arg(to).status();
            assert!(copied.unwrap().success());
        }
    };
    let copy_main = |to: &Path| {
        copy_all(to);
        for suffix in ["-wal", "-shm", "-aster", "-aster-wal", "-aster-shm"] {
            fs::remove_file(format!("{}{suffix}", to.display())).unwrap();
        }
    };
    let cases: [(&str, Make<'_>, Expected); 8] = [
        ("a backup", &|to| _ = fs::copy(&backup, to).unwrap(), copied),
        ("a copy of the main file", &copy_main, copied),
        ("a copy with its log", &copy_all, copied),
        (
            "a newer backup",
            &|to| {
                fs::copy(&backup, to).unwrap();
                rename_version(to);
            },
            newer,
        ),
        (
            "a newer copy",
            &|to| {
                copy_main(to);
                rename_version(to);
            },
            newer,
        ),
        (
            "a text file",
            &|to| fs::write(to, "this was never a database").unwrap(),
            damaged,
        ),
        (
            "half a file",
            &|to| {
                let bytes = fs::read(&backup).unwrap();
                fs::write(to, &bytes[..bytes.len() / 2]).unwrap();
            },
            damaged,
        ),
        (
            "somebody's database",
            &|to| {
                let user = rusqlite::Connection::open(to).unwrap();
                user.execute_batch("CREATE TABLE t (x)").unwrap();
            },
            no_store,
        ),
    ];
    for (name, make, is_expected) in cases {
        let other = Place::new();
        make(&other.path);
        let before = contents(other.directory.path());
        for create in [false, true] {
            let is_made_a_store = create && name == "somebody's database";
            if is_made_a_store {
                continue;
            }
            let options = SqliteOptions {
                create,
                ..SqliteOptions::default()
            };
            let error = SqliteSerializer::open_with(&other.path, options).unwrap_err();
            assert!(is_expected(&error), "{name}: {error}");
            assert!(contents(other.directory.path()) == before, "{name}: open");
        }
        // A copy would be adopted.
        if !name.starts_with("a copy") && name != "a backup" {
            let operator = principal("operator");
            let error = SqliteSerializer::adopt(&other.path, &operator).unwrap_err();
            assert!(is_expected(&error), "{name}: {error}");
            assert!(contents(other.directory.path()) == before, "{name}: adopt");
        }
    }
}

#[tokio::test]
async fn a_file_that_has_gone_back_in_time_stays_as_it_is() {
    let place = Place::new();
    with_a_value(&place).await;
    let old = fs::read(&place.path).unwrap();
    {
        let store = place.open();
        acquire(&store, "another", "worker-b").await;
    }
    // In place, so that it is the same file.
    fs::write(&place.path, &old).unwrap();
    let before = contents(place.directory.path());
    let error = SqliteSerializer::open(&place.path).unwrap_err();
    assert!(matches!(error, OpenError::WentBack { .. }), "{error}");
    let mut after = contents(place.directory.path());
    // An empty log may be there now.
    after.retain(|name, bytes| !(name.ends_with("-wal") && bytes.is_empty()));
    assert!(after == before);
}

/// What the refused open used to leave behind kept the next backup and restore from working.
#[tokio::test]
async fn a_backup_that_was_opened_by_mistake_is_as_good_as_before() {
    let place = Place::new();
    with_a_value(&place).await;
    let store = place.open();
    let archive = tempfile::tempdir().unwrap();
    let backup: PathBuf = archive.path().join("backup.db");
    store.backup(&backup, ExistingBackup::Keep).unwrap();
    SqliteSerializer::open(&backup).unwrap_err();
    let to = place.directory.path().join("restored.db");
    SqliteSerializer::restore(&backup, &to, &principal("operator")).unwrap();
    assert_eq!(fs::read_dir(archive.path()).unwrap().count(), 1);
    store.backup(&backup, ExistingBackup::Replace).unwrap();
}
