//! Registers: a small value beside each row, changed only under its fence.

#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "a test that cannot go on fails, and it owns its threads"
)]

mod support;

use aster_core::{ErrorKind, ExpectedRevision, FenceRejection};
use aster_lease::{RegisterError, Registers};
use aster_sqlite::{SqliteOptions, SqliteSerializer};
use support::*;

async fn value(store: &SqliteSerializer) -> Option<(String, u64, u64)> {
    let read = Registers::read(store, "catalog").await.unwrap()?;
    Some((
        String::from_utf8(read.value).unwrap(),
        read.value_revision,
        read.epoch,
    ))
}

fn shown(value: &str, value_revision: u64, epoch: u64) -> Option<(String, u64, u64)> {
    Some((value.to_owned(), value_revision, epoch))
}

#[tokio::test]
async fn a_value_is_written_under_its_fence_and_read_without() {
    let place = Place::new();
    let store = place.open();
    assert_eq!(value(&store).await, None);
    let fence = acquire(&store, "catalog", "worker-a").await;
    let written = store
        .compare_and_set(&fence, "worker-a", ExpectedRevision::Absent, b"v1".to_vec())
        .await
        .unwrap();
    assert_eq!(written, 1);
    let written = store
        .compare_and_set(&fence, "worker-a", 1.into(), b"v2".to_vec())
        .await
        .unwrap();
    assert_eq!(written, 2);
    drop(store);
    assert_eq!(value(&place.open()).await, shown("v2", 2, 1));
}

#[tokio::test]
async fn a_write_that_expects_another_value_changes_nothing() {
    let place = Place::new();
    let store = place.open();
    let fence = acquire(&store, "catalog", "worker-a").await;
    let write = |expected, text: &str| {
        let (store, fence, text) = (store.clone(), fence.clone(), text.as_bytes().to_vec());
        async move {
            store
                .compare_and_set(&fence, "worker-a", expected, text)
                .await
        }
    };
    let conflict = write(ExpectedRevision::Exactly(3), "x").await.unwrap_err();
    assert!(
        matches!(conflict, RegisterError::Conflict { current: None }),
        "{conflict}"
    );
    write(ExpectedRevision::Any, "v1").await.unwrap();
    let conflict = write(ExpectedRevision::Absent, "x").await.unwrap_err();
    assert!(
        matches!(conflict, RegisterError::Conflict { current: Some(1) }),
        "{conflict}"
    );
    assert_eq!(value(&store).await, shown("v1", 1, 1));
}

#[tokio::test]
async fn a_retry_after_a_lost_reply_is_recognized_as_done() {
    let place = Place::new();
    let store = place.open();
    let fence = acquire(&store, "catalog", "worker-a").await;
    let write = |id: u64, text: &str| {
        let (store, fence, text) = (store.clone(), fence.clone(), text.as_bytes().to_vec());
        let expected = ExpectedRevision::Absent;
        async move {
            store
                .compare_and_set_with_id(&fence, "worker-a", expected, text, write_id(id))
                .await
        }
    };
    // The reply is lost: the future is dropped after each number of polls.
    for polls in 0..8 {
        let _lost = after_polls(polls, write(1, "v1")).await;
    }
    assert_eq!(write(1, "v1").await.unwrap(), 1);
    assert_eq!(write(1, "v1").await.unwrap(), 1);
    assert_eq!(value(&store).await, shown("v1", 1, 1));
    // Another write with the same expectation is not taken for it.
    assert!(matches!(
        write(2, "v2").await,
        Err(RegisterError::Conflict { current: Some(1) })
    ));
}

#[tokio::test]
async fn the_value_revision_goes_on_under_the_next_holder_and_stale_writes_are_rejected() {
    let place = Place::new();
    let time = TestTime::new("boot");
    let store = place.open_at(&time);
    let any = ExpectedRevision::Any;
    let old = acquire(&store, "catalog", "worker-a").await;
    store
        .compare_and_set(&old, "worker-a", any, b"a".to_vec())
        .await
        .unwrap();
    time.advance_ms(TTL_MS);
    let new = acquire(&store, "catalog", "worker-b").await;
    store
        .compare_and_set(&new, "worker-b", 1.into(), b"b".to_vec())
        .await
        .unwrap();

    let late = store
        .compare_and_set(&old, "worker-a", any, b"late".to_vec())
        .await
        .unwrap_err();
    let RegisterError::Rejected(rejection) = late else {
        panic!("{late}")
    };
    assert_eq!(
        rejection,
        FenceRejection::StaleEpoch {
            carried: 1,
            current: 2
        }
    );
    let wrong = store
        .compare_and_set(&new, "worker-a", any, b"x".to_vec())
        .await
        .unwrap_err();
    assert!(
        matches!(wrong, RegisterError::Rejected(FenceRejection::NotHolder)),
        "{wrong}"
    );
    assert_eq!(value(&store).await, shown("b", 2, 2));
}

#[tokio::test]
async fn a_value_over_the_bound_is_refused_before_anything_changes() {
    let place = Place::new();
    let options = SqliteOptions {
        register_bytes_max: 8,
        ..SqliteOptions::default()
    };
    let store = SqliteSerializer::open_with(&place.path, options).unwrap();
    let fence = acquire(&store, "catalog", "worker-a").await;
    let any = ExpectedRevision::Any;
    store
        .compare_and_set(&fence, "worker-a", any, vec![b'x'; 8])
        .await
        .unwrap();
    let error = store
        .compare_and_set(&fence, "worker-a", any, vec![b'y'; 9])
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::FixCall, "{error}");
    assert_eq!(value(&store).await, shown("xxxxxxxx", 1, 1));

    // The largest by default: 1 MiB, exactly.
    let place = Place::new();
    let store = place.open();
    let fence = acquire(&store, "catalog", "worker-a").await;
    let largest = aster_core::REGISTER_BYTES_MAX;
    store
        .compare_and_set(&fence, "worker-a", any, vec![7; largest])
        .await
        .unwrap();
    let over = store
        .compare_and_set(&fence, "worker-a", any, vec![7; largest + 1])
        .await;
    assert_eq!(over.unwrap_err().kind(), ErrorKind::FixCall);
    assert_eq!(
        Registers::read(&store, "catalog")
            .await
            .unwrap()
            .unwrap()
            .value
            .len(),
        largest
    );
}
