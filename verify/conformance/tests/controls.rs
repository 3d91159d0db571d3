//! The suites bite: each broken store is caught, and the report names the rule that it broke.
#![allow(clippy::unwrap_used, reason = "test code outside a #[test] function")]

mod model;
mod support;

use aster_conformance::{
    Harness, Outcome, Report, Rule, fenced_resource_suite, registers_suite, serializer_suite,
};
use aster_lease::{LeaseSerializer, MemorySerializer};
use async_trait::async_trait;
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

#[tokio::test]
async fn every_broken_serializer_is_caught() {
    for (fault, rule) in [
        (Fault::DeniesTheFree, Rule::FreeIsGranted),
        (Fault::ReleaseKeepsEpoch, Rule::EpochsStrictlyIncrease),
        (Fault::TakeoverKeepsEpoch, Rule::OwnershipEndsAtATransition),
        (Fault::RetryIsHeldByOther, Rule::RetriedAcquireFindsItsGrant),
        (Fault::RetryMintsAnEpoch, Rule::RetriedAcquireFindsItsGrant),
        (Fault::RetryDoesNotRenew, Rule::RetriedAcquireFindsItsGrant),
        (Fault::GrantsTheIdAgain, Rule::GrantIdIsGrantedOnce),
        (Fault::SameHolderGetsIn, Rule::GrantIsTheLock),
        (Fault::DenialSpendsAnEpoch, Rule::NoChangeWithoutSuccess),
        (Fault::HolderBeforeEpoch, Rule::DenialsInOrder),
        (Fault::ReleaseGoesByName, Rule::EndedIsAlreadyEnded),
        (Fault::RevokeIgnoresTheEpoch, Rule::EndedIsAlreadyEnded),
        (Fault::ExpiryFrees, Rule::OwnershipEndsAtATransition),
        (Fault::RenewsTheExpired, Rule::OwnershipEndsAtATransition),
        (Fault::NeverExpires, Rule::OwnershipEndsAtATransition),
        (Fault::ExpiresEarly, Rule::TtlIsKept),
        (Fault::RenewalDoesNotRearm, Rule::TtlIsKept),
        (Fault::ClampsTheTtl, Rule::TtlIsKept),
        (Fault::ForgetsTheHoldOff, Rule::HoldOffKeepsTheRevokedOut),
        (Fault::KeepsOneHoldOff, Rule::HoldOffKeepsTheRevokedOut),
        (Fault::RestartEndsHoldOffs, Rule::HoldOffKeepsTheRevokedOut),
        (Fault::HoldOffKeepsAllOut, Rule::HoldOffKeepsTheRevokedOut),
        (Fault::RestartForgetsRows, Rule::RestartKeepsRows),
        (Fault::FoldsCase, Rule::NamesAreKeptApart),
        (Fault::AcceptsControlCharacters, Rule::NamesAreKeptApart),
        (Fault::RevisionStandsStill, Rule::RevisionGrows),
        (Fault::BatchStopsAtAFailure, Rule::BatchAnswersInOrder),
        (Fault::ListIgnoresThePrefix, Rule::ListIsComplete),
        (Fault::ConstantAuthority, Rule::FenceCarriesTheAuthority),
        (Fault::DropsRowsWithoutAFloor, Rule::EpochsStrictlyIncrease),
        (
            Fault::DropsRowsThatKeepSomeoneOut,
            Rule::HoldOffKeepsTheRevokedOut,
        ),
    ] {
        caught(&serializer_suite(&Model(fault)).await, fault, rule);
    }
}

#[tokio::test]
async fn every_broken_resource_is_caught() {
    for (fault, rule) in [
        (Fault::ChecksNothing, Rule::StaleFenceIsRejected),
        (Fault::WritesBeforeItChecks, Rule::StaleFenceIsRejected),
        (Fault::ReleaseKeepsEpoch, Rule::StaleFenceIsRejected),
        (Fault::DropsRowsWithoutAFloor, Rule::StaleFenceIsRejected),
        (Fault::ChecksBeforeItsLock, Rule::CheckAndWriteAreOneStep),
        (Fault::IgnoresTheWriter, Rule::WriterIsTheHolder),
        (Fault::IgnoresTheFencesHolder, Rule::WriterIsTheHolder),
        (Fault::AcceptsHigherEpochs, Rule::ForgedFenceIsRejected),
        (Fault::IgnoresTheAuthority, Rule::ForgedFenceIsRejected),
        (Fault::RejectsTheExpired, Rule::OwnerMayWrite),
    ] {
        caught(&fenced_resource_suite(&Model(fault)).await, fault, rule);
    }
}

#[tokio::test]
async fn a_check_before_the_lock_is_caught_by_the_pause_alone() {
    let report = fenced_resource_suite(&Model(Fault::ChecksBeforeItsLock)).await;
    let failed: Vec<_> = report.failed().map(|case| case.name).collect();
    assert_eq!(
        failed,
        ["a_paused_write_does_not_land_on_the_next_owner"],
        "{report}"
    );
}

#[tokio::test]
async fn every_broken_register_store_is_caught() {
    for (fault, rule) in [
        (Fault::RegisterChecksNothing, Rule::StaleFenceIsRejected),
        (Fault::RegisterIgnoresTheWriter, Rule::WriterIsTheHolder),
        (
            Fault::RegisterRetryWritesAgain,
            Rule::RegisterWriteIsRecognized,
        ),
        (
            Fault::RegisterIgnoresTheRevision,
            Rule::RegisterComparesAndCounts,
        ),
        (Fault::RegisterStartsOver, Rule::RegisterComparesAndCounts),
        (Fault::RegisterCutsTheValue, Rule::RegisterKeepsItsValue),
        (Fault::RegisterIsLostAtRestart, Rule::RegisterKeepsItsValue),
        (
            Fault::RegisterGoesWithItsIdleRow,
            Rule::RegisterKeepsItsValue,
        ),
    ] {
        caught(&registers_suite(&Model(fault)).await, fault, rule);
    }
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
