//! The exact answer to every operation in every state of a row, as a table, and the exact order in
//! which denials and rejections are judged.
#![allow(clippy::unwrap_used, reason = "this crate is all tests")]

use aster_core::DenyReason::{EpochMismatch, Expired, HeldByOther, HeldOff, NotHeld, NotHolder};
use aster_core::{
    Authority, Decision, DenyReason, Effect, Fence, FenceRejection, GrantId, HOLD_OFFS_MAX,
    HoldOff, HoldOffs, Judged, LeaseOp, Principal, ResourceName, RowState, RowView, Tenure,
    TransitionOutcome, Ttl, TtlBounds, check_fence, retry_outcome, transition,
};
use std::time::Duration;

const EPOCH: u64 = 5;
const NOT_EXPIRED: Judged = Judged {
    expired: false,
    remaining: None,
};
const EXPIRED: Judged = Judged {
    expired: true,
    remaining: None,
};

/// `None` where the operation succeeds.
type Answer = Option<DenyReason>;

#[test]
fn every_operation_in_every_state() {
    let held = row(Some("a"));
    let free = row(None);
    // Columns: no row at floor 5, free, held, held and expired. The row's grant is 1, its holder "a".
    let table: &[(LeaseOp, [Answer; 4])] = &[
        (
            acquire("a", 1_000, 1),
            [None, Some(NotHeld), None, Some(Expired)],
        ),
        (
            acquire("a", 2_000, 1),
            [None, Some(NotHeld), Some(HeldByOther), Some(HeldByOther)],
        ),
        (
            acquire("b", 1_000, 1),
            [None, Some(NotHeld), Some(HeldByOther), Some(HeldByOther)],
        ),
        (
            acquire("a", 1_000, 2),
            [None, None, Some(HeldByOther), None],
        ),
        (
            acquire("b", 1_000, 2),
            [None, None, Some(HeldByOther), None],
        ),
        (
            renew("a", 5),
            [Some(NotHeld), Some(NotHeld), None, Some(Expired)],
        ),
        (
            renew("b", 5),
            [
                Some(NotHeld),
                Some(NotHeld),
                Some(NotHolder),
                Some(NotHolder),
            ],
        ),
        (renew("a", 4), [Some(EpochMismatch); 4]),
        (renew("b", 6), [Some(EpochMismatch); 4]),
        (release("a", 5), [Some(NotHeld), Some(NotHeld), None, None]),
        (
            release("b", 5),
            [
                Some(NotHeld),
                Some(NotHeld),
                Some(NotHolder),
                Some(NotHolder),
            ],
        ),
        (release("a", 4), [Some(EpochMismatch); 4]),
        (release("b", 6), [Some(EpochMismatch); 4]),
        (revoke(5), [Some(NotHeld), Some(NotHeld), None, None]),
        (revoke(4), [Some(EpochMismatch); 4]),
        (revoke(6), [Some(EpochMismatch); 4]),
        (cancel("a", 1), [Some(NotHeld), Some(NotHeld), None, None]),
        (
            cancel("b", 1),
            [
                Some(NotHeld),
                Some(NotHeld),
                Some(NotHolder),
                Some(NotHolder),
            ],
        ),
        (
            cancel("a", 2),
            [
                Some(NotHeld),
                Some(NotHeld),
                Some(HeldByOther),
                Some(HeldByOther),
            ],
        ),
        (
            cancel("b", 2),
            [
                Some(NotHeld),
                Some(NotHeld),
                Some(HeldByOther),
                Some(HeldByOther),
            ],
        ),
    ];
    let states = [
        (None, NOT_EXPIRED),
        (Some(&free), NOT_EXPIRED),
        (Some(&held), NOT_EXPIRED),
        (Some(&held), EXPIRED),
    ];
    for (op, answers) in table {
        for ((row, judged), expected) in states.iter().zip(answers) {
            let decision = decide(*row, judged, op);
            let denied = match &decision.outcome {
                TransitionOutcome::Denied(reason, _) => Some(*reason),
                _ => None,
            };
            assert_eq!(denied, *expected, "{op:?} at {row:?}, {judged:?}");
            let is_kept = decision.effect == Effect::Keep;
            assert_eq!(is_kept, denied.is_some(), "{op:?} at {row:?}: {decision:?}");
        }
    }
}

