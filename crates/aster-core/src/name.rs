//! Resource names and principals.
//!
//! Both are parsed once, at the edge; afterwards the type says that they are valid. They compare
//! byte for byte: no normalization, no case folding, no path meaning, so `a/b`, `a%2Fb`, `../a`,
//! `A` and `a` are five names.

use alloc::borrow::ToOwned;
use alloc::string::String;
use alloc::sync::Arc;
use core::borrow::Borrow;
use core::fmt;
use core::hash::{Hash, Hasher};
use core::ops::Deref;
use core::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::error::InvalidInput;

/// The longest resource name, in bytes of UTF-8.
pub const RESOURCE_BYTES_MAX: usize = 512;
/// The longest principal (holder, writer, operator), in bytes of UTF-8.
pub const PRINCIPAL_BYTES_MAX: usize = 256;

fn check(what: &'static str, text: &str, bytes_max: usize) -> Result<(), InvalidInput> {
    if text.is_empty() {
        return Err(InvalidInput::Empty { what });
    }
    if text.len() > bytes_max {
        return Err(InvalidInput::TooLong {
            what,
            bytes: text.len(),
            bytes_max,
        });
    }
    match text
        .char_indices()
        .find(|(_, character)| character.is_control())
    {
        Some((at_byte, character)) => Err(InvalidInput::ControlCharacter {
            what,
            code_point: character.into(),
            at_byte,
        }),
        None => Ok(()),
    }
}

macro_rules! checked_text {
    ($(#[$docs:meta])* $name:ident, $what:literal, $bytes_max:expr) => {
        $(#[$docs])*
        #[derive(Clone, Eq, PartialOrd, Ord)]
        pub struct $name(Arc<str>);

        impl $name {
            /// Checks `text` and keeps a copy of it.
            ///
            /// # Errors
            ///
            /// [`InvalidInput`] when it is empty, too long or holds a control character.
            pub fn new(text: impl AsRef<str>) -> Result<Self, InvalidInput> {
                let text = text.as_ref();
                check($what, text, $bytes_max)?;
                Ok(Self(text.into()))
            }

            /// The text as it was given.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl Deref for $name {
            type Target = str;
            fn deref(&self) -> &str {
                &self.0
            }
        }

        impl AsRef<str> for $name {
            fn as_ref(&self) -> &str {
                &self.0
            }
        }

        impl Borrow<str> for $name {
            fn borrow(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str(&self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Debug::fmt(&*self.0, formatter)
            }
        }

        impl FromStr for $name {
            type Err = InvalidInput;
            fn from_str(text: &str) -> Result<Self, InvalidInput> {
                Self::new(text)
            }
        }

        impl TryFrom<String> for $name {
            type Error = InvalidInput;
            fn try_from(text: String) -> Result<Self, InvalidInput> {
                Self::new(text)
            }
        }

        impl TryFrom<&str> for $name {
            type Error = InvalidInput;
            fn try_from(text: &str) -> Result<Self, InvalidInput> {
                Self::new(text)
            }
        }

        impl From<$name> for String {
            fn from(name: $name) -> String {
                name.as_str().to_owned()
            }
        }

        /// Clones are equal without a look at their text.
        impl PartialEq for $name {
            fn eq(&self, other: &Self) -> bool {
                Arc::ptr_eq(&self.0, &other.0) || *self.0 == *other.0
            }
        }

        impl Hash for $name {
            fn hash<H: Hasher>(&self, state: &mut H) {
                self.0.hash(state);
            }
        }

        impl PartialEq<str> for $name {
            fn eq(&self, other: &str) -> bool {
                &*self.0 == other
            }
        }

        impl PartialEq<&str> for $name {
            fn eq(&self, other: &&str) -> bool {
                &*self.0 == *other
            }
        }

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(&self.0)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = String::deserialize(deserializer)?;
                Self::new(text).map_err(serde::de::Error::custom)
            }
        }
    };
}

checked_text!(
    /// The name of a protected resource: 1 to [`RESOURCE_BYTES_MAX`] bytes of UTF-8 without control
    /// characters, compared byte for byte. Cloning shares the text.
    ///
    /// Serves the specification's "Connect the grant to enforcement" (the fence identifies the
    /// resource).
    ///
    /// ```
    /// use aster_core::ResourceName;
    /// assert_ne!(ResourceName::new("a/b")?, ResourceName::new("a%2Fb")?);
    /// assert!(ResourceName::new("").is_err());
    /// # Ok::<(), aster_core::InvalidInput>(())
    /// ```
    ResourceName,
    "resource name",
    RESOURCE_BYTES_MAX
);

checked_text!(
    /// An authenticated identity: holder, candidate, operator or writer. 1 to
    /// [`PRINCIPAL_BYTES_MAX`] bytes of UTF-8 without control characters, compared byte for byte.
    /// Cloning shares the text.
    ///
    /// Where it comes from is the caller's duty: the connection, the database role or the local
    /// identity file, never a field of the request (specification, "Enforce at the write boundary").
    Principal,
    "holder",
    PRINCIPAL_BYTES_MAX
);
