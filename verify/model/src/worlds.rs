//! The worlds that are explored, and the bugs that are planted in them.

use crate::bounds::{Bounds, Bug};
use crate::model::PROPERTIES;
use crate::seen::Ingredient;

/// A world, and what has to come up in it.
#[derive(Debug, Clone, Copy)]
pub struct Setting {
    /// Its name.
    pub name: &'static str,
    /// How far it goes.
    pub bounds: Bounds,
    /// What it is there for: each of these has to happen in some step.
    pub shows: &'static [Ingredient],
}

/// A planted bug, or a clock beyond its bound, and the property that has to notice.
#[derive(Debug, Clone, Copy)]
pub struct Control {
    /// What is planted, in words.
    pub planted: &'static str,
    /// The mistake; without one it is the world that is outside of its bounds.
    pub bug: Option<Bug>,
    /// What it breaks: one of [`PROPERTIES`].
    pub property: &'static str,
    /// Where it is found.
    pub bounds: Bounds,
}

const QUIET: Bounds = Bounds {
    duplicates: 0,
    lags: 0,
    renewals: 0,
    ticks: 4,
    ..Bounds::SMALL
};

/// Each turns on one part, because all of them together are too many orders for a test run. They are
/// explored to their end.
pub const WORLDS: [Setting; 8] = [
    Setting {
        name: "delays, doubles and a slow clock",
        bounds: Bounds {
            duplicates: 1,
            lags: 1,
            ..QUIET
        },
        shows: &[
            Ingredient::Write,
            Ingredient::LateWrite,
            Ingredient::ForgedWrite,
            Ingredient::Doubled,
            Ingredient::Lost,
            Ingredient::LateGrant,
            Ingredient::Paused,
            Ingredient::SlowClock,
            Ingredient::TakenOver,
            Ingredient::RetryFoundGrant,
            Ingredient::RetryAfterEnd,
            Ingredient::ForgottenWish,
            Ingredient::CancelledGrant,
            Ingredient::Reordered,
        ],
    },
    Setting {
        name: "renewals and a slow clock",
        bounds: Bounds {
            renewals: 1,
            lags: 1,
            ticks: 5,
            ..QUIET
        },
        shows: &[
            Ingredient::Renewed,
            Ingredient::LateRenewal,
            Ingredient::Lost,
            Ingredient::Reordered,
            Ingredient::SlowClock,
            Ingredient::LateWrite,
        ],
    },
    Setting {
        name: "a queue with claims and doubles",
        bounds: Bounds {
            queue: true,
            renewals: 1,
            duplicates: 1,
            ..QUIET
        },
        shows: &[
            Ingredient::GrantedAfterWait,
            Ingredient::HandedOver,
            Ingredient::Claimed,
            Ingredient::ClaimLapsed,
            Ingredient::CancelledPlace,
            Ingredient::Doubled,
        ],
    },
    Setting {
        name: "a restart of the serializer",
        bounds: Bounds {
            restarts: 1,
            duplicates: 1,
            ..QUIET
        },
        shows: &[Ingredient::RestartWhileHeld, Ingredient::LateWrite],
    },
    Setting {
        name: "a restart with waiters",
        bounds: Bounds {
            restarts: 1,
            queue: true,
            renewals: 1,
            ..QUIET
        },
        shows: &[Ingredient::RestartWithWaiters, Ingredient::Claimed],
    },
    Setting {
        name: "rows dropped behind the floor",
        bounds: Bounds {
            drops: 1,
            duplicates: 1,
            ..QUIET
        },
        shows: &[
            Ingredient::Dropped,
            Ingredient::GrantedAfterDrop,
            Ingredient::LateWrite,
        ],
    },
    Setting {
        name: "a backup put back under a new authority",
        bounds: Bounds {
            restores: 1,
            ..QUIET
        },
        shows: &[
            Ingredient::RequestToRestored,
            Ingredient::AdoptedWhileHeld,
            Ingredient::RequestOfAnEarlierAuthority,
            Ingredient::WriteOfAnEarlierAuthority,
        ],
    },
    Setting {
        name: "a revoke",
        bounds: Bounds {
            revokes: 1,
            lags: 1,
            ..QUIET
        },
        shows: &[Ingredient::Revoked, Ingredient::LateWrite],
    },
];

const WIDE: Bounds = Bounds {
    ticks: 7,
    wishes: 3,
    renewals: 2,
    writes: 2,
    ..Bounds::SMALL
};

