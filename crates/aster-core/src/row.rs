//! The serializer's record of a resource.

use core::time::Duration;

use serde::{Deserialize, Serialize};

use crate::error::RuleError;
use crate::hold_off::HoldOffs;
use crate::id::{Authority, GrantId};
use crate::name::{Principal, ResourceName};
use crate::ttl::Ttl;

/// The largest epoch: 2^63 - 1, so that every database's signed 64-bit integer can hold it.
pub const EPOCH_MAX: u64 = i64::MAX as u64;

/// What a store keeps for a resource. The instant of the last grant or renewal is not here: it is
/// volatile and belongs to the store's own clock.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct RowState {
    /// The present generation of ownership, 1 to [`EPOCH_MAX`]; it only grows.
    pub epoch: u64,
    /// Grows with every change of the row, renewals included, so that a candidate without a clock of
    /// the store's can see that nothing moved. A row that was dropped starts anew, so compare epoch
    /// and revision together: that pair only grows.
    pub revision: u64,
    /// The last grant, also after it ended, so that its late duplicate is not granted again.
    pub grant_id: GrantId,
    /// Who holds it, when it is held.
    pub held: Option<Tenure>,
    /// Whom revokes keep out, each until its own time has passed on the store's clock.
    pub hold_offs: HoldOffs,
}

/// The held half of a row.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Tenure {
    /// The identity that the lease was granted to.
    pub holder: Principal,
    /// How long a grant or renewal lasts; fixed at the grant.
    pub ttl: Ttl,
}

impl RowState {
    /// The holder of a held row.
    #[must_use]
    pub fn holder(&self) -> Option<&Principal> {
        self.held.as_ref().map(|tenure| &tenure.holder)
    }

    /// The ttl of a held row.
    #[must_use]
    pub fn ttl(&self) -> Option<Ttl> {
        self.held.as_ref().map(|tenure| tenure.ttl)
    }
}

/// A row as the rules see it: who issues its epochs, its name, and the store's floor for absent rows.
///
/// Load it and use it inside one lock or transaction; a view that outlives its lock is a snapshot,
/// and deciding on a snapshot is the race that fencing exists to close (specification, "Enforce at
/// the write boundary").
#[derive(Debug, Clone, Copy)]
pub struct RowView<'a> {
    /// The store's authority.
    pub authority: Authority,
    /// The resource that the row is loaded for.
    pub resource: &'a ResourceName,
    /// The highest epoch among rows that the store has dropped; 0 when it never dropped one.
    pub floor: u64,
    /// The row, or `None` when the store has none: such a resource is free at the floor.
    pub row: Option<&'a RowState>,
}

impl RowView<'_> {
    /// The present epoch: the row's, or the floor of an absent row.
    #[must_use]
    pub fn epoch(&self) -> u64 {
        self.row.map_or(self.floor, |row| row.epoch)
    }

    /// A copy of what can be told about the row. `remaining` is the store's own estimate.
    #[must_use]
    pub fn snapshot(&self, remaining: Option<Duration>) -> LeaseSnapshot {
        LeaseSnapshot {
            resource: self.resource.clone(),
            epoch: self.epoch(),
            holder: self.row.and_then(|row| row.holder().cloned()),
            held: self.row.is_some_and(|row| row.held.is_some()),
            ttl: self.row.and_then(RowState::ttl).map(Ttl::duration),
            remaining,
            revision: self.row.map_or(0, |row| row.revision),
        }
    }
}

/// What a serializer said about a resource at some moment. **A hint**: it may be out of date when it
/// arrives, and nothing that protects data may depend on it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseSnapshot {
    /// The resource.
    pub resource: ResourceName,
    /// Its epoch; 0 for a resource that never had one, and when withheld from the unauthorized.
    pub epoch: u64,
    /// Who holds it.
    pub holder: Option<Principal>,
    /// Whether it is held. An expired row that nobody took is still held.
    pub held: bool,
    /// The ttl of a held row.
    pub ttl: Option<Duration>,
    /// How long until the row may be taken, where the store can tell; zero once it may.
    pub remaining: Option<Duration>,
    /// Grows with every change, renewals included. Compare it together with the epoch: an idle row
    /// that was dropped counts from the beginning again, at a higher epoch.
    pub revision: u64,
}

impl LeaseSnapshot {
    /// The answer for someone who may not see the row.
    #[must_use]
    pub fn withheld(resource: ResourceName) -> Self {
        Self {
            resource,
            epoch: 0,
            holder: None,
            held: false,
            ttl: None,
            remaining: None,
            revision: 0,
        }
    }
}

/// The floor of a store that drops a free row which is at `dropped`: no row that comes after it starts
/// at or below any epoch that the dropped one had.
///
/// The floor has to have risen, and to be as durable as the row was, in the same step in which the row
/// goes; an Acquire of the missing row must not come between (specification, "Follow a takeover").
#[must_use]
pub fn floor_behind(floor: u64, dropped: u64) -> u64 {
    floor.max(dropped)
}

/// The epoch after `epoch`.
///
/// # Errors
///
/// [`RuleError::EpochExhausted`] past [`EPOCH_MAX`].
pub fn next_epoch(epoch: u64) -> Result<u64, RuleError> {
    match epoch.checked_add(1) {
        Some(next) if next <= EPOCH_MAX => Ok(next),
        _ => Err(RuleError::EpochExhausted { epoch }),
    }
}
