//! The suites at a store that exists already and serves others meanwhile.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use aster_lease::{
    Authority, Entropy, EntropyError, ExpectedRevision, Fence, GrantId, LeaseOp, LeaseSerializer,
    LeaseSnapshot, LeaseWatch, ListQuery, RegisterError, Registers, ResourceName, SerializerError,
    TransitionOutcome, WaitOutcome, WaitRequest, Waiter, entropy,
};
use async_trait::async_trait;

use crate::fenced_resource::FENCED_RESOURCE;
use crate::harness::{Harness, Written};
use crate::report::{Case, Report};
use crate::{fenced_resource_suite, registers_suite, serializer_suite};

/// What the names begin with that [`Live`] uses, and nobody else should: what lists a store for people may
/// leave them out.
pub const SCRATCH_PREFIX: &str = "aster-verify/";

type Observer = Box<dyn Fn(Progress<'_>) + Send + Sync>;

/// How far a run of [`Live`] is.
#[derive(Debug, Clone, Copy)]
pub enum Progress<'a> {
    /// A case begins.
    Began {
        /// Its suite.
        suite: &'static str,
        /// Its name.
        name: &'static str,
    },
    /// A case has ended.
    Ended {
        /// Its suite.
        suite: &'static str,
        /// The case and what became of it.
        case: &'a Case,
    },
}

/// Runs the suites at an existing store, under names that nobody else uses: [`SCRATCH_PREFIX`], a random
/// id and a number for each case. Everything else in the store is left alone.
///
/// Whatever a case took is released before the next one begins, and no lease or hold-off is for longer
/// than ten minutes: a run that is killed leaves the few leases of one case. What stays is listed at
/// [`clean_up`](Self::clean_up).
///
/// Its clock cannot be moved, it is not restarted and no second one can be made: the cases that need
/// this are not checked. Cases about time wait for it, about half a minute altogether. The protected
/// write of the resource suite is a register write; a store without registers leaves it unchecked.
///
/// ```
/// use std::sync::Arc;
/// use aster_conformance::Live;
/// use aster_lease::{MemorySerializer, SystemEntropy};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let store = Arc::new(MemorySerializer::new());
/// let live = Live::new(store.clone(), Some(store), &SystemEntropy)?;
/// # if false {
/// for report in live.run().await {
///     report.assert_passed();
/// }
/// # }
/// # Ok(())
/// # }
/// ```
pub struct Live {
    serializer: Arc<dyn LeaseSerializer>,
    registers: Option<Arc<dyn Registers>>,
    prefix: String,
    cases: AtomicU64,
    /// The cases of the suite that runs share their names.
    is_sharing: AtomicBool,
    asked_for: Arc<AskedFor>,
    /// Those of earlier cases that could not be released then.
    left: AskedFor,
    observer: Option<Observer>,
}

/// The names that were asked for, so that nothing stays held.
type AskedFor = Mutex<BTreeSet<ResourceName>>;

fn locked(names: &AskedFor) -> MutexGuard<'_, BTreeSet<ResourceName>> {
    names.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Live {
    /// For the store of `serializer` and, if it has any, its registers.
    ///
    /// # Errors
    ///
    /// [`EntropyError`] when there is no randomness for the prefix.
    pub fn new(
        serializer: Arc<dyn LeaseSerializer>,
        registers: Option<Arc<dyn Registers>>,
        random: &dyn Entropy,
    ) -> Result<Self, EntropyError> {
        let id = entropy::write_id(random)?;
        Ok(Self {
            serializer,
            registers,
            prefix: format!("{SCRATCH_PREFIX}{id}/"),
            cases: AtomicU64::new(0),
            is_sharing: AtomicBool::new(false),
            asked_for: Arc::default(),
            left: AskedFor::default(),
            observer: None,
        })
    }

    /// Calls `observer` when a case begins and when it has ended.
    #[must_use]
    pub fn on_progress(mut self, observer: impl Fn(Progress<'_>) + Send + Sync + 'static) -> Self {
        self.observer = Some(Box::new(observer));
        self
    }

    /// What all names of this run begin with.
    #[must_use]
    pub fn prefix(&self) -> &str {
        &self.prefix
    }

    /// All suites, and then [`clean_up`](Self::clean_up).
    pub async fn run(&self) -> Vec<Report> {
        let reports = vec![
            serializer_suite(self).await,
            fenced_resource_suite(self).await,
            registers_suite(self).await,
        ];
        self.clean_up().await;
        reports
    }

    /// Releases whatever of this run is still held; answers how many it could not. Rows that carry a
    /// register stay, as they do in every store; the others go when the store drops idle rows, at the
    /// stores of Aster after an hour. What an audit trail has, it keeps. Call it when
    /// [`run`](Self::run) was given up.
    pub async fn clean_up(&self) -> usize {
        let left = std::mem::take(&mut *locked(&self.left));
        locked(&self.asked_for).extend(left);
        self.release().await;
        locked(&self.left).len()
    }

    /// What cannot be released now is left for the end. A name is forgotten once it is free and not
    /// before, for who gives up in between.
    async fn release(&self) {
        let names = locked(&self.asked_for).clone();
        for name in names {
            if !self.is_free(&name).await {
                locked(&self.left).insert(name.clone());
            }
            locked(&self.asked_for).remove(&name);
        }
    }

    /// Ends what is held, of waiters that died in the queue too.
    async fn is_free(&self, name: &ResourceName) -> bool {
        const OWNERS_MAX: usize = 64;
        for _ in 0..OWNERS_MAX {
            let Ok(LeaseSnapshot {
                holder: Some(holder),
                epoch,
                ..
            }) = self.serializer.snapshot(name).await
            else {
                return true;
            };
            let release = LeaseOp::Release { holder, epoch };
            if self.serializer.transition(name, release).await.is_err() {
                return false;
            }
        }
        false
    }
}

impl fmt::Debug for Live {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Live")
            .field("prefix", &self.prefix)
            .finish_non_exhaustive()
    }
}

