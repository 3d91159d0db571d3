//! A weaker rule for a resource that cannot see the row.

use serde::{Deserialize, Serialize};

use crate::error::InvalidInput;
use crate::fence::Fence;
use crate::id::Authority;
use crate::name::{Principal, ResourceName};
use crate::row::EPOCH_MAX;

/// The highest ownership that a resource has seen, kept **with its data and changed in the same
/// atomic step**. For a remote API or a file that cannot load the serializer's row.
///
/// It is weaker than [`check_fence`](crate::check_fence): a new owner, a release or a revoke is
/// noticed only once it has been announced here. So a new holder calls [`announce`](Self::announce)
/// before it reads anything that it will build on, and whoever releases or revokes calls
/// [`announce_end`](Self::announce_end) with the row's new epoch.
///
/// Store it as it is (it is `serde`), one for each resource. A stored mark that no announcement can have
/// made is refused when it is read.
///
/// ```
/// use aster_core::{Authority, Fence, HighWaterMark, Principal, ResourceName};
/// let fence = |epoch, holder| Fence {
///     authority: Authority::from_bytes([1; 16]),
///     resource: ResourceName::new("bucket/index").unwrap(),
///     epoch,
///     holder: Principal::new(holder).unwrap(),
/// };
/// let mut mark = HighWaterMark::new(ResourceName::new("bucket/index")?, Authority::from_bytes([1; 16]));
/// mark.announce(&fence(1, "a"), "a")?;
/// mark.check(&fence(1, "a"), "a")?;
/// mark.announce(&fence(3, "b"), "b")?;
/// assert!(mark.check(&fence(1, "a"), "a").is_err()); // a's delayed write
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Stored")]
pub struct HighWaterMark {
    resource: ResourceName,
    authority: Authority,
    epoch: u64,
    /// `None` until a fence was announced at `epoch`, and again once that ownership has ended.
    holder: Option<Principal>,
}

/// A mark as it was stored. One that no announcement can have made is refused: it is damaged, and a mark
/// at an epoch that nobody can reach would refuse every owner for good.
#[derive(Deserialize)]
struct Stored {
    resource: ResourceName,
    authority: Authority,
    epoch: u64,
    holder: Option<Principal>,
}

impl TryFrom<Stored> for HighWaterMark {
    type Error = InvalidEpoch;
    fn try_from(stored: Stored) -> Result<Self, InvalidEpoch> {
        let Stored {
            resource,
            authority,
            epoch,
            holder,
        } = stored;
        if epoch > EPOCH_MAX || (epoch == 0 && holder.is_some()) {
            return Err(InvalidEpoch(epoch));
        }
        Ok(Self {
            resource,
            authority,
            epoch,
            holder,
        })
    }
}

/// Why a high-water mark refused a fence.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize, thiserror::Error)]
#[non_exhaustive]
pub enum HighWaterRejection {
    /// The fence comes from another store. Adopting it is an operator's decision.
    #[error("the fence was issued by another store: an operator has to adopt its authority first")]
    WrongAuthority,
    /// The fence is for another resource.
    #[error("the fence is for another resource")]
    WrongResource,
    /// A higher epoch was announced here.
    #[error("stale fence: it carries epoch {carried}, {current} was announced; stop the work")]
    StaleEpoch {
        /// The epoch in the fence.
        carried: u64,
        /// The highest epoch announced.
        current: u64,
    },
    /// The fence is newer than anything announced here: announce it, read again, then write.
    #[error(
        "epoch {carried} was not announced here (at {current}): announce it and read again first"
    )]
    NotAnnounced {
        /// The epoch in the fence.
        carried: u64,
        /// The highest epoch announced.
        current: u64,
    },
    /// The ownership at this epoch ended, or belongs to another holder, or the writer is not the
    /// holder.
    #[error("the writer is not the holder announced at this epoch")]
    NotHolder,
    /// The epoch is outside 1 to 2^63 - 1.
    #[error(transparent)]
    Invalid(#[from] InvalidEpoch),
}

