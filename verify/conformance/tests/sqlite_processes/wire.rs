//! What two test processes say to each other, a line each.

use std::time::Duration;

use aster_conformance::Written;
use aster_lease::{
    Authority, DenyReason, ErrorKind, ExpectedRevision, Fence, FenceRejection, GrantId,
    InvalidInput, LeaseOp, LeaseSnapshot, ListQuery, Principal, RegisterError, RegisterValue,
    ResourceName, SerializerError, TransitionOutcome, Ttl, WaitOutcome, WaitRequest, Waiter,
    WriteId,
};
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize)]
pub(crate) struct Sent<T> {
    pub(crate) id: u64,
    pub(crate) what: T,
}

#[derive(Serialize, Deserialize)]
pub(crate) enum Ask {
    Transition(String, LeaseOp),
    Many(Vec<(ResourceName, LeaseOp)>),
    Snapshot(String),
    List(String, Option<ResourceName>, usize, bool),
    Queue(String),
    Wait(String, Wish),
    Authority,
    Put(Fence, String, String),
    Read(String),
    Set(Set),
    SetAndRelease(Set),
    Restart,
    /// Give up the request of this id.
    GiveUp,
}

#[derive(Serialize, Deserialize)]
pub(crate) enum Answer {
    Transition(Result<TransitionOutcome, Failure>),
    Many(Vec<Result<TransitionOutcome, Failure>>),
    Snapshot(Result<LeaseSnapshot, Failure>),
    List(Result<Vec<LeaseSnapshot>, Failure>),
    Queue(Result<Vec<Waits>, Failure>),
    Wait(Result<Waited, Failure>),
    Authority(Result<Authority, Failure>),
    Put(Put),
    Read(Result<Option<Value>, Failure>),
    Set(Result<u64, Refusal>),
    Restarted,
}

#[derive(Serialize, Deserialize)]
pub(crate) struct Wish {
    candidate: Principal,
    ttl: Ttl,
    grant_id: GrantId,
    wait: Duration,
}

impl From<WaitRequest> for Wish {
    fn from(request: WaitRequest) -> Self {
        let WaitRequest {
            candidate,
            ttl,
            grant_id,
            wait,
        } = request;
        Self {
            candidate,
            ttl,
            grant_id,
            wait,
        }
    }
}

impl From<Wish> for WaitRequest {
    fn from(wish: Wish) -> Self {
        Self {
            candidate: wish.candidate,
            ttl: wish.ttl,
            grant_id: wish.grant_id,
            wait: wish.wait,
        }
    }
}

#[derive(Serialize, Deserialize)]
pub(crate) enum Waited {
    Granted(Fence, Option<Duration>),
    Denied(DenyReason, LeaseSnapshot),
}

impl From<WaitOutcome> for Waited {
    fn from(outcome: WaitOutcome) -> Self {
        match outcome {
            WaitOutcome::Granted { fence, claim } => Self::Granted(fence, claim),
            WaitOutcome::Denied(reason, snapshot) => Self::Denied(reason, snapshot),
            other => panic!("no word for {other:?}"),
        }
    }
}

impl From<Waited> for WaitOutcome {
    fn from(waited: Waited) -> Self {
        match waited {
            Waited::Granted(fence, claim) => Self::Granted { fence, claim },
            Waited::Denied(reason, snapshot) => Self::Denied(reason, snapshot),
        }
    }
}

#[derive(Serialize, Deserialize)]
pub(crate) struct Waits(usize, Principal, Ttl, Option<Duration>);

impl From<Waiter> for Waits {
    fn from(waiter: Waiter) -> Self {
        Self(
            waiter.position,
            waiter.candidate,
            waiter.ttl,
            waiter.waiting,
        )
    }
}

impl From<Waits> for Waiter {
    fn from(Waits(position, candidate, ttl, waiting): Waits) -> Self {
        Self {
            position,
            candidate,
            ttl,
            waiting,
        }
    }
}

#[derive(Serialize, Deserialize)]
pub(crate) struct Set {
    pub(crate) fence: Fence,
    pub(crate) writer: String,
    expected: Option<Option<u64>>,
    pub(crate) value: Vec<u8>,
    pub(crate) write_id: WriteId,
}

