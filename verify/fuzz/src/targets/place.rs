//! A directory with a store in it whose files are put back before each run.

use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use aster_core::{
    Authority, ExpectedRevision, GrantId, LeaseOp, Principal, TransitionOutcome, Ttl, WriteId,
};
use aster_lease::{Entropy, EntropyError, LeaseSerializer, Registers};
use aster_sqlite::{ClockDomain, ExistingBackup, SqliteOptions, SqliteSerializer, StoreTime};
use rusqlite::Connection;
use tempfile::TempDir;
use tokio::runtime::{Builder, Runtime};

/// The files of a store, by what follows the name of the main file.
pub(crate) const FILES: [&str; 4] = ["", "-wal", "-aster", "-aster-wal"];
/// What SQLite and the store put beside them.
const OTHERS: [&str; 3] = ["-shm", "-aster-shm", "-journal"];
/// Small, so that a file is a few pages of which each byte matters.
const PAGE_BYTES: u32 = 512;
/// Longer than any run of a target on the clock of its store.
pub(crate) const TTL_MS: u64 = 60_000;
/// Nobody else has the files open.
const BUSY_BOUND: Duration = Duration::from_millis(200);

/// Waits for a future that needs no runtime of its own.
pub(crate) fn wait_for<T>(future: impl Future<Output = T>) -> T {
    thread_local! {
        static RUNTIME: RefCell<Option<Runtime>> = const { RefCell::new(None) };
    }
    RUNTIME.with_borrow_mut(|runtime| {
        let runtime = runtime
            .get_or_insert_with(|| Builder::new_current_thread().enable_all().build().unwrap());
        runtime.block_on(future)
    })
}

/// A clock that stands where it is put.
#[derive(Debug, Clone)]
pub(crate) struct SetTime(Arc<AtomicU64>);

impl SetTime {
    pub(crate) fn advance_ms(&self, ms: u64) {
        self.0.fetch_add(ms * 1_000_000, Ordering::SeqCst);
    }
}

impl StoreTime for SetTime {
    fn domain(&self) -> Option<ClockDomain> {
        Some(ClockDomain::new("boot/0 0"))
    }

    fn now_ns(&self) -> u64 {
        self.0.load(Ordering::SeqCst)
    }

    fn wall_unix_ms(&self) -> u64 {
        1_700_000_000_000
    }
}

/// Ids that are the same in every run, so that inputs mean the same files.
struct Counted(AtomicU64);

impl Entropy for Counted {
    fn fill(&self, bytes: &mut [u8]) -> Result<(), EntropyError> {
        let count = self.0.fetch_add(1, Ordering::SeqCst);
        for (at, byte) in bytes.iter_mut().enumerate() {
            *byte = count.to_le_bytes()[at % 8] ^ at as u8;
        }
        Ok(())
    }
}

/// Settings of a store whose ids count from `first`, and its clock.
pub(crate) fn options(first: u64) -> (SqliteOptions, SetTime) {
    let time = SetTime(Arc::new(AtomicU64::new(1_000_000_000_000)));
    let options = SqliteOptions {
        busy_bound: BUSY_BOUND,
        time: Arc::new(time.clone()),
        entropy: Arc::new(Counted(AtomicU64::new(first))),
        ..SqliteOptions::default()
    };
    (options, time)
}

/// How a store's files are put back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
    /// As it is closed.
    Closed,
    /// As a crash leaves it, with its logs.
    WithLogs,
    /// Closed, and its tables take any value of any type.
    Loose,
}

/// The same path and file each time: a store refuses a copy of its file.
#[derive(Debug)]
pub(crate) struct Place {
    directory: TempDir,
    path: PathBuf,
    closed: [Option<Vec<u8>>; 4],
    with_logs: [Option<Vec<u8>>; 4],
    loose: [Option<Vec<u8>>; 4],
    backup: Vec<u8>,
    authority: Authority,
}

