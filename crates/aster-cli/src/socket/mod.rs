//! The private socket between a run and its command.
//!
//! The command never gets a fence to keep: it asks its run, and the run takes the fence at that moment,
//! under its own identity. One connection carries one request and one answer.

pub(crate) mod client;
pub(crate) mod frame;
pub(crate) mod server;

/// Where the command finds its run.
pub(crate) const SOCKET_VARIABLE: &str = "ASTER_SOCKET";
/// The resource of the run.
pub(crate) const RESOURCE_VARIABLE: &str = "ASTER_RESOURCE";
