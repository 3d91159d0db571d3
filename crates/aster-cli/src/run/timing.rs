//! When a run renews, stops and kills.
//!
//! ```text
//! last renewal sent                self-limit          KILL        ttl is over
//!        |---- renew, renew ----------|------ grace -----|- reserve -|
//!                                    TERM                 group gone: anyone may be granted
//! ```

use std::time::Duration;

use aster::lease::{LeaseOptions, Ttl};

use crate::duration::display;
use crate::failure::{Failure, FailureKind};

/// The grace unless the user says otherwise, if the ttl leaves room for it.
const GRACE: Duration = Duration::from_secs(5);
/// Without a choice the grace takes at most this part of the ttl; with one at most half.
const GRACE_PARTS: u32 = 4;
/// From KILL to the end of the ttl, for the kernel to end the group.
const RESERVE_MAX: Duration = Duration::from_secs(1);
const RESERVE_PARTS: u32 = 10;
/// The engine wants a margin of at least this part, because two clocks may differ that much in rate.
const MARGIN_PARTS: u32 = 1_000;
/// How often a renewal can fail before the self-limit.
const RENEWALS: u32 = 3;
/// A run hears of a revoke at its next renewal, so it renews at least this often, however long the ttl.
const RENEW_INTERVAL_MAX: Duration = Duration::from_secs(1);
/// The grace when the serializer has said no already, so that another may own the resource now.
const GRACE_WHEN_FENCED_MAX: Duration = Duration::from_secs(1);

/// The times of one run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Timing {
    pub(crate) ttl: Duration,
    pub(crate) grace: Duration,
    pub(crate) reserve: Duration,
}

impl Timing {
    pub(crate) fn new(ttl: Ttl, grace: Option<Duration>) -> Result<Self, Failure> {
        let ttl = ttl.duration();
        if let Some(grace) = grace
            && grace > ttl / 2
        {
            return Err(Failure::new(
                FailureKind::InvalidInput,
                format!(
                    "a grace of {} leaves no time to renew: at most {}, half the ttl",
                    display(grace),
                    display(ttl / 2)
                ),
            ));
        }
        Ok(Self {
            ttl,
            grace: grace.unwrap_or(GRACE.min(ttl / GRACE_PARTS)),
            reserve: RESERVE_MAX.min(ttl / RESERVE_PARTS).max(ttl / MARGIN_PARTS),
        })
    }

    /// The engine's options: it stops the fence at the self-limit, while grace and reserve are left.
    pub(crate) fn lease_options(&self) -> LeaseOptions {
        let holder_margin = self.grace + self.reserve;
        LeaseOptions {
            ttl: self.ttl,
            renew_interval: (self.ttl.saturating_sub(holder_margin) / RENEWALS)
                .min(RENEW_INTERVAL_MAX),
            holder_margin,
        }
    }

    /// From the first TERM to KILL when the serializer has said no.
    pub(crate) fn grace_when_fenced(&self) -> Duration {
        self.grace.min(GRACE_WHEN_FENCED_MAX)
    }

    /// How often the run looks at its lease and tells the guard.
    pub(crate) fn tick(&self) -> Duration {
        (self.ttl / 100).clamp(Duration::from_millis(5), Duration::from_millis(250))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn timing(ttl_ms: u64, grace_ms: Option<u64>) -> Result<Timing, Failure> {
        let ttl = Ttl::from_millis(ttl_ms).unwrap();
        Timing::new(ttl, grace_ms.map(Duration::from_millis))
    }

    #[test]
    fn the_group_is_killed_before_the_ttl_is_over_and_renewals_have_room() {
        for (ttl_ms, grace_ms) in [
            (100, None),
            (100, Some(50)),
            (1_000, None),
            (1_000, Some(0)),
            (30_000, None),
            (30_000, Some(15_000)),
            (86_400_000, None),
        ] {
            let timing = timing(ttl_ms, grace_ms).unwrap();
            let options = timing.lease_options();
            let self_limit = options.ttl - options.holder_margin;
            assert!(self_limit + timing.grace < timing.ttl, "{timing:?}");
            assert!(options.renew_interval * 2 < self_limit, "{timing:?}");
            assert!(options.holder_margin >= timing.ttl / 1_000, "{timing:?}");
        }
    }

    #[test]
    fn a_grace_over_half_the_ttl_is_refused() {
        assert_eq!(
            timing(1_000, Some(501)).unwrap_err().kind,
            FailureKind::InvalidInput
        );
        assert_eq!(timing(30_000, None).unwrap().grace, Duration::from_secs(5));
        assert_eq!(
            timing(2_000, None).unwrap().grace,
            Duration::from_millis(500)
        );
    }
}
