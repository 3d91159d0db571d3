//! The model's serializer, and its faults.

use std::collections::BTreeMap;

use aster_lease::{
    Authority, Decision, DenyReason, Effect, Fence, GrantId, HoldOffs, Judged, LeaseOp,
    LeaseSerializer, LeaseSnapshot, LeaseWatch, ListQuery, ResourceName, RowState, RowView,
    RuleError, SerializerError, TTL_MAX, TTL_MIN, TransitionOutcome, Ttl, TtlBounds, WaitOutcome,
    WaitRequest, Waiter, transition,
};
use async_trait::async_trait;

use super::{Fault, Slot, State, Store};

impl Store {
    fn name(&self, resource: &str) -> Result<ResourceName, SerializerError> {
        let text = match self.fault {
            Fault::FoldsCase => resource.to_lowercase(),
            Fault::AcceptsControlCharacters => resource.replace(char::is_control, "?"),
            _ => resource.to_owned(),
        };
        Ok(ResourceName::new(text)?)
    }

    /// The rule, with the model's fault in it.
    fn decide(
        &self,
        view: &RowView<'_>,
        judged: &Judged,
        op: &LeaseOp,
    ) -> Result<Decision, RuleError> {
        let (mut judged, mut op) = (*judged, op.clone());
        match (self.fault, &mut op) {
            (Fault::RenewsTheExpired, LeaseOp::Renew { .. }) => judged.expired = false,
            (Fault::ReleaseGoesByName, LeaseOp::Release { epoch, .. })
            | (Fault::RevokeIgnoresTheEpoch, LeaseOp::Revoke { epoch, .. }) => {
                *epoch = view.epoch()
            }
            (Fault::ClampsTheTtl, LeaseOp::Acquire { ttl, .. }) => {
                *ttl = Ttl::new(ttl.duration().clamp(TTL_MIN, TTL_MAX))?;
            }
            (Fault::GrantsTheIdAgain, LeaseOp::Acquire { grant_id, .. })
                if view
                    .row
                    .is_some_and(|row| row.grant_id == *grant_id && row.held.is_none()) =>
            {
                *grant_id = GrantId::from_bytes([255; 16]);
            }
            _ => {}
        }
        let decision = transition(view, &judged, &TtlBounds::default(), &op)?;
        Ok(self.spoil(view, &op, decision))
    }

    fn spoil(&self, view: &RowView<'_>, op: &LeaseOp, mut decision: Decision) -> Decision {
        let deny = |reason| Decision {
            outcome: TransitionOutcome::Denied(reason, view.snapshot(None)),
            effect: Effect::Keep,
        };
        let denied = match &decision.outcome {
            TransitionOutcome::Denied(reason, _) => Some(*reason),
            _ => None,
        };
        let is_retry = matches!(
            (op, &decision.effect),
            (LeaseOp::Acquire { .. }, Effect::Rearm(_))
        );
        match (self.fault, op, view.row) {
            (Fault::DeniesTheFree, LeaseOp::Acquire { .. }, Some(row)) if row.held.is_none() => {
                deny(DenyReason::HeldByOther)
            }
            (Fault::RetryIsHeldByOther, ..) if is_retry => deny(DenyReason::HeldByOther),
            (Fault::RetryDoesNotRenew, ..) if is_retry => Decision {
                effect: Effect::Keep,
                ..decision
            },
            (Fault::RetryMintsAnEpoch, _, Some(row)) if is_retry => {
                if let TransitionOutcome::Granted(fence) = &mut decision.outcome {
                    fence.epoch += 1;
                }
                let next = RowState {
                    epoch: row.epoch + 1,
                    ..row.clone()
                };
                Decision {
                    effect: Effect::Replace(next),
                    ..decision
                }
            }
            (Fault::SameHolderGetsIn, LeaseOp::Acquire { candidate, .. }, Some(row))
                if denied == Some(DenyReason::HeldByOther) && row.holder() == Some(candidate) =>
            {
                let (authority, resource) = (view.authority, view.resource.clone());
                let holder = candidate.clone();
                let fence = Fence {
                    authority,
                    resource,
                    epoch: row.epoch,
                    holder,
                };
                Decision {
                    outcome: TransitionOutcome::Granted(fence),
                    effect: Effect::Rearm(row.clone()),
                }
            }
            (Fault::DenialSpendsAnEpoch, _, Some(row)) if denied.is_some() => {
                let next = RowState {
                    epoch: row.epoch + 1,
                    ..row.clone()
                };
                Decision {
                    effect: Effect::Replace(next),
                    ..decision
                }
            }
            (Fault::HolderBeforeEpoch, LeaseOp::Renew { holder, .. }, Some(row))
                if denied == Some(DenyReason::EpochMismatch)
                    && row.holder().is_some_and(|current| current != holder) =>
            {
                deny(DenyReason::NotHolder)
            }
            (Fault::HoldOffKeepsAllOut, LeaseOp::Acquire { .. }, Some(row))
                if !row.hold_offs.is_empty() =>
            {
                deny(DenyReason::HeldOff)
            }
            _ => {
                self.spoil_row(view, op, &mut decision);
                decision
            }
        }
    }

    fn spoil_row(&self, view: &RowView<'_>, op: &LeaseOp, decision: &mut Decision) {
        let (Effect::Rearm(row) | Effect::Replace(row)) = &mut decision.effect else {
            return;
        };
        match (self.fault, op) {
            (Fault::ReleaseKeepsEpoch, LeaseOp::Release { epoch, .. }) => row.epoch = *epoch,
            (Fault::ForgetsTheHoldOff, LeaseOp::Acquire { .. }) => {
                row.hold_offs = HoldOffs::default();
            }
            (Fault::KeepsOneHoldOff, _) => {
                row.hold_offs = row.hold_offs.iter().last().cloned().into_iter().collect();
            }
            (Fault::RevisionStandsStill, LeaseOp::Renew { .. }) => row.revision -= 1,
            (Fault::TakeoverKeepsEpoch, LeaseOp::Acquire { .. }) => {
                if let (Some(old), TransitionOutcome::Granted(fence)) =
                    (view.row, &mut decision.outcome)
                {
                    (row.epoch, fence.epoch) = (old.epoch, old.epoch);
                }
            }
            _ => {}
        }
    }
}

