//! Requests that come together share a commit, and one that fails fails alone. The writer thread is
//! held inside a request of its own until the others have queued up.

#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "a test that cannot go on fails, and it owns its threads"
)]

mod support;

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;

use aster_core::{DenyReason, ErrorKind, ExpectedRevision, Fence, FenceRejection};
use aster_core::{TransitionOutcome, WriteId};
use aster_lease::{
    AuditEvent, AuditLog, AuditQuery, LeaseSerializer, RegisterError, Registers, SerializerError,
};
use aster_sqlite::{ClockDomain, SqliteOptions, SqliteSerializer, StoreTime};
use rusqlite::Connection;
use support::*;

/// More turns of the runtime than a request needs to be queued.
const TURNS: usize = 50;

#[derive(Debug)]
enum Told {
    Transition(Outcome),
    Write(Result<u64, RegisterError>),
}

impl Told {
    fn transition(self) -> Outcome {
        match self {
            Told::Transition(outcome) => outcome,
            Told::Write(write) => panic!("{write:?}"),
        }
    }

    fn write(self) -> Result<u64, RegisterError> {
        match self {
            Told::Write(written) => written,
            Told::Transition(outcome) => panic!("{outcome:?}"),
        }
    }
}

type Request = Pin<Box<dyn Future<Output = Told> + Send>>;

fn transition(store: &SqliteSerializer, resource: &str, op: aster_core::LeaseOp) -> Request {
    let (store, resource) = (store.clone(), resource.to_owned());
    Box::pin(async move { Told::Transition(store.transition(&resource, op).await) })
}

fn acquiring(store: &SqliteSerializer, resource: &str, candidate: &str) -> Request {
    let op = acquire_op(candidate, TTL_MS, fresh_grant_id());
    transition(store, resource, op)
}

fn releasing(store: &SqliteSerializer, fence: &Fence) -> Request {
    let op = release_op(&fence.holder, fence.epoch);
    transition(store, &fence.resource, op)
}

fn writing(
    store: &SqliteSerializer,
    fence: &Fence,
    writer: &str,
    expected: ExpectedRevision,
    value: Vec<u8>,
) -> Request {
    let (store, fence, writer) = (store.clone(), fence.clone(), writer.to_owned());
    Box::pin(async move {
        Told::Write(
            store
                .compare_and_set(&fence, &writer, expected, value)
                .await,
        )
    })
}

/// Has the requests queued, in their order, while the writer thread is busy with another one, and
/// answers what each was told.
async fn together(
    store: &SqliteSerializer,
    hooked: &HookedTime,
    requests: Vec<Request>,
) -> Vec<Option<Told>> {
    let (inside, is_inside) = mpsc::channel();
    let (go_on, may_go_on) = mpsc::channel::<()>();
    hooked.at_next_reading(move || {
        inside.send(()).unwrap();
        may_go_on.recv().unwrap();
    });
    let plug = tokio::spawn(acquiring(store, "plug", "plug"));
    tokio::task::spawn_blocking(move || is_inside.recv().unwrap())
        .await
        .unwrap();
    let tasks: Vec<_> = requests.into_iter().map(tokio::spawn).collect();
    for _ in 0..TURNS {
        tokio::task::yield_now().await;
    }
    assert!(
        tasks.iter().all(|task| !task.is_finished()),
        "nobody is answered before the commit"
    );
    go_on.send(()).unwrap();
    plug.await.unwrap();
    let mut told = Vec::new();
    for task in tasks {
        told.push(task.await.ok());
    }
    told
}

async fn all_together(
    store: &SqliteSerializer,
    hooked: &HookedTime,
    requests: Vec<Request>,
) -> Vec<Told> {
    let told = together(store, hooked, requests).await;
    told.into_iter().map(Option::unwrap).collect()
}

fn hooked() -> HookedTime {
    HookedTime::new(&TestTime::new("boot"))
}

fn main_file(place: &Place) -> Connection {
    Connection::open(&place.path).unwrap()
}

