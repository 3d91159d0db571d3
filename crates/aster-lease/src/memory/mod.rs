//! The memory store: rows and protected state in one process.
//!
//! | file | what lives there |
//! |---|---|
//! | `mod.rs` | the type, its options, the protected write |
//! | `rows.rs` | the rows of one lock, a step of the rules |
//! | `slot.rs` | one row: what the rules see, and what the store adds |
//! | `marks.rs`, `slab.rs`, `holders.rs` | keeping a million rows in little room |
//! | `idle.rs` | dropping rows that have been free for long |
//! | `gate.rs`, `board.rs` | the lock, and the gate of a running closure |
//! | `queue.rs` | who waits for a row, and where they are told |
//! | `hand_over.rs` | handing a row to whoever waits for it |
//! | `waiting.rs` | the caller's side of waiting |
//! | `watches.rs` | who follows a row |
//! | `serializer.rs`, `registers.rs` | the traits: serializer and audit, registers |
//! | `audit.rs` | the bounded ring of audit records |

mod audit;
mod board;
mod gate;
mod hand_over;
mod holders;
mod idle;
mod marks;
mod queue;
mod registers;
mod rows;
mod serializer;
mod slab;
mod slot;
mod waiting;
mod watches;

use std::fmt;
use std::hash::Hasher as _;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use aster_core::{
    Authority, ErrorKind, Fence, FenceRejection, LeaseOp, REGISTER_BYTES_MAX, ResourceName,
    TtlBounds,
};
use foldhash::SharedSeed;
use foldhash::quality::FoldHasher;

use crate::audit::{AuditEvent, AuditRecord};
use crate::clock::{Clock, SystemClock};
use crate::entropy::{self, Entropy, EntropyError, SystemEntropy};
use crate::error::FencedError;
use crate::metrics::Metrics;
use crate::waiting::{CLAIM_TIME, WAITERS_MAX};
use crate::writer::Writer;

use audit::AuditRing;
use gate::Shard;
use rows::{Aftermath, Key, Terms};

/// How many locks the rows are spread over. A closure never runs under one of them.
const SHARDS: usize = 64;
/// Which bits of a name's hash choose its shard.
const SHARD_SHIFT: u32 = 40;

/// Free rows are remembered at least this long by default, longer than any retry.
pub const IDLE_RETENTION: Duration = Duration::from_secs(60 * 60);
/// How many free rows are remembered by default, however young they are.
pub const IDLE_ROWS_MAX: usize = 128 * 1024;
/// How many audit records are kept by default.
pub const AUDIT_RECORDS_MAX: usize = 10_000;

/// The shortest claim time: a waiter has to be able to hear of its grant and to renew it.
pub const CLAIM_TIME_MIN: Duration = Duration::from_millis(10);

/// Fences from the future are logged at most this often, however many there are.
const FUTURE_LOGGED_EVERY: Duration = Duration::from_secs(1);

/// Names come from peers: seeds that they do not know keep them from choosing colliding ones. Both come
/// from the entropy, so that a simulation can repeat which names share a lock.
#[derive(Clone)]
struct Hasher {
    seed: u64,
    shared: Arc<SharedSeed>,
}

impl Hasher {
    fn new(entropy: &dyn Entropy) -> Result<Self, EntropyError> {
        Ok(Self {
            seed: entropy::seed(entropy)?,
            shared: Arc::new(SharedSeed::from_u64(entropy::seed(entropy)?)),
        })
    }
}

/// One pass over the bytes, where `hash_one` would also hash the mark that ends a text.
#[inline]
fn hash_of(hasher: &Hasher, text: &str) -> u64 {
    let mut state = FoldHasher::with_seed(hasher.seed, &hasher.shared);
    state.write(text.as_bytes());
    state.finish()
}

type Authorizer = Arc<dyn Fn(&LeaseOp, &str) -> bool + Send + Sync>;

