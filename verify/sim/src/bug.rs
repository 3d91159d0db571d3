//! Bugs to plant: each must be found, so that we know that its invariant bites.

use crate::service::Kind;
use crate::world::{Run, Settings, WorldError, run};

/// A planted bug is found within so many seeds.
pub const FOUND_WITHIN: u64 = 10;

/// A planted bug.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Bug {
    /// The resource runs protected closures without a check.
    UnfencedWrites,
    /// Holders go on using the fence that they fetched first, past their limit.
    FenceKept,
    /// A restart of the serializer forgets its rows and keeps its authority.
    RowsForgottenAtRestart,
    /// Waiters are let in by chance.
    QueueWithoutOrder,
    /// A renewal of a lease that has ended is confirmed, and its holder believes it.
    RenewalRevives,
    /// A release is confirmed and not carried out.
    ReleaseForgotten,
    /// Now and then a register write is confirmed and not kept.
    WriteForgotten,
    /// The retry of a grant that is still there makes another one.
    RetryMintsAgain,
    /// The serializer goes on renewing what its holder has left.
    DeadLeasesRenewed,
    /// The serializer judges expiry by its wall clock.
    WallClockExpiry,
    /// Waiters are forgotten: neither answered nor dropped.
    WaiterForgotten,
    /// Holders are told of a release of their own only.
    LossUntold,
    /// Who follows a resource is shown nothing more after a while.
    WatchStops,
    /// An operator's hold-off is confirmed and not kept.
    HoldOffForgotten,
    /// A turn that lapsed unheard ends the wait.
    LapseEndsWait,
    /// An end of an ownership takes no epoch: the next grant has the one after the ended one.
    EndKeepsEpoch,
}

impl Bug {
    /// All of them.
    pub const ALL: [Bug; 16] = [
        Bug::UnfencedWrites,
        Bug::FenceKept,
        Bug::RowsForgottenAtRestart,
        Bug::QueueWithoutOrder,
        Bug::RenewalRevives,
        Bug::ReleaseForgotten,
        Bug::WriteForgotten,
        Bug::RetryMintsAgain,
        Bug::DeadLeasesRenewed,
        Bug::WallClockExpiry,
        Bug::WaiterForgotten,
        Bug::LossUntold,
        Bug::WatchStops,
        Bug::HoldOffForgotten,
        Bug::LapseEndsWait,
        Bug::EndKeepsEpoch,
    ];

    /// Its name on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Bug::UnfencedWrites => "unfenced-writes",
            Bug::FenceKept => "fence-kept",
            Bug::RowsForgottenAtRestart => "rows-forgotten-at-restart",
            Bug::QueueWithoutOrder => "queue-without-order",
            Bug::RenewalRevives => "renewal-revives",
            Bug::ReleaseForgotten => "release-forgotten",
            Bug::WriteForgotten => "write-forgotten",
            Bug::RetryMintsAgain => "retry-mints-again",
            Bug::DeadLeasesRenewed => "dead-leases-renewed",
            Bug::WallClockExpiry => "wall-clock-expiry",
            Bug::WaiterForgotten => "waiter-forgotten",
            Bug::LossUntold => "loss-untold",
            Bug::WatchStops => "watch-stops",
            Bug::HoldOffForgotten => "hold-off-forgotten",
            Bug::LapseEndsWait => "lapse-ends-wait",
            Bug::EndKeepsEpoch => "end-keeps-epoch",
        }
    }

    /// Which invariant has to notice it.
    #[must_use]
    pub fn breaks(self) -> &'static str {
        match self {
            Bug::UnfencedWrites => "accepted_writes",
            Bug::FenceKept => "one_usable_fence",
            Bug::RowsForgottenAtRestart => "epochs_grow",
            Bug::QueueWithoutOrder => "first_come_first_served",
            Bug::RenewalRevives => "ended_is_final",
            Bug::ReleaseForgotten => "released_is_free",
            Bug::WriteForgotten => "registers",
            Bug::RetryMintsAgain => "grant_id_once",
            Bug::DeadLeasesRenewed => "nothing_left_behind",
            Bug::WallClockExpiry => "held_for_its_ttl",
            Bug::WaiterForgotten => "progress",
            Bug::LossUntold => "loss_is_told",
            Bug::WatchStops => "watchers_see_the_present",
            Bug::HoldOffForgotten => "kept_out",
            Bug::LapseEndsWait => "waits_are_kept",
            Bug::EndKeepsEpoch => "epochs_grow",
        }
    }
}

/// Plants `bug` in the worlds of the first seeds, and returns the first run in which its invariant
/// notices; `None` if none does.
///
/// # Errors
///
/// [`WorldError`] when a world could not be made.
pub fn find(bug: Bug, store: Kind) -> Result<Option<Run>, WorldError> {
    for seed in 1..=FOUND_WITHIN {
        let run = run(Settings {
            seed,
            store,
            bug: Some(bug),
            trace_lines_max: 0,
        })?;
        if run.violation.is_some() {
            return Ok(Some(run));
        }
    }
    Ok(None)
}
