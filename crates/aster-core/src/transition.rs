//! Acquire, renew, release, revoke, cancel: the five ways in which a row changes.
//!
//! Serves the specification's "Connect the grant to enforcement": the serializer establishes one
//! ordering for grant, renew, release and revoke. [`transition`] is the step; the store's lock or
//! transaction is the ordering.

use core::fmt;
use core::time::Duration;

use serde::{Deserialize, Serialize};

use crate::error::{InvalidInput, RuleError};
use crate::fence::Fence;
use crate::hold_off::{HoldOff, HoldOffs};
use crate::id::GrantId;
use crate::name::Principal;
use crate::row::{EPOCH_MAX, LeaseSnapshot, RowState, RowView, Tenure, next_epoch};
use crate::ttl::{HOLD_OFF_MAX, Ttl, TtlBounds};

/// What is asked of a serializer. The actor in it is authenticated by whoever builds it: over a
/// network the server fills it in from the connection.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[non_exhaustive]
pub enum LeaseOp {
    /// Become the owner. The same `(candidate, ttl, grant_id)` again is a retry and finds its grant.
    Acquire {
        /// Who wants it.
        candidate: Principal,
        /// How long each grant and renewal lasts.
        ttl: Ttl,
        /// The id of this wish, the same for all its retries.
        grant_id: GrantId,
    },
    /// Restart the expiry of a lease that has not expired.
    Renew {
        /// Who holds it.
        holder: Principal,
        /// The granted epoch.
        epoch: u64,
    },
    /// Give it up, expired or not.
    Release {
        /// Who holds it.
        holder: Principal,
        /// The granted epoch.
        epoch: u64,
    },
    /// Take it away from its holder. Hold-offs of several holders run side by side, up to
    /// [`HOLD_OFFS_MAX`](crate::HOLD_OFFS_MAX) of a row, each for its own time; a revoke that asks for
    /// none leaves them running.
    Revoke {
        /// The operator who does it.
        operator: Principal,
        /// The epoch to end; a later one is left alone.
        epoch: u64,
        /// How long the old holder may not acquire: whole milliseconds up to [`HOLD_OFF_MAX`].
        hold_off: Option<Duration>,
    },
    /// Give up a grant that may or may not have been made: sent by a caller who stopped waiting
    /// before it saw the answer to its Acquire.
    Cancel {
        /// Who asked for it.
        candidate: Principal,
        /// The id of the wish.
        grant_id: GrantId,
    },
}

impl LeaseOp {
    /// Who acts: the candidate, the holder or the operator.
    #[must_use]
    pub fn actor(&self) -> &str {
        match self {
            LeaseOp::Acquire { candidate, .. } | LeaseOp::Cancel { candidate, .. } => candidate,
            LeaseOp::Renew { holder, .. } | LeaseOp::Release { holder, .. } => holder,
            LeaseOp::Revoke { operator, .. } => operator,
        }
    }

    /// `acquire`, `renew`, `release`, `revoke` or `cancel`.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            LeaseOp::Acquire { .. } => "acquire",
            LeaseOp::Renew { .. } => "renew",
            LeaseOp::Release { .. } => "release",
            LeaseOp::Revoke { .. } => "revoke",
            LeaseOp::Cancel { .. } => "cancel",
        }
    }
}

/// Why a serializer said no. A denial is an answer, not a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum DenyReason {
    /// Someone else, or another grant of the same holder, has it.
    HeldByOther,
    /// The row is at another epoch than the request.
    EpochMismatch,
    /// The request's identity is not the holder's.
    NotHolder,
    /// The ttl passed without a renewal. The row is still held until somebody takes it.
    Expired,
    /// Nobody holds it.
    NotHeld,
    /// The actor may not do this here.
    Unauthorized,
    /// An operator revoked the candidate's lease and keeps it out for a while.
    HeldOff,
    /// The candidate waited in the queue for as long as it wanted to, and others still had their
    /// turn. Only a queue says so, never [`transition`](fn@transition).
    WaitRanOut,
}

