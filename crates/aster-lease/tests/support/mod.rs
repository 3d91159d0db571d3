//! Faults, injected by wrapping the public trait.
#![allow(
    dead_code,
    unreachable_pub,
    reason = "each test file uses its own part of this"
)]
#![allow(clippy::unwrap_used, reason = "test code outside a #[test] function")]

pub mod batching;
pub mod turns;

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use aster_lease::{
    AcquireOutcome, Clock, DenyReason, GrantId, LeaseHandle, LeaseOp, LeaseOptions,
    LeaseSerializer, LeaseSnapshot, MemoryOptions, MemorySerializer, Moment, Principal,
    ResourceName, SerializerError, SystemClock, TransitionOutcome, Ttl, WaitOutcome, WaitRequest,
    Waiter,
};
use async_trait::async_trait;

pub const RESOURCE: &str = "catalog/current";
pub const TTL: Duration = Duration::from_secs(30);

/// What happens to one request.
#[derive(Debug, Clone)]
pub enum Fault {
    /// It is carried out and answered.
    None,
    /// It never arrives; the caller waits for ever.
    RequestLost,
    /// It is carried out; the answer never arrives.
    ReplyLost,
    /// It is carried out at once; the answer takes this long.
    ReplyLate(Duration),
    /// The serializer panics: a bug in a store of the user's own.
    Panic,
    /// It is carried out only after the caller has been told of a failure that may pass.
    Busy,
    /// A failure of the medium.
    Storage,
    /// The store was closed.
    Closed,
    /// The store has no such operation.
    Unsupported,
    /// A denial that did not come from the rules.
    Deny(DenyReason),
}

/// A serializer behind a network that misbehaves as it is told.
pub struct Faulty {
    pub store: MemorySerializer,
    script: Mutex<VecDeque<Fault>>,
    always: Mutex<Fault>,
    calls: Mutex<Vec<LeaseOp>>,
    waits: AtomicUsize,
    /// How often a call gives way before and after it reaches the store.
    yields: usize,
}

impl Faulty {
    pub fn new() -> Arc<Self> {
        Self::with_yields(0)
    }

    pub fn with_yields(yields: usize) -> Arc<Self> {
        Self::between(MemorySerializer::new(), yields)
    }

    /// Another way to the same rows.
    pub fn over(store: MemorySerializer) -> Arc<Self> {
        Self::between(store, 0)
    }

    fn between(store: MemorySerializer, yields: usize) -> Arc<Self> {
        Arc::new(Self {
            store,
            script: Mutex::new(VecDeque::new()),
            always: Mutex::new(Fault::None),
            calls: Mutex::new(Vec::new()),
            waits: AtomicUsize::new(0),
            yields,
        })
    }

    /// The next requests meet these, in this order.
    pub fn script(&self, faults: impl IntoIterator<Item = Fault>) {
        self.script.lock().unwrap().extend(faults);
    }

    /// Every request that the script does not speak of meets this.
    pub fn always(&self, fault: Fault) {
        *self.always.lock().unwrap() = fault;
    }

    /// How many requests of a kind were sent.
    pub fn count(&self, name: &str) -> usize {
        self.calls
            .lock()
            .unwrap()
            .iter()
            .filter(|op| op.name() == name)
            .count()
    }

    /// How many requests to wait were sent.
    pub fn waits(&self) -> usize {
        self.waits.load(Ordering::SeqCst)
    }

    /// How many requests were sent, of whatever kind.
    pub fn requests(&self) -> usize {
        self.calls.lock().unwrap().len() + self.waits()
    }

    fn next_fault(&self) -> Fault {
        let next = self.script.lock().unwrap().pop_front();
        next.unwrap_or_else(|| self.always.lock().unwrap().clone())
    }
}

