//! Release with a value, as the handle does it: after the work, once, whatever gets lost on the way.

mod support;

use std::collections::VecDeque;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use aster_lease::{
    EndedReason, ErrorKind, ExpectedRevision, Fence, FenceRejection, LeaseEnded, LeaseError,
    LeaseSerializer, MemorySerializer, RegisterError, RegisterValue, Registers, ReleaseOutcome,
    SerializerError, WriteId, revoke,
};
use async_trait::async_trait;
use support::{Fault, Faulty, RESOURCE, TTL, granted, settle};

const ANY: ExpectedRevision = ExpectedRevision::Any;

/// The registers of a store behind a network that misbehaves as it is told.
struct Shelf {
    store: MemorySerializer,
    script: Mutex<VecDeque<Fault>>,
    write_ids: Mutex<Vec<WriteId>>,
}

impl Shelf {
    fn over(store: &MemorySerializer, script: impl IntoIterator<Item = Fault>) -> Arc<Self> {
        Arc::new(Self {
            store: store.clone(),
            script: Mutex::new(script.into_iter().collect()),
            write_ids: Mutex::default(),
        })
    }

    #[allow(clippy::unwrap_used, reason = "test code outside a #[test] function")]
    fn write_ids(&self) -> Vec<WriteId> {
        self.write_ids.lock().unwrap().clone()
    }
}

#[async_trait]
#[allow(clippy::unwrap_used, reason = "test code outside a #[test] function")]
impl Registers for Shelf {
    async fn read(&self, resource: &str) -> Result<Option<RegisterValue>, SerializerError> {
        self.store.read(resource).await
    }

    async fn compare_and_set_with_id(
        &self,
        fence: &Fence,
        writer: &str,
        expected: ExpectedRevision,
        value: Vec<u8>,
        write_id: WriteId,
    ) -> Result<u64, RegisterError> {
        self.store
            .compare_and_set_with_id(fence, writer, expected, value, write_id)
            .await
    }

    async fn compare_and_set(
        &self,
        fence: &Fence,
        writer: &str,
        expected: ExpectedRevision,
        value: Vec<u8>,
    ) -> Result<u64, RegisterError> {
        self.store
            .compare_and_set(fence, writer, expected, value)
            .await
    }

    async fn release_with_value(
        &self,
        fence: &Fence,
        writer: &str,
        expected: ExpectedRevision,
        value: Vec<u8>,
        write_id: WriteId,
    ) -> Result<u64, RegisterError> {
        self.write_ids.lock().unwrap().push(write_id);
        let fault = self.script.lock().unwrap().pop_front();
        let write = self
            .store
            .release_with_value(fence, writer, expected, value, write_id);
        match fault.unwrap_or(Fault::None) {
            Fault::None => write.await,
            Fault::RequestLost => std::future::pending().await,
            Fault::ReplyLost => {
                let _lost = write.await;
                std::future::pending().await
            }
            Fault::Busy => Err(RegisterError::Store(SerializerError::Busy {
                message: "told to be".to_owned(),
            })),
            Fault::Closed => Err(RegisterError::Store(SerializerError::Closed)),
            other => panic!("{other:?} is not for registers"),
        }
    }
}

fn poll_once<F: Future>(future: Pin<&mut F>) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(Waker::noop()))
}

#[tokio::test(start_paused = true)]
async fn the_next_owner_finds_the_value_and_the_row_free() {
    let store = Arc::new(MemorySerializer::new());
    let lease = granted(&store, "a").await;
    let fence = lease.fence().unwrap();
    let release = lease.release_with_value(store.clone(), "a", ANY, b"done".to_vec());
    assert!(lease.fence().is_none(), "from the call's start");
    assert_eq!(release.await.unwrap(), 1);
    let next = granted(&store, "b").await;
    assert_eq!(next.epoch(), 3);
    let value = store.read(RESOURCE).await.unwrap().unwrap();
    assert_eq!(value.value, b"done");
    let late = store.compare_and_set(&fence, "a", ANY, b"late".to_vec());
    assert!(late.await.is_err(), "no other write of this epoch");
    assert_eq!(lease.release().await.unwrap(), ReleaseOutcome::AlreadyEnded);
    assert_eq!(next.ended_reason(), None);
}

