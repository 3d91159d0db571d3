//! The store as its users hold it.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use aster_core::{Authority, LeaseOp, LeaseSnapshot, Principal, ResourceName, TransitionOutcome};
use aster_lease::{
    AuditLog, AuditQuery, AuditRecord, LeaseSerializer, LeaseWatch, ListQuery, Metrics,
    SerializerError, WAIT_MAX, WaitOutcome, WaitRequest, Waiter,
};
use async_trait::async_trait;
use tokio::sync::oneshot;

use crate::batch::{Asked, Item, TransitionRequest};
use crate::error::OpenError;
use crate::looking::Looking;
use crate::open::{self, Adopted};
use crate::options::SqliteOptions;
use crate::reader::{self, Reader};
use crate::renewals::{self, Renewals, Request};
use crate::shared::Shared;
use crate::wishes::Join;
use crate::worker::{Worker, answer};
use crate::writer::{self, Writer};

/// A durable store of leases, registers and audit records in one SQLite file, for the processes of
/// one machine.
#[doc = include_str!("serializer.md")]
#[derive(Clone)]
pub struct SqliteSerializer {
    pub(crate) inner: Arc<Inner>,
}

/// One opening of a file. Its threads end when the last clone is dropped, in the order of the fields:
/// renewals and whoever looks after waiting callers may still ask the writer for something.
pub(crate) struct Inner {
    pub(crate) reader: Worker<reader::Job>,
    pub(crate) renewals: Worker<Vec<Request>>,
    pub(crate) looking: Looking,
    pub(crate) writer: Worker<writer::Job>,
    pub(crate) shared: Arc<Shared>,
}

impl SqliteSerializer {
    /// Opens the store in the file at `path`, with default options. A missing file is made; in a
    /// SQLite file without our tables they are made. The file is switched to a write-ahead log.
    ///
    /// Blocks for as long as the disk takes, and for at most [`BUSY_BOUND`](crate::BUSY_BOUND) while
    /// others keep the file busy.
    ///
    /// # Errors
    ///
    /// [`OpenError`], which says what to do.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, OpenError> {
        Self::open_with(path, SqliteOptions::default())
    }

    /// Opens the store with other options.
    ///
    /// # Errors
    ///
    /// [`OpenError`], which says what to do.
    pub fn open_with(path: impl AsRef<Path>, options: SqliteOptions) -> Result<Self, OpenError> {
        let (shared, main) = open::open(path.as_ref(), options)?;
        let connect = || {
            shared
                .connect()
                .map_err(|error| open::as_open_error(&shared.path, error))
        };
        let io = |source| OpenError::Io {
            path: shared.path.clone(),
            source,
        };
        let writer = Writer::new(shared.clone(), main);
        let writer = Worker::start("aster-sqlite-writer", writer).map_err(io)?;
        let renewals = Renewals {
            shared: shared.clone(),
            main: connect()?,
            side: None,
            writer: writer.sender(),
        };
        let renewals = Worker::start("aster-sqlite-renewals", renewals).map_err(io)?;
        let reader = Reader {
            shared: shared.clone(),
            main: connect()?,
            side: None,
        };
        let reader = Worker::start("aster-sqlite-reader", reader).map_err(io)?;
        Ok(Self {
            inner: Arc::new(Inner {
                reader,
                renewals,
                looking: Looking::new(shared.waiting.clone()),
                writer,
                shared,
            }),
        })
    }

    /// Gives a file that [`open`](Self::open) refused a new authority, so that it can be used again.
    /// Every held lease ends at its next epoch and hold-offs are dropped; values and audit records
    /// stay. Fences of the old authority are refused from then on, and so are processes that still
    /// have the file open.
    ///
    /// This is an operator's decision: first make sure that no other copy of the file is in use, and
    /// that its values are the ones to go on with.
    ///
    /// # Errors
    ///
    /// [`OpenError`], and then nothing has changed.
    pub fn adopt(path: impl AsRef<Path>, operator: &Principal) -> Result<Adopted, OpenError> {
        Self::adopt_with(path, operator, &SqliteOptions::default())
    }

    /// [`adopt`](Self::adopt) with other options.
    ///
    /// # Errors
    ///
    /// [`OpenError`], and then nothing has changed.
    pub fn adopt_with(
        path: impl AsRef<Path>,
        operator: &Principal,
        options: &SqliteOptions,
    ) -> Result<Adopted, OpenError> {
        open::adopt(path.as_ref(), operator, options)
    }

    /// The store's id, carried in every fence that it issues.
    #[must_use]
    pub fn store_authority(&self) -> Authority {
        self.inner.shared.authority
    }

    /// The file, absolute and with links followed.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.inner.shared.path
    }

    /// How many fences from epochs that were never issued this process has refused: forgeries, or the
    /// sign of a store that went back in time.
    #[must_use]
    pub fn future_epoch_rejections(&self) -> u64 {
        self.inner.shared.rejections.future_epochs()
    }

    /// Makes sure that somebody looks after callers who wait.
    fn look_after_callers(&self) -> Result<(), SerializerError> {
        let inner = &self.inner;
        inner.looking.start(&inner.shared, || inner.writer.sender())
    }

    /// Runs `step` on the reader thread.
    pub(crate) async fn read<T: Send + 'static>(
        &self,
        step: impl FnOnce(&mut Reader) -> Result<T, SerializerError> + Send + 'static,
    ) -> Result<T, SerializerError> {
        let (reply, receiver) = oneshot::channel();
        self.inner.reader.submit(Box::new(move |reader| {
            // Nobody waits any more: a read has no other effect.
            let _ = reply.send(step(reader));
        }))?;
        answer(receiver).await
    }

    async fn change(
        &self,
        resource: ResourceName,
        op: LeaseOp,
    ) -> Result<TransitionOutcome, SerializerError> {
        self.inner.shared.refuse_inside()?;
        let request = TransitionRequest { resource, op };
        let (shared, asked_for) = (&self.inner.shared, request.clone());
        let TransitionRequest { resource, op } = &asked_for;
        if shared.is_blocked() || shared.suspects.is_likely_denied(resource, op) {
            let looked = request.clone();
            let look = self.read(move |reader| reader.first_look(&looked)).await?;
            if let Some(denied) = look {
                return Ok(denied);
            }
        }
        let (asked, receiver) = Asked::new(request);
        let job = writer::Job::shared(Item::Transition(asked));
        self.inner.writer.submit(job)?;
        let outcome = answer(receiver).await?;
        let is_denied = matches!(outcome, TransitionOutcome::Denied(..));
        shared.suspects.answered(resource, op, is_denied);
        Ok(outcome)
    }
}

