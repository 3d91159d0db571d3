//! How long a grant lasts.

use core::fmt;
use core::time::Duration;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::error::InvalidInput;

/// The shortest ttl that a serializer accepts by default.
pub const TTL_MIN: Duration = Duration::from_millis(100);
/// The longest ttl that a serializer accepts by default.
pub const TTL_MAX: Duration = Duration::from_secs(24 * 60 * 60);
/// The longest hold-off of a revoke.
pub const HOLD_OFF_MAX: Duration = Duration::from_secs(24 * 60 * 60);

/// A positive whole number of milliseconds. Whether a serializer accepts it is its
/// [`TtlBounds`]' decision; that it is exact is already certain here.
///
/// ```
/// use aster_core::Ttl;
/// use core::time::Duration;
/// assert_eq!(Ttl::new(Duration::from_secs_f64(1.5))?.as_millis(), 1_500);
/// assert!(Ttl::new(Duration::from_nanos(1)).is_err());
/// # Ok::<(), aster_core::InvalidInput>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ttl {
    millis: u64,
}

impl Ttl {
    /// Takes a duration that is a whole number of milliseconds above zero.
    ///
    /// # Errors
    ///
    /// [`InvalidInput::NotWholeMillis`] otherwise: a ttl is exact or refused, never rounded.
    /// [`InvalidInput::OutOfBounds`] above 2^64 - 1 ms.
    pub fn new(duration: Duration) -> Result<Self, InvalidInput> {
        if duration.is_zero() || !duration.subsec_nanos().is_multiple_of(1_000_000) {
            return Err(InvalidInput::NotWholeMillis {
                what: "ttl",
                duration,
            });
        }
        u64::try_from(duration.as_millis())
            .map(|millis| Self { millis })
            .map_err(|_| InvalidInput::OutOfBounds {
                what: "ttl",
                given: duration,
                min: Duration::from_millis(1),
                max: Duration::from_millis(u64::MAX),
            })
    }

    /// Takes a number of milliseconds above zero.
    ///
    /// # Errors
    ///
    /// [`InvalidInput::NotWholeMillis`] for zero.
    pub fn from_millis(millis: u64) -> Result<Self, InvalidInput> {
        Self::new(Duration::from_millis(millis))
    }

    /// The number of milliseconds.
    #[must_use]
    pub const fn as_millis(self) -> u64 {
        self.millis
    }

    /// The same as a duration.
    #[must_use]
    pub const fn duration(self) -> Duration {
        Duration::from_millis(self.millis)
    }
}

impl fmt::Debug for Ttl {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.duration(), formatter)
    }
}

impl TryFrom<Duration> for Ttl {
    type Error = InvalidInput;
    fn try_from(duration: Duration) -> Result<Self, InvalidInput> {
        Self::new(duration)
    }
}

impl From<Ttl> for Duration {
    fn from(ttl: Ttl) -> Duration {
        ttl.duration()
    }
}

impl Serialize for Ttl {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u64(self.millis)
    }
}

impl<'de> Deserialize<'de> for Ttl {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let millis = u64::deserialize(deserializer)?;
        Self::from_millis(millis).map_err(serde::de::Error::custom)
    }
}

/// Which ttls a serializer accepts: [`TTL_MIN`] to [`TTL_MAX`] unless it is told otherwise.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TtlBounds {
    min: Duration,
    max: Duration,
}

impl TtlBounds {
    /// Accepts `min` to `max`, both included.
    ///
    /// # Errors
    ///
    /// [`InvalidInput`] when either is not a whole number of milliseconds above zero, or when `min`
    /// is above `max`.
    pub fn new(min: Duration, max: Duration) -> Result<Self, InvalidInput> {
        let (min, max) = (Ttl::new(min)?.duration(), Ttl::new(max)?.duration());
        if min > max {
            return Err(InvalidInput::OutOfBounds {
                what: "smallest ttl",
                given: min,
                min,
                max,
            });
        }
        Ok(Self { min, max })
    }

    /// The shortest accepted ttl.
    #[must_use]
    pub const fn min(&self) -> Duration {
        self.min
    }

    /// The longest accepted ttl.
    #[must_use]
    pub const fn max(&self) -> Duration {
        self.max
    }

    /// # Errors
    ///
    /// [`InvalidInput::OutOfBounds`] when `ttl` is outside.
    pub fn check(&self, ttl: Ttl) -> Result<(), InvalidInput> {
        let given = ttl.duration();
        if given < self.min || given > self.max {
            return Err(InvalidInput::OutOfBounds {
                what: "ttl",
                given,
                min: self.min,
                max: self.max,
            });
        }
        Ok(())
    }
}

impl Default for TtlBounds {
    fn default() -> Self {
        Self {
            min: TTL_MIN,
            max: TTL_MAX,
        }
    }
}
