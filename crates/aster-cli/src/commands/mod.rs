//! Commands that ask once and print. `run` and `demo` have modules of their own.

pub(crate) mod backup;
pub(crate) mod follow;
pub(crate) mod inside;
pub(crate) mod operate;
pub(crate) mod read;
pub(crate) mod verify;
