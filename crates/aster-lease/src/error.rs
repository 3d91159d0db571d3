//! What can fail, and what to do about it.
//!
//! A denial is an answer and stands in the outcome types. These errors say that there was no answer,
//! or that the call was wrong.

use std::error::Error;
use std::time::Duration;

use aster_core::{DenyReason, ErrorKind, FenceRejection, InvalidInput, RuleError};

use crate::entropy::EntropyError;
use crate::handle::LeaseEnded;
use crate::registers::RegisterError;

/// The underlying cause of a failure, kept for reports.
pub type Source = Box<dyn Error + Send + Sync + 'static>;

/// A serializer could not answer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SerializerError {
    /// The call carries something that this serializer does not accept. Nothing has changed.
    #[error(transparent)]
    Rule(#[from] RuleError),
    /// Others kept the store busy for too long.
    #[error("the store is busy: {message}; try again")]
    Busy {
        /// What kept it busy.
        message: String,
    },
    /// Too many requests wait already.
    #[error("the store has too many waiting requests: try again after {retry_after:?}")]
    Overloaded {
        /// How long to wait before the next try.
        retry_after: Duration,
    },
    /// No answer within the time given. The request may or may not have been carried out; a retry of
    /// the same request is recognized.
    #[error("no answer from the store within {after:?}; try again")]
    Timeout {
        /// How long was waited.
        after: Duration,
    },
    /// The store cannot be reached at present.
    #[error("the store cannot be reached: {message}")]
    Unavailable {
        /// What was tried.
        message: String,
        /// Why it failed.
        #[source]
        source: Option<Source>,
    },
    /// The medium failed: disk full, read-only, I/O error, damaged file. Nothing was acknowledged.
    #[error("the store failed: {message}")]
    Storage {
        /// What failed and what to do.
        message: String,
        /// Why it failed.
        #[source]
        source: Option<Source>,
    },
    /// The store refuses to serve until an operator acts: it may have gone back in time, was written
    /// by a newer version, or was given a new authority.
    #[error("the store refuses to serve: {message}")]
    Refused {
        /// Why, and what the operator has to do.
        message: String,
    },
    /// This store cannot do this at all.
    #[error("this store does not support {operation}: see the capability table in the docs")]
    Unsupported {
        /// What was asked for.
        operation: &'static str,
    },
    /// A protected closure called back into the resource that it has locked.
    #[error("called from inside a protected closure of the same resource: call it afterwards")]
    Reentrant,
    /// The store was closed.
    #[error("the store is closed")]
    Closed,
    /// The serializer broke its own contract, or we did.
    #[error("unexpected answer of the serializer: {message} (please report this)")]
    Unexpected {
        /// What was answered and what was expected.
        message: String,
    },
}

impl SerializerError {
    /// What to do about it.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        match self {
            SerializerError::Rule(error) => error.kind(),
            SerializerError::Busy { .. }
            | SerializerError::Overloaded { .. }
            | SerializerError::Timeout { .. }
            | SerializerError::Unavailable { .. } => ErrorKind::Retry,
            SerializerError::Refused { .. } | SerializerError::Closed => ErrorKind::Stop,
            SerializerError::Unsupported { .. } | SerializerError::Reentrant => ErrorKind::FixCall,
            SerializerError::Storage { .. } | SerializerError::Unexpected { .. } => {
                ErrorKind::Report
            }
        }
    }
}

impl From<EntropyError> for SerializerError {
    fn from(error: EntropyError) -> Self {
        SerializerError::Storage {
            message: error.to_string(),
            source: Some(error.into()),
        }
    }
}

impl From<InvalidInput> for SerializerError {
    fn from(invalid: InvalidInput) -> Self {
        SerializerError::Rule(invalid.into())
    }
}

