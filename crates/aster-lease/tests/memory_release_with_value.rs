//! Writing a value and releasing in one step: both or neither, and a retry is recognized.

#![allow(clippy::expect_used, reason = "helpers of tests may panic")]

mod support;

use std::sync::Arc;
use std::sync::mpsc;
use std::thread;

use aster_lease::{
    AuditEvent, AuditLog, AuditQuery, ErrorKind, ExpectedRevision, Fence, FenceRejection, LeaseOp,
    LeaseSerializer, MemoryOptions, MemorySerializer, RegisterError, Registers, SerializerError,
    TransitionOutcome, WriteId, revoke,
};
use support::{RESOURCE, acquire_raw, principal, settle};
use tokio::runtime::Handle;

fn id(number: u8) -> WriteId {
    WriteId::from_bytes([number; 16])
}

async fn held(store: &MemorySerializer, holder: &str, grant: u8) -> Fence {
    match acquire_raw(store, holder, grant).await {
        TransitionOutcome::Granted(fence) => fence,
        other => panic!("{holder}: {other:?}"),
    }
}

async fn release_with(
    store: &MemorySerializer,
    fence: &Fence,
    value: &str,
    write: u8,
) -> Result<u64, RegisterError> {
    let value = value.as_bytes().to_vec();
    let writer = fence.holder.as_str();
    store
        .release_with_value(fence, writer, ExpectedRevision::Any, value, id(write))
        .await
}

async fn value(store: &MemorySerializer) -> Option<(String, u64, u64)> {
    let value = store.read(RESOURCE).await.expect("read")?;
    let text = String::from_utf8(value.value).expect("text");
    Some((text, value.value_revision, value.epoch))
}

#[tokio::test]
async fn the_next_owner_finds_the_value_and_the_old_fence_is_over() {
    let store = MemorySerializer::new();
    let fence = held(&store, "a", 1).await;
    assert_eq!(release_with(&store, &fence, "last", 1).await.ok(), Some(1));
    let snapshot = store.snapshot(RESOURCE).await.expect("read");
    assert_eq!((snapshot.held, snapshot.epoch), (false, 2));
    assert_eq!(value(&store).await, Some(("last".to_owned(), 1, 1)));
    assert!(store.mutate_fenced(&fence, "a", || ()).is_err());
    let next = held(&store, "b", 2).await;
    assert_eq!(release_with(&store, &next, "newer", 2).await.ok(), Some(2));
    let records = store.audit(AuditQuery::default()).await.expect("read");
    let events: Vec<_> = records.iter().map(|it| it.event).collect();
    let (granted, rejected, released) = (
        AuditEvent::Granted,
        AuditEvent::Rejected,
        AuditEvent::Released,
    );
    assert_eq!(events, [granted, released, rejected, granted, released]);
}

#[tokio::test]
async fn a_retry_is_answered_as_the_first_attempt_was_until_somebody_writes() {
    let store = MemorySerializer::new();
    let fence = held(&store, "a", 1).await;
    let lost = release_with(&store, &fence, "last", 1).await;
    assert_eq!(lost.ok(), Some(1));
    assert_eq!(release_with(&store, &fence, "last", 1).await.ok(), Some(1));
    // The next owner changes nothing of that until it writes.
    let next = held(&store, "b", 2).await;
    assert_eq!(release_with(&store, &fence, "last", 1).await.ok(), Some(1));
    assert!(
        store.snapshot(RESOURCE).await.expect("read").held,
        "b still owns it"
    );
    store
        .compare_and_set(&next, "b", ExpectedRevision::Any, b"b's".to_vec())
        .await
        .expect("written");
    let stale = release_with(&store, &fence, "last", 1).await;
    assert!(
        matches!(
            stale,
            Err(RegisterError::Rejected(FenceRejection::StaleEpoch { .. }))
        ),
        "{stale:?}"
    );
    assert_eq!(value(&store).await, Some(("b's".to_owned(), 2, 3)));
}

/// Only the very write and release is a retry.
#[tokio::test]
async fn what_looks_like_a_retry_and_is_none_is_rejected() {
    let store = MemorySerializer::new();
    let fence = held(&store, "a", 1).await;
    store
        .compare_and_set_with_id(&fence, "a", ExpectedRevision::Any, b"v".to_vec(), id(1))
        .await
        .expect("written");
    revoke(&store, RESOURCE, "operator", None)
        .await
        .expect("revoked");
    // Another write id, another writer, and a plain write under an ended fence.
    assert!(matches!(
        release_with(&store, &fence, "v", 2).await,
        Err(RegisterError::Rejected(_))
    ));
    let other = store
        .release_with_value(&fence, "b", ExpectedRevision::Any, b"v".to_vec(), id(1))
        .await;
    assert!(
        matches!(other, Err(RegisterError::Rejected(_))),
        "{other:?}"
    );
    let plain = store
        .compare_and_set_with_id(&fence, "a", ExpectedRevision::Any, b"v".to_vec(), id(1))
        .await;
    assert!(
        matches!(plain, Err(RegisterError::Rejected(_))),
        "{plain:?}"
    );
}

