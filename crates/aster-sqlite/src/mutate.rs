//! The user's own write under the fence rule, in one transaction.

use aster_core::{Fence, FenceRejection, InvalidInput};
use aster_lease::{FencedError, SerializerError, Writer};
use rusqlite::{Connection, Transaction, TransactionBehavior};

use crate::connection::wait_for_others;
use crate::error::storage;
use crate::gate::{Inside, Turn};
use crate::guard::Guard;
use crate::reader::{Refusal, check};
use crate::serializer::SqliteSerializer;
use crate::writer;

/// The connection for closures, with the guard that watches over them.
#[derive(Debug)]
pub(crate) struct Guarded {
    pub(crate) connection: Connection,
    pub(crate) guard: Guard,
}

impl SqliteSerializer {
    /// Runs `operation` in a transaction of its own if `fence` and `writer` pass the fence rule. The
    /// check and the operation's SQL commit together or not at all (specification, "Enforce at the
    /// write boundary").
    ///
    /// `writer` is the authenticated identity that asks for the write. It comes from the connection,
    /// the database role or the local identity file, never from the fence.
    ///
    /// Inside `operation` everything may be done to the user's own tables, savepoints included.
    /// Refused are `BEGIN`, `COMMIT`, `ROLLBACK`, `ATTACH`, `DETACH`, every `PRAGMA`, and every access
    /// to tables named `aster_*`. SQL that ends the transaction in another way (`INSERT OR ROLLBACK`,
    /// `RAISE(ROLLBACK)`) makes the call fail, and nothing of the operation is kept. An operation
    /// that returns an error or panics leaves nothing behind either; a panic goes on to the caller.
    ///
    /// The call blocks: for as long as the operation runs, and before that while other writers of the
    /// file are at work, up to the busy bound. Other writers wait while it runs, renewals do not. Keep
    /// it short, and call it from where blocking is allowed. The connection is kept for the next
    /// call, so temporary tables live on.
    ///
    /// ```
    /// # use aster_core::{GrantId, LeaseOp, Principal, TransitionOutcome, Ttl};
    /// # use aster_lease::{FencedError, LeaseSerializer};
    /// # use aster_sqlite::SqliteSerializer;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let directory = tempfile::tempdir()?;
    /// # let store = SqliteSerializer::open(directory.path().join("leases.db"))?;
    /// # let acquire = LeaseOp::Acquire {
    /// #     candidate: Principal::new("worker-a")?,
    /// #     ttl: Ttl::from_millis(30_000)?,
    /// #     grant_id: GrantId::from_bytes([1; 16]),
    /// # };
    /// # let granted = store.transition("catalog/current", acquire).await?;
    /// # let TransitionOutcome::Granted(fence) = granted else { panic!() };
    /// # let node_id = "worker-a".to_owned();
    /// let made = store.mutate_fenced(&fence, &node_id, |tx| {
    ///     tx.execute_batch("CREATE TABLE catalog (version INTEGER)")?;
    ///     tx.execute("INSERT INTO catalog VALUES (?1)", [1])
    /// });
    /// match made {
    ///     Ok(rows) => assert_eq!(rows, 1),
    ///     Err(FencedError::Rejected(rejection)) => eprintln!("ownership has ended: {rejection}"),
    ///     Err(other) => return Err(other.into()),
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`FencedError::Rejected`] when the fence rule refuses the write, before `operation` runs;
    /// [`FencedError::Operation`] with what `operation` returned; [`FencedError::Store`] when the
    /// store is busy, refuses to serve or cannot keep the change, and
    /// [`SerializerError::Reentrant`] in it when called from inside another operation on the same
    /// file. After an error nothing has changed, with one exception: when the medium failed in the commit
    /// itself, the change may still show up after the process or the machine has died.
    pub fn mutate_fenced<W, R, E>(
        &self,
        fence: &Fence,
        writer: &W,
        operation: impl FnOnce(&Transaction<'_>) -> Result<R, E>,
    ) -> Result<R, FencedError<E>>
    where
        W: Writer + ?Sized,
    {
        let shared = &*self.inner.shared;
        let writer = writer.writer();
        let _span = protected_write(fence).entered();
        shared.refuse_inside()?;
        self.first_check(fence, writer)?;
        let bound = shared.options.busy_bound;
        let turn = shared
            .gate
            .enter(bound)
            .ok_or_else(|| SerializerError::Busy {
                message: format!(
                    "another writer of this process has been at work for over {bound:?}"
                ),
            })?;
        let guarded = self.connection_for_closures(&turn)?;
        let result = self.run_guarded(&guarded, fence, writer, operation);
        turn.keep_connection(guarded);
        result
    }

    /// A stale writer in a loop is refused by a plain read: it takes no lock from the owner.
    fn first_check<E>(&self, fence: &Fence, writer: &str) -> Result<(), FencedError<E>> {
        let shared = &*self.inner.shared;
        let checked = shared.with_reading_connection(|connection| {
            let (transaction, store) = shared.begin(connection, TransactionBehavior::Deferred)?;
            check(&transaction, &store, fence, writer)
        })?;
        checked.map_err(|refusal| self.reject(fence, writer, refusal).into())
    }

    fn connection_for_closures(&self, turn: &Turn<'_>) -> Result<Guarded, SerializerError> {
        let shared = &*self.inner.shared;
        let mut guarded = match turn.take_connection() {
            Some(guarded) => guarded,
            None => {
                let mut connection = shared.connect()?;
                let guard = Guard::install(&mut connection).map_err(storage)?;
                Guarded { connection, guard }
            }
        };
        // The last closure may have set a patience of its own.
        wait_for_others(&mut guarded.connection, shared.options.busy_bound).map_err(storage)?;
        Ok(guarded)
    }

    fn run_guarded<R, E>(
        &self,
        guarded: &Guarded,
        fence: &Fence,
        writer: &str,
        operation: impl FnOnce(&Transaction<'_>) -> Result<R, E>,
    ) -> Result<R, FencedError<E>> {
        let shared = &*self.inner.shared;
        let connection = &guarded.connection;
        let (transaction, store) = shared.begin(connection, TransactionBehavior::Immediate)?;
        // This check counts: the row cannot change before the commit.
        check(&transaction, &store, fence, writer)?
            .map_err(|refusal| self.reject(fence, writer, refusal))?;
        let (result, has_ended) = {
            let _inside = Inside::enter(shared.file);
            let watch = guarded.guard.watch();
            (operation(&transaction), watch.has_ended())
        };
        // A transaction that is dropped is rolled back.
        let value = result.map_err(FencedError::Operation)?;
        if has_ended || connection.is_autocommit() {
            return Err(FencedError::Store(ended_by_closure()));
        }
        transaction.commit().map_err(commit_failed)?;
        Ok(value)
    }

    /// Counts a rejected write and has it written to the audit trail. The caller does not wait.
    pub(crate) fn reject(&self, fence: &Fence, writer: &str, refusal: Refusal) -> FenceRejection {
        let shared = &*self.inner.shared;
        let Refusal {
            rejection,
            current,
            holder,
        } = refusal;
        shared
            .suspects
            .refused(&fence.resource, writer, fence.epoch);
        shared.options.metrics.rejected(&rejection);
        let now_ns = shared.now_ns();
        let is_new =
            shared
                .rejections
                .note(fence, writer, &rejection, holder.as_ref(), current, now_ns);
        if is_new {
            let job = writer::Job::alone(|writer| writer.write_rejections(false));
            // When the queue is full the writer finds it by itself a moment later.
            let _ = self.inner.writer.submit(job);
        }
        rejection
    }
}

/// What a protected write is followed by in `tracing`.
pub(crate) fn protected_write(fence: &Fence) -> tracing::Span {
    tracing::trace_span!("protected_write", resource = %fence.resource, epoch = fence.epoch)
}

/// Deferred constraints are the only thing in a commit that is the operation's own fault.
fn commit_failed(error: rusqlite::Error) -> SerializerError {
    if error.sqlite_error_code() == Some(rusqlite::ErrorCode::ConstraintViolation) {
        let message = format!(
            "the operation left a deferred constraint violated, so nothing of it was kept: {error}"
        );
        return InvalidInput::Other(message).into();
    }
    storage(error)
}

fn ended_by_closure() -> SerializerError {
    InvalidInput::Other(
        "the operation's SQL ended its transaction (such as INSERT OR ROLLBACK or RAISE(ROLLBACK)), \
         so nothing of it was kept: use OR ABORT or a savepoint instead"
            .to_owned(),
    )
    .into()
}