#[async_trait]
impl LeaseSerializer for SqliteSerializer {
    async fn transition(
        &self,
        resource: &str,
        op: LeaseOp,
    ) -> Result<TransitionOutcome, SerializerError> {
        let metrics = &self.inner.shared.options.metrics;
        let (name, timer) = (op.name(), metrics.timer());
        let answer = self.carry_out(resource, op).await;
        metrics.transition(name, &answer, timer);
        answer
    }

    async fn snapshot(&self, resource: &str) -> Result<LeaseSnapshot, SerializerError> {
        let resource = ResourceName::new(resource)?;
        self.read(move |reader| reader.snapshot(&resource)).await
    }

    fn batch_max(&self) -> usize {
        renewals::BATCH_MAX
    }

    async fn transition_many(
        &self,
        requests: Vec<(ResourceName, LeaseOp)>,
    ) -> Vec<Result<TransitionOutcome, SerializerError>> {
        let metrics = &self.inner.shared.options.metrics;
        let timer = metrics.timer();
        let names: Vec<_> = requests.iter().map(|(_, op)| op.name()).collect();
        let answers = self.carry_out_many(requests).await;
        for (name, answer) in names.into_iter().zip(&answers) {
            metrics.transition(name, answer, timer);
        }
        answers
    }

    async fn acquire_wait(
        &self,
        resource: &str,
        request: WaitRequest,
    ) -> Result<WaitOutcome, SerializerError> {
        let metrics = &self.inner.shared.options.metrics;
        let timer = metrics.timer();
        let answer = self.wait(resource, request).await;
        metrics.waited(&answer, timer);
        answer
    }

    async fn queue(&self, resource: &str) -> Result<Vec<Waiter>, SerializerError> {
        let resource = ResourceName::new(resource)?;
        self.read(move |reader| reader.queue(&resource)).await
    }

