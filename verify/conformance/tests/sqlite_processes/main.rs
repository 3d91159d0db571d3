//! The SQLite store on the suites, its requests spread over two processes that share the file.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "test code outside a #[test] function"
)]

mod peer;
mod spread;
#[path = "../support/mod.rs"]
mod support;
mod wire;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc;
use std::time::Duration;

use aster_conformance::{
    Harness, PausedWrite, Possible, Written, fenced_resource_suite, registers_suite,
    serializer_suite,
};
use aster_lease::{Fence, LeaseSerializer, Registers};
use aster_sqlite::{ClockDomain, SqliteOptions, SqliteSerializer, StoreTime};
use async_trait::async_trait;
use peer::Peer;
use spread::Spread;
use support::on_a_thread;
use support::sqlite::{self, put, written};
use tempfile::TempDir;
use wire::{Answer, Ask};

/// A clock in a file, which both processes read and the cases move.
struct FileTime {
    path: PathBuf,
    now: PathBuf,
}

impl FileTime {
    fn in_directory(directory: &Path) -> Self {
        Self {
            path: directory.join("clock"),
            now: directory.join("clock.next"),
        }
    }

    fn clocks(&self) -> [i64; 2] {
        let text = std::fs::read_to_string(&self.path).unwrap();
        let (now_ns, wall_ms) = text.split_once(' ').unwrap();
        [now_ns.parse().unwrap(), wall_ms.parse().unwrap()]
    }

    fn set(&self, [now_ns, wall_ms]: [i64; 2]) {
        std::fs::write(&self.now, format!("{now_ns} {wall_ms}")).unwrap();
        std::fs::rename(&self.now, &self.path).unwrap();
    }
}

impl StoreTime for FileTime {
    fn domain(&self) -> Option<ClockDomain> {
        Some(ClockDomain::new("by hand"))
    }

    fn now_ns(&self) -> u64 {
        u64::try_from(self.clocks()[0]).unwrap()
    }

    fn wall_unix_ms(&self) -> u64 {
        u64::try_from(self.clocks()[1]).unwrap()
    }
}

fn open(directory: &Path) -> SqliteSerializer {
    let options = SqliteOptions {
        time: Arc::new(FileTime::in_directory(directory)),
        waiters_max: sqlite::WAITERS_MAX,
        ..SqliteOptions::default()
    };
    SqliteSerializer::open_with(directory.join("leases.db"), options).unwrap()
}

struct Processes;

struct Store {
    /// `None` only while the store restarts.
    spread: Option<Spread>,
    peer: Arc<Peer>,
    time: FileTime,
    directory: TempDir,
}

impl Store {
    fn spread(&self) -> &Spread {
        self.spread.as_ref().unwrap()
    }

    fn path(&self) -> PathBuf {
        self.directory.path().join("leases.db")
    }
}

#[async_trait]
impl Harness for Processes {
    type Store = Store;

    async fn fresh(&self) -> Store {
        let directory = tempfile::tempdir().unwrap();
        sqlite::make_catalog(&directory.path().join("leases.db"));
        let time = FileTime::in_directory(directory.path());
        time.set([1_000_000_000_000, 1_700_000_000_000]);
        let here = open(directory.path());
        let peer = Peer::start("serve_the_other_process", directory.path());
        Store {
            spread: Some(Spread::new(here, Arc::clone(&peer))),
            peer,
            time,
            directory,
        }
    }

    fn serializer<'a>(&self, store: &'a Store) -> &'a dyn LeaseSerializer {
        store.spread()
    }

    fn registers<'a>(&self, store: &'a Store) -> Option<&'a dyn Registers> {
        Some(store.spread())
    }

    async fn write(&self, store: &Store, fence: &Fence, writer: &str, value: &str) -> Written {
        if store.spread().is_mine() {
            return written(
                store
                    .spread()
                    .here()
                    .mutate_fenced(fence, writer, |tx| put(tx, &fence.resource, value)),
            );
        }
        let ask = Ask::Put(fence.clone(), writer.to_owned(), value.to_owned());
        match store.peer.ask(ask).await {
            Answer::Put(put) => put.into(),
            _ => unreachable!("the answer to a put"),
        }
    }

    async fn read(&self, store: &Store, resource: &str) -> Option<String> {
        sqlite::read(&store.path(), resource)
    }

    async fn start_write(
        &self,
        store: &Store,
        fence: &Fence,
        writer: &str,
        value: &str,
    ) -> Option<PausedWrite> {
        let here = store.spread().here().clone();
        let (fence, writer, value) = (fence.clone(), writer.to_owned(), value.to_owned());
        Some(on_a_thread(
            move |inside: mpsc::Sender<()>, go_on: mpsc::Receiver<()>| {
                written(here.mutate_fenced(&fence, writer.as_str(), |tx| {
                    inside.send(()).unwrap();
                    go_on.recv().unwrap();
                    put(tx, &fence.resource, &value)
                }))
            },
        ))
    }

    async fn advance(&self, store: &Store, by: Duration) -> Possible {
        let [now_ns, wall_ms] = store.time.clocks();
        let by_ns = i64::try_from(by.as_nanos()).unwrap();
        store.time.set([now_ns + by_ns, wall_ms]);
        Possible::Yes
    }

    async fn jump_wall_clock(&self, store: &Store, by_s: i64) -> Possible {
        let [now_ns, wall_ms] = store.time.clocks();
        store.time.set([now_ns, wall_ms + by_s * 1_000]);
        Possible::Yes
    }

    fn grants_until_idle_rows_go(&self) -> usize {
        2 * sqlite::GRANTS_UNTIL_IDLE_ROWS_GO
    }

    fn waiters_max(&self) -> Option<usize> {
        Some(sqlite::WAITERS_MAX)
    }

    async fn restart(&self, store: &mut Store) -> Possible {
        store.spread = None;
        store.peer.ask(Ask::Restart).await;
        let here = open(store.directory.path());
        store.spread = Some(Spread::new(here, Arc::clone(&store.peer)));
        Possible::Yes
    }
}

/// Not a test of its own: the other process.
#[tokio::test]
async fn serve_the_other_process() {
    if let Some(directory) = peer::directory() {
        peer::serve(directory.join("leases.db"), || open(&directory)).await;
    }
}

#[tokio::test]
async fn two_processes_are_a_serializer() {
    serializer_suite(&Processes)
        .await
        .assert_all_checked_but(&["who_waits_during_a_restart_may_ask_again"]);
}

#[tokio::test]
async fn two_processes_are_a_fenced_resource() {
    fenced_resource_suite(&Processes).await.assert_all_checked();
}

#[tokio::test]
async fn two_processes_have_registers() {
    registers_suite(&Processes).await.assert_all_checked();
}
