//! One lock's worth of rows, and the gate of a running closure.
//!
//! The lock is held for a few instructions only. A protected closure runs outside it, behind the
//! *gate* of its own row: while the gate is closed, ownership of that row cannot change, but it can
//! be renewed and read.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use aster_core::{Authority, Fence, FenceRejection, RowView, check_fence};
use tokio::sync::Notify;

use super::Hasher;
use super::board::{Board, Cell, Closing};
use super::marks::Flag;
use super::rows::{Key, Rows};
use super::slab::Id;
use super::slot::Slot;

thread_local! {
    /// How many gates this thread has closed. From inside a closure nothing waits for another gate:
    /// waiting while holding one is how deadlocks are made.
    static GATES_HELD: std::cell::Cell<u32> = const { std::cell::Cell::new(0) };
}

/// On cache lines of its own, so that threads on different shards do not slow each other.
#[repr(align(128))]
pub(super) struct Shard {
    rows: Mutex<Rows>,
    /// Wake those who wait for a gate: threads, and tasks.
    gate_opened: Condvar,
    gate_opened_async: Notify,
    board: Arc<Board>,
}

/// Someone else's closure runs on the row; the change has to wait for its gate.
pub(super) enum Gated {
    /// Wait, then try again.
    Wait,
    /// The caller is itself inside a closure: waiting would be a deadlock.
    Reentrant,
}

/// The caller is inside a protected closure and would have to wait for a gate.
pub(super) struct Reentrant;

impl Shard {
    pub(super) fn new(hasher: Hasher) -> Self {
        let board = Arc::new(Board::default());
        Self {
            rows: Mutex::new(Rows::new(hasher, board.clone())),
            gate_opened: Condvar::new(),
            gate_opened_async: Notify::new(),
            board,
        }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Rows> {
        // No user code runs under this lock, so a poisoned one still holds whole rows.
        self.rows.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Checks the fence and closes the row's gate for this thread, in one step. The rejection comes
    /// with the row's epoch.
    pub(super) fn enter(
        &self,
        authority: Authority,
        fence: &Fence,
        hash: u64,
        writer: &str,
    ) -> Result<Gate<'_>, (FenceRejection, u64)> {
        let resource = &fence.resource;
        let mut rows = self.lock();
        loop {
            let found = rows.find(Key { resource, hash });
            let floor = rows.floor;
            let slot = found.and_then(|id| rows.slots.get_mut(id));
            let view = RowView {
                authority,
                resource,
                floor,
                row: slot.as_deref().map(|slot| &slot.row),
            };
            let current = view.epoch();
            check_fence(&view, fence, writer).map_err(|rejection| (rejection, current))?;
            let (Some(id), Some(slot)) = (found, slot) else {
                return Err((FenceRejection::NotHeld, current));
            };
            if let Some(cell) = slot.close_gate(id, &self.board) {
                GATES_HELD.with(|held| held.set(held.get() + 1));
                return Ok(Gate {
                    shard: self,
                    id,
                    cell,
                });
            }
            match rows.pass_gate(id) {
                // It was opened between the two looks.
                Ok(()) => {}
                Err(Gated::Reentrant) => return Err((FenceRejection::Reentrant, current)),
                Err(Gated::Wait) => {
                    rows = self
                        .gate_opened
                        .wait(rows)
                        .unwrap_or_else(PoisonError::into_inner);
                }
            }
        }
    }

    /// Tells those who wait for the row's gate that it was opened.
    #[cold]
    fn opened(&self, id: Id) {
        // They hold the lock until they sleep or have left their seat.
        let mut rows = self.lock();
        let seats = rows.slots.get_mut(id).map(Slot::take_gate_waiters);
        drop(rows);
        for seat in seats.into_iter().flatten() {
            seat.ring();
        }
        self.gate_opened.notify_all();
        self.gate_opened_async.notify_waiters();
    }

    /// Runs `step` under the lock until no gate is in its way. Cancel safe: nothing has happened
    /// while it waits.
    pub(super) async fn when_ungated<R>(
        &self,
        mut step: impl FnMut(&mut Rows) -> Result<R, Gated>,
    ) -> Result<R, Reentrant> {
        loop {
            let opened = {
                let mut rows = self.lock();
                match step(&mut rows) {
                    Ok(result) => return Ok(result),
                    Err(Gated::Reentrant) => return Err(Reentrant),
                    // Made before the lock is given back, so the opening cannot be missed.
                    Err(Gated::Wait) => self.gate_opened_async.notified(),
                }
            };
            opened.await;
        }
    }
}

/// A closed gate; dropping it, also while unwinding, opens it again.
pub(super) struct Gate<'a> {
    shard: &'a Shard,
    id: Id,
    /// Its place on the board; without one the row has the note.
    cell: Option<Cell>,
}

impl Drop for Gate<'_> {
    fn drop(&mut self) {
        GATES_HELD.with(|held| held.set(held.get().saturating_sub(1)));
        let is_contended = match &self.cell {
            Some(cell) => self.shard.board.open(cell),
            None => self.shard.lock().open_gate(self.id),
        };
        if is_contended {
            self.shard.opened(self.id);
        }
    }
}

impl Rows {
    /// Whether a change of ownership, or another closure, may be made by this thread now. That
    /// somebody has to wait is noted: whoever opens the gate notifies them.
    pub(super) fn pass_gate(&mut self, id: Id) -> Result<(), Gated> {
        let is_in_row = self
            .slots
            .get(id)
            .is_some_and(|slot| slot.marks.has(Flag::GateClosed));
        if !is_in_row && !self.board.is_closed(id) {
            return Ok(());
        }
        if GATES_HELD.with(|held| held.get()) > 0 {
            return Err(Gated::Reentrant);
        }
        match self.slots.get_mut(id) {
            Some(slot) if is_in_row => {
                slot.marks.set(Flag::Contended);
                Err(Gated::Wait)
            }
            _ if self.board.contend(id) => Err(Gated::Wait),
            // It was opened between the two looks.
            _ => Ok(()),
        }
    }

    /// Opens a gate without a place on the board. Whether somebody waits.
    fn open_gate(&mut self, id: Id) -> bool {
        // A held row with a closed gate is neither changed nor dropped, so it is still there.
        self.slots.get_mut(id).is_some_and(|slot| {
            slot.marks.take(Flag::GateClosed);
            slot.marks.take(Flag::Contended)
        })
    }
}

impl Slot {
    /// Closes the row's gate if it is open: with its place on the board, or without one.
    fn close_gate(&mut self, id: Id, board: &Board) -> Option<Option<Cell>> {
        if self.marks.has(Flag::GateClosed) {
            return None;
        }
        match board.close(id) {
            Closing::Closed(cell) => Some(Some(cell)),
            Closing::IsClosed => None,
            Closing::NoPlace => {
                self.marks.set(Flag::GateClosed);
                Some(None)
            }
        }
    }
}
