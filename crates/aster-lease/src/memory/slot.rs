//! One row in memory: what the rules see, and what the store adds.

use std::sync::Arc;
use std::time::Duration;

use aster_core::{HoldOff, Judged, RegisterState, ResourceName, RowState};

use super::marks::Marks;
use super::queue::{Claim, Queue, Seat};

/// There may be millions of them: what few rows have is kept in [`Rare`].
pub(super) struct Slot {
    pub(super) name: ResourceName,
    pub(super) row: RowState,
    pub(super) marks: Marks,
    /// What few rows have.
    pub(super) rare: Option<Box<Rare>>,
}

/// What few rows have, kept out of the others.
#[derive(Default)]
pub(super) struct Rare {
    /// When each of the row's hold-offs began, by its epoch.
    hold_offs_since: Box<[(u64, Duration)]>,
    pub(super) register: Option<Register>,
    pub(super) queue: Queue,
    /// Of a grant that was waited for and not renewed yet.
    pub(super) claim: Option<Claim>,
    /// Waiters of the queue that want to hear of the gate's opening.
    gate_waiters: Vec<Arc<Seat>>,
}

pub(super) struct Register {
    pub(super) value: Vec<u8>,
    pub(super) state: RegisterState,
    pub(super) epoch: u64,
}

impl Slot {
    /// A row that is granted for the first time.
    pub(super) fn new(name: ResourceName, row: RowState, now: Duration) -> Self {
        let mut marks = Marks::default();
        marks.set_since(now);
        Self {
            name,
            row,
            marks,
            rare: None,
        }
    }

    pub(super) fn judged(&self, now: Duration) -> Judged {
        let Some(ttl) = self.row.ttl() else {
            return Judged::default();
        };
        let since = self.marks.since();
        let claim = self.claim().and_then(|claim| claim.time);
        let claim_left = claim.map(|claim| time_left(claim, since, now));
        Judged::held(ttl, now.saturating_sub(since), claim_left)
    }

    /// The claim of the present grant. It belongs to its epoch and shortens no other.
    pub(super) fn claim(&self) -> Option<&Claim> {
        let claim = self.rare.as_ref()?.claim.as_ref()?;
        (claim.epoch == self.row.epoch).then_some(claim)
    }

    /// Its holder had waited for it, and has not renewed it.
    pub(super) fn is_unclaimed(&self) -> bool {
        self.row.held.is_some() && self.claim().is_some_and(|claim| claim.time.is_some())
    }

    /// Nobody has it, or its time has passed.
    pub(super) fn may_be_taken(&self, now: Duration) -> bool {
        self.row.held.is_none() || self.judged(now).expired
    }

    pub(super) fn has_waiters(&self) -> bool {
        self.rare
            .as_ref()
            .is_some_and(|rare| !rare.queue.is_empty())
    }

    pub(super) fn register(&self) -> Option<&Register> {
        self.rare.as_ref()?.register.as_ref()
    }

    pub(super) fn rare_mut(&mut self) -> &mut Rare {
        self.rare.get_or_insert_default()
    }

    /// The gate is closed: `seat` is rung when it opens.
    pub(super) fn ring_when_open(&mut self, seat: &Arc<Seat>) {
        let waiters = &mut self.rare_mut().gate_waiters;
        if !waiters.iter().any(|waiter| Arc::ptr_eq(waiter, seat)) {
            waiters.push(seat.clone());
        }
    }

    pub(super) fn take_gate_waiters(&mut self) -> Vec<Arc<Seat>> {
        match &mut self.rare {
            Some(rare) => std::mem::take(&mut rare.gate_waiters),
            None => Vec::new(),
        }
    }

    /// Lets go of the hold-offs that have had their time.
    pub(super) fn end_hold_offs(&mut self, now: Duration) {
        if self.row.hold_offs.is_empty() {
            return;
        }
        let since = hold_offs_since(&self.rare);
        self.row.hold_offs.retain(|hold_off| {
            let since = since_of(since, hold_off).unwrap_or(now);
            !time_left(hold_off.duration, since, now).is_zero()
        });
        if self.row.hold_offs.is_empty() {
            self.rare_mut().hold_offs_since = Box::default();
            self.tidy();
        }
    }

    /// The row's new state after a change of ownership: hold-offs that ran before keep their instants.
    pub(super) fn replace(&mut self, row: RowState, now: Duration) {
        let before = hold_offs_since(&self.rare);
        let hold_offs = row.hold_offs.iter();
        let since: Box<[_]> = hold_offs
            .map(|hold_off| (hold_off.epoch, since_of(before, hold_off).unwrap_or(now)))
            .collect();
        if !(since.is_empty() && self.rare.is_none()) {
            self.rare_mut().hold_offs_since = since;
        }
        self.row = row;
        self.marks.set_since(now);
        self.end_claim();
    }