impl DenyReason {
    /// Its stable name, as metrics show it: `held_by_other`, ….
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            DenyReason::HeldByOther => "held_by_other",
            DenyReason::EpochMismatch => "epoch_mismatch",
            DenyReason::NotHolder => "not_holder",
            DenyReason::Expired => "expired",
            DenyReason::NotHeld => "not_held",
            DenyReason::Unauthorized => "unauthorized",
            DenyReason::HeldOff => "held_off",
            DenyReason::WaitRanOut => "wait_ran_out",
        }
    }
}

impl fmt::Display for DenyReason {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            DenyReason::HeldByOther => "held by another grant",
            DenyReason::EpochMismatch => "the resource is at another epoch",
            DenyReason::NotHolder => "not the holder",
            DenyReason::Expired => "the lease expired",
            DenyReason::NotHeld => "not held",
            DenyReason::Unauthorized => "not authorized",
            DenyReason::HeldOff => "kept out by a revoke for now",
            DenyReason::WaitRanOut => "still held by others when the wait ran out",
        })
    }
}

/// The serializer's answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum TransitionOutcome {
    /// The candidate owns the resource under this fence.
    Granted(Fence),
    /// The lease lasts another ttl.
    Renewed,
    /// The resource is free.
    Released,
    /// The resource is free, against its holder's will.
    Revoked,
    /// The resource is free; the grant was not wanted any more.
    Cancelled,
    /// No, and why, and what the row looked like (withheld from the unauthorized).
    Denied(DenyReason, LeaseSnapshot),
}

/// What the store's own clock says about the row, judged by the store just before the call and
/// inside the same lock or transaction.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Judged {
    /// A held row's ttl has passed since its last grant or renewal. A store may say `false` too
    /// long, never `true` too early.
    pub expired: bool,
    /// How long until `expired` becomes true, for the snapshot in a denial; `None` if unknown.
    pub remaining: Option<Duration>,
}

impl Judged {
    /// The judgement of a held row whose last grant or renewal was `elapsed` ago on the store's clock.
    ///
    /// `claim_left` is what is left of the claim time of a grant that was waited for and has not been
    /// renewed. It can only shorten that grant; without it the whole ttl counts.
    #[must_use]
    pub fn held(ttl: Ttl, elapsed: Duration, claim_left: Option<Duration>) -> Self {
        let left = ttl.duration().saturating_sub(elapsed);
        let left = claim_left.map_or(left, |claim_left| left.min(claim_left));
        Self {
            expired: left.is_zero(),
            remaining: Some(left),
        }
    }
}

/// What the store has to write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Effect {
    /// Nothing changes.
    Keep,
    /// Ownership stays; expiry restarts now. Need not survive a power loss.
    Rearm(RowState),
    /// Ownership changes. Must be durable before the outcome is answered; expiry starts now.
    Replace(RowState),
}

/// An answer and what has to be written before it may be given.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decision {
    /// The answer.
    pub outcome: TransitionOutcome,
    /// The change that goes with it.
    pub effect: Effect,
}

/// The rule of ownership changes.
///
/// Denials are judged in the order epoch, held, holder, expired. Every hold-off of the row that comes
/// in runs: the store has dropped what its clock judges over ([`HoldOffs::retain`]).
///
/// # Errors
///
/// [`RuleError`] when the operation carries a ttl or hold-off outside the bounds, or when the
/// resource has no epochs left. Nothing changes then.
pub fn transition(
    view: &RowView<'_>,
    judged: &Judged,
    bounds: &TtlBounds,
    op: &LeaseOp,
) -> Result<Decision, RuleError> {
    let step = Step { view, judged };
    match op {
        LeaseOp::Acquire {
            candidate,
            ttl,
            grant_id,
        } => {
            bounds.check(*ttl)?;
            step.acquire(candidate, *ttl, *grant_id)
        }
        LeaseOp::Renew { holder, epoch } => step.renew(holder, *epoch),
        LeaseOp::Release { holder, epoch } => step.release(holder, *epoch),
        LeaseOp::Revoke {
            epoch, hold_off, ..
        } => step.revoke(*epoch, *hold_off),
        LeaseOp::Cancel {
            candidate,
            grant_id,
        } => step.cancel(candidate, *grant_id),
    }
}

