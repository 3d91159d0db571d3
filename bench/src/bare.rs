//! What Aster is measured beside: the least that somebody would write who needs no lease.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Mutex, PoisonError};

use aster_lease::{Fence, Principal, ResourceName};

/// As many locks as the memory store has.
const SHARDS: usize = 64;

/// A map behind locks that share no cache line, as the memory store's do not.
#[repr(align(128))]
#[derive(Default)]
struct Shard(Mutex<HashMap<ResourceName, Row>>);

struct Row {
    epoch: u64,
    holder: Principal,
}

/// A sharded map of epochs and holders: look up, compare, run the closure, all under the lock.
pub(crate) struct BareMap {
    hasher: RandomState,
    shards: Vec<Shard>,
}

impl BareMap {
    pub(crate) fn new() -> Self {
        Self {
            hasher: RandomState::new(),
            shards: (0..SHARDS).map(|_| Shard::default()).collect(),
        }
    }

    fn shard(&self, resource: &ResourceName) -> &Mutex<HashMap<ResourceName, Row>> {
        let hash = self.hasher.hash_one(resource.as_str());
        &self.shards[(hash % SHARDS as u64) as usize].0
    }

    pub(crate) fn insert(&self, fence: &Fence) {
        let row = Row {
            epoch: fence.epoch,
            holder: fence.holder.clone(),
        };
        let mut rows = self
            .shard(&fence.resource)
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        rows.insert(fence.resource.clone(), row);
    }

    pub(crate) fn mutate<R>(
        &self,
        fence: &Fence,
        writer: &str,
        operation: impl FnOnce() -> R,
    ) -> Option<R> {
        let rows = self
            .shard(&fence.resource)
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let row = rows.get(&fence.resource)?;
        let owned =
            row.epoch == fence.epoch && row.holder.as_str() == writer && fence.holder == row.holder;
        owned.then(operation)
    }
}
