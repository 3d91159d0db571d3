//! Is it the same file? Restored, copied, replaced, damaged, newer: refused with what to do.

#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "a test that cannot go on fails, and it owns its threads"
)]

mod support;

use std::path::Path;
use std::process::Command;

use aster_core::{ErrorKind, FenceRejection};
use aster_lease::{
    AuditEvent, AuditLog, AuditQuery, FencedError, LeaseSerializer, ListQuery, Registers,
    SerializerError,
};
use aster_sqlite::{OpenError, SqliteOptions, SqliteSerializer};
use support::*;

/// Another program copies: a descriptor of ours on the file would drop SQLite's locks when closed.
fn copy(from: &Path, to: &Path) {
    assert!(
        Command::new("cp")
            .arg(from)
            .arg(to)
            .status()
            .unwrap()
            .success()
    );
}

fn refused(path: &Path) -> OpenError {
    match SqliteSerializer::open(path) {
        Ok(_) => panic!("{path:?} was opened"),
        Err(error) => error,
    }
}

fn assert_says(error: &OpenError, kind: ErrorKind, words: &str) {
    assert_eq!(error.kind(), kind, "{error}");
    assert!(error.to_string().contains(words), "{error}");
}

/// A store at `place` with `catalog` held by worker-a at epoch 1, closed again.
async fn with_a_lease(place: &Place) -> aster_core::Fence {
    let store = place.open();
    acquire(&store, "catalog", "worker-a").await
}

#[tokio::test]
async fn a_copy_is_refused_until_adopted_and_then_old_fences_are_refused() {
    let place = Place::new();
    let old = with_a_lease(&place).await;
    let copied = place.directory.path().join("copy.db");
    copy(&place.path, &copied);
    let error = refused(&copied);
    assert!(matches!(error, OpenError::Copied { .. }), "{error}");
    assert_says(&error, ErrorKind::Stop, "adopt");
    // Refused again: looking does not adopt.
    assert!(matches!(refused(&copied), OpenError::Copied { .. }));

    let adopted = SqliteSerializer::adopt(&copied, &principal("operator")).unwrap();
    assert_eq!(
        (adopted.previous_authority, adopted.leases_ended),
        (old.authority, 1)
    );
    let store = SqliteSerializer::open(&copied).unwrap();
    assert_eq!(store.store_authority(), adopted.authority);
    let late = store.mutate_fenced(&old, "worker-a", |tx| publish(tx, "late"));
    let Err(FencedError::Rejected(rejection)) = late else {
        panic!("{late:?}")
    };
    assert_eq!(rejection, FenceRejection::WrongAuthority);
    let row = store.snapshot("catalog").await.unwrap();
    assert!(!row.held && row.epoch == old.epoch + 1);
    assert_eq!(
        acquire(&store, "catalog", "worker-b").await.epoch,
        old.epoch + 2
    );
    let told = store.audit(AuditQuery::default()).await.unwrap();
    let told = told
        .iter()
        .find(|record| record.event == AuditEvent::Adopted)
        .unwrap();
    assert_eq!(told.actor.as_deref(), Some("operator"));

    // The original goes on as if nothing had happened.
    let original = place.open();
    assert_renewed(renew(&original, &old).await);
}

#[tokio::test]
async fn a_file_copied_while_in_use_is_refused() {
    let place = Place::new();
    let store = place.open();
    acquire(&store, "catalog", "worker-a").await;
    let copied = place.directory.path().join("copy.db");
    copy(&place.path, &copied);
    // The main file alone, and with everything beside it.
    assert!(matches!(refused(&copied), OpenError::Copied { .. }));
    for suffix in ["", "-wal", "-shm", "-aster", "-aster-wal", "-aster-shm"] {
        let from = format!("{}{suffix}", place.path.display());
        let to = format!("{}{suffix}", copied.display());
        copy(Path::new(&from), Path::new(&to));
    }
    assert!(matches!(refused(&copied), OpenError::Copied { .. }));
    // SQLite's own ways to copy are no different.
    let vacuumed = place.directory.path().join("vacuumed.db");
    let connection = rusqlite::Connection::open(&place.path).unwrap();
    connection
        .execute("VACUUM INTO ?1", [vacuumed.to_str().unwrap()])
        .unwrap();
    assert!(matches!(refused(&vacuumed), OpenError::Copied { .. }));
    SqliteSerializer::adopt(&vacuumed, &principal("operator")).unwrap();
    SqliteSerializer::open(&vacuumed).unwrap();
}

