//! Has it expired? Pure: what is stored and what the clock says come in, a judgement comes out.
//!
//! A row whose last instant was read from our own clock has an exact deadline. Any other row is
//! judged by watching: it has expired when we have seen the same epoch and revision for its ttl.

use std::time::Duration;

use aster_core::Judged;

use crate::rows::StoredRow;
use crate::schema::Id;

/// The newest renewal of a row, from the side file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Renewal {
    pub(crate) epoch: u64,
    pub(crate) revision: u64,
    pub(crate) era: Id,
    pub(crate) since_ns: u64,
    /// A takeover judged this epoch expired. Whoever shares no clock with it must not renew it any
    /// more: the takeover may be on its way to the disk.
    pub(crate) expired: bool,
}

/// What we have watched of a row on our own clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Seen {
    pub(crate) epoch: u64,
    pub(crate) revision: u64,
    pub(crate) since_ns: u64,
}

/// All that a judgement depends on.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Evidence {
    pub(crate) renewal: Option<Renewal>,
    pub(crate) seen: Option<Seen>,
    pub(crate) seen_hold_off: Option<Seen>,
}

/// A judgement, and what has to be watched from now on to judge better later.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Verdict {
    pub(crate) judged: Judged,
    /// The row's last instant is from another clock and was never seen on ours.
    pub(crate) watch: Option<Seen>,
    /// The same for its hold-off.
    pub(crate) watch_hold_off: Option<Seen>,
}

impl Verdict {
    /// Nothing has to be written down.
    pub(crate) fn is_certain(&self) -> bool {
        self.watch.is_none() && self.watch_hold_off.is_none()
    }
}

/// The row with its newest renewal applied. A renewal of another epoch has nothing to say; one of the
/// same epoch is always later than the grant, whichever revision is the higher one.
pub(crate) fn effective(row: &StoredRow, renewal: Option<&Renewal>) -> StoredRow {
    let mut row = row.clone();
    if let Some(renewal) = renewal
        && renewal.epoch == row.state.epoch
    {
        row.state.revision = row.state.revision.max(renewal.revision);
        row.stamp.era = renewal.era;
        row.stamp.since_ns = renewal.since_ns;
    }
    row
}

/// Judges an [`effective`] row at `now_ns` on the clock of `era`.
pub(crate) fn judge(row: &StoredRow, evidence: &Evidence, era: Id, now_ns: u64) -> Verdict {
    let mut verdict = Verdict::default();
    if let Some(ttl) = row.state.ttl() {
        let (epoch, revision) = (row.state.epoch, row.state.revision);
        let since_ns = if row.stamp.era == era {
            row.stamp.since_ns
        } else {
            match evidence.seen {
                Some(seen) if (seen.epoch, seen.revision) == (epoch, revision) => seen.since_ns,
                _ => {
                    verdict.watch = Some(Seen {
                        epoch,
                        revision,
                        since_ns: now_ns,
                    });
                    now_ns
                }
            }
        };
        let marked = evidence
            .renewal
            .is_some_and(|renewal| renewal.expired && renewal.epoch == epoch);
        let remaining = if marked {
            Duration::ZERO
        } else {
            ttl.duration().saturating_sub(elapsed(since_ns, now_ns))
        };
        verdict.judged.remaining = Some(remaining);
        verdict.judged.expired = remaining.is_zero();
    }
    if let (Some(hold_off), Some((stamp, epoch))) = (row.state.hold_off.as_deref(), row.hold_off) {
        let since_ns = if stamp.era == era {
            stamp.since_ns
        } else {
            match evidence.seen_hold_off {
                Some(seen) if seen.epoch == epoch => seen.since_ns,
                _ => {
                    verdict.watch_hold_off = Some(Seen {
                        epoch,
                        revision: 0,
                        since_ns: now_ns,
                    });
                    now_ns
                }
            }
        };
        verdict.judged.hold_off_over = elapsed(since_ns, now_ns) >= hold_off.duration;
    }
    verdict
}

/// An instant in the future reads as now: such a row is just armed, never expired.
fn elapsed(since_ns: u64, now_ns: u64) -> Duration {
    Duration::from_nanos(now_ns.saturating_sub(since_ns))
}

#[cfg(test)]
#[path = "judge_tests.rs"]
mod tests;
