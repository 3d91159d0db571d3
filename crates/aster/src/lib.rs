//! Fenced leases: **a write by a worker whose ownership has ended is rejected by the resource, whatever
//! the worker believes and however late the write arrives.**
//!
//! | module | what lives there |
//! |---|---|
//! | [`lease`] | the lease handle, fences, the traits of a store, the memory store, [`connect`](fn@lease::connect) |
//! | `sqlite` | the embedded durable store (feature `sqlite`, on by default) |
//! | `conformance` | suites for a serializer or a resource of your own (feature `conformance`) |
//!
//! ```
//! use std::sync::Arc;
//! use aster::lease::{AcquireOutcome, LeaseHandle, LeaseOptions, MemorySerializer};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let node_id = String::from("worker-a");
//! let serializer = Arc::new(MemorySerializer::new());
//! let mut catalog = String::new();
//! match LeaseHandle::acquire(
//!     serializer.clone(), "catalog/current", &node_id, LeaseOptions::default(),
//! ).await? {
//!     AcquireOutcome::Granted(lease) => {
//!         if let Some(fence) = lease.fence() {
//!             serializer.mutate_fenced(&fence, &node_id, || {
//!                 catalog = "catalog-v1".to_owned();
//!             })?;
//!             assert_eq!(catalog, "catalog-v1");
//!         }
//!         lease.release().await?;
//!     }
//!     AcquireOutcome::Denied(reason, snapshot) => {
//!         eprintln!("lease denied: {reason:?}; state: {snapshot:?}");
//!     }
//! }
//! # Ok(())
//! # }
//! ```
//!
//! A store by its URL, for a program that lets its user choose:
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let store = aster::lease::connect("memory:").await?;
//! let snapshot = store.serializer().snapshot("catalog/current").await?;
//! assert!(!snapshot.held);
//! # Ok(())
//! # }
//! ```

mod connect;
mod url;

pub use connect::{ConnectError, Store, connect, connect_existing};
pub use url::{InvalidUrl, SUPPORTED_URLS, StoreUrl};

/// Leases, fences and the traits of a store.
pub mod lease {
    pub use crate::connect::{ConnectError, Store, connect, connect_existing};
    pub use crate::url::InvalidUrl;
    pub use aster_lease::*;
}

/// The embedded durable store: leases, registers and audit in one SQLite file, and the user's own
/// tables fenced in the same transaction.
#[cfg(feature = "sqlite")]
pub mod sqlite {
    pub use aster_sqlite::*;
}

/// Suites that show whether a serializer or a fenced resource of your own keeps the rules.
#[cfg(feature = "conformance")]
pub mod conformance {
    pub use aster_conformance::*;
}
