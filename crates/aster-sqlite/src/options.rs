//! What can be set when a store is opened.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use aster_core::{REGISTER_BYTES_MAX, TtlBounds};
use aster_lease::{CLAIM_TIME, Entropy, Metrics, SystemEntropy, WAITERS_MAX};

use crate::domain::{BootTime, StoreTime};

/// How long a call waits by default while others write to the file.
pub const BUSY_BOUND: Duration = Duration::from_secs(5);
/// How long a free row stays by default, which is longer than any retry of its last grant.
pub const IDLE_RETENTION: Duration = Duration::from_secs(60 * 60);
/// How many free rows stay by default.
pub const IDLE_ROWS_MAX: usize = 100_000;
/// How many audit records stay by default.
pub const AUDIT_RECORDS_MAX: usize = 100_000;

/// Settings of a [`SqliteSerializer`](crate::SqliteSerializer). `SqliteOptions::default()` is right for
/// most.
///
/// Serves the specification's "Connect the grant to enforcement".
#[derive(Clone)]
pub struct SqliteOptions {
    /// Make the file and the store in it when they are missing; `true` by default. Who only looks sets
    /// it to `false`, so that a mistyped path is an error
    /// ([`OpenError::Missing`](crate::OpenError::Missing) or
    /// [`OpenError::NoStore`](crate::OpenError::NoStore)) and makes nothing.
    pub create: bool,
    /// Which ttls are accepted; 100 ms to 24 h by default.
    pub ttl_bounds: TtlBounds,
    /// How long a call waits while other callers and processes write; [`BUSY_BOUND`] by default. After
    /// that it fails with [`SerializerError::Busy`](aster_lease::SerializerError::Busy).
    pub busy_bound: Duration,
    /// The largest register value in bytes; 1 MiB by default, which is also the most.
    pub register_bytes_max: usize,
    /// How long a free row without a register stays, so that a late duplicate of its last grant is
    /// recognized; [`IDLE_RETENTION`] by default.
    pub idle_retention: Duration,
    /// About how many free rows without a register stay, whatever their age; [`IDLE_ROWS_MAX`] by
    /// default. The oldest go first, behind the epoch floor.
    pub idle_rows_max: usize,
    /// About how many audit records stay, at least one; [`AUDIT_RECORDS_MAX`] by default. The oldest go
    /// first.
    pub audit_records_max: usize,
    /// How long a grant that was waited for lasts until its first renewal, or its ttl if that is
    /// shorter; [`CLAIM_TIME`] by default. A waiter that died costs those behind it about so much.
    pub claim_time: Duration,
    /// How many may wait for one resource, in all processes together; [`WAITERS_MAX`] by default. One
    /// more hears [`SerializerError::Overloaded`](aster_lease::SerializerError::Overloaded).
    pub waiters_max: usize,
    /// The clock that judges expiry.
    pub time: Arc<dyn StoreTime>,
    /// Where authorities and other ids come from.
    pub entropy: Arc<dyn Entropy>,
    /// Where operations, rejections and the queue are counted; nowhere by default.
    pub metrics: Metrics,
}

impl Default for SqliteOptions {
    fn default() -> Self {
        Self {
            create: true,
            ttl_bounds: TtlBounds::default(),
            busy_bound: BUSY_BOUND,
            register_bytes_max: REGISTER_BYTES_MAX,
            idle_retention: IDLE_RETENTION,
            idle_rows_max: IDLE_ROWS_MAX,
            audit_records_max: AUDIT_RECORDS_MAX,
            claim_time: CLAIM_TIME,
            waiters_max: WAITERS_MAX,
            time: Arc::new(BootTime),
            entropy: Arc::new(SystemEntropy),
            metrics: Metrics::default(),
        }
    }
}

impl fmt::Debug for SqliteOptions {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("SqliteOptions")
            .field("create", &self.create)
            .field("ttl_bounds", &self.ttl_bounds)
            .field("busy_bound", &self.busy_bound)
            .field("register_bytes_max", &self.register_bytes_max)
            .field("idle_retention", &self.idle_retention)
            .field("idle_rows_max", &self.idle_rows_max)
            .field("audit_records_max", &self.audit_records_max)
            .field("claim_time", &self.claim_time)
            .field("waiters_max", &self.waiters_max)
            .finish_non_exhaustive()
    }
}
