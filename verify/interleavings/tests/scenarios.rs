//! The scenarios hold, the controls are caught, and what fails can be repeated.

use std::time::Duration;

use aster_interleavings::SCENARIOS;
use aster_interleavings::controls::CONTROLS;
use aster_interleavings::explore::explore;
use aster_interleavings::plan::Plan;
use aster_interleavings::proof;
use aster_interleavings::scheduler::{Budget, Way};

/// For all scenarios together, beside what the controls take.
const TIME: Duration = Duration::from_secs(20);
const SEED: u64 = 4;

#[test]
fn every_scenario_holds_and_every_control_is_caught() {
    let evidence = proof::run(TIME, SEED);
    println!("{evidence}");
    assert!(evidence.is_sound(), "{evidence}");
    assert_eq!(evidence.controls.len(), CONTROLS.len());
}

#[test]
fn every_scenario_has_a_control_and_every_control_a_scenario() {
    for scenario in SCENARIOS {
        let controls = CONTROLS.iter();
        let mut controls = controls.filter(|control| control.scenario == scenario.name);
        assert!(controls.next().is_some(), "{}", scenario.name);
    }
    for control in CONTROLS {
        assert!(control.scenario().is_some(), "{}", control.bug);
    }
}

/// A plan's text is all that is needed to see the same failure again, every time; and it is the bug's:
/// without it the same order holds.
#[test]
fn a_failure_is_repeated_by_its_plan_and_gone_without_its_bug() {
    for control in CONTROLS {
        let failure = proof::catch(control, SEED).failure.unwrap();
        let plan: Plan = failure.plan.to_string().parse().unwrap();
        let again = |scenario, bug| {
            let way = Way::Replay(plan.clone());
            explore(scenario, bug, way, Budget::new(1, TIME)).failure
        };
        let planted = again(control.scenario().unwrap(), Some(control.bug));
        let planted = planted.expect("the same again");
        assert_eq!(planted.message, failure.message, "{}", control.bug);
        let real = SCENARIOS
            .iter()
            .find(|scenario| scenario.name == control.scenario);
        let real = again(*real.unwrap(), None);
        assert!(real.is_none(), "{}: {real:?}", control.bug);
    }
}