/// Settings of a [`MemorySerializer`].
#[derive(Clone)]
pub struct MemoryOptions {
    /// Which ttls are accepted; 100 ms to 24 h by default.
    pub ttl_bounds: TtlBounds,
    /// The largest register value in bytes; 1 MiB by default.
    pub register_bytes_max: usize,
    /// How long a free row is remembered, so that a late duplicate of its last grant is recognized;
    /// one hour by default.
    pub idle_retention: Duration,
    /// How many free rows are remembered at most; beyond it the oldest are dropped earlier, behind
    /// the epoch floor. Bounds the memory that a million one-time names take.
    pub idle_rows_max: usize,
    /// How many audit records are kept, a quarter of them rejections at most; the oldest are dropped.
    pub audit_records_max: usize,
    /// How long a grant that was waited for lasts until its first renewal, or the ttl if that is
    /// shorter; [`CLAIM_TIME`] by default, and never less than [`CLAIM_TIME_MIN`].
    pub claim_time: Duration,
    /// How many may wait for one resource; [`WAITERS_MAX`] by default.
    pub waiters_max: usize,
    /// The clock that judges expiry.
    pub clock: Arc<dyn Clock>,
    /// Where the authority and the hashes' seeds come from.
    pub entropy: Arc<dyn Entropy>,
    /// Where operations, rejections and the queue are counted; nowhere by default.
    pub metrics: Metrics,
}

impl Default for MemoryOptions {
    fn default() -> Self {
        Self {
            ttl_bounds: TtlBounds::default(),
            register_bytes_max: REGISTER_BYTES_MAX,
            idle_retention: IDLE_RETENTION,
            idle_rows_max: IDLE_ROWS_MAX,
            audit_records_max: AUDIT_RECORDS_MAX,
            claim_time: CLAIM_TIME,
            waiters_max: WAITERS_MAX,
            clock: Arc::new(SystemClock::new()),
            entropy: Arc::new(SystemEntropy),
            metrics: Metrics::default(),
        }
    }
}

impl fmt::Debug for MemoryOptions {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("MemoryOptions")
            .field("ttl_bounds", &self.ttl_bounds)
            .field("register_bytes_max", &self.register_bytes_max)
            .field("idle_retention", &self.idle_retention)
            .field("idle_rows_max", &self.idle_rows_max)
            .field("audit_records_max", &self.audit_records_max)
            .field("claim_time", &self.claim_time)
            .field("waiters_max", &self.waiters_max)
            .finish_non_exhaustive()
    }
}

/// A serializer and enforcement point in this process's memory (specification, "Enforce at the write
/// boundary").
///
/// **Not durable and not replicated**: its rows end with the process. Every clone is the same store.
/// Expiry is judged on the process's monotonic clock.
///
/// A protected closure runs under its own row's lock: while it runs, ownership of that resource
/// cannot change, but renewals go on, and no other resource waits.
///
/// ```
/// use std::sync::Arc;
/// use aster_lease::{AcquireOutcome, LeaseHandle, LeaseOptions, MemorySerializer};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let serializer = Arc::new(MemorySerializer::new());
/// let mut catalog = String::new();
/// let node_id = String::from("worker-a");
/// let options = LeaseOptions::default();
/// match LeaseHandle::acquire(serializer.clone(), "catalog/current", &node_id, options).await? {
///     AcquireOutcome::Granted(lease) => {
///         let fence = lease.fence().ok_or("lost already")?;
///         serializer.mutate_fenced(&fence, &node_id, || catalog = "catalog-v1".to_owned())?;
///         lease.release().await?;
///         assert!(serializer.mutate_fenced(&fence, &node_id, || ()).is_err());
///     }
///     AcquireOutcome::Denied(reason, snapshot) => eprintln!("denied: {reason}; {snapshot:?}"),
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct MemorySerializer {
    inner: Arc<Inner>,
}

struct Inner {
    authority: Authority,
    options: MemoryOptions,
    hasher: Hasher,
    shards: Vec<Shard>,
    authorizer: RwLock<Option<Authorizer>>,
    audit: Mutex<AuditRing>,
    future_epochs: Mutex<FutureEpochs>,
}

/// The rejections that an operator has to look at.
#[derive(Default)]
struct FutureEpochs {
    count: u64,
    logged: Option<Duration>,
}