fn number(connection: &Connection, sql: &str) -> u64 {
    let found: i64 = connection.query_row(sql, [], |row| row.get(0)).unwrap();
    found.cast_unsigned()
}

/// How many commits of ours the file has seen.
fn commits(place: &Place) -> u64 {
    number(&main_file(place), "SELECT sequence FROM aster_store")
}

#[tokio::test]
async fn what_waits_together_is_committed_together() {
    let place = Place::new();
    let hooked = hooked();
    let store = hooked.open(&place);
    let mut fences = Vec::new();
    for number in 0..20 {
        fences.push(acquire(&store, &format!("held/{number}"), "worker").await);
    }
    let before = commits(&place);
    let mut requests = Vec::new();
    for (number, fence) in fences.iter().enumerate() {
        requests.push(acquiring(&store, &format!("job/{number}"), "worker"));
        let any = ExpectedRevision::Any;
        requests.push(writing(&store, fence, "worker", any, vec![7; 10]));
        requests.push(releasing(&store, fence));
    }
    let told = all_together(&store, &hooked, requests).await;
    assert_eq!(commits(&place), before + 2, "the plug's, and one for all");
    for told in told {
        match told {
            Told::Transition(outcome) => assert!(matches!(
                outcome,
                Ok(TransitionOutcome::Granted(_) | TransitionOutcome::Released)
            )),
            Told::Write(written) => assert_eq!(written.unwrap(), 1),
        }
    }
    drop(store);
    let store = place.open();
    for number in 0..20 {
        assert!(store.snapshot(&format!("job/{number}")).await.unwrap().held);
        let held = format!("held/{number}");
        assert!(!store.snapshot(&held).await.unwrap().held);
        assert!(Registers::read(&store, &held).await.unwrap().is_some());
    }
}

#[tokio::test]
async fn each_sees_what_those_before_it_did() {
    let place = Place::new();
    let hooked = hooked();
    let store = hooked.open(&place);
    let first = acquire(&store, "catalog", "worker-a").await;
    // The next holder's fence is not known before it is granted, but its epoch is.
    let next = Fence {
        epoch: first.epoch + 2,
        holder: principal("worker-b"),
        ..first.clone()
    };
    let (any, id) = (ExpectedRevision::Any, fresh_grant_id());
    let acquire_b = || acquire_op("worker-b", TTL_MS, id);
    let requests = vec![
        writing(&store, &first, "worker-a", any, b"a1".to_vec()),
        transition(&store, "catalog", acquire_b()),
        releasing(&store, &first),
        writing(&store, &first, "worker-a", any, b"late".to_vec()),
        transition(&store, "catalog", acquire_b()),
        transition(&store, "catalog", acquire_b()),
        acquiring(&store, "catalog", "worker-c"),
        writing(&store, &next, "worker-b", 1.into(), b"b1".to_vec()),
    ];
    let mut told = all_together(&store, &hooked, requests).await.into_iter();
    let mut told = || told.next().unwrap();
    assert_eq!(told().write().unwrap(), 1);
    assert_eq!(denied(told().transition()).0, DenyReason::HeldByOther);
    assert!(matches!(
        told().transition(),
        Ok(TransitionOutcome::Released)
    ));
    let late = told().write();
    assert!(
        matches!(
            late,
            Err(RegisterError::Rejected(FenceRejection::StaleEpoch { .. }))
        ),
        "{late:?}"
    );
    assert_eq!(granted(told().transition()), next);
    assert_eq!(granted(told().transition()), next, "the same grant again");
    assert_eq!(denied(told().transition()).0, DenyReason::HeldByOther);
    assert_eq!(told().write().unwrap(), 2);

    let query = AuditQuery {
        resource: Some(next.resource.clone()),
        ..AuditQuery::default()
    };
    let records = store.audit(query).await.unwrap();
    let events: Vec<_> = records
        .iter()
        .map(|record| record.event)
        .filter(|event| *event != AuditEvent::Rejected)
        .collect();
    assert_eq!(
        events,
        [
            AuditEvent::Granted,
            AuditEvent::Released,
            AuditEvent::Granted
        ]
    );
}