impl Place {
    /// A fresh directory, in memory if there is room.
    pub(crate) fn directory() -> TempDir {
        let memory = Path::new("/dev/shm");
        tempfile::Builder::new()
            .prefix("aster-fuzz-")
            .tempdir_in(memory)
            .or_else(|_| tempfile::tempdir())
            .expect("a directory for temporary files")
    }

    /// Runs `step` with this thread's place.
    pub(crate) fn with<T>(step: impl FnOnce(&Place) -> T) -> T {
        thread_local! {
            static PLACE: RefCell<Option<Place>> = const { RefCell::new(None) };
        }
        PLACE.with_borrow_mut(|place| step(place.get_or_insert_with(Place::new)))
    }

    fn new() -> Self {
        let directory = Self::directory();
        let path = directory.path().join("leases.db");
        // The user's own file, with a table of the user's.
        let user = Connection::open(&path).unwrap();
        user.pragma_update(None, "page_size", PAGE_BYTES).unwrap();
        user.execute_batch("CREATE TABLE catalog (value TEXT); INSERT INTO catalog VALUES ('v1')")
            .unwrap();
        drop(user);
        let (options, _) = options(1);
        let store = SqliteSerializer::open_with(&path, options.clone()).unwrap();
        fill(&store);
        let authority = store.store_authority();
        let with_logs = read(&path);
        let backup_path = directory.path().join("backup.db");
        store.backup(&backup_path, ExistingBackup::Keep).unwrap();
        let backup = std::fs::read(&backup_path).unwrap();
        std::fs::remove_file(backup_path).unwrap();
        drop(store);
        let side = Connection::open(beside(&path, "-aster")).unwrap();
        side.execute(
            "INSERT INTO waiters (resource, candidate, ttl_ms, grant_id, process, era, since_ns, until_ns)
             SELECT 'catalog', 'worker-c', 60000, ?1, ?2, era, 1, 2000000000000 FROM eras LIMIT 1",
            (&[8_u8; 16], &[3_u8; 8]),
        )
        .unwrap();
        drop(side);
        let closed = read(&path);
        for suffix in ["", "-aster"] {
            loosen(&beside(&path, suffix));
        }
        let loose = read(&path);
        Self {
            directory,
            path,
            closed,
            with_logs,
            loose,
            backup,
            authority,
        }
    }

    /// The store's authority.
    pub(crate) fn authority(&self) -> Authority {
        self.authority
    }

