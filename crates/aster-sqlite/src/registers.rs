//! A small value beside each row, written only under a fence.

use aster_core::{
    ExpectedRevision, Fence, FenceRejection, LeaseOp, REGISTER_BYTES_MAX, RegisterDecision,
    RegisterState, RegisterWrite, ResourceName, TransitionOutcome, WriteId, already_released,
    write_register,
};
use aster_lease::{RegisterError, RegisterValue, Registers, SerializerError};
use async_trait::async_trait;
use rusqlite::{Connection, OptionalExtension, TransactionBehavior, params};
use tracing::Instrument;

use crate::batch::{Asked, Batch, Item, Own};
use crate::error::storage;
use crate::mutate::protected_write;
use crate::reader::{Refusal, check_row};
use crate::rows::{self, StoredRow};
use crate::schema::{StoreRow, count, signed};
use crate::serializer::SqliteSerializer;
use crate::shared::Shared;
use crate::side::SideError;
use crate::worker::answer;
use crate::writer::Job;

/// One register write on its way to the writer thread.
#[derive(Debug, Clone)]
pub(crate) struct WriteRequest {
    pub(crate) fence: Fence,
    pub(crate) writer: String,
    pub(crate) write: RegisterWrite,
    /// The lease ends in the same step.
    pub(crate) release: bool,
}

/// What became of a register write.
#[derive(Debug)]
pub(crate) enum Written {
    At(u64),
    Conflict(Option<u64>),
    Refused(Refusal),
}

#[async_trait]
impl Registers for SqliteSerializer {
    async fn read(&self, resource: &str) -> Result<Option<RegisterValue>, SerializerError> {
        let resource = ResourceName::new(resource)?;
        SqliteSerializer::read(self, move |reader| reader.register(&resource)).await
    }

    async fn compare_and_set_with_id(
        &self,
        fence: &Fence,
        writer: &str,
        expected: ExpectedRevision,
        value: Vec<u8>,
        write_id: WriteId,
    ) -> Result<u64, RegisterError> {
        let write = RegisterWrite {
            expected,
            value,
            write_id,
        };
        self.write(fence, writer, write, false).await
    }

    async fn compare_and_set(
        &self,
        fence: &Fence,
        writer: &str,
        expected: ExpectedRevision,
        value: Vec<u8>,
    ) -> Result<u64, RegisterError> {
        let write_id = aster_lease::entropy::write_id(&*self.inner.shared.options.entropy)
            .map_err(SerializerError::from)?;
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
        let write = RegisterWrite {
            expected,
            value,
            write_id,
        };
        self.write(fence, writer, write, true).await
    }
}

impl SqliteSerializer {
    /// A write, counted and in its span.
    async fn write(
        &self,
        fence: &Fence,
        writer: &str,
        write: RegisterWrite,
        release: bool,
    ) -> Result<u64, RegisterError> {
        let metrics = &self.inner.shared.options.metrics;
        let timer = metrics.timer();
        let answer = self
            .ask_to_write(fence, writer, write, release)
            .instrument(protected_write(fence))
            .await;
        let name = match release {
            true => "release_with_value",
            false => "register_write",
        };
        metrics.written(name, &answer, timer);
        answer
    }

    async fn ask_to_write(
        &self,
        fence: &Fence,
        writer: &str,
        write: RegisterWrite,
        release: bool,
    ) -> Result<u64, RegisterError> {
        self.inner.shared.refuse_inside()?;
        let request = WriteRequest {
            fence: fence.clone(),
            writer: writer.to_owned(),
            write,
            release,
        };
        // Who was refused before is refused by a plain read: a stale writer in a loop takes no lock from
        // the owner. While others hold the lock, so is everybody who would wait for it in vain.
        let shared = &self.inner.shared;
        let mut refused = None;
        if shared.is_blocked()
            || shared
                .suspects
                .is_suspect(&fence.resource, writer, fence.epoch)
        {
            let looked = request.clone();
            refused =
                SqliteSerializer::read(self, move |reader| reader.look_at_write(&looked)).await?;
        }
        let written = match refused {
            Some(written) => written,
            None => {
                let (asked, receiver) = Asked::new(request);
                let job = Job::shared(Item::Write(asked));
                let queued = self.inner.writer.submit(job);
                queued.map_err(RegisterError::Store)?;
                answer(receiver).await?
            }
        };
        match written {
            Written::At(value_revision) => Ok(value_revision),
            Written::Conflict(current) => Err(RegisterError::Conflict { current }),
            Written::Refused(refusal) => Err(self.reject(fence, writer, refusal).into()),
        }
    }
}

