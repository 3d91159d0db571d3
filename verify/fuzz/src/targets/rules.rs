//! The rules on rows as no store would write them: a disk may hold anything.

use std::time::Duration;

use aster_core::{
    Authority, Decision, EPOCH_MAX, Effect, ExpectedRevision, Fence, FenceRejection, HOLD_OFFS_MAX,
    HoldOff, InvalidInput, Judged, LeaseOp, RegisterDecision, RegisterState, RegisterWrite,
    ResourceName, RowState, RowView, RuleError, Tenure, TransitionOutcome, Ttl, TtlBounds, WriteId,
    check_fence, retry_outcome, transition, write_register,
};

use crate::control::Control;
use crate::targets::draw::Draw;
use crate::{Seen, Target, seen};

pub(super) const RULES: Target = Target {
    name: "rules",
    what: "ownership changes, the fence rule and ttls on any row: epochs grow and stay in their bounds",
    run: |data| rules(data, transition),
    bytes_max: 512,
    dictionary: include_str!("../../dictionaries/numbers.dict"),
    executions: 30_000,
};

pub(super) const REGISTERS: Target = Target {
    name: "registers",
    what: "the register rule on any stored revision and any value",
    run: |data| registers(data, write_register),
    bytes_max: 256,
    dictionary: include_str!("../../dictionaries/numbers.dict"),
    executions: 30_000,
};

pub(super) const CONTROLS: [Control; 4] = [
    Control {
        target: "rules",
        rule: "every end of an ownership takes a new epoch",
        planted: "a release that keeps the epoch",
        run: |data| rules(data, keeps_the_epoch),
    },
    Control {
        target: "rules",
        rule: "an epoch is at most 2^63 - 1",
        planted: "epochs that are counted without a bound",
        run: |data| rules(data, counts_on),
    },
    Control {
        target: "rules",
        rule: "nobody renews what has expired",
        planted: "a renewal that looks at the holder alone",
        run: |data| rules(data, renews_anything),
    },
    Control {
        target: "registers",
        rule: "a value is at most as large as its bound",
        planted: "a bound that is off by one",
        run: |data| registers(data, one_too_large),
    },
];