/// An epoch outside 1 to [`EPOCH_MAX`].
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize, thiserror::Error)]
#[error("epoch {0} is outside 1 to {EPOCH_MAX}")]
pub struct InvalidEpoch(pub u64);

impl From<InvalidEpoch> for InvalidInput {
    fn from(invalid: InvalidEpoch) -> Self {
        InvalidInput::Epoch(invalid.0)
    }
}

impl HighWaterMark {
    /// A mark that has seen nothing yet of the given store.
    #[must_use]
    pub fn new(resource: ResourceName, authority: Authority) -> Self {
        Self {
            resource,
            authority,
            epoch: 0,
            holder: None,
        }
    }

    /// The highest epoch announced; 0 before the first.
    #[must_use]
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// A new holder makes its ownership known, before it reads. From then on every lower epoch is
    /// refused. Announcing the same fence again changes nothing.
    ///
    /// # Errors
    ///
    /// [`HighWaterRejection`], and nothing has changed.
    pub fn announce(&mut self, fence: &Fence, writer: &str) -> Result<(), HighWaterRejection> {
        self.check_origin(fence)?;
        if fence.holder != *writer {
            return Err(HighWaterRejection::NotHolder);
        }
        if fence.epoch == self.epoch {
            return self.check_holder(fence, writer);
        }
        self.check_not_lower(fence.epoch)?;
        self.epoch = fence.epoch;
        self.holder = Some(fence.holder.clone());
        Ok(())
    }

    /// The rule for a write: the fence is the one announced and the writer is its holder.
    ///
    /// # Errors
    ///
    /// [`HighWaterRejection`]; the write must not happen.
    pub fn check(&self, fence: &Fence, writer: &str) -> Result<(), HighWaterRejection> {
        self.check_origin(fence)?;
        self.check_not_lower(fence.epoch)?;
        if fence.epoch > self.epoch {
            return Err(HighWaterRejection::NotAnnounced {
                carried: fence.epoch,
                current: self.epoch,
            });
        }
        self.check_holder(fence, writer)
    }

    /// A release or revoke makes the row's new epoch known, so that the old fence stops here too.
    ///
    /// # Errors
    ///
    /// [`HighWaterRejection`] when `authority` is another or `epoch` is lower than what is known.
    pub fn announce_end(
        &mut self,
        authority: Authority,
        epoch: u64,
    ) -> Result<(), HighWaterRejection> {
        if authority != self.authority {
            return Err(HighWaterRejection::WrongAuthority);
        }
        if epoch == 0 || epoch > EPOCH_MAX {
            return Err(InvalidEpoch(epoch).into());
        }
        self.check_not_lower(epoch)?;
        if epoch > self.epoch {
            self.epoch = epoch;
            self.holder = None;
        }
        Ok(())
    }

    /// An operator's decision: from now on the epochs of `authority` count, from the beginning.
    /// Nothing that the old store issued is accepted any more. Adopting the present authority again
    /// changes nothing: its epochs never go back.
    pub fn adopt(&mut self, authority: Authority) {
        if authority == self.authority {
            return;
        }
        self.authority = authority;
        self.epoch = 0;
        self.holder = None;
    }

    fn check_origin(&self, fence: &Fence) -> Result<(), HighWaterRejection> {
        if fence.authority != self.authority {
            return Err(HighWaterRejection::WrongAuthority);
        }
        if fence.resource != self.resource {
            return Err(HighWaterRejection::WrongResource);
        }
        if fence.epoch == 0 || fence.epoch > EPOCH_MAX {
            return Err(InvalidEpoch(fence.epoch).into());
        }
        Ok(())
    }

    fn check_not_lower(&self, carried: u64) -> Result<(), HighWaterRejection> {
        if carried < self.epoch {
            return Err(HighWaterRejection::StaleEpoch {
                carried,
                current: self.epoch,
            });
        }
        Ok(())
    }

    fn check_holder(&self, fence: &Fence, writer: &str) -> Result<(), HighWaterRejection> {
        match &self.holder {
            Some(holder) if *holder == fence.holder && *holder == *writer => Ok(()),
            _ => Err(HighWaterRejection::NotHolder),
        }
    }
}
