//! The rules that the cases check, as a failing case names them.

use std::fmt;

/// A rule of fenced leases.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Rule {
    /// Who is granted what.
    FreeIsGranted,
    /// One owner at a time.
    GrantIsTheLock,
    /// Retries of an acquire.
    RetriedAcquireFindsItsGrant,
    /// Late duplicates of an acquire.
    GrantIdIsGrantedOnce,
    /// Generations of ownership.
    EpochsStrictlyIncrease,
    /// Denied and failed operations.
    NoChangeWithoutSuccess,
    /// Which denial is named.
    DenialsInOrder,
    /// Retries of release, revoke and cancel.
    EndedIsAlreadyEnded,
    /// What expiry does and does not do.
    OwnershipEndsAtATransition,
    /// How long a grant lasts.
    TtlIsKept,
    /// Who is kept out after a revoke.
    HoldOffKeepsTheRevokedOut,
    /// What survives a restart.
    RestartKeepsRows,
    /// Which names there are.
    NamesAreKeptApart,
    /// How a change shows.
    RevisionGrows,
    /// Many requests at once.
    BatchAnswersInOrder,
    /// Listing.
    ListIsComplete,
    /// Who issued a fence.
    FenceCarriesTheAuthority,
    /// The promise to the owner.
    OwnerMayWrite,
    /// The promise to everybody else.
    StaleFenceIsRejected,
    /// The authenticated writer.
    WriterIsTheHolder,
    /// Fences that nobody issued.
    ForgedFenceIsRejected,
    /// Check and write in one step.
    CheckAndWriteAreOneStep,
    /// The order of the queue.
    WaitersAreServedInOrder,
    /// What follows an end of ownership when somebody waits.
    HandOverIsDirect,
    /// Those who stop waiting.
    LeaversLeaveNoGhost,
    /// How long a wait lasts.
    WaitsEnd,
    /// How long a grant lasts that was waited for.
    ClaimsLapse,
    /// The bound of the queue.
    QueueIsBounded,
    /// What the queue shows.
    QueueShowsWhoWaits,
    /// What becomes of the queue at a restart.
    RestartLeavesNoGhost,
    /// Following a resource.
    WatchShowsThePresent,
    /// Wall clocks.
    WallClockDecidesNothing,
    /// Writing and releasing in one step.
    BothOrNeither,
    /// Retries of a release with a value.
    ReleaseWithValueIsRecognized,
    /// Register revisions.
    RegisterComparesAndCounts,
    /// Register retries.
    RegisterWriteIsRecognized,
    /// What a register holds.
    RegisterKeepsItsValue,
}

impl Rule {
    /// The rule in words.
    #[must_use]
    pub fn text(self) -> &'static str {
        match self {
            Rule::FreeIsGranted => "a free resource is granted, and its fence names the grant",
            Rule::GrantIsTheLock => {
                "a held resource is denied to every other grant, of the same holder too"
            }
            Rule::RetriedAcquireFindsItsGrant => {
                "the same acquire again finds its grant and renews it"
            }
            Rule::GrantIdIsGrantedOnce => "a grant id is granted at most once",
            Rule::EpochsStrictlyIncrease => {
                "each grant and each end of an ownership has a new, higher epoch"
            }
            Rule::NoChangeWithoutSuccess => {
                "a denied or failed operation changes nothing and spends no epoch"
            }
            Rule::DenialsInOrder => "denials are judged in the order epoch, held, holder, expired",
            Rule::EndedIsAlreadyEnded => {
                "a repeated release, revoke or cancel has already ended and spares the next holder"
            }
            Rule::OwnershipEndsAtATransition => {
                "ownership ends at a transition: an expired lease that nobody took is still held, is \
                 not renewed and can be taken"
            }
            Rule::TtlIsKept => "a lease lasts its ttl, exact or refused, from the last renewal",
            Rule::HoldOffKeepsTheRevokedOut => {
                "a hold-off keeps the revoked holder out for its time, and only it"
            }
            Rule::RestartKeepsRows => {
                "a restart keeps every row and epoch and arms held rows with one full ttl"
            }
            Rule::NamesAreKeptApart => {
                "names compare byte for byte; invalid ones are refused as the caller's to fix"
            }
            Rule::RevisionGrows => "the revision grows with every change, renewals included",
            Rule::BatchAnswersInOrder => {
                "many requests are answered in their order, and one that fails fails alone"
            }
            Rule::ListIsComplete => "a list shows the rows asked for in byte order, page by page",
            Rule::FenceCarriesTheAuthority => "every fence carries the authority of its store",
            Rule::OwnerMayWrite => "the current owner's write is accepted",
            Rule::StaleFenceIsRejected => {
                "a write by a worker whose ownership has ended is rejected, however late it arrives"
            }
            Rule::WriterIsTheHolder => {
                "the authenticated writer and the holder that the fence names are the row's holder"
            }
            Rule::ForgedFenceIsRejected => {
                "a fence of another store, resource or epoch, past or future, is rejected"
            }
            Rule::CheckAndWriteAreOneStep => {
                "the check and the write are one atomic step: ownership cannot change in between"
            }
            Rule::WaitersAreServedInOrder => {
                "who waits is served first come, first served; neither a plain acquire nor a retry \
                 changes the order"
            }
            Rule::HandOverIsDirect => {
                "the step that ends an ownership grants the first in the queue, under a new epoch, \
                 and nobody can come in between"
            }
            Rule::LeaversLeaveNoGhost => {
                "who stops waiting leaves the queue, keeps no grant and holds up nobody"
            }
            Rule::WaitsEnd => "a wait that runs out is denied as such and is over",
            Rule::ClaimsLapse => {
                "a grant that was waited for lapses after the claim time, and lasts its ttl once it \
                 is renewed"
            }
            Rule::QueueIsBounded => "a full queue refuses who comes next, and keeps who waits",
            Rule::QueueShowsWhoWaits => "the queue shows who waits, the next one first",
            Rule::RestartLeavesNoGhost => {
                "a restart may forget who waits: they may ask again, nobody is granted twice, and no \
                 ghost holds the resource"
            }
            Rule::WatchShowsThePresent => {
                "a watch ends up showing the present owner; the same holder under a new epoch is a \
                 change"
            }
            Rule::WallClockDecidesNothing => {
                "expiry is judged by a clock that only runs: a jump of the wall clock frees nothing \
                 and keeps nothing"
            }
            Rule::BothOrNeither => {
                "a release with a value writes and releases in one step, both or neither"
            }
            Rule::ReleaseWithValueIsRecognized => {
                "a release with a value that comes again is recognized and spares the next holder"
            }
            Rule::RegisterComparesAndCounts => {
                "a register write compares the revision and counts it up by one, whoever writes"
            }
            Rule::RegisterWriteIsRecognized => {
                "a register write that comes again is recognized by its write id"
            }
            Rule::RegisterKeepsItsValue => "a register gives back exactly what was written",
        }
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.text())
    }
}
