//! The demo shows what it announces, and would say so if it did not.
#![allow(
    clippy::unwrap_used,
    reason = "a failure here is a failure of the test"
)]

mod support;

use support::Sandbox;

#[test]
fn the_late_write_is_rejected() {
    let sandbox = Sandbox::new();
    let report = sandbox.aster(&["demo", "--json"]).exits(0).json();
    assert_eq!(report["observed"], true);
    assert_eq!(report["late_write"], "rejected");
    assert_eq!(report["final_value"], "catalog-v2");
    let steps = report["steps"].as_array().unwrap();
    let rejected = steps
        .iter()
        .find(|step| step["event"] == "rejected")
        .unwrap();
    assert_eq!(rejected["worker"], "A");
    assert!(
        rejected["text"].as_str().unwrap().contains("stale fence"),
        "{rejected}"
    );
    assert!(
        sandbox.private_directories().is_empty(),
        "nothing is left behind"
    );
}

#[test]
fn control_without_the_check_the_late_write_does_its_damage() {
    let sandbox = Sandbox::new();
    let report = sandbox
        .aster(&["demo", "--unfenced", "--json"])
        .exits(0)
        .json();
    assert_eq!(report["observed"], true);
    assert_eq!(report["late_write"], "written");
    assert_eq!(report["final_value"], "catalog-v1-late");
}

#[test]
fn it_is_narrated_line_by_line() {
    let sandbox = Sandbox::new();
    let finished = sandbox.aster(&["demo"]).exits(0);
    for line in [
        "A  acquires",
        "A  is stopped",
        "B  takes over",
        "A  is REJECTED",
        "final value: catalog-v2",
    ] {
        assert!(finished.stdout.contains(line), "{line}: {finished:?}");
    }
    assert_eq!(finished.stderr, "");
}
