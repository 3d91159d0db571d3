//! Waiting in the memory store's queue: the caller's side.

use std::sync::Arc;
use std::time::Duration;

use aster_core::{DenyReason, LeaseSnapshot, ResourceName, TransitionOutcome};
use tokio::runtime::Handle;

use super::MemorySerializer;
use super::hand_over::{Joined, Looked};
use super::queue::{Seat, Told};
use super::rows::{Aftermath, Key, Rows, Terms};
use crate::error::SerializerError;
use crate::waiting::{WAIT_MAX, WaitOutcome, WaitRequest};

/// What a caller is told to wait when the queue is full.
const FULL_RETRY_AFTER: Duration = Duration::from_secs(1);

impl MemorySerializer {
    pub(super) async fn wait_for(
        &self,
        resource: &str,
        request: WaitRequest,
    ) -> Result<WaitOutcome, SerializerError> {
        let resource = ResourceName::new(resource)?;
        if !self.authorized(&request.acquire(), &resource) {
            let snapshot = LeaseSnapshot::withheld(resource);
            return Ok(WaitOutcome::Denied(DenyReason::Unauthorized, snapshot));
        }
        if Handle::try_current().is_err() {
            return Err(SerializerError::Unsupported {
                operation: "acquire_wait outside a tokio runtime",
            });
        }
        let seat = Arc::new(Seat::default());
        let key = self.key(&resource);
        let joined = self.in_lock(key, |rows, terms, after| {
            rows.join(terms, key, &request, &seat, after)
        })?;
        let (ticket, first_nap) = match joined {
            Joined::Decided(TransitionOutcome::Granted(fence)) => {
                return Ok(WaitOutcome::Granted { fence, claim: None });
            }
            Joined::Decided(TransitionOutcome::Denied(reason, snapshot)) => {
                return Ok(WaitOutcome::Denied(reason, snapshot));
            }
            Joined::Decided(other) => {
                return Err(SerializerError::Unexpected {
                    message: format!("an Acquire was answered with {other:?}"),
                });
            }
            Joined::Full => {
                return Err(SerializerError::Overloaded {
                    retry_after: FULL_RETRY_AFTER,
                });
            }
            Joined::Waits { ticket, nap } => (ticket, nap),
        };
        let _counted = self.inner.options.metrics.waiter();
        let mut place = Place {
            store: self,
            key,
            ticket,
            seat,
            is_settled: false,
        };
        let ends = self.now().saturating_add(request.wait.min(WAIT_MAX));
        let mut nap = first_nap;
        loop {
            let left = ends.saturating_sub(self.now());
            // The bell or the timer: either way the row is looked at.
            let _rung = tokio::time::timeout(nap.min(left), place.seat.rung()).await;
            match place.look() {
                Looked::Told => return place.settle(),
                Looked::Reentrant => return Err(SerializerError::Reentrant),
                Looked::Nap(_) if self.now() >= ends => return place.settle(),
                Looked::Nap(next) => nap = next,
            }
        }
    }

    /// Runs `step` under the resource's lock, and afterwards what it leaves to do.
    pub(super) fn in_lock<R>(
        &self,
        key: Key<'_>,
        step: impl FnOnce(&mut Rows, &Terms<'_>, &mut Aftermath) -> R,
    ) -> R {
        let mut after = Aftermath::default();
        let mut rows = self.shard(key).lock();
        let answer = step(&mut rows, &self.terms(), &mut after);
        self.note(&mut after);
        drop(rows);
        Self::settle(after);
        answer
    }
}

/// A place in the queue. Dropping it leaves the queue, also when the caller's future is dropped.
struct Place<'a> {
    store: &'a MemorySerializer,
    key: Key<'a>,
    ticket: u64,
    seat: Arc<Seat>,
    is_settled: bool,
}

impl Place<'_> {
    fn look(&self) -> Looked {
        self.store.in_lock(self.key, |rows, terms, after| {
            rows.look(terms, self.key, self.ticket, &self.seat, after)
        })
    }

    /// The last step: what the caller was told, or leaving the queue untold, judged in one lock.
    fn settle(&mut self) -> Result<WaitOutcome, SerializerError> {
        let answer = self.store.in_lock(self.key, |rows, terms, after| {
            let denied = |rows: &Rows, reason| {
                let snapshot = rows.snapshot(terms, rows.find(self.key), self.key);
                Ok(WaitOutcome::Denied(reason, snapshot))
            };
            match self.seat.told() {
                Some(Told::Granted(fence)) => match rows.claimable(terms, self.key, fence.epoch) {
                    Some(claim) => Ok(WaitOutcome::Granted {
                        fence,
                        claim: Some(claim),
                    }),
                    None => {
                        // It lapsed before the caller could be told; the next one need not wait.
                        if let Some(id) = rows.find(self.key) {
                            let _gated = rows.advance(terms, id, after);
                        }
                        denied(rows, DenyReason::Expired)
                    }
                },
                Some(Told::Denied(reason, snapshot)) => Ok(WaitOutcome::Denied(reason, snapshot)),
                Some(Told::Failed(error)) => Err(error.into()),
                Some(Told::Replaced) => Err(SerializerError::Unavailable {
                    message: "the same wish was asked for again: the newer call waits".to_owned(),
                    source: None,
                }),
                Some(Told::Restarted) => Err(SerializerError::Unavailable {
                    message: "the serializer restarted and forgot its queue: ask again".to_owned(),
                    source: None,
                }),
                Some(Told::Withdrawn) => denied(rows, DenyReason::WaitRanOut),
                None => {
                    rows.leave(terms, self.key, self.ticket, &self.seat, after);
                    denied(rows, DenyReason::WaitRanOut)
                }
            }
        });
        self.is_settled = true;
        answer
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        if self.is_settled {
            return;
        }
        self.store.in_lock(self.key, |rows, terms, after| {
            rows.leave(terms, self.key, self.ticket, &self.seat, after);
        });
    }
}
