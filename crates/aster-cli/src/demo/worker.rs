//! A worker of the demo: a process with an identity of its own, which does what it is told.
//!
//! The catalog is a table of the user's in the same file as the leases. The two ways to write it differ in
//! the check alone.

use std::io::{self, BufRead};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use aster::lease::{
    AcquireOutcome, Fence, FencedError, LeaseHandle, LeaseOp, LeaseOptions, LeaseSerializer,
    LeaseSnapshot, Principal, SerializerError, TransitionOutcome,
};
use aster::sqlite::SqliteSerializer;
use aster::sqlite::rusqlite::{self, Connection, TransactionBehavior};
use rustix::process::{Signal, set_parent_process_death_signal};
use serde::{Deserialize, Serialize};
use tokio::sync::{OwnedRwLockWriteGuard, RwLock};

use super::{RESOURCE, TTL};
use crate::arguments::DemoWorkerArguments;
use crate::failure::{Failure, FailureKind, sentence};

/// How often B asks again before it gives up: a minute.
const ASKS_MAX: u32 = 1_200;
const ASK_PAUSE: Duration = Duration::from_millis(50);
const BUSY_WAIT: Duration = Duration::from_secs(10);

const WRITE: &str = "UPDATE catalog SET value = ?1";

/// What a worker is told, one JSON line each.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Order {
    Acquire,
    AcquireWhenFree,
    Publish(String),
    /// Take the fence for this value, and touch the store no more until the next order.
    TakeFence(String),
    /// Send the write for which the fence was taken.
    WriteLate,
    Why,
    Status,
    Release,
}

/// What it answers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Reply {
    Granted { epoch: u64 },
    Denied { reason: String },
    FenceTaken { epoch: u64 },
    Written,
    Rejected,
    Text(String),
    Done,
    Failed(String),
}

/// The hidden subcommand. Ends with its orders.
pub(crate) async fn work(arguments: &DemoWorkerArguments) -> Result<(), Failure> {
    set_parent_process_death_signal(Some(Signal::KILL))
        .map_err(|error| Failure::io("cannot tie the worker to the demo", &error.into()))?;
    let store = SqliteSerializer::open(&arguments.database)?;
    let mut worker = Worker {
        identity: arguments.worker_identity.clone(),
        plain: Connection::open(&arguments.database).map_err(sql)?,
        serializer: Arc::new(Quiet::new(store.clone())),
        store,
        unfenced: arguments.unfenced,
        lease: None,
        late: None,
        rejection: String::new(),
    };
    worker.plain.busy_timeout(BUSY_WAIT).map_err(sql)?;
    loop {
        let Some(order) = next_order().await? else {
            return Ok(());
        };
        let reply = worker
            .carry_out(order)
            .await
            .unwrap_or_else(|failure| Reply::Failed(failure.message));
        let line = serde_json::to_string(&reply)
            .map_err(|error| Failure::new(FailureKind::Internal, error.to_string()))?;
        crate::output::print(format!("{line}\n").as_bytes())?;
    }
}

/// Read on another thread, so that the lease is renewed meanwhile.
async fn next_order() -> Result<Option<Order>, Failure> {
    let read = tokio::task::spawn_blocking(|| {
        let mut line = String::new();
        io::stdin().lock().read_line(&mut line).map(|_| line)
    });
    let line = read
        .await
        .map_err(io::Error::other)
        .and_then(|line| line)
        .map_err(|error| Failure::io("cannot read the next order", &error))?;
    if line.is_empty() {
        return Ok(None);
    }
    serde_json::from_str(&line)
        .map(Some)
        .map_err(|error| Failure::new(FailureKind::Internal, error.to_string()))
}

struct Worker {
    identity: Principal,
    store: SqliteSerializer,
    serializer: Arc<Quiet>,
    plain: Connection,
    unfenced: bool,
    lease: Option<LeaseHandle>,
    late: Option<LateWrite>,
    rejection: String,
}

/// A write on its way.
struct LateWrite {
    fence: Fence,
    value: String,
    _quiet: OwnedRwLockWriteGuard<()>,
}

impl Worker {
    async fn carry_out(&mut self, order: Order) -> Result<Reply, Failure> {
        match order {
            Order::Acquire => self.acquire().await,
            Order::AcquireWhenFree => self.acquire_when_free().await,
            Order::Publish(value) => {
                let fence = self.fence()?;
                self.write(&fence, &value)
            }
            Order::TakeFence(value) => {
                let quiet = self.serializer.clone().hold_still().await;
                let fence = self.fence()?;
                let epoch = fence.epoch;
                self.late = Some(LateWrite {
                    fence,
                    value,
                    _quiet: quiet,
                });
                Ok(Reply::FenceTaken { epoch })
            }
            Order::WriteLate => match self.late.take() {
                Some(late) => self.write(&late.fence, &late.value),
                None => Ok(Reply::Failed("no write is on its way".to_owned())),
            },
            Order::Why => Ok(Reply::Text(self.rejection.clone())),
            Order::Status => self.status().await,
            Order::Release => {
                if let Some(lease) = &self.lease {
                    lease.release().await?;
                }
                Ok(Reply::Done)
            }
        }
    }