/// What a denied Release, Revoke or Cancel means to the caller who sent it: `true` when the epoch
/// (or the grant) had ended already, which is what the caller wanted.
#[must_use]
pub fn retry_outcome(op: &LeaseOp, reason: DenyReason, snapshot: &LeaseSnapshot) -> bool {
    match op {
        LeaseOp::Release { epoch, .. } | LeaseOp::Revoke { epoch, .. } => {
            reason == DenyReason::EpochMismatch && snapshot.epoch > *epoch
        }
        LeaseOp::Cancel { .. } => {
            matches!(reason, DenyReason::NotHeld | DenyReason::HeldByOther)
        }
        LeaseOp::Acquire { .. } | LeaseOp::Renew { .. } => false,
    }
}

struct Step<'a> {
    view: &'a RowView<'a>,
    judged: &'a Judged,
}

type Answer = Result<Decision, RuleError>;

impl Step<'_> {
    fn acquire(&self, candidate: &Principal, ttl: Ttl, grant_id: GrantId) -> Answer {
        if let Some(row) = self.view.row {
            if row.grant_id == grant_id {
                return self.acquire_again(row, candidate, ttl);
            }
            if row.held.is_some() && !self.judged.expired {
                return Ok(self.deny(DenyReason::HeldByOther));
            }
            if row.hold_offs.keep_out(candidate) {
                return Ok(self.deny(DenyReason::HeldOff));
            }
        }
        let epoch = next_epoch(self.view.epoch())?;
        if epoch == EPOCH_MAX {
            // The last epoch is kept for the end of a grant, so that a held row can be released.
            return Err(RuleError::EpochExhausted {
                epoch: self.view.epoch(),
            });
        }
        Ok(Decision {
            outcome: TransitionOutcome::Granted(self.fence(epoch, candidate)),
            effect: Effect::Replace(RowState {
                epoch,
                revision: self.next_armed_revision()?,
                grant_id,
                held: Some(Tenure {
                    holder: candidate.clone(),
                    ttl,
                }),
                // They outlive other grants until their own time has passed.
                hold_offs: self
                    .view
                    .row
                    .map_or_else(HoldOffs::default, |row| row.hold_offs.clone()),
            }),
        })
    }

    /// The row's own grant id came again: the first reply was lost, or this is a late duplicate of a
    /// grant that has ended. It is never granted a second time.
    fn acquire_again(&self, row: &RowState, candidate: &Principal, ttl: Ttl) -> Answer {
        let Some(tenure) = &row.held else {
            return Ok(self.deny(DenyReason::NotHeld));
        };
        if tenure.holder != *candidate || tenure.ttl != ttl {
            return Ok(self.deny(DenyReason::HeldByOther));
        }
        if self.judged.expired {
            return Ok(self.deny(DenyReason::Expired));
        }
        Ok(Decision {
            outcome: TransitionOutcome::Granted(self.fence(row.epoch, candidate)),
            effect: self.rearm(row)?,
        })
    }

    fn renew(&self, holder: &Principal, epoch: u64) -> Answer {
        let row = match self.held_row(epoch, Some(holder)) {
            Ok(row) => row,
            Err(reason) => return Ok(self.deny(reason)),
        };
        if self.judged.expired {
            return Ok(self.deny(DenyReason::Expired));
        }
        Ok(Decision {
            outcome: TransitionOutcome::Renewed,
            effect: self.rearm(row)?,
        })
    }

    fn release(&self, holder: &Principal, epoch: u64) -> Answer {
        match self.held_row(epoch, Some(holder)) {
            Ok(row) => self.free(row, TransitionOutcome::Released, None),
            Err(reason) => Ok(self.deny(reason)),
        }
    }

    fn revoke(&self, epoch: u64, hold_off: Option<Duration>) -> Answer {
        if let Some(duration) = hold_off {
            check_hold_off(duration)?;
        }
        let row = match self.held_row(epoch, None) {
            Ok(row) => row,
            Err(reason) => return Ok(self.deny(reason)),
        };
        self.free(row, TransitionOutcome::Revoked, hold_off)
    }

    fn cancel(&self, candidate: &Principal, grant_id: GrantId) -> Answer {
        let Some((row, tenure)) = self
            .view
            .row
            .and_then(|row| row.held.as_ref().map(|tenure| (row, tenure)))
        else {
            return Ok(self.deny(DenyReason::NotHeld));
        };
        if row.grant_id != grant_id {
            return Ok(self.deny(DenyReason::HeldByOther));
        }
        if tenure.holder != *candidate {
            return Ok(self.deny(DenyReason::NotHolder));
        }
        self.free(row, TransitionOutcome::Cancelled, None)
    }

    /// The row if it is at `epoch`, held, and held by `holder` when one is asked for.
    fn held_row(&self, epoch: u64, holder: Option<&Principal>) -> Result<&RowState, DenyReason> {
        if self.view.epoch() != epoch {
            return Err(DenyReason::EpochMismatch);
        }
        let row = self.view.row.ok_or(DenyReason::NotHeld)?;
        let current = row.holder().ok_or(DenyReason::NotHeld)?;
        if holder.is_some_and(|holder| holder != current) {
            return Err(DenyReason::NotHolder);
        }
        Ok(row)
    }

    /// The end of a grant. Its holder is kept out for `hold_off`; who is kept out already stays so.
    fn free(
        &self,
        row: &RowState,
        outcome: TransitionOutcome,
        hold_off: Option<Duration>,
    ) -> Answer {
        let epoch = next_epoch(row.epoch)?;
        let mut hold_offs = row.hold_offs.clone();
        if let (Some(duration), Some(holder)) = (hold_off, row.holder()) {
            hold_offs.push(HoldOff {
                holder: holder.clone(),
                duration,
                epoch,
            });
        }
        Ok(Decision {
            outcome,
            effect: Effect::Replace(RowState {
                epoch,
                revision: self.next_revision()?,
                grant_id: row.grant_id,
                held: None,
                hold_offs,
            }),
        })
    }

    fn rearm(&self, row: &RowState) -> Result<Effect, RuleError> {
        Ok(Effect::Rearm(RowState {
            revision: self.next_armed_revision()?,
            ..row.clone()
        }))
    }

    fn deny(&self, reason: DenyReason) -> Decision {
        let snapshot = self.view.snapshot(self.judged.remaining);
        Decision {
            outcome: TransitionOutcome::Denied(reason, snapshot),
            effect: Effect::Keep,
        }
    }

    fn fence(&self, epoch: u64, holder: &Principal) -> Fence {
        Fence {
            authority: self.view.authority,
            resource: self.view.resource.clone(),
            epoch,
            holder: holder.clone(),
        }
    }

    /// Like the last epoch, the last revision is kept for the end of a grant.
    fn next_armed_revision(&self) -> Result<u64, RuleError> {
        match self.next_revision()? {
            EPOCH_MAX => Err(RuleError::EpochExhausted {
                epoch: self.view.epoch(),
            }),
            revision => Ok(revision),
        }
    }

    fn next_revision(&self) -> Result<u64, RuleError> {
        let revision = self.view.row.map_or(0, |row| row.revision);
        match revision.checked_add(1) {
            Some(next) if next <= EPOCH_MAX => Ok(next),
            _ => Err(RuleError::EpochExhausted {
                epoch: self.view.epoch(),
            }),
        }
    }
}

fn check_hold_off(duration: Duration) -> Result<(), InvalidInput> {
    if duration > HOLD_OFF_MAX {
        return Err(InvalidInput::OutOfBounds {
            what: "hold-off",
            given: duration,
            min: Duration::from_millis(1),
            max: HOLD_OFF_MAX,
        });
    }
    match Ttl::new(duration) {
        Ok(_) => Ok(()),
        Err(_) => Err(InvalidInput::NotWholeMillis {
            what: "hold-off",
            duration,
        }),
    }
}
