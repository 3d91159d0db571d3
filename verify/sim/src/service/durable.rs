//! The SQLite store on the serializer's machine.
//!
//! Its threads know nothing of the world, so each call waits for its answer right here while the world
//! stands still; and its clock is what the machine's clock said when the call began. So a seed repeats with
//! it as well. What it does in its own time, its queue and its watches, is left out: waiters ask again and
//! again, and nobody follows a resource.

use std::path::PathBuf;
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::Duration;

use aster_core::{
    DenyReason, ExpectedRevision, Fence, FenceRejection, LeaseOp, TransitionOutcome, WriteId,
};
use aster_lease::{
    FencedError, LeaseSerializer, LeaseSnapshot, ListQuery, MemoryOptions, RegisterError,
    RegisterValue, Registers, SerializerError, WaitOutcome, WaitRequest,
};
use aster_sqlite::{ClockDomain, SqliteOptions, SqliteSerializer, StoreTime};
use async_trait::async_trait;
use tempfile::TempDir;

use super::Store;
use crate::clock::MachineClock;

/// How long who waits sleeps before it asks again.
const ASK_EVERY: Duration = Duration::from_millis(100);

/// A file system in memory, where there is one.
const MEMORY_DISK: &str = "/dev/shm";

pub(crate) struct Durable {
    open: Mutex<Open>,
    options: SqliteOptions,
    clock: Arc<MachineClock>,
    now_ns: Arc<AtomicU64>,
    path: PathBuf,
    /// Removed with the world.
    _directory: TempDir,
}

struct Open {
    /// `None` only between a close and an open.
    store: Option<SqliteSerializer>,
    boots: u64,
}

/// The clock that the store sees.
struct Told {
    now_ns: Arc<AtomicU64>,
    /// Each start of the machine is a boot of its own.
    boot: u64,
}

impl StoreTime for Told {
    fn domain(&self) -> Option<ClockDomain> {
        Some(ClockDomain::new(format!("boot-{}/0", self.boot)))
    }

    fn now_ns(&self) -> u64 {
        self.now_ns.load(Ordering::Relaxed)
    }

    fn wall_unix_ms(&self) -> u64 {
        0
    }
}

impl Durable {
    pub(crate) fn new(
        options: &MemoryOptions,
        clock: Arc<MachineClock>,
    ) -> Result<Self, SerializerError> {
        // What survives a power loss is shown elsewhere: here a sync may be quick.
        let directory = tempfile::tempdir_in(MEMORY_DISK)
            .or_else(|_| tempfile::tempdir())
            .map_err(|error| failed(&error))?;
        let now_ns = Arc::new(AtomicU64::new(0));
        let durable = Self {
            open: Mutex::new(Open {
                store: None,
                boots: 0,
            }),
            options: SqliteOptions {
                ttl_bounds: options.ttl_bounds,
                idle_retention: options.idle_retention,
                idle_rows_max: options.idle_rows_max,
                entropy: options.entropy.clone(),
                ..SqliteOptions::default()
            },
            clock,
            now_ns,
            path: directory.path().join("leases.db"),
            _directory: directory,
        };
        durable.boot()?;
        Ok(durable)
    }

    /// Opens the file, as the first process after a boot does.
    fn boot(&self) -> Result<(), SerializerError> {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        // The last process has closed it before.
        open.store = None;
        open.boots += 1;
        let options = SqliteOptions {
            time: Arc::new(Told {
                now_ns: self.now_ns.clone(),
                boot: open.boots,
            }),
            ..self.options.clone()
        };
        let store = SqliteSerializer::open_with(&self.path, options);
        open.store = Some(store.map_err(|error| failed(&error))?);
        Ok(())
    }

    fn store(&self) -> Result<SqliteSerializer, SerializerError> {
        let now_us = self.clock.monotonic_us();
        self.now_ns.store(now_us * 1_000, Ordering::Relaxed);
        let open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        open.store.clone().ok_or(SerializerError::Closed)
    }
}

fn failed(error: &dyn std::fmt::Display) -> SerializerError {
    SerializerError::Storage {
        message: error.to_string(),
        source: None,
    }
}

