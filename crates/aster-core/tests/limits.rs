//! The ends of the numbers: epochs, revisions, register revisions, high-water marks. Each end is an
//! explicit error, and what is held can always be given back.
#![allow(clippy::unwrap_used, reason = "this crate is all tests")]

use aster_core::{
    Authority, Decision, EPOCH_MAX, Effect, ErrorKind, ExpectedRevision, Fence, GrantId,
    HighWaterMark, HighWaterRejection, HoldOffs, InvalidInput, Judged, LeaseOp, Principal,
    REGISTER_BYTES_MAX, RegisterDecision, RegisterState, RegisterWrite, ResourceName, RowState,
    RowView, RuleError, Tenure, TransitionOutcome, Ttl, TtlBounds, WriteId, floor_behind,
    next_epoch, transition, write_register,
};

#[test]
fn epochs_fit_a_signed_64_bit_integer() {
    assert_eq!(EPOCH_MAX, 9_223_372_036_854_775_807);
    assert_eq!(next_epoch(0), Ok(1));
    assert_eq!(next_epoch(EPOCH_MAX - 1), Ok(EPOCH_MAX));
    for epoch in [EPOCH_MAX, EPOCH_MAX + 1, u64::MAX] {
        let error = next_epoch(epoch).unwrap_err();
        assert_eq!(error, RuleError::EpochExhausted { epoch });
        assert_eq!(error.kind(), ErrorKind::Report);
    }
}

#[test]
fn the_last_grant_leaves_an_epoch_for_its_end() {
    for (floor, is_granted) in [
        (EPOCH_MAX - 2, true),
        (EPOCH_MAX - 1, false),
        (EPOCH_MAX, false),
        (u64::MAX, false),
    ] {
        let free = row(floor, 1, false);
        for row in [None, Some(&free)] {
            let answer = decide(row, floor, &acquire());
            assert_eq!(answer.is_ok(), is_granted, "floor {floor}: {answer:?}");
        }
    }
    let last = row(EPOCH_MAX - 1, 1, true);
    for op in endings(EPOCH_MAX - 1) {
        let Effect::Replace(freed) = decide(Some(&last), 0, &op).unwrap().effect else {
            panic!("{op:?} must free the row");
        };
        assert_eq!((freed.epoch, freed.held), (EPOCH_MAX, None));
    }
}

#[test]
fn the_last_revision_is_kept_for_the_end_too() {
    let nearly = row(5, EPOCH_MAX - 2, true);
    let renew = LeaseOp::Renew {
        holder: holder(),
        epoch: 5,
    };
    let renewed = decide(Some(&nearly), 0, &renew).unwrap();
    let Effect::Rearm(last) = renewed.effect else {
        panic!("the renewal before the last is granted: {renewed:?}")
    };
    assert_eq!(last.revision, EPOCH_MAX - 1);
    assert!(matches!(
        decide(Some(&last), 0, &renew),
        Err(RuleError::EpochExhausted { .. })
    ));
    assert!(matches!(
        decide(Some(&last), 0, &acquire_again()),
        Err(RuleError::EpochExhausted { .. })
    ));
    for op in endings(5) {
        assert!(
            decide(Some(&last), 0, &op).is_ok(),
            "a held row can always be ended: {op:?}"
        );
    }
    let freed = row(6, EPOCH_MAX, false);
    assert!(matches!(
        decide(Some(&freed), 0, &acquire()),
        Err(RuleError::EpochExhausted { .. })
    ));
}

#[test]
fn a_register_counts_to_its_end_and_says_so() {
    let state = |value_revision| RegisterState {
        value_revision,
        write_id: WriteId::from_bytes([9; 16]),
    };
    let write = register_write(ExpectedRevision::Any, 1);
    let answer = write_register(Some(&state(EPOCH_MAX - 1)), &write, 8);
    assert!(
        matches!(answer, Ok(RegisterDecision::Write(state)) if state.value_revision == EPOCH_MAX)
    );
    for revision in [EPOCH_MAX, u64::MAX] {
        let answer = write_register(Some(&state(revision)), &write, 8);
        assert_eq!(answer, Err(RuleError::EpochExhausted { epoch: revision }));
    }
}

#[test]
fn a_register_value_is_bounded_in_bytes() {
    assert_eq!(REGISTER_BYTES_MAX, 1_048_576);
    for (bytes, is_accepted) in [(0, true), (8, true), (9, false)] {
        let write = register_write(ExpectedRevision::Absent, bytes);
        let answer = write_register(None, &write, 8);
        assert_eq!(answer.is_ok(), is_accepted, "{bytes} bytes: {answer:?}");
    }
    let refused = write_register(None, &register_write(ExpectedRevision::Any, 9), 8).unwrap_err();
    assert_eq!(
        refused,
        InvalidInput::ValueTooLarge {
            bytes: 9,
            bytes_max: 8
        }
        .into()
    );
}

