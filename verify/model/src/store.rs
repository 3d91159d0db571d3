//! The serializer: it asks the core, and keeps what the core says.

use std::sync::OnceLock;
use std::time::Duration;

use aster_core::{
    Authority, Decision, Effect, Fence, FenceRejection, GrantId, Judged, LeaseOp, Principal,
    ResourceName, RowState, RowView, TransitionOutcome, Ttl, TtlBounds, check_fence, floor_behind,
    transition,
};

use crate::bounds::Bug;
use crate::network::{Answer, HolderId, Request, WishId};
use crate::seen::{Ingredient, Seen};
use crate::truth::{Broken, Owner, Truth};

/// How many ticks a lease lasts, and for how many a grant that was waited for.
pub(crate) const TTL: u8 = 3;
pub(crate) const CLAIM: u8 = 1;
const TICK_MS: u64 = 100;

/// What survives a restart.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Durable {
    pub(crate) authority: u8,
    pub(crate) floor: u64,
    pub(crate) row: Option<RowState>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Store {
    bug: Option<Bug>,
    pub(crate) durable: Durable,
    pub(crate) backup: Option<Durable>,
    /// When the row was last granted or renewed.
    since: u8,
    /// The wish whose grant has to be claimed.
    claim: Option<WishId>,
    pub(crate) queue: Vec<(HolderId, WishId)>,
    /// A backup was put back, and nobody has adopted it.
    pub(crate) refused: bool,
    /// The floor that is still to be raised ([`Bug::FloorRaisedAfterTheDrop`]).
    pub(crate) floor_due: u64,
    /// Somebody has set the wall clock ([`Bug::TakeoverTrustsAWallClock`]).
    pub(crate) wall_jumped: bool,
}

/// What one step of the store needs to know of the world.
pub(crate) struct Step<'a> {
    pub(crate) now: u8,
    pub(crate) truth: &'a mut Truth,
    pub(crate) seen: &'a Seen,
}

/// An answer and whom it is for.
pub(crate) type Reply = (HolderId, Answer);

impl Store {
    pub(crate) fn new(bug: Option<Bug>) -> Self {
        Self {
            bug,
            durable: Durable {
                authority: 0,
                floor: 0,
                row: None,
            },
            backup: None,
            since: 0,
            claim: None,
            queue: Vec::new(),
            refused: false,
            floor_due: 0,
            wall_jumped: false,
        }
    }

