//! A store behind a network that takes renewals in batches, and writes down when and how many.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use aster_lease::{
    Clock, LeaseOp, LeaseSerializer, LeaseSnapshot, MemorySerializer, ResourceName,
    SerializerError, TransitionOutcome,
};
use async_trait::async_trait;
use tokio::sync::Semaphore;

use super::SuspendedClock;

/// What happens to a call that renews a certain resource.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bad {
    /// The whole call never comes back.
    Hangs,
    /// The whole call panics.
    Panics,
    /// The whole call answers one renewal too few: all but the first.
    Shortens,
    /// This renewal alone meets a failure that may pass.
    Fails,
}

/// One call that carried renewals.
#[derive(Debug, Clone)]
pub struct Call {
    pub at: Duration,
    pub resources: Vec<ResourceName>,
}

pub struct Batching {
    pub store: MemorySerializer,
    /// For its leases: tokio's time alone, so that a slow machine does not count.
    pub clock: Arc<SuspendedClock>,
    batch_max: usize,
    bad: Mutex<HashMap<String, Bad>>,
    calls: Mutex<Vec<Call>>,
    /// Calls are carried out when they get a permit, if there is one.
    gate: Mutex<Option<Arc<Semaphore>>>,
}

impl Batching {
    pub fn new(batch_max: usize) -> Arc<Self> {
        Arc::new(Self {
            store: MemorySerializer::new(),
            clock: SuspendedClock::new(),
            batch_max,
            bad: Mutex::default(),
            calls: Mutex::default(),
            gate: Mutex::default(),
        })
    }

    pub fn spoil(&self, resource: &str, bad: Bad) {
        self.bad.lock().unwrap().insert(resource.to_owned(), bad);
    }

    pub fn mend(&self) {
        self.bad.lock().unwrap().clear();
    }

    /// Renewals wait for permits from now on.
    pub fn close_gate(&self) -> Arc<Semaphore> {
        let gate = Arc::new(Semaphore::new(0));
        *self.gate.lock().unwrap() = Some(gate.clone());
        gate
    }

    /// Calls that were held up stay where they are; later ones pass.
    pub fn open_gate(&self) {
        *self.gate.lock().unwrap() = None;
    }

    /// The calls that carried renewals since the last look.
    pub fn take_calls(&self) -> Vec<Call> {
        std::mem::take(&mut self.calls.lock().unwrap())
    }

    pub fn now(&self) -> Duration {
        self.clock.now().monotonic
    }

    async fn arrive(&self, resources: Vec<ResourceName>) -> Option<Bad> {
        let bad = {
            let bad = self.bad.lock().unwrap();
            let found = resources.iter().find_map(|name| bad.get(name.as_str()));
            found.copied()
        };
        let at = self.now();
        self.calls.lock().unwrap().push(Call { at, resources });
        let gate = self.gate.lock().unwrap().clone();
        if let Some(gate) = gate {
            gate.acquire().await.unwrap().forget();
        }
        match bad {
            Some(Bad::Hangs) => std::future::pending().await,
            Some(Bad::Panics) => panic!("a bug in the serializer"),
            other => other,
        }
    }

    fn is_bad(&self, resource: &str) -> bool {
        self.bad.lock().unwrap().contains_key(resource)
    }
}

#[async_trait]
impl LeaseSerializer for Batching {
    async fn transition(
        &self,
        resource: &str,
        op: LeaseOp,
    ) -> Result<TransitionOutcome, SerializerError> {
        if matches!(op, LeaseOp::Renew { .. }) {
            let bad = self.arrive(vec![ResourceName::new(resource)?]).await;
            if bad == Some(Bad::Fails) {
                return Err(busy());
            }
        }
        self.store.transition(resource, op).await
    }

    async fn snapshot(&self, resource: &str) -> Result<LeaseSnapshot, SerializerError> {
        self.store.snapshot(resource).await
    }

    fn batch_max(&self) -> usize {
        self.batch_max
    }

    async fn transition_many(
        &self,
        requests: Vec<(ResourceName, LeaseOp)>,
    ) -> Vec<Result<TransitionOutcome, SerializerError>> {
        let resources = requests.iter().map(|(resource, _)| resource.clone());
        let bad = self.arrive(resources.collect()).await;
        let names: Vec<_> = requests.iter().map(|(name, _)| name.clone()).collect();
        let mut outcomes = self.store.transition_many(requests).await;
        match bad {
            Some(Bad::Shortens) => drop(outcomes.remove(0)),
            Some(Bad::Fails) => {
                for (name, outcome) in names.iter().zip(&mut outcomes) {
                    if self.is_bad(name) {
                        *outcome = Err(busy());
                    }
                }
            }
            _ => {}
        }
        outcomes
    }
}

fn busy() -> SerializerError {
    SerializerError::Busy {
        message: "told to be".to_owned(),
    }
}
