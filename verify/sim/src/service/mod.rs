//! The serializer's machine: it carries requests out on the real memory store, now and then badly, and
//! tells the oracle what it did.

mod bent;
mod durable;
mod notes;
mod waiting;

use std::collections::BTreeMap;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use aster_core::{
    ExpectedRevision, Fence, FenceRejection, GrantId, LeaseOp, Principal, ResourceName,
    TransitionOutcome, WriteId,
};
use aster_lease::{
    LeaseSerializer, MemoryOptions, MemorySerializer, RegisterError, Registers, SerializerError,
};
use tokio::runtime::Runtime;
use tokio::task::AbortHandle;

use self::durable::Durable;
use crate::bug::Bug;
use crate::clock::MachineClock;
use crate::history::{Event, Recorder};
use crate::random::{Random, SeededEntropy};
use crate::weather::Weather;
use crate::wire::{Desk, Outgoing, PlantedPanic, Reply, Request, number, unavailable};

/// The serializer's place among the hosts.
pub(crate) const SERVER: usize = 0;

/// How often a watcher is shown something (a planted bug).
const SHOWN_MAX: u64 = 5;

/// Which store the serializer's machine has.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Kind {
    /// The memory store, with its queue and its watches.
    #[default]
    Memory,
    /// The SQLite store on a file of its own, without them.
    Sqlite,
}

/// What the service needs of a store beside what every store has.
pub(crate) trait Store: LeaseSerializer + Registers {
    /// Called inside the machine's runtime.
    fn restart(&self) -> Result<(), SerializerError>;

    /// Runs `write` under the fence rule.
    fn mutate(
        &self,
        fence: &Fence,
        writer: &str,
        write: &mut dyn FnMut(),
    ) -> Result<Result<(), FenceRejection>, SerializerError>;

    /// How many rows it keeps, where it can tell.
    fn row_count(&self) -> Option<usize>;
}

impl Store for MemorySerializer {
    fn restart(&self) -> Result<(), SerializerError> {
        MemorySerializer::restart(self);
        Ok(())
    }

    fn mutate(
        &self,
        fence: &Fence,
        writer: &str,
        write: &mut dyn FnMut(),
    ) -> Result<Result<(), FenceRejection>, SerializerError> {
        Ok(self.mutate_fenced(fence, writer, write))
    }

    fn row_count(&self) -> Option<usize> {
        Some(MemorySerializer::row_count(self))
    }
}

pub(crate) struct Service {
    store: Mutex<Arc<dyn Store>>,
    kind: Kind,
    options: MemoryOptions,
    entropy_seed: u64,
    pub(crate) clock: Arc<MachineClock>,
    pub(crate) desk: Arc<Desk>,
    weather: Arc<Weather>,
    pub(crate) recorder: Recorder,
    random: Mutex<Random>,
    calls: AtomicU64,
    bug: Option<Bug>,
    /// The requests that are being carried out, for resets.
    running: Mutex<BTreeMap<(usize, u64), Vec<AbortHandle>>>,
}

/// What the service is made of.
pub(crate) struct ServiceParts {
    pub(crate) kind: Kind,
    pub(crate) options: MemoryOptions,
    pub(crate) entropy_seed: u64,
    pub(crate) clock: Arc<MachineClock>,
    pub(crate) desk: Arc<Desk>,
    pub(crate) weather: Arc<Weather>,
    pub(crate) recorder: Recorder,
    pub(crate) random: Random,
    pub(crate) bug: Option<Bug>,
}

fn store(
    kind: Kind,
    options: &MemoryOptions,
    clock: &Arc<MachineClock>,
    seed: u64,
) -> Result<Arc<dyn Store>, SerializerError> {
    let options = MemoryOptions {
        entropy: Arc::new(SeededEntropy::new(Random::new(seed))),
        ..options.clone()
    };
    Ok(match kind {
        Kind::Memory => Arc::new(MemorySerializer::with_options(options)?),
        Kind::Sqlite => Arc::new(Durable::new(&options, clock.clone())?),
    })
}

impl Service {
    pub(crate) fn new(parts: ServiceParts) -> Result<Arc<Self>, SerializerError> {
        let store = store(parts.kind, &parts.options, &parts.clock, parts.entropy_seed)?;
        Ok(Arc::new(Self {
            store: Mutex::new(store),
            kind: parts.kind,
            options: parts.options,
            entropy_seed: parts.entropy_seed,
            clock: parts.clock,
            desk: parts.desk,
            weather: parts.weather,
            recorder: parts.recorder,
            random: Mutex::new(parts.random),
            calls: AtomicU64::new(0),
            bug: parts.bug,
            running: Mutex::default(),
        }))
    }

