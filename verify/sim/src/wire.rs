//! The client's end: a serializer that is somewhere else.
//!
//! A request may be lost, late or carried out twice, and so may its answer. A dropped call sends word
//! of that, which may be lost as well.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use aster_core::{
    Authority, ExpectedRevision, Fence, FenceRejection, LeaseOp, LeaseSnapshot, ResourceName,
    TransitionOutcome, WriteId,
};
use aster_lease::{
    Entropy, LeaseSerializer, RegisterError, RegisterValue, Registers, SerializerError,
    WaitOutcome, WaitRequest,
};
use async_trait::async_trait;
use tokio::sync::oneshot;

use crate::clock::MachineClock;
use crate::random::{Random, SeededEntropy};
use crate::weather::Weather;

#[derive(Debug, Clone)]
pub(crate) enum Request {
    Transition(ResourceName, LeaseOp),
    Many(Vec<(ResourceName, LeaseOp)>),
    Wait(ResourceName, WaitRequest),
    Snapshot(ResourceName),
    Mutate {
        fence: Fence,
        writer: String,
    },
    Read(ResourceName),
    Set {
        fence: Fence,
        writer: String,
        expected: ExpectedRevision,
        value: u64,
        write: WriteId,
        releases: bool,
    },
}

#[derive(Debug)]
pub(crate) enum Reply {
    Transition(Result<TransitionOutcome, SerializerError>),
    Many(Vec<Result<TransitionOutcome, SerializerError>>),
    Wait(Result<WaitOutcome, SerializerError>),
    Snapshot(Result<LeaseSnapshot, SerializerError>),
    Mutate(Result<(), FenceRejection>),
    Read(Result<Option<RegisterValue>, SerializerError>),
    Set(Result<u64, RegisterError>),
    /// No answer of the serializer's.
    Failed(SerializerError),
}

/// What leaves a machine.
#[derive(Debug)]
pub(crate) enum Outgoing {
    Request { id: u64, request: Request },
    Reset { id: u64 },
    Reply { to: usize, id: u64, reply: Reply },
}

/// What one host has to send, with the time at which it did.
#[derive(Debug, Default)]
pub(crate) struct Desk {
    state: Mutex<DeskState>,
}

#[derive(Debug, Default)]
struct DeskState {
    next_id: u64,
    waiting: BTreeMap<u64, oneshot::Sender<Reply>>,
    out: Vec<(u64, Outgoing)>,
}

impl Desk {
    fn lock(&self) -> MutexGuard<'_, DeskState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn send(&self, at_ms: u64, outgoing: Outgoing) {
        self.lock().out.push((at_ms, outgoing));
    }

    pub(crate) fn take(&self) -> Vec<(u64, Outgoing)> {
        std::mem::take(&mut self.lock().out)
    }

    /// A reply has arrived. One that nobody waits for is dropped.
    pub(crate) fn arrived(&self, id: u64, reply: Reply) {
        let waiting = self.lock().waiting.remove(&id);
        if let Some(waiting) = waiting {
            let _nobody = waiting.send(reply);
        }
    }

    /// The machine was killed: nothing that it was about to send leaves it. Ids go on, so that a late
    /// reply finds nobody.
    pub(crate) fn clear(&self) -> Vec<u64> {
        let mut state = self.lock();
        state.out.clear();
        let waiting = std::mem::take(&mut state.waiting);
        drop(state);
        waiting.into_keys().collect()
    }
}

/// A planted panic, so that the world can tell it from a real one.
#[derive(Debug)]
pub(crate) struct PlantedPanic;

/// The serializer, seen from one machine.
pub(crate) struct Remote {
    pub(crate) desk: Arc<Desk>,
    pub(crate) clock: Arc<MachineClock>,
    pub(crate) entropy: Arc<SeededEntropy>,
    pub(crate) weather: Arc<Weather>,
    pub(crate) chance: Mutex<Random>,
    pub(crate) batch_max: usize,
}

/// Tells the serializer when the caller goes away.
struct Ticket<'a> {
    remote: &'a Remote,
    id: u64,
}

impl Drop for Ticket<'_> {
    fn drop(&mut self) {
        let mut desk = self.remote.desk.lock();
        if desk.waiting.remove(&self.id).is_some() {
            let at_ms = self.remote.clock.world_ms();
            desk.out.push((at_ms, Outgoing::Reset { id: self.id }));
        }
    }
}

impl Remote {
    pub(crate) async fn call(&self, request: Request) -> Result<Reply, SerializerError> {
        let panics = self.weather.now().client_panics;
        let is_unlucky = {
            let mut chance = self.chance.lock().unwrap_or_else(PoisonError::into_inner);
            panics > 0 && chance.chance(panics)
        };
        if is_unlucky {
            std::panic::resume_unwind(Box::new(PlantedPanic));
        }
        let (sender, receiver) = oneshot::channel();
        let id = {
            let mut desk = self.desk.lock();
            desk.next_id += 1;
            let id = desk.next_id;
            desk.waiting.insert(id, sender);
            let at_ms = self.clock.world_ms();
            desk.out.push((at_ms, Outgoing::Request { id, request }));
            id
        };
        let _ticket = Ticket { remote: self, id };
        match receiver.await {
            Ok(Reply::Failed(error)) => Err(error),
            Ok(reply) => Ok(reply),
            Err(_gone) => Err(unavailable("the connection is gone")),
        }
    }

