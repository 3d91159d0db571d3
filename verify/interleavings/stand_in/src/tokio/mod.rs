//! As the parts of tokio that the engine uses.

pub mod runtime;
pub mod sync;
pub mod task;
pub mod time;