impl Store {
    /// One step of the serializer, in the caller's lock.
    pub(super) fn step(
        &self,
        state: &mut State,
        resource: &ResourceName,
        op: &LeaseOp,
    ) -> Result<TransitionOutcome, SerializerError> {
        if self.fault == Fault::ExpiryFrees {
            let expired = state
                .rows
                .get(resource)
                .map(|slot| self.judge(state, slot).expired);
            if let (Some(true), Some(slot)) = (expired, state.rows.get_mut(resource)) {
                slot.row.held = None;
            }
        }
        Self::end_hold_offs(state, resource);
        let slot = state.rows.get(resource).cloned();
        let judged = slot
            .as_ref()
            .map_or_else(Judged::default, |slot| self.judge(state, slot));
        let decision = self.decide(&self.view(state, resource, slot.as_ref()), &judged, op)?;
        if let Effect::Rearm(row) | Effect::Replace(row) = decision.effect {
            let now = state.now;
            let is_rearmed = !matches!(
                (self.fault, &decision.outcome),
                (Fault::RenewalDoesNotRearm, TransitionOutcome::Renewed)
            );
            let was_claim = slot.as_ref().is_some_and(|slot| slot.is_claim);
            let (since, before) = slot.map_or((now, BTreeMap::new()), |slot| {
                (slot.since, slot.hold_offs_since)
            });
            let epochs = row.hold_offs.iter().map(|hold_off| hold_off.epoch);
            let hold_offs_since = epochs
                .map(|epoch| (epoch, before.get(&epoch).copied().unwrap_or(now)))
                .collect();
            let is_claim = was_claim
                && match self.fault {
                    Fault::ClaimsLapseThoughRenewed => {
                        decision.outcome == TransitionOutcome::Renewed
                    }
                    Fault::ClaimShortensTheNextGrant => {
                        decision.outcome != TransitionOutcome::Renewed
                    }
                    _ => false,
                };
            let slot = Slot {
                row,
                since: if is_rearmed { now } else { since },
                wall_jump_s: state.wall_jump_s,
                is_claim,
                hold_offs_since,
            };
            state.rows.insert(resource.clone(), slot);
            self.drop_idle(state);
        }
        Ok(decision.outcome)
    }
}

#[async_trait]
impl LeaseSerializer for Store {
    async fn transition(
        &self,
        resource: &str,
        op: LeaseOp,
    ) -> Result<TransitionOutcome, SerializerError> {
        let resource = self.name(resource)?;
        let mut state = self.lock();
        if matches!(op, LeaseOp::Acquire { .. }) && self.fault != Fault::PlainAcquireOvertakes {
            self.hand_over(&mut state, &resource);
        }
        let outcome = self.step(&mut state, &resource, &op)?;
        if !(self.fault == Fault::WatchMissesRevokes && outcome == TransitionOutcome::Revoked) {
            self.show(&mut state, &resource);
        }
        if self.fault != Fault::HandsOverAtExpiryOnly {
            self.hand_over(&mut state, &resource);
        }
        Ok(outcome)
    }

    async fn acquire_wait(
        &self,
        resource: &str,
        request: WaitRequest,
    ) -> Result<WaitOutcome, SerializerError> {
        let resource = self.name(resource)?;
        self.wait_in_line(resource, request).await
    }

    async fn queue(&self, resource: &str) -> Result<Vec<Waiter>, SerializerError> {
        let resource = self.name(resource)?;
        Ok(self.who_waits(&resource))
    }

    async fn watch(&self, resource: &str) -> Result<LeaseWatch, SerializerError> {
        let resource = self.name(resource)?;
        Ok(self.new_watch(resource))
    }

    async fn snapshot(&self, resource: &str) -> Result<LeaseSnapshot, SerializerError> {
        let resource = self.name(resource)?;
        let state = self.lock();
        Ok(self
            .view(&state, &resource, state.rows.get(&resource))
            .snapshot(None))
    }

    async fn transition_many(
        &self,
        requests: Vec<(ResourceName, LeaseOp)>,
    ) -> Vec<Result<TransitionOutcome, SerializerError>> {
        let mut answers = Vec::new();
        for (resource, op) in requests {
            answers.push(self.transition(&resource, op).await);
            if self.fault == Fault::BatchStopsAtAFailure
                && answers.last().is_some_and(Result::is_err)
            {
                break;
            }
        }
        answers
    }

    async fn list(&self, query: ListQuery) -> Result<Vec<LeaseSnapshot>, SerializerError> {
        let state = self.lock();
        let is_wanted = |name: &ResourceName, slot: &Slot| {
            (name.starts_with(&query.prefix) || self.fault == Fault::ListIgnoresThePrefix)
                && query.after.as_ref().is_none_or(|after| name > after)
                && (!query.held_only || slot.row.held.is_some())
        };
        let rows = state
            .rows
            .iter()
            .filter(|(name, slot)| is_wanted(name, slot));
        let rows = rows.map(|(name, slot)| self.view(&state, name, Some(slot)).snapshot(None));
        Ok(rows.take(query.page()).collect())
    }

    async fn authority(&self) -> Result<Authority, SerializerError> {
        Ok(self.authority)
    }
}