type Transition = fn(&RowView<'_>, &Judged, &TtlBounds, &LeaseOp) -> Result<Decision, RuleError>;

fn rules(data: &[u8], transition: Transition) -> Seen {
    let mut draw = Draw::new(data);
    let authority = Authority::from_bytes([1; 16]);
    let resource = ResourceName::new("catalog").unwrap();
    let row = draw.coin().then(|| row(&mut draw));
    let floor = draw.near(3);
    let view = RowView {
        authority,
        resource: &resource,
        floor,
        row: row.as_ref(),
    };
    let before = view.epoch();
    let judged = Judged {
        expired: draw.coin(),
        remaining: draw.coin().then(|| Duration::from_millis(draw.number())),
    };
    let bounds = TtlBounds::default();
    check_bounds(&mut draw);
    let op = draw.op(before);
    let decision = transition(&view, &judged, &bounds, &op);
    let after = match &decision {
        Err(error) => {
            assert!(!error.to_string().is_empty());
            None
        }
        Ok(decision) => {
            // Only what no store holds is beyond the bound, and nothing is granted on it.
            check_decision(&view, &judged, &op, decision);
            if let TransitionOutcome::Denied(reason, snapshot) = &decision.outcome {
                let is_done = retry_outcome(&op, *reason, snapshot);
                assert!(
                    !(is_done && matches!(op, LeaseOp::Acquire { .. })),
                    "never a grant"
                );
            }
            match &decision.effect {
                Effect::Keep => None,
                Effect::Rearm(state) | Effect::Replace(state) => Some(state.clone()),
            }
        }
    };
    let view = RowView {
        row: after.as_ref().or(view.row),
        ..view
    };
    let verdict = check_the_fence_rule(&mut draw, &view, before);
    seen((
        decision
            .as_ref()
            .map(|it| std::mem::discriminant(&it.outcome))
            .ok(),
        decision
            .as_ref()
            .map(|it| std::mem::discriminant(&it.effect))
            .ok(),
        std::mem::discriminant(&op),
        verdict.map_err(|rejection| rejection.name()),
    ))
}

fn row(draw: &mut Draw<'_>) -> RowState {
    let epoch = draw.near(7);
    let hold_offs = (0..draw.below(HOLD_OFFS_MAX + 4)).map(|_| HoldOff {
        holder: draw.principal(),
        duration: Duration::from_millis(draw.number()),
        epoch: draw.near(epoch),
    });
    let hold_offs = hold_offs.collect();
    RowState {
        epoch,
        revision: draw.near(7),
        grant_id: draw.grant_id(),
        held: draw.coin().then(|| Tenure {
            holder: draw.principal(),
            ttl: draw.ttl(),
        }),
        hold_offs,
    }
}

fn check_decision(view: &RowView<'_>, judged: &Judged, op: &LeaseOp, decision: &Decision) {
    let before = view.epoch();
    let held = view.row.and_then(|row| row.held.as_ref());
    match &decision.effect {
        Effect::Keep => {}
        Effect::Rearm(state) => {
            assert_eq!(state.epoch, before, "a renewal keeps the epoch");
            assert_eq!(state.held.as_ref(), held, "and the holder");
        }
        Effect::Replace(state) => {
            assert!(
                state.epoch > before,
                "{} is not above {before}",
                state.epoch
            );
            assert!(state.epoch <= EPOCH_MAX, "{}", state.epoch);
            assert!(state.hold_offs.iter().count() <= HOLD_OFFS_MAX);
        }
    }
    match (&decision.outcome, op) {
        (TransitionOutcome::Granted(fence), LeaseOp::Acquire { candidate, ttl, .. }) => {
            assert_eq!(fence.holder, *candidate);
            assert_eq!(
                (&fence.resource, fence.authority),
                (view.resource, view.authority)
            );
            assert!(TtlBounds::default().check(*ttl).is_ok(), "{ttl:?}");
            let (Effect::Rearm(state) | Effect::Replace(state)) = &decision.effect else {
                panic!("a grant that nothing was written for");
            };
            assert_eq!(fence.epoch, state.epoch);
            assert_eq!(state.holder(), Some(candidate));
            assert!(
                matches!(decision.effect, Effect::Replace(_)) || !judged.expired,
                "an expired grant does not come back"
            );
        }
        (TransitionOutcome::Renewed, LeaseOp::Renew { holder, epoch }) => {
            assert_eq!(*epoch, before);
            assert_eq!(held.map(|tenure| &tenure.holder), Some(holder));
            assert!(!judged.expired, "what has expired is not renewed");
        }
        (TransitionOutcome::Released, LeaseOp::Release { holder, epoch }) => {
            assert_eq!(*epoch, before);
            assert_eq!(held.map(|tenure| &tenure.holder), Some(holder));
            assert_ended(decision);
        }
        (TransitionOutcome::Revoked, LeaseOp::Revoke { epoch, .. }) => {
            assert_eq!(*epoch, before);
            assert_ended(decision);
        }
        (TransitionOutcome::Cancelled, LeaseOp::Cancel { grant_id, .. }) => {
            assert_eq!(view.row.map(|row| row.grant_id), Some(*grant_id));
            assert_ended(decision);
        }
        (TransitionOutcome::Denied(_, snapshot), _) => {
            assert_eq!(decision.effect, Effect::Keep, "a denial changes nothing");
            assert_eq!(snapshot.resource, *view.resource);
        }
        (outcome, op) => panic!("{outcome:?} as the answer to {op:?}"),
    }
}

fn assert_ended(decision: &Decision) {
    let Effect::Replace(state) = &decision.effect else {
        panic!("an ownership that ends at no new epoch");
    };
    assert_eq!(state.held, None);
}

/// The verdict on some fence is the first of the conditions that does not hold. A fence of an epoch that
/// has ended never passes.
fn check_the_fence_rule(
    draw: &mut Draw<'_>,
    view: &RowView<'_>,
    before: u64,
) -> Result<(), FenceRejection> {
    let fence = Fence {
        authority: draw.one_of(&[view.authority, Authority::from_bytes([2; 16])]),
        resource: draw.resource(),
        epoch: draw.near(view.epoch()),
        holder: draw.principal(),
    };
    let writer = draw.principal();
    let verdict = check_fence(view, &fence, &writer);
    let (carried, current) = (fence.epoch, view.epoch());
    let holder = view.row.and_then(|row| row.holder());
    let conditions = [
        (
            fence.authority == view.authority,
            FenceRejection::WrongAuthority,
        ),
        (
            fence.resource == *view.resource,
            FenceRejection::WrongResource,
        ),
        (
            carried >= current,
            FenceRejection::StaleEpoch { carried, current },
        ),
        (
            carried <= current,
            FenceRejection::FutureEpoch { carried, current },
        ),
        (holder.is_some(), FenceRejection::NotHeld),
        (holder == Some(&writer), FenceRejection::NotHolder),
        (holder == Some(&fence.holder), FenceRejection::NotHolder),
    ];
    let first = conditions.into_iter().find(|(holds, _)| !holds);
    assert_eq!(
        verdict,
        first.map_or(Ok(()), |(_, rejection)| Err(rejection))
    );
    if view.epoch() > before {
        let ended = Fence {
            epoch: before,
            ..fence
        };
        assert!(check_fence(view, &ended, &writer).is_err());
    }
    verdict
}

fn check_bounds(draw: &mut Draw<'_>) {
    let duration = Duration::new(draw.number(), draw.below(1_000_000_000) as u32);
    let is_whole = duration.subsec_nanos().is_multiple_of(1_000_000) && !duration.is_zero();
    match Ttl::new(duration) {
        Ok(ttl) => {
            assert!(is_whole);
            assert_eq!(ttl.duration(), duration, "exact");
            let bounds = TtlBounds::new(duration, duration).expect("it bounds itself");
            assert!(bounds.check(ttl).is_ok());
        }
        Err(InvalidInput::NotWholeMillis { .. }) => assert!(!is_whole),
        Err(InvalidInput::OutOfBounds { .. }) => {
            assert!(is_whole && duration.as_millis() > u128::from(u64::MAX));
        }
        Err(other) => panic!("{other:?}"),
    }
}

type WriteRegister =
    fn(Option<&RegisterState>, &RegisterWrite, usize) -> Result<RegisterDecision, RuleError>;

fn registers(data: &[u8], write_register: WriteRegister) -> Seen {
    let mut draw = Draw::new(data);
    let write_id = |draw: &mut Draw<'_>| WriteId::from_bytes([draw.below(3) as u8; 16]);
    let current = draw.coin().then(|| RegisterState {
        value_revision: draw.near(5),
        write_id: write_id(&mut draw),
    });
    let revision = current.map(|state| state.value_revision);
    let bytes_max = draw.below(16);
    let expected = match draw.below(3) {
        0 => ExpectedRevision::Any,
        1 => ExpectedRevision::Absent,
        _ => ExpectedRevision::Exactly(draw.near(revision.unwrap_or(0))),
    };
    let write_id = write_id(&mut draw);
    let value = draw.bytes(24).to_vec();
    let write = RegisterWrite {
        expected,
        value,
        write_id,
    };
    let decision = write_register(current.as_ref(), &write, bytes_max);
    let is_repeated = current.is_some_and(|state| state.write_id == write.write_id);
    match &decision {
        Ok(RegisterDecision::Write(state)) => {
            assert!(write.value.len() <= bytes_max, "the bound on a value");
            assert_eq!(state.write_id, write.write_id);
            assert!(state.value_revision > revision.unwrap_or(0));
            assert!(state.value_revision <= EPOCH_MAX);
            assert!(!is_repeated, "a retry is not written again");
            match write.expected {
                ExpectedRevision::Any => {}
                ExpectedRevision::Absent => assert_eq!(revision, None),
                ExpectedRevision::Exactly(expected) => assert_eq!(revision, Some(expected)),
            }
        }
        Ok(RegisterDecision::AlreadyWritten { value_revision }) => {
            assert!(is_repeated);
            assert_eq!(Some(*value_revision), revision);
        }
        Ok(RegisterDecision::Conflict { current }) => assert_eq!(*current, revision),
        Err(RuleError::Invalid(InvalidInput::ValueTooLarge { bytes, .. })) => {
            assert_eq!(*bytes, write.value.len());
            assert!(*bytes > bytes_max);
        }
        Err(RuleError::EpochExhausted { epoch }) => assert!(*epoch >= EPOCH_MAX),
        Err(other) => panic!("{other:?}"),
    }
    seen((
        decision.as_ref().map(std::mem::discriminant).ok(),
        std::mem::discriminant(&write.expected),
        is_repeated,
    ))
}

fn keeps_the_epoch(
    view: &RowView<'_>,
    judged: &Judged,
    bounds: &TtlBounds,
    op: &LeaseOp,
) -> Result<Decision, RuleError> {
    let mut decision = transition(view, judged, bounds, op)?;
    if let (TransitionOutcome::Released, Effect::Replace(state)) =
        (&decision.outcome, &mut decision.effect)
    {
        state.epoch = view.epoch();
    }
    Ok(decision)
}

fn counts_on(
    view: &RowView<'_>,
    judged: &Judged,
    bounds: &TtlBounds,
    op: &LeaseOp,
) -> Result<Decision, RuleError> {
    match transition(view, judged, bounds, op) {
        Err(RuleError::EpochExhausted { .. }) => {
            let row = view.row.cloned();
            let mut state = row.ok_or(RuleError::EpochExhausted { epoch: 0 })?;
            state.epoch = state.epoch.wrapping_add(1);
            state.held = None;
            Ok(Decision {
                outcome: TransitionOutcome::Released,
                effect: Effect::Replace(state),
            })
        }
        decision => decision,
    }
}

fn renews_anything(
    view: &RowView<'_>,
    judged: &Judged,
    bounds: &TtlBounds,
    op: &LeaseOp,
) -> Result<Decision, RuleError> {
    let judged = Judged {
        expired: judged.expired && !matches!(op, LeaseOp::Renew { .. }),
        ..*judged
    };
    transition(view, &judged, bounds, op)
}

fn one_too_large(
    current: Option<&RegisterState>,
    write: &RegisterWrite,
    bytes_max: usize,
) -> Result<RegisterDecision, RuleError> {
    write_register(current, write, bytes_max + 1)
}
