//! One call that waits, and what others know of it.

use std::sync::Arc;

use aster_core::{GrantId, Principal, ResourceName};
use aster_lease::metrics::WaiterCounted;
use aster_lease::{SerializerError, WaitOutcome};
use tokio::sync::oneshot;

use crate::schema::Id;
use crate::waiting::Waiting;

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
    /// Another call has its grant, and goes on with it.
    pub(crate) takes_nothing: bool,
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

/// A call's own end. When it is dropped before the caller had its answer, its place or its grant is
/// given up.
#[derive(Debug)]
pub(crate) struct Wish {
    pub(crate) id: u64,
    waiting: Arc<Waiting>,
    seen: Option<bool>,
}

impl Wish {
    pub(crate) fn new(id: u64, waiting: Arc<Waiting>) -> Self {
        let seen = None;
        Self { id, waiting, seen }
    }

    /// The caller has its answer.
    pub(crate) fn done(mut self, answer: &Answer) {
        self.seen = Some(matches!(answer, Ok(WaitOutcome::Granted { .. })));
    }
}

impl Drop for Wish {
    fn drop(&mut self) {
        self.waiting.over(self.id, self.seen);
    }
}

/// A wait that is being ended. If it was not answered when this is dropped, it goes on.
#[derive(Debug)]
pub(crate) struct Ending {
    pub(crate) waiting: Arc<Waiting>,
    pub(crate) resource: ResourceName,
    pub(crate) grant_id: GrantId,
}

impl Drop for Ending {
    fn drop(&mut self) {
        self.waiting.not_ended(&self.resource, self.grant_id);
    }
}

impl Wait {
    pub(crate) fn wish(&self) -> Left {
        Left {
            resource: self.resource.clone(),
            candidate: self.candidate.clone(),
            grant_id: self.grant_id,
        }
    }

    /// Whether a caller that goes away without its answer leaves something behind.
    pub(crate) fn has_to_leave(&self) -> bool {
        match self.phase {
            _ if self.takes_nothing => false,
            Phase::Waits(_) => true,
            Phase::Answered { granted } => granted,
            Phase::Replaced => false,
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
