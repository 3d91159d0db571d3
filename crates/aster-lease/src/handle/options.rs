//! How long, how often, how careful.

use std::time::Duration;

use aster_core::{InvalidInput, Ttl};

/// The holder's margin is at least this part of the ttl: clock rates of holder and serializer may
/// differ by one in a thousand.
const MARGIN_PARTS: u32 = 1_000;

/// What a holder chooses. Checked when a lease is acquired, before anything is sent.
///
/// ```
/// use std::time::Duration;
/// use aster_lease::LeaseOptions;
/// let options = LeaseOptions::with_ttl(Duration::from_secs(6));
/// assert_eq!(options.renew_interval, Duration::from_secs(2));
/// assert_eq!(options.holder_margin, Duration::from_millis(200));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LeaseOptions {
    /// How long a grant or renewal lasts at the serializer: whole milliseconds, 100 ms to 24 h
    /// unless the serializer has other bounds. A crashed holder blocks the resource for this long.
    pub ttl: Duration,
    /// How long after the sending of one successful renewal the next one is sent. Above zero;
    /// `renew_interval + holder_margin` must be below `ttl`.
    pub renew_interval: Duration,
    /// The holder stops this much before the serializer could give the lease away. At least a
    /// thousandth of `ttl`, because two clocks may differ that much in rate.
    pub holder_margin: Duration,
}

impl Default for LeaseOptions {
    /// 30 s, renewed every 10 s, with a margin of 1 s.
    fn default() -> Self {
        Self::with_ttl(Duration::from_secs(30))
    }
}

impl LeaseOptions {
    /// `ttl`, renewed every third of it, with a margin of a thirtieth.
    #[must_use]
    pub fn with_ttl(ttl: Duration) -> Self {
        Self {
            ttl,
            renew_interval: ttl / 3,
            holder_margin: ttl / 30,
        }
    }

    pub(super) fn check(&self) -> Result<Timing, InvalidInput> {
        let ttl = Ttl::new(self.ttl)?;
        let margin_min = self.ttl / MARGIN_PARTS;
        if self.holder_margin < margin_min {
            return Err(InvalidInput::OutOfBounds {
                what: "holder margin",
                given: self.holder_margin,
                min: margin_min,
                max: self.ttl,
            });
        }
        if self.renew_interval.is_zero() {
            return Err(InvalidInput::OutOfBounds {
                what: "renew interval",
                given: self.renew_interval,
                min: Duration::from_millis(1),
                max: self.ttl,
            });
        }
        let used = self.renew_interval.saturating_add(self.holder_margin);
        if used >= self.ttl {
            return Err(InvalidInput::Other(format!(
                "renew interval {:?} and holder margin {:?} leave no time within the ttl {:?}: \
                 make them smaller, or take LeaseOptions::with_ttl",
                self.renew_interval, self.holder_margin, self.ttl
            )));
        }
        Ok(Timing {
            ttl,
            usable: self.ttl - self.holder_margin,
            renew_interval: self.renew_interval,
        })
    }
}

/// Options that have passed the check.
#[derive(Debug, Clone, Copy)]
pub(super) struct Timing {
    pub(super) ttl: Ttl,
    /// How long after its sending a grant or renewal may be relied on: ttl less margin.
    pub(super) usable: Duration,
    pub(super) renew_interval: Duration,
}