    /// The main file's path.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// A path beside it, for a backup, a copy or a restored store.
    pub(crate) fn beside(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// A backup of the store.
    pub(crate) fn backup(&self) -> &[u8] {
        &self.backup
    }

    /// The files in this form.
    pub(crate) fn contents(&self, form: Form) -> &[Option<Vec<u8>>; 4] {
        match form {
            Form::Closed => &self.closed,
            Form::WithLogs => &self.with_logs,
            Form::Loose => &self.loose,
        }
    }

    /// Puts these files where the store's are, the main one in place: its inode stays.
    pub(crate) fn put(&self, contents: &[Option<Vec<u8>>; 4]) {
        put_at(&self.path, contents);
    }

    /// What is there now.
    pub(crate) fn read(&self) -> [Option<Vec<u8>>; 4] {
        read(&self.path)
    }

    /// Removes everything but the store's own files.
    pub(crate) fn tidy(&self) {
        for entry in std::fs::read_dir(self.directory.path()).unwrap() {
            let path = entry.unwrap().path();
            if path != self.path {
                std::fs::remove_file(path).unwrap();
            }
        }
    }
}

/// Puts these files at `path`.
pub(crate) fn put_at(path: &Path, contents: &[Option<Vec<u8>>; 4]) {
    for suffix in OTHERS {
        let _ = std::fs::remove_file(beside(path, suffix));
    }
    for (suffix, content) in FILES.iter().zip(contents) {
        let path = beside(path, suffix);
        match content {
            Some(content) => std::fs::write(path, content).unwrap(),
            None => {
                let _ = std::fs::remove_file(path);
            }
        }
    }
}

fn read(path: &Path) -> [Option<Vec<u8>>; 4] {
    FILES.map(|suffix| std::fs::read(beside(path, suffix)).ok())
}

/// The path with something more at the end of its name.
pub(crate) fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

/// A held resource with a value, a free one, and one whose holder is kept out.
fn fill(store: &SqliteSerializer) {
    let principal = |name| Principal::new(name).unwrap();
    let ask = |resource: &str, op| wait_for(store.transition(resource, op)).unwrap();
    let acquire = |resource: &str, candidate, id| {
        let outcome = ask(
            resource,
            LeaseOp::Acquire {
                candidate: principal(candidate),
                ttl: Ttl::from_millis(TTL_MS).unwrap(),
                grant_id: GrantId::from_bytes([id; 16]),
            },
        );
        match outcome {
            TransitionOutcome::Granted(fence) => fence,
            other => panic!("{other:?}"),
        }
    };
    let pages = acquire("pages", "worker-b", 1);
    ask(
        "pages",
        LeaseOp::Release {
            holder: pages.holder.clone(),
            epoch: pages.epoch,
        },
    );
    let revoked = acquire("revoked", "worker-c", 2);
    ask(
        "revoked",
        LeaseOp::Revoke {
            operator: principal("operator"),
            epoch: revoked.epoch,
            hold_off: Some(Duration::from_secs(60)),
        },
    );
    // More than one epoch, so that a lower one can be told.
    for id in 3..6 {
        let fence = acquire("catalog", "worker-a", id);
        let written = store.compare_and_set_with_id(
            &fence,
            "worker-a",
            ExpectedRevision::Any,
            vec![id; 8],
            WriteId::from_bytes([id; 16]),
        );
        wait_for(written).unwrap();
        let (holder, epoch) = (fence.holder.clone(), fence.epoch);
        match id {
            5 => ask("catalog", LeaseOp::Renew { holder, epoch }),
            _ => ask("catalog", LeaseOp::Release { holder, epoch }),
        };
    }
}

/// Takes types and checks away from the tables of a file: a disk knows neither.
fn loosen(path: &Path) {
    let connection = Connection::open(path).unwrap();
    let mut tables = connection
        .prepare(
            "SELECT name, sql FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite_%'",
        )
        .unwrap();
    let tables: Vec<(String, String)> = tables
        .query_map([], |row| Ok((row.get(0)?, row.get(1)?)))
        .unwrap()
        .map(Result::unwrap)
        .collect();
    connection
        .pragma_update(None, "writable_schema", true)
        .unwrap();
    for (name, sql) in tables {
        let mut sql = sql
            .replace("STRICT, WITHOUT ROWID", "WITHOUT ROWID")
            .replace("STRICT", "");
        while let Some(at) = sql.find("CHECK (") {
            let rest = &sql[at..];
            // Checks hold at most one pair of parentheses of their own.
            let inner = rest[7..]
                .find('(')
                .filter(|inner| rest[7..].find(')').is_some_and(|end| end > *inner));
            let ends: Vec<usize> = rest
                .match_indices(')')
                .map(|(end, _)| end)
                .take(2)
                .collect();
            let end = ends[usize::from(inner.is_some())];
            sql.replace_range(at..=at + end, "");
        }
        let sql = sql
            .replace(" INTEGER PRIMARY KEY", "@")
            .replace(" INTEGER", "")
            .replace(" TEXT", "")
            .replace(" BLOB", "")
            .replace(" NOT NULL", "")
            .replace('@', " INTEGER PRIMARY KEY");
        connection
            .execute(
                "UPDATE sqlite_schema SET sql = ?2 WHERE name = ?1",
                (&name, &sql),
            )
            .unwrap();
    }
    connection
        .pragma_update(None, "writable_schema", "RESET")
        .unwrap();
}
