//! The fence, and the rule that a resource enforces.

use core::fmt;

use serde::{Deserialize, Serialize};

use crate::id::Authority;
use crate::name::{Principal, ResourceName};
use crate::row::RowView;

/// A claim of ownership, supplied with every protected write and checked by the resource.
///
/// It is not a bearer token: whoever carries it must also *be* the holder, by the identity that the
/// resource authenticated (specification, "Enforce at the write boundary"). Fetch it from the lease
/// immediately before each protected action and do not keep it across unrelated waits.
///
/// Cloning is cheap: the names are shared.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Fence {
    /// The store that issued the epoch.
    pub authority: Authority,
    /// The protected resource.
    pub resource: ResourceName,
    /// The generation of ownership, 1 to [`EPOCH_MAX`](crate::EPOCH_MAX).
    pub epoch: u64,
    /// Who the lease was granted to.
    pub holder: Principal,
}

/// For logs: `catalog/current@7 held by worker-a (authority 0f…)`.
impl fmt::Display for Fence {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            formatter,
            "{}@{} held by {} (authority {})",
            self.resource, self.epoch, self.holder, self.authority
        )
    }
}

/// Why a resource refused a write. The write has not happened; do not retry it under this fence.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize, thiserror::Error)]
#[non_exhaustive]
pub enum FenceRejection {
    /// The fence comes from another store.
    #[error("the fence was issued by another store: acquire the lease at this one")]
    WrongAuthority,
    /// The fence is for another resource.
    #[error("the fence is for another resource: use the lease of the resource that is written")]
    WrongResource,
    /// Ownership has moved on since the fence was issued. This is the rejection that fencing exists
    /// for.
    #[error(
        "stale fence: it carries epoch {carried}, the resource is at {current}; ownership has \
         ended, stop the work"
    )]
    StaleEpoch {
        /// The epoch in the fence.
        carried: u64,
        /// The row's epoch.
        current: u64,
    },
    /// The fence is from an epoch that this store has not issued: a forgery, or a store that went
    /// back in time. An operator has to look.
    #[error(
        "fence from the future: it carries epoch {carried}, the resource is at {current}; it is \
         forged, or the store went back in time (report this)"
    )]
    FutureEpoch {
        /// The epoch in the fence.
        carried: u64,
        /// The row's epoch.
        current: u64,
    },
    /// The resource is free: the lease was released, revoked or never granted at this epoch.
    #[error("the resource is not held: acquire the lease again")]
    NotHeld,
    /// The writer, or the holder that the fence names, is not the holder.
    #[error("the writer is not the holder: only the authenticated holder may write")]
    NotHolder,
    /// A protected closure tried to enter a resource that it, or a closure it would have to wait
    /// for, has locked. Refused, because waiting would be a deadlock.
    #[error("a protected closure is running on this resource: do not nest protected writes")]
    Reentrant,
}

impl FenceRejection {
    /// Its stable name, as the audit trail and metrics show it: `stale_epoch`, ….
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            FenceRejection::WrongAuthority => "wrong_authority",
            FenceRejection::WrongResource => "wrong_resource",
            FenceRejection::StaleEpoch { .. } => "stale_epoch",
            FenceRejection::FutureEpoch { .. } => "future_epoch",
            FenceRejection::NotHeld => "not_held",
            FenceRejection::NotHolder => "not_holder",
            FenceRejection::Reentrant => "reentrant",
        }
    }
}

/// The fence rule. A write may proceed only inside the lock or transaction in which `view` was
/// loaded, and only if this returns `Ok`.
///
/// `writer` is the authenticated identity that asks for the write; it never comes from the request
/// and never from the fence.
///
/// # Errors
///
/// The first of these that does not hold, in this order: same authority, same resource, same epoch,
/// held, writer is the holder, fence names the holder (specification, "Enforce at the write
/// boundary").
pub fn check_fence(view: &RowView<'_>, fence: &Fence, writer: &str) -> Result<(), FenceRejection> {
    if fence.authority != view.authority {
        return Err(FenceRejection::WrongAuthority);
    }
    if fence.resource != *view.resource {
        return Err(FenceRejection::WrongResource);
    }
    let (carried, current) = (fence.epoch, view.epoch());
    if carried < current {
        return Err(FenceRejection::StaleEpoch { carried, current });
    }
    if carried > current {
        return Err(FenceRejection::FutureEpoch { carried, current });
    }
    let Some(holder) = view.row.and_then(|row| row.holder()) else {
        return Err(FenceRejection::NotHeld);
    };
    if *holder != *writer || fence.holder != *holder {
        return Err(FenceRejection::NotHolder);
    }
    Ok(())
}
