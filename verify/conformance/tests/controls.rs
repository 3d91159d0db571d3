//! The suites bite: each broken store is caught, and the report names the rule that it broke.
#![allow(clippy::unwrap_used, reason = "test code outside a #[test] function")]

mod model;
mod support;

use aster_conformance::{
    Harness, Outcome, Report, Rule, fenced_resource_suite, registers_suite, serializer_suite,
};
use aster_lease::{LeaseSerializer, MemorySerializer};
use async_trait::async_trait;
use model::planted::each_planted_fault;
use model::{Fault, Model};

#[tokio::test]
async fn a_correct_store_passes_every_case() {
    serializer_suite(&Model(Fault::Nothing))
        .await
        .assert_all_checked();
    fenced_resource_suite(&Model(Fault::Nothing))
        .await
        .assert_all_checked();
    registers_suite(&Model(Fault::Nothing))
        .await
        .assert_all_checked();
}

/// A test for each: the suite catches a store with this fault by a case of this rule.
macro_rules! caught {
    ($suite:ident: $($control:ident: $fault:ident breaks $rule:ident,)*) => {
        $(#[tokio::test]
        async fn $control() {
            caught(&$suite(&Model(Fault::$fault)).await, Fault::$fault, Rule::$rule);
        })*
    };
}

each_planted_fault!(caught);

/// The cases that failed, whatever their rule.
async fn failed_with(fault: Fault) -> Vec<&'static str> {
    let report = fenced_resource_suite(&Model(fault)).await;
    report.failed().map(|case| case.name).collect()
}

/// Whether the writer stands in no lock of the resource or in one, every change of ownership that
/// passes it is seen, and nothing else is.
#[tokio::test]
async fn a_check_apart_from_the_write_is_caught_by_the_pause_alone() {
    for fault in [
        Fault::ChecksBeforeItsLock,
        Fault::ChecksOutsideItsFileLock,
        Fault::ChecksASnapshotInItsFileLock,
    ] {
        assert_eq!(
            failed_with(fault).await,
            [
                "a_paused_write_does_not_land_on_the_next_owner",
                "a_revoke_does_not_pass_a_paused_write",
                "a_takeover_does_not_pass_a_paused_write",
                "a_release_with_a_value_does_not_pass_a_paused_write",
            ],
            "{fault:?}"
        );
    }
}

#[tokio::test]
async fn one_place_for_all_names_is_caught_by_reading_the_other_one() {
    assert_eq!(
        failed_with(Fault::KeepsAllInOnePlace).await,
        ["resources_are_protected_one_by_one"]
    );
}

/// The report holds a failed case of the rule that was broken, and says so in words.
fn caught(report: &Report, fault: Fault, rule: Rule) {
    assert!(
        report.failed().any(|case| case.rule == rule),
        "{fault:?} broke {rule:?}: {report}"
    );
    assert!(report.to_string().contains(rule.text()), "{report}");
    let passed = std::panic::catch_unwind(|| report.assert_passed());
    assert!(passed.is_err(), "a broken store must not pass");
}

/// A harness that can do nothing but make a store.
struct Plain;

#[async_trait]
impl Harness for Plain {
    type Store = MemorySerializer;

    async fn fresh(&self) -> MemorySerializer {
        MemorySerializer::new()
    }

    fn serializer<'a>(&self, store: &'a MemorySerializer) -> &'a dyn LeaseSerializer {
        store
    }
}

#[tokio::test]
async fn what_a_harness_cannot_do_is_reported_as_not_checked() {
    let report = serializer_suite(&Plain).await;
    report.assert_passed();
    let needs = |name: &str| {
        let case = report
            .cases()
            .iter()
            .find(|case| case.name == name)
            .unwrap();
        case.outcome.clone()
    };
    assert_eq!(
        needs("a_renewal_restarts_the_ttl"),
        Outcome::NotChecked("a clock that can be moved".to_owned())
    );
    assert_eq!(
        needs("a_restart_keeps_rows_epochs_and_grants"),
        Outcome::NotChecked("a restart".to_owned())
    );
    for report in [
        fenced_resource_suite(&Plain).await,
        registers_suite(&Plain).await,
    ] {
        assert_eq!(
            report.not_checked().count(),
            report.cases().len(),
            "{report}"
        );
        let passed = std::panic::catch_unwind(|| report.assert_passed());
        assert!(
            passed.is_err(),
            "a suite that checked nothing has not passed"
        );
    }
}
