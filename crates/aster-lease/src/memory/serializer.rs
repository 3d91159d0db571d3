//! The traits of a store, for the memory store.

use aster_core::{
    Authority, DenyReason, ExpectedRevision, Fence, LeaseOp, LeaseSnapshot, Principal,
    RegisterDecision, RegisterWrite, ResourceName, TransitionOutcome, WriteId, check_fence,
    write_register,
};
use async_trait::async_trait;
use std::sync::PoisonError;
use std::time::Duration;

use super::MemorySerializer;
use super::shard::{Gated, Register, Step, Terms};
use crate::audit::{AuditEvent, AuditLog, AuditQuery, AuditRecord, detail_of};
use crate::entropy;
use crate::error::SerializerError;
use crate::registers::{RegisterError, RegisterValue, Registers};
use crate::serializer::{LeaseSerializer, ListQuery};

/// How many renewals a holder's engine sends in one call.
const BATCH_MAX: usize = 512;

impl MemorySerializer {
    fn terms(&self, now: Duration) -> Terms<'_> {
        let options = &self.inner.options;
        Terms {
            authority: self.inner.authority,
            bounds: &options.ttl_bounds,
            now,
            idle_retention: options.idle_retention,
            idle_rows_max: options.idle_rows_max / super::SHARDS,
        }
    }

    /// One of a batch: where a protected closure is in its way it is to be tried again, so that the
    /// others do not wait for it. Renewals are never in the way of a closure.
    fn transition_at_once(
        &self,
        terms: &Terms<'_>,
        resource: &ResourceName,
        op: &LeaseOp,
    ) -> Result<TransitionOutcome, SerializerError> {
        if !self.authorized(op, resource) {
            let snapshot = LeaseSnapshot::withheld(resource.clone());
            return Ok(TransitionOutcome::Denied(
                DenyReason::Unauthorized,
                snapshot,
            ));
        }
        let step = self.shard(resource).lock().transition(terms, resource, op);
        let step = match step {
            Ok(step) => step?,
            Err(Gated::Reentrant) => return Err(SerializerError::Reentrant),
            Err(Gated::Wait) => {
                let message = "a protected closure runs on the resource".to_owned();
                return Err(SerializerError::Busy { message });
            }
        };
        if let Some(record) = audit_record(resource, op, &step) {
            self.audit(record);
        }
        Ok(step.outcome)
    }
}

#[async_trait]
impl LeaseSerializer for MemorySerializer {
    async fn transition(
        &self,
        resource: &str,
        op: LeaseOp,
    ) -> Result<TransitionOutcome, SerializerError> {
        let resource = ResourceName::new(resource)?;
        if !self.authorized(&op, &resource) {
            let snapshot = LeaseSnapshot::withheld(resource);
            return Ok(TransitionOutcome::Denied(
                DenyReason::Unauthorized,
                snapshot,
            ));
        }
        let step = self
            .shard(&resource)
            .when_ungated(|state| state.transition(&self.terms(self.now()), &resource, &op))
            .await
            .map_err(|_| SerializerError::Reentrant)??;
        if let Some(record) = audit_record(&resource, &op, &step) {
            self.audit(record);
        }
        Ok(step.outcome)
    }

    fn batch_max(&self) -> usize {
        BATCH_MAX
    }

    async fn transition_many(
        &self,
        requests: Vec<(ResourceName, LeaseOp)>,
    ) -> Vec<Result<TransitionOutcome, SerializerError>> {
        let terms = self.terms(self.now());
        requests
            .iter()
            .map(|(resource, op)| self.transition_at_once(&terms, resource, op))
            .collect()
    }

    async fn snapshot(&self, resource: &str) -> Result<LeaseSnapshot, SerializerError> {
        let resource = ResourceName::new(resource)?;
        let state = self.shard(&resource).lock();
        let remaining = state.remaining(&resource, self.now());
        Ok(state
            .view(self.inner.authority, &resource)
            .snapshot(remaining))
    }

    async fn list(&self, query: ListQuery) -> Result<Vec<LeaseSnapshot>, SerializerError> {
        let mut names = Vec::new();
        for shard in &self.inner.shards {
            let state = shard.lock();
            let wanted = state.names().filter(|(name, row)| {
                name.starts_with(&query.prefix)
                    && query.after.as_ref().is_none_or(|after| *name > after)
                    && (!query.held_only || row.held.is_some())
            });
            names.extend(wanted.map(|(name, _)| name.clone()));
        }
        names.sort_unstable();
        names.truncate(query.page());
        let mut page = Vec::with_capacity(names.len());
        for name in names {
            page.push(self.snapshot(&name).await?);
        }
        Ok(page)
    }