    async fn acquire(&mut self) -> Result<Reply, Failure> {
        let options = LeaseOptions::with_ttl(TTL);
        let serializer = self.serializer.clone();
        match LeaseHandle::acquire(serializer, RESOURCE, &self.identity, options).await? {
            AcquireOutcome::Granted(lease) => {
                let epoch = lease.epoch();
                self.lease = Some(lease);
                Ok(Reply::Granted { epoch })
            }
            AcquireOutcome::Denied(reason, _) => Ok(Reply::Denied {
                reason: reason.to_string(),
            }),
        }
    }

    async fn acquire_when_free(&mut self) -> Result<Reply, Failure> {
        for _ in 0..ASKS_MAX {
            let reply = self.acquire().await?;
            if !matches!(reply, Reply::Denied { .. }) {
                return Ok(reply);
            }
            tokio::time::sleep(ASK_PAUSE).await;
        }
        Ok(Reply::Failed("the lease did not become free".to_owned()))
    }

    fn fence(&self) -> Result<Fence, Failure> {
        self.lease
            .as_ref()
            .and_then(LeaseHandle::fence)
            .ok_or_else(|| {
                Failure::new(
                    FailureKind::LeaseLost,
                    "no fence: the lease was lost too early",
                )
            })
    }

    /// The same statement twice: once with the check in its transaction, once without.
    fn write(&mut self, fence: &Fence, value: &str) -> Result<Reply, Failure> {
        if self.unfenced {
            self.plain.execute(WRITE, [value]).map_err(sql)?;
            return Ok(Reply::Written);
        }
        let written = self
            .store
            .mutate_fenced(fence, self.identity.as_str(), |transaction| {
                transaction.execute(WRITE, [value])
            });
        match written {
            Ok(_) => Ok(Reply::Written),
            Err(FencedError::Rejected(rejection)) => {
                self.rejection = rejection.to_string();
                Ok(Reply::Rejected)
            }
            Err(error) => Err(Failure::new(FailureKind::Storage, sentence(&error))),
        }
    }

    /// Waits until the handle has noticed that it is over.
    async fn status(&self) -> Result<Reply, Failure> {
        let text = match &self.lease {
            Some(lease) => format!("its lease has ended, {}", lease.lost().await),
            None => "it holds no lease".to_owned(),
        };
        Ok(Reply::Text(text))
    }
}

/// A serializer that can be kept from being called, so that a worker can be stopped between two calls.
struct Quiet {
    inner: SqliteSerializer,
    calls: Arc<RwLock<()>>,
}

impl Quiet {
    fn new(inner: SqliteSerializer) -> Self {
        Self {
            inner,
            calls: Arc::default(),
        }
    }

    /// Waits for the calls under way; new ones wait for the guard to be dropped.
    async fn hold_still(self: Arc<Self>) -> OwnedRwLockWriteGuard<()> {
        self.calls.clone().write_owned().await
    }
}

#[async_trait::async_trait]
impl LeaseSerializer for Quiet {
    async fn transition(
        &self,
        resource: &str,
        op: LeaseOp,
    ) -> Result<TransitionOutcome, SerializerError> {
        let _call = self.calls.read().await;
        self.inner.transition(resource, op).await
    }

    async fn snapshot(&self, resource: &str) -> Result<LeaseSnapshot, SerializerError> {
        let _call = self.calls.read().await;
        self.inner.snapshot(resource).await
    }
}

/// The user's table, before anybody works.
pub(crate) fn create_catalog(database: &Path) -> Result<(), Failure> {
    Connection::open(database)
        .and_then(|connection| {
            connection.execute_batch(
                "CREATE TABLE catalog (value TEXT NOT NULL); INSERT INTO catalog VALUES ('empty');",
            )
        })
        .map_err(sql)
}

/// What a reader of the catalog sees.
pub(crate) fn catalog(database: &Path) -> Result<String, Failure> {
    Connection::open(database)
        .and_then(|connection| {
            connection.busy_timeout(BUSY_WAIT)?;
            connection.query_row("SELECT value FROM catalog", [], |row| row.get(0))
        })
        .map_err(sql)
}

/// Whether nobody is inside a write transaction of the file or of the renewals beside it.
pub(crate) fn is_unlocked(database: &Path) -> bool {
    let mut renewals = database.as_os_str().to_owned();
    renewals.push("-aster");
    [database.as_os_str(), &renewals]
        .into_iter()
        .filter(|path| Path::new(path).exists())
        .all(|path| {
            Connection::open(path)
                .and_then(|mut connection| {
                    connection.busy_timeout(Duration::ZERO)?;
                    connection
                        .transaction_with_behavior(TransactionBehavior::Immediate)?
                        .rollback()
                })
                .is_ok()
        })
}

fn sql(error: rusqlite::Error) -> Failure {
    Failure::new(
        FailureKind::Storage,
        format!("the demo's database: {error}"),
    )
}
