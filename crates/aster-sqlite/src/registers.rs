//! A small value beside each row, written only under a fence.

use std::sync::Arc;

use aster_core::{
    ExpectedRevision, Fence, REGISTER_BYTES_MAX, RegisterDecision, RegisterState, RegisterWrite,
    ResourceName, WriteId, write_register,
};
use aster_lease::{RegisterError, RegisterValue, Registers, SerializerError};
use async_trait::async_trait;
use rusqlite::{Connection, OptionalExtension, params};
use tokio::sync::oneshot;

use crate::error::storage;
use crate::reader::{Refusal, check};
use crate::schema::{signed, unsigned};
use crate::serializer::SqliteSerializer;
use crate::writer::{Changed, Job, Writer, begin};

/// One register write on its way to the writer thread.
#[derive(Debug)]
struct Request {
    fence: Fence,
    writer: String,
    write: RegisterWrite,
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
        let shared = &self.inner.shared;
        shared.refuse_inside()?;
        let request = Request {
            fence: fence.clone(),
            writer: writer.to_owned(),
            write: RegisterWrite {
                expected,
                value,
                write_id,
            },
        };
        let request = Arc::new(request);
        let looking = request.clone();
        // A stale writer in a loop is refused by a plain read and takes no lock from the owner.
        let refused = SqliteSerializer::read(self, move |reader| {
            reader.check(&looking.fence, &looking.writer)
        })
        .await?;
        if let Err(refusal) = refused {
            return Err(self.reject(fence, writer, refusal).into());
        }
        let (reply, receiver) = oneshot::channel();
        self.inner
            .writer
            .submit(Job::new(move |writer| {
                let (answer, changed) = match writer.write_register(&request) {
                    Ok((answer, changed)) => (Ok(answer), changed),
                    Err(error) => (Err(error), None),
                };
                // Nobody waits any more: the write stands, and a retry is recognized.
                let _ = reply.send(answer);
                if let Some(changed) = changed {
                    writer.after_change(None, &changed);
                }
            }))
            .map_err(RegisterError::Store)?;
        match crate::worker::answer(receiver).await? {
            Written::At(value_revision) => Ok(value_revision),
            Written::Conflict(current) => Err(RegisterError::Conflict { current }),
            Written::Refused(refusal) => Err(self.reject(fence, writer, refusal).into()),
        }
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
}

/// What became of a register write.
#[derive(Debug)]
enum Written {
    At(u64),
    Conflict(Option<u64>),
    Refused(Refusal),
}

impl Writer {
    /// The fence rule, the register rule and the write in one transaction.
    fn write_register(
        &mut self,
        request: &Request,
    ) -> Result<(Written, Option<Changed>), SerializerError> {
        let shared = &*self.shared;
        let begun = begin(shared, &self.main, self.patience)?;
        let Request {
            fence,
            writer,
            write,
        } = request;
        if let Err(refusal) = check(&begun.transaction, &begun.store, fence, writer)? {
            return Ok((Written::Refused(refusal), None));
        }
        let current = load(&begun.transaction, &fence.resource)?;
        let bytes_max = shared.options.register_bytes_max.min(REGISTER_BYTES_MAX);
        let state = match write_register(current.as_ref(), write, bytes_max)? {
            RegisterDecision::Write(state) => state,
            RegisterDecision::AlreadyWritten { value_revision } => {
                return Ok((Written::At(value_revision), None));
            }
            RegisterDecision::Conflict { current } => {
                return Ok((Written::Conflict(current), None));
            }
        };
        begun
            .transaction
            .prepare_cached(
                "INSERT OR REPLACE INTO main.aster_registers
                 (resource, value_revision, epoch, writer, write_id, value)
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
            )
            .and_then(|mut insert| {
                insert.execute(params![
                    fence.resource.as_str(),
                    signed(state.value_revision),
                    signed(fence.epoch),
                    writer,
                    write.write_id.as_bytes(),
                    write.value,
                ])
            })
            .map_err(storage)?;
        let store = begun.commit(shared)?;
        let changed = Changed {
            store,
            epoch: fence.epoch,
            ended_hold_offs: Vec::new(),
        };
        Ok((Written::At(state.value_revision), Some(changed)))
    }
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
                        value_revision: unsigned(row.get(0)?),
                        write_id: WriteId::from_bytes(row.get(1)?),
                    })
                })
                .optional()
        })
        .map_err(storage)
}
