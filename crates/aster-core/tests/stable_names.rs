//! The names that metrics, the audit trail and JSON show: dashboards and scripts compare them, so they
//! are part of the interface. What people read says something for every reason.
#![allow(clippy::unwrap_used, reason = "this crate is all tests")]

use std::collections::BTreeSet;
use std::time::Duration;

use aster_core::DenyReason::{
    EpochMismatch, Expired, HeldByOther, HeldOff, NotHeld, NotHolder, Unauthorized, WaitRanOut,
};
use aster_core::{DenyReason, ErrorKind, FenceRejection, GrantId, LeaseOp, Principal, Ttl};

const REASONS: [(DenyReason, &str); 8] = [
    (HeldByOther, "held_by_other"),
    (EpochMismatch, "epoch_mismatch"),
    (NotHolder, "not_holder"),
    (Expired, "expired"),
    (NotHeld, "not_held"),
    (Unauthorized, "unauthorized"),
    (HeldOff, "held_off"),
    (WaitRanOut, "wait_ran_out"),
];

#[test]
fn a_reason_has_one_name_in_metrics_and_in_json() {
    for (reason, name) in REASONS {
        assert_eq!(reason.name(), name);
        assert_eq!(
            serde_json::to_string(&reason).unwrap(),
            format!("\"{name}\"")
        );
    }
}

#[test]
fn every_reason_tells_a_person_something_of_its_own() {
    let texts: BTreeSet<String> = REASONS.map(|(reason, _)| reason.to_string()).into();
    assert_eq!(texts.len(), REASONS.len());
    assert!(
        texts.iter().all(|text| text.len() > "not".len()),
        "{texts:?}"
    );
    assert_eq!(Expired.to_string(), "the lease expired");
}

#[test]
fn kinds_and_rejections_keep_their_names() {
    for (kind, name) in [
        (ErrorKind::Retry, "retry"),
        (ErrorKind::Stop, "stop"),
        (ErrorKind::FixCall, "fix_call"),
        (ErrorKind::Report, "report"),
    ] {
        assert_eq!(kind.name(), name);
    }
    let (carried, current) = (1, 2);
    for (rejection, name) in [
        (FenceRejection::WrongAuthority, "wrong_authority"),
        (FenceRejection::WrongResource, "wrong_resource"),
        (
            FenceRejection::StaleEpoch { carried, current },
            "stale_epoch",
        ),
        (
            FenceRejection::FutureEpoch { carried, current },
            "future_epoch",
        ),
        (FenceRejection::NotHeld, "not_held"),
        (FenceRejection::NotHolder, "not_holder"),
        (FenceRejection::Reentrant, "reentrant"),
    ] {
        assert_eq!(rejection.name(), name);
    }
}

#[test]
fn operations_keep_their_names_and_show_a_ttl_as_a_duration() {
    let holder = Principal::new("worker-a").unwrap();
    let grant_id = GrantId::from_bytes([1; 16]);
    let acquire = LeaseOp::Acquire {
        candidate: holder.clone(),
        ttl: Ttl::from_millis(1_500).unwrap(),
        grant_id,
    };
    assert!(format!("{acquire:?}").contains("ttl: 1.5s"), "{acquire:?}");
    let epoch = 1;
    for (op, name) in [
        (acquire, "acquire"),
        (
            LeaseOp::Renew {
                holder: holder.clone(),
                epoch,
            },
            "renew",
        ),
        (
            LeaseOp::Release {
                holder: holder.clone(),
                epoch,
            },
            "release",
        ),
        (
            LeaseOp::Revoke {
                operator: holder.clone(),
                epoch,
                hold_off: Some(Duration::from_secs(1)),
            },
            "revoke",
        ),
        (
            LeaseOp::Cancel {
                candidate: holder,
                grant_id,
            },
            "cancel",
        ),
    ] {
        assert_eq!(op.name(), name);
    }
}
