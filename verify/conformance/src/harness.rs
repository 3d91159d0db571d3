//! What a suite has to know about a store: the part that you write.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use aster_lease::{
    CLAIM_TIME, Fence, FenceRejection, LeaseSerializer, REGISTER_BYTES_MAX, Registers,
};
use async_trait::async_trait;

use crate::report::Case;

/// How the suites drive a store.
///
/// Only [`fresh`](Self::fresh) and [`serializer`](Self::serializer) are needed. Each of the others
/// makes more cases checkable; their default says that it cannot be done. A harness is test code: it
/// may panic when its own set-up fails.
#[async_trait]
pub trait Harness: Send + Sync {
    /// A store, or a store and the resource that it protects.
    type Store: Send + Sync;

    /// A fresh, empty store with the default ttl bounds. Every case gets its own.
    async fn fresh(&self) -> Self::Store;

    /// The store's serializer.
    fn serializer<'a>(&self, store: &'a Self::Store) -> &'a dyn LeaseSerializer;

    /// What every resource name of the cases at this store begins with. Empty, as by default, where
    /// [`fresh`](Self::fresh) makes a store that is the case's alone; otherwise something that nobody
    /// else uses, another one for each `fresh`, so that the cases can share a store that exists.
    fn prefix<'a>(&self, store: &'a Self::Store) -> &'a str {
        let _ = store;
        ""
    }

    /// The store's registers, if it has any.
    fn registers<'a>(&self, store: &'a Self::Store) -> Option<&'a dyn Registers> {
        let _ = store;
        None
    }

    /// The largest register value that the store accepts, in bytes.
    fn register_bytes_max(&self) -> usize {
        REGISTER_BYTES_MAX
    }

    /// One protected write: under `fence` and by `writer`, makes the protected value of
    /// `fence.resource` equal to `value`.
    async fn write(
        &self,
        store: &Self::Store,
        fence: &Fence,
        writer: &str,
        value: &str,
    ) -> Written {
        let _ = (store, fence, writer, value);
        Written::NotPossible
    }

    /// The protected value of `resource` at present; `None` when nothing was written.
    async fn read(&self, store: &Self::Store, resource: &str) -> Option<String> {
        let _ = (store, resource);
        None
    }

    /// Starts a write and returns once it stands still inside its protected step, after the check
    /// and before the effect; or once it was refused. `None` when that cannot be done.
    ///
    /// Best before the resource takes a lock of its own, so that the next owner's write can come in
    /// between; inside one works as well. The write has to run elsewhere (a thread, a task), so that
    /// the suite can go on meanwhile.
    async fn start_write(
        &self,
        store: &Self::Store,
        fence: &Fence,
        writer: &str,
        value: &str,
    ) -> Option<PausedWrite> {
        let _ = (store, fence, writer, value);
        None
    }

    /// How long a paused write stays paused while a change of ownership tries to pass it. A store
    /// that makes the change wait, as it may, costs this long.
    fn patience(&self) -> Duration {
        Duration::from_millis(300)
    }

    /// How long a case waits, in real time, for what the store does by itself: a hand-over, the end of
    /// a wait, a change that a watch shows.
    fn settles_within(&self) -> Duration {
        Duration::from_secs(20)
    }

    /// After how many grants of other resources a store that drops idle rows has done so, once their
    /// time has passed. More cost time; fewer leave the dropping unchecked.
    fn grants_until_idle_rows_go(&self) -> usize {
        64
    }

    /// Moves the clock by which the store judges expiry forward.
    async fn advance(&self, store: &Self::Store, by: Duration) -> Possible {
        let _ = (store, by);
        Possible::No
    }

    /// The clock by which the store judges expiry runs by itself, at the pace of real time, so that a
    /// case may wait where [`advance`](Self::advance) cannot be done.
    fn clock_runs(&self) -> bool {
        false
    }

    /// Makes the wall clock that the store sees jump by so many seconds, back if negative, and leaves
    /// the clock of [`advance`](Self::advance) alone. A store that reads no wall clock says
    /// [`Possible::Yes`].
    async fn jump_wall_clock(&self, store: &Self::Store, by_s: i64) -> Possible {
        let _ = (store, by_s);
        Possible::No
    }

    /// Restarts the store: what is durable stays, what is volatile goes.
    async fn restart(&self, store: &mut Self::Store) -> Possible {
        let _ = store;
        Possible::No
    }

    /// Restarts the store while requests of its old life are still open, as one that is served to
    /// others can.
    async fn restart_beneath(&self, store: &Self::Store) -> Possible {
        let _ = store;
        Possible::No
    }

    /// How long a grant that was waited for lasts at this store until its first renewal.
    fn claim_time(&self) -> Duration {
        CLAIM_TIME
    }

    /// How many may wait for one resource at this store; `None`, the default, leaves unchecked what
    /// becomes of one more. The case fills the queue, so let it be few.
    fn waiters_max(&self) -> Option<usize> {
        None
    }

    /// Called when a case of `suite` begins: for who shows progress.
    fn began(&self, suite: &'static str, case: &'static str) {
        let _ = (suite, case);
    }

    /// Called when a case of `suite` has ended.
    fn ended(&self, suite: &'static str, case: &Case) {
        let _ = (suite, case);
    }
}

/// Whether the harness did what was asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Possible {
    /// Done.
    Yes,
    /// This store or harness cannot.
    No,
}

/// What became of a protected write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Written {
    /// It happened.
    Accepted,
    /// It was refused because of the fence; `None` when the resource does not say which part.
    Rejected(Option<FenceRejection>),
    /// It failed for another reason.
    Failed(String),
    /// The harness has no protected write.
    NotPossible,
}

/// A write that stands still inside its protected step.
pub struct PausedWrite {
    /// Lets it go on. Called from another thread.
    pub resume: Box<dyn FnOnce() + Send>,
    /// What becomes of it.
    pub outcome: Pin<Box<dyn Future<Output = Written> + Send>>,
}

impl fmt::Debug for PausedWrite {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("PausedWrite")
            .finish_non_exhaustive()
    }
}
