//! What stands in for std's locks and for tokio while every order of steps is tried.
//!
//! | module | what lives there |
//! |---|---|
//! | [`std`] | the scheduler's locks, condition variables and atomics |
//! | [`tokio`] | tasks of the scheduler, timers of the world, tokio's own `Notify` and `watch` |
//! | [`world`] | the world's time, its timers and its tasks |
//! | [`bugs`] | the switches of the planted bugs |
//!
//! Every call that another thread could come before is a *point*: the scheduler may run others there.
//! Tasks and threads are one and the same to it, so a task is stopped anywhere, not at its awaits only.

pub mod bugs;
pub mod tokio;
pub mod world;

/// The scheduler's locks, under std's names.
pub mod std {
    /// As `std::sync`.
    pub mod sync {
        pub use shuttle::sync::*;
    }
}

pub use shuttle::{lazy_static, thread_local};

/// Others may run here.
pub fn point() {
    // Its own `sleep` is a switch to whoever is chosen, and nothing else.
    shuttle::thread::sleep(::std::time::Duration::ZERO);
}
