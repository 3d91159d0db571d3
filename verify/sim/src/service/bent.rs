//! Planted bugs of the serializer.

use std::time::Duration;

use aster_core::{DenyReason, Fence, LeaseOp, ResourceName, TransitionOutcome};
use aster_lease::{LeaseSerializer, SerializerError, WaitOutcome, WaitRequest};

use super::Service;
use crate::bug::Bug;
use crate::wire::unavailable;

/// How long a call without an order sleeps before it tries again.
const DISORDER_MS: u64 = 300;

impl Service {
    /// `None`: nothing is planted here.
    pub(super) async fn bent_transition(
        &self,
        resource: &ResourceName,
        op: &LeaseOp,
    ) -> Option<Result<TransitionOutcome, SerializerError>> {
        match op {
            LeaseOp::Release { .. } if self.has(Bug::ReleaseForgotten) && self.chance(300) => {
                Some(Ok(TransitionOutcome::Released))
            }
            LeaseOp::Acquire { .. } if self.has(Bug::EndKeepsEpoch) => {
                let before = self.store().snapshot(resource).await.ok()?;
                let mut answer = self.store().transition(resource, op.clone()).await;
                if let Ok(TransitionOutcome::Granted(fence)) = &mut answer
                    && !before.held
                    && before.epoch > 1
                {
                    fence.epoch = before.epoch;
                }
                Some(answer)
            }
            LeaseOp::Revoke {
                operator, epoch, ..
            } if self.has(Bug::HoldOffForgotten) => {
                let forgetful = LeaseOp::Revoke {
                    operator: operator.clone(),
                    epoch: *epoch,
                    hold_off: None,
                };
                Some(self.store().transition(resource, forgetful).await)
            }
            LeaseOp::Acquire { candidate, ttl, .. } if self.has(Bug::RetryMintsAgain) => {
                let store = self.store();
                let before = store.snapshot(resource).await.ok()?;
                let answer = store.transition(resource, op.clone()).await;
                let Ok(TransitionOutcome::Granted(fence)) = &answer else {
                    return Some(answer);
                };
                if before.epoch != fence.epoch {
                    return Some(answer);
                }
                let release = LeaseOp::Release {
                    holder: candidate.clone(),
                    epoch: fence.epoch,
                };
                let _released = store.transition(resource, release).await;
                let again = LeaseOp::Acquire {
                    candidate: candidate.clone(),
                    ttl: *ttl,
                    grant_id: self.fresh_grant_id(),
                };
                Some(store.transition(resource, again).await)
            }
            _ => None,
        }
    }

    pub(super) async fn wait_in_disorder(
        &self,
        resource: &ResourceName,
        request: &WaitRequest,
    ) -> Result<WaitOutcome, SerializerError> {
        loop {
            match self.store().transition(resource, request.acquire()).await? {
                TransitionOutcome::Granted(fence) => {
                    return Ok(WaitOutcome::Granted { fence, claim: None });
                }
                TransitionOutcome::Denied(DenyReason::HeldByOther, _) => {
                    let pause = Duration::from_millis(1 + self.below(DISORDER_MS));
                    tokio::time::sleep(pause).await;
                }
                TransitionOutcome::Denied(reason, snapshot) => {
                    return Ok(WaitOutcome::Denied(reason, snapshot));
                }
                other => return Err(unavailable(&format!("{other:?}"))),
            }
        }
    }

    /// A planted bug: the serializer looks after every lease for ever.
    pub(super) fn renew_the_dead(&self, fence: &Fence, ttl_ms: u64) {
        if !self.has(Bug::DeadLeasesRenewed) {
            return;
        }
        let (store, fence) = (self.store(), fence.clone());
        tokio::runtime::Handle::current().spawn(async move {
            loop {
                tokio::time::sleep(Duration::from_millis(ttl_ms / 2)).await;
                let op = LeaseOp::Renew {
                    holder: fence.holder.clone(),
                    epoch: fence.epoch,
                };
                match store.transition(&fence.resource, op).await {
                    Ok(TransitionOutcome::Renewed) => {}
                    _ => return,
                }
            }
        });
    }
}
