//! The guide to testing your own resource finds the bug that is planted in it.

#[allow(dead_code, reason = "the example has a main of its own")]
#[path = "../examples/test_your_own_resource/main.rs"]
mod example;

use aster_conformance::Rule;

#[tokio::test]
async fn the_planted_bug_is_found_and_named() {
    let report = example::with_the_bug::harness::report().await;
    let failed: Vec<_> = report.failed().map(|case| case.name).collect();
    assert_eq!(failed, example::CAUGHT_BY, "{report}");
    let rule = Rule::CheckAndWriteAreOneStep;
    assert!(report.failed().all(|case| case.rule == rule), "{report}");
    assert!(
        report
            .to_string()
            .contains("the check and the write are one atomic step")
    );
}

#[tokio::test]
async fn without_the_bug_nothing_is_found() {
    example::mended::harness::report().await.assert_passed();
}
