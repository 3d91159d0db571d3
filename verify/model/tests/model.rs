//! The rules hold in every order of events up to a bound, and each planted bug is found.
//!
//! Each test turns on one part of the world, because all of them together are too many orders for a
//! test run; the example `explore` goes further.
#![allow(
    clippy::print_stdout,
    reason = "what was explored is what a reader wants to know"
)]

use aster_model::{Bounds, Bug, LeaseModel, PROPERTIES};
use stateright::{Checker, HasDiscoveries, Model};

const WRITE: &str = PROPERTIES[0];
const UNIQUE: &str = PROPERTIES[1];
const NEW_EPOCH: &str = PROPERTIES[2];
const ONCE: &str = PROPERTIES[3];
const TTL: &str = PROPERTIES[4];
const ONE_USABLE: &str = PROPERTIES[5];
const ACQUIRABLE: &str = PROPERTIES[6];

const QUIET: Bounds = Bounds {
    duplicates: 0,
    lags: 0,
    renewals: 0,
    ticks: 4,
    ..Bounds::SMALL
};

/// Explores everything within `bounds`.
fn holds(bounds: Bounds) {
    let model = LeaseModel { bounds, bug: None };
    let checker = model.checker().threads(2).spawn_bfs().join();
    println!(
        "{} states, {} of them distinct, up to {} steps deep",
        checker.state_count(),
        checker.unique_state_count(),
        checker.max_depth(),
    );
    checker.assert_properties();
}

/// The bug has to be found, and as a breach of this property.
fn finds(bug: Bug, property: &'static str, bounds: Bounds) {
    breaks(Some(bug), property, bounds);
}

fn breaks(bug: Option<Bug>, property: &'static str, bounds: Bounds) {
    let model = LeaseModel { bounds, bug };
    let checker = model
        .checker()
        .threads(2)
        .finish_when(HasDiscoveries::AllOf([property].into()))
        .spawn_bfs()
        .join();
    let mut found = checker.discoveries();
    let names: Vec<_> = found.keys().copied().collect();
    assert!(
        names.contains(&property),
        "{bug:?} breaks {names:?}, not {property:?}"
    );
    if let Some(path) = found.remove(property) {
        println!("{property:?} is broken by {:?}", path.into_actions());
    }
}

#[test]
fn delays_doubles_and_a_slow_clock() {
    holds(Bounds {
        duplicates: 1,
        lags: 1,
        ..QUIET
    });
}

#[test]
fn renewals_and_a_slow_clock() {
    holds(Bounds {
        renewals: 1,
        lags: 1,
        ticks: 5,
        ..QUIET
    });
}

#[test]
fn a_queue_with_claims_and_doubles() {
    holds(Bounds {
        queue: true,
        renewals: 1,
        duplicates: 1,
        ..QUIET
    });
}

#[test]
fn a_restart_of_the_serializer() {
    holds(Bounds {
        restarts: 1,
        duplicates: 1,
        ..QUIET
    });
}

#[test]
fn a_restart_with_waiters() {
    holds(Bounds {
        restarts: 1,
        queue: true,
        renewals: 1,
        ..QUIET
    });
}

#[test]
fn rows_dropped_behind_the_floor() {
    holds(Bounds {
        drops: 1,
        duplicates: 1,
        ..QUIET
    });
}

#[test]
fn a_backup_put_back_under_a_new_authority() {
    holds(Bounds {
        restores: 1,
        ..QUIET
    });
}

#[test]
fn a_revoke() {
    holds(Bounds {
        revokes: 1,
        lags: 1,
        ..QUIET
    });
}

#[test]
fn control_a_check_before_the_transaction() {
    finds(Bug::CheckBeforeTheTransaction, WRITE, QUIET);
}

#[test]
fn control_a_writer_that_is_not_asked() {
    finds(Bug::WriterIsNotAsked, WRITE, QUIET);
}

#[test]
fn control_a_release_that_keeps_the_epoch() {
    finds(Bug::ReleaseKeepsTheEpoch, NEW_EPOCH, QUIET);
}

#[test]
fn control_a_retry_that_mints_a_second_grant() {
    let bounds = Bounds {
        duplicates: 1,
        ..QUIET
    };
    finds(Bug::RetryMintsASecondGrant, ONCE, bounds);
}

#[test]
fn control_a_takeover_that_trusts_a_wall_clock() {
    finds(Bug::TakeoverTrustsAWallClock, TTL, QUIET);
}

#[test]
fn control_a_floor_raised_after_the_drop() {
    let bounds = Bounds { drops: 1, ..QUIET };
    finds(Bug::FloorRaisedAfterTheDrop, UNIQUE, bounds);
}

#[test]
fn control_a_backup_put_back_under_its_old_authority() {
    let bounds = Bounds {
        restores: 1,
        ..QUIET
    };
    finds(Bug::RestoreKeepsTheAuthority, UNIQUE, bounds);
}

#[test]
fn control_a_release_of_whatever_epoch() {
    let bounds = Bounds {
        duplicates: 1,
        ..QUIET
    };
    finds(Bug::ReleaseIgnoresTheEpoch, TTL, bounds);
}

#[test]
fn control_a_claim_that_is_used_unrenewed() {
    let bounds = Bounds {
        queue: true,
        wishes: 3,
        holders: 3,
        ..QUIET
    };
    finds(Bug::ClaimIsUsedUnrenewed, ONE_USABLE, bounds);
}

#[test]
fn control_a_claim_that_outlives_its_renewal() {
    let bounds = Bounds {
        queue: true,
        renewals: 1,
        wishes: 3,
        ..QUIET
    };
    finds(Bug::ClaimOutlivesItsRenewal, TTL, bounds);
}

#[test]
fn control_an_unclaimed_grant_that_stays() {
    let bounds = Bounds {
        queue: true,
        ..QUIET
    };
    finds(Bug::UnclaimedGrantNeverLapses, ACQUIRABLE, bounds);
}

#[test]
fn control_a_holder_that_counts_from_the_answer() {
    let bounds = Bounds { ticks: 5, ..QUIET };
    finds(Bug::AnchorAtTheAnswer, ONE_USABLE, bounds);
}

/// Beyond the bound of the clocks' rates two may think that they own, and still no stale write passes.
#[test]
fn control_a_clock_slower_than_the_bound() {
    let bounds = Bounds {
        lags: 2,
        ticks: 5,
        ..QUIET
    };
    breaks(None, ONE_USABLE, bounds);
}