#[test]
fn a_hold_off_is_judged_after_held_and_only_for_its_holder() {
    let hold_offs = HoldOffs::from_iter([hold_off("a", 2), hold_off("b", 4)]);
    let free = RowState {
        hold_offs: hold_offs.clone(),
        ..row(None)
    };
    let held = RowState {
        hold_offs,
        ..row(Some("c"))
    };
    for (row, judged, candidate, expected) in [
        (&free, NOT_EXPIRED, "a", Some(HeldOff)),
        (&free, NOT_EXPIRED, "b", Some(HeldOff)),
        (&free, NOT_EXPIRED, "c", None),
        (&held, NOT_EXPIRED, "a", Some(HeldByOther)),
        (&held, EXPIRED, "a", Some(HeldOff)),
        (&held, EXPIRED, "b", Some(HeldOff)),
        (&held, EXPIRED, "c", None),
    ] {
        assert_eq!(
            denied(Some(row), &judged, &acquire(candidate, 1_000, 2)),
            expected,
            "{candidate} at {row:?}"
        );
    }
}

#[test]
fn hold_offs_are_kept_by_every_change() {
    let hold_offs = HoldOffs::from_iter([hold_off("a", 2), hold_off("d", 4)]);
    let free = RowState {
        hold_offs: hold_offs.clone(),
        ..row(None)
    };
    let held = RowState {
        hold_offs: hold_offs.clone(),
        ..row(Some("b"))
    };
    for (row, judged, op, is_rearm) in [
        (&free, NOT_EXPIRED, acquire("b", 1_000, 2), false),
        (&held, EXPIRED, acquire("c", 1_000, 2), false),
        (&held, NOT_EXPIRED, release("b", 5), false),
        (&held, NOT_EXPIRED, cancel("b", 1), false),
        (&held, NOT_EXPIRED, revoke(5), false),
        (&held, NOT_EXPIRED, renew("b", 5), true),
        (&held, NOT_EXPIRED, acquire("b", 1_000, 1), true),
    ] {
        let after = match decide(Some(row), &judged, &op).effect {
            Effect::Rearm(after) if is_rearm => after,
            Effect::Replace(after) if !is_rearm => after,
            other => panic!("{op:?}: {other:?}"),
        };
        assert_eq!(after.hold_offs, hold_offs, "{op:?}");
    }
}

#[test]
fn every_revoke_that_asks_for_one_adds_a_hold_off_of_its_own() {
    let mut row = row(Some("a"));
    let mut apply = |op: &LeaseOp| match decide(Some(&row), &NOT_EXPIRED, op).effect {
        Effect::Replace(next) => row = next,
        other => panic!("{op:?}: {other:?}"),
    };
    apply(&revoke_with_hold_off(5));
    apply(&acquire("b", 1_000, 2));
    apply(&revoke(7));
    apply(&acquire("b", 1_000, 3));
    apply(&revoke_with_hold_off(9));
    // Each is named by the epoch right after its revoke.
    assert_eq!(kept_out(&row.hold_offs), [("a", 6), ("b", 10)]);
    let candidate = |name| denied(Some(&row), &NOT_EXPIRED, &acquire(name, 1_000, 4));
    assert_eq!(candidate("a"), Some(HeldOff));
    assert_eq!(candidate("b"), Some(HeldOff));
    assert_eq!(candidate("c"), None);
}

#[test]
fn a_row_keeps_one_hold_off_of_a_holder_and_a_bounded_number_of_them() {
    let mut hold_offs = HoldOffs::default();
    assert!(hold_offs.is_empty());
    for (holder, epoch) in [("a", 2), ("b", 4), ("a", 6)] {
        hold_offs.push(hold_off(holder, epoch));
    }
    assert_eq!(kept_out(&hold_offs), [("b", 4), ("a", 6)]);

    let many: Vec<_> = (0..=HOLD_OFFS_MAX as u64)
        .map(|number| hold_off(&format!("worker-{number}"), 2 * number + 2))
        .collect();
    let mut row = RowState {
        hold_offs: many[..HOLD_OFFS_MAX].iter().cloned().collect(),
        epoch: 2 * HOLD_OFFS_MAX as u64 + 1,
        ..row(Some("newest"))
    };
    let revoke = revoke_with_hold_off(row.epoch);
    match decide(Some(&row), &NOT_EXPIRED, &revoke).effect {
        Effect::Replace(next) => row = next,
        other => panic!("{other:?}"),
    }
    let kept = kept_out(&row.hold_offs);
    assert_eq!(kept.len(), HOLD_OFFS_MAX);
    assert_eq!(kept[0], ("worker-1", 4), "the oldest went");
    assert_eq!(kept[HOLD_OFFS_MAX - 1], ("newest", row.epoch));
}