/// One case's part of the store.
pub struct LiveStore {
    prefix: String,
    serializer: Noting,
    registers: Option<Arc<dyn Registers>>,
}

impl fmt::Debug for LiveStore {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("LiveStore")
            .field("prefix", &self.prefix)
            .finish_non_exhaustive()
    }
}

#[async_trait]
impl Harness for Live {
    type Store = LiveStore;

    async fn fresh(&self) -> LiveStore {
        // So that a run that is killed leaves no more than its last case held.
        self.release().await;
        let case = self.cases.fetch_add(1, Ordering::Relaxed);
        let (prefix, wishes) = match self.is_sharing.load(Ordering::Relaxed) {
            true => (format!("{}shared/", self.prefix), case),
            false => (format!("{}{case}/", self.prefix), 0),
        };
        LiveStore {
            prefix,
            serializer: Noting {
                inner: Arc::clone(&self.serializer),
                asked_for: Arc::clone(&self.asked_for),
                wishes,
            },
            registers: self.registers.clone(),
        }
    }

    fn serializer<'a>(&self, store: &'a LiveStore) -> &'a dyn LeaseSerializer {
        &store.serializer
    }

    fn prefix<'a>(&self, store: &'a LiveStore) -> &'a str {
        &store.prefix
    }

    fn registers<'a>(&self, store: &'a LiveStore) -> Option<&'a dyn Registers> {
        store.registers.as_deref()
    }

    async fn write(&self, store: &LiveStore, fence: &Fence, writer: &str, value: &str) -> Written {
        let Some(registers) = &store.registers else {
            return Written::NotPossible;
        };
        let any = ExpectedRevision::Any;
        match registers
            .compare_and_set(fence, writer, any, value.as_bytes().to_vec())
            .await
        {
            Ok(_) => Written::Accepted,
            Err(RegisterError::Rejected(rejection)) => Written::Rejected(Some(rejection)),
            Err(error) => Written::Failed(error.to_string()),
        }
    }

    async fn read(&self, store: &LiveStore, resource: &str) -> Option<String> {
        let value = store.registers.as_ref()?.read(resource).await.ok()??.value;
        String::from_utf8(value).ok()
    }

    fn clock_runs(&self) -> bool {
        true
    }

    fn began(&self, suite: &'static str, name: &'static str) {
        // Its cases start from whatever value there is; those of the other suites from none.
        let is_sharing = suite == FENCED_RESOURCE;
        self.is_sharing.store(is_sharing, Ordering::Relaxed);
        if let Some(observer) = &self.observer {
            observer(Progress::Began { suite, name });
        }
    }

    fn ended(&self, suite: &'static str, case: &Case) {
        if let Some(observer) = &self.observer {
            observer(Progress::Ended { suite, case });
        }
    }
}

/// Notes what is asked for, and asks for it.
struct Noting {
    inner: Arc<dyn LeaseSerializer>,
    asked_for: Arc<AskedFor>,
    /// Makes the case's grant ids its own, where the cases before it used the same names. 0: none did.
    wishes: u64,
}

impl Noting {
    fn wish(&self, id: GrantId) -> GrantId {
        let mut bytes = *id.as_bytes();
        for (byte, of_case) in bytes.iter_mut().zip(self.wishes.to_be_bytes()) {
            *byte ^= of_case;
        }
        GrantId::from_bytes(bytes)
    }

    fn op(&self, mut op: LeaseOp) -> LeaseOp {
        if let LeaseOp::Acquire { grant_id, .. } | LeaseOp::Cancel { grant_id, .. } = &mut op {
            *grant_id = self.wish(*grant_id);
        }
        op
    }

    fn note(&self, resource: &str) {
        if let Ok(name) = ResourceName::new(resource) {
            locked(&self.asked_for).insert(name);
        }
    }
}

#[async_trait]
impl LeaseSerializer for Noting {
    async fn transition(
        &self,
        resource: &str,
        op: LeaseOp,
    ) -> Result<TransitionOutcome, SerializerError> {
        self.note(resource);
        self.inner.transition(resource, self.op(op)).await
    }

    async fn snapshot(&self, resource: &str) -> Result<LeaseSnapshot, SerializerError> {
        self.inner.snapshot(resource).await
    }

    fn batch_max(&self) -> usize {
        self.inner.batch_max()
    }

    async fn transition_many(
        &self,
        requests: Vec<(ResourceName, LeaseOp)>,
    ) -> Vec<Result<TransitionOutcome, SerializerError>> {
        let ours = |(resource, op): (ResourceName, LeaseOp)| {
            self.note(&resource);
            (resource, self.op(op))
        };
        let requests = requests.into_iter().map(ours).collect();
        self.inner.transition_many(requests).await
    }

    async fn acquire_wait(
        &self,
        resource: &str,
        mut request: WaitRequest,
    ) -> Result<WaitOutcome, SerializerError> {
        self.note(resource);
        request.grant_id = self.wish(request.grant_id);
        self.inner.acquire_wait(resource, request).await
    }

    async fn queue(&self, resource: &str) -> Result<Vec<Waiter>, SerializerError> {
        self.inner.queue(resource).await
    }

    async fn watch(&self, resource: &str) -> Result<LeaseWatch, SerializerError> {
        self.inner.watch(resource).await
    }

    async fn list(&self, query: ListQuery) -> Result<Vec<LeaseSnapshot>, SerializerError> {
        self.inner.list(query).await
    }

    async fn authority(&self) -> Result<Authority, SerializerError> {
        self.inner.authority().await
    }
}