impl Batch<'_> {
    /// The fence rule, the register rule, the write, and the release if it is asked for.
    pub(crate) fn write(&mut self, request: &WriteRequest) -> Result<Own<Written>, SideError> {
        let WriteRequest {
            fence,
            write,
            release,
            ..
        } = request;
        let resource = &fence.resource;
        let row = rows::load(self.main, resource)?;
        if let Some(written) = refuse(self.main, self.store, row.as_ref(), request)? {
            return Ok(Ok(written));
        }
        let current = load(self.main, resource)?;
        let bytes_max = self.shared.options.register_bytes_max;
        let bytes_max = bytes_max.min(REGISTER_BYTES_MAX);
        let decision = match write_register(current.as_ref(), write, bytes_max) {
            Ok(decision) => decision,
            Err(error) => return Ok(Err(error.into())),
        };
        let (value_revision, is_new) = match decision {
            RegisterDecision::Write(state) => (state.value_revision, true),
            RegisterDecision::AlreadyWritten { value_revision } => (value_revision, false),
            RegisterDecision::Conflict { current } => return Ok(Ok(Written::Conflict(current))),
        };
        // The release comes first: should the rules refuse it, nothing was written.
        if *release {
            let op = LeaseOp::Release {
                holder: fence.holder.clone(),
                epoch: fence.epoch,
            };
            match self.transition_of(resource, row.as_ref(), &op)? {
                Ok(TransitionOutcome::Released) => {}
                Ok(other) => return Ok(Err(not_released(&other))),
                Err(error) => return Ok(Err(error)),
            }
        }
        if is_new {
            put(self.main, request, value_revision, current.is_some())?;
            self.changes.main = true;
        }
        Ok(Ok(Written::At(value_revision)))
    }
}

/// Answers a write that a look at the row already refuses; `None` when it takes the lock to tell.
pub(crate) fn look_at_write(
    shared: &Shared,
    main: &Connection,
    request: &WriteRequest,
) -> Result<Option<Written>, SerializerError> {
    let (transaction, store) = shared.begin(main, TransactionBehavior::Deferred)?;
    let row = rows::load(&transaction, &request.fence.resource)?;
    refuse(&transaction, &store, row.as_ref(), request)
}

/// The fence rule, inside one transaction; `None` if it passes. A release with a value that comes again
/// is recognized.
fn refuse(
    connection: &Connection,
    store: &StoreRow,
    row: Option<&StoredRow>,
    request: &WriteRequest,
) -> Result<Option<Written>, SerializerError> {
    let WriteRequest {
        fence,
        writer,
        write,
        release,
    } = request;
    let Err(refusal) = check_row(store, row, fence, writer) else {
        return Ok(None);
    };
    if *release
        && matches!(refusal.rejection, FenceRejection::StaleEpoch { .. })
        && let Some((epoch, by)) = written_by(connection, &fence.resource)?
        && by == *writer
    {
        let current = load(connection, &fence.resource)?;
        let done = already_released(
            current.as_ref(),
            epoch,
            refusal.current,
            fence.epoch,
            write.write_id,
        );
        if let Some(value_revision) = done {
            return Ok(Some(Written::At(value_revision)));
        }
    }
    Ok(Some(Written::Refused(refusal)))
}

/// The fence rule has passed for the same row, so the rules cannot deny its release.
fn not_released(outcome: &TransitionOutcome) -> SerializerError {
    SerializerError::Unexpected {
        message: format!("the release of a lease whose fence is good was answered {outcome:?}"),
    }
}

fn put(
    connection: &Connection,
    request: &WriteRequest,
    value_revision: u64,
    is_there: bool,
) -> Result<(), SerializerError> {
    // Replacing a row that is there would move it, and its place in the index.
    let sql = if is_there {
        "UPDATE main.aster_registers
         SET value_revision = ?2, epoch = ?3, writer = ?4, write_id = ?5, value = ?6
         WHERE resource = ?1"
    } else {
        "INSERT INTO main.aster_registers
         (resource, value_revision, epoch, writer, write_id, value)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6)"
    };
    let WriteRequest {
        fence,
        writer,
        write,
        ..
    } = request;
    connection
        .prepare_cached(sql)
        .and_then(|mut statement| {
            statement.execute(params![
                fence.resource.as_str(),
                signed(value_revision),
                signed(fence.epoch),
                writer,
                write.write_id.as_bytes(),
                write.value,
            ])
        })
        .map(|_| ())
        .map_err(storage)
}

/// Under which epoch and by whom the value was written.
fn written_by(
    connection: &Connection,
    resource: &ResourceName,
) -> Result<Option<(u64, String)>, SerializerError> {
    connection
        .prepare_cached("SELECT epoch, writer FROM main.aster_registers WHERE resource = ?1")
        .and_then(|mut select| {
            select
                .query_row([resource.as_str()], |row| Ok((count(row, 0)?, row.get(1)?)))
                .optional()
        })
        .map_err(storage)
}

fn load(
    connection: &Connection,
    resource: &ResourceName,
) -> Result<Option<RegisterState>, SerializerError> {
    connection
        .prepare_cached(
            "SELECT value_revision, write_id FROM main.aster_registers WHERE resource = ?1",
        )
        .and_then(|mut select| {
            select
                .query_row([resource.as_str()], |row| {
                    Ok(RegisterState {
                        value_revision: count(row, 0)?,
                        write_id: WriteId::from_bytes(row.get(1)?),
                    })
                })
                .optional()
        })
        .map_err(storage)
}
