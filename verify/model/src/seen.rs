//! What has happened in the steps that were explored, so that no world says "nothing broke" of something
//! that never came up in it.

use std::sync::atomic::{AtomicU64, Ordering};

/// Something that a world is made of. Each counts only where it mattered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ingredient {
    /// A lease was taken over while a renewal or the release of its owner had not arrived.
    Lost,
    /// A message arrived and arrived once more.
    Doubled,
    /// A request arrived before one that its holder had sent earlier.
    Reordered,
    /// A write arrived after its owner's ownership had ended, and was rejected.
    LateWrite,
    /// A write under a fence that belongs to another was rejected.
    ForgedWrite,
    /// A write by the owner was accepted.
    Write,
    /// A grant arrived after the time for which it could have been used, and was given back.
    LateGrant,
    /// A holder did nothing until its lease had run out.
    Paused,
    /// A holder's clock missed a tick while it had a lease.
    SlowClock,
    /// A lease was renewed.
    Renewed,
    /// A renewal came too late and was denied.
    LateRenewal,
    /// The serializer restarted while the resource was held.
    RestartWhileHeld,
    /// The serializer restarted while somebody waited.
    RestartWithWaiters,
    /// A free row was dropped behind the floor.
    Dropped,
    /// A resource whose row had been dropped was granted.
    GrantedAfterDrop,
    /// A request came to a store that had been put back and that nobody had adopted.
    RequestToRestored,
    /// A restored store was given a new authority, which ended a lease that it held.
    AdoptedWhileHeld,
    /// A renewal or release that was meant for the store before a restore was refused.
    RequestOfAnEarlierAuthority,
    /// A write under the authority before a restore was rejected.
    WriteOfAnEarlierAuthority,
    /// Somebody who had waited was granted.
    GrantedAfterWait,
    /// Such a grant was renewed within its claim time.
    Claimed,
    /// Such a grant was not renewed, and another was granted.
    ClaimLapsed,
    /// A retry found the grant that it had been given before.
    RetryFoundGrant,
    /// A retry came after its grant had ended, and was not granted again.
    RetryAfterEnd,
    /// A wish that the row had forgotten, because another was granted since, was granted once more.
    ForgottenWish,
    /// A cancel ended a grant.
    CancelledGrant,
    /// A cancel gave up a place in the queue.
    CancelledPlace,
    /// An operator took a lease away.
    Revoked,
    /// A lease that had expired was taken over.
    TakenOver,
    /// A lease was released, and whoever waited had it in the same step.
    HandedOver,
}

impl Ingredient {
    /// All of them.
    pub const ALL: [Ingredient; 30] = [
        Ingredient::Lost,
        Ingredient::Doubled,
        Ingredient::Reordered,
        Ingredient::LateWrite,
        Ingredient::ForgedWrite,
        Ingredient::Write,
        Ingredient::LateGrant,
        Ingredient::Paused,
        Ingredient::SlowClock,
        Ingredient::Renewed,
        Ingredient::LateRenewal,
        Ingredient::RestartWhileHeld,
        Ingredient::RestartWithWaiters,
        Ingredient::Dropped,
        Ingredient::GrantedAfterDrop,
        Ingredient::RequestToRestored,
        Ingredient::AdoptedWhileHeld,
        Ingredient::RequestOfAnEarlierAuthority,
        Ingredient::WriteOfAnEarlierAuthority,
        Ingredient::GrantedAfterWait,
        Ingredient::Claimed,
        Ingredient::ClaimLapsed,
        Ingredient::RetryFoundGrant,
        Ingredient::RetryAfterEnd,
        Ingredient::ForgottenWish,
        Ingredient::CancelledGrant,
        Ingredient::CancelledPlace,
        Ingredient::Revoked,
        Ingredient::TakenOver,
        Ingredient::HandedOver,
    ];

    /// In words, as a plural that follows a number.
    #[must_use]
    pub fn words(self) -> &'static str {
        match self {
            Ingredient::Lost => "takeovers while the owner's renewal or release was lost or late",
            Ingredient::Doubled => "messages that arrived twice",
            Ingredient::Reordered => "requests that overtook an earlier one",
            Ingredient::LateWrite => "late writes that were rejected",
            Ingredient::ForgedWrite => "writes under another's fence that were rejected",
            Ingredient::Write => "writes by the owner",
            Ingredient::LateGrant => "grants heard of too late and given back",
            Ingredient::Paused => "holders that did nothing until their lease had run out",
            Ingredient::SlowClock => "ticks that a holder's clock missed",
            Ingredient::Renewed => "renewals",
            Ingredient::LateRenewal => "renewals that came too late",
            Ingredient::RestartWhileHeld => "restarts while the resource was held",
            Ingredient::RestartWithWaiters => "restarts while somebody waited",
            Ingredient::Dropped => "rows dropped behind the floor",
            Ingredient::GrantedAfterDrop => "grants of a resource whose row had been dropped",
            Ingredient::RequestToRestored => "requests to a restored store that nobody had adopted",
            Ingredient::AdoptedWhileHeld => "restored stores adopted while they held a lease",
            Ingredient::RequestOfAnEarlierAuthority => {
                "renewals and releases under an earlier authority that were refused"
            }
            Ingredient::WriteOfAnEarlierAuthority => {
                "writes under an earlier authority that were rejected"
            }
            Ingredient::GrantedAfterWait => "grants after a wait",
            Ingredient::Claimed => "grants after a wait that were claimed",
            Ingredient::ClaimLapsed => "grants after a wait that lapsed unclaimed",
            Ingredient::RetryFoundGrant => "retries that found their grant",
            Ingredient::RetryAfterEnd => "retries after the end of their grant",
            Ingredient::ForgottenWish => "late duplicates of a wish that the row had forgotten",
            Ingredient::CancelledGrant => "grants that were cancelled",
            Ingredient::CancelledPlace => "places in the queue that were cancelled",
            Ingredient::Revoked => "revokes",
            Ingredient::TakenOver => "takeovers of an expired lease",
            Ingredient::HandedOver => "releases that handed over to a waiter",
        }
    }
}

/// In how many of the explored steps each happened.
#[derive(Debug, Default)]
pub struct Seen([AtomicU64; Ingredient::ALL.len()]);

impl Seen {
    /// How often so far.
    #[must_use]
    pub fn count(&self, ingredient: Ingredient) -> u64 {
        self.0[ingredient as usize].load(Ordering::Relaxed)
    }

    pub(crate) fn saw(&self, ingredient: Ingredient) {
        self.0[ingredient as usize].fetch_add(1, Ordering::Relaxed);
    }
}