#[test]
fn a_store_drops_what_it_judges_over_and_an_empty_list_costs_one_word() {
    let mut hold_offs = HoldOffs::from_iter([hold_off("a", 2), hold_off("b", 4)]);
    hold_offs.retain(|hold_off| hold_off.epoch != 2);
    assert_eq!(kept_out(&hold_offs), [("b", 4)]);
    hold_offs.retain(|_| false);
    assert_eq!(hold_offs, HoldOffs::default());
    assert_eq!(size_of::<HoldOffs>(), size_of::<usize>());
}

#[test]
fn what_a_denial_means_to_a_caller_who_repeats_itself() {
    let denials = [
        EpochMismatch,
        NotHeld,
        NotHolder,
        Expired,
        HeldByOther,
        HeldOff,
    ];
    let view = |row| view(row, EPOCH).snapshot(None);
    let at_five = view(None);
    for (op, ended) in [
        // The resource is at 5: what named 4 has ended, what names 5 or 6 has not.
        (release("a", 4), &[EpochMismatch][..]),
        (release("a", 5), &[]),
        (release("a", 6), &[]),
        (revoke(4), &[EpochMismatch]),
        (revoke(6), &[]),
        (cancel("a", 1), &[NotHeld, HeldByOther]),
        (acquire("a", 1_000, 1), &[]),
        (renew("a", 4), &[]),
    ] {
        for reason in denials {
            let expected = ended.contains(&reason);
            assert_eq!(
                retry_outcome(&op, reason, &at_five),
                expected,
                "{op:?} {reason:?}"
            );
        }
        assert!(
            !retry_outcome(&op, DenyReason::Unauthorized, &at_five),
            "{op:?}"
        );
    }
}

#[test]
fn a_fence_is_rejected_for_the_first_part_that_fails() {
    let held = row(Some("a"));
    let free = row(None);
    let (stale, future) = (
        FenceRejection::StaleEpoch {
            carried: 4,
            current: 5,
        },
        FenceRejection::FutureEpoch {
            carried: 6,
            current: 5,
        },
    );
    // Each line mends the first fault of the line above it.
    for (row, at, authority, resource, epoch, holder, writer, expected) in [
        (
            &free,
            "r",
            8,
            "other",
            4,
            "x",
            "y",
            Err(FenceRejection::WrongAuthority),
        ),
        (
            &free,
            "r",
            7,
            "other",
            4,
            "x",
            "y",
            Err(FenceRejection::WrongResource),
        ),
        (&free, "r", 7, "r", 4, "x", "y", Err(stale.clone())),
        (&free, "r", 7, "r", 6, "x", "y", Err(future.clone())),
        (
            &free,
            "r",
            7,
            "r",
            5,
            "x",
            "y",
            Err(FenceRejection::NotHeld),
        ),
        (
            &held,
            "r",
            7,
            "r",
            5,
            "x",
            "y",
            Err(FenceRejection::NotHolder),
        ),
        (
            &held,
            "r",
            7,
            "r",
            5,
            "x",
            "a",
            Err(FenceRejection::NotHolder),
        ),
        (
            &held,
            "r",
            7,
            "r",
            5,
            "a",
            "y",
            Err(FenceRejection::NotHolder),
        ),
        (&held, "r", 7, "r", 5, "a", "a", Ok(())),
        (&held, "r", 7, "r", 4, "a", "a", Err(stale)),
        (&held, "r", 7, "r", 6, "a", "a", Err(future)),
    ] {
        let name = ResourceName::new(at).unwrap();
        let view = RowView {
            resource: &name,
            ..view(Some(row), EPOCH)
        };
        let fence = Fence {
            authority: Authority::from_bytes([authority; 16]),
            resource: ResourceName::new(resource).unwrap(),
            epoch,
            holder: principal(holder),
        };
        assert_eq!(
            check_fence(&view, &fence, writer),
            expected,
            "{fence} by {writer}"
        );
    }
}

