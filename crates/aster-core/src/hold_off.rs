//! Whom revokes keep out for a while.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::time::Duration;

use crate::name::Principal;

/// How many hold-offs of one row run at once. One more drops the oldest.
pub const HOLD_OFFS_MAX: usize = 16;

/// A revoked holder that may not acquire for a while.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct HoldOff {
    /// Who is kept out.
    pub holder: Principal,
    /// For how long after the revoke: whole milliseconds up to [`HOLD_OFF_MAX`](crate::HOLD_OFF_MAX).
    pub duration: Duration,
    /// The row's epoch right after the revoke. It names the hold-off among those of its row, and a
    /// store keeps its instant under it.
    pub epoch: u64,
}

/// The hold-offs of a row, the oldest first: at most one for a holder and at most
/// [`HOLD_OFFS_MAX`].
///
/// When a hold-off began is volatile and belongs to the store's own clock, like the instant of a
/// grant. Before it asks [`transition`](fn@crate::transition) a store drops what is over with
/// [`HoldOffs::retain`], so to the rules every hold-off runs.
///
/// Most rows have none, and an empty one costs a row no more than a pointer.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
#[allow(
    clippy::box_collection,
    reason = "one word in each of a million rows that have no hold-off"
)]
pub struct HoldOffs(Option<Box<Vec<HoldOff>>>);

impl HoldOffs {
    /// Nobody is kept out.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    /// The hold-offs, the oldest first.
    pub fn iter(&self) -> impl Iterator<Item = &HoldOff> {
        self.0.iter().flat_map(|hold_offs| hold_offs.iter())
    }

    /// Whether one of them names `candidate`.
    #[must_use]
    pub fn keep_out(&self, candidate: &Principal) -> bool {
        self.iter().any(|hold_off| hold_off.holder == *candidate)
    }

    /// Adds the newest. It takes the place of an earlier one of the same holder, or else of the oldest
    /// when there are [`HOLD_OFFS_MAX`] already.
    pub fn push(&mut self, hold_off: HoldOff) {
        let hold_offs = self.0.get_or_insert_default();
        hold_offs.retain(|earlier| earlier.holder != hold_off.holder);
        if hold_offs.len() >= HOLD_OFFS_MAX {
            hold_offs.remove(0);
        }
        hold_offs.push(hold_off);
    }

    /// Keeps those for which `still_runs` says `true`. A store may say `true` too long, never `false`
    /// too early.
    pub fn retain(&mut self, still_runs: impl FnMut(&HoldOff) -> bool) {
        let Some(hold_offs) = &mut self.0 else {
            return;
        };
        hold_offs.retain(still_runs);
        if hold_offs.is_empty() {
            self.0 = None;
        }
    }
}

/// From the oldest to the newest; what does not fit is dropped as by [`HoldOffs::push`].
impl FromIterator<HoldOff> for HoldOffs {
    fn from_iter<I: IntoIterator<Item = HoldOff>>(hold_offs: I) -> Self {
        let mut collected = Self::default();
        for hold_off in hold_offs {
            collected.push(hold_off);
        }
        collected
    }
}
