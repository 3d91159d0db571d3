//! The model's registers, and their faults.

use aster_lease::{
    ExpectedRevision, Fence, LeaseOp, REGISTER_BYTES_MAX, RegisterDecision, RegisterError,
    RegisterValue, RegisterWrite, Registers, ResourceName, SerializerError, WriteId,
    already_released, write_register,
};
use async_trait::async_trait;

use super::{Fault, State, Store};

#[async_trait]
impl Registers for Store {
    async fn read(&self, resource: &str) -> Result<Option<RegisterValue>, SerializerError> {
        let resource = ResourceName::new(resource)?;
        Ok(self
            .lock()
            .registers
            .get(&resource)
            .map(|(_, value)| value.clone()))
    }

    async fn compare_and_set_with_id(
        &self,
        fence: &Fence,
        writer: &str,
        expected: ExpectedRevision,
        value: Vec<u8>,
        write_id: WriteId,
    ) -> Result<u64, RegisterError> {
        let mut state = self.lock();
        match self.fault {
            Fault::RegisterChecksNothing => {}
            Fault::RegisterIgnoresTheWriter => self.check(&state, fence, &fence.holder)?,
            _ => self.check(&state, fence, writer)?,
        }
        let write = RegisterWrite {
            expected,
            value,
            write_id,
        };
        self.put_register(&mut state, fence, write)
    }

    async fn compare_and_set(
        &self,
        fence: &Fence,
        writer: &str,
        expected: ExpectedRevision,
        value: Vec<u8>,
    ) -> Result<u64, RegisterError> {
        let id = {
            let mut state = self.lock();
            state.writes += 1;
            state.writes
        };
        let mut bytes = [0; 16];
        bytes[8..].copy_from_slice(&id.to_be_bytes());
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
        let mut state = self.lock();
        if let Err(rejection) = self.check(&state, fence, writer) {
            let row = state.rows.get(&fence.resource);
            let epoch = self.view(&state, &fence.resource, row).epoch();
            let register = state.registers.get(&fence.resource);
            let (current, written_at) = match register {
                Some((current, value)) => (Some(current), value.epoch),
                None => (None, 0),
            };
            let done = already_released(current, written_at, epoch, fence.epoch, write_id);
            return match done {
                Some(revision) if self.fault != Fault::ReleaseWithValueIsNotRecognized => {
                    Ok(revision)
                }
                _ => Err(rejection.into()),
            };
        }
        let write = RegisterWrite {
            expected,
            value,
            write_id,
        };
        let is_written = state
            .registers
            .get(&fence.resource)
            .is_some_and(|(register, _)| register.write_id == write_id);
        let answer = match self.fault {
            Fault::ReleaseWithValueLosesTheValue => Ok(1),
            _ => self.put_register(&mut state, fence, write),
        };
        let is_released = match self.fault {
            Fault::ReleaseWithValueKeepsTheLease => false,
            Fault::ConflictReleasesAnyway => true,
            Fault::WrittenValueIsNotReleasedWith => answer.is_ok() && !is_written,
            _ => answer.is_ok(),
        };
        if is_released {
            let release = LeaseOp::Release {
                holder: fence.holder.clone(),
                epoch: fence.epoch,
            };
            self.step(&mut state, &fence.resource, &release)?;
            self.show(&mut state, &fence.resource);
            if self.fault != Fault::ReleaseWithValueDoesNotHandOver {
                self.hand_over(&mut state, &fence.resource);
            }
        }
        answer
    }
}

impl Store {
    /// The register rule, with the model's fault in it.
    fn put_register(
        &self,
        state: &mut State,
        fence: &Fence,
        mut write: RegisterWrite,
    ) -> Result<u64, RegisterError> {
        let mut current = state
            .registers
            .get(&fence.resource)
            .map(|(register, _)| *register);
        match (self.fault, &mut current) {
            (Fault::RegisterRetryWritesAgain, Some(register)) => {
                register.write_id = WriteId::from_bytes([255; 16]);
                write.expected = ExpectedRevision::Any;
            }
            (Fault::RegisterIgnoresTheRevision, _) => write.expected = ExpectedRevision::Any,
            (Fault::RegisterStartsOver, Some(register)) => register.value_revision = 0,
            (Fault::RegisterCutsTheValue, _) => write.value.truncate(100),
            _ => {}
        }
        let decision = write_register(current.as_ref(), &write, REGISTER_BYTES_MAX);
        match decision.map_err(SerializerError::from)? {
            RegisterDecision::Write(register) => {
                let value_revision = register.value_revision;
                let value = RegisterValue {
                    value: write.value,
                    value_revision,
                    epoch: fence.epoch,
                };
                state
                    .registers
                    .insert(fence.resource.clone(), (register, value));
                Ok(value_revision)
            }
            RegisterDecision::AlreadyWritten { value_revision } => Ok(value_revision),
            RegisterDecision::Conflict { current } => Err(RegisterError::Conflict { current }),
        }
    }
}
