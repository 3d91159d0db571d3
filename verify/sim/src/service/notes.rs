//! What the serializer's machine tells the oracle.

use std::sync::atomic::Ordering;
use std::time::Duration;

use aster_core::{
    DenyReason, Fence, GrantId, LeaseOp, LeaseSnapshot, ResourceName, TransitionOutcome,
};
use aster_lease::SerializerError;

use super::Service;
use crate::history::Event;

impl Service {
    pub(super) fn begin(
        &self,
        resource: &ResourceName,
        what: &'static str,
        grant: Option<GrantId>,
    ) -> u64 {
        let call = self.calls.fetch_add(1, Ordering::Relaxed);
        self.record(Event::Began {
            call,
            resource: resource.clone(),
            what,
            grant,
        });
        call
    }

    pub(super) fn note(
        &self,
        call: u64,
        resource: &ResourceName,
        op: &LeaseOp,
        answer: &Result<TransitionOutcome, SerializerError>,
    ) {
        let monotonic_us = self.clock.monotonic_us();
        let ended = |epoch, grant| Event::Ended {
            resource: resource.clone(),
            epoch,
            grant,
            how: op.name(),
            hold_off_ms: match op {
                LeaseOp::Revoke { hold_off, .. } => hold_off.map_or(0, millis),
                _ => 0,
            },
            monotonic_us,
        };
        let event = match (answer, op) {
            (Ok(TransitionOutcome::Granted(fence)), LeaseOp::Acquire { grant_id, ttl, .. }) => {
                self.renew_the_dead(fence, ttl.as_millis());
                self.granted(call, fence, *grant_id, ttl.as_millis(), false)
            }
            (Ok(TransitionOutcome::Renewed), LeaseOp::Renew { epoch, .. }) => Event::Renewed {
                resource: resource.clone(),
                epoch: *epoch,
                monotonic_us,
            },
            (
                Ok(TransitionOutcome::Released | TransitionOutcome::Revoked),
                LeaseOp::Release { epoch, .. } | LeaseOp::Revoke { epoch, .. },
            ) => ended(Some(*epoch), None),
            (Ok(TransitionOutcome::Cancelled), LeaseOp::Cancel { grant_id, .. }) => {
                ended(None, Some(*grant_id))
            }
            (Ok(TransitionOutcome::Denied(reason, snapshot)), _) => {
                self.denied(call, op.name(), *reason, snapshot)
            }
            (Ok(other), _) => self.failed(call, resource, op.name(), format!("{other:?}")),
            (Err(error), _) => self.failed(call, resource, op.name(), error.to_string()),
        };
        self.record(event);
    }

    pub(super) fn granted(
        &self,
        call: u64,
        fence: &Fence,
        grant: GrantId,
        ttl_ms: u64,
        is_claim: bool,
    ) -> Event {
        Event::Granted {
            call,
            resource: fence.resource.clone(),
            epoch: fence.epoch,
            grant,
            holder: fence.holder.clone(),
            ttl_ms,
            is_claim,
            monotonic_us: self.clock.monotonic_us(),
        }
    }

    pub(super) fn denied(
        &self,
        call: u64,
        what: &'static str,
        reason: DenyReason,
        snapshot: &LeaseSnapshot,
    ) -> Event {
        Event::Denied {
            call,
            resource: snapshot.resource.clone(),
            what,
            reason,
            epoch: snapshot.epoch,
            held: snapshot.held,
            ttl_ms: snapshot.ttl.map_or(0, millis),
            monotonic_us: self.clock.monotonic_us(),
        }
    }

    pub(super) fn failed(
        &self,
        call: u64,
        resource: &ResourceName,
        what: &'static str,
        error: String,
    ) -> Event {
        Event::Failed {
            call,
            resource: resource.clone(),
            what,
            error,
        }
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
