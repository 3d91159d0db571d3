//! A database of each schema version is kept; this version must read it.

#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "a test that cannot go on fails, and it owns its threads"
)]

mod support;

use std::path::{Path, PathBuf};
use std::process::Command;

use aster_core::{DenyReason, ExpectedRevision, FenceRejection};
use aster_lease::{
    AuditEvent, AuditLog, AuditQuery, FencedError, LeaseSerializer, ListQuery, Registers,
};
use aster_sqlite::{OpenError, SqliteSerializer};
use support::*;

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/fixtures")
        .join(name)
}

/// Writes the fixture of the present version. Run it once when the version is raised:
/// `cargo test -p aster-sqlite --test fixture write_the_fixture -- --ignored`.
#[tokio::test]
#[ignore = "writes a file into the source tree"]
async fn write_the_fixture() {
    let place = Place::new();
    let time = TestTime::new("boot of the fixture");
    let store = place.open_at(&time);
    let first = acquire(&store, "catalog/current", "worker-a").await;
    let any = ExpectedRevision::Any;
    store
        .compare_and_set(&first, "worker-a", any, b"catalog-v1".to_vec())
        .await
        .unwrap();
    time.advance_ms(TTL_MS);
    let second = acquire(&store, "catalog/current", "worker-b").await;
    store
        .compare_and_set(&second, "worker-b", 1.into(), b"catalog-v2".to_vec())
        .await
        .unwrap();
    store
        .mutate_fenced(&second, "worker-b", |tx| publish(tx, "catalog-v2"))
        .unwrap();
    store
        .mutate_fenced(&first, "worker-a", |tx| publish(tx, "late"))
        .unwrap_err();
    let freed = acquire(&store, "free", "worker-a").await;
    release(&store, &freed).await.unwrap();
    hold_off(&store, "held off", "worker-a", 3_600_000).await;
    hold_off(&store, "held off", "worker-b", 60_000).await;
    drop(store);
    std::fs::copy(&place.path, fixture("v1.db")).unwrap();
}

#[tokio::test]
async fn a_database_of_schema_version_1_is_read() {
    let place = Place::new();
    // Git does not keep inodes, so a checked-out fixture is a copy like any other.
    let copied = Command::new("cp")
        .arg(fixture("v1.db"))
        .arg(&place.path)
        .status()
        .unwrap();
    assert!(copied.success());
    let error = SqliteSerializer::open(&place.path).unwrap_err();
    assert!(matches!(error, OpenError::Copied { .. }), "{error}");
    let adopted = SqliteSerializer::adopt(&place.path, &principal("operator")).unwrap();
    assert_eq!(adopted.leases_ended, 1);

    let store = place.open();
    let rows = store.list(ListQuery::default()).await.unwrap();
    let shown: Vec<_> = rows
        .iter()
        .map(|row| (&*row.resource, row.epoch, row.held))
        .collect();
    // Held at 2 before it was adopted; the others were free.
    assert_eq!(
        shown,
        [
            ("catalog/current", 3, false),
            ("free", 2, false),
            ("held off", 4, false)
        ]
    );
    let value = Registers::read(&store, "catalog/current")
        .await
        .unwrap()
        .unwrap();
    assert_eq!(
        (&*value.value, value.value_revision, value.epoch),
        (&b"catalog-v2"[..], 2, 2)
    );
    let records = store.audit(AuditQuery::default()).await.unwrap();
    let events: Vec<_> = records.iter().map(|record| record.event).collect();
    for event in [
        AuditEvent::Granted,
        AuditEvent::TakenOver,
        AuditEvent::Released,
        AuditEvent::Revoked,
        AuditEvent::Rejected,
        AuditEvent::Adopted,
    ] {
        assert!(events.contains(&event), "{event:?} in {events:?}");
    }
    assert_eq!(published(&place.path), ["catalog-v2"]);

    // It goes on where it was: epochs, revisions, and no hold-offs from before.
    let next = acquire(&store, "catalog/current", "worker-c").await;
    assert_eq!(next.epoch, 4);
    let written = store
        .compare_and_set(&next, "worker-c", 2.into(), b"catalog-v3".to_vec())
        .await;
    assert_eq!(written.unwrap(), 3);
    acquire(&store, "held off", "worker-a").await;
    let mut old = next.clone();
    old.authority = adopted.previous_authority;
    let late = store.mutate_fenced(&old, "worker-c", |tx| publish(tx, "late"));
    assert!(matches!(
        late,
        Err(FencedError::Rejected(FenceRejection::WrongAuthority))
    ));
    assert_eq!(
        denied(try_acquire(&store, "held off", "worker-b").await).0,
        DenyReason::HeldByOther
    );
}
