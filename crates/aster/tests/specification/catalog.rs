//! The protected resource of the tests: a catalog beside its lease row, in two stores.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use aster::lease::{Fence, FenceRejection, LeaseSerializer, MemorySerializer};

pub(crate) trait Catalog {
    type Serializer: LeaseSerializer;

    fn serializer(&self) -> Arc<Self::Serializer>;

    /// Checks the fence and the writer in the same step as the write.
    fn publish(&self, fence: &Fence, writer: &str, value: &str) -> Result<(), FenceRejection>;

    /// The control: writes, and that is all.
    fn publish_unchecked(&self, value: &str);

    fn value(&self) -> String;

    /// How often a mutation's closure ran.
    fn mutations_run(&self) -> u32;
}

#[derive(Default)]
pub(crate) struct MemoryCatalog {
    serializer: Arc<MemorySerializer>,
    value: Mutex<String>,
    runs: AtomicU32,
}

impl Catalog for MemoryCatalog {
    type Serializer = MemorySerializer;

    fn serializer(&self) -> Arc<MemorySerializer> {
        self.serializer.clone()
    }

    fn publish(&self, fence: &Fence, writer: &str, value: &str) -> Result<(), FenceRejection> {
        self.serializer.mutate_fenced(fence, writer, || {
            self.runs.fetch_add(1, Ordering::SeqCst);
            *self.value.lock().unwrap() = value.to_owned();
        })
    }

    fn publish_unchecked(&self, value: &str) {
        *self.value.lock().unwrap() = value.to_owned();
    }

    fn value(&self) -> String {
        self.value.lock().unwrap().clone()
    }

    fn mutations_run(&self) -> u32 {
        self.runs.load(Ordering::SeqCst)
    }
}

#[cfg(feature = "sqlite")]
pub(crate) use with_sqlite::SqliteCatalog;

#[cfg(feature = "sqlite")]
mod with_sqlite {
    use super::*;

    use std::error::Error;

    use aster::lease::FencedError;
    use aster::sqlite::SqliteSerializer;
    use aster::sqlite::rusqlite::Connection;
    use tempfile::TempDir;

    const WRITE: &str = "UPDATE catalog SET value = ?1";

    /// A table of the user's in the file of the leases.
    pub(crate) struct SqliteCatalog {
        serializer: Arc<SqliteSerializer>,
        plain: Mutex<Connection>,
        runs: AtomicU32,
        _directory: TempDir,
    }

    impl SqliteCatalog {
        pub(crate) fn new() -> Result<Self, Box<dyn Error>> {
            let directory = tempfile::tempdir()?;
            let path = directory.path().join("catalog.db");
            let serializer = Arc::new(SqliteSerializer::open(&path)?);
            let plain = Connection::open(&path)?;
            plain.busy_timeout(std::time::Duration::from_secs(10))?;
            plain.execute_batch(
                "CREATE TABLE catalog (value TEXT NOT NULL); INSERT INTO catalog VALUES ('');",
            )?;
            Ok(Self {
                serializer,
                plain: Mutex::new(plain),
                runs: AtomicU32::new(0),
                _directory: directory,
            })
        }
    }

    impl Catalog for SqliteCatalog {
        type Serializer = SqliteSerializer;

        fn serializer(&self) -> Arc<SqliteSerializer> {
            self.serializer.clone()
        }

        fn publish(&self, fence: &Fence, writer: &str, value: &str) -> Result<(), FenceRejection> {
            let written = self.serializer.mutate_fenced(fence, writer, |transaction| {
                self.runs.fetch_add(1, Ordering::SeqCst);
                transaction.execute(WRITE, [value])
            });
            match written {
                Ok(_) => Ok(()),
                Err(FencedError::Rejected(rejection)) => Err(rejection),
                Err(error) => panic!("the store failed: {error:?}"),
            }
        }

        fn publish_unchecked(&self, value: &str) {
            self.plain.lock().unwrap().execute(WRITE, [value]).unwrap();
        }

        fn value(&self) -> String {
            let plain = self.plain.lock().unwrap();
            plain
                .query_row("SELECT value FROM catalog", [], |row| row.get(0))
                .unwrap()
        }

        fn mutations_run(&self) -> u32 {
            self.runs.load(Ordering::SeqCst)
        }
    }
}
