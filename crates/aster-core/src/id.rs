//! The random 128-bit ids. Making one needs randomness, which comes from outside this crate.

use alloc::string::String;
use core::fmt;
use core::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::error::InvalidInput;

const ID_BYTES: usize = 16;

macro_rules! random_id {
    ($(#[$docs:meta])* $name:ident, $what:literal) => {
        $(#[$docs])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name([u8; ID_BYTES]);

        impl $name {
            /// Takes 16 random bytes.
            #[must_use]
            pub const fn from_bytes(bytes: [u8; ID_BYTES]) -> Self {
                Self(bytes)
            }

            /// The 16 bytes.
            #[must_use]
            pub const fn as_bytes(&self) -> &[u8; ID_BYTES] {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.iter().try_for_each(|byte| write!(formatter, "{byte:02x}"))
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(self, formatter)
            }
        }

        impl FromStr for $name {
            type Err = InvalidInput;
            fn from_str(text: &str) -> Result<Self, InvalidInput> {
                parse_hex(text).map(Self).ok_or(InvalidInput::Id { what: $what })
            }
        }

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = String::deserialize(deserializer)?;
                text.parse().map_err(serde::de::Error::custom)
            }
        }
    };
}

fn parse_hex(text: &str) -> Option<[u8; ID_BYTES]> {
    let digits = text.as_bytes();
    if digits.len() != 2 * ID_BYTES {
        return None;
    }
    let mut bytes = [0; ID_BYTES];
    for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
        let high = (pair[0] as char).to_digit(16)?;
        let low = (pair[1] as char).to_digit(16)?;
        *byte = u8::try_from(high * 16 + low).ok()?;
    }
    Some(bytes)
}

random_id!(
    /// Names the store that issues epochs. It is made with the store and carried in every fence, so
    /// that a fence of one store never passes at another.
    Authority,
    "authority"
);

random_id!(
    /// Names one wish to acquire. All retries of that wish carry the same id, so a retry whose first
    /// reply was lost finds its own grant and not "held by other". It is granted at most once while
    /// the row remembers it (the row's last grant).
    GrantId,
    "grant id"
);

random_id!(
    /// Names one register write. A retry after a lost reply carries the same id and is recognized as
    /// already done.
    WriteId,
    "write id"
);