/// The value was written before under the same id, by an attempt that did not release.
#[tokio::test]
async fn a_value_that_is_written_already_is_released_all_the_same() {
    let store = MemorySerializer::new();
    let fence = held(&store, "a", 1).await;
    store
        .compare_and_set_with_id(&fence, "a", ExpectedRevision::Any, b"v".to_vec(), id(1))
        .await
        .expect("written");
    assert_eq!(release_with(&store, &fence, "v", 1).await.ok(), Some(1));
    assert!(!store.snapshot(RESOURCE).await.expect("read").held);
}

#[tokio::test]
async fn a_conflict_or_a_value_over_the_bound_releases_nothing() {
    let store = MemorySerializer::with_options(MemoryOptions {
        register_bytes_max: 4,
        ..MemoryOptions::default()
    })
    .expect("random bytes");
    let fence = held(&store, "a", 1).await;
    let conflict = store
        .release_with_value(&fence, "a", 7.into(), b"v".to_vec(), id(1))
        .await;
    assert!(
        matches!(conflict, Err(RegisterError::Conflict { current: None })),
        "{conflict:?}"
    );
    let large = release_with(&store, &fence, "12345", 2)
        .await
        .expect_err("too large");
    assert_eq!(large.kind(), ErrorKind::FixCall, "{large}");
    assert_eq!(store.mutate_fenced(&fence, "a", || 1), Ok(1), "still held");
    assert_eq!(value(&store).await, None);
}

#[tokio::test]
async fn who_may_not_release_writes_nothing_either() {
    let store = MemorySerializer::new();
    let fence = held(&store, "a", 1).await;
    store.set_authorizer(|op, _| !matches!(op, LeaseOp::Release { .. }));
    let refused = release_with(&store, &fence, "v", 1).await;
    assert!(
        matches!(
            refused,
            Err(RegisterError::Store(SerializerError::Refused { .. }))
        ),
        "{refused:?}"
    );
    assert_eq!(value(&store).await, None);
    assert!(store.snapshot(RESOURCE).await.expect("read").held);
}

/// A store that drops free rows at once: the row has a register from the same step on.
#[tokio::test]
async fn the_freed_row_is_not_dropped_with_its_value() {
    let store = MemorySerializer::with_options(MemoryOptions {
        idle_rows_max: 0,
        ..MemoryOptions::default()
    })
    .expect("random bytes");
    let fence = held(&store, "a", 1).await;
    assert_eq!(release_with(&store, &fence, "v", 1).await.ok(), Some(1));
    assert_eq!(value(&store).await, Some(("v".to_owned(), 1, 1)));
    assert_eq!(store.snapshot(RESOURCE).await.expect("read").epoch, 2);
}

/// A closure that runs holds up both halves; its waiter is granted in the same step as the release.
#[tokio::test]
async fn both_halves_wait_for_a_closure_that_runs() {
    let store = MemorySerializer::new();
    let fence = held(&store, "a", 1).await;
    let (entered_tx, entered) = mpsc::channel();
    let (resume, resumed) = mpsc::channel::<()>();
    let inside = {
        let (store, fence) = (store.clone(), fence.clone());
        let closure = move || {
            store.mutate_fenced(&fence, "a", || {
                entered_tx.send(()).expect("the test waits");
                resumed.recv().expect("the test resumes");
            })
        };
        thread::Builder::new().spawn(closure).expect("a thread")
    };
    entered.recv().expect("inside");
    let waiting = {
        let store = store.clone();
        let request = aster_lease::WaitRequest {
            candidate: principal("b"),
            ttl: aster_lease::Ttl::new(support::TTL).expect("whole milliseconds"),
            grant_id: aster_lease::GrantId::from_bytes([9; 16]),
            wait: support::TTL,
        };
        Handle::current().spawn(async move { store.acquire_wait(RESOURCE, request).await })
    };
    settle().await;
    let releasing = {
        let (store, fence) = (store.clone(), fence.clone());
        Handle::current().spawn(async move { release_with(&store, &fence, "last", 1).await })
    };
    settle().await;
    assert!(!releasing.is_finished());
    assert_eq!(value(&store).await, None, "neither half yet");
    resume.send(()).expect("inside");
    assert_eq!(inside.join().expect("no panic"), Ok(()));
    assert_eq!(releasing.await.expect("no panic").ok(), Some(1));
    let snapshot = store.snapshot(RESOURCE).await.expect("read");
    assert_eq!(
        snapshot.holder.as_deref(),
        Some("b"),
        "handed over in the same step"
    );
    assert!(waiting.await.expect("no panic").is_ok());
}

/// The control: a write and then a release leave a gap in which the next owner finds the old value.
#[tokio::test]
async fn control_two_steps_leave_a_gap() {
    let store = Arc::new(MemorySerializer::new());
    let fence = held(&store, "a", 1).await;
    let op = LeaseOp::Release {
        holder: principal("a"),
        epoch: fence.epoch,
    };
    store
        .transition(RESOURCE, op)
        .await
        .expect("released first");
    held(&store, "b", 2).await;
    assert_eq!(value(&store).await, None, "b starts without a's last value");
    let late = store
        .compare_and_set(&fence, "a", ExpectedRevision::Any, b"last".to_vec())
        .await;
    assert!(matches!(late, Err(RegisterError::Rejected(_))), "{late:?}");
}
