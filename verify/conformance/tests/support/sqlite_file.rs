//! The harness of the SQLite store in one process.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use aster_conformance::{Harness, PausedWrite, Possible, Written};
use aster_lease::{Fence, LeaseSerializer, Registers};
use aster_sqlite::{ClockDomain, SqliteOptions, SqliteSerializer, StoreTime};
use async_trait::async_trait;
use tempfile::TempDir;

use super::on_a_thread;
use super::sqlite::{self, put, written};

/// Whoever waits in a process ends with it.
pub const WITH_OPEN_REQUESTS: &[&str] = &["who_waits_during_a_restart_may_ask_again"];

pub struct Sqlite {
    /// Whether the store's clock has a name, so that another opening knows it again.
    pub is_clock_named: bool,
}

pub struct Store {
    /// `None` only while the store restarts.
    serializer: Option<SqliteSerializer>,
    time: Arc<HandTime>,
    directory: TempDir,
}

impl Store {
    fn serializer(&self) -> &SqliteSerializer {
        self.serializer.as_ref().unwrap()
    }

    fn open(&mut self) {
        let options = SqliteOptions {
            time: self.time.clone(),
            waiters_max: sqlite::WAITERS_MAX,
            ..SqliteOptions::default()
        };
        let path = self.directory.path().join("leases.db");
        self.serializer = Some(SqliteSerializer::open_with(path, options).unwrap());
    }
}

/// A clock that moves by hand.
struct HandTime {
    now_ns: AtomicU64,
    wall_ms: AtomicI64,
    is_named: bool,
}

impl StoreTime for HandTime {
    fn domain(&self) -> Option<ClockDomain> {
        self.is_named.then(|| ClockDomain::new("by hand"))
    }

    fn now_ns(&self) -> u64 {
        self.now_ns.load(Ordering::SeqCst)
    }

    fn wall_unix_ms(&self) -> u64 {
        u64::try_from(self.wall_ms.load(Ordering::SeqCst)).unwrap()
    }
}

#[async_trait]
impl Harness for Sqlite {
    type Store = Store;

    async fn fresh(&self) -> Store {
        let directory = tempfile::tempdir().unwrap();
        sqlite::make_catalog(&directory.path().join("leases.db"));
        let now_ns = AtomicU64::new(1_000_000_000_000);
        let time = Arc::new(HandTime {
            now_ns,
            wall_ms: AtomicI64::new(1_700_000_000_000),
            is_named: self.is_clock_named,
        });
        let mut store = Store {
            serializer: None,
            time,
            directory,
        };
        store.open();
        store
    }

    fn serializer<'a>(&self, store: &'a Store) -> &'a dyn LeaseSerializer {
        store.serializer()
    }

    fn registers<'a>(&self, store: &'a Store) -> Option<&'a dyn Registers> {
        Some(store.serializer())
    }

    async fn write(&self, store: &Store, fence: &Fence, writer: &str, value: &str) -> Written {
        written(
            store
                .serializer()
                .mutate_fenced(fence, writer, |tx| put(tx, &fence.resource, value)),
        )
    }

    async fn read(&self, store: &Store, resource: &str) -> Option<String> {
        sqlite::read(&store.directory.path().join("leases.db"), resource)
    }

    async fn start_write(
        &self,
        store: &Store,
        fence: &Fence,
        writer: &str,
        value: &str,
    ) -> Option<PausedWrite> {
        let serializer = store.serializer().clone();
        let (fence, writer, value) = (fence.clone(), writer.to_owned(), value.to_owned());
        Some(on_a_thread(
            move |inside: mpsc::Sender<()>, go_on: mpsc::Receiver<()>| {
                written(serializer.mutate_fenced(&fence, &writer, |tx| {
                    inside.send(()).unwrap();
                    go_on.recv().unwrap();
                    put(tx, &fence.resource, &value)
                }))
            },
        ))
    }

    async fn advance(&self, store: &Store, by: Duration) -> Possible {
        let by_ns = u64::try_from(by.as_nanos()).unwrap();
        store.time.now_ns.fetch_add(by_ns, Ordering::SeqCst);
        Possible::Yes
    }

    fn grants_until_idle_rows_go(&self) -> usize {
        sqlite::GRANTS_UNTIL_IDLE_ROWS_GO
    }

    fn waiters_max(&self) -> Option<usize> {
        Some(sqlite::WAITERS_MAX)
    }

    async fn jump_wall_clock(&self, store: &Store, by_s: i64) -> Possible {
        let by_ms = by_s * 1_000;
        store.time.wall_ms.fetch_add(by_ms, Ordering::SeqCst);
        Possible::Yes
    }

    async fn restart(&self, store: &mut Store) -> Possible {
        store.serializer = None;
        store.open();
        Possible::Yes
    }
}