#[tokio::test]
async fn a_backup_put_back_by_rename_is_refused() {
    let place = Place::new();
    let first = with_a_lease(&place).await;
    let backup = place.directory.path().join("backup.db");
    copy(&place.path, &backup);
    {
        let store = place.open();
        release(&store, &first).await.unwrap();
        acquire(&store, "catalog", "worker-b").await;
    }
    std::fs::rename(&backup, &place.path).unwrap();
    assert!(matches!(refused(&place.path), OpenError::Copied { .. }));
    SqliteSerializer::adopt(&place.path, &principal("operator")).unwrap();
    let store = place.open();
    // Without the new authority this fence would have passed: the restored row is at its epoch.
    let late = store.mutate_fenced(&first, "worker-a", |tx| publish(tx, "late"));
    assert!(matches!(
        late,
        Err(FencedError::Rejected(FenceRejection::WrongAuthority))
    ));
}

#[tokio::test]
async fn a_backup_written_over_the_file_in_place_is_refused() {
    let place = Place::new();
    let first = with_a_lease(&place).await;
    let backup = place.directory.path().join("backup.db");
    copy(&place.path, &backup);
    {
        let store = place.open();
        release(&store, &first).await.unwrap();
    }
    copy(&backup, &place.path);
    let error = refused(&place.path);
    assert!(matches!(error, OpenError::WentBack { .. }), "{error}");
    assert_says(&error, ErrorKind::Stop, "adopt");
    SqliteSerializer::adopt(&place.path, &principal("operator")).unwrap();
    assert!(!place.open().snapshot("catalog").await.unwrap().held);
}

/// The control: a backup that is as new as the file has lost nothing and is not refused.
#[tokio::test]
async fn control_a_present_backup_in_place_is_the_same_store() {
    let place = Place::new();
    let fence = with_a_lease(&place).await;
    let backup = place.directory.path().join("backup.db");
    copy(&place.path, &backup);
    copy(&backup, &place.path);
    assert_renewed(renew(&place.open(), &fence).await);
}

#[tokio::test]
async fn a_file_replaced_or_removed_under_an_open_store_is_noticed_at_once() {
    for remove in [true, false] {
        let place = Place::new();
        let store = place.open();
        let fence = acquire(&store, "catalog", "worker-a").await;
        let aside = place.directory.path().join("aside.db");
        std::fs::rename(&place.path, &aside).unwrap();
        if !remove {
            let other = Place::new();
            drop(other.open());
            copy(&other.path, &place.path);
        }
        let refusals = [
            renew(&store, &fence).await.unwrap_err(),
            release(&store, &fence).await.unwrap_err(),
            try_acquire(&store, "other", "worker-b").await.unwrap_err(),
            store.snapshot("catalog").await.unwrap_err(),
            store.list(ListQuery::default()).await.unwrap_err(),
            Registers::read(&store, "catalog").await.unwrap_err(),
        ];
        for refusal in refusals {
            assert!(
                matches!(refusal, SerializerError::Refused { .. }),
                "{refusal}"
            );
        }
        let write = store.mutate_fenced(&fence, "worker-a", |tx| publish(tx, "x"));
        let Err(FencedError::Store(SerializerError::Refused { .. })) = write else {
            panic!("{write:?}");
        };
    }
}

#[tokio::test]
async fn a_store_that_was_adopted_while_open_refuses_to_go_on() {
    let place = Place::new();
    let store = place.open();
    let fence = acquire(&store, "catalog", "worker-a").await;
    SqliteSerializer::adopt(&place.path, &principal("operator")).unwrap();
    for refusal in [
        renew(&store, &fence).await,
        try_acquire(&store, "x", "worker-a").await,
    ] {
        let error = refusal.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Stop, "{error}");
    }
    let write = store.mutate_fenced(&fence, "worker-a", |tx| publish(tx, "late"));
    assert!(matches!(
        write,
        Err(FencedError::Store(SerializerError::Refused { .. }))
    ));
    drop(store);
    assert!(!place.open().snapshot("catalog").await.unwrap().held);
    assert!(published(&place.path).is_empty());
}

#[tokio::test]
async fn a_file_that_goes_back_in_time_under_an_open_store_is_refused() {
    let place = Place::new();
    let store = place.open();
    let fence = acquire(&store, "catalog", "worker-a").await;
    // As `.restore` of SQLite's shell would: a transaction that brings old content back.
    let outside = rusqlite::Connection::open(&place.path).unwrap();
    outside
        .execute("UPDATE aster_store SET sequence = sequence - 1", [])
        .unwrap();
    let error = renew(&store, &fence).await.unwrap_err();
    assert!(matches!(error, SerializerError::Refused { .. }), "{error}");
    assert!(error.to_string().contains("back in time"), "{error}");
}

