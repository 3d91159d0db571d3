//! The schedules of this process.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock, Mutex, PoisonError, Weak};

use tokio::runtime;

use super::Schedule;

/// What leases have in common that share a schedule. The addresses cannot be taken by others while the
/// schedule lives, because it keeps what lies there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Key {
    pub(super) serializer: usize,
    /// `None` for the schedule's own.
    pub(super) clock: Option<usize>,
    pub(super) runtime: runtime::Id,
}

/// Under this lock no schedule is dropped: that would lock it again.
static SCHEDULES: LazyLock<Mutex<HashMap<Key, Weak<Schedule>>>> = LazyLock::new(Mutex::default);

pub(super) fn find_or_insert(key: Key, make: impl FnOnce() -> Schedule) -> Arc<Schedule> {
    if let Some(found) = find(&key) {
        return found;
    }
    // Made outside the lock, because a clock is read for it.
    let made = Arc::new(make());
    let mut schedules = SCHEDULES.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(found) = schedules.get(&key).and_then(Weak::upgrade) {
        drop(schedules);
        // Another thread came first; `made` is dropped and leaves the other's entry alone.
        return found;
    }
    schedules.insert(key, Arc::downgrade(&made));
    made
}

fn find(key: &Key) -> Option<Arc<Schedule>> {
    let schedules = SCHEDULES.lock().unwrap_or_else(PoisonError::into_inner);
    schedules.get(key).and_then(Weak::upgrade)
}

/// Called by a schedule that is being dropped.
pub(super) fn remove(key: Key, schedule: &Schedule) {
    let mut schedules = SCHEDULES.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(entry) = schedules.get(&key)
        && std::ptr::eq(entry.as_ptr(), schedule)
    {
        schedules.remove(&key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::handle::schedule::Source;
    use crate::memory::MemorySerializer;

    /// A process that opens a store for each of a million jobs keeps nothing of them.
    #[test]
    fn a_schedule_that_is_gone_leaves_no_entry() {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .build()
            .unwrap();
        let store = Arc::new(MemorySerializer::new());
        let shared = || Schedule::shared(Source::new(store.clone()), None, runtime.handle());
        let is_known = |key| SCHEDULES.lock().unwrap().contains_key(&key);
        let (schedule, same) = (shared(), shared());
        let key = schedule.key;
        assert!(Arc::ptr_eq(&schedule, &same));
        drop(same);
        assert!(is_known(key), "somebody still has it");
        drop(schedule);
        assert!(!is_known(key));
    }
}
