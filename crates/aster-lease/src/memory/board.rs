//! Closed gates, noted where they can be opened without the shard's lock.
//!
//! A gate is closed under the lock only, so whoever holds the lock and sees it open may rely on that.
//! It is opened from outside: one exchange, instead of taking the lock a second time for every write.

use std::sync::atomic::{AtomicU64, Ordering};

use super::slab::Id;

/// How many closures of one shard run at once with a place here; one more notes it in its row.
const CELLS: usize = 4;
/// Set in a cell by whoever waits for its gate.
const CONTENDED: u64 = 1 << 63;
const OPEN: u64 = 0;

#[repr(align(128))]
#[derive(Default)]
pub(super) struct Board {
    cells: [AtomicU64; CELLS],
}

/// The place of a closed gate.
pub(super) struct Cell(usize);

pub(super) enum Closing {
    Closed(Cell),
    /// A closure runs behind it already.
    IsClosed,
    NoPlace,
}

fn closed(id: Id) -> u64 {
    u64::from(id.number()) + 1
}

impl Board {
    /// Under the lock: closes the gate if it is open and there is a place.
    #[inline]
    pub(super) fn close(&self, id: Id) -> Closing {
        let mut place = None;
        for (at, cell) in self.cells.iter().enumerate() {
            match cell.load(Ordering::Acquire) {
                OPEN => place = Some(at),
                other if other & !CONTENDED == closed(id) => return Closing::IsClosed,
                _ => {}
            }
        }
        let Some(at) = place else {
            return Closing::NoPlace;
        };
        // Nobody else fills a place: that needs the lock.
        self.cells[at].store(closed(id), Ordering::Release);
        Closing::Closed(Cell(at))
    }

    /// Under the lock.
    pub(super) fn is_closed(&self, id: Id) -> bool {
        self.cells
            .iter()
            .any(|cell| cell.load(Ordering::Acquire) & !CONTENDED == closed(id))
    }

    /// Under the lock: whoever opens the gate will know that somebody waits. `false` when it is open.
    pub(super) fn contend(&self, id: Id) -> bool {
        let (alone, contended) = (closed(id), closed(id) | CONTENDED);
        self.cells.iter().any(|cell| {
            let noted =
                cell.compare_exchange(alone, contended, Ordering::AcqRel, Ordering::Acquire);
            noted.is_ok() || noted == Err(contended)
        })
    }

    /// Without the lock. Whether somebody waits: the lock has to be taken then before they are
    /// notified, because they hold it until they sleep.
    pub(super) fn open(&self, cell: &Cell) -> bool {
        self.cells[cell.0].swap(OPEN, Ordering::AcqRel) & CONTENDED != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::slab::Slab;

    #[test]
    fn a_gate_is_its_rows_own_and_tells_of_those_who_wait() {
        let mut slab = Slab::default();
        let ids: Vec<_> = (0..=CELLS).map(|number| slab.insert(number)).collect();
        let board = Board::default();
        let mut cells = Vec::new();
        for id in &ids[..CELLS] {
            let Closing::Closed(cell) = board.close(*id) else {
                panic!("it was open")
            };
            cells.push(cell);
            assert!(matches!(board.close(*id), Closing::IsClosed));
        }
        assert!(matches!(board.close(ids[CELLS]), Closing::NoPlace));
        assert!(!board.is_closed(ids[CELLS]));
        assert!(board.contend(ids[1]) && board.contend(ids[1]));
        assert!(!board.contend(ids[CELLS]));
        for (id, cell) in ids.iter().zip(&cells) {
            assert!(board.is_closed(*id));
            assert_eq!(board.open(cell), *id == ids[1]);
            assert!(!board.is_closed(*id) && !board.contend(*id));
        }
        // A place is used again, and what was noted for the gate before is gone.
        let Closing::Closed(again) = board.close(ids[CELLS]) else {
            panic!("there is room again")
        };
        assert!(!board.open(&again));
    }
}
