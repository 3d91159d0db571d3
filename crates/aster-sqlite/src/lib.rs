//! The embedded durable store of fenced leases: leases, registers and audit records in any SQLite
//! file, and the user's own SQL under the fence rule in one transaction.
//!
//! Start at [`SqliteSerializer`]. The way of a request: `serializer` (the public face) hands it to a
//! thread: `writer` (ownership changes and register writes, durable, in batches: `batch`), `renewals`
//! (the side file, no fsync), `reader` (everything that needs no lock, and a first look for `suspects`). All of them load rows (`rows`, `side_tables`), judge expiry (`judge`) and ask
//! the core for the decision. `mutate` runs the user's closure on the caller's thread under `guard`.
//!
//! Runs on Unix. On Linux deadlines are exact within one boot and time namespace; elsewhere expiry is
//! judged by watching.

#[cfg(not(unix))]
compile_error!("the SQLite store tells files apart by their inodes and needs Unix");

mod audit;
mod backup;
mod batch;
mod callers;
mod calls;
mod connection;
mod domain;
mod draft;
mod error;
mod file_system;
#[cfg(feature = "fuzz")]
#[doc(hidden)]
pub mod fuzz;
mod gate;
mod guard;
mod identity;
mod idle;
mod judge;
mod look;
mod looking;
mod mutate;
mod news;
mod open;
mod options;
mod plans;
mod queue;
mod reader;
mod registers;
mod rejections;
mod renewals;
mod rows;
mod schema;
mod serializer;
mod shared;
mod side;
mod side_tables;
mod suspects;
mod target;
mod untouched;
mod waiters;
mod waiting;
mod wake;
mod wishes;
mod worker;
mod writer;

pub use rusqlite;

pub use backup::{Backup, CopyProgress, ExistingBackup, RestoreFrom};
pub use domain::{BootTime, ClockDomain, StoreTime};
pub use error::OpenError;
pub use open::Adopted;
pub use options::{AUDIT_RECORDS_MAX, BUSY_BOUND, IDLE_RETENTION, IDLE_ROWS_MAX, SqliteOptions};
pub use serializer::SqliteSerializer;