    fn end_claim(&mut self) {
        if let Some(rare) = &mut self.rare {
            rare.claim = None;
        }
        self.tidy();
    }

    /// A renewal: ownership stays, and a claim has been taken up.
    pub(super) fn rearm(&mut self, row: RowState, now: Duration) {
        self.row = row;
        self.marks.set_since(now);
        self.end_claim();
    }

    /// Everything that is volatile begins anew; those who wait are told.
    pub(super) fn restart(&mut self, now: Duration, rings: &mut Vec<Arc<Seat>>) {
        self.marks.set_since(now);
        let Some(rare) = &mut self.rare else {
            return;
        };
        for (_, since) in &mut rare.hold_offs_since {
            *since = now;
        }
        if let Some(claim) = &mut rare.claim {
            claim.time = None;
        }
        rare.queue.forget(rings);
        self.tidy();
    }

    /// Gives back the memory of what the row does not have any more.
    pub(super) fn tidy(&mut self) {
        let is_used = self.rare.as_ref().is_some_and(|rare| {
            rare.register.is_some()
                || rare.claim.is_some()
                || !rare.queue.is_empty()
                || !rare.hold_offs_since.is_empty()
                || !rare.gate_waiters.is_empty()
        });
        if !is_used {
            self.rare = None;
        }
    }
}

fn hold_offs_since(rare: &Option<Box<Rare>>) -> &[(u64, Duration)] {
    rare.as_ref().map_or(&[], |rare| &rare.hold_offs_since)
}

fn since_of(since: &[(u64, Duration)], hold_off: &HoldOff) -> Option<Duration> {
    let mut since = since.iter();
    since.find_map(|(epoch, since)| (*epoch == hold_off.epoch).then_some(*since))
}

fn time_left(term: Duration, since: Duration, now: Duration) -> Duration {
    term.saturating_sub(now.saturating_sub(since))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::waiting::WaitRequest;
    use aster_core::{GrantId, HoldOffs, Principal, Tenure, Ttl, WriteId};

    const NOW: Duration = Duration::from_secs(1);

    fn row() -> RowState {
        RowState {
            epoch: 1,
            revision: 1,
            grant_id: GrantId::from_bytes([1; 16]),
            held: Some(Tenure {
                holder: Principal::new("a").unwrap(),
                ttl: Ttl::new(NOW).unwrap(),
            }),
            hold_offs: HoldOffs::default(),
        }
    }

    fn request() -> WaitRequest {
        WaitRequest {
            candidate: Principal::new("b").unwrap(),
            ttl: Ttl::new(NOW).unwrap(),
            grant_id: GrantId::from_bytes([2; 16]),
            wait: NOW,
        }
    }

    /// Whatever a row has that few rows have is kept, and its memory goes with it: a row that had a
    /// waiter once must not cost more for ever.
    #[test]
    fn what_few_rows_have_is_kept_for_as_long_as_the_row_has_it() {
        let seat = Arc::new(Seat::default());
        type Give = fn(&mut Rare, &Arc<Seat>);
        type Take = fn(&mut Rare);
        let each: [(&str, Give, Take); 5] = [
            (
                "a register",
                |rare, _| {
                    rare.register = Some(Register {
                        value: Vec::new(),
                        state: RegisterState {
                            value_revision: 1,
                            write_id: WriteId::from_bytes([1; 16]),
                        },
                        epoch: 1,
                    });
                },
                |rare| rare.register = None,
            ),
            (
                "a claim",
                |rare, _| {
                    rare.claim = Some(Claim {
                        epoch: 1,
                        time: None,
                    })
                },
                |rare| rare.claim = None,
            ),
            (
                "a waiter",
                |rare, seat| {
                    rare.queue.enter(&request(), seat, NOW, 1);
                },
                |rare| {
                    rare.queue.pop_first();
                },
            ),
            (
                "a hold-off",
                |rare, _| rare.hold_offs_since = Box::new([(1, NOW)]),
                |rare| rare.hold_offs_since = Box::default(),
            ),
            (
                "a waiter at the gate",
                |rare, seat| rare.gate_waiters.push(seat.clone()),
                |rare| rare.gate_waiters.clear(),
            ),
        ];
        for (what, give, take) in each {
            let mut slot = Slot::new(ResourceName::new("catalog").unwrap(), row(), NOW);
            give(slot.rare_mut(), &seat);
            slot.tidy();
            assert!(slot.rare.is_some(), "{what}");
            take(slot.rare_mut());
            slot.tidy();
            assert!(slot.rare.is_none(), "{what}");
        }
    }
}
