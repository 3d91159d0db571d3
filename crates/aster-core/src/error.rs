//! What can be wrong with a call, and what a caller should do about it.

use alloc::string::String;
use core::time::Duration;

use crate::row::EPOCH_MAX;

/// What the caller of a failed operation should do.
///
/// Every error of this project answers `kind()` with one of these.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// Nothing is known to be wrong with the call: try again, with a pause.
    Retry,
    /// Trying again cannot help: ownership has ended, or the store refuses to serve.
    Stop,
    /// The call itself is wrong: change the arguments or the code.
    FixCall,
    /// Something an operator or we have to look at: a disk, a damaged file, a bug.
    Report,
}

impl ErrorKind {
    /// Its stable name, as metrics show it: `retry`, `stop`, `fix_call` or `report`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            ErrorKind::Retry => "retry",
            ErrorKind::Stop => "stop",
            ErrorKind::FixCall => "fix_call",
            ErrorKind::Report => "report",
        }
    }
}

/// Input that no store accepts. Nothing has changed when it is returned.
///
/// Serves the specification's "Connect the grant to enforcement": the fence identifies resource,
/// epoch and holder, so each must be something that every store keeps apart in the same way.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidInput {
    /// An empty resource name, holder or other identity.
    #[error("{what} is empty: give it at least one character")]
    Empty {
        /// Which input: "resource name", "holder", ….
        what: &'static str,
    },
    /// A name longer than its bound.
    #[error(
        "{what} has {bytes} bytes, the bound is {bytes_max}: use a shorter one, or a hash of it"
    )]
    TooLong {
        /// Which input.
        what: &'static str,
        /// How long it was, in bytes of UTF-8.
        bytes: usize,
        /// The bound in bytes.
        bytes_max: usize,
    },
    /// A name with a control character, which would forge lines in logs and listings.
    #[error(
        "{what} holds the control character U+{code_point:04X} at byte {at_byte}: remove or encode it"
    )]
    ControlCharacter {
        /// Which input.
        what: &'static str,
        /// The character's Unicode code point.
        code_point: u32,
        /// Its offset in bytes.
        at_byte: usize,
    },
    /// A duration that is not a whole number of milliseconds above zero.
    #[error("{what} of {duration:?} is not a whole number of milliseconds above zero: round it")]
    NotWholeMillis {
        /// Which duration.
        what: &'static str,
        /// What was given.
        duration: Duration,
    },
    /// A duration outside the serializer's bounds.
    #[error("{what} of {given:?} is outside {min:?} to {max:?}: choose one inside")]
    OutOfBounds {
        /// Which duration.
        what: &'static str,
        /// What was given.
        given: Duration,
        /// The smallest accepted.
        min: Duration,
        /// The largest accepted.
        max: Duration,
    },
    /// An epoch outside 1 to 2^63 - 1.
    #[error("epoch {0} is outside 1 to {EPOCH_MAX}: take it from a fence or a snapshot")]
    Epoch(u64),
    /// Text that is not the 32 hexadecimal digits of a 128-bit id.
    #[error("{what} is not 32 hexadecimal digits")]
    Id {
        /// Which id.
        what: &'static str,
    },
    /// A register value over its bound.
    #[error(
        "the value has {bytes} bytes, the bound is {bytes_max}: store it elsewhere under a name of \
         its own and put that name here"
    )]
    ValueTooLarge {
        /// Its size in bytes.
        bytes: usize,
        /// The bound in bytes.
        bytes_max: usize,
    },
    /// Anything else, said in words.
    #[error("{0}")]
    Other(String),
}

impl InvalidInput {
    /// Always [`ErrorKind::FixCall`].
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        ErrorKind::FixCall
    }
}

/// Why the rules could not answer at all. Nothing has changed when it is returned.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RuleError {
    /// The call carries something that this store does not accept.
    #[error(transparent)]
    Invalid(#[from] InvalidInput),
    /// The resource has used up its epochs (or the revisions of its row or register). A grant always
    /// leaves one epoch and one revision for its own end, so a held row can still be released.
    #[error("resource has used up its epochs or revisions at {epoch}: move to a new resource name")]
    EpochExhausted {
        /// The row's epoch, or the register's last revision.
        epoch: u64,
    },
}

impl RuleError {
    /// What to do about it.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        match self {
            RuleError::Invalid(invalid) => invalid.kind(),
            RuleError::EpochExhausted { .. } => ErrorKind::Report,
        }
    }
}