    async fn watch(&self, resource: &str) -> Result<LeaseWatch, SerializerError> {
        let resource = ResourceName::new(resource)?;
        self.look_after_callers()?;
        let present = self.snapshot(&resource).await?;
        let (sender, watch) = LeaseWatch::channel(present);
        self.inner.shared.waiting.watch(&resource, sender)?;
        Ok(watch)
    }

    async fn list(&self, query: ListQuery) -> Result<Vec<LeaseSnapshot>, SerializerError> {
        self.read(move |reader| reader.list(&query)).await
    }

    async fn authority(&self) -> Result<Authority, SerializerError> {
        Ok(self.inner.shared.authority)
    }

    fn metrics(&self) -> Metrics {
        self.inner.shared.options.metrics.clone()
    }
}

impl SqliteSerializer {
    async fn carry_out(
        &self,
        resource: &str,
        op: LeaseOp,
    ) -> Result<TransitionOutcome, SerializerError> {
        let resource = ResourceName::new(resource)?;
        if !matches!(op, LeaseOp::Renew { .. }) {
            return self.change(resource, op).await;
        }
        let (reply, receiver) = oneshot::channel();
        let request = Request {
            resource,
            op,
            reply,
        };
        self.inner.renewals.submit(vec![request])?;
        answer(receiver).await
    }

    async fn carry_out_many(
        &self,
        requests: Vec<(ResourceName, LeaseOp)>,
    ) -> Vec<Result<TransitionOutcome, SerializerError>> {
        // Renewals travel together; whatever else is asked goes one by one, in its order. A renewal
        // and another operation on the same resource in one call may pass each other.
        let mut waiting = Vec::with_capacity(requests.len());
        let mut renewals = Vec::new();
        let mut others = Vec::new();
        for (resource, op) in requests {
            if matches!(op, LeaseOp::Renew { .. }) {
                let (reply, receiver) = oneshot::channel();
                renewals.push(Request {
                    resource,
                    op,
                    reply,
                });
                waiting.push(Some(receiver));
            } else {
                others.push((resource, op));
                waiting.push(None);
            }
        }
        let refused = match renewals.is_empty() {
            true => None,
            false => self.inner.renewals.submit(renewals).err(),
        };
        let mut others = others.into_iter();
        let mut outcomes = Vec::with_capacity(waiting.len());
        for receiver in waiting {
            outcomes.push(match (receiver, &refused) {
                (Some(_), Some(SerializerError::Overloaded { retry_after })) => {
                    Err(SerializerError::Overloaded {
                        retry_after: *retry_after,
                    })
                }
                (Some(_), Some(_)) => Err(SerializerError::Closed),
                (Some(receiver), None) => answer(receiver).await,
                (None, _) => match others.next() {
                    Some((resource, op)) => self.change(resource, op).await,
                    None => Err(SerializerError::Closed),
                },
            });
        }
        outcomes
    }

    async fn wait(
        &self,
        resource: &str,
        request: WaitRequest,
    ) -> Result<WaitOutcome, SerializerError> {
        let resource = ResourceName::new(resource)?;
        let shared = &self.inner.shared;
        shared.refuse_inside()?;
        self.look_after_callers()?;
        let wait = request.wait.min(WAIT_MAX).as_nanos();
        let wait_ns = u64::try_from(wait).unwrap_or(u64::MAX);
        let until_ns = shared.now_ns().saturating_add(wait_ns);
        let (wish, receiver) = shared.waiting.register(&resource, &request, until_ns)?;
        let join = Join::new(shared.waiting.clone(), wish.id, resource, request, until_ns);
        self.inner
            .writer
            .submit(writer::Job::shared(Item::Join(join)))?;
        let outcome = answer(receiver).await;
        wish.done(&outcome);
        outcome
    }
}

#[async_trait]
impl AuditLog for SqliteSerializer {
    async fn audit(&self, query: AuditQuery) -> Result<Vec<AuditRecord>, SerializerError> {
        self.read(move |reader| reader.audit(&query)).await
    }
}

impl fmt::Debug for SqliteSerializer {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("SqliteSerializer")
            .field("path", &self.inner.shared.path)
            .field("authority", &self.inner.shared.authority)
            .finish_non_exhaustive()
    }
}