    /// A protected write where the rows are.
    pub(crate) async fn mutate(
        &self,
        fence: Fence,
        writer: &str,
    ) -> Result<Result<(), FenceRejection>, SerializerError> {
        let writer = writer.to_owned();
        match self.call(Request::Mutate { fence, writer }).await? {
            Reply::Mutate(answer) => Ok(answer),
            other => Err(unexpected(&other)),
        }
    }

    /// A register write, which gives the lease up in the same step if it `releases`.
    async fn set(
        &self,
        fence: &Fence,
        writer: &str,
        expected: ExpectedRevision,
        value: &[u8],
        write: WriteId,
        releases: bool,
    ) -> Result<u64, RegisterError> {
        let request = Request::Set {
            fence: fence.clone(),
            writer: writer.to_owned(),
            expected,
            value: number(value),
            write,
            releases,
        };
        match self.call(request).await? {
            Reply::Set(answer) => answer,
            other => Err(unexpected(&other).into()),
        }
    }
}

pub(crate) fn unavailable(message: &str) -> SerializerError {
    SerializerError::Unavailable {
        message: message.to_owned(),
        source: None,
    }
}

fn unexpected(reply: &Reply) -> SerializerError {
    SerializerError::Unexpected {
        message: format!("{reply:?}"),
    }
}

/// Values of the simulated registers are numbers.
pub(crate) fn number(value: &[u8]) -> u64 {
    value.try_into().map_or(u64::MAX, u64::from_le_bytes)
}

#[async_trait]
impl LeaseSerializer for Remote {
    async fn transition(
        &self,
        resource: &str,
        op: LeaseOp,
    ) -> Result<TransitionOutcome, SerializerError> {
        let resource = ResourceName::new(resource)?;
        match self.call(Request::Transition(resource, op)).await? {
            Reply::Transition(answer) => answer,
            other => Err(unexpected(&other)),
        }
    }

    async fn snapshot(&self, resource: &str) -> Result<LeaseSnapshot, SerializerError> {
        let resource = ResourceName::new(resource)?;
        match self.call(Request::Snapshot(resource)).await? {
            Reply::Snapshot(answer) => answer,
            other => Err(unexpected(&other)),
        }
    }

    fn batch_max(&self) -> usize {
        self.batch_max
    }

    async fn transition_many(
        &self,
        requests: Vec<(ResourceName, LeaseOp)>,
    ) -> Vec<Result<TransitionOutcome, SerializerError>> {
        let count = requests.len();
        match self.call(Request::Many(requests)).await {
            Ok(Reply::Many(answers)) => answers,
            Ok(other) => (0..count).map(|_| Err(unexpected(&other))).collect(),
            Err(error) => (0..count)
                .map(|_| Err(unavailable(&error.to_string())))
                .collect(),
        }
    }

    async fn acquire_wait(
        &self,
        resource: &str,
        request: WaitRequest,
    ) -> Result<WaitOutcome, SerializerError> {
        let resource = ResourceName::new(resource)?;
        match self.call(Request::Wait(resource, request)).await? {
            Reply::Wait(answer) => answer,
            other => Err(unexpected(&other)),
        }
    }

    async fn authority(&self) -> Result<Authority, SerializerError> {
        Err(SerializerError::Unsupported {
            operation: "authority",
        })
    }
}

#[async_trait]
impl Registers for Remote {
    async fn read(&self, resource: &str) -> Result<Option<RegisterValue>, SerializerError> {
        let resource = ResourceName::new(resource)?;
        match self.call(Request::Read(resource)).await? {
            Reply::Read(answer) => answer,
            other => Err(unexpected(&other)),
        }
    }

    async fn compare_and_set_with_id(
        &self,
        fence: &Fence,
        writer: &str,
        expected: ExpectedRevision,
        value: Vec<u8>,
        write_id: WriteId,
    ) -> Result<u64, RegisterError> {
        self.set(fence, writer, expected, &value, write_id, false)
            .await
    }

    async fn compare_and_set(
        &self,
        fence: &Fence,
        writer: &str,
        expected: ExpectedRevision,
        value: Vec<u8>,
    ) -> Result<u64, RegisterError> {
        let mut bytes = [0; 16];
        self.entropy
            .fill(&mut bytes)
            .map_err(SerializerError::from)?;
        let write_id = WriteId::from_bytes(bytes);
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
        self.set(fence, writer, expected, &value, write_id, true)
            .await
    }
}