/// A holder's operation failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LeaseError {
    /// A name or an option is not acceptable. Nothing was sent.
    #[error(transparent)]
    Invalid(#[from] InvalidInput),
    /// The serializer could not answer, also after the retries that its error allows.
    #[error(transparent)]
    Serializer(#[from] SerializerError),
    /// The serializer refused an operation, and not for now only.
    #[error("{operation} was denied: {reason}")]
    Denied {
        /// `release`, `revoke`, or the `acquire` of a leader loop.
        operation: &'static str,
        /// Why.
        reason: DenyReason,
    },
    /// The lease had ended, and not by a release of its own, before it could be released with a value.
    /// Nothing was written. A plain release still frees the resource if it was not taken.
    #[error(transparent)]
    Ended(#[from] LeaseEnded),
    /// The value of a release was refused, and with it the release.
    #[error(transparent)]
    Register(RegisterError),
    /// A release with a value had no answer at first, and when it was asked for again ownership had moved
    /// on: by this very release, or in another way. The value may have been written, and may have been
    /// replaced since; the lease is over.
    #[error(
        "the release had no answer, and ownership has moved on since: read the register to see whether \
         the value was written"
    )]
    Unsettled,
    /// Guarded work blocks its thread and has not come back to its guard, so the resource was not
    /// released under it. The fence has ended; the resource is free one ttl after the last renewal, or
    /// by another release once the work is done.
    #[error(
        "{guards} guarded tasks still run, so the lease was not released: let them end, and release \
         again"
    )]
    StillWorking {
        /// How many.
        guards: usize,
    },
    /// No randomness for an id.
    #[error(transparent)]
    Entropy(#[from] EntropyError),
    /// The engine renews in the background and needs a tokio runtime for that.
    #[error("no tokio runtime with a timer: call this inside one")]
    NoRuntime,
}

impl LeaseError {
    /// What to do about it.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        match self {
            LeaseError::Invalid(invalid) => invalid.kind(),
            LeaseError::Serializer(error) => error.kind(),
            LeaseError::Denied { .. } => ErrorKind::Stop,
            LeaseError::Ended(ended) => ended.kind(),
            LeaseError::Register(error) => error.kind(),
            LeaseError::Unsettled => ErrorKind::Stop,
            LeaseError::StillWorking { .. } => ErrorKind::Retry,
            LeaseError::Entropy(_) => ErrorKind::Report,
            LeaseError::NoRuntime => ErrorKind::FixCall,
        }
    }
}

impl From<RegisterError> for LeaseError {
    fn from(error: RegisterError) -> Self {
        match error {
            RegisterError::Store(error) => LeaseError::Serializer(error),
            error => LeaseError::Register(error),
        }
    }
}

/// A protected write did not happen: the fence was refused, the store failed, or the user's own
/// operation did.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FencedError<E> {
    /// The fence rule refused it. Do not retry under this fence.
    #[error(transparent)]
    Rejected(FenceRejection),
    /// The store could not run or keep it.
    #[error(transparent)]
    Store(SerializerError),
    /// The user's own operation failed; nothing of it was kept where the store can undo it.
    #[error("the protected operation failed")]
    Operation(#[source] E),
}

impl<E> FencedError<E> {
    /// What to do about it. The user's own error is [`ErrorKind::FixCall`] to us: only the caller
    /// knows.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        match self {
            FencedError::Rejected(rejection) => rejection_kind(rejection),
            FencedError::Store(error) => error.kind(),
            FencedError::Operation(_) => ErrorKind::FixCall,
        }
    }
}

impl<E> From<FenceRejection> for FencedError<E> {
    fn from(rejection: FenceRejection) -> Self {
        FencedError::Rejected(rejection)
    }
}

impl<E> From<SerializerError> for FencedError<E> {
    fn from(error: SerializerError) -> Self {
        FencedError::Store(error)
    }
}

/// What to do about a rejected write: stop, except for misuse and for a fence from the future.
#[must_use]
pub fn rejection_kind(rejection: &FenceRejection) -> ErrorKind {
    match rejection {
        FenceRejection::FutureEpoch { .. } => ErrorKind::Report,
        FenceRejection::WrongResource | FenceRejection::Reentrant => ErrorKind::FixCall,
        _ => ErrorKind::Stop,
    }
}
