//! Values drawn from the bytes of an input. When the bytes run out everything is the first choice.

use std::time::Duration;

use arbitrary::Unstructured;
use aster_core::{GrantId, LeaseOp, Principal, ResourceName, Ttl};

/// Takes values from an input, one after the other.
#[derive(Debug)]
pub(crate) struct Draw<'a>(Unstructured<'a>);

const HOLDERS: [&str; 3] = ["worker-a", "worker-b", "worker-c"];
/// The names that the store of the file targets knows, and one that it does not.
pub(crate) const RESOURCES: [&str; 4] = ["catalog", "pages", "revoked", "unknown"];

impl<'a> Draw<'a> {
    /// Takes from `data`.
    #[must_use]
    pub(crate) fn new(data: &'a [u8]) -> Self {
        Self(Unstructured::new(data))
    }

    /// A number below `bound`.
    pub(crate) fn below(&mut self, bound: usize) -> usize {
        self.0
            .int_in_range(0..=bound.saturating_sub(1))
            .unwrap_or(0)
    }

    /// One of these.
    pub(crate) fn one_of<T: Clone>(&mut self, of: &[T]) -> T {
        of[self.below(of.len())].clone()
    }

    /// A coin.
    pub(crate) fn coin(&mut self) -> bool {
        self.below(2) == 1
    }

    /// Any 64 bits.
    pub(crate) fn number(&mut self) -> u64 {
        self.0.arbitrary().unwrap_or(0)
    }

    /// Mostly a number near to one of `centre`, 0 and the two ends of what fits.
    pub(crate) fn near(&mut self, centre: u64) -> u64 {
        match self.below(8) {
            0..=3 => centre,
            4 => centre.wrapping_add(1),
            5 => centre.wrapping_sub(1),
            6 => self.one_of(&[
                0,
                1,
                i64::MAX as u64 - 1,
                i64::MAX as u64,
                u64::MAX - 1,
                u64::MAX,
            ]),
            _ => self.number(),
        }
    }

    /// Up to `bytes_max` bytes.
    pub(crate) fn bytes(&mut self, bytes_max: usize) -> &'a [u8] {
        let length = self.below(bytes_max + 1).min(self.0.len());
        self.0.bytes(length).unwrap_or(&[])
    }

    /// One of three holders.
    pub(crate) fn principal(&mut self) -> Principal {
        Principal::new(self.one_of(&HOLDERS)).unwrap()
    }

    /// One of the known resources, or one that is not known.
    pub(crate) fn resource(&mut self) -> ResourceName {
        ResourceName::new(self.one_of(&RESOURCES)).unwrap()
    }

    /// One of a few grant ids.
    pub(crate) fn grant_id(&mut self) -> GrantId {
        GrantId::from_bytes([1 + self.below(6) as u8; 16])
    }

    /// Mostly a ttl that is accepted.
    pub(crate) fn ttl(&mut self) -> Ttl {
        let millis = match self.below(4) {
            0 | 1 => 60_000,
            2 => self.one_of(&[1, 99, 100, 86_400_000, 86_400_001, u64::MAX]),
            _ => self.number().max(1),
        };
        Ttl::from_millis(millis).unwrap()
    }

    /// An operation on a row at about this epoch.
    pub(crate) fn op(&mut self, epoch: u64) -> LeaseOp {
        match self.below(5) {
            0 => LeaseOp::Acquire {
                candidate: self.principal(),
                ttl: self.ttl(),
                grant_id: self.grant_id(),
            },
            1 => LeaseOp::Renew {
                holder: self.principal(),
                epoch: self.near(epoch),
            },
            2 => LeaseOp::Release {
                holder: self.principal(),
                epoch: self.near(epoch),
            },
            3 => LeaseOp::Revoke {
                operator: self.principal(),
                epoch: self.near(epoch),
                hold_off: self.hold_off(),
            },
            _ => LeaseOp::Cancel {
                candidate: self.principal(),
                grant_id: self.grant_id(),
            },
        }
    }

    fn hold_off(&mut self) -> Option<Duration> {
        match self.below(4) {
            0 | 1 => None,
            2 => Some(Duration::from_secs(60)),
            _ => Some(Duration::new(
                self.number(),
                self.below(1_000_000_000) as u32,
            )),
        }
    }
}
