//! What the tests of this crate share.
#![allow(
    dead_code,
    unreachable_pub,
    clippy::disallowed_methods,
    reason = "every test file uses its own part, and owns its tasks"
)]

pub mod process;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use aster_core::{
    DenyReason, Fence, GrantId, LeaseOp, LeaseSnapshot, Principal, TransitionOutcome, Ttl, WriteId,
};
use aster_lease::{LeaseSerializer, SerializerError, WaitOutcome, WaitRequest};
use aster_sqlite::{ClockDomain, OpenError, SqliteOptions, SqliteSerializer, StoreTime};
use tempfile::TempDir;

/// Long enough that no test on a real clock comes near it.
pub const TTL_MS: u64 = 60_000;

/// A directory with the path of a store in it.
pub struct Place {
    pub directory: TempDir,
    pub path: PathBuf,
}

impl Place {
    pub fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("leases.db");
        Self { directory, path }
    }

    pub fn open(&self) -> SqliteSerializer {
        SqliteSerializer::open(&self.path).unwrap()
    }

    pub fn open_at(&self, time: &TestTime) -> SqliteSerializer {
        try_open_at(&self.path, time).unwrap()
    }

    pub fn side(&self) -> PathBuf {
        self.directory.path().join("leases.db-aster")
    }
}

pub fn options_at(time: &TestTime) -> SqliteOptions {
    SqliteOptions {
        time: Arc::new(time.clone()),
        ..SqliteOptions::default()
    }
}

pub fn try_open_at(path: &Path, time: &TestTime) -> Result<SqliteSerializer, OpenError> {
    SqliteSerializer::open_with(path, options_at(time))
}

/// A clock that stands still until it is moved. Clones show the same time.
#[derive(Clone)]
pub struct TestTime {
    now_ns: Arc<AtomicU64>,
    wall_ms: Arc<AtomicU64>,
    domain: Option<String>,
    offset_ns: u64,
}

impl TestTime {
    pub fn new(domain: &str) -> Self {
        Self {
            now_ns: Arc::new(AtomicU64::new(1_000_000_000_000)),
            wall_ms: Arc::new(AtomicU64::new(1_700_000_000_000)),
            domain: Some(domain.to_owned()),
            offset_ns: 0,
        }
    }

    /// The same time as read by another clock, `offset` ahead. `None`: a clock without a name.
    pub fn as_clock(&self, domain: Option<&str>, offset: Duration) -> Self {
        Self {
            domain: domain.map(str::to_owned),
            offset_ns: u64::try_from(offset.as_nanos()).unwrap(),
            ..self.clone()
        }
    }

    pub fn advance_ms(&self, ms: u64) {
        self.now_ns.fetch_add(ms * 1_000_000, Ordering::SeqCst);
        self.wall_ms.fetch_add(ms, Ordering::SeqCst);
    }

    pub fn set_wall_ms(&self, ms: u64) {
        self.wall_ms.store(ms, Ordering::SeqCst);
    }
}

impl StoreTime for TestTime {
    fn domain(&self) -> Option<ClockDomain> {
        self.domain.clone().map(ClockDomain::new)
    }

    fn now_ns(&self) -> u64 {
        self.now_ns.load(Ordering::SeqCst) + self.offset_ns
    }

    fn wall_unix_ms(&self) -> u64 {
        self.wall_ms.load(Ordering::SeqCst)
    }
}

type Hook = Box<dyn FnOnce() + Send>;

/// A clock at which something happens when it is read next, after its time was taken.
#[derive(Clone)]
pub struct HookedTime {
    time: TestTime,
    hook: Arc<Mutex<Option<Hook>>>,
}

impl HookedTime {
    pub fn new(time: &TestTime) -> Self {
        Self {
            time: time.clone(),
            hook: Arc::default(),
        }
    }

    pub fn at_next_reading(&self, hook: impl FnOnce() + Send + 'static) {
        *self.hook.lock().unwrap() = Some(Box::new(hook));
    }