/// Further than a test run goes: as far as the time lasts, breadth first.
pub const FURTHER: [Setting; 8] = [
    Setting {
        name: "leases",
        bounds: WIDE,
        shows: &[],
    },
    Setting {
        name: "three holders",
        bounds: Bounds { holders: 3, ..WIDE },
        shows: &[],
    },
    Setting {
        name: "queue",
        bounds: Bounds {
            queue: true,
            ..WIDE
        },
        shows: &[],
    },
    Setting {
        name: "queue, restarts",
        bounds: Bounds {
            queue: true,
            restarts: 2,
            ..WIDE
        },
        shows: &[],
    },
    Setting {
        name: "revokes",
        bounds: Bounds { revokes: 2, ..WIDE },
        shows: &[],
    },
    Setting {
        name: "dropped rows",
        bounds: Bounds { drops: 2, ..WIDE },
        shows: &[],
    },
    Setting {
        name: "restored backups",
        bounds: Bounds {
            restores: 2,
            ..WIDE
        },
        shows: &[],
    },
    Setting {
        name: "everything",
        bounds: Bounds {
            queue: true,
            restarts: 1,
            revokes: 1,
            drops: 1,
            restores: 1,
            ..WIDE
        },
        shows: &[],
    },
];

const WRITE: &str = PROPERTIES[0];
const UNIQUE: &str = PROPERTIES[1];
const NEW_EPOCH: &str = PROPERTIES[2];
const ONCE: &str = PROPERTIES[3];
const TTL: &str = PROPERTIES[4];
const ONLY_THE_OWNER: &str = PROPERTIES[5];
const ACQUIRABLE: &str = PROPERTIES[6];

const DOUBLES: Bounds = Bounds {
    duplicates: 1,
    ..QUIET
};
const QUEUE: Bounds = Bounds {
    queue: true,
    ..QUIET
};

/// Every planted bug, and a clock slower than the bound.
pub const CONTROLS: [Control; 14] = [
    control(
        "a check before the transaction",
        Bug::CheckBeforeTheTransaction,
        WRITE,
        QUIET,
    ),
    control(
        "a writer that is not asked",
        Bug::WriterIsNotAsked,
        WRITE,
        QUIET,
    ),
    control(
        "a release that keeps the epoch",
        Bug::ReleaseKeepsTheEpoch,
        NEW_EPOCH,
        QUIET,
    ),
    control(
        "a retry that mints a second grant",
        Bug::RetryMintsASecondGrant,
        ONCE,
        DOUBLES,
    ),
    control(
        "a takeover that trusts a wall clock",
        Bug::TakeoverTrustsAWallClock,
        TTL,
        QUIET,
    ),
    control(
        "a floor raised after the drop",
        Bug::FloorRaisedAfterTheDrop,
        UNIQUE,
        Bounds { drops: 1, ..QUIET },
    ),
    control(
        "a backup put back under its old authority",
        Bug::RestoreKeepsTheAuthority,
        UNIQUE,
        Bounds {
            restores: 1,
            ..QUIET
        },
    ),
    control(
        "a restored store that serves the authority before it",
        Bug::AuthorityIsNotAsked,
        TTL,
        Bounds {
            restores: 1,
            ..QUIET
        },
    ),
    control(
        "a release of whatever epoch",
        Bug::ReleaseIgnoresTheEpoch,
        TTL,
        DOUBLES,
    ),
    control(
        "a claim that is used unrenewed",
        Bug::ClaimIsUsedUnrenewed,
        ONLY_THE_OWNER,
        Bounds {
            wishes: 3,
            holders: 3,
            ..QUEUE
        },
    ),
    control(
        "a claim that outlives its renewal",
        Bug::ClaimOutlivesItsRenewal,
        TTL,
        Bounds {
            renewals: 1,
            wishes: 3,
            ..QUEUE
        },
    ),
    control(
        "an unclaimed grant that stays",
        Bug::UnclaimedGrantNeverLapses,
        ACQUIRABLE,
        QUEUE,
    ),
    control(
        "a holder that counts from the answer",
        Bug::AnchorAtTheAnswer,
        ONLY_THE_OWNER,
        Bounds { ticks: 5, ..QUIET },
    ),
    // Beyond the bound of the clocks' rates two may think that they own, and still no stale write passes.
    Control {
        planted: "a clock slower than the bound",
        bug: None,
        property: ONLY_THE_OWNER,
        bounds: Bounds {
            lags: 2,
            ticks: 5,
            ..QUIET
        },
    },
];

const fn control(
    planted: &'static str,
    bug: Bug,
    property: &'static str,
    bounds: Bounds,
) -> Control {
    Control {
        planted,
        bug: Some(bug),
        property,
        bounds,
    }
}
