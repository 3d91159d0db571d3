//! The holder's engine, the traits that a store implements, and the memory store.
//!
//! | module | what lives there |
//! |---|---|
//! | [`serializer`] | [`LeaseSerializer`]: who orders ownership changes |
//! | [`resource`] | [`FencedResource`] and [`GuardedResource`]: who enforces them |
//! | [`registers`] | [`Registers`]: a small protected value beside a row |
//! | [`audit`] | [`AuditLog`]: what happened, for people |
//! | [`writer`] | [`Writer`]: the authenticated identity that asks for a write |
//! | [`clock`], [`entropy`] | where time and randomness come in |
//! | [`error`] | what can fail, and what to do about it |

pub mod audit;
pub mod clock;
pub mod entropy;
pub mod error;
pub mod registers;
pub mod resource;
pub mod serializer;
pub mod writer;

pub use aster_core::*;

pub use audit::{AUDIT_PAGE_MAX, AuditEvent, AuditLog, AuditQuery, AuditRecord};
pub use clock::{Clock, Moment, SystemClock};
pub use entropy::{Entropy, EntropyError, SystemEntropy};
pub use error::{FencedError, LeaseError, SerializerError};
pub use registers::{RegisterError, RegisterValue, Registers};
pub use resource::{FencedResource, GuardedResource};
pub use serializer::{LIST_PAGE_MAX, LeaseSerializer, ListQuery};
pub use writer::Writer;