#[async_trait]
impl LeaseSerializer for Faulty {
    async fn transition(
        &self,
        resource: &str,
        op: LeaseOp,
    ) -> Result<TransitionOutcome, SerializerError> {
        self.calls.lock().unwrap().push(op.clone());
        for _ in 0..self.yields {
            tokio::task::yield_now().await;
        }
        let answer = match self.next_fault() {
            Fault::None => self.store.transition(resource, op).await,
            Fault::RequestLost => std::future::pending().await,
            Fault::ReplyLost => {
                let _lost = self.store.transition(resource, op).await;
                std::future::pending().await
            }
            Fault::ReplyLate(late) => {
                let answer = self.store.transition(resource, op).await;
                tokio::time::sleep(late).await;
                answer
            }
            Fault::Panic => panic!("a bug in the serializer"),
            Fault::Busy => Err(SerializerError::Busy {
                message: "told to be".to_owned(),
            }),
            Fault::Storage => Err(SerializerError::Storage {
                message: "no space left".to_owned(),
                source: None,
            }),
            Fault::Closed => Err(SerializerError::Closed),
            Fault::Unsupported => Err(SerializerError::Unsupported {
                operation: "transition",
            }),
            Fault::Deny(reason) => {
                let name = ResourceName::new(resource)?;
                Ok(TransitionOutcome::Denied(
                    reason,
                    LeaseSnapshot::withheld(name),
                ))
            }
        };
        for _ in 0..self.yields {
            tokio::task::yield_now().await;
        }
        answer
    }

    async fn snapshot(&self, resource: &str) -> Result<LeaseSnapshot, SerializerError> {
        self.store.snapshot(resource).await
    }

    /// Requests to wait always get through.
    async fn acquire_wait(
        &self,
        resource: &str,
        request: WaitRequest,
    ) -> Result<WaitOutcome, SerializerError> {
        self.waits.fetch_add(1, Ordering::SeqCst);
        self.store.acquire_wait(resource, request).await
    }

    async fn queue(&self, resource: &str) -> Result<Vec<Waiter>, SerializerError> {
        self.store.queue(resource).await
    }
}

/// The system's clock, ahead by as much as the test says: a machine that was suspended.
pub struct SuspendedClock {
    base: SystemClock,
    ahead: Mutex<Duration>,
}

impl SuspendedClock {
    pub fn new() -> Arc<Self> {
        Arc::new(Self {
            base: SystemClock::new(),
            ahead: Mutex::new(Duration::ZERO),
        })
    }

    /// The machine sleeps; tokio's clock does not notice.
    pub fn suspend(&self, duration: Duration) {
        *self.ahead.lock().unwrap() += duration;
    }
}

impl Clock for SuspendedClock {
    fn now(&self) -> Moment {
        let now = self.base.now();
        Moment {
            boot: now.monotonic + *self.ahead.lock().unwrap(),
            ..now
        }
    }
}

/// A clock that stands still until it is told, with a wall clock of its own.
#[derive(Default)]
pub struct DrivenClock {
    passed: Mutex<Duration>,
    wall_ms: Mutex<u64>,
}

impl DrivenClock {
    pub fn advance(&self, duration: Duration) {
        *self.passed.lock().unwrap() += duration;
    }

    pub fn set_wall_ms(&self, wall_ms: u64) {
        *self.wall_ms.lock().unwrap() = wall_ms;
    }
}

impl Clock for DrivenClock {
    fn now(&self) -> Moment {
        let passed = *self.passed.lock().unwrap();
        Moment {
            monotonic: passed,
            boot: passed,
        }
    }

    fn unix_ms(&self) -> u64 {
        *self.wall_ms.lock().unwrap()
    }
}

/// A store on such a clock.
pub fn store_at(clock: &Arc<DrivenClock>) -> MemorySerializer {
    MemorySerializer::with_options(MemoryOptions {
        clock: clock.clone(),
        ..MemoryOptions::default()
    })
    .unwrap()
}

pub fn options() -> LeaseOptions {
    LeaseOptions::with_ttl(TTL)
}

pub async fn granted<S: LeaseSerializer>(serializer: &Arc<S>, holder: &str) -> LeaseHandle {
    match LeaseHandle::acquire(serializer.clone(), RESOURCE, holder, options()).await {
        Ok(AcquireOutcome::Granted(lease)) => lease,
        other => panic!("{holder} was not granted: {other:?}"),
    }
}

/// Asks the store itself, without a handle.
pub async fn acquire_raw(
    store: &dyn LeaseSerializer,
    holder: &str,
    grant: u8,
) -> TransitionOutcome {
    let op = LeaseOp::Acquire {
        candidate: principal(holder),
        ttl: Ttl::new(TTL).unwrap(),
        grant_id: GrantId::from_bytes([grant; 16]),
    };
    store.transition(RESOURCE, op).await.unwrap()
}

pub fn principal(name: &str) -> Principal {
    Principal::new(name).unwrap()
}

/// Lets every task that can run do so.
pub async fn settle() {
    for _ in 0..64 {
        tokio::task::yield_now().await;
    }
}
