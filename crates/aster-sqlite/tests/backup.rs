//! A backup of a store in use, and a store made from it.

#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "a test that cannot go on fails, and it owns its threads"
)]

mod support;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use aster_core::{ErrorKind, ExpectedRevision, FenceRejection};
use aster_lease::{
    AuditEvent, AuditLog, AuditQuery, FencedError, LeaseSerializer, RegisterError, Registers,
};
use aster_sqlite::{ExistingBackup, OpenError, SqliteSerializer};
use support::*;

const WRITERS: usize = 4;

/// The names in the directory of `place`.
fn names(place: &Place) -> Vec<String> {
    let entries = std::fs::read_dir(place.directory.path()).unwrap();
    let mut names: Vec<_> = entries
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

fn restore(place: &Place, from: &Path) -> SqliteSerializer {
    let to = place.directory.path().join("restored.db");
    SqliteSerializer::restore(from, &to, &principal("operator")).unwrap();
    SqliteSerializer::open(&to).unwrap()
}

/// Each writer counts in a register and, in one transaction each, in two tables of its own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_backup_under_load_keeps_what_was_acknowledged_before_and_is_one_moment() {
    let place = Place::new();
    let store = place.open();
    let stop = Arc::new(AtomicBool::new(false));
    let acknowledged: Arc<Vec<AtomicU64>> =
        Arc::new((0..WRITERS).map(|_| AtomicU64::new(0)).collect());
    let mut writers = Vec::new();
    for number in 0..WRITERS {
        let resource = format!("job/{number}");
        let fence = acquire(&store, &resource, "worker").await;
        store
            .mutate_fenced(&fence, "worker", |tx| {
                tx.execute_batch(&format!(
                    "CREATE TABLE a{number} (n INTEGER); CREATE TABLE b{number} (n INTEGER);"
                ))
            })
            .unwrap();
        let (store, stop, acknowledged) = (store.clone(), stop.clone(), acknowledged.clone());
        writers.push(tokio::spawn(async move {
            while !stop.load(Ordering::SeqCst) {
                let any = ExpectedRevision::Any;
                let revision = store
                    .compare_and_set(&fence, "worker", any, b"value".to_vec())
                    .await
                    .unwrap();
                store
                    .mutate_fenced(&fence, "worker", |tx| {
                        tx.execute(
                            &format!("INSERT INTO a{number} VALUES (?1)"),
                            [revision.cast_signed()],
                        )?;
                        tx.execute(
                            &format!("INSERT INTO b{number} VALUES (?1)"),
                            [revision.cast_signed()],
                        )
                    })
                    .unwrap();
                acknowledged[number].store(revision, Ordering::SeqCst);
            }
        }));
    }
    for round in 0..5_u64 {
        while acknowledged
            .iter()
            .any(|of| of.load(Ordering::SeqCst) <= round * 3)
        {
            tokio::task::yield_now().await;
        }
        let before: Vec<u64> = acknowledged
            .iter()
            .map(|of| of.load(Ordering::SeqCst))
            .collect();
        let copy = place.directory.path().join(format!("backup-{round}.db"));
        let (backed_up, to) = (store.clone(), copy.clone());
        let backup =
            tokio::task::spawn_blocking(move || backed_up.backup(&to, ExistingBackup::Keep))
                .await
                .unwrap()
                .unwrap();
        assert_eq!(backup.authority, store.store_authority());
        assert_eq!(backup.bytes, copy.metadata().unwrap().len());
        let connection = rusqlite::Connection::open(&copy).unwrap();
        for (number, before) in before.iter().enumerate() {
            let count = |sql: String| -> u64 {
                let found: i64 = connection.query_row(&sql, [], |row| row.get(0)).unwrap();
                found.cast_unsigned()
            };
            let a = count(format!("SELECT count(*) FROM a{number}"));
            let b = count(format!("SELECT count(*) FROM b{number}"));
            assert!(a >= *before, "round {round}: {a} of {before} acknowledged");
            assert_eq!(a, b, "both or neither");
            let revision = count(format!(
                "SELECT value_revision FROM aster_registers WHERE resource = 'job/{number}'"
            ));
            assert!(revision == a || revision == a + 1, "{revision} beside {a}");
        }
    }
    stop.store(true, Ordering::SeqCst);
    for writer in writers {
        writer.await.unwrap();
    }
}

