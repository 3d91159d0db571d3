//! The record beside a scenario: what its threads asked and were told, in the order in which that
//! happened. It knows nothing of the engine, and no point lies within it.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// One resource's history. Every rule that it finds broken is a panic that names it.
#[derive(Debug, Clone, Default)]
pub struct Record(Arc<Mutex<History>>);

#[derive(Debug, Default)]
struct History {
    granted: BTreeSet<u64>,
    ended: BTreeSet<u64>,
    written: Vec<u64>,
    writes: Option<u64>,
}

impl Record {
    /// The highest epoch that is known to be granted. To be read before something is asked of an older
    /// one.
    #[must_use]
    pub fn granted_up_to(&self) -> u64 {
        self.lock().granted.last().copied().unwrap_or(0)
    }

    /// The highest epoch that is known to have ended. To be read before a grant is asked for.
    #[must_use]
    pub fn ended_up_to(&self) -> u64 {
        self.lock().ended.last().copied().unwrap_or(0)
    }

    /// `epoch` was granted, in answer to what was asked when `ended_up_to` was read.
    pub fn granted(&self, epoch: u64, ended_up_to: u64) {
        let mut history = self.lock();
        assert!(
            history.granted.insert(epoch),
            "BROKEN epochs are unique: {epoch} was granted twice"
        );
        assert!(
            epoch > ended_up_to,
            "BROKEN epochs grow: {epoch} was granted after {ended_up_to} had ended"
        );
    }

    /// Whoever ended `epoch` has heard that it is over.
    pub fn ended(&self, epoch: u64) {
        self.lock().ended.insert(epoch);
    }

    /// A protected write of `epoch` begins to run.
    pub fn write_begins(&self, epoch: u64) {
        let mut history = self.lock();
        assert!(
            history.writes.is_none(),
            "BROKEN closures of one resource exclude each other: {epoch} writes within {:?}",
            history.writes
        );
        let ended_up_to = history.ended.last().copied().unwrap_or(0);
        assert!(
            epoch > ended_up_to,
            "BROKEN no write by an ended owner: {epoch} writes, and {ended_up_to} is over"
        );
        assert!(
            history.written.last().is_none_or(|last| epoch >= *last),
            "BROKEN no write by an ended owner: {epoch} writes after {:?}",
            history.written.last()
        );
        history.written.push(epoch);
        history.writes = Some(epoch);
    }

    /// The protected write ends.
    pub fn write_ends(&self) {
        let mut history = self.lock();
        let epoch = history.writes.take();
        let is_over = epoch.is_some_and(|epoch| history.ended.contains(&epoch));
        assert!(
            !is_over,
            "BROKEN ownership does not change under a closure: {epoch:?} was ended while it wrote"
        );
    }

    /// How many protected writes have run.
    #[must_use]
    pub fn writes(&self) -> usize {
        self.lock().written.len()
    }

    /// `epoch` answered a usable fence to a call that began after `granted_up_to` was read.
    pub fn usable(&self, epoch: u64, granted_up_to: u64) {
        assert!(
            epoch >= granted_up_to,
            "BROKEN one usable fence: {epoch} is usable, and {granted_up_to} was granted"
        );
    }

    fn lock(&self) -> MutexGuard<'_, History> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