impl Set {
    pub(crate) fn new(
        fence: &Fence,
        writer: &str,
        expected: ExpectedRevision,
        value: Vec<u8>,
        write_id: WriteId,
    ) -> Self {
        Self {
            fence: fence.clone(),
            writer: writer.to_owned(),
            expected: match expected {
                ExpectedRevision::Any => None,
                ExpectedRevision::Absent => Some(None),
                ExpectedRevision::Exactly(revision) => Some(Some(revision)),
            },
            value,
            write_id,
        }
    }

    pub(crate) fn expected(&self) -> ExpectedRevision {
        match self.expected {
            None => ExpectedRevision::Any,
            Some(None) => ExpectedRevision::Absent,
            Some(Some(revision)) => ExpectedRevision::Exactly(revision),
        }
    }
}

#[derive(Serialize, Deserialize)]
pub(crate) enum Put {
    Accepted,
    Rejected(FenceRejection),
    Failed(String),
}

impl From<Written> for Put {
    fn from(written: Written) -> Self {
        match written {
            Written::Accepted => Self::Accepted,
            Written::Rejected(Some(rejection)) => Self::Rejected(rejection),
            other => Self::Failed(format!("{other:?}")),
        }
    }
}

impl From<Put> for Written {
    fn from(put: Put) -> Self {
        match put {
            Put::Accepted => Self::Accepted,
            Put::Rejected(rejection) => Self::Rejected(Some(rejection)),
            Put::Failed(message) => Self::Failed(message),
        }
    }
}

#[derive(Serialize, Deserialize)]
pub(crate) struct Value(Vec<u8>, u64, u64);

impl From<RegisterValue> for Value {
    fn from(value: RegisterValue) -> Self {
        Self(value.value, value.value_revision, value.epoch)
    }
}

impl From<Value> for RegisterValue {
    fn from(Value(value, value_revision, epoch): Value) -> Self {
        Self {
            value,
            value_revision,
            epoch,
        }
    }
}

#[derive(Serialize, Deserialize)]
pub(crate) enum Failure {
    Overloaded,
    Retry(String),
    FixCall(String),
    Other(String),
}

impl From<SerializerError> for Failure {
    fn from(error: SerializerError) -> Self {
        let message = error.to_string();
        match error {
            SerializerError::Overloaded { .. } => Self::Overloaded,
            error if error.kind() == ErrorKind::Retry => Self::Retry(message),
            error if error.kind() == ErrorKind::FixCall => Self::FixCall(message),
            _ => Self::Other(message),
        }
    }
}

impl From<Failure> for SerializerError {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Overloaded => Self::Overloaded {
                retry_after: Duration::from_secs(1),
            },
            Failure::Retry(message) => Self::Unavailable {
                message,
                source: None,
            },
            Failure::FixCall(message) => InvalidInput::Other(message).into(),
            Failure::Other(message) => Self::Unexpected { message },
        }
    }
}

#[derive(Serialize, Deserialize)]
pub(crate) enum Refusal {
    Rejected(FenceRejection),
    Conflict(Option<u64>),
    Failed(Failure),
}

impl From<RegisterError> for Refusal {
    fn from(error: RegisterError) -> Self {
        match error {
            RegisterError::Rejected(rejection) => Self::Rejected(rejection),
            RegisterError::Conflict { current } => Self::Conflict(current),
            RegisterError::Store(error) => Self::Failed(error.into()),
            other => Self::Failed(Failure::Other(other.to_string())),
        }
    }
}

impl From<Refusal> for RegisterError {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::Rejected(rejection) => Self::Rejected(rejection),
            Refusal::Conflict(current) => Self::Conflict { current },
            Refusal::Failed(failure) => Self::Store(failure.into()),
        }
    }
}

pub(crate) fn query(
    prefix: String,
    after: Option<ResourceName>,
    limit: usize,
    held_only: bool,
) -> ListQuery {
    ListQuery {
        prefix,
        after,
        limit,
        held_only,
    }
}

/// `Ok` and `Err` into the types of the other side.
pub(crate) fn map<A, B: From<A>, E, F: From<E>>(result: Result<A, E>) -> Result<B, F> {
    result.map(B::from).map_err(F::from)
}
