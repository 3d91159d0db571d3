//! One call that waits, and what others know of it.

use aster_core::{GrantId, Principal, ResourceName};
use aster_lease::metrics::WaiterCounted;
use aster_lease::{SerializerError, WaitOutcome};
use tokio::sync::oneshot;

use crate::schema::Id;

pub(crate) type Answer = Result<WaitOutcome, SerializerError>;

/// One call that waits.
#[derive(Debug)]
pub(crate) struct Wait {
    pub(crate) resource: ResourceName,
    pub(crate) candidate: Principal,
    pub(crate) grant_id: GrantId,
    pub(crate) until_ns: u64,
    pub(crate) place: Option<Place>,
    /// While it stands in the queue.
    pub(crate) counted: Option<WaiterCounted>,
    /// Its wait is over, and the writer is about to say so.
    pub(crate) is_over: bool,
    pub(crate) phase: Phase,
}

#[derive(Debug)]
pub(crate) enum Phase {
    Waits(oneshot::Sender<Answer>),
    /// The answer is on its way to the caller.
    Answered {
        granted: bool,
    },
    /// Another call asked under the same grant id and has the place now.
    Replaced,
}

/// A place in a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) ticket: i64,
    /// The side file that the queue is in.
    pub(crate) side: Id,
}

/// One who gave up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Left {
    pub(crate) resource: ResourceName,
    pub(crate) candidate: Principal,
    pub(crate) grant_id: GrantId,
}

/// One who waits, for who looks on its behalf.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Mine {
    pub(crate) id: u64,
    pub(crate) wish: Left,
    pub(crate) place: Option<Place>,
    pub(crate) until_ns: u64,
}

impl Wait {
    pub(crate) fn wish(&self) -> Left {
        Left {
            resource: self.resource.clone(),
            candidate: self.candidate.clone(),
            grant_id: self.grant_id,
        }
    }

    /// The caller hears it, once. `false` when it had been answered before.
    pub(crate) fn answer(&mut self, answer: Answer) -> bool {
        let granted = matches!(answer, Ok(WaitOutcome::Granted { .. }));
        if !matches!(self.phase, Phase::Waits(_)) {
            return false;
        }
        let phase = std::mem::replace(&mut self.phase, Phase::Answered { granted });
        if let Phase::Waits(reply) = phase {
            // A caller that is gone gives it up when it drops its wish.
            let _ = reply.send(answer);
        }
        true
    }
}

pub(crate) fn replaced() -> SerializerError {
    SerializerError::Unavailable {
        message: "the same grant id asked again and waits in this call's place".to_owned(),
        source: None,
    }
}

/// What a caller hears whose place in a queue is lost.
pub(crate) fn lost_place() -> SerializerError {
    SerializerError::Unavailable {
        message: "the queue was lost with the store's side file; ask again under the same grant id"
            .to_owned(),
        source: None,
    }
}
