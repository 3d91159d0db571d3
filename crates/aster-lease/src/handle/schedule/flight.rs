//! One call that renews a load of leases, and what its answer means for each of them.

use std::collections::HashMap;
use std::future::{Future, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use aster_core::{DenyReason, ErrorKind, LeaseOp, TransitionOutcome};
use tokio::task::{AbortHandle, JoinSet};
use tracing::Instrument;

use super::Schedule;
use super::table::{FlightId, Load, Slot, Verdict};
use super::timing::At;
use crate::clock::Moment;
use crate::error::SerializerError;
use crate::handle::attempt::within;
use crate::handle::state::{EndedReason, Shared, Trouble, reason_of};
use crate::metrics::Renewed;
use crate::serializer::LeaseSerializer;

type Outcome = Result<TransitionOutcome, SerializerError>;

/// What came of a call.
enum Answer {
    /// Answered, in the order of the leases.
    Outcomes(Vec<Outcome>),
    /// Not within its time.
    Late { after: Duration },
    /// The serializer panicked.
    Panicked,
}

/// The calls on their way. Each runs as a task of its own, so that one that computes for long or never
/// gives way holds up no other; dropping this drops them.
#[derive(Default)]
pub(super) struct Flights {
    tasks: JoinSet<(FlightId, Answer)>,
    flying: HashMap<FlightId, Flight>,
}

struct Flight {
    leases: Vec<(Slot, Arc<Shared>)>,
    sent: Moment,
    sent_at: At,
    task: AbortHandle,
}

/// A call that came back.
pub(super) struct Landing {
    pub(super) id: FlightId,
    pub(super) sent_at: At,
    leases: Vec<(Slot, Arc<Shared>)>,
    sent: Moment,
    answer: Answer,
}

impl Flights {
    /// Sends a load. `sent` was read before.
    pub(super) fn send(&mut self, schedule: &Schedule, load: Load, sent: Moment, sent_at: At) {
        let Load { id, leases, limit } = load;
        let serializer = schedule.serializer.clone();
        let clock = schedule.clock.clone();
        let renewals = Renewals::of(&leases);
        if let Some((_, lease)) = leases.first() {
            // Nearly always all of them count in the same place.
            lease.parts.metrics.renewal_batch(leases.len());
        }
        let span = tracing::debug_span!("renewals", leases = leases.len());
        let flying = async move {
            let mut call = pin!(renewals.send(&*serializer));
            let caught = poll_fn(|context| {
                let poll = AssertUnwindSafe(|| call.as_mut().poll(context));
                catch_unwind(poll).map_or(Poll::Ready(None), |poll| poll.map(Some))
            });
            let answer = match within(&*clock, limit, caught).await {
                Some(Some(outcomes)) => Answer::Outcomes(outcomes),
                Some(None) => Answer::Panicked,
                None => Answer::Late { after: limit },
            };
            (id, answer)
        };
        let task = self.tasks.spawn(flying.instrument(span));
        let flight = Flight {
            leases,
            sent,
            sent_at,
            task,
        };
        self.flying.insert(id, flight);
    }

    /// Stops a call that nobody needs any more.
    pub(super) fn abandon(&mut self, id: FlightId) {
        if let Some(flight) = self.flying.remove(&id) {
            flight.task.abort();
        }
    }

    /// The next call that has come back; pending while there is none.
    pub(super) fn poll_landing(&mut self, context: &mut Context<'_>) -> Poll<Landing> {
        while let Poll::Ready(Some(joined)) = self.tasks.poll_join_next(context) {
            let (id, answer) = match joined {
                Ok(landed) => landed,
                // A panic while the request was dropped; or one that was abandoned, which is unknown.
                Err(error) => {
                    let mut flying = self.flying.iter();
                    match flying.find(|(_, flight)| flight.task.id() == error.id()) {
                        Some((id, _)) => (*id, Answer::Panicked),
                        None => continue,
                    }
                }
            };
            let Some(flight) = self.flying.remove(&id) else {
                continue;
            };
            return Poll::Ready(Landing {
                id,
                sent_at: flight.sent_at,
                leases: flight.leases,
                sent: flight.sent,
                answer,
            });
        }
        Poll::Pending
    }
}

/// The requests of one call.
enum Renewals {
    One(Arc<Shared>),
    Many(Vec<(aster_core::ResourceName, LeaseOp)>),
}

impl Renewals {
    fn of(leases: &[(Slot, Arc<Shared>)]) -> Self {
        if let [(_, lease)] = leases {
            return Renewals::One(lease.clone());
        }
        let requests = leases.iter();
        Renewals::Many(
            requests
                .map(|(_, lease)| (lease.fence.resource.clone(), renewal(lease)))
                .collect(),
        )
    }

    async fn send(self, serializer: &dyn LeaseSerializer) -> Vec<Outcome> {
        match self {
            Renewals::One(lease) => {
                let resource = &lease.fence.resource;
                vec![serializer.transition(resource, renewal(&lease)).await]
            }
            Renewals::Many(requests) => serializer.transition_many(requests).await,
        }
    }
}

fn renewal(lease: &Shared) -> LeaseOp {
    LeaseOp::Renew {
        holder: lease.fence.holder.clone(),
        epoch: lease.fence.epoch,
    }
}

impl Landing {
    /// Tells every lease what the answer means for it.
    pub(super) fn judge(self, now: Moment) -> Vec<(Slot, Verdict)> {
        let Landing {
            leases,
            sent,
            answer,
            ..
        } = self;
        let together = leases.len() > 1;
        let outcomes = match answer {
            Answer::Outcomes(outcomes) if outcomes.len() == leases.len() => outcomes,
            Answer::Outcomes(outcomes) => {
                tracing::error!(
                    asked = leases.len(),
                    answered = outcomes.len(),
                    "a serializer answered another number of renewals than it was asked"
                );
                return each(leases, |lease| {
                    again(lease, Trouble::Unreachable, now, true)
                });
            }
            Answer::Late { after } => {
                tracing::debug!(leases = leases.len(), ?after, "no answer to renewals");
                return each(leases, |lease| {
                    again(lease, Trouble::Unreachable, now, together)
                });
            }
            // Whose renewal it was in a batch shows when each is asked for singly.
            Answer::Panicked if together => {
                return each(leases, |lease| {
                    again(lease, Trouble::Unreachable, now, true)
                });
            }
            Answer::Panicked => {
                return each(leases, |lease| {
                    lease.end(EndedReason::RuntimeStopped);
                    Verdict::Over
                });
            }
        };
        let mut outcomes = outcomes.into_iter();
        each(leases, |lease| match outcomes.next() {
            Some(outcome) => judge(lease, outcome, sent, now),
            None => again(lease, Trouble::Unreachable, now, true),
        })
    }
}

fn each(
    leases: Vec<(Slot, Arc<Shared>)>,
    mut verdict: impl FnMut(&Shared) -> Verdict,
) -> Vec<(Slot, Verdict)> {
    let leases = leases.into_iter();
    leases
        .map(|(slot, lease)| (slot, verdict(&lease)))
        .collect()
}

fn judge(lease: &Shared, outcome: Outcome, sent: Moment, now: Moment) -> Verdict {
    match outcome {
        Ok(TransitionOutcome::Renewed) => {
            lease.parts.metrics.renewed(Renewed::Ok);
            match lease.renewed_at(sent, now) {
                true => Verdict::Renewed,
                false => Verdict::Over,
            }
        }
        Ok(TransitionOutcome::Denied(DenyReason::Unauthorized, _)) => {
            // Roles may be reloading; the self-limit bounds how long that is believed.
            again(lease, Trouble::Unauthorized, now, false)
        }
        Ok(TransitionOutcome::Denied(denial, snapshot)) => {
            // Expired is a denial too, but not the end of the epoch: release can still free it.
            if denial != DenyReason::Expired {
                lease.set_epoch_over();
            }
            lease.parts.metrics.renewed(Renewed::Denied);
            lease.end(reason_of(denial, &snapshot));
            Verdict::Over
        }
        Ok(outcome) => {
            tracing::error!(fence = %lease.fence, ?outcome, "unexpected answer to a renewal");
            again(lease, Trouble::Unreachable, now, false)
        }
        Err(error) if error.kind() == ErrorKind::Stop => {
            tracing::warn!(fence = %lease.fence, %error, "the store refuses to renew");
            lease.parts.metrics.renewed(Renewed::Denied);
            lease.end(EndedReason::StoreRefused);
            Verdict::Over
        }
        Err(error) => {
            tracing::debug!(fence = %lease.fence, %error, "a renewal failed");
            again(lease, Trouble::Unreachable, now, false)
        }
    }
}

fn again(lease: &Shared, trouble: Trouble, now: Moment, alone: bool) -> Verdict {
    lease.parts.metrics.renewed(Renewed::Retried);
    lease.troubled(trouble);
    match lease.remaining_at(now) {
        Some(left) => Verdict::Again { left, alone },
        None => Verdict::Over,
    }
}