    pub fn open(&self, place: &Place) -> SqliteSerializer {
        let options = SqliteOptions {
            time: Arc::new(self.clone()),
            ..SqliteOptions::default()
        };
        SqliteSerializer::open_with(&place.path, options).unwrap()
    }
}

impl StoreTime for HookedTime {
    fn domain(&self) -> Option<ClockDomain> {
        self.time.domain()
    }

    fn now_ns(&self) -> u64 {
        let now_ns = self.time.now_ns();
        let hook = self.hook.lock().unwrap().take();
        if let Some(hook) = hook {
            hook();
        }
        now_ns
    }

    fn wall_unix_ms(&self) -> u64 {
        self.time.wall_unix_ms()
    }
}

pub fn principal(name: &str) -> Principal {
    Principal::new(name).unwrap()
}

pub fn grant_id(seed: u64) -> GrantId {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    GrantId::from_bytes(bytes)
}

/// Different at every call, also between processes.
pub fn fresh_grant_id() -> GrantId {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let seed = u64::from(std::process::id()) << 32 | NEXT.fetch_add(1, Ordering::Relaxed);
    grant_id(seed)
}

pub fn write_id(seed: u64) -> WriteId {
    WriteId::from_bytes(*grant_id(seed).as_bytes())
}

pub fn acquire_op(candidate: &str, ttl_ms: u64, id: GrantId) -> LeaseOp {
    LeaseOp::Acquire {
        candidate: principal(candidate),
        ttl: Ttl::from_millis(ttl_ms).unwrap(),
        grant_id: id,
    }
}

pub fn renew_op(holder: &str, epoch: u64) -> LeaseOp {
    LeaseOp::Renew {
        holder: principal(holder),
        epoch,
    }
}

pub fn release_op(holder: &str, epoch: u64) -> LeaseOp {
    LeaseOp::Release {
        holder: principal(holder),
        epoch,
    }
}

pub fn revoke_op(epoch: u64, hold_off: Option<Duration>) -> LeaseOp {
    LeaseOp::Revoke {
        operator: principal("operator"),
        epoch,
        hold_off,
    }
}

/// Lets `holder` acquire and revokes it with a hold-off.
pub async fn hold_off(store: &SqliteSerializer, resource: &str, holder: &str, ms: u64) {
    let fence = acquire(store, resource, holder).await;
    let hold_off = Some(Duration::from_millis(ms));
    let outcome = store
        .transition(resource, revoke_op(fence.epoch, hold_off))
        .await;
    assert!(
        matches!(outcome, Ok(TransitionOutcome::Revoked)),
        "{outcome:?}"
    );
}

/// `holder` asks and is kept out.
#[track_caller]
pub fn assert_held_off(outcome: Outcome) {
    assert_eq!(denied(outcome).0, DenyReason::HeldOff);
}

pub type Outcome = Result<TransitionOutcome, SerializerError>;

pub async fn try_acquire(store: &SqliteSerializer, resource: &str, candidate: &str) -> Outcome {
    store
        .transition(resource, acquire_op(candidate, TTL_MS, fresh_grant_id()))
        .await
}

/// The fence of a grant that must be made.
pub async fn acquire(store: &SqliteSerializer, resource: &str, candidate: &str) -> Fence {
    granted(try_acquire(store, resource, candidate).await)
}

pub async fn renew(store: &SqliteSerializer, fence: &Fence) -> Outcome {
    store
        .transition(&fence.resource, renew_op(&fence.holder, fence.epoch))
        .await
}

pub async fn release(store: &SqliteSerializer, fence: &Fence) -> Outcome {
    store
        .transition(&fence.resource, release_op(&fence.holder, fence.epoch))
        .await
}

pub fn granted(outcome: Outcome) -> Fence {
    match outcome {
        Ok(TransitionOutcome::Granted(fence)) => fence,
        other => panic!("expected a grant, got {other:?}"),
    }
}

pub fn denied(outcome: Outcome) -> (DenyReason, LeaseSnapshot) {
    match outcome {
        Ok(TransitionOutcome::Denied(reason, snapshot)) => (reason, snapshot),
        other => panic!("expected a denial, got {other:?}"),
    }
}

