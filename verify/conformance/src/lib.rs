//! One suite of cases for every serializer, fenced resource and register store, ours and yours.
//!
//! You write a [`Harness`]: how to make a fresh store, how to run one protected write and read its
//! effect, and, where possible, how to pause inside a write, restart, or move the clock. The suites
//! do the rest. Every case has a name, and one that fails says which [`Rule`] broke. What your harness
//! cannot do is reported as not checked, never as passed.
//!
//! ```
//! use aster_conformance::{Harness, serializer_suite};
//! use aster_lease::{LeaseSerializer, MemorySerializer};
//! use async_trait::async_trait;
//!
//! struct Memory;
//!
//! #[async_trait]
//! impl Harness for Memory {
//!     type Store = MemorySerializer;
//!
//!     async fn fresh(&self) -> MemorySerializer {
//!         MemorySerializer::new()
//!     }
//!
//!     fn serializer<'a>(&self, store: &'a MemorySerializer) -> &'a dyn LeaseSerializer {
//!         store
//!     }
//! }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() {
//! let report = serializer_suite(&Memory).await;
//! report.assert_passed();
//! println!("{report}"); // this harness cannot move the clock: those cases were not checked
//! # }
//! ```
//!
//! Run the suites on a tokio runtime with time enabled: a store that answers "try again" is asked
//! again after a short pause.

mod drive;
mod fenced_resource;
mod harness;
mod line;
mod live;
mod paused_write;
mod registers;
mod release_with_value;
mod report;
mod rule;
mod serializer;

pub use fenced_resource::fenced_resource_suite;
pub use harness::{Harness, PausedWrite, Possible, Written};
pub use live::{Live, LiveStore, Progress, SCRATCH_PREFIX};
pub use registers::registers_suite;
pub use report::{Case, Outcome, Report};
pub use rule::Rule;
pub use serializer::serializer_suite;