#[tokio::test]
async fn a_log_removed_under_an_open_store_is_noticed_at_once() {
    let place = Place::new();
    let store = place.open();
    let fence = acquire(&store, "catalog", "worker-a").await;
    std::fs::remove_file(format!("{}-wal", place.path.display())).unwrap();
    for refusal in [renew(&store, &fence).await, release(&store, &fence).await] {
        let error = refusal.unwrap_err();
        assert!(matches!(error, SerializerError::Refused { .. }), "{error}");
    }
    let write = store.mutate_fenced(&fence, "worker-a", |tx| publish(tx, "x"));
    assert!(
        matches!(
            write,
            Err(FencedError::Store(SerializerError::Refused { .. }))
        ),
        "{write:?}"
    );
    // Nobody else can join on what is left.
    assert_says(&refused(&place.path), ErrorKind::Report, "damaged");
}

#[tokio::test]
async fn a_newer_schema_is_refused_and_left_alone() {
    let place = Place::new();
    with_a_lease(&place).await;
    let outside = rusqlite::Connection::open(&place.path).unwrap();
    outside
        .execute("UPDATE aster_store SET schema_version = 2", [])
        .unwrap();
    let error = refused(&place.path);
    assert!(
        matches!(
            error,
            OpenError::NewerSchema {
                found: 2,
                supported: 1,
                ..
            }
        ),
        "{error}"
    );
    assert_says(&error, ErrorKind::Stop, "use a newer version");
    let adopt = SqliteSerializer::adopt(&place.path, &principal("operator")).unwrap_err();
    assert!(matches!(adopt, OpenError::NewerSchema { .. }), "{adopt}");
}

#[tokio::test]
async fn a_newer_schema_put_in_place_while_open_stops_the_old_version() {
    let place = Place::new();
    let store = place.open();
    let fence = acquire(&store, "catalog", "worker-a").await;
    let outside = rusqlite::Connection::open(&place.path).unwrap();
    outside
        .execute("UPDATE aster_store SET schema_version = 2", [])
        .unwrap();
    let error = renew(&store, &fence).await.unwrap_err();
    assert!(matches!(error, SerializerError::Refused { .. }), "{error}");
}

#[tokio::test]
async fn damage_is_named_and_never_taken_for_an_empty_store() {
    let place = Place::new();
    std::fs::write(
        &place.path,
        "this was never a database, but it is long enough to look",
    )
    .unwrap();
    assert_says(
        &refused(&place.path),
        ErrorKind::Report,
        "not a SQLite database",
    );
    let adopt = SqliteSerializer::adopt(&place.path, &principal("operator")).unwrap_err();
    assert!(matches!(adopt, OpenError::Damaged { .. }), "{adopt}");

    let place = Place::new();
    with_a_lease(&place).await;
    let mut bytes = std::fs::read(&place.path).unwrap();
    for byte in &mut bytes[100..] {
        *byte = 0xA5;
    }
    // The same file in place, so that only the damage can be seen.
    std::fs::write(&place.path, bytes).unwrap();
    assert_says(&refused(&place.path), ErrorKind::Report, "damaged");
}

#[test]
fn places_that_cannot_be_a_store_are_refused() {
    let place = Place::new();
    for path in ["", ":memory:"] {
        assert_says(
            &refused(Path::new(path)),
            ErrorKind::FixCall,
            "memory store",
        );
    }
    let missing = place.directory.path().join("no/such/leases.db");
    assert_says(&refused(&missing), ErrorKind::FixCall, "create it first");
    assert!(!missing.parent().unwrap().exists());
    assert_says(
        &refused(place.directory.path()),
        ErrorKind::FixCall,
        "not a regular file",
    );

    let nothing = SqliteSerializer::adopt(&place.path, &principal("operator")).unwrap_err();
    assert!(matches!(nothing, OpenError::Missing { .. }), "{nothing}");
    assert!(!place.path.exists());
    rusqlite::Connection::open(&place.path)
        .unwrap()
        .execute_batch("CREATE TABLE x (y)")
        .unwrap();
    let no_store = SqliteSerializer::adopt(&place.path, &principal("operator")).unwrap_err();
    assert!(matches!(no_store, OpenError::NoStore { .. }), "{no_store}");
}

