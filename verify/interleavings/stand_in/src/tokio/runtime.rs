//! The one runtime of a world.

use std::future::Future;

use super::task::{self, JoinHandle};

/// As `tokio::runtime::Handle`.
#[derive(Debug, Clone)]
pub struct Handle(());

/// As `tokio::runtime::Id`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Id(u64);

/// As `tokio::runtime::TryCurrentError`. It does not happen here: every thread is within the runtime.
#[derive(Debug, thiserror::Error)]
#[error("no runtime")]
pub struct TryCurrentError(());

impl Handle {
    /// The world's runtime.
    ///
    /// # Errors
    ///
    /// Never; tokio's own does when there is none.
    pub fn try_current() -> Result<Self, TryCurrentError> {
        Ok(Self(()))
    }

    /// Always the same.
    #[must_use]
    pub fn id(&self) -> Id {
        Id(1)
    }

    /// Runs `future` as a task. If the runtime has stopped, it is dropped at once.
    pub fn spawn<F>(&self, future: F) -> JoinHandle
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        task::spawn(future)
    }
}
