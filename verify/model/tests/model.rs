//! The rules hold in every order of events up to a bound, and each planted bug is found.
//!
//! Each test turns on one part of the world, because all of them together are too many orders for a
//! test run; the program `aster-model` goes further.
#![allow(
    clippy::expect_used,
    clippy::print_stdout,
    reason = "this crate is all tests, and what was explored is what a reader wants to know"
)]

use aster_model::{CONTROLS, Ingredient, LeaseModel, PROPERTIES, Setting, WORLDS};
use stateright::{Checker, HasDiscoveries, Model};

/// Explores everything within the world's bounds; and what it is there for came up.
fn holds(name: &str) {
    let setting = WORLDS.iter().find(|setting| setting.name == name);
    let Setting { bounds, shows, .. } = setting.expect("a world of that name");
    let model = LeaseModel::new(*bounds, None);
    let seen = model.seen();
    let checker = model.checker().threads(2).spawn_bfs().join();
    println!(
        "{name}: {} states, {} of them distinct, up to {} steps deep",
        checker.state_count(),
        checker.unique_state_count(),
        checker.max_depth(),
    );
    checker.assert_properties();
    for ingredient in Ingredient::ALL {
        println!("{:>10} {}", seen.count(ingredient), ingredient.words());
    }
    let missing: Vec<_> = shows.iter().filter(|it| seen.count(**it) == 0).collect();
    assert!(missing.is_empty(), "{name} never saw {missing:?}");
}

/// The bug has to be found, and as a breach of its property.
fn finds(planted: &str) {
    let control = CONTROLS.iter().find(|control| control.planted == planted);
    let control = control.expect("a control of that name");
    let model = LeaseModel::new(control.bounds, control.bug);
    let checker = model
        .checker()
        .threads(2)
        .finish_when(HasDiscoveries::AllOf([control.property].into()))
        .spawn_bfs()
        .join();
    let mut found = checker.discoveries();
    let names: Vec<_> = found.keys().copied().collect();
    let path = found.remove(control.property);
    let Some(path) = path else {
        panic!("{planted} breaks {names:?}, not {:?}", control.property);
    };
    println!("{planted} is found: {:?}", path.into_actions());
}

#[test]
fn delays_doubles_and_a_slow_clock() {
    holds("delays, doubles and a slow clock");
}

#[test]
fn renewals_and_a_slow_clock() {
    holds("renewals and a slow clock");
}

#[test]
fn a_queue_with_claims_and_doubles() {
    holds("a queue with claims and doubles");
}

#[test]
fn a_restart_of_the_serializer() {
    holds("a restart of the serializer");
}

#[test]
fn a_restart_with_waiters() {
    holds("a restart with waiters");
}

#[test]
fn rows_dropped_behind_the_floor() {
    holds("rows dropped behind the floor");
}

#[test]
fn a_backup_put_back_under_a_new_authority() {
    holds("a backup put back under a new authority");
}

#[test]
fn a_revoke() {
    holds("a revoke");
}

#[test]
fn control_a_check_before_the_transaction() {
    finds("a check before the transaction");
}

#[test]
fn control_a_writer_that_is_not_asked() {
    finds("a writer that is not asked");
}

#[test]
fn control_a_release_that_keeps_the_epoch() {
    finds("a release that keeps the epoch");
}

#[test]
fn control_a_retry_that_mints_a_second_grant() {
    finds("a retry that mints a second grant");
}

#[test]
fn control_a_takeover_that_trusts_a_wall_clock() {
    finds("a takeover that trusts a wall clock");
}

#[test]
fn control_a_floor_raised_after_the_drop() {
    finds("a floor raised after the drop");
}

#[test]
fn control_a_backup_put_back_under_its_old_authority() {
    finds("a backup put back under its old authority");
}

#[test]
fn control_a_restored_store_that_serves_the_authority_before_it() {
    finds("a restored store that serves the authority before it");
}

#[test]
fn control_a_release_of_whatever_epoch() {
    finds("a release of whatever epoch");
}

#[test]
fn control_a_claim_that_is_used_unrenewed() {
    finds("a claim that is used unrenewed");
}

#[test]
fn control_a_claim_that_outlives_its_renewal() {
    finds("a claim that outlives its renewal");
}

#[test]
fn control_an_unclaimed_grant_that_stays() {
    finds("an unclaimed grant that stays");
}

#[test]
fn control_a_holder_that_counts_from_the_answer() {
    finds("a holder that counts from the answer");
}

#[test]
fn control_a_clock_slower_than_the_bound() {
    finds("a clock slower than the bound");
}

#[test]
fn every_ingredient_has_its_world_and_every_property_its_control() {
    for ingredient in Ingredient::ALL {
        let has_a_world = WORLDS.iter().any(|world| world.shows.contains(&ingredient));
        assert!(has_a_world, "no world has to show {ingredient:?}");
    }
    for property in PROPERTIES {
        let has_a_control = CONTROLS.iter().any(|control| control.property == property);
        assert!(has_a_control, "nothing breaks {property:?}");
    }
}
