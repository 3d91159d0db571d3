//! The rules of fenced leases, as pure functions.
//!
//! There is no clock here, no randomness, no I/O and no lock: a store loads a row, says what its own
//! clock judged, calls [`transition`](fn@transition) or [`check_fence`] inside its lock or transaction, and stores
//! what comes back. Every store, binding, model and simulation calls these same functions, so the
//! rules exist once.
//!
//! | module | what lives there |
//! |---|---|
//! | [`name`] | resource names and principals, parsed once and never invalid afterwards |
//! | [`id`] | the 128-bit ids: authority, grant id, write id |
//! | [`ttl`] | how long a grant lasts, in whole milliseconds, and the bounds of a store |
//! | [`row`] | the serializer's record of a resource, its snapshot, epoch arithmetic |
//! | [`hold_off`] | whom revokes keep out of a row for a while |
//! | [`transition`](mod@transition) | acquire, renew, release, revoke, cancel |
//! | [`fence`] | the fence and the rule that a resource enforces |
//! | [`register`] | the small value beside a row, changed only under a fence |
//! | [`high_water`] | the weaker rule for a resource that cannot see the row |
//!
//! A whole life of a row, without any store:
//!
//! ```
//! use aster_core::{
//!     Authority, Effect, GrantId, Judged, LeaseOp, Principal, ResourceName, RowView, Ttl,
//!     TransitionOutcome, TtlBounds, check_fence, transition,
//! };
//!
//! let authority = Authority::from_bytes([7; 16]);
//! let resource = ResourceName::new("catalog/current")?;
//! let worker_a = Principal::new("worker-a")?;
//! let acquire = LeaseOp::Acquire {
//!     candidate: worker_a.clone(),
//!     ttl: Ttl::from_millis(30_000)?,
//!     grant_id: GrantId::from_bytes([1; 16]),
//! };
//!
//! let absent = RowView { authority, resource: &resource, floor: 0, row: None };
//! let decision = transition(&absent, &Judged::default(), &TtlBounds::default(), &acquire)?;
//! let TransitionOutcome::Granted(fence) = decision.outcome else { panic!("a free row is granted") };
//! let Effect::Replace(row) = decision.effect else { panic!("a grant writes the row") };
//! assert_eq!(fence.epoch, 1);
//!
//! let held = RowView { row: Some(&row), ..absent };
//! assert!(check_fence(&held, &fence, "worker-a").is_ok());
//! assert!(check_fence(&held, &fence, "worker-b").is_err());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

pub mod error;
pub mod fence;
pub mod high_water;
pub mod hold_off;
pub mod id;
pub mod name;
pub mod register;
pub mod row;
pub mod transition;
pub mod ttl;

pub use error::{ErrorKind, InvalidInput, RuleError};
pub use fence::{Fence, FenceRejection, check_fence};
pub use high_water::{HighWaterMark, HighWaterRejection};
pub use hold_off::{HOLD_OFFS_MAX, HoldOff, HoldOffs};
pub use id::{Authority, GrantId, WriteId};
pub use name::{PRINCIPAL_BYTES_MAX, Principal, RESOURCE_BYTES_MAX, ResourceName};
pub use register::{
    ExpectedRevision, REGISTER_BYTES_MAX, RegisterDecision, RegisterState, RegisterWrite,
    already_released, write_register,
};
pub use row::{EPOCH_MAX, LeaseSnapshot, RowState, RowView, Tenure, floor_behind, next_epoch};
pub use transition::{
    Decision, DenyReason, Effect, Judged, LeaseOp, TransitionOutcome, retry_outcome, transition,
};
pub use ttl::{HOLD_OFF_MAX, TTL_MAX, TTL_MIN, Ttl, TtlBounds};
