//! Tokio's own `Notify` and `watch`, with a point before each call.
//!
//! They need no runtime and hold no lock of theirs while they wake somebody, so under a scheduler that
//! switches at points only each call is one step.

use tokio::sync::futures::Notified;

/// As `tokio::sync::Notify`.
#[derive(Debug, Default)]
pub struct Notify(tokio::sync::Notify);

impl Notify {
    /// As tokio's.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// As tokio's.
    pub fn notified(&self) -> Notified<'_> {
        crate::point();
        self.0.notified()
    }

    /// As tokio's.
    pub fn notify_one(&self) {
        crate::point();
        self.0.notify_one();
    }

    /// As tokio's.
    pub fn notify_waiters(&self) {
        crate::point();
        self.0.notify_waiters();
    }
}

/// As `tokio::sync::watch`.
pub mod watch {
    use tokio::sync::watch as real;
    pub use tokio::sync::watch::{Ref, error};

    /// As tokio's.
    #[derive(Debug)]
    pub struct Sender<T>(real::Sender<T>);

    /// As tokio's.
    #[derive(Debug, Clone)]
    pub struct Receiver<T>(real::Receiver<T>);

    /// As tokio's.
    pub fn channel<T>(first: T) -> (Sender<T>, Receiver<T>) {
        let (sender, receiver) = real::channel(first);
        (Sender(sender), Receiver(receiver))
    }

    impl<T> Sender<T> {
        /// As tokio's.
        pub fn send_replace(&self, value: T) -> T {
            crate::point();
            self.0.send_replace(value)
        }

        /// As tokio's.
        pub fn send_if_modified(&self, modify: impl FnOnce(&mut T) -> bool) -> bool {
            crate::point();
            self.0.send_if_modified(modify)
        }

        /// As tokio's.
        #[must_use]
        pub fn is_closed(&self) -> bool {
            crate::point();
            self.0.is_closed()
        }

        /// As tokio's.
        #[must_use]
        pub fn subscribe(&self) -> Receiver<T> {
            crate::point();
            Receiver(self.0.subscribe())
        }
    }

    impl<T> Receiver<T> {
        /// As tokio's. No point may lie within the life of what it returns.
        pub fn borrow(&self) -> Ref<'_, T> {
            crate::point();
            self.0.borrow()
        }

        /// As tokio's. No point may lie within the life of what it returns.
        pub fn borrow_and_update(&mut self) -> Ref<'_, T> {
            crate::point();
            self.0.borrow_and_update()
        }

        /// As tokio's.
        pub fn mark_unchanged(&mut self) {
            crate::point();
            self.0.mark_unchanged();
        }

        /// As tokio's.
        ///
        /// # Errors
        ///
        /// When the sender is gone.
        pub async fn changed(&mut self) -> Result<(), error::RecvError> {
            crate::point();
            self.0.changed().await
        }
    }
}
