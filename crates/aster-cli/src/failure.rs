//! How a command fails: one kind with a stable name and a stable exit code, and a sentence.

use std::io;
use std::process::ExitCode;

use aster::lease::{
    ErrorKind, FenceRejection, InvalidInput, LeaseError, RegisterError, RuleError, SerializerError,
};
use aster::sqlite::OpenError;
use aster::{ConnectError, lease::DenyReason};
use serde::{Deserialize, Serialize};

/// What went wrong, by the name that `--json` prints. Names and exit codes are stable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum FailureKind {
    /// The answer is no: nothing was ever written.
    NothingWritten,
    /// The answer is no: nobody holds it.
    NotHeld,
    /// The answer is no: the register is at another revision than expected, or the resource at another
    /// epoch.
    Conflict,
    /// The answer is no: not everything that was announced was observed.
    NotObserved,
    /// The answer is no: the store breaks a rule.
    RuleBroken,
    /// The command line is wrong.
    Usage,
    /// A name, duration, value, URL or file that nobody accepts.
    InvalidInput,
    /// The command needs a surrounding `aster run`.
    NoRun,
    /// The store, or the surrounding run, cannot be reached.
    Unreachable,
    /// Our own bug.
    Internal,
    /// A disk or a file failed.
    Storage,
    /// Held by another; try later.
    Denied,
    /// Still held by others when the wait ran out.
    WaitRanOut,
    /// The lease was lost.
    LeaseLost,
    /// The resource refused the write.
    WriteRejected,
    /// Not authorized.
    Unauthorized,
    /// An operator's revoke keeps this holder out for now.
    HeldOff,
    /// The store refuses until an operator acts.
    StoreRefused,
}

impl FailureKind {
    /// The documented exit code.
    pub(crate) fn exit_code(self) -> u8 {
        match self {
            FailureKind::NothingWritten
            | FailureKind::NotHeld
            | FailureKind::Conflict
            | FailureKind::NotObserved
            | FailureKind::RuleBroken => 1,
            FailureKind::Usage | FailureKind::InvalidInput | FailureKind::NoRun => 64,
            FailureKind::Unreachable => 69,
            FailureKind::Internal => 70,
            FailureKind::Storage => 74,
            FailureKind::Denied | FailureKind::WaitRanOut => 75,
            FailureKind::LeaseLost | FailureKind::WriteRejected => 76,
            FailureKind::Unauthorized | FailureKind::HeldOff => 77,
            FailureKind::StoreRefused => 78,
        }
    }
}

/// The table in `aster --help`.
pub(crate) const EXIT_CODES: &str = "\
Exit codes:
    0  done
    1  the answer is no (nothing written yet, nobody holds it, another
       revision is there, `verify` found a broken rule)
   64  usage or bad input
   69  the store cannot be reached, or is too busy
   70  a bug in aster
   74  I/O or storage failed
   75  denied: held by another, also when the wait ran out; try later
   76  the lease was lost, or the resource rejected the write
   77  not authorized, or kept out by a revoke for now
   78  the store refuses until an operator acts
  With `run`: the child's own code, 128 + N if signal N ended it, 126 or 127
  if it could not start. `store backup` and `store restore`: 128 + N if signal N
  stopped them.";

/// A failed command.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
#[error("{message}")]
pub(crate) struct Failure {
    pub(crate) kind: FailureKind,
    pub(crate) message: String,
}

impl Failure {
    pub(crate) fn new(kind: FailureKind, message: impl Into<String>) -> Self {
        Self {
            kind,
            message: message.into(),
        }
    }

    /// An error that happened while we did `what`.
    pub(crate) fn io(what: impl std::fmt::Display, error: &io::Error) -> Self {
        Self::new(FailureKind::Storage, format!("{what}: {error}"))
    }

    pub(crate) fn exit_code(&self) -> ExitCode {
        ExitCode::from(self.kind.exit_code())
    }
}