    fn view(&self) -> RowView<'_> {
        RowView {
            authority: authority(self.durable.authority),
            resource: resource(),
            floor: self.durable.floor,
            row: self.durable.row.as_ref(),
        }
    }

    pub(crate) fn epoch(&self) -> u64 {
        self.view().epoch()
    }

    pub(crate) fn is_held(&self) -> bool {
        self.durable
            .row
            .as_ref()
            .is_some_and(|row| row.held.is_some())
    }

    /// The present grant was waited for and has not been renewed.
    fn is_unclaimed(&self) -> bool {
        let granted = self.durable.row.as_ref().map(|row| row.grant_id);
        self.is_held()
            && self
                .claim
                .is_some_and(|wish| granted == Some(grant_id(wish)))
    }

    fn judged(&self, now: u8) -> Judged {
        let Some(ttl) = self.durable.row.as_ref().and_then(RowState::ttl) else {
            return Judged::default();
        };
        let elapsed = ticks(now - self.since);
        let claim_left = self
            .is_unclaimed()
            .then(|| ticks(CLAIM).saturating_sub(elapsed));
        let mut judged = match (self.bug, claim_left) {
            (Some(Bug::UnclaimedGrantNeverLapses), Some(_)) => Judged::default(),
            _ => Judged::held(ttl, elapsed, claim_left),
        };
        judged.expired |= self.wall_jumped;
        judged
    }

    /// A newcomer would be granted now.
    pub(crate) fn can_be_taken(&self, now: u8) -> bool {
        let op = acquire(0, WishId::MAX);
        let decision = transition(&self.view(), &self.judged(now), &ttl_bounds(), &op);
        matches!(decision, Ok(decision) if matches!(decision.outcome, TransitionOutcome::Granted(_)))
    }

    /// Carries out a request; answers its sender, and whoever was handed the resource by it.
    pub(crate) fn request(
        &mut self,
        step: &mut Step<'_>,
        from: HolderId,
        request: &Request,
    ) -> Vec<Reply> {
        if self.refused {
            step.seen.saw(Ingredient::RequestToRestored);
            return Vec::new();
        }
        if let Request::Renew { authority, epoch } | Request::Release { authority, epoch } = request
            && *authority != self.durable.authority
            && self.bug != Some(Bug::AuthorityIsNotAsked)
        {
            // It was meant for the store that this one was before.
            step.seen.saw(Ingredient::RequestOfAnEarlierAuthority);
            let denied = Answer::Denied {
                wish: None,
                epoch: Some(*epoch),
            };
            return vec![(from, denied)];
        }
        let mut replies = Vec::new();
        match request {
            Request::Acquire { wish } => {
                if self.is_mine(*wish) || !self.advance(step, &mut replies) {
                    replies.push((from, self.acquire(step, from, *wish, false)));
                } else {
                    replies.push((from, denied_wish(*wish)));
                }
            }
            Request::AcquireWait { wish } => {
                self.queue.retain(|(_, waiting)| waiting != wish);
                if self.is_mine(*wish) || self.queue.is_empty() && self.can_be_taken(step.now) {
                    replies.push((from, self.acquire(step, from, *wish, false)));
                } else {
                    self.advance(step, &mut replies);
                    self.queue.push((from, *wish));
                }
            }
            Request::Renew { authority, epoch } => {
                let renew = LeaseOp::Renew {
                    holder: principal(from),
                    epoch: *epoch,
                };
                let outcome = self.apply(step, &renew, None);
                replies.push((
                    from,
                    match outcome {
                        Some(TransitionOutcome::Renewed) => Answer::Renewed {
                            authority: *authority,
                            epoch: *epoch,
                        },
                        _ => Answer::Denied {
                            wish: None,
                            epoch: Some(*epoch),
                        },
                    },
                ));
            }
            Request::Release { epoch, .. } => {
                let epoch = match self.bug {
                    Some(Bug::ReleaseIgnoresTheEpoch) => self.epoch(),
                    _ => *epoch,
                };
                let release = LeaseOp::Release {
                    holder: principal(from),
                    epoch,
                };
                self.end(step, &release, Some(request), &mut replies);
            }
            Request::Cancel { wish } => {
                let waiting = self.queue.len();
                self.queue.retain(|(_, waiting)| waiting != wish);
                if self.queue.len() < waiting {
                    step.seen.saw(Ingredient::CancelledPlace);
                }
                let cancel = LeaseOp::Cancel {
                    candidate: principal(from),
                    grant_id: grant_id(*wish),
                };
                self.end(step, &cancel, Some(request), &mut replies);
            }
        }
        replies
    }

    pub(crate) fn revoke(&mut self, step: &mut Step<'_>) -> Vec<Reply> {
        let mut replies = Vec::new();
        step.truth.revoked(self.epoch());
        self.end(step, &revoke(self.epoch()), None, &mut replies);
        replies
    }

    /// Ends an ownership, and hands the resource over in the same step.
    fn end(
        &mut self,
        step: &mut Step<'_>,
        op: &LeaseOp,
        request: Option<&Request>,
        replies: &mut Vec<Reply>,
    ) {
        let ended = match self.apply(step, op, request) {
            Some(TransitionOutcome::Released) => None,
            Some(TransitionOutcome::Cancelled) => Some(Ingredient::CancelledGrant),
            Some(TransitionOutcome::Revoked) => Some(Ingredient::Revoked),
            _ => return,
        };
        if let Some(ended) = ended {
            step.seen.saw(ended);
        }
        if self.advance(step, replies) {
            step.seen.saw(Ingredient::HandedOver);
        }
    }

    /// Grants to the head of the queue if the resource can be taken. `true` when it did.
    pub(crate) fn advance(&mut self, step: &mut Step<'_>, replies: &mut Vec<Reply>) -> bool {
        if self.queue.is_empty() || self.refused || !self.can_be_taken(step.now) {
            return false;
        }
        let (holder, wish) = self.queue.remove(0);
        let answer = self.acquire(step, holder, wish, true);
        replies.push((holder, answer));
        true
    }

    fn is_mine(&self, wish: WishId) -> bool {
        self.durable
            .row
            .as_ref()
            .is_some_and(|row| row.grant_id == grant_id(wish))
    }

    fn acquire(
        &mut self,
        step: &mut Step<'_>,
        from: HolderId,
        wish: WishId,
        waited: bool,
    ) -> Answer {
        match self.apply(step, &acquire(from, wish), None) {
            Some(TransitionOutcome::Granted(fence)) => {
                if waited {
                    step.seen.saw(Ingredient::GrantedAfterWait);
                    self.claim = Some(wish);
                    step.truth.has_to_be_claimed();
                }
                Answer::Granted {
                    wish,
                    authority: self.durable.authority,
                    epoch: fence.epoch,
                    claim: waited,
                }
            }
            _ => denied_wish(wish),
        }
    }

    /// The core decides; what it says is kept, and told to the oracle. `None` when it refused the
    /// request itself, which no request of ours deserves.
    fn apply(
        &mut self,
        step: &mut Step<'_>,
        op: &LeaseOp,
        request: Option<&Request>,
    ) -> Option<TransitionOutcome> {
        let mut judged = self.judged(step.now);
        let mut op = op.clone();
        let mut minted = None;
        if let (Some(Bug::RetryMintsASecondGrant), LeaseOp::Acquire { grant_id, .. }) =
            (self.bug, &mut op)
            && self
                .durable
                .row
                .as_ref()
                .is_some_and(|row| row.grant_id == *grant_id)
        {
            minted = Some(*grant_id);
            *grant_id = GrantId::from_bytes([0xff; 16]);
            judged.expired = true;
        }
        let before = self.epoch();
        let decision = transition(&self.view(), &judged, &ttl_bounds(), &op).ok()?;
        self.see(step, &op, &decision);
        let changed = match decision.effect {
            Effect::Keep => false,
            Effect::Rearm(row) => {
                self.durable.row = Some(row);
                self.since = step.now;
                if self.bug != Some(Bug::ClaimOutlivesItsRenewal) {
                    self.claim = None;
                }
                false
            }
            Effect::Replace(mut row) => {
                if let Some(grant_id) = minted {
                    row.grant_id = grant_id;
                }
                if self.bug == Some(Bug::ReleaseKeepsTheEpoch) && row.held.is_none() {
                    row.epoch = before;
                }
                self.durable.row = Some(row);
                self.since = step.now;
                self.claim = None;
                true
            }
        };
        if changed && self.epoch() <= before {
            step.truth.breaks(Broken::EndWithoutANewEpoch);
        }
        self.tell(step, &op, &decision.outcome, request, changed, minted);
        Some(decision.outcome)
    }

    /// Counts what this step shows. The row is still as it was before it.
    fn see(&self, step: &Step<'_>, op: &LeaseOp, decision: &Decision) {
        use Ingredient as Saw;
        let row = self.durable.row.as_ref();
        let seen = step.seen;
        match (op, &decision.outcome, &decision.effect) {
            (LeaseOp::Acquire { grant_id, .. }, TransitionOutcome::Denied(..), _)
                if row.is_some_and(|row| row.grant_id == *grant_id) =>
            {
                seen.saw(Saw::RetryAfterEnd);
            }
            (LeaseOp::Acquire { .. }, _, Effect::Rearm(_)) => seen.saw(Saw::RetryFoundGrant),
            (LeaseOp::Acquire { grant_id, .. }, _, Effect::Replace(_)) => {
                if step.truth.was_granted(wish_of(*grant_id)) {
                    seen.saw(Saw::ForgottenWish);
                }
                match row {
                    None if self.durable.floor > 0 => seen.saw(Saw::GrantedAfterDrop),
                    Some(row) if row.held.is_some() => seen.saw(Saw::TakenOver),
                    _ => {}
                }
                if self.is_unclaimed() {
                    seen.saw(Saw::ClaimLapsed);
                }
            }
            (LeaseOp::Renew { .. }, TransitionOutcome::Renewed, _) => {
                seen.saw(Saw::Renewed);
                if self.is_unclaimed() {
                    seen.saw(Saw::Claimed);
                }
            }
            (LeaseOp::Renew { .. }, TransitionOutcome::Denied(..), _) => {
                seen.saw(Saw::LateRenewal);
            }
            _ => {}
        }
    }

    fn tell(
        &self,
        step: &mut Step<'_>,
        op: &LeaseOp,
        outcome: &TransitionOutcome,
        request: Option<&Request>,
        changed: bool,
        minted: Option<GrantId>,
    ) {
        let truth = &mut *step.truth;
        match (outcome, op) {
            (
                TransitionOutcome::Granted(fence),
                LeaseOp::Acquire {
                    grant_id,
                    candidate,
                    ..
                },
            ) if changed => {
                truth.taken_over(step.now);
                let wish = wish_of(minted.unwrap_or(*grant_id));
                truth.granted(
                    wish,
                    Owner {
                        holder: holder_of(candidate),
                        authority: self.durable.authority,
                        epoch: fence.epoch,
                        wish,
                        armed: step.now,
                        claimed: true,
                    },
                );
            }
            (TransitionOutcome::Granted(fence), _) => truth.renewed(fence.epoch, step.now),
            (TransitionOutcome::Renewed, LeaseOp::Renew { epoch, .. }) => {
                truth.renewed(*epoch, step.now)
            }
            (
                TransitionOutcome::Released
                | TransitionOutcome::Cancelled
                | TransitionOutcome::Revoked,
                _,
            ) => {
                truth.ended_by(request);
            }
            _ => {}
        }
    }

    /// A protected write reaches the resource, which sees the row.
    ///
    /// `None` when nobody has adopted the store: it serves nobody.
    pub(crate) fn check(
        &self,
        writer: HolderId,
        claimed: HolderId,
        of: u8,
        epoch: u64,
    ) -> Option<Result<(), FenceRejection>> {
        let fence = Fence {
            authority: authority(of),
            resource: resource().clone(),
            epoch,
            holder: principal(claimed),
        };
        let writer = match self.bug {
            Some(Bug::WriterIsNotAsked) => principal(claimed),
            _ => principal(writer),
        };
        (!self.refused).then(|| check_fence(&self.view(), &fence, &writer))
    }

    pub(crate) fn restart(&mut self, now: u8) {
        self.since = now;
        self.claim = None;
        self.queue.clear();
    }

    /// Drops a free row behind the floor.
    pub(crate) fn drop_row(&mut self) {
        if let Some(row) = self.durable.row.take() {
            match self.bug {
                Some(Bug::FloorRaisedAfterTheDrop) => self.floor_due = row.epoch,
                _ => self.durable.floor = floor_behind(self.durable.floor, row.epoch),
            }
        }
    }

    pub(crate) fn raise_floor(&mut self) {
        self.durable.floor = floor_behind(self.durable.floor, self.floor_due);
        self.floor_due = 0;
    }

    pub(crate) fn restore(&mut self, now: u8) {
        if let Some(backup) = self.backup.take() {
            self.durable = backup;
            self.restart(now);
            self.refused = self.bug != Some(Bug::RestoreKeepsTheAuthority);
        }
    }

    /// An operator gives a restored store a new authority; its leases end, as by a revoke.
    pub(crate) fn adopt(&mut self, seen: &Seen, highest_authority: u8) {
        self.durable.authority = highest_authority + 1;
        let revoke = revoke(self.epoch());
        let decision = transition(&self.view(), &Judged::default(), &ttl_bounds(), &revoke);
        if let Ok(Effect::Replace(row)) = decision.map(|decision| decision.effect) {
            self.durable.row = Some(row);
            seen.saw(Ingredient::AdoptedWhileHeld);
        }
        self.refused = false;
    }
}

