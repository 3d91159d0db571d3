//! Random histories: what clients send, what time does, what the network repeats.
//!
//! A step names things by their place in the past ("the fence granted two grants ago"), so that a
//! random history reaches the interesting states and shrinks well.

use proptest::prelude::*;

use aster_core::EPOCH_MAX;

#[derive(Debug, Clone)]
pub(crate) struct History {
    /// The store's floor at the beginning: a young store, an old one, one that is nearly used up.
    pub(crate) floor: u64,
    pub(crate) steps: Vec<Step>,
}

#[derive(Debug, Clone)]
pub(crate) struct Step {
    /// The store judges expiry late: it says "not yet" although the time has passed.
    pub(crate) late: bool,
    pub(crate) act: Act,
}

#[derive(Debug, Clone)]
pub(crate) enum Act {
    Acquire {
        resource: usize,
        candidate: usize,
        ttl: usize,
        grant: Grant,
    },
    Renew {
        fence: Pick,
    },
    Release {
        fence: Pick,
    },
    Revoke {
        fence: Pick,
        hold_off_ms: Option<u64>,
    },
    /// An operator revokes the newest grant with a hold-off, and somebody steps in at once.
    HandOver {
        candidate: usize,
        hold_off_ms: u64,
    },
    /// Of a grant by its holder, or with an older grant id.
    Cancel {
        fence: Pick,
        grant_back: Option<usize>,
    },
    /// The network delivers an old request once more.
    Redeliver {
        back: usize,
    },
    Write {
        fence: Pick,
        writer: Option<usize>,
    },
    WriteRegister {
        fence: Pick,
        writer: Option<usize>,
        expected: Expected,
        repeat: bool,
    },
    Announce {
        fence: Pick,
        writer: Option<usize>,
    },
    CheckMark {
        fence: Pick,
        writer: Option<usize>,
    },
    AnnounceEnd {
        fence: Pick,
    },
    Advance {
        ms: u64,
    },
    DropIdle,
    Restart,
}

/// The grant id of an acquire: a new wish, or the id of an old one.
#[derive(Debug, Clone)]
pub(crate) enum Grant {
    Fresh,
    Used { back: usize },
}

/// A fence that was granted some time ago, perhaps tampered with.
#[derive(Debug, Clone)]
pub(crate) struct Pick {
    pub(crate) back: usize,
    pub(crate) tamper: Tamper,
}

#[derive(Debug, Clone)]
pub(crate) enum Tamper {
    Nothing,
    Authority,
    Resource,
    Holder(usize),
    EpochUp,
    EpochDown,
    EpochLargest,
}

#[derive(Debug, Clone, Copy)]
pub(crate) enum Expected {
    Any,
    Absent,
    /// The present revision, off by this much.
    Current(u64),
}

const STEPS_MAX: usize = 70;

pub(crate) fn histories() -> impl Strategy<Value = History> {
    let floor = prop_oneof![
        6 => Just(0),
        2 => 1..1_000u64,
        2 => (0..12u64).prop_map(|left| EPOCH_MAX - left),
    ];
    let step = (prop::bool::weighted(0.15), act()).prop_map(|(late, act)| Step { late, act });
    (floor, prop::collection::vec(step, 1..STEPS_MAX))
        .prop_map(|(floor, steps)| History { floor, steps })
}

fn act() -> impl Strategy<Value = Act> {
    let who = || 0..3usize;
    let writer = || prop::option::weighted(0.4, 0..3usize);
    let hold_off_ms =
        prop::option::weighted(0.7, prop::sample::select(vec![0u64, 1, 500, 3_000, 9_000]));
    let grant = prop_oneof![
        3 => Just(Grant::Fresh),
        2 => (0..3usize).prop_map(|back| Grant::Used { back }),
    ];
    // The last two are outside the bounds.
    let ttl = prop_oneof![12 => 0..3usize, 1 => 3..5usize];
    let expected = prop_oneof![
        Just(Expected::Any),
        Just(Expected::Absent),
        (0..3u64).prop_map(Expected::Current),
    ];
    prop_oneof![
        8 => (0..2usize, who(), ttl, grant).prop_map(|(resource, candidate, ttl, grant)| {
            Act::Acquire { resource, candidate, ttl, grant }
        }),
        4 => pick().prop_map(|fence| Act::Renew { fence }),
        4 => pick().prop_map(|fence| Act::Release { fence }),
        3 => (pick(), hold_off_ms).prop_map(|(fence, hold_off_ms)| {
            Act::Revoke { fence, hold_off_ms }
        }),
        3 => (who(), prop::sample::select(vec![3_000u64, 9_000, 30_000])).prop_map(
            |(candidate, hold_off_ms)| Act::HandOver { candidate, hold_off_ms }
        ),
        3 => (pick(), prop::option::weighted(0.2, 0..3usize)).prop_map(|(fence, grant_back)| {
            Act::Cancel { fence, grant_back }
        }),
        6 => (0..8usize).prop_map(|back| Act::Redeliver { back }),
        6 => (pick(), writer()).prop_map(|(fence, writer)| Act::Write { fence, writer }),
        3 => (pick(), writer(), expected, prop::bool::weighted(0.3)).prop_map(
            |(fence, writer, expected, repeat)| Act::WriteRegister { fence, writer, expected, repeat }
        ),
        3 => (pick(), writer()).prop_map(|(fence, writer)| Act::Announce { fence, writer }),
        3 => (pick(), writer()).prop_map(|(fence, writer)| Act::CheckMark { fence, writer }),
        1 => pick().prop_map(|fence| Act::AnnounceEnd { fence }),
        6 => prop_oneof![0..200u64, 200..6_000u64].prop_map(|ms| Act::Advance { ms }),
        2 => Just(Act::DropIdle),
        1 => Just(Act::Restart),
    ]
}

fn pick() -> impl Strategy<Value = Pick> {
    let tamper = prop_oneof![
        14 => Just(Tamper::Nothing),
        1 => Just(Tamper::Authority),
        1 => Just(Tamper::Resource),
        2 => (0..3usize).prop_map(Tamper::Holder),
        1 => Just(Tamper::EpochUp),
        1 => Just(Tamper::EpochDown),
        1 => Just(Tamper::EpochLargest),
    ];
    (prop_oneof![3 => Just(0usize), 2 => 0..6usize], tamper)
        .prop_map(|(back, tamper)| Pick { back, tamper })
}