#[track_caller]
pub fn assert_renewed(outcome: Outcome) {
    assert!(
        matches!(outcome, Ok(TransitionOutcome::Renewed)),
        "{outcome:?}"
    );
}

pub fn wait_request(candidate: &str, ttl_ms: u64, id: GrantId, wait: Duration) -> WaitRequest {
    WaitRequest {
        candidate: principal(candidate),
        ttl: Ttl::from_millis(ttl_ms).unwrap(),
        grant_id: id,
        wait,
    }
}

/// Long enough that no test comes near it.
pub const LONG: Duration = Duration::from_secs(600);

pub type Waited = Result<WaitOutcome, SerializerError>;

/// Waits for a long lease under a fresh grant id.
pub async fn wait(
    store: &SqliteSerializer,
    resource: &str,
    candidate: &str,
    wait: Duration,
) -> Waited {
    let request = wait_request(candidate, TTL_MS, fresh_grant_id(), wait);
    store.acquire_wait(resource, request).await
}

/// The same in a task of its own, once it is in the queue: as the `length`th, counted from 1.
pub async fn waiting(
    store: &SqliteSerializer,
    resource: &'static str,
    candidate: &str,
    length: usize,
) -> tokio::task::JoinHandle<Waited> {
    let task = {
        let (store, candidate) = (store.clone(), candidate.to_owned());
        tokio::spawn(async move { wait(&store, resource, &candidate, LONG).await })
    };
    until_queued(store, resource, length).await;
    task
}

/// Until so many wait.
pub async fn until_queued(store: &SqliteSerializer, resource: &str, length: usize) {
    while store.queue(resource).await.unwrap().len() != length {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// The fence and the claim of a wait that must have been granted.
#[track_caller]
pub fn granted_after_wait(waited: Waited) -> (Fence, Option<Duration>) {
    match waited {
        Ok(WaitOutcome::Granted { fence, claim }) => (fence, claim),
        other => panic!("expected a grant, got {other:?}"),
    }
}

#[track_caller]
pub fn denied_after_wait(waited: Waited) -> (DenyReason, LeaseSnapshot) {
    match waited {
        Ok(WaitOutcome::Denied(reason, snapshot)) => (reason, snapshot),
        other => panic!("expected a denial, got {other:?}"),
    }
}

/// Adds a row to the table `published`, which it makes if need be.
pub fn publish(tx: &rusqlite::Transaction<'_>, version: &str) -> rusqlite::Result<()> {
    tx.execute_batch("CREATE TABLE IF NOT EXISTS published (version TEXT)")?;
    tx.execute("INSERT INTO published VALUES (?1)", [version])
        .map(|_| ())
}

/// What stands in the table `published`, in order.
pub fn published(path: &Path) -> Vec<String> {
    let connection = rusqlite::Connection::open(path).unwrap();
    let Ok(mut select) = connection.prepare("SELECT version FROM published ORDER BY rowid") else {
        return Vec::new();
    };
    let rows = select.query_map([], |row| row.get(0)).unwrap();
    rows.collect::<Result<_, _>>().unwrap()
}

/// Polls `future` once.
pub async fn poll_once<F: Future + Unpin>(future: &mut F) -> Option<F::Output> {
    let mut future = std::pin::Pin::new(future);
    std::future::poll_fn(|context| {
        std::task::Poll::Ready(match future.as_mut().poll(context) {
            std::task::Poll::Ready(output) => Some(output),
            std::task::Poll::Pending => None,
        })
    })
    .await
}

/// Polls `future` at most `polls` times, each time that it asks for it, and drops it then.
pub async fn after_polls<F: Future>(polls: usize, future: F) -> Option<F::Output> {
    let mut future = std::pin::pin!(future);
    let mut left = polls;
    std::future::poll_fn(|context| {
        if left == 0 {
            return std::task::Poll::Ready(None);
        }
        left -= 1;
        future.as_mut().poll(context).map(Some)
    })
    .await
}
