//! What can be set when a store is opened.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use aster_core::{REGISTER_BYTES_MAX, TtlBounds};
use aster_lease::{Entropy, SystemEntropy};

use crate::domain::{BootTime, StoreTime};

/// How long a call waits by default while others write to the file.
pub const BUSY_BOUND: Duration = Duration::from_secs(5);
/// How long a free row stays by default, which is longer than any retry of its last grant.
pub const IDLE_AFTER: Duration = Duration::from_secs(60 * 60);
/// How many free rows stay by default.
pub const IDLE_ROWS_MAX: u64 = 100_000;
/// How many audit records stay by default.
pub const AUDIT_RECORDS_MAX: u64 = 100_000;

/// How a [`SqliteSerializer`](crate::SqliteSerializer) behaves. `SqliteOptions::default()` is right
/// for most.
///
/// Serves the specification's "Connect the grant to enforcement".
#[derive(Clone)]
pub struct SqliteOptions {
    pub(crate) ttl_bounds: TtlBounds,
    pub(crate) busy_bound: Duration,
    pub(crate) register_bytes_max: usize,
    pub(crate) idle_after: Duration,
    pub(crate) idle_rows_max: u64,
    pub(crate) audit_records_max: u64,
    pub(crate) time: Arc<dyn StoreTime>,
    pub(crate) entropy: Arc<dyn Entropy>,
}

impl Default for SqliteOptions {
    fn default() -> Self {
        Self {
            ttl_bounds: TtlBounds::default(),
            busy_bound: BUSY_BOUND,
            register_bytes_max: REGISTER_BYTES_MAX,
            idle_after: IDLE_AFTER,
            idle_rows_max: IDLE_ROWS_MAX,
            audit_records_max: AUDIT_RECORDS_MAX,
            time: Arc::new(BootTime),
            entropy: Arc::new(SystemEntropy),
        }
    }
}

impl SqliteOptions {
    /// Which ttls are accepted; 100 ms to 24 h unless set.
    #[must_use]
    pub fn ttl_bounds(mut self, bounds: TtlBounds) -> Self {
        self.ttl_bounds = bounds;
        self
    }

    /// How long a call waits while other callers and processes write; [`BUSY_BOUND`] unless set.
    /// After that it fails with [`SerializerError::Busy`](aster_lease::SerializerError::Busy).
    #[must_use]
    pub fn busy_bound(mut self, bound: Duration) -> Self {
        self.busy_bound = bound;
        self
    }

    /// The largest register value in bytes; 1 MiB unless set. Larger than that is not possible.
    #[must_use]
    pub fn register_bytes_max(mut self, bytes: usize) -> Self {
        self.register_bytes_max = bytes.min(REGISTER_BYTES_MAX);
        self
    }

    /// How long a free row without a register stays; [`IDLE_AFTER`] unless set. Keep it longer than
    /// any client retries a request.
    #[must_use]
    pub fn idle_after(mut self, duration: Duration) -> Self {
        self.idle_after = duration;
        self
    }

    /// About how many free rows without a register stay, whatever their age; [`IDLE_ROWS_MAX`] unless
    /// set. The oldest go first.
    #[must_use]
    pub fn idle_rows_max(mut self, rows: u64) -> Self {
        self.idle_rows_max = rows;
        self
    }

    /// About how many audit records stay; [`AUDIT_RECORDS_MAX`] unless set. The oldest go first.
    #[must_use]
    pub fn audit_records_max(mut self, records: u64) -> Self {
        self.audit_records_max = records;
        self
    }

    /// The clock. For tests and simulations.
    #[must_use]
    pub fn time(mut self, time: Arc<dyn StoreTime>) -> Self {
        self.time = time;
        self
    }

    /// The source of randomness. For tests and simulations.
    #[must_use]
    pub fn entropy(mut self, entropy: Arc<dyn Entropy>) -> Self {
        self.entropy = entropy;
        self
    }
}

impl fmt::Debug for SqliteOptions {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("SqliteOptions")
            .field("ttl_bounds", &self.ttl_bounds)
            .field("busy_bound", &self.busy_bound)
            .field("register_bytes_max", &self.register_bytes_max)
            .field("idle_after", &self.idle_after)
            .field("idle_rows_max", &self.idle_rows_max)
            .field("audit_records_max", &self.audit_records_max)
            .finish_non_exhaustive()
    }
}
