//! The register: a small value beside a row, changed only under a fence.

use alloc::vec::Vec;

use crate::error::{InvalidInput, RuleError};
use crate::id::WriteId;
use crate::row::EPOCH_MAX;

/// The largest register value by default, in bytes: 1 MiB. A store may be told a smaller bound.
pub const REGISTER_BYTES_MAX: usize = 1024 * 1024;

/// What a store keeps for a register, beside the value itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RegisterState {
    /// Grows by one with every write and never goes back, whoever writes.
    pub value_revision: u64,
    /// The id of the last write.
    pub write_id: WriteId,
}

/// Which value a write expects to replace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ExpectedRevision {
    /// Whatever is there. The fence already keeps every other writer out, but not this holder's own
    /// earlier write: only the last write id is remembered, so a late duplicate of an older write is
    /// written again. Where requests can be repeated out of order, name the revision.
    Any,
    /// Nothing was ever written.
    Absent,
    /// Exactly this revision.
    Exactly(u64),
}

impl From<u64> for ExpectedRevision {
    fn from(value_revision: u64) -> Self {
        ExpectedRevision::Exactly(value_revision)
    }
}

/// One write, checked against the bound before anything else looks at it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RegisterWrite {
    /// What it expects to replace.
    pub expected: ExpectedRevision,
    /// The new value.
    pub value: Vec<u8>,
    /// The same for all retries of this write.
    pub write_id: WriteId,
}

/// What a store has to do with a write that passed the fence rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RegisterDecision {
    /// Store the value at this revision.
    Write(RegisterState),
    /// The row already holds this very write: answer its revision again.
    AlreadyWritten {
        /// The revision that the first attempt made.
        value_revision: u64,
    },
    /// Another value is there.
    Conflict {
        /// Its revision, `None` when nothing was ever written.
        current: Option<u64>,
    },
}

/// The register rule: compare the revision, count it up, recognize a retry by its write id. The
/// caller has passed [`check_fence`](crate::check_fence) in the same lock or transaction.
///
/// # Errors
///
/// [`InvalidInput::ValueTooLarge`] over `bytes_max`; [`RuleError::EpochExhausted`] when no revision
/// is left.
pub fn write_register(
    current: Option<&RegisterState>,
    write: &RegisterWrite,
    bytes_max: usize,
) -> Result<RegisterDecision, RuleError> {
    if write.value.len() > bytes_max {
        return Err(InvalidInput::ValueTooLarge {
            bytes: write.value.len(),
            bytes_max,
        }
        .into());
    }
    if let Some(state) = current
        && state.write_id == write.write_id
    {
        return Ok(RegisterDecision::AlreadyWritten {
            value_revision: state.value_revision,
        });
    }
    let revision = current.map(|state| state.value_revision);
    let matches = match write.expected {
        ExpectedRevision::Any => true,
        ExpectedRevision::Absent => revision.is_none(),
        ExpectedRevision::Exactly(expected) => revision == Some(expected),
    };
    if !matches {
        return Ok(RegisterDecision::Conflict { current: revision });
    }
    let last = revision.unwrap_or(0);
    match last.checked_add(1) {
        Some(value_revision) if value_revision <= EPOCH_MAX => {
            Ok(RegisterDecision::Write(RegisterState {
                value_revision,
                write_id: write.write_id,
            }))
        }
        _ => Err(RuleError::EpochExhausted { epoch: last }),
    }
}

/// Whether a `release_with_value` that the fence rule refused is the retry of one that was carried
/// out: the register still holds this very write, made under this very epoch, and that epoch is over.
/// Answers the revision that the first attempt made.
///
/// `current` and `current_epoch` are the register's, and `row_epoch` is the row's present epoch, read
/// in the same lock or transaction.
#[must_use]
pub fn already_released(
    current: Option<&RegisterState>,
    current_epoch: u64,
    row_epoch: u64,
    carried_epoch: u64,
    write_id: WriteId,
) -> Option<u64> {
    current
        .filter(|state| state.write_id == write_id)
        .filter(|_| current_epoch == carried_epoch && row_epoch > carried_epoch)
        .map(|state| state.value_revision)
}