#[tokio::test(start_paused = true)]
async fn lost_answers_are_retried_under_one_write_id() {
    let store = Arc::new(MemorySerializer::new());
    let lease = granted(&store, "a").await;
    let shelf = Shelf::over(&store, [Fault::Busy, Fault::ReplyLost]);
    let release = lease.release_with_value(shelf.clone(), "a", ANY, b"once".to_vec());
    assert_eq!(release.await.unwrap(), 1);
    let ids = shelf.write_ids();
    assert!(ids.len() == 3 && ids.iter().all(|id| *id == ids[0]));
    assert_eq!(store.snapshot(RESOURCE).await.unwrap().epoch, 2);
}

/// The time of one call is over before an answer came; the same call again learns what the first did.
#[tokio::test(start_paused = true)]
async fn the_same_call_again_is_recognized() {
    let store = Arc::new(MemorySerializer::new());
    let lease = granted(&store, "a").await;
    let shelf = Shelf::over(&store, [Fault::ReplyLost, Fault::RequestLost]);
    let call = || lease.release_with_value(shelf.clone(), "a", ANY, b"once".to_vec());
    let error = call().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Retry, "{error}");
    assert_eq!(call().await.unwrap(), 1);
    assert_eq!(call().await.unwrap(), 1);
    let value = store.read(RESOURCE).await.unwrap().unwrap();
    assert_eq!((value.value_revision, value.epoch), (1, 1));
}

/// The first attempt was carried out, its answer was lost, and before the second one others took over and
/// wrote: the store knows the last write only. Its rejection must not be told as "nothing was written".
#[tokio::test(start_paused = true)]
async fn a_rejection_after_a_lost_answer_says_nothing_about_the_first_attempt() {
    let store = Arc::new(MemorySerializer::new());
    let lease = granted(&store, "a").await;
    let shelf = Shelf::over(&store, [Fault::ReplyLost]);
    let call = || lease.release_with_value(shelf.clone(), "a", ANY, b"mine".to_vec());
    let mut release = pin!(call());
    assert!(poll_once(release.as_mut()).is_pending());
    let value = store.read(RESOURCE).await.unwrap().unwrap();
    assert_eq!(value.value, b"mine", "it was written");

    let next = granted(&store, "b").await;
    let fence = next.fence().unwrap();
    let other = store.compare_and_set(&fence, "b", ANY, b"theirs".to_vec());
    assert_eq!(other.await.unwrap(), 2);
    for attempt in [release.await, call().await] {
        let error = attempt.unwrap_err();
        assert!(matches!(error, LeaseError::Unsettled), "{error}");
        assert_eq!(error.kind(), ErrorKind::Stop);
    }
    assert_eq!(lease.release().await.unwrap(), ReleaseOutcome::AlreadyEnded);
    assert!(next.fence().is_some(), "the next owner is left alone");
}

/// The first call gave up although its write was carried out; whoever repeats it with another value is
/// not told that this other value was written.
#[tokio::test(start_paused = true)]
async fn another_value_is_another_write() {
    let store = Arc::new(MemorySerializer::new());
    let lease = granted(&store, "a").await;
    let silent = Shelf::over(&store, [Fault::ReplyLost, Fault::RequestLost]);
    let error = lease
        .release_with_value(silent, "a", ANY, b"one".to_vec())
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Retry, "{error}");
    let error = lease
        .release_with_value(store.clone(), "a", ANY, b"two".to_vec())
        .await
        .unwrap_err();
    assert!(
        matches!(
            error,
            LeaseError::Register(RegisterError::Rejected(FenceRejection::StaleEpoch { .. }))
        ),
        "{error}"
    );
    assert_eq!(store.read(RESOURCE).await.unwrap().unwrap().value, b"one");
}

#[tokio::test(start_paused = true)]
async fn a_conflict_leaves_both_undone_and_a_release_still_works() {
    let store = Arc::new(MemorySerializer::new());
    let lease = granted(&store, "a").await;
    let fence = lease.fence().unwrap();
    let first = store.compare_and_set(&fence, "a", ANY, b"first".to_vec());
    assert_eq!(first.await.unwrap(), 1);
    for (writer, expected) in [("a", ExpectedRevision::Absent), ("b", ANY)] {
        let shelf = Shelf::over(&store, []);
        let error = lease
            .release_with_value(shelf.clone(), writer, expected, b"second".to_vec())
            .await
            .unwrap_err();
        assert!(matches!(error, LeaseError::Register(_)), "{error}");
        assert_eq!(shelf.write_ids().len(), 1, "asked once: {error}");
        assert!(store.snapshot(RESOURCE).await.unwrap().held);
    }
    assert_eq!(store.read(RESOURCE).await.unwrap().unwrap().value, b"first");
    // Read again and decide again, or only release.
    let expected = ExpectedRevision::Exactly(1);
    let second = lease.release_with_value(store.clone(), "a", expected, b"second".to_vec());
    assert_eq!(second.await.unwrap(), 2);
}