#[tokio::test]
async fn a_restored_store_goes_on_under_a_new_authority_and_old_fences_are_refused() {
    let place = Place::new();
    let store = place.open();
    let fence = acquire(&store, "catalog", "worker-a").await;
    let any = ExpectedRevision::Any;
    let revision = store
        .compare_and_set(&fence, "worker-a", any, b"catalog-v1".to_vec())
        .await
        .unwrap();
    let copy = place.directory.path().join("backup.db");
    store.backup(&copy, ExistingBackup::Keep).unwrap();
    let to = place.directory.path().join("restored.db");
    let adopted = SqliteSerializer::restore(&copy, &to, &principal("operator")).unwrap();
    assert_eq!(adopted.previous_authority, fence.authority);
    assert_ne!(adopted.authority, fence.authority);
    assert_eq!(adopted.leases_ended, 1);

    let restored = SqliteSerializer::open(&to).unwrap();
    let value = Registers::read(&restored, "catalog")
        .await
        .unwrap()
        .unwrap();
    assert_eq!(
        (&*value.value, value.value_revision),
        (&b"catalog-v1"[..], revision)
    );
    let late = restored.mutate_fenced(&fence, "worker-a", |tx| publish(tx, "late"));
    assert!(matches!(
        late,
        Err(FencedError::Rejected(FenceRejection::WrongAuthority))
    ));
    let late = restored
        .compare_and_set(&fence, "worker-a", any, b"late".to_vec())
        .await;
    assert!(matches!(
        late,
        Err(RegisterError::Rejected(FenceRejection::WrongAuthority))
    ));
    let next = acquire(&restored, "catalog", "worker-b").await;
    assert!(next.epoch > fence.epoch + 1, "{}", next.epoch);
    restored
        .compare_and_set(&next, "worker-b", revision.into(), b"catalog-v2".to_vec())
        .await
        .unwrap();
    let records = restored.audit(AuditQuery::default()).await.unwrap();
    let adopted = records
        .iter()
        .find(|record| record.event == AuditEvent::Adopted);
    assert_eq!(adopted.unwrap().actor.as_deref(), Some("operator"));

    // The store that was backed up has noticed nothing, and can be restored once more.
    assert_renewed(renew(&store, &fence).await);
    drop((store, restored));
    SqliteSerializer::open(&to).unwrap();
}

#[tokio::test]
async fn a_backup_is_refused_as_a_store() {
    let place = Place::new();
    let store = place.open();
    acquire(&store, "catalog", "worker-a").await;
    let copy = place.directory.path().join("backup.db");
    store.backup(&copy, ExistingBackup::Keep).unwrap();
    let error = SqliteSerializer::open(&copy).unwrap_err();
    assert!(matches!(error, OpenError::Copied { .. }), "{error}");
}

#[tokio::test]
async fn nothing_is_overwritten_unless_it_is_asked_for() {
    let place = Place::new();
    let store = place.open();
    let fence = acquire(&store, "catalog", "worker-a").await;
    let copy = place.directory.path().join("backup.db");
    std::fs::write(&copy, "precious").unwrap();
    let error = store.backup(&copy, ExistingBackup::Keep).unwrap_err();
    assert!(matches!(error, OpenError::Exists { .. }), "{error}");
    assert_eq!(std::fs::read(&copy).unwrap(), b"precious");
    let error = store.backup(&copy, ExistingBackup::Replace).unwrap_err();
    assert!(matches!(error, OpenError::NotReplaced { .. }), "{error}");
    assert_eq!(std::fs::read(&copy).unwrap(), b"precious");
    std::fs::remove_file(&copy).unwrap();
    store.backup(&copy, ExistingBackup::Keep).unwrap();
    store.backup(&copy, ExistingBackup::Replace).unwrap();
    assert_renewed(renew(&store, &fence).await);

    for taken in [&place.path, &copy] {
        let error = SqliteSerializer::restore(&copy, taken, &principal("operator")).unwrap_err();
        assert!(matches!(error, OpenError::Exists { .. }), "{error}");
        assert_eq!(error.kind(), ErrorKind::FixCall);
    }
    assert_eq!(
        names(&place),
        [
            "backup.db",
            "leases.db",
            "leases.db-aster",
            "leases.db-aster-shm",
            "leases.db-aster-wal",
            "leases.db-shm",
            "leases.db-wal"
        ],
        "no draft is left"
    );
}