#[test]
fn forged_epochs_are_from_the_future_or_stale_and_never_overflow() {
    let held = row(Some("a"));
    for (row, floor) in [(Some(&held), 0), (None, EPOCH)] {
        for epoch in [0, 1, EPOCH + 1, i64::MAX as u64, u64::MAX] {
            let fence = fence(epoch);
            let expected = if epoch < EPOCH {
                FenceRejection::StaleEpoch {
                    carried: epoch,
                    current: EPOCH,
                }
            } else {
                FenceRejection::FutureEpoch {
                    carried: epoch,
                    current: EPOCH,
                }
            };
            assert_eq!(check_fence(&view(row, floor), &fence, "a"), Err(expected));
        }
    }
    assert_eq!(
        check_fence(&view(None, 0), &fence(0), "a"),
        Err(FenceRejection::NotHeld)
    );
}

fn decide(row: Option<&RowState>, judged: &Judged, op: &LeaseOp) -> Decision {
    transition(&view(row, EPOCH), judged, &TtlBounds::default(), op).unwrap()
}

fn denied(row: Option<&RowState>, judged: &Judged, op: &LeaseOp) -> Answer {
    match decide(row, judged, op).outcome {
        TransitionOutcome::Denied(reason, _) => Some(reason),
        _ => None,
    }
}

fn view(row: Option<&RowState>, floor: u64) -> RowView<'_> {
    static RESOURCE: std::sync::OnceLock<ResourceName> = std::sync::OnceLock::new();
    RowView {
        authority: Authority::from_bytes([7; 16]),
        resource: RESOURCE.get_or_init(|| ResourceName::new("r").unwrap()),
        floor,
        row,
    }
}

fn row(holder: Option<&str>) -> RowState {
    RowState {
        epoch: EPOCH,
        revision: 9,
        grant_id: GrantId::from_bytes([1; 16]),
        held: holder.map(|holder| Tenure {
            holder: principal(holder),
            ttl: Ttl::from_millis(1_000).unwrap(),
        }),
        hold_offs: HoldOffs::default(),
    }
}

fn hold_off(holder: &str, epoch: u64) -> HoldOff {
    HoldOff {
        holder: principal(holder),
        duration: Duration::from_secs(1),
        epoch,
    }
}

fn kept_out(hold_offs: &HoldOffs) -> Vec<(&str, u64)> {
    let hold_offs = hold_offs.iter();
    hold_offs
        .map(|hold_off| (hold_off.holder.as_str(), hold_off.epoch))
        .collect()
}

fn fence(epoch: u64) -> Fence {
    Fence {
        authority: Authority::from_bytes([7; 16]),
        resource: ResourceName::new("r").unwrap(),
        epoch,
        holder: principal("a"),
    }
}

fn principal(name: &str) -> Principal {
    Principal::new(name).unwrap()
}

fn acquire(candidate: &str, ttl_ms: u64, grant: u8) -> LeaseOp {
    LeaseOp::Acquire {
        candidate: principal(candidate),
        ttl: Ttl::from_millis(ttl_ms).unwrap(),
        grant_id: GrantId::from_bytes([grant; 16]),
    }
}

fn renew(holder: &str, epoch: u64) -> LeaseOp {
    LeaseOp::Renew {
        holder: principal(holder),
        epoch,
    }
}

fn release(holder: &str, epoch: u64) -> LeaseOp {
    LeaseOp::Release {
        holder: principal(holder),
        epoch,
    }
}

fn revoke(epoch: u64) -> LeaseOp {
    LeaseOp::Revoke {
        operator: principal("operator"),
        epoch,
        hold_off: None,
    }
}

fn revoke_with_hold_off(epoch: u64) -> LeaseOp {
    let hold_off = Some(Duration::from_secs(1));
    LeaseOp::Revoke {
        operator: principal("operator"),
        epoch,
        hold_off,
    }
}

fn cancel(candidate: &str, grant: u8) -> LeaseOp {
    LeaseOp::Cancel {
        candidate: principal(candidate),
        grant_id: GrantId::from_bytes([grant; 16]),
    }
}