impl MemorySerializer {
    /// An empty store with the default options.
    ///
    /// # Panics
    ///
    /// When the operating system has no random bytes for the authority; use
    /// [`with_options`](Self::with_options) to handle that.
    #[must_use]
    #[allow(
        clippy::expect_used,
        reason = "documented; std's own hash maps panic here as well"
    )]
    pub fn new() -> Self {
        Self::with_options(MemoryOptions::default()).expect("random bytes for the authority")
    }

    /// An empty store.
    ///
    /// # Errors
    ///
    /// [`EntropyError`] when there are no random bytes for the authority.
    pub fn with_options(options: MemoryOptions) -> Result<Self, EntropyError> {
        let authority = entropy::authority(&*options.entropy)?;
        let audit = Mutex::new(AuditRing::new(options.audit_records_max));
        let hasher = Hasher::new(&*options.entropy)?;
        let shards = (0..SHARDS).map(|_| Shard::new(hasher.clone())).collect();
        let authorizer = RwLock::new(None);
        let inner = Inner {
            authority,
            options,
            hasher,
            shards,
            authorizer,
            audit,
            future_epochs: Mutex::default(),
        };
        Ok(Self {
            inner: Arc::new(inner),
        })
    }

    /// From now on every operation is asked for first; `false` denies it as
    /// [`Unauthorized`](aster_core::DenyReason::Unauthorized), withholds the row from the actor,
    /// reaches no rule and spends no epoch.
    ///
    /// Without an authorizer everything is allowed: the process is the boundary.
    pub fn set_authorizer<F>(&self, authorizer: F)
    where
        F: Fn(&LeaseOp, &str) -> bool + Send + Sync + 'static,
    {
        let mut slot = self
            .inner
            .authorizer
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        *slot = Some(Arc::new(authorizer));
    }

    /// Behaves like a restart of a serializer that kept its rows: the authority and every epoch
    /// stay, every held row gets one full ttl again, and the queues are forgotten: callers that wait
    /// hear an error of kind [`Retry`](ErrorKind::Retry).
    pub fn restart(&self) {
        let now = self.now();
        let mut after = Aftermath::default();
        for shard in &self.inner.shards {
            shard.lock().restart(now, &mut after);
        }
        Self::settle(after);
    }

    /// How many rows are kept: held ones, and free ones that are still remembered.
    #[must_use]
    pub fn row_count(&self) -> usize {
        self.inner
            .shards
            .iter()
            .map(|shard| shard.lock().row_count())
            .sum()
    }

    /// How many fences from epochs that were never issued this store has refused: forgeries, or the
    /// sign of a store that went back in time.
    #[must_use]
    pub fn future_epoch_rejections(&self) -> u64 {
        self.inner
            .future_epochs
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .count
    }

    /// Runs `operation` if the fence rule passes, as one atomic step: while it runs, ownership of the
    /// resource cannot change. Blocks while another protected closure of the same resource runs.
    ///
    /// `writer` is the authenticated identity that asks for the write; it must not come from the
    /// fence (specification, "Enforce at the write boundary").
    ///
    /// A panic in `operation` unwinds to the caller and leaves the store usable. From inside a
    /// closure no protected write waits for another: one that would is refused as
    /// [`Reentrant`](FenceRejection::Reentrant).
    ///
    /// # Errors
    ///
    /// The rejection; `operation` has not run then.
    pub fn mutate_fenced<W, R>(
        &self,
        fence: &Fence,
        writer: &W,
        operation: impl FnOnce() -> R,
    ) -> Result<R, FenceRejection>
    where
        W: Writer + ?Sized,
    {
        let writer = writer.writer();
        let _span = protected_write(fence).entered();
        let key = self.key(&fence.resource);
        let authority = self.inner.authority;
        match self.shard(key).enter(authority, fence, key.hash, writer) {
            Ok(_gate) => Ok(operation()),
            Err((rejection, current)) => {
                self.audit_rejection(fence, writer, &rejection, current);
                Err(rejection)
            }
        }
    }

    /// The same for an operation that can fail. Memory cannot undo what a failed operation has
    /// changed; it has to leave its own state as it wants it.
    ///
    /// # Errors
    ///
    /// [`FencedError::Rejected`] and `operation` has not run, or [`FencedError::Operation`] with its
    /// own error.
    pub fn try_mutate_fenced<W, R, E>(
        &self,
        fence: &Fence,
        writer: &W,
        operation: impl FnOnce() -> Result<R, E>,
    ) -> Result<R, FencedError<E>>
    where
        W: Writer + ?Sized,
    {
        self.mutate_fenced(fence, writer, operation)?
            .map_err(FencedError::Operation)
    }

    fn now(&self) -> Duration {
        // The serializer may hold a lease longer than its ttl, never shorter: the monotonic half
        // alone does not jump after a suspension.
        self.inner.options.clock.now().monotonic
    }

    fn terms(&self) -> Terms<'_> {
        let options = &self.inner.options;
        Terms {
            authority: self.inner.authority,
            bounds: &options.ttl_bounds,
            now: self.now(),
            idle_retention: options.idle_retention,
            idle_rows_max: options.idle_rows_max / SHARDS,
            claim_time: options.claim_time.max(CLAIM_TIME_MIN),
            waiters_max: options.waiters_max,
        }
    }

    /// Writes down what a step changed, still under the row's lock: the audit tells the changes of a
    /// row in their order.
    fn note(&self, after: &mut Aftermath) {
        if after.records.is_empty() {
            return;
        }
        let metrics = &self.inner.options.metrics;
        for hand_over in after.hand_overs.drain(..) {
            metrics.handed_over(hand_over);
        }
        for _ in 0..std::mem::take(&mut after.claims_lapsed) {
            metrics.claim_lapsed();
        }
        let at_unix_ms = self.inner.options.clock.unix_ms();
        let mut ring = self
            .inner
            .audit
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        for record in after.records.drain(..) {
            ring.push(AuditRecord {
                at_unix_ms,
                ..record
            });
        }
    }

    /// What a step under a row's lock has left to do, with the lock given back.
    fn settle(after: Aftermath) {
        for seat in after.rings {
            seat.ring();
        }
    }

    fn key<'a>(&self, resource: &'a ResourceName) -> Key<'a> {
        Key {
            resource,
            hash: hash_of(&self.inner.hasher, resource),
        }
    }

    fn shard(&self, key: Key<'_>) -> &Shard {
        // Other bits than those by which the shard's own table chooses.
        let bits = (key.hash >> SHARD_SHIFT) as usize;
        &self.inner.shards[bits % SHARDS]
    }

    fn authorized(&self, op: &LeaseOp, resource: &str) -> bool {
        let slot = self
            .inner
            .authorizer
            .read()
            .unwrap_or_else(PoisonError::into_inner);
        let authorizer = slot.clone();
        drop(slot);
        authorizer.is_none_or(|authorizer| authorizer(op, resource))
    }

    fn audit_rejection(
        &self,
        fence: &Fence,
        writer: &str,
        rejection: &FenceRejection,
        current: u64,
    ) {
        self.inner.options.metrics.rejected(rejection);
        if crate::error::rejection_kind(rejection) == ErrorKind::Report {
            self.note_future_epoch(fence, writer, current);
        }
        self.audit(AuditRecord {
            id: 0,
            at_unix_ms: 0,
            event: AuditEvent::Rejected,
            resource: Some(fence.resource.clone()),
            epoch_carried: Some(fence.epoch),
            epoch_current: current,
            holder: Some(fence.holder.clone()),
            actor: Some(writer.to_owned()),
            detail: Some(rejection.name().to_owned()),
            count: 1,
        });
    }

    fn note_future_epoch(&self, fence: &Fence, writer: &str, current: u64) {
        let now = self.now();
        let mut noted = self
            .inner
            .future_epochs
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        noted.count = noted.count.saturating_add(1);
        let is_due = noted
            .logged
            .is_none_or(|logged| now.saturating_sub(logged) >= FUTURE_LOGGED_EVERY);
        if is_due {
            noted.logged = Some(now);
            drop(noted);
            tracing::error!(
                %fence,
                writer,
                current,
                "a fence from the future: it is forged, or the store went back in time"
            );
        }
    }

    fn audit(&self, record: AuditRecord) {
        let at_unix_ms = self.inner.options.clock.unix_ms();
        let mut ring = self
            .inner
            .audit
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        ring.push(AuditRecord {
            at_unix_ms,
            ..record
        });
    }
}

/// What a protected write is followed by in `tracing`.
fn protected_write(fence: &Fence) -> tracing::Span {
    tracing::trace_span!("protected_write", resource = %fence.resource, epoch = fence.epoch)
}

impl Default for MemorySerializer {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for MemorySerializer {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("MemorySerializer")
            .field("authority", &self.inner.authority)
            .finish_non_exhaustive()
    }
}
