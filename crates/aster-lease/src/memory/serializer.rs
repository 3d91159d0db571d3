//! The traits of a store, for the memory store.

use std::collections::BinaryHeap;
use std::sync::PoisonError;
use std::time::Duration;

use aster_core::{
    Authority, DenyReason, LeaseOp, LeaseSnapshot, Principal, ResourceName, TransitionOutcome,
};
use async_trait::async_trait;

use super::MemorySerializer;
use super::gate::Gated;
use super::rows::{Aftermath, Step, Terms};
use super::slot::Slot;
use crate::audit::{AuditEvent, AuditLog, AuditQuery, AuditRecord, detail_of};
use crate::error::SerializerError;
use crate::metrics::Metrics;
use crate::serializer::{LeaseSerializer, ListQuery};
use crate::waiting::{WaitOutcome, WaitRequest, Waiter};
use crate::watching::LeaseWatch;

/// What a caller is told to wait when a resource has too many watchers.
const WATCH_RETRY_AFTER: Duration = Duration::from_secs(1);

/// How many renewals a holder's engine sends in one call.
const BATCH_MAX: usize = 512;

impl MemorySerializer {
    /// Waits for as long as a protected closure is in its way.
    async fn transition_ungated(
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
        let mut after = Aftermath::default();
        let key = self.key(&resource);
        let answer = self
            .shard(key)
            .when_ungated(|rows| {
                let outcome = rows.transition(&self.terms(), key, &op, &mut after);
                self.note(&mut after);
                outcome
            })
            .await;
        Self::settle(after);
        Ok(answer.map_err(|_| SerializerError::Reentrant)??)
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
        let key = self.key(resource);
        let mut after = Aftermath::default();
        let mut rows = self.shard(key).lock();
        let answer = rows.transition(terms, key, op, &mut after);
        self.note(&mut after);
        drop(rows);
        Self::settle(after);
        match answer {
            Ok(outcome) => Ok(outcome?),
            Err(Gated::Reentrant) => Err(SerializerError::Reentrant),
            Err(Gated::Wait) => {
                let message = "a protected closure runs on the resource".to_owned();
                Err(SerializerError::Busy { message })
            }
        }
    }
}

#[async_trait]
impl LeaseSerializer for MemorySerializer {
    async fn transition(
        &self,
        resource: &str,
        op: LeaseOp,
    ) -> Result<TransitionOutcome, SerializerError> {
        let metrics = &self.inner.options.metrics;
        let (name, timer) = (op.name(), metrics.timer());
        let answer = self.transition_ungated(resource, op).await;
        metrics.transition(name, &answer, timer);
        answer
    }

    async fn acquire_wait(
        &self,
        resource: &str,
        request: WaitRequest,
    ) -> Result<WaitOutcome, SerializerError> {
        let metrics = &self.inner.options.metrics;
        let timer = metrics.timer();
        let answer = self.wait_for(resource, request).await;
        metrics.waited(&answer, timer);
        answer
    }

    async fn queue(&self, resource: &str) -> Result<Vec<Waiter>, SerializerError> {
        let resource = ResourceName::new(resource)?;
        let now = self.now();
        let key = self.key(&resource);
        let rows = self.shard(key).lock();
        let queue = rows
            .slot(key)
            .and_then(|slot| slot.rare.as_ref())
            .map(|rare| rare.queue.list(now));
        Ok(queue.unwrap_or_default())
    }

    fn batch_max(&self) -> usize {
        BATCH_MAX
    }

    async fn transition_many(
        &self,
        requests: Vec<(ResourceName, LeaseOp)>,
    ) -> Vec<Result<TransitionOutcome, SerializerError>> {
        let terms = self.terms();
        let metrics = &self.inner.options.metrics;
        requests
            .iter()
            .map(|(resource, op)| {
                let timer = metrics.timer();
                let answer = self.transition_at_once(&terms, resource, op);
                metrics.transition(op.name(), &answer, timer);
                answer
            })
            .collect()
    }

    async fn snapshot(&self, resource: &str) -> Result<LeaseSnapshot, SerializerError> {
        let resource = ResourceName::new(resource)?;
        let key = self.key(&resource);
        let rows = self.shard(key).lock();
        Ok(rows.snapshot(&self.terms(), rows.find(key), key))
    }

    async fn watch(&self, resource: &str) -> Result<LeaseWatch, SerializerError> {
        let resource = ResourceName::new(resource)?;
        let key = self.key(&resource);
        let mut rows = self.shard(key).lock();
        let watch = rows.watch(&self.terms(), key);
        watch.ok_or(SerializerError::Overloaded {
            retry_after: WATCH_RETRY_AFTER,
        })
    }

    async fn list(&self, query: ListQuery) -> Result<Vec<LeaseSnapshot>, SerializerError> {
        // The first names of a page are enough, however many rows there are.
        let mut first = BinaryHeap::with_capacity(query.page() + 1);
        for shard in &self.inner.shards {
            let rows = shard.lock();
            for slot in rows.iter().filter(|slot| is_asked_for(slot, &query)) {
                if first.len() == query.page() && first.peek() <= Some(&slot.name) {
                    continue;
                }
                first.push(slot.name.clone());
                if first.len() > query.page() {
                    first.pop();
                }
            }
        }
        let names = first.into_sorted_vec();
        let mut page = Vec::with_capacity(names.len());
        for name in names {
            page.push(self.snapshot(&name).await?);
        }
        Ok(page)
    }

    async fn authority(&self) -> Result<Authority, SerializerError> {
        Ok(self.inner.authority)
    }

    fn metrics(&self) -> Metrics {
        self.inner.options.metrics.clone()
    }
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

fn is_asked_for(slot: &Slot, query: &ListQuery) -> bool {
    slot.name.starts_with(&query.prefix)
        && query.after.as_ref().is_none_or(|after| slot.name > *after)
        && (!query.held_only || slot.row.held.is_some())
}

impl Step {
    /// The audit's line for a step that changed ownership.
    pub(super) fn record(&self, resource: &ResourceName, op: &LeaseOp) -> Option<AuditRecord> {
        let (event, epoch_carried, holder): (_, _, Option<Principal>) = match &self.outcome {
            TransitionOutcome::Granted(_) if self.changed.is_none() => return None,
            TransitionOutcome::Granted(fence) => {
                let taken = self.held_before.is_some();
                let event = if taken {
                    AuditEvent::TakenOver
                } else {
                    AuditEvent::Granted
                };
                (event, None, Some(fence.holder.clone()))
            }
            TransitionOutcome::Released => (
                AuditEvent::Released,
                Some(self.epoch_before),
                self.held_before.clone(),
            ),
            TransitionOutcome::Revoked => (
                AuditEvent::Revoked,
                Some(self.epoch_before),
                self.held_before.clone(),
            ),
            TransitionOutcome::Cancelled => (
                AuditEvent::Cancelled,
                Some(self.epoch_before),
                self.held_before.clone(),
            ),
            _ => return None,
        };
        Some(AuditRecord {
            id: 0,
            at_unix_ms: 0,
            event,
            resource: Some(resource.clone()),
            epoch_carried,
            epoch_current: self.epoch,
            holder,
            actor: Some(op.actor().to_owned()),
            detail: detail_of(op),
            count: 1,
        })
    }
}