#[tokio::test]
async fn a_file_with_a_second_name_is_refused_and_a_symbolic_link_is_the_same_store() {
    let place = Place::new();
    let fence = with_a_lease(&place).await;
    let second = place.directory.path().join("second.db");
    std::fs::hard_link(&place.path, &second).unwrap();
    assert_says(&refused(&second), ErrorKind::Stop, "hard links");
    assert_says(&refused(&place.path), ErrorKind::Stop, "hard links");
    std::fs::remove_file(&second).unwrap();

    std::os::unix::fs::symlink(&place.path, &second).unwrap();
    let by_link = SqliteSerializer::open(&second).unwrap();
    let by_name = place.open();
    assert_renewed(renew(&by_link, &fence).await);
    assert_renewed(renew(&by_name, &fence).await);
    let side_of_link = place.directory.path().join("second.db-aster");
    assert!(!side_of_link.exists(), "both must use one side file");
}

#[tokio::test]
async fn a_users_own_database_keeps_what_it_had() {
    let place = Place::new();
    {
        let user = rusqlite::Connection::open(&place.path).unwrap();
        user.execute_batch(
            "PRAGMA application_id = 77; PRAGMA user_version = 5;
             CREATE TABLE notes (text TEXT); INSERT INTO notes VALUES ('mine');",
        )
        .unwrap();
    }
    let store = place.open();
    let fence = acquire(&store, "notes", "worker-a").await;
    store
        .mutate_fenced(&fence, "worker-a", |tx| {
            tx.execute("INSERT INTO notes VALUES ('yours')", [])
        })
        .unwrap();
    drop(store);
    let user = rusqlite::Connection::open(&place.path).unwrap();
    let value = |sql: &str| user.query_row(sql, [], |row| row.get::<_, i64>(0)).unwrap();
    assert_eq!(value("PRAGMA application_id"), 77);
    assert_eq!(value("PRAGMA user_version"), 5);
    assert_eq!(value("SELECT count(*) FROM notes"), 2);
}

/// Both at once make one store.
#[test]
fn many_first_openings_at_once_make_one_store() {
    let place = Place::new();
    let openings: Vec<_> = (0..8)
        .map(|_| {
            let path = place.path.clone();
            std::thread::spawn(move || SqliteSerializer::open(path).unwrap().store_authority())
        })
        .collect();
    let authorities: Vec<_> = openings
        .into_iter()
        .map(|opening| opening.join().unwrap())
        .collect();
    assert!(
        authorities.windows(2).all(|pair| pair[0] == pair[1]),
        "{authorities:?}"
    );
}

/// A mistyped path must not look like an empty store.
#[test]
fn who_only_looks_makes_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let looking = || SqliteOptions {
        create: false,
        ..SqliteOptions::default()
    };
    let missing = directory.path().join("typo.db");
    let error = SqliteSerializer::open_with(&missing, looking()).unwrap_err();
    assert!(matches!(error, OpenError::Missing { .. }), "{error}");
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);

    let foreign = directory.path().join("foreign.db");
    let connection = rusqlite::Connection::open(&foreign).unwrap();
    connection.execute_batch("CREATE TABLE t (x)").unwrap();
    drop(connection);
    let before = std::fs::read(&foreign).unwrap();
    let error = SqliteSerializer::open_with(&foreign, looking()).unwrap_err();
    assert!(matches!(error, OpenError::NoStore { .. }), "{error}");
    assert_eq!(std::fs::read(&foreign).unwrap(), before, "left as it was");

    drop(SqliteSerializer::open(&foreign).unwrap());
    SqliteSerializer::open_with(&foreign, looking()).unwrap();
}

/// SQLite would make the file, find no room for the name of its log, and speak of permissions.
#[test]
fn a_name_without_room_for_the_names_beside_it_is_refused_and_nothing_is_made() {
    let place = Place::new();
    let longest = place.directory.path().join("n".repeat(228));
    for length in [229, 241, 247, 250, 255] {
        let path = place.directory.path().join("n".repeat(length));
        let refused = SqliteSerializer::open(&path).unwrap_err();
        assert!(
            matches!(refused, OpenError::NameTooLong { bytes_max: 228, .. }),
            "{length}: {refused}"
        );
        assert_eq!(
            std::fs::read_dir(place.directory.path()).unwrap().count(),
            0
        );
    }
    SqliteSerializer::open(longest).unwrap();
}
