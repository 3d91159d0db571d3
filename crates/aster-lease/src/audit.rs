//! What happened to the resources of a store, for people. It decides nothing.

use aster_core::{LeaseOp, Principal, ResourceName};
use async_trait::async_trait;
use serde::{Deserialize, Serialize};

use crate::error::SerializerError;

/// The most records that one call of [`AuditLog::audit`] answers.
pub const AUDIT_PAGE_MAX: usize = 1_000;

/// What kind of thing happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum AuditEvent {
    /// A free resource was granted.
    Granted,
    /// An expired resource was taken over.
    TakenOver,
    /// Its holder gave it up.
    Released,
    /// An operator took it away.
    Revoked,
    /// A grant that nobody waited for any more was given up.
    Cancelled,
    /// A write was refused by the fence rule. `detail` names the rejection.
    Rejected,
    /// An operator gave the store a new authority.
    Adopted,
}

impl AuditEvent {
    /// Its name as stored and as in JSON: `granted`, `taken_over`, ….
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            AuditEvent::Granted => "granted",
            AuditEvent::TakenOver => "taken_over",
            AuditEvent::Released => "released",
            AuditEvent::Revoked => "revoked",
            AuditEvent::Cancelled => "cancelled",
            AuditEvent::Rejected => "rejected",
            AuditEvent::Adopted => "adopted",
        }
    }

    /// The event with that name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        [
            AuditEvent::Granted,
            AuditEvent::TakenOver,
            AuditEvent::Released,
            AuditEvent::Revoked,
            AuditEvent::Cancelled,
            AuditEvent::Rejected,
            AuditEvent::Adopted,
        ]
        .into_iter()
        .find(|event| event.name() == name)
    }
}

/// One line of the audit trail.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AuditRecord {
    /// Grows with every record of a store.
    pub id: u64,
    /// When, in milliseconds since 1970 on the store's wall clock. For people; it decides nothing.
    pub at_unix_ms: u64,
    /// What happened.
    pub event: AuditEvent,
    /// To which resource; `None` for events of the whole store.
    pub resource: Option<ResourceName>,
    /// The epoch that the request carried or that ended: for a rejection the fence's.
    pub epoch_carried: Option<u64>,
    /// The row's epoch afterwards.
    pub epoch_current: u64,
    /// The row's holder: who was granted, or who held it when it ended or when a write was refused.
    pub holder: Option<Principal>,
    /// Who acted: candidate, holder, operator, or the writer that was refused.
    pub actor: Option<String>,
    /// More in words, such as the name of the rejection, or how long a revoke keeps the holder out.
    pub detail: Option<String>,
    /// How many equal events this record stands for.
    pub count: u64,
}

/// What the record of an ownership change says in words: how long a revoke keeps the holder out.
#[must_use]
pub fn detail_of(op: &LeaseOp) -> Option<String> {
    match op {
        LeaseOp::Revoke {
            hold_off: Some(duration),
            ..
        } => Some(format!("held off for {duration:?}")),
        _ => None,
    }
}

/// Which records to read.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AuditQuery {
    /// Only of this resource.
    pub resource: Option<ResourceName>,
    /// Only records after this id.
    pub after: Option<u64>,
    /// At most this many, the newest ones; 0 and anything above [`AUDIT_PAGE_MAX`] mean
    /// [`AUDIT_PAGE_MAX`].
    pub limit: usize,
}

impl AuditQuery {
    /// The limit to use.
    #[must_use]
    pub fn page(&self) -> usize {
        match self.limit {
            0 => AUDIT_PAGE_MAX,
            limit => limit.min(AUDIT_PAGE_MAX),
        }
    }
}

/// The audit trail of a store, written by the store itself.
#[async_trait]
pub trait AuditLog: Send + Sync + 'static {
    /// The newest matching records, oldest first.
    ///
    /// # Errors
    ///
    /// [`SerializerError`] when the store cannot be read.
    async fn audit(&self, query: AuditQuery) -> Result<Vec<AuditRecord>, SerializerError>;
}