#[test]
fn an_adopted_mark_starts_over_but_adopting_again_does_not() {
    let (old, new) = (
        Authority::from_bytes([1; 16]),
        Authority::from_bytes([2; 16]),
    );
    let resource = ResourceName::new("bucket/index").unwrap();
    let fence = |authority, epoch| Fence {
        authority,
        resource: resource.clone(),
        epoch,
        holder: holder(),
    };
    let mut mark = HighWaterMark::new(resource.clone(), old);
    mark.announce(&fence(old, 9), "worker-a").unwrap();
    assert_eq!(
        mark.announce(&fence(new, 1), "worker-a"),
        Err(HighWaterRejection::WrongAuthority)
    );
    mark.adopt(new);
    assert_eq!(
        mark.check(&fence(old, 9), "worker-a"),
        Err(HighWaterRejection::WrongAuthority)
    );
    mark.announce(&fence(new, 3), "worker-a").unwrap();
    mark.adopt(new);
    assert_eq!(
        mark.epoch(),
        3,
        "an adoption that is repeated must not lower the mark"
    );
    let stale = HighWaterRejection::StaleEpoch {
        carried: 2,
        current: 3,
    };
    assert_eq!(mark.announce(&fence(new, 2), "worker-a"), Err(stale));
}

#[test]
fn a_mark_takes_epochs_from_one_to_the_largest() {
    let authority = Authority::from_bytes([1; 16]);
    let resource = ResourceName::new("bucket/index").unwrap();
    for (epoch, is_valid) in [
        (0, false),
        (1, true),
        (EPOCH_MAX, true),
        (EPOCH_MAX + 1, false),
        (u64::MAX, false),
    ] {
        let fence = Fence {
            authority,
            resource: resource.clone(),
            epoch,
            holder: holder(),
        };
        let mut mark = HighWaterMark::new(resource.clone(), authority);
        assert_eq!(
            mark.announce(&fence, "worker-a").is_ok(),
            is_valid,
            "{epoch}"
        );
        assert_eq!(mark.epoch(), if is_valid { epoch } else { 0 });
        let mut mark = HighWaterMark::new(resource.clone(), authority);
        assert_eq!(
            mark.announce_end(authority, epoch).is_ok(),
            is_valid,
            "{epoch}"
        );
    }
}

fn decide(row: Option<&RowState>, floor: u64, op: &LeaseOp) -> Result<Decision, RuleError> {
    let resource = ResourceName::new("catalog/current").unwrap();
    let authority = Authority::from_bytes([7; 16]);
    let view = RowView {
        authority,
        resource: &resource,
        floor,
        row,
    };
    let decision = transition(&view, &Judged::default(), &TtlBounds::default(), op)?;
    assert!(
        !matches!(decision.outcome, TransitionOutcome::Denied(..)),
        "{op:?}: {decision:?}"
    );
    Ok(decision)
}

fn row(epoch: u64, revision: u64, is_held: bool) -> RowState {
    let ttl = Ttl::from_millis(1_000).unwrap();
    RowState {
        epoch,
        revision,
        grant_id: GrantId::from_bytes([1; 16]),
        held: is_held.then(|| Tenure {
            holder: holder(),
            ttl,
        }),
        hold_offs: HoldOffs::default(),
    }
}

fn holder() -> Principal {
    Principal::new("worker-a").unwrap()
}

fn acquire() -> LeaseOp {
    acquire_with(2)
}

fn acquire_again() -> LeaseOp {
    acquire_with(1)
}

fn acquire_with(grant: u8) -> LeaseOp {
    LeaseOp::Acquire {
        candidate: holder(),
        ttl: Ttl::from_millis(1_000).unwrap(),
        grant_id: GrantId::from_bytes([grant; 16]),
    }
}

fn endings(epoch: u64) -> [LeaseOp; 3] {
    [
        LeaseOp::Release {
            holder: holder(),
            epoch,
        },
        LeaseOp::Revoke {
            operator: holder(),
            epoch,
            hold_off: None,
        },
        LeaseOp::Cancel {
            candidate: holder(),
            grant_id: GrantId::from_bytes([1; 16]),
        },
    ]
}

fn register_write(expected: ExpectedRevision, bytes: usize) -> RegisterWrite {
    RegisterWrite {
        expected,
        value: vec![0; bytes],
        write_id: WriteId::from_bytes([1; 16]),
    }
}

#[test]
fn the_floor_behind_a_dropped_row_covers_it_and_never_sinks() {
    assert_eq!(floor_behind(0, 7), 7);
    assert_eq!(floor_behind(9, 7), 9);
    assert_eq!(floor_behind(7, 7), 7);
}
