//! The holder's engine, the traits that a store implements, and the memory store.
//!
//! | module | what lives there |
//! |---|---|
//! | [`serializer`] | [`LeaseSerializer`]: who orders ownership changes |
//! | [`resource`] | [`FencedResource`] and [`GuardedResource`]: who enforces them |
//! | [`registers`] | [`Registers`]: a small protected value beside a row |
//! | [`waiting`] | [`WaitRequest`]: waiting in the serializer's queue |
//! | [`watching`] | [`LeaseWatch`]: following who owns a resource |
//! | [`audit`] | [`AuditLog`]: what happened, for people |
//! | [`writer`] | [`Writer`]: the authenticated identity that asks for a write |
//! | [`handle`] | [`LeaseHandle`]: acquire, renew in the background, fence, release |
//! | [`memory`] | [`MemorySerializer`] |
//! | [`metrics`] | [`Metrics`]: what can be counted (feature `metrics`) |
//! | [`clock`], [`entropy`] | where time and randomness come in |
//! | [`error`] | what can fail, and what to do about it |

pub mod audit;
pub mod clock;
pub mod entropy;
pub mod error;
pub mod handle;
pub mod memory;
pub mod metrics;
pub mod registers;
pub mod resource;
pub mod revoke;
pub mod serializer;
pub mod waiting;
pub mod watching;
pub mod writer;

pub use aster_core::*;

pub use audit::{AUDIT_PAGE_MAX, AuditEvent, AuditLog, AuditQuery, AuditRecord};
pub use clock::{Clock, Moment, SystemClock};
pub use entropy::{Entropy, EntropyError, SystemEntropy};
pub use error::{FencedError, LeaseError, SerializerError};
pub use handle::{
    AcquireOutcome, EndedReason, LeaseBuilder, LeaseEnded, LeaseHandle, LeaseOptions, LeaseStatus,
    ReleaseOutcome, run_while_leader,
};
pub use memory::{MemoryOptions, MemorySerializer};
pub use metrics::Metrics;
pub use registers::{RegisterError, RegisterValue, Registers};
pub use resource::{FencedResource, GuardedResource};
pub use revoke::{RevokeOutcome, revoke, revoke_with_hold_off};
pub use serializer::{LIST_PAGE_MAX, LeaseSerializer, ListQuery};
pub use waiting::{CLAIM_TIME, WAIT_MAX, WAITERS_MAX, WaitOutcome, WaitRequest, Waiter};
pub use watching::{LeaseWatch, WatchSender};
pub use writer::Writer;
