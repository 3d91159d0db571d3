//! One store whose every second request goes to another process.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use aster_lease::{
    Authority, ExpectedRevision, Fence, LeaseOp, LeaseSerializer, LeaseSnapshot, LeaseWatch,
    ListQuery, RegisterError, RegisterValue, Registers, ResourceName, SerializerError,
    SystemEntropy, TransitionOutcome, WaitOutcome, WaitRequest, Waiter, WriteId, entropy,
};
use aster_sqlite::SqliteSerializer;
use async_trait::async_trait;

use crate::peer::Peer;
use crate::wire::{Answer, Ask, Set, map};

pub(crate) struct Spread {
    here: SqliteSerializer,
    there: Arc<Peer>,
    turn: AtomicUsize,
}

impl Spread {
    pub(crate) fn new(here: SqliteSerializer, there: Arc<Peer>) -> Self {
        Self {
            here,
            there,
            turn: AtomicUsize::new(0),
        }
    }

    pub(crate) fn here(&self) -> &SqliteSerializer {
        &self.here
    }

    /// Whether this process does the next request.
    pub(crate) fn is_mine(&self) -> bool {
        self.turn.fetch_add(1, Ordering::SeqCst).is_multiple_of(2)
    }
}

/// Here or, at every second call, there.
macro_rules! spread {
    ($self:ident, $here:expr, $ask:expr, $answer:ident($got:ident) => $map:expr) => {{
        if $self.is_mine() {
            return $here.await;
        }
        match $self.there.ask($ask).await {
            Answer::$answer($got) => $map,
            _ => unreachable!("the answer to another question"),
        }
    }};
}

#[async_trait]
impl LeaseSerializer for Spread {
    async fn transition(
        &self,
        resource: &str,
        op: LeaseOp,
    ) -> Result<TransitionOutcome, SerializerError> {
        spread!(self, self.here.transition(resource, op),
            Ask::Transition(resource.to_owned(), op), Transition(got) => map(got))
    }

    async fn snapshot(&self, resource: &str) -> Result<LeaseSnapshot, SerializerError> {
        spread!(self, self.here.snapshot(resource),
            Ask::Snapshot(resource.to_owned()), Snapshot(got) => map(got))
    }

    fn batch_max(&self) -> usize {
        self.here.batch_max()
    }

    async fn transition_many(
        &self,
        requests: Vec<(ResourceName, LeaseOp)>,
    ) -> Vec<Result<TransitionOutcome, SerializerError>> {
        spread!(self, self.here.transition_many(requests),
            Ask::Many(requests), Many(got) => got.into_iter().map(map).collect())
    }

    async fn acquire_wait(
        &self,
        resource: &str,
        request: WaitRequest,
    ) -> Result<WaitOutcome, SerializerError> {
        spread!(self, self.here.acquire_wait(resource, request),
            Ask::Wait(resource.to_owned(), request.into()), Wait(got) => map(got))
    }

    async fn queue(&self, resource: &str) -> Result<Vec<Waiter>, SerializerError> {
        spread!(self, self.here.queue(resource), Ask::Queue(resource.to_owned()),
            Queue(got) => Ok(got?.into_iter().map(Into::into).collect()))
    }

    /// Always here, so that the changes which the other process makes have to be noticed.
    async fn watch(&self, resource: &str) -> Result<LeaseWatch, SerializerError> {
        self.here.watch(resource).await
    }

    async fn list(&self, query: ListQuery) -> Result<Vec<LeaseSnapshot>, SerializerError> {
        spread!(self, self.here.list(query),
            Ask::List(query.prefix, query.after, query.limit, query.held_only),
            List(got) => map(got))
    }

    async fn authority(&self) -> Result<Authority, SerializerError> {
        spread!(self, LeaseSerializer::authority(&self.here), Ask::Authority,
            Authority(got) => map(got))
    }
}

#[async_trait]
impl Registers for Spread {
    async fn read(&self, resource: &str) -> Result<Option<RegisterValue>, SerializerError> {
        spread!(self, Registers::read(&self.here, resource), Ask::Read(resource.to_owned()),
            Read(got) => Ok(got?.map(Into::into)))
    }

    async fn compare_and_set_with_id(
        &self,
        fence: &Fence,
        writer: &str,
        expected: ExpectedRevision,
        value: Vec<u8>,
        write_id: WriteId,
    ) -> Result<u64, RegisterError> {
        spread!(self,
            self.here.compare_and_set_with_id(fence, writer, expected, value, write_id),
            Ask::Set(Set::new(fence, writer, expected, value, write_id)), Set(got) => map(got))
    }

    async fn compare_and_set(
        &self,
        fence: &Fence,
        writer: &str,
        expected: ExpectedRevision,
        value: Vec<u8>,
    ) -> Result<u64, RegisterError> {
        let write_id = entropy::write_id(&SystemEntropy).unwrap();
        self.compare_and_set_with_id(fence, writer, expected, value, write_id)
            .await
    }

    async fn release_with_value(
        &self,
        fence: &Fence,
        writer: &str,
        expected: ExpectedRevision,
        value: Vec<u8>,
        write_id: WriteId,
    ) -> Result<u64, RegisterError> {
        spread!(self,
            self.here.release_with_value(fence, writer, expected, value, write_id),
            Ask::SetAndRelease(Set::new(fence, writer, expected, value, write_id)),
            Set(got) => map(got))
    }
}