    pub(crate) fn store(&self) -> Arc<dyn Store> {
        self.store
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    pub(crate) fn record(&self, event: Event) {
        self.recorder.record(self.clock.world_ms(), SERVER, event);
    }

    pub(crate) fn kind(&self) -> Kind {
        self.kind
    }

    fn chance(&self, per_mille: u64) -> bool {
        let mut random = self.random.lock().unwrap_or_else(PoisonError::into_inner);
        per_mille > 0 && random.chance(per_mille)
    }

    fn below(&self, bound: u64) -> u64 {
        let mut random = self.random.lock().unwrap_or_else(PoisonError::into_inner);
        random.below(bound)
    }

    fn fresh_grant_id(&self) -> GrantId {
        let mut random = self.random.lock().unwrap_or_else(PoisonError::into_inner);
        random.grant_id()
    }

    fn has(&self, bug: Bug) -> bool {
        self.bug == Some(bug)
    }

    /// Keeps rows and authority, and forgets the rest. Called inside the machine's runtime.
    pub(crate) fn restart(&self) -> Result<(), SerializerError> {
        if self.has(Bug::RowsForgottenAtRestart) {
            let fresh = store(self.kind, &self.options, &self.clock, self.entropy_seed)?;
            *self.store.lock().unwrap_or_else(PoisonError::into_inner) = fresh;
        } else {
            self.store().restart()?;
        }
        self.record(Event::Restarted {
            monotonic_us: self.clock.monotonic_us(),
        });
        Ok(())
    }

    /// Every request was ended with its process.
    pub(crate) fn forget_requests(&self) {
        let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        running.clear();
    }

    pub(crate) fn open(self: &Arc<Self>, runtime: &Runtime, from: usize, what: Outgoing) {
        // Outside of it there is no paused clock.
        let _enter = runtime.enter();
        match what {
            Outgoing::Request { id, request } => {
                let service = self.clone();
                let task = runtime.spawn(async move { service.serve(from, id, request).await });
                let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
                running
                    .entry((from, id))
                    .or_default()
                    .push(task.abort_handle());
            }
            Outgoing::Reset { id } => self.reset(from, id),
            Outgoing::Reply { .. } => {}
        }
    }

    pub(crate) fn reset(&self, from: usize, id: u64) {
        let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        let tasks = running.remove(&(from, id));
        drop(running);
        for task in tasks.into_iter().flatten() {
            if !task.is_finished() {
                self.befell("request dropped while it was carried out");
            }
            task.abort();
        }
    }

    fn befell(&self, what: &'static str) {
        self.record(Event::Befell { what });
    }

    async fn serve(&self, to: usize, id: u64, request: Request) {
        let conditions = self.weather.now();
        self.drag(conditions.store_slow, conditions.slow_ms_max)
            .await;
        let refused = if self.chance(conditions.store_busy) {
            self.befell("store busy");
            let message = "others".to_owned();
            Some(SerializerError::Busy { message })
        } else if self.chance(conditions.store_overloaded) {
            self.befell("store overloaded");
            let retry_after = Duration::from_millis(1 + self.below(500));
            Some(SerializerError::Overloaded { retry_after })
        } else if self.chance(conditions.store_failed) {
            self.befell("store failed");
            Some(SerializerError::Storage {
                message: "no space left".to_owned(),
                source: None,
            })
        } else {
            None
        };
        let mut reply = match refused {
            Some(error) => Reply::Failed(error),
            None => self.carry_out(request).await,
        };
        self.drag(conditions.store_slow, conditions.slow_ms_max)
            .await;
        if self.chance(conditions.store_panics) {
            self.befell("store panicked");
            std::panic::resume_unwind(Box::new(PlantedPanic));
        }
        if self.chance(conditions.store_busy) {
            self.befell("answer lost after it was carried out");
            reply = Reply::Failed(unavailable("carried out, but the answer was lost"));
        }
        let reply = Outgoing::Reply { to, id, reply };
        self.desk.send(self.clock.world_ms(), reply);
    }

    async fn drag(&self, per_mille: u64, ms_max: u64) {
        if self.chance(per_mille) {
            self.befell("store slow");
            tokio::time::sleep(Duration::from_millis(self.below(ms_max))).await;
        }
    }

    async fn carry_out(&self, request: Request) -> Reply {
        match request {
            Request::Transition(resource, op) => {
                Reply::Transition(self.transition(&resource, op).await)
            }
            Request::Many(requests) => {
                self.record(Event::Together {
                    renewals: requests.len(),
                });
                let busy = self.weather.now().store_busy;
                let mut answers = Vec::with_capacity(requests.len());
                for (resource, op) in requests {
                    answers.push(match self.chance(busy) {
                        true => Err(unavailable("one of many")),
                        false => self.transition(&resource, op).await,
                    });
                }
                Reply::Many(answers)
            }
            Request::Wait(resource, request) => Reply::Wait(self.wait(&resource, request).await),
            Request::Snapshot(resource) => Reply::Snapshot(self.store().snapshot(&resource).await),
            Request::Mutate { fence, writer } => match self.mutate(&fence, &writer) {
                Ok(answer) => Reply::Mutate(answer),
                Err(error) => Reply::Failed(error),
            },
            Request::Read(resource) => self.read(&resource).await,
            Request::Set {
                fence,
                writer,
                expected,
                value,
                write,
                releases,
            } => Reply::Set(
                self.set(fence, writer, expected, value, write, releases)
                    .await,
            ),
        }
    }

    pub(crate) async fn transition(
        &self,
        resource: &ResourceName,
        op: LeaseOp,
    ) -> Result<TransitionOutcome, SerializerError> {
        let grant = match &op {
            LeaseOp::Acquire { grant_id, .. } | LeaseOp::Cancel { grant_id, .. } => Some(*grant_id),
            _ => None,
        };
        let call = self.begin(resource, op.name(), grant);
        let answer = match self.bent_transition(resource, &op).await {
            Some(bent) => bent,
            None => self.store().transition(resource, op.clone()).await,
        };
        self.note(call, resource, &op, &answer);
        answer
    }

    fn mutate(
        &self,
        fence: &Fence,
        writer: &str,
    ) -> Result<Result<(), FenceRejection>, SerializerError> {
        let mut write = || {
            self.record(Event::Wrote {
                resource: fence.resource.clone(),
                epoch: fence.epoch,
                holder: fence.holder.clone(),
                writer: writer.to_owned(),
            });
        };
        if self.has(Bug::UnfencedWrites) {
            write();
            return Ok(Ok(()));
        }
        let answer = self.store().mutate(fence, writer, &mut write)?;
        if let Err(why) = &answer {
            self.record(Event::Rejected {
                resource: fence.resource.clone(),
                epoch: fence.epoch,
                why: why.clone(),
            });
        }
        Ok(answer)
    }

    async fn read(&self, resource: &ResourceName) -> Reply {
        let call = self.begin(resource, "read", None);
        let answer = self.store().read(resource).await;
        if let Ok(found) = &answer {
            self.record(Event::Read {
                call,
                resource: resource.clone(),
                revision: found.as_ref().map(|found| found.value_revision),
                value: found.as_ref().map_or(0, |found| number(&found.value)),
            });
        }
        Reply::Read(answer)
    }

    async fn set(
        &self,
        fence: Fence,
        writer: String,
        expected: ExpectedRevision,
        value: u64,
        write: WriteId,
        releases: bool,
    ) -> Result<u64, RegisterError> {
        let store = self.store();
        let bytes = value.to_le_bytes().to_vec();
        let answer = if self.has(Bug::WriteForgotten) && self.chance(100) {
            let found = store.read(&fence.resource).await?;
            Ok(found.map_or(1, |found| found.value_revision + 1))
        } else if releases {
            store
                .release_with_value(&fence, &writer, expected, bytes, write)
                .await
        } else {
            store
                .compare_and_set_with_id(&fence, &writer, expected, bytes, write)
                .await
        };
        match &answer {
            Ok(revision) => self.record(Event::Set {
                resource: fence.resource,
                epoch: fence.epoch,
                holder: fence.holder,
                writer,
                write,
                revision: *revision,
                value,
                releases,
            }),
            Err(RegisterError::Rejected(why)) => self.record(Event::Rejected {
                resource: fence.resource,
                epoch: fence.epoch,
                why: why.clone(),
            }),
            Err(_) => {}
        }
        answer
    }

    /// Somebody follows who owns each of these, for as long as the machine runs.
    pub(crate) fn follow(self: &Arc<Self>, runtime: &Runtime, resources: &[ResourceName]) {
        for resource in resources {
            let (service, resource) = (self.clone(), resource.clone());
            runtime.spawn(async move {
                let Ok(mut watch) = service.store().watch(&resource).await else {
                    return;
                };
                let mut count = 0;
                while let Some(shown) = watch.next().await {
                    count += 1;
                    if count > SHOWN_MAX && service.has(Bug::WatchStops) {
                        std::future::pending::<()>().await;
                    }
                    service.record(Event::Shown {
                        resource: resource.clone(),
                        epoch: shown.epoch,
                    });
                }
            });
        }
    }

    /// An operator takes the resource from whoever has it, after having looked.
    pub(crate) async fn revoke(
        &self,
        resource: ResourceName,
        operator: Principal,
        thinks: Duration,
        hold_off: Option<Duration>,
    ) {
        let Ok(snapshot) = self.store().snapshot(&resource).await else {
            return;
        };
        tokio::time::sleep(thinks).await;
        if snapshot.held {
            let op = LeaseOp::Revoke {
                operator,
                epoch: snapshot.epoch,
                hold_off,
            };
            let _answer = self.transition(&resource, op).await;
        }
    }
}
