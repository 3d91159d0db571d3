//! Within one process the writers of a store take turns here, instead of polling SQLite's lock.

use std::cell::RefCell;
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

use crate::identity::FileId;
use crate::mutate::Guarded;

/// Who writes, and the connection that is kept for protected closures.
#[derive(Debug, Default)]
pub(crate) struct Gate {
    state: Mutex<State>,
    freed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    taken: bool,
    waiting: usize,
    connection: Option<Guarded>,
}

impl Gate {
    /// Waits until nobody of this process writes; `None` after `bound`.
    pub(crate) fn enter(&self, bound: Duration) -> Option<Turn<'_>> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.taken {
            state.waiting += 1;
            (state, _) = self
                .freed
                .wait_timeout_while(state, bound, |state| state.taken)
                .unwrap_or_else(PoisonError::into_inner);
            state.waiting -= 1;
        }
        if state.taken {
            return None;
        }
        state.taken = true;
        Some(Turn { gate: self })
    }
}

/// One writer's turn. It ends when it is dropped, also while unwinding.
#[derive(Debug)]
pub(crate) struct Turn<'a> {
    gate: &'a Gate,
}

impl Turn<'_> {
    /// Takes the connection for closures; `None` the first time and after a panic.
    pub(crate) fn take_connection(&self) -> Option<Guarded> {
        self.lock().connection.take()
    }

    /// Keeps the connection for the next closure.
    pub(crate) fn keep_connection(&self, connection: Guarded) {
        self.lock().connection = Some(connection);
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.gate
            .state
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let mut state = self.lock();
        state.taken = false;
        // Waking costs a system call also when nobody sleeps.
        let is_awaited = state.waiting > 0;
        drop(state);
        if is_awaited {
            self.gate.freed.notify_one();
        }
    }
}

thread_local! {
    /// The files in whose protected closures this thread is.
    static INSIDE: RefCell<Vec<FileId>> = const { RefCell::new(Vec::new()) };
}

/// Whether this thread is inside a protected closure of `file`: then waiting for its write lock would
/// be waiting for itself.
pub(crate) fn is_inside(file: FileId) -> bool {
    INSIDE.with_borrow(|inside| inside.contains(&file))
}

/// Marks this thread as inside a protected closure until it is dropped.
#[derive(Debug)]
pub(crate) struct Inside(());

impl Inside {
    pub(crate) fn enter(file: FileId) -> Self {
        INSIDE.with_borrow_mut(|inside| inside.push(file));
        Self(())
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        INSIDE.with_borrow_mut(|inside| {
            inside.pop();
        });
    }
}
