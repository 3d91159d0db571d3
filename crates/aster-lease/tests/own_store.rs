//! A store of the user's own: what the traits do for it, and what it says of what it cannot do.
#![allow(clippy::unwrap_used, reason = "test code outside a #[test] function")]

mod support;

use std::sync::{Arc, Mutex, PoisonError};

use aster_lease::{
    AcquireOutcome, Authority, EPOCH_MAX, ErrorKind, ExpectedRevision, Fence, FenceRejection,
    FencedResource, GuardedResource, LeaseHandle, LeaseOp, LeaseSerializer, LeaseSnapshot,
    LeaseWatch, ListQuery, MemorySerializer, RegisterError, RegisterValue, Registers, ResourceName,
    RowView, SerializerError, TransitionOutcome, WaitOutcome, WaitRequest, WriteId,
};
use async_trait::async_trait;
use support::{RESOURCE, TTL, acquire_raw, principal};

/// Implements what it must and nothing else.
struct Minimal(MemorySerializer);

#[async_trait]
impl LeaseSerializer for Minimal {
    async fn transition(
        &self,
        resource: &str,
        op: LeaseOp,
    ) -> Result<TransitionOutcome, SerializerError> {
        self.0.transition(resource, op).await
    }

    async fn snapshot(&self, resource: &str) -> Result<LeaseSnapshot, SerializerError> {
        self.0.snapshot(resource).await
    }
}

#[async_trait]
impl Registers for Minimal {
    async fn read(&self, resource: &str) -> Result<Option<RegisterValue>, SerializerError> {
        self.0.read(resource).await
    }

    async fn compare_and_set_with_id(
        &self,
        fence: &Fence,
        writer: &str,
        expected: ExpectedRevision,
        value: Vec<u8>,
        write_id: WriteId,
    ) -> Result<u64, RegisterError> {
        let store = &self.0;
        store
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
        self.0.compare_and_set(fence, writer, expected, value).await
    }
}

fn acquire(holder: &str, grant: u8) -> LeaseOp {
    WaitRequest {
        candidate: principal(holder),
        ttl: TTL.try_into().unwrap(),
        grant_id: aster_lease::GrantId::from_bytes([grant; 16]),
        wait: TTL,
    }
    .acquire()
}

fn wish() -> WaitRequest {
    let LeaseOp::Acquire {
        candidate,
        ttl,
        grant_id,
    } = acquire("b", 2)
    else {
        unreachable!("it is an Acquire")
    };
    WaitRequest {
        candidate,
        ttl,
        grant_id,
        wait: TTL,
    }
}