fn denied_wish(wish: WishId) -> Answer {
    Answer::Denied {
        wish: Some(wish),
        epoch: None,
    }
}

fn acquire(holder: HolderId, wish: WishId) -> LeaseOp {
    LeaseOp::Acquire {
        candidate: principal(holder),
        ttl: ttl(),
        grant_id: grant_id(wish),
    }
}

fn revoke(epoch: u64) -> LeaseOp {
    LeaseOp::Revoke {
        operator: principal(0),
        epoch,
        hold_off: None,
    }
}

fn ticks(count: u8) -> Duration {
    Duration::from_millis(u64::from(count) * TICK_MS)
}

fn wish_of(grant_id: GrantId) -> WishId {
    grant_id.as_bytes()[0]
}

fn grant_id(wish: WishId) -> GrantId {
    GrantId::from_bytes([wish; 16])
}

fn authority(number: u8) -> Authority {
    Authority::from_bytes([number; 16])
}

#[allow(clippy::expect_used, reason = "three ticks are a ttl")]
fn ttl() -> Ttl {
    Ttl::from_millis(u64::from(TTL) * TICK_MS).expect("a ttl")
}

fn ttl_bounds() -> TtlBounds {
    TtlBounds::default()
}

#[allow(clippy::expect_used, reason = "a name")]
fn resource() -> &'static ResourceName {
    static RESOURCE: OnceLock<ResourceName> = OnceLock::new();
    RESOURCE.get_or_init(|| ResourceName::new("catalog/current").expect("a name"))
}

/// The name of a holder is one letter, so that it can be read back.
#[allow(clippy::expect_used, reason = "a letter is a name")]
fn principal(holder: HolderId) -> Principal {
    static NAMES: OnceLock<Vec<Principal>> = OnceLock::new();
    let names = NAMES.get_or_init(|| {
        let names = (b'a'..=b'z').map(|letter| Principal::new(char::from(letter).to_string()));
        names.collect::<Result<_, _>>().expect("letters")
    });
    names[usize::from(holder)].clone()
}

fn holder_of(principal: &Principal) -> HolderId {
    principal.as_bytes()[0] - b'a'
}