    async fn authority(&self) -> Result<Authority, SerializerError> {
        Ok(self.inner.authority)
    }
}

#[async_trait]
impl Registers for MemorySerializer {
    async fn read(&self, resource: &str) -> Result<Option<RegisterValue>, SerializerError> {
        let resource = ResourceName::new(resource)?;
        let state = self.shard(&resource).lock();
        let register = state
            .slot(&resource)
            .and_then(|slot| slot.register.as_deref());
        Ok(register.map(|register| RegisterValue {
            value: register.value.clone(),
            value_revision: register.state.value_revision,
            epoch: register.epoch,
        }))
    }

    async fn compare_and_set_with_id(
        &self,
        fence: &Fence,
        writer: &str,
        expected: ExpectedRevision,
        value: Vec<u8>,
        write_id: WriteId,
    ) -> Result<u64, RegisterError> {
        let resource = &fence.resource;
        let mut write = RegisterWrite {
            expected,
            value,
            write_id,
        };
        let bytes_max = self.inner.options.register_bytes_max;
        let answer = self
            .shard(resource)
            .when_ungated(|state| {
                let view = state.view(self.inner.authority, resource);
                let current = view.epoch();
                if let Err(rejection) = check_fence(&view, fence, writer) {
                    return Ok(Answer::Rejected(rejection, current));
                }
                let Some(slot) = state.ungated(resource)? else {
                    return Ok(Answer::Rejected(
                        aster_core::FenceRejection::NotHeld,
                        current,
                    ));
                };
                let present = slot.register.as_ref().map(|register| &register.state);
                let decision = write_register(present, &write, bytes_max);
                if let Ok(RegisterDecision::Write(state)) = decision {
                    let value = std::mem::take(&mut write.value);
                    slot.register = Some(Box::new(Register {
                        value,
                        state,
                        epoch: fence.epoch,
                    }));
                }
                Ok(Answer::Decided(decision))
            })
            .await
            .map_err(|_| SerializerError::Reentrant)?;
        match answer {
            Answer::Rejected(rejection, current) => {
                self.audit_rejection(fence, writer, &rejection, current);
                Err(rejection.into())
            }
            Answer::Decided(decision) => match decision.map_err(SerializerError::from)? {
                RegisterDecision::Write(state) => Ok(state.value_revision),
                RegisterDecision::AlreadyWritten { value_revision } => Ok(value_revision),
                RegisterDecision::Conflict { current } => Err(RegisterError::Conflict { current }),
            },
        }
    }

    async fn compare_and_set(
        &self,
        fence: &Fence,
        writer: &str,
        expected: ExpectedRevision,
        value: Vec<u8>,
    ) -> Result<u64, RegisterError> {
        let write_id =
            entropy::write_id(&*self.inner.options.entropy).map_err(SerializerError::from)?;
        self.compare_and_set_with_id(fence, writer, expected, value, write_id)
            .await
    }
}

enum Answer {
    Rejected(aster_core::FenceRejection, u64),
    Decided(Result<RegisterDecision, aster_core::RuleError>),
}

#[async_trait]
impl AuditLog for MemorySerializer {
    async fn audit(&self, query: AuditQuery) -> Result<Vec<AuditRecord>, SerializerError> {
        Ok(self
            .inner
            .audit
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .page(&query))
    }
}

/// The audit's line for a transition that changed ownership.
fn audit_record(resource: &ResourceName, op: &LeaseOp, step: &Step) -> Option<AuditRecord> {
    let (event, epoch_carried, holder): (_, _, Option<Principal>) = match &step.outcome {
        TransitionOutcome::Granted(_) if !step.changed => return None,
        TransitionOutcome::Granted(fence) => {
            let taken = step.held_before.is_some();
            let event = if taken {
                AuditEvent::TakenOver
            } else {
                AuditEvent::Granted
            };
            (event, None, Some(fence.holder.clone()))
        }
        TransitionOutcome::Released => (
            AuditEvent::Released,
            Some(step.epoch_before),
            step.held_before.clone(),
        ),
        TransitionOutcome::Revoked => (
            AuditEvent::Revoked,
            Some(step.epoch_before),
            step.held_before.clone(),
        ),
        TransitionOutcome::Cancelled => (
            AuditEvent::Cancelled,
            Some(step.epoch_before),
            step.held_before.clone(),
        ),
        _ => return None,
    };
    Some(AuditRecord {
        id: 0,
        at_unix_ms: 0,
        event,
        resource: Some(resource.clone()),
        epoch_carried,
        epoch_current: step.epoch,
        holder,
        actor: Some(op.actor().to_owned()),
        detail: detail_of(op),
        count: 1,
    })
}