#[tokio::test]
async fn what_the_rules_refuse_is_refused_alone() {
    let place = Place::new();
    let hooked = hooked();
    let store = hooked.open(&place);
    let fence = acquire(&store, "catalog", "worker").await;
    let other = acquire(&store, "other", "worker").await;
    let before = commits(&place);
    let any = ExpectedRevision::Any;
    let too_large = vec![0; aster_core::REGISTER_BYTES_MAX + 1];
    let requests = vec![
        writing(&store, &fence, "worker", any, b"good".to_vec()),
        writing(&store, &fence, "worker", 7.into(), b"conflict".to_vec()),
        writing(&store, &fence, "worker", any, too_large),
        writing(&store, &fence, "mallory", any, b"stolen".to_vec()),
        transition(&store, "short", acquire_op("worker", 1, fresh_grant_id())),
        acquiring(&store, "catalog", "worker-b"),
        releasing(&store, &other),
    ];
    let mut told = all_together(&store, &hooked, requests).await.into_iter();
    let mut told = || told.next().unwrap();
    assert_eq!(told().write().unwrap(), 1);
    let conflict = told().write();
    assert!(
        matches!(conflict, Err(RegisterError::Conflict { current: Some(1) })),
        "{conflict:?}"
    );
    assert_eq!(told().write().unwrap_err().kind(), ErrorKind::FixCall);
    let stolen = told().write();
    assert!(
        matches!(
            stolen,
            Err(RegisterError::Rejected(FenceRejection::NotHolder))
        ),
        "{stolen:?}"
    );
    assert_eq!(told().transition().unwrap_err().kind(), ErrorKind::FixCall);
    assert_eq!(denied(told().transition()).0, DenyReason::HeldByOther);
    assert!(matches!(
        told().transition(),
        Ok(TransitionOutcome::Released)
    ));
    assert_eq!(commits(&place), before + 2, "the plug's, and one for all");
    let kept = Registers::read(&store, "catalog").await.unwrap().unwrap();
    assert_eq!(kept.value, b"good");
}

/// A trigger on our table stands for a row that the disk does not take.
#[tokio::test]
async fn what_cannot_be_stored_fails_alone() {
    let place = Place::new();
    let hooked = hooked();
    let store = hooked.open(&place);
    let fence = acquire(&store, "catalog", "worker").await;
    let big = acquire(&store, "big", "worker").await;
    main_file(&place)
        .execute_batch(
            "CREATE TRIGGER bad BEFORE INSERT ON aster_registers WHEN new.resource = 'big'
             BEGIN SELECT RAISE(ABORT, 'no room'); END",
        )
        .unwrap();
    let any = ExpectedRevision::Any;
    let requests = vec![
        acquiring(&store, "before", "worker"),
        writing(&store, &big, "worker", any, b"big".to_vec()),
        writing(&store, &fence, "worker", any, b"small".to_vec()),
        releasing(&store, &fence),
    ];
    let mut told = all_together(&store, &hooked, requests).await.into_iter();
    let mut told = || told.next().unwrap();
    let before = granted(told().transition());
    let error = told().write().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Report, "{error}");
    assert!(error.to_string().contains("no room"), "{error}");
    assert_eq!(told().write().unwrap(), 1);
    assert!(matches!(
        told().transition(),
        Ok(TransitionOutcome::Released)
    ));
    assert_eq!(before.epoch, 1, "the batch that was rolled back spent none");
    drop(store);
    let store = place.open();
    assert_eq!(store.snapshot("before").await.unwrap().epoch, 1);
    assert!(Registers::read(&store, "big").await.unwrap().is_none());
}

