//! What a death leaves of the SQLite store: power loss, killed processes, failing disks.
//!
//! [`VolatileDisk`] is one directory of files, mounted through FUSE. It keeps for every file what the
//! programs see and what a power loss would leave: `fsync` of a file makes its content durable,
//! `fsync` of the directory makes its names durable, as strictly as POSIX allows. It logs every step, and
//! between the steps what its users were told ([`words`]). So one life of the store shows what each of
//! its moments would have left behind: [`cuts`] takes the log up to any step, loses what was not synced
//! then in one of several ways ([`Loss`]), opens the store on what is left, and compares it with what
//! had been told ([`expected`]).
//!
//! [`rounds`] does that with whole lives, with processes that are really killed, and with writes and syncs
//! that fail. What is broken on purpose is in [`controls`].

#![cfg(target_os = "linux")]
#![allow(
    clippy::missing_panics_doc,
    clippy::unwrap_used,
    reason = "a test tool: its own broken lock is a failed test"
)]

pub mod bend;
pub mod controls;
pub mod cuts;
mod disk;
pub mod expected;
pub mod judge;
pub mod lives;
mod mount;
pub mod rounds;
pub mod rules;
pub mod store;
mod teller;
mod volume;
pub mod words;
pub mod work;

pub use disk::{FAULT, Fault, Held, Moment, TOLD, VolatileDisk};
pub use mount::mount;
pub use volume::{Damage, Event, Loss, Volume};