/// SQLite would play the log of a lost database into whatever takes its name.
#[tokio::test]
async fn a_log_that_an_earlier_store_has_left_is_not_mixed_in() {
    let place = Place::new();
    let store = place.open();
    acquire(&store, "catalog", "worker-a").await;
    let copy = place.directory.path().join("backup.db");
    store.backup(&copy, ExistingBackup::Keep).unwrap();
    let log = place.directory.path().join("restored.db-wal");
    std::fs::copy(place.directory.path().join("leases.db-wal"), &log).unwrap();
    let to = place.directory.path().join("restored.db");
    let error = SqliteSerializer::restore(&copy, &to, &principal("operator")).unwrap_err();
    assert!(
        matches!(&error, OpenError::Exists { path } if *path == log.canonicalize().unwrap()),
        "{error}"
    );
    assert!(!to.exists());
    std::fs::remove_file(&log).unwrap();
    // A side file from before does no harm: the restored store is another one.
    std::fs::copy(
        place.side(),
        place.directory.path().join("restored.db-aster"),
    )
    .unwrap();
    acquire(&restore(&place, &copy), "catalog", "worker-b").await;
}

#[tokio::test]
async fn what_cannot_be_restored_leaves_nothing_behind() {
    let place = Place::new();
    let store = place.open();
    let fence = acquire(&store, "catalog", "worker-a").await;
    let big = vec![7; 500_000];
    store
        .compare_and_set(&fence, "worker-a", ExpectedRevision::Any, big)
        .await
        .unwrap();
    let directory = place.directory.path();
    let whole = directory.join("whole.db");
    store.backup(&whole, ExistingBackup::Keep).unwrap();
    drop(store);

    let cut = directory.join("cut.db");
    let bytes = std::fs::read(&whole).unwrap();
    std::fs::write(&cut, &bytes[..bytes.len() / 2]).unwrap();
    let text = directory.join("text.db");
    std::fs::write(
        &text,
        "no database at all, but long enough to be looked at".repeat(100),
    )
    .unwrap();
    let other = directory.join("other.db");
    rusqlite::Connection::open(&other)
        .unwrap()
        .execute_batch("CREATE TABLE t (x)")
        .unwrap();
    let newer = directory.join("newer.db");
    std::fs::copy(&whole, &newer).unwrap();
    rusqlite::Connection::open(&newer)
        .unwrap()
        .execute_batch("UPDATE aster_store SET schema_version = 1000")
        .unwrap();
    let missing = directory.join("missing.db");
    let before = names(&place);
    let to = directory.join("restored.db");
    for from in [&cut, &text, &other, &newer, &missing] {
        let error = SqliteSerializer::restore(from, &to, &principal("operator")).unwrap_err();
        let expected = match &error {
            OpenError::DamagedBackup { .. } => *from == cut || *from == text,
            OpenError::NoStore { .. } => *from == other,
            OpenError::NewerSchema { .. } => *from == newer,
            OpenError::NoBackup { .. } => *from == missing,
            _ => false,
        };
        assert!(expected, "{from:?}: {error}");
        assert_eq!(names(&place), before, "{from:?}");
    }
    let snapshot = restore(&place, &whole).snapshot("catalog").await.unwrap();
    assert!(!snapshot.held && snapshot.epoch > fence.epoch);
}

#[test]
fn a_backup_can_be_read_where_nothing_can_be_written() {
    use std::os::unix::fs::PermissionsExt;
    let (place, archive) = (Place::new(), Place::new());
    let store = place.open();
    let copy = archive.directory.path().join("backup.db");
    store.backup(&copy, ExistingBackup::Keep).unwrap();
    let mode = |path: &Path| path.metadata().unwrap().permissions().mode();
    assert_eq!(mode(&copy), mode(&place.path), "no wider than the store");
    let read_only = std::fs::Permissions::from_mode(0o500);
    std::fs::set_permissions(archive.directory.path(), read_only).unwrap();
    restore(&place, &copy);
    let writable = std::fs::Permissions::from_mode(0o700);
    std::fs::set_permissions(archive.directory.path(), writable).unwrap();
    assert_eq!(names(&archive), ["backup.db"]);
}