/// The error and what caused it, in one sentence, up to a cause that was said already.
pub(crate) fn sentence(error: &dyn std::error::Error) -> String {
    /// An error chain longer than this says nothing new.
    const CAUSES_MAX: usize = 8;
    let mut text = error.to_string();
    let mut cause = error.source();
    for _ in 0..CAUSES_MAX {
        let Some(error) = cause else { break };
        let said = error.to_string();
        if text.contains(&said) {
            break;
        }
        text = format!("{text}: {said}");
        cause = error.source();
    }
    text
}

pub(crate) fn denied_kind(reason: DenyReason) -> FailureKind {
    match reason {
        DenyReason::Unauthorized => FailureKind::Unauthorized,
        DenyReason::NotHeld => FailureKind::NotHeld,
        DenyReason::HeldOff => FailureKind::HeldOff,
        DenyReason::WaitRanOut => FailureKind::WaitRanOut,
        DenyReason::EpochMismatch => FailureKind::Conflict,
        _ => FailureKind::Denied,
    }
}

fn serializer_kind(error: &SerializerError) -> FailureKind {
    match error {
        SerializerError::Rule(RuleError::Invalid(_)) | SerializerError::Unsupported { .. } => {
            FailureKind::InvalidInput
        }
        SerializerError::Rule(_) | SerializerError::Refused { .. } => FailureKind::StoreRefused,
        SerializerError::Busy { .. }
        | SerializerError::Overloaded { .. }
        | SerializerError::Timeout { .. }
        | SerializerError::Unavailable { .. } => FailureKind::Unreachable,
        SerializerError::Storage { .. } => FailureKind::Storage,
        _ => FailureKind::Internal,
    }
}

impl From<InvalidInput> for Failure {
    fn from(error: InvalidInput) -> Self {
        Failure::new(FailureKind::InvalidInput, error.to_string())
    }
}

impl From<SerializerError> for Failure {
    fn from(error: SerializerError) -> Self {
        Failure::new(serializer_kind(&error), sentence(&error))
    }
}

impl From<LeaseError> for Failure {
    fn from(error: LeaseError) -> Self {
        let kind = match &error {
            LeaseError::Invalid(_) => FailureKind::InvalidInput,
            LeaseError::Serializer(error) => serializer_kind(error),
            LeaseError::Denied { reason, .. } => denied_kind(*reason),
            _ => FailureKind::Internal,
        };
        Failure::new(kind, sentence(&error))
    }
}

impl From<FenceRejection> for Failure {
    fn from(rejection: FenceRejection) -> Self {
        Failure::new(FailureKind::WriteRejected, rejection.to_string())
    }
}

impl From<RegisterError> for Failure {
    fn from(error: RegisterError) -> Self {
        let kind = match &error {
            RegisterError::Rejected(_) => FailureKind::WriteRejected,
            RegisterError::Conflict { .. } => FailureKind::Conflict,
            RegisterError::Store(error) => serializer_kind(error),
            _ => FailureKind::Internal,
        };
        Failure::new(kind, sentence(&error))
    }
}

impl From<ConnectError> for Failure {
    fn from(error: ConnectError) -> Self {
        let kind = connect_kind(&error);
        Failure::new(kind, sentence(&error))
    }
}

fn connect_kind(error: &ConnectError) -> FailureKind {
    match error {
        ConnectError::Url(_) => FailureKind::InvalidInput,
        ConnectError::Sqlite(error) => open_kind(error),
        _ => FailureKind::Internal,
    }
}

fn open_kind(error: &OpenError) -> FailureKind {
    match error {
        OpenError::MissingDirectory { .. }
        | OpenError::Missing { .. }
        | OpenError::NoBackup { .. }
        | OpenError::NoStore { .. } => FailureKind::Unreachable,
        OpenError::NetworkFileSystem { .. } => FailureKind::StoreRefused,
        error => match error.kind() {
            ErrorKind::Retry => FailureKind::Unreachable,
            ErrorKind::Stop => FailureKind::StoreRefused,
            ErrorKind::FixCall => FailureKind::InvalidInput,
            _ => FailureKind::Storage,
        },
    }
}

impl From<OpenError> for Failure {
    fn from(error: OpenError) -> Self {
        Failure::new(open_kind(&error), sentence(&error))
    }
}
