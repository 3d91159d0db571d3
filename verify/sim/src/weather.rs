//! What goes wrong at present, as chances in a thousand.

use std::sync::{Mutex, PoisonError};

/// The present chances. All zero is a calm world.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Conditions {
    pub(crate) message_lost: u64,
    pub(crate) message_doubled: u64,
    pub(crate) message_slow: u64,
    pub(crate) slow_ms_max: u64,
    pub(crate) store_busy: u64,
    pub(crate) store_overloaded: u64,
    pub(crate) store_failed: u64,
    pub(crate) store_slow: u64,
    pub(crate) store_panics: u64,
    pub(crate) client_panics: u64,
}

/// The conditions that everyone in the world looks at.
#[derive(Debug, Default)]
pub(crate) struct Weather(Mutex<Conditions>);

impl Weather {
    pub(crate) fn now(&self) -> Conditions {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn set(&self, conditions: Conditions) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = conditions;
    }
}
