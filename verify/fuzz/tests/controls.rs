//! Every planted fault is found, within a bounded number of runs.

use aster_fuzz::control::{EXECUTIONS_MAX, SEED};
use aster_fuzz::runner::{Until, search};
use aster_fuzz::targets;

#[test]
fn every_control_is_caught_by_the_check_of_its_target() {
    let controls = targets::controls();
    for target in &targets::ALL {
        let has_one = controls.iter().any(|control| control.target == target.name);
        assert!(has_one, "{} has no control", target.name);
    }
    let mut missed = Vec::new();
    for control in controls {
        let target = targets::find(control.target).unwrap();
        let report = search(target, control.run, SEED, Until::Executions(EXECUTIONS_MAX));
        match report.failure {
            Some(failure) => println!(
                "{}: {} after {} runs: {}",
                control.target, control.planted, report.executions, failure.message
            ),
            None => missed.push(format!("{}: {}", control.target, control.planted)),
        }
    }
    assert!(missed.is_empty(), "not caught: {missed:?}");
}