/// A deferred constraint stands for a disk that fails at the commit.
#[tokio::test]
async fn when_the_commit_fails_nobody_is_told_success_and_no_epoch_is_spent() {
    let place = Place::new();
    let hooked = hooked();
    let store = hooked.open(&place);
    let fence = acquire(&store, "catalog", "worker").await;
    main_file(&place)
        .execute_batch(
            "CREATE TABLE parents (id INTEGER PRIMARY KEY);
             CREATE TABLE children (id REFERENCES parents DEFERRABLE INITIALLY DEFERRED);
             CREATE TRIGGER bad AFTER INSERT ON aster_audit WHEN new.resource = 'poison'
             BEGIN INSERT INTO children VALUES (1); END",
        )
        .unwrap();
    let (any, id) = (ExpectedRevision::Any, fresh_grant_id());
    let again = || acquire_op("worker", TTL_MS, id);
    let requests = vec![
        transition(&store, "new", again()),
        // Would be renewed in the side file, if it had been committed.
        transition(&store, "new", again()),
        writing(&store, &fence, "worker", any, b"lost".to_vec()),
        acquiring(&store, "poison", "worker"),
        releasing(&store, &fence),
    ];
    for told in all_together(&store, &hooked, requests).await {
        match told {
            Told::Transition(outcome) => drop(outcome.unwrap_err()),
            Told::Write(written) => drop(written.unwrap_err()),
        }
    }
    for name in ["new", "poison"] {
        assert_eq!(store.snapshot(name).await.unwrap().epoch, 0, "{name}");
    }
    assert!(Registers::read(&store, "catalog").await.unwrap().is_none());
    let side = Connection::open(place.side()).unwrap();
    let renewals = "SELECT count(*) FROM renewals WHERE resource = 'new'";
    assert_eq!(number(&side, renewals), 0, "of a grant that never was");
    // The same requests succeed once the fault is gone.
    main_file(&place).execute_batch("DROP TRIGGER bad").unwrap();
    assert_eq!(granted(store.transition("new", again()).await).epoch, 1);
    release(&store, &fence).await.unwrap();
}

/// A clock whose wall time panics at the readings that it was told.
#[derive(Clone)]
struct BadWall {
    hooked: HookedTime,
    readings: Arc<AtomicU64>,
    /// The readings that panic, as bits.
    bad: Arc<AtomicU64>,
}

impl StoreTime for BadWall {
    fn domain(&self) -> Option<ClockDomain> {
        self.hooked.domain()
    }

    fn now_ns(&self) -> u64 {
        self.hooked.now_ns()
    }

    fn wall_unix_ms(&self) -> u64 {
        let reading = self.readings.fetch_add(1, Ordering::SeqCst);
        let is_bad = self.bad.load(Ordering::SeqCst) >> reading & 1 == 1;
        assert!(!is_bad, "a planted panic");
        0
    }
}

#[tokio::test]
async fn a_request_that_panics_fails_alone() {
    let place = Place::new();
    let bad = BadWall {
        hooked: hooked(),
        readings: Arc::default(),
        bad: Arc::default(),
    };
    let options = SqliteOptions {
        time: Arc::new(bad.clone()),
        ..SqliteOptions::default()
    };
    let store = SqliteSerializer::open_with(&place.path, options).unwrap();
    bad.readings.store(0, Ordering::SeqCst);
    // The plug, the batch up to its second request, then each alone.
    bad.bad.store(0b01_0100, Ordering::SeqCst);
    let requests = ["one", "two", "three"].map(|name| acquiring(&store, name, "worker"));
    let told = together(&store, &bad.hooked, requests.into()).await;
    let mut told = told.into_iter().map(|told| told.unwrap().transition());
    let mut told = || told.next().unwrap();
    granted(told());
    let error = told().unwrap_err();
    assert!(
        matches!(error, SerializerError::Unexpected { .. }),
        "{error}"
    );
    granted(told());
    assert_eq!(store.snapshot("two").await.unwrap().epoch, 0);
    granted(try_acquire(&store, "two", "worker").await);
}