/// A lease that was lost writes nothing, even where nobody has taken the row yet.
#[tokio::test(start_paused = true)]
async fn a_lost_lease_writes_nothing() {
    let network = Faulty::new();
    let lease = granted(&network, "a").await;
    network.always(Fault::RequestLost);
    let reason = lease.lost().await;
    assert_eq!(reason, EndedReason::Unreachable);
    let shelf = Shelf::over(&network.store, []);
    let error = lease
        .release_with_value(shelf.clone(), "a", ANY, b"late".to_vec())
        .await
        .unwrap_err();
    assert!(
        matches!(error, LeaseError::Ended(LeaseEnded { reason }) if reason == EndedReason::Unreachable),
        "{error}"
    );
    assert_eq!(error.kind(), ErrorKind::Stop);
    assert!(shelf.write_ids().is_empty());
    network.always(Fault::None);
    assert_eq!(lease.release().await.unwrap(), ReleaseOutcome::Released);
}

/// Revoked, and the holder does not know yet: the resource says so, and the next owner is safe.
#[tokio::test(start_paused = true)]
async fn a_revoked_lease_is_refused_at_the_resource() {
    let store = Arc::new(MemorySerializer::new());
    let lease = granted(&store, "a").await;
    revoke(&*store, RESOURCE, "operator", None).await.unwrap();
    let next = granted(&store, "b").await;
    let error = lease
        .release_with_value(store.clone(), "a", ANY, b"stale".to_vec())
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Stop, "{error}");
    assert!(store.read(RESOURCE).await.unwrap().is_none());
    let row = store.snapshot(RESOURCE).await.unwrap();
    assert_eq!((row.held, row.epoch), (true, next.epoch()));
    assert_eq!(lease.release().await.unwrap(), ReleaseOutcome::AlreadyEnded);
}

#[tokio::test(start_paused = true)]
async fn it_waits_for_guarded_work_first() {
    let store = Arc::new(MemorySerializer::new());
    let lease = granted(&store, "a").await;
    let shelf = Shelf::over(&store, []);
    let guard = tokio::runtime::Handle::current().spawn(lease.guard(std::future::pending::<()>()));
    settle().await;
    let mut release = pin!(lease.release_with_value(shelf.clone(), "a", ANY, b"v".to_vec()));
    assert!(poll_once(release.as_mut()).is_pending());
    assert!(shelf.write_ids().is_empty(), "the work first");
    assert_eq!(release.await.unwrap(), 1);
    assert!(guard.await.unwrap().is_err());
}

/// Dropping the future at every poll: no fence, no renewal, free within a ttl, both or neither.
#[tokio::test(start_paused = true)]
async fn dropping_it_at_any_poll_does_both_or_neither() {
    for polls in 0..6 {
        let network = Faulty::new();
        let lease = granted(&network, "a").await;
        let store = Arc::new(network.store.clone());
        {
            let mut release =
                pin!(lease.release_with_value(store.clone(), "a", ANY, b"value".to_vec()));
            for _ in 0..polls {
                if poll_once(release.as_mut()).is_ready() {
                    break;
                }
            }
        }
        assert!(lease.fence().is_none());
        let is_held = store.snapshot(RESOURCE).await.unwrap().held;
        let is_written = store.read(RESOURCE).await.unwrap().is_some();
        assert_ne!(is_held, is_written, "after {polls} polls");
        let renewals = network.count("renew");
        tokio::time::sleep(TTL + Duration::from_secs(1)).await;
        assert_eq!(network.count("renew"), renewals);
        assert!(granted(&store, "b").await.fence().is_some());
    }
}

#[tokio::test(start_paused = true)]
async fn a_store_that_is_closed_or_cannot_is_a_typed_error() {
    let store = Arc::new(MemorySerializer::new());
    let lease = granted(&store, "a").await;
    let shelf = Shelf::over(&store, [Fault::Closed]);
    let error = lease
        .release_with_value(shelf, "a", ANY, b"v".to_vec())
        .await
        .unwrap_err();
    assert!(
        matches!(error, LeaseError::Serializer(SerializerError::Closed)),
        "{error}"
    );
}