/// Waits for an answer of the store's threads without letting the world go on.
fn here<T>(future: impl Future<Output = T>) -> T {
    struct Unpark(Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut context = Context::from_waker(&waker);
    let mut future = pin!(tokio::task::unconstrained(future));
    loop {
        match future.as_mut().poll(&mut context) {
            Poll::Ready(output) => return output,
            Poll::Pending => std::thread::park(),
        }
    }
}

impl Store for Durable {
    fn restart(&self) -> Result<(), SerializerError> {
        let now_us = self.clock.monotonic_us();
        self.now_ns.store(now_us * 1_000, Ordering::Relaxed);
        self.boot()
    }

    fn mutate(
        &self,
        fence: &Fence,
        writer: &str,
        write: &mut dyn FnMut(),
    ) -> Result<Result<(), FenceRejection>, SerializerError> {
        let run = |_: &aster_sqlite::rusqlite::Transaction<'_>| -> Result<(), SerializerError> {
            write();
            Ok(())
        };
        match self.store()?.mutate_fenced(fence, writer, run) {
            Ok(()) => Ok(Ok(())),
            Err(FencedError::Rejected(why)) => Ok(Err(why)),
            Err(FencedError::Store(error) | FencedError::Operation(error)) => Err(error),
            Err(other) => Err(failed(&other)),
        }
    }

    fn row_count(&self) -> Option<usize> {
        None
    }
}

#[async_trait]
impl LeaseSerializer for Durable {
    async fn transition(
        &self,
        resource: &str,
        op: LeaseOp,
    ) -> Result<TransitionOutcome, SerializerError> {
        here(self.store()?.transition(resource, op))
    }

    async fn snapshot(&self, resource: &str) -> Result<LeaseSnapshot, SerializerError> {
        here(self.store()?.snapshot(resource))
    }

    async fn acquire_wait(
        &self,
        resource: &str,
        request: WaitRequest,
    ) -> Result<WaitOutcome, SerializerError> {
        let mut waited = Duration::ZERO;
        loop {
            match self.transition(resource, request.acquire()).await? {
                TransitionOutcome::Granted(fence) => {
                    // Who had to wait renews first.
                    let claim = (!waited.is_zero()).then(|| request.ttl.duration());
                    return Ok(WaitOutcome::Granted { fence, claim });
                }
                TransitionOutcome::Denied(DenyReason::HeldByOther, snapshot)
                    if waited >= request.wait =>
                {
                    return Ok(WaitOutcome::Denied(DenyReason::WaitRanOut, snapshot));
                }
                TransitionOutcome::Denied(DenyReason::HeldByOther, _) => {
                    tokio::time::sleep(ASK_EVERY).await;
                    waited += ASK_EVERY;
                }
                TransitionOutcome::Denied(reason, snapshot) => {
                    return Ok(WaitOutcome::Denied(reason, snapshot));
                }
                other => return Err(failed(&format!("{other:?}"))),
            }
        }
    }

    async fn list(&self, query: ListQuery) -> Result<Vec<LeaseSnapshot>, SerializerError> {
        here(self.store()?.list(query))
    }
}

#[async_trait]
impl Registers for Durable {
    async fn read(&self, resource: &str) -> Result<Option<RegisterValue>, SerializerError> {
        here(self.store()?.read(resource))
    }

    async fn compare_and_set_with_id(
        &self,
        fence: &Fence,
        writer: &str,
        expected: ExpectedRevision,
        value: Vec<u8>,
        write_id: WriteId,
    ) -> Result<u64, RegisterError> {
        let store = self.store()?;
        here(store.compare_and_set_with_id(fence, writer, expected, value, write_id))
    }

    async fn compare_and_set(
        &self,
        fence: &Fence,
        writer: &str,
        expected: ExpectedRevision,
        value: Vec<u8>,
    ) -> Result<u64, RegisterError> {
        here(
            self.store()?
                .compare_and_set(fence, writer, expected, value),
        )
    }

    async fn release_with_value(
        &self,
        fence: &Fence,
        writer: &str,
        expected: ExpectedRevision,
        value: Vec<u8>,
        write_id: WriteId,
    ) -> Result<u64, RegisterError> {
        let store = self.store()?;
        here(store.release_with_value(fence, writer, expected, value, write_id))
    }
}