fn with_id(
    store: &SqliteSerializer,
    fence: &Fence,
    writer: &str,
    value: &[u8],
    id: WriteId,
) -> impl Future<Output = Result<u64, RegisterError>> {
    let (store, fence, writer) = (store.clone(), fence.clone(), writer.to_owned());
    let value = value.to_vec();
    async move {
        store
            .release_with_value(&fence, &writer, ExpectedRevision::Any, value, id)
            .await
    }
}

#[tokio::test]
async fn a_value_and_the_release_are_one_step_and_its_retry_is_recognized() {
    let place = Place::new();
    let store = place.open();
    let fence = acquire(&store, "catalog", "worker-a").await;
    let before = commits(&place);
    let id = write_id(1);
    assert_eq!(
        with_id(&store, &fence, "worker-a", b"last", id)
            .await
            .unwrap(),
        1
    );
    assert_eq!(commits(&place), before + 1);
    let row = store.snapshot("catalog").await.unwrap();
    assert!(!row.held && row.epoch == fence.epoch + 1);
    let value = Registers::read(&store, "catalog").await.unwrap().unwrap();
    assert_eq!((&*value.value, value.epoch), (&b"last"[..], fence.epoch));

    // The reply was lost: once by the writer thread, then by a look, also under the next holder.
    let next = acquire(&store, "catalog", "worker-b").await;
    for _ in 0..3 {
        assert_eq!(
            with_id(&store, &fence, "worker-a", b"last", id)
                .await
                .unwrap(),
            1
        );
    }
    assert!(
        store.snapshot("catalog").await.unwrap().held,
        "the next one keeps it"
    );
    // Another write under the same fence, the same by somebody else, and the same after the next
    // holder wrote are no retries.
    for (writer, id) in [("worker-a", write_id(2)), ("worker-b", id)] {
        let refused = with_id(&store, &fence, writer, b"last", id).await;
        assert!(
            matches!(
                refused,
                Err(RegisterError::Rejected(FenceRejection::StaleEpoch { .. }))
            ),
            "{refused:?}"
        );
    }
    store
        .compare_and_set(&next, "worker-b", 1.into(), b"next".to_vec())
        .await
        .unwrap();
    with_id(&store, &fence, "worker-a", b"last", id)
        .await
        .unwrap_err();
    let value = Registers::read(&store, "catalog").await.unwrap().unwrap();
    assert_eq!(value.value, b"next");

    let query = AuditQuery {
        resource: Some(fence.resource.clone()),
        ..AuditQuery::default()
    };
    let records = store.audit(query).await.unwrap();
    let released = records
        .iter()
        .filter(|record| record.event == AuditEvent::Released);
    assert_eq!(released.count(), 1);
}

#[tokio::test]
async fn a_release_with_a_value_happens_whole_or_not_at_all() {
    let place = Place::new();
    let store = place.open();
    let fence = acquire(&store, "catalog", "worker-a").await;
    let conflict = store
        .release_with_value(&fence, "worker-a", 3.into(), b"x".to_vec(), write_id(1))
        .await;
    assert!(matches!(
        conflict,
        Err(RegisterError::Conflict { current: None })
    ));
    let stolen = with_id(&store, &fence, "worker-b", b"x", write_id(1)).await;
    assert!(matches!(
        stolen,
        Err(RegisterError::Rejected(FenceRejection::NotHolder))
    ));
    assert_renewed(renew(&store, &fence).await);
    assert!(Registers::read(&store, "catalog").await.unwrap().is_none());
    // A value that was written before, under the same id: only the release is missing.
    let any = ExpectedRevision::Any;
    store
        .compare_and_set_with_id(&fence, "worker-a", any, b"x".to_vec(), write_id(1))
        .await
        .unwrap();
    assert_eq!(
        with_id(&store, &fence, "worker-a", b"x", write_id(1))
            .await
            .unwrap(),
        1
    );
    assert_eq!(
        denied(renew(&store, &fence).await).0,
        DenyReason::EpochMismatch
    );
    acquire(&store, "catalog", "worker-b").await;
}
