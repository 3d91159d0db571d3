//! Registers of the memory store.

use aster_core::{
    ExpectedRevision, Fence, FenceRejection, LeaseOp, RegisterDecision, RegisterWrite,
    ResourceName, RuleError, TransitionOutcome, WriteId, already_released, check_fence,
    write_register,
};
use async_trait::async_trait;
use tracing::Instrument;

use super::gate::Gated;
use super::rows::{Aftermath, Key, Rows, Terms};
use super::slot::{Register, Slot};
use super::{MemorySerializer, protected_write};
use crate::entropy;
use crate::error::SerializerError;
use crate::registers::{RegisterError, RegisterValue, Registers};

#[async_trait]
impl Registers for MemorySerializer {
    async fn read(&self, resource: &str) -> Result<Option<RegisterValue>, SerializerError> {
        let resource = ResourceName::new(resource)?;
        let key = self.key(&resource);
        let rows = self.shard(key).lock();
        let register = rows.slot(key).and_then(Slot::register);
        Ok(register.map(|register| RegisterValue {
            value: register.value.clone(),
            value_revision: register.state.value_revision,
            epoch: register.epoch,
        }))
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
        self.write(fence, writer, write, Then::Keep).await
    }

    async fn compare_and_set(
        &self,
        fence: &Fence,
        writer: &str,
        expected: ExpectedRevision,
        value: Vec<u8>,
    ) -> Result<u64, RegisterError> {
        let write_id =
            entropy::write_id(&*self.inner.options.entropy).map_err(SerializerError::from)?;
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
        let op = LeaseOp::Release {
            holder: fence.holder.clone(),
            epoch: fence.epoch,
        };
        if !self.authorized(&op, &fence.resource) {
            return Err(RegisterError::Store(SerializerError::Refused {
                message: "the release is not authorized: ask an operator".to_owned(),
            }));
        }
        let write = RegisterWrite {
            expected,
            value,
            write_id,
        };
        self.write(fence, writer, write, Then::Release(op)).await
    }
}

/// What follows a write in the same step.
enum Then {
    Keep,
    Release(LeaseOp),
}

enum Answer {
    Rejected(FenceRejection, u64),
    Written(u64),
    Conflict(Option<u64>),
    Failed(RuleError),
}

impl MemorySerializer {
    /// A write, counted and in its span.
    async fn write(
        &self,
        fence: &Fence,
        writer: &str,
        write: RegisterWrite,
        then: Then,
    ) -> Result<u64, RegisterError> {
        let metrics = &self.inner.options.metrics;
        let timer = metrics.timer();
        let name = match then {
            Then::Keep => "register_write",
            Then::Release(_) => "release_with_value",
        };
        let answer = self
            .write_in_lock(fence, writer, write, then)
            .instrument(protected_write(fence))
            .await;
        metrics.written(name, &answer, timer);
        answer
    }

    async fn write_in_lock(
        &self,
        fence: &Fence,
        writer: &str,
        mut write: RegisterWrite,
        then: Then,
    ) -> Result<u64, RegisterError> {
        let bytes_max = self.inner.options.register_bytes_max;
        let mut after = Aftermath::default();
        let key = self.key(&fence.resource);
        let answer = self
            .shard(key)
            .when_ungated(|rows| {
                let step = Step {
                    terms: &self.terms(),
                    key,
                    fence,
                    writer,
                    then: &then,
                    bytes_max,
                };
                let answer = step.run(rows, &mut write, &mut after);
                self.note(&mut after);
                answer
            })
            .await;
        Self::settle(after);
        match answer.map_err(|_| SerializerError::Reentrant)? {
            Answer::Rejected(rejection, current) => {
                self.audit_rejection(fence, writer, &rejection, current);
                Err(rejection.into())
            }
            Answer::Written(value_revision) => Ok(value_revision),
            Answer::Conflict(current) => Err(RegisterError::Conflict { current }),
            Answer::Failed(error) => Err(SerializerError::from(error).into()),
        }
    }
}

struct Step<'a> {
    terms: &'a Terms<'a>,
    key: Key<'a>,
    fence: &'a Fence,
    writer: &'a str,
    then: &'a Then,
    bytes_max: usize,
}

impl Step<'_> {
    /// Fence rule, register rule, write and, if asked for, release and hand-over.
    fn run(
        &self,
        rows: &mut Rows,
        write: &mut RegisterWrite,
        after: &mut Aftermath,
    ) -> Result<Answer, Gated> {
        let found = rows.find(self.key);
        let view = rows.view(self.terms.authority, found, self.key);
        let current = view.epoch();
        if let Err(rejection) = check_fence(&view, self.fence, self.writer) {
            return Ok(match self.is_done(rows, current, &rejection, write) {
                Some(value_revision) => Answer::Written(value_revision),
                None => Answer::Rejected(rejection, current),
            });
        }
        let Some(id) = found else {
            return Ok(Answer::Rejected(FenceRejection::NotHeld, current));
        };
        let Some(slot) = rows.ungated(id)? else {
            return Ok(Answer::Rejected(FenceRejection::NotHeld, current));
        };
        let present = slot.register().map(|register| &register.state);
        let (value_revision, is_new) = match write_register(present, write, self.bytes_max) {
            Ok(RegisterDecision::Write(state)) => {
                let register = Register {
                    value: std::mem::take(&mut write.value),
                    state,
                    epoch: self.fence.epoch,
                };
                let before = slot.rare_mut().register.replace(register);
                (state.value_revision, Some(before))
            }
            Ok(RegisterDecision::AlreadyWritten { value_revision }) => (value_revision, None),
            Ok(RegisterDecision::Conflict { current }) => return Ok(Answer::Conflict(current)),
            Err(error) => return Ok(Answer::Failed(error)),
        };
        if let Then::Release(op) = self.then
            && let Err(answer) = self.release(rows, op, after)?
        {
            // Both or neither.
            if let (Some(before), Some(slot)) = (is_new, rows.slots.get_mut(id)) {
                slot.rare_mut().register = before;
                slot.tidy();
            }
            return Ok(answer);
        }
        Ok(Answer::Written(value_revision))
    }

    fn release(
        &self,
        rows: &mut Rows,
        op: &LeaseOp,
        after: &mut Aftermath,
    ) -> Result<Result<(), Answer>, Gated> {
        Ok(match rows.transition(self.terms, self.key, op, after)? {
            Ok(TransitionOutcome::Released) => Ok(()),
            // The fence rule has passed in this lock, so this does not happen.
            Ok(_) => Err(Answer::Rejected(FenceRejection::NotHeld, self.fence.epoch)),
            Err(error) => Err(Answer::Failed(error)),
        })
    }

    /// The retry of a write and release that were both carried out.
    fn is_done(
        &self,
        rows: &Rows,
        row_epoch: u64,
        rejection: &FenceRejection,
        write: &RegisterWrite,
    ) -> Option<u64> {
        let is_retry = matches!(self.then, Then::Release(_))
            && matches!(rejection, FenceRejection::StaleEpoch { .. })
            && self.fence.holder == *self.writer;
        let register = rows.slot(self.key)?.register()?;
        let carried = self.fence.epoch;
        let (state, epoch) = (Some(&register.state), register.epoch);
        is_retry
            .then(|| already_released(state, epoch, row_epoch, carried, write.write_id))
            .flatten()
    }
}
