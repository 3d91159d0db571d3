//! What Aster is measured beside: the least that somebody would write who needs no lease.

use std::hash::{BuildHasher, Hasher};
use std::sync::{Mutex, MutexGuard, PoisonError};

use aster_lease::Fence;
use hashbrown::HashTable;

/// As many locks as the memory store has, chosen by other bits than those that its tables use.
const SHARDS: usize = 64;
const SHARD_SHIFT: u32 = 40;

/// A map behind a lock that shares no cache line with another, as in the memory store.
#[repr(align(128))]
#[derive(Default)]
struct Shard(Mutex<HashTable<Row>>);

struct Row {
    name: Box<str>,
    epoch: u64,
    holder: Box<str>,
}

/// A sharded map of epochs and holders with the mutex and the table of the memory store, and a hash of
/// choice: look up, compare, run the closure, all under the lock.
pub(crate) struct BareMap<S> {
    hasher: S,
    shards: Vec<Shard>,
}

impl<S: BuildHasher + Default> BareMap<S> {
    pub(crate) fn new() -> Self {
        Self {
            hasher: S::default(),
            shards: (0..SHARDS).map(|_| Shard::default()).collect(),
        }
    }

    fn hash(&self, name: &str) -> u64 {
        let mut state = self.hasher.build_hasher();
        state.write(name.as_bytes());
        state.finish()
    }

    #[allow(
        clippy::cast_possible_truncation,
        reason = "the low bits are what is wanted"
    )]
    fn lock(&self, hash: u64) -> MutexGuard<'_, HashTable<Row>> {
        let shard = &self.shards[(hash >> SHARD_SHIFT) as usize % SHARDS];
        shard.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn insert(&self, fence: &Fence) {
        let row = Row {
            name: fence.resource.as_str().into(),
            epoch: fence.epoch,
            holder: fence.holder.as_str().into(),
        };
        let hash = self.hash(&row.name);
        self.lock(hash)
            .insert_unique(hash, row, |row| self.hash(&row.name));
    }

    pub(crate) fn mutate<R>(
        &self,
        fence: &Fence,
        writer: &str,
        operation: impl FnOnce() -> R,
    ) -> Option<R> {
        let hash = self.hash(&fence.resource);
        let rows = self.lock(hash);
        let row = rows.find(hash, |row| *row.name == *fence.resource)?;
        (row.epoch == fence.epoch && *row.holder == *writer).then(operation)
    }
}