/// The name of the operation that is missing.
fn missing<T>(answer: Result<T, SerializerError>) -> &'static str {
    match answer.map(|_| ()) {
        Err(error @ SerializerError::Unsupported { operation }) => {
            assert_eq!(error.kind(), ErrorKind::FixCall);
            operation
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn what_a_store_cannot_do_it_names() {
    let store = Minimal(MemorySerializer::new());
    assert_eq!(
        missing(store.acquire_wait(RESOURCE, wish()).await),
        "acquire_wait"
    );
    assert_eq!(missing(store.queue(RESOURCE).await), "queue");
    assert_eq!(missing(store.watch(RESOURCE).await), "watch");
    assert_eq!(missing(store.list(ListQuery::default()).await), "list");
    assert_eq!(missing(store.authority().await), "authority");
    assert_eq!(store.batch_max(), 1, "nothing to gain from batches");

    let TransitionOutcome::Granted(fence) = acquire_raw(&store, "a", 1).await else {
        panic!("it is free")
    };
    let write_id = WriteId::from_bytes([1; 16]);
    let released = store
        .release_with_value(&fence, "a", ExpectedRevision::Any, vec![1], write_id)
        .await;
    let Err(RegisterError::Store(error)) = released else {
        panic!("{released:?}")
    };
    assert_eq!(missing::<()>(Err(error)), "release_with_value");
    assert!(
        store.read(RESOURCE).await.unwrap().is_none(),
        "and neither half has happened"
    );
    assert!(store.snapshot(RESOURCE).await.unwrap().held);
}

#[tokio::test]
async fn many_operations_are_carried_out_one_by_one_and_answered_in_their_order() {
    let store = Minimal(MemorySerializer::new());
    let name: ResourceName = RESOURCE.parse().unwrap();
    let release = LeaseOp::Release {
        holder: principal("a"),
        epoch: 1,
    };
    let too_short = LeaseOp::Acquire {
        candidate: principal("c"),
        ttl: std::time::Duration::from_millis(1).try_into().unwrap(),
        grant_id: aster_lease::GrantId::from_bytes([3; 16]),
    };
    let ops = [
        acquire("a", 1),
        acquire("b", 2),
        too_short,
        release,
        acquire("b", 2),
    ];
    let requests = ops.map(|op| (name.clone(), op)).into();
    let answers = store.transition_many(requests).await;
    assert!(
        matches!(
            answers[..],
            [
                Ok(TransitionOutcome::Granted(_)),
                Ok(TransitionOutcome::Denied(..)),
                Err(_),
                Ok(TransitionOutcome::Released),
                Ok(TransitionOutcome::Granted(_)),
            ]
        ),
        "{answers:?}"
    );
}

/// A shared store is the store: nothing is lost on the way through the `Arc`.
#[tokio::test]
async fn an_arc_of_a_store_answers_as_the_store_does() {
    async fn all(store: &dyn LeaseSerializer) -> (Authority, usize, Vec<LeaseSnapshot>, String) {
        let watched = store.watch(RESOURCE).await.unwrap().next().await;
        (
            store.authority().await.unwrap(),
            store.batch_max(),
            store.list(ListQuery::default()).await.unwrap(),
            format!("{watched:?} {:?}", store.queue(RESOURCE).await.unwrap()),
        )
    }
    let clock = Arc::new(support::DrivenClock::default());
    let store = Arc::new(support::store_at(&clock));
    assert!(matches!(
        acquire_raw(&store, "a", 1).await,
        TransitionOutcome::Granted(_)
    ));
    let through_the_arc = all(&store).await;
    assert_eq!(through_the_arc, all(&*store).await);
    assert_eq!(through_the_arc.2.len(), 1);
    assert_ne!(through_the_arc.1, 1);
}

/// Grants this fence to whoever asks for whatever.
struct Lying(Fence);

#[async_trait]
impl LeaseSerializer for Lying {
    async fn transition(
        &self,
        _resource: &str,
        _op: LeaseOp,
    ) -> Result<TransitionOutcome, SerializerError> {
        Ok(TransitionOutcome::Granted(self.0.clone()))
    }

    async fn snapshot(&self, resource: &str) -> Result<LeaseSnapshot, SerializerError> {
        Ok(LeaseSnapshot::withheld(resource.parse()?))
    }

    async fn acquire_wait(
        &self,
        _resource: &str,
        _request: WaitRequest,
    ) -> Result<WaitOutcome, SerializerError> {
        let (fence, claim) = (self.0.clone(), None);
        Ok(WaitOutcome::Granted { fence, claim })
    }
}

/// A holder uses no fence but its own for its own resource, whatever a serializer answers.
#[tokio::test(start_paused = true)]
async fn a_grant_of_somebody_elses_fence_is_not_used() {
    let fence = |resource: &str, epoch, holder: &str| Fence {
        authority: Authority::from_bytes([1; 16]),
        resource: resource.parse().unwrap(),
        epoch,
        holder: principal(holder),
    };
    for (fence, is_ours) in [
        (fence(RESOURCE, 1, "a"), true),
        (fence(RESOURCE, EPOCH_MAX, "a"), true),
        (fence("index", 1, "a"), false),
        (fence(RESOURCE, 1, "b"), false),
        (fence(RESOURCE, 0, "a"), false),
        (fence(RESOURCE, EPOCH_MAX + 1, "a"), false),
    ] {
        let lying = Arc::new(Lying(fence.clone()));
        let options = support::options();
        let at_once = LeaseHandle::acquire(lying.clone(), RESOURCE, "a", options).await;
        let waited = LeaseHandle::acquire_wait(lying, RESOURCE, "a", options, TTL).await;
        for outcome in [at_once, waited] {
            match outcome {
                Ok(AcquireOutcome::Granted(lease)) => assert!(is_ours, "{lease:?}"),
                Err(error) => assert!(!is_ours && error.kind() == ErrorKind::Report, "{error}"),
                other => panic!("{fence}: {other:?}"),
            }
        }
    }
}

/// A store may end a watch for a reason, and a watcher hears it once.
#[tokio::test]
async fn a_watch_that_fails_tells_why() {
    let store = MemorySerializer::new();
    let present = store.snapshot(RESOURCE).await.unwrap();
    let (sender, mut watch) = LeaseWatch::channel(present.clone());
    assert_eq!(watch.next().await, Some(present.clone()));
    assert!(watch.take_failure().is_none(), "it goes on");
    sender.fail(SerializerError::Closed);
    assert_eq!(watch.next().await, None);
    assert!(matches!(
        watch.take_failure(),
        Some(SerializerError::Closed)
    ));
    assert!(watch.take_failure().is_none(), "told once");

    let (sender, mut watch) = LeaseWatch::channel(present);
    watch.next().await;
    drop(sender);
    assert_eq!(watch.next().await, None);
    assert!(
        watch.take_failure().is_none(),
        "the store was simply closed"
    );
}

/// A resource whose lock is broken: it runs the step as often as it likes.
struct Catalog {
    authority: Authority,
    texts: Mutex<Vec<String>>,
    steps: usize,
}

impl GuardedResource for Catalog {
    type Op = String;
    type Output = usize;
    type Error = FenceRejection;
    type State = Vec<String>;

    fn with_row(
        &self,
        resource: &ResourceName,
        step: &mut dyn FnMut(&RowView<'_>, &mut Vec<String>) -> Result<usize, FenceRejection>,
    ) -> Result<usize, FenceRejection> {
        let row = aster_lease::RowState {
            epoch: 1,
            revision: 1,
            grant_id: aster_lease::GrantId::from_bytes([1; 16]),
            held: Some(aster_lease::Tenure {
                holder: principal("a"),
                ttl: TTL.try_into().unwrap(),
            }),
            hold_offs: aster_lease::HoldOffs::default(),
        };
        let view = RowView {
            authority: self.authority,
            resource,
            floor: 0,
            row: Some(&row),
        };
        let mut texts = self.texts.lock().unwrap_or_else(PoisonError::into_inner);
        let mut answer = Ok(0);
        for _ in 0..self.steps {
            answer = step(&view, &mut texts);
        }
        answer
    }

    fn apply(&self, texts: &mut Vec<String>, op: String) -> Result<usize, FenceRejection> {
        texts.push(op);
        Ok(texts.len())
    }
}

#[tokio::test]
async fn a_guarded_resource_checks_and_writes_once_whatever_its_lock_does() {
    let store = MemorySerializer::new();
    let TransitionOutcome::Granted(fence) = acquire_raw(&store, "a", 1).await else {
        panic!("it is free")
    };
    let catalog = |steps| Catalog {
        authority: fence.authority,
        texts: Mutex::default(),
        steps,
    };
    let once = catalog(1);
    let write = |catalog, fence, writer| {
        let catalog: &Catalog = catalog;
        catalog.mutate(fence, writer, "v1".to_owned())
    };
    assert_eq!(write(&once, &fence, "a").await, Ok(1));
    assert_eq!(
        write(&once, &fence, "b").await,
        Err(FenceRejection::NotHolder)
    );
    let stale = Fence {
        epoch: 0,
        ..fence.clone()
    };
    assert!(write(&once, &stale, "a").await.is_err());
    assert_eq!(
        once.texts.lock().unwrap().len(),
        1,
        "a rejected write has not happened"
    );

    let twice = catalog(2);
    assert_eq!(
        write(&twice, &fence, "a").await,
        Err(FenceRejection::Reentrant)
    );
    assert_eq!(
        twice.texts.lock().unwrap().len(),
        1,
        "the second step wrote nothing"
    );
}
