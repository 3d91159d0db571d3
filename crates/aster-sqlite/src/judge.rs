//! Has it expired? Pure: what is stored and what the clock says come in, a judgement comes out.
//!
//! A row whose last instant was read from our own clock has an exact deadline. Any other row is
//! judged by watching: it has expired when we have seen the same epoch and revision for its ttl.

use std::time::Duration;

use aster_core::{GrantId, Judged};

use crate::rows::{Stamp, StoredRow, stamp_of};
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

/// What a watch is about: the tenure of a row, or one of its hold-offs, which its epoch names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Watched {
    Tenure,
    HoldOff { epoch: u64 },
}

/// What we have watched of a row on our own clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Seen {
    pub(crate) epoch: u64,
    pub(crate) revision: u64,
    pub(crate) since_ns: u64,
}

/// A grant that was waited for: until its first renewal it lasts for a short while only. It is
/// volatile, and without it the whole ttl counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Claim {
    /// Grant ids are granted at most once, so a claim never shortens another grant.
    pub(crate) grant_id: GrantId,
    pub(crate) era: Id,
    pub(crate) since_ns: u64,
    pub(crate) duration: Duration,
}

impl Claim {
    /// How much of it is over.
    pub(crate) fn elapsed(&self, now_ns: u64) -> Duration {
        elapsed(self.since_ns, now_ns)
    }
}

/// All that a judgement depends on.
#[derive(Debug, Clone, Default)]
pub(crate) struct Evidence {
    pub(crate) renewal: Option<Renewal>,
    /// Matters only while there is no renewal of the row's epoch.
    pub(crate) claim: Option<Claim>,
    pub(crate) seen: Option<Seen>,
    /// Of hold-offs that began on another clock.
    pub(crate) seen_hold_offs: Vec<Seen>,
}

impl Evidence {
    /// Whether a later epoch than the row's was renewed: then the row has gone back in time. A renewal
    /// is made of a row that was durable, so no crash and no race leads to this.
    pub(crate) fn is_ahead_of(&self, row: &StoredRow) -> bool {
        self.renewal
            .is_some_and(|renewal| renewal.epoch > row.state.epoch)
    }
}

/// A judgement, and what has to be watched from now on to judge better later.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Verdict {
    /// The present holder waited for it, and has not renewed it.
    pub(crate) unclaimed: bool,
    pub(crate) judged: Judged,
    /// Instants that are from another clock and were never seen on ours.
    pub(crate) watches: Vec<(Watched, Seen)>,
}

impl Verdict {
    /// Nothing has to be written down.
    pub(crate) fn is_certain(&self) -> bool {
        self.watches.is_empty()
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

/// Judges an [`effective`] row at `now_ns` on the clock of `era`, and drops its hold-offs that are over.
pub(crate) fn judge(row: &mut StoredRow, evidence: &Evidence, era: Id, now_ns: u64) -> Verdict {
    let mut verdict = Verdict::default();
    // The instant itself if it was read from our own clock, else since when we have seen `present`.
    let mut since_ns = |watched: Watched, stamp: Stamp, seen: Option<Seen>, present: Seen| {
        if stamp.era == era {
            return stamp.since_ns;
        }
        match seen {
            Some(seen) if (seen.epoch, seen.revision) == (present.epoch, present.revision) => {
                seen.since_ns
            }
            _ => {
                verdict.watches.push((watched, present));
                now_ns
            }
        }
    };
    let (epoch, revision) = (row.state.epoch, row.state.revision);
    if let Some(ttl) = row.state.ttl() {
        let present = Seen {
            epoch,
            revision,
            since_ns: now_ns,
        };
        let since_ns = since_ns(Watched::Tenure, row.stamp, evidence.seen, present);
        let marked = evidence
            .renewal
            .is_some_and(|renewal| renewal.expired && renewal.epoch == epoch);
        let elapsed_now = match marked {
            true => ttl.duration(),
            false => elapsed(since_ns, now_ns),
        };
        let claim = unclaimed(row, evidence, era).filter(|_| !marked);
        verdict.unclaimed = claim.is_some();
        // A claim can begin later than its grant, which may have taken long to become durable.
        let elapsed_now = claim.map_or(elapsed_now, |claim| elapsed_now.min(claim.elapsed(now_ns)));
        let claim_left = claim.map(|claim| claim.duration.saturating_sub(claim.elapsed(now_ns)));
        verdict.judged = Judged::held(ttl, elapsed_now, claim_left);
    }
    let stamps = &row.hold_offs_since;
    row.state.hold_offs.retain(|hold_off| {
        let epoch = hold_off.epoch;
        let Some(stamp) = stamp_of(stamps, epoch) else {
            return true;
        };
        let seen = evidence.seen_hold_offs.iter();
        let seen = seen.copied().find(|seen| seen.epoch == epoch);
        let present = Seen {
            epoch,
            revision: 0,
            since_ns: now_ns,
        };
        let since_ns = since_ns(Watched::HoldOff { epoch }, stamp, seen, present);
        elapsed(since_ns, now_ns) < hold_off.duration
    });
    let running = &row.state.hold_offs;
    row.hold_offs_since
        .retain(|(epoch, _)| running.iter().any(|hold_off| hold_off.epoch == *epoch));
    verdict
}

/// The claim that limits the row's grant. A claim of another clock says nothing: that clock may belong
/// to a boot whose last renewals are lost.
fn unclaimed(row: &StoredRow, evidence: &Evidence, era: Id) -> Option<Claim> {
    let renewed = evidence.renewal.as_ref();
    let renewed = renewed.is_some_and(|renewal| renewal.epoch == row.state.epoch);
    let claim = evidence.claim.filter(|_| !renewed)?;
    (claim.era == era && claim.grant_id == row.state.grant_id).then_some(claim)
}

/// An instant in the future reads as now: such a row is just armed, never expired.
fn elapsed(since_ns: u64, now_ns: u64) -> Duration {
    Duration::from_nanos(now_ns.saturating_sub(since_ns))
}

#[cfg(test)]
#[path = "judge_tests.rs"]
mod tests;
