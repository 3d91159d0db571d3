//! Dropping rows that have been free for long, behind the epoch floor.

use std::collections::VecDeque;
use std::time::Duration;

use super::marks::Flag;
use super::rows::{Rows, Terms};
use super::slab::Id;

/// How many idle rows one ownership change looks at, so that none of them pays for a million others.
const IDLE_STEPS: usize = 4;

/// Free rows in the order in which they became free, as far as known. Each is there once at most.
pub(super) type Idle = VecDeque<(Id, Duration)>;

impl Rows {
    pub(super) fn queue_idle(&mut self, id: Id) {
        if let Some(slot) = self.slots.get_mut(id)
            && slot.row.held.is_none()
            && !slot.marks.has(Flag::IdleQueued)
        {
            slot.marks.set(Flag::IdleQueued);
            self.idle.push_back((id, slot.marks.since()));
        }
    }

    /// Drops free rows that are old enough, or the oldest when there are too many. The floor rises in
    /// the same step, so a new row of the same name starts above every epoch that it ever had.
    pub(super) fn drop_idle(&mut self, terms: &Terms<'_>) {
        for _ in 0..IDLE_STEPS {
            let Some((id, queued_since)) = self.idle.front().copied() else {
                return;
            };
            let Some(slot) = self.slots.get_mut(id) else {
                self.idle.pop_front();
                continue;
            };
            slot.end_hold_offs(terms.now);
            let kept = slot.row.held.is_some()
                || slot.register().is_some()
                || slot.has_waiters()
                || slot.marks.has(Flag::GateClosed)
                || self.board.is_closed(id);
            if kept || slot.marks.since() != queued_since {
                slot.marks.take(Flag::IdleQueued);
                self.idle.pop_front();
                if !kept {
                    self.queue_idle(id);
                }
                continue;
            }
            let age = terms.now.saturating_sub(queued_since);
            if age < terms.idle_retention && self.idle.len() <= terms.idle_rows_max {
                return;
            }
            if !slot.row.hold_offs.is_empty() {
                // Its turn comes again; the rows behind it do not wait for its hold-offs.
                self.idle.rotate_left(1);
                continue;
            }
            self.idle.pop_front();
            self.remove(id);
        }
    }
}
