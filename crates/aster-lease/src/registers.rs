//! A small protected value beside a row.

use aster_core::{ErrorKind, ExpectedRevision, Fence, FenceRejection, InvalidInput, WriteId};
use async_trait::async_trait;

use crate::error::{SerializerError, rejection_kind};

/// What a register holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RegisterValue {
    /// The value, up to the store's bound (1 MiB by default).
    pub value: Vec<u8>,
    /// Grows by one with every write and never goes back, whoever writes.
    pub value_revision: u64,
    /// The epoch under which it was written.
    pub epoch: u64,
}

/// A register write did not happen.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RegisterError {
    /// The fence rule refused it. Do not retry under this fence.
    #[error(transparent)]
    Rejected(#[from] FenceRejection),
    /// Another value is there than the write expected. Read it and decide again.
    #[error("the register is at revision {}, not at the expected one: read it again", match current {
        Some(revision) => revision.to_string(),
        None => "none (never written)".to_owned(),
    })]
    Conflict {
        /// The present revision; `None` when nothing was ever written.
        current: Option<u64>,
    },
    /// The store could not answer or keep it.
    #[error(transparent)]
    Store(#[from] SerializerError),
}

impl RegisterError {
    /// What to do about it.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        match self {
            RegisterError::Rejected(rejection) => rejection_kind(rejection),
            RegisterError::Conflict { .. } => ErrorKind::Retry,
            RegisterError::Store(error) => error.kind(),
        }
    }
}

impl From<InvalidInput> for RegisterError {
    fn from(invalid: InvalidInput) -> Self {
        RegisterError::Store(invalid.into())
    }
}

/// Values that only the current holder may change. The fence check and the write are one atomic step
/// of the store (specification, "Enforce at the write boundary").
#[async_trait]
pub trait Registers: Send + Sync + 'static {
    /// The value, or `None` when nothing was ever written. Anyone may read; needs no lease.
    ///
    /// # Errors
    ///
    /// [`SerializerError`] when the store cannot be read or the name is not acceptable.
    async fn read(&self, resource: &str) -> Result<Option<RegisterValue>, SerializerError>;

    /// Writes `value` if the fence rule passes and the register is at `expected`; answers the new
    /// revision. As durable as the store when it returns.
    ///
    /// `write_id` names this write. A retry after a lost reply carries the same one and is answered
    /// with the revision that the first attempt made.
    ///
    /// # Errors
    ///
    /// [`RegisterError`]; the value is unchanged, except that after an error of kind
    /// [`Retry`](ErrorKind::Retry) from the store it may have been written: retry with the same
    /// `write_id`.
    async fn compare_and_set_with_id(
        &self,
        fence: &Fence,
        writer: &str,
        expected: ExpectedRevision,
        value: Vec<u8>,
        write_id: WriteId,
    ) -> Result<u64, RegisterError>;

    /// The same under a fresh write id, for a caller who will not retry this very write.
    ///
    /// # Errors
    ///
    /// As [`compare_and_set_with_id`](Self::compare_and_set_with_id), and when there is no
    /// randomness for the id.
    async fn compare_and_set(
        &self,
        fence: &Fence,
        writer: &str,
        expected: ExpectedRevision,
        value: Vec<u8>,
    ) -> Result<u64, RegisterError>;

    /// Writes `value` and releases the lease, both or neither: the next owner finds the value, and no
    /// other write of this epoch comes after it. Answers the new revision.
    ///
    /// A retry after a lost reply carries the same `write_id` and is answered with the revision that
    /// the first attempt made, as long as nobody has written since.
    ///
    /// # Errors
    ///
    /// As [`compare_and_set_with_id`](Self::compare_and_set_with_id): after a rejection or a conflict
    /// this call has done neither half. An earlier call under the same id that had no answer may have
    /// done both, and others may have written since. [`SerializerError::Unsupported`] unless the store
    /// implements it.
    async fn release_with_value(
        &self,
        fence: &Fence,
        writer: &str,
        expected: ExpectedRevision,
        value: Vec<u8>,
        write_id: WriteId,
    ) -> Result<u64, RegisterError> {
        let _ = (fence, writer, expected, value, write_id);
        Err(RegisterError::Store(SerializerError::Unsupported {
            operation: "release_with_value",
        }))
    }
}
