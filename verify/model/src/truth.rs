//! What really happened, kept apart from every row: the oracle never asks the code under test.

use std::collections::{BTreeMap, BTreeSet};

use crate::network::{HolderId, Request, WishId};
use crate::store::{CLAIM, TTL};

/// A rule that a step has broken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Broken {
    /// A write was accepted whose owner's time had ended.
    WriteByAnEndedOwner,
    /// An epoch came twice, or went back.
    EpochReused,
    /// An ownership ended and its epoch is still the row's.
    EndWithoutANewEpoch,
    /// One grant id, two grants, and no other grant between them.
    GrantIdGrantedTwice,
    /// An owner lost its lease before its ttl had passed, and neither it nor an operator asked for that.
    HeldShorterThanItsTtl,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(crate) struct Truth {
    /// Who owns the resource.
    pub(crate) owner: Option<Owner>,
    /// The highest epoch granted under each authority.
    highest: BTreeMap<u8, u64>,
    /// The latest grant, for as long as the row has to remember it.
    latest: Option<(WishId, u8)>,
    /// Every wish that was ever granted.
    wishes: BTreeSet<WishId>,
    /// Epochs that an operator ended: their holders cannot know at once.
    revoked: BTreeSet<u64>,
    /// The first rule that was broken.
    pub(crate) broken: Option<Broken>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Owner {
    pub(crate) holder: HolderId,
    pub(crate) authority: u8,
    pub(crate) epoch: u64,
    pub(crate) wish: WishId,
    /// When the lease was last granted or renewed.
    pub(crate) armed: u8,
    /// It lasts a ttl, not the claim time.
    pub(crate) claimed: bool,
}

impl Owner {
    /// It has had its time.
    pub(crate) fn is_due(&self, now: u8) -> bool {
        let term = if self.claimed { TTL } else { CLAIM };
        now - self.armed >= term
    }
}

impl Truth {
    pub(crate) fn breaks(&mut self, broken: Broken) {
        self.broken.get_or_insert(broken);
    }

    /// A grant is about to be made over the head of the present owner, if there is one.
    pub(crate) fn taken_over(&mut self, now: u8) {
        if self.owner.is_some_and(|owner| !owner.is_due(now)) {
            self.breaks(Broken::HeldShorterThanItsTtl);
        }
    }

    pub(crate) fn granted(&mut self, wish: WishId, owner: Owner) {
        let highest = self.highest.entry(owner.authority).or_default();
        let reused = owner.epoch <= *highest;
        *highest = owner.epoch.max(*highest);
        // A row remembers its last grant only: a late duplicate of an earlier wish is a new one to it.
        let again = self
            .latest
            .is_some_and(|latest| latest == (wish, owner.authority));
        self.latest = Some((wish, owner.authority));
        self.wishes.insert(wish);
        if again {
            self.breaks(Broken::GrantIdGrantedTwice);
        } else if reused {
            self.breaks(Broken::EpochReused);
        }
        self.owner = Some(owner);
    }

    pub(crate) fn was_granted(&self, wish: WishId) -> bool {
        self.wishes.contains(&wish)
    }

    /// The free row was dropped. Real ones are kept for longer than any retry takes.
    pub(crate) fn dropped(&mut self) {
        self.latest = None;
    }

    pub(crate) fn has_to_be_claimed(&mut self) {
        if let Some(owner) = &mut self.owner {
            owner.claimed = false;
        }
    }

    pub(crate) fn renewed(&mut self, epoch: u64, now: u8) {
        if let Some(owner) = &mut self.owner
            && owner.epoch == epoch
        {
            owner.armed = now;
            owner.claimed = true;
        }
    }

    /// The serializer restarted: whoever owns the resource has a whole ttl again.
    pub(crate) fn rearmed(&mut self, now: u8) {
        if let Some(owner) = &mut self.owner {
            owner.armed = now;
            owner.claimed = true;
        }
    }

    pub(crate) fn revoked(&mut self, epoch: u64) {
        self.revoked.insert(epoch);
    }

    pub(crate) fn was_revoked(&self, epoch: u64) -> bool {
        self.revoked.contains(&epoch)
    }

    /// The ownership ended because of `request`, or because an operator wanted it.
    pub(crate) fn ended_by(&mut self, request: Option<&Request>) {
        let Some(owner) = self.owner.take() else {
            return;
        };
        let wanted = match request {
            Some(Request::Release { authority, epoch }) => {
                (*authority, *epoch) == (owner.authority, owner.epoch)
            }
            Some(Request::Cancel { wish }) => *wish == owner.wish,
            _ => true,
        };
        if !wanted {
            self.breaks(Broken::HeldShorterThanItsTtl);
        }
    }

    /// A restored store was adopted: every ownership has ended, also those that the backup did not know.
    pub(crate) fn adopted(&mut self) {
        self.owner = None;
    }

    pub(crate) fn highest_authority(&self) -> u8 {
        self.highest.keys().next_back().copied().unwrap_or(0)
    }

    pub(crate) fn wrote(&mut self, writer: HolderId, authority: u8, epoch: u64) {
        let owns = self.owner.is_some_and(|owner| {
            (owner.holder, owner.authority, owner.epoch) == (writer, authority, epoch)
        });
        if !owns {
            self.breaks(Broken::WriteByAnEndedOwner);
        }
    }
}
