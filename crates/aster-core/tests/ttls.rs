//! Ttls and hold-offs: exact, or refused in a typed way; never rounded.
#![allow(clippy::unwrap_used, reason = "this crate is all tests")]

use std::time::Duration;

use aster_core::{
    Authority, GrantId, HOLD_OFF_MAX, InvalidInput, Judged, LeaseOp, Principal, ResourceName,
    RowView, RuleError, TTL_MAX, TTL_MIN, Ttl, TtlBounds, transition,
};
use proptest::prelude::*;

#[test]
fn a_ttl_is_a_whole_number_of_milliseconds_or_refused() {
    for (given, millis) in [
        (Duration::from_millis(1), 1),
        (Duration::from_millis(100), 100),
        (Duration::from_secs_f64(1.5), 1_500),
        (TTL_MAX, 86_400_000),
        (Duration::from_millis(u64::MAX), u64::MAX),
    ] {
        let ttl = Ttl::new(given).unwrap();
        assert_eq!((ttl.as_millis(), ttl.duration()), (millis, given));
        assert_eq!(
            (Ttl::try_from(given), Duration::from(ttl)),
            (Ok(ttl), given)
        );
    }
    for given in [
        Duration::ZERO,
        Duration::from_nanos(1),
        Duration::from_micros(999),
        Duration::from_micros(1_500),
        Duration::new(30, 1),
        Duration::MAX,
    ] {
        let refused = InvalidInput::NotWholeMillis {
            what: "ttl",
            duration: given,
        };
        assert_eq!(Ttl::new(given), Err(refused));
    }
    let beyond = Duration::from_millis(u64::MAX) + Duration::from_millis(1);
    assert!(matches!(
        Ttl::new(beyond),
        Err(InvalidInput::OutOfBounds { what: "ttl", .. })
    ));
    assert!(matches!(
        Ttl::from_millis(0),
        Err(InvalidInput::NotWholeMillis { .. })
    ));
}

#[test]
fn the_bounds_are_exact_and_both_included() {
    assert_eq!(
        (TTL_MIN, TTL_MAX, HOLD_OFF_MAX),
        (
            Duration::from_millis(100),
            Duration::from_secs(86_400),
            Duration::from_secs(86_400)
        )
    );
    let bounds = TtlBounds::default();
    for (millis, is_inside) in [
        (1, false),
        (99, false),
        (100, true),
        (86_400_000, true),
        (86_400_001, false),
        (u64::MAX, false),
    ] {
        let checked = bounds.check(Ttl::from_millis(millis).unwrap());
        assert_eq!(checked.is_ok(), is_inside, "{millis} ms: {checked:?}");
        assert_eq!(acquire(millis).is_ok(), is_inside, "{millis} ms");
    }
    let one = TtlBounds::new(Duration::from_secs(1), Duration::from_secs(1)).unwrap();
    assert!(one.check(Ttl::from_millis(1_000).unwrap()).is_ok());
    assert!(one.check(Ttl::from_millis(999).unwrap()).is_err());
}

#[test]
fn bounds_that_cannot_be_are_refused() {
    let second = Duration::from_secs(1);
    assert!(TtlBounds::new(Duration::ZERO, second).is_err());
    assert!(TtlBounds::new(Duration::from_nanos(1), second).is_err());
    assert!(TtlBounds::new(second, Duration::MAX).is_err());
    assert!(TtlBounds::new(second, Duration::from_millis(999)).is_err());
}

#[test]
fn a_hold_off_is_whole_milliseconds_up_to_its_bound() {
    for (duration, is_accepted) in [
        (Duration::ZERO, false),
        (Duration::from_nanos(1), false),
        (Duration::from_millis(1), true),
        (HOLD_OFF_MAX, true),
        (HOLD_OFF_MAX + Duration::from_millis(1), false),
        (Duration::from_secs(u64::MAX), false),
        (Duration::MAX, false),
    ] {
        let op = LeaseOp::Revoke {
            operator: Principal::new("operator").unwrap(),
            epoch: 1,
            hold_off: Some(duration),
        };
        let answer = apply(&op);
        assert_eq!(answer.is_ok(), is_accepted, "{duration:?}");
        if duration > HOLD_OFF_MAX {
            let refused = Err(RuleError::Invalid(InvalidInput::OutOfBounds {
                what: "hold-off",
                given: duration,
                min: Duration::from_millis(1),
                max: HOLD_OFF_MAX,
            }));
            assert_eq!(answer.map(|_| ()), refused);
        }
    }
}

#[test]
fn a_ttl_travels_as_milliseconds_and_zero_does_not_arrive() {
    let ttl = Ttl::from_millis(1_500).unwrap();
    assert_eq!(serde_json::to_string(&ttl).unwrap(), "1500");
    assert_eq!(serde_json::from_str::<Ttl>("1500").unwrap(), ttl);
    for bad in ["0", "-1", "1.5", "\"1500\"", "null", "18446744073709551616"] {
        assert!(serde_json::from_str::<Ttl>(bad).is_err(), "{bad}");
    }
}

proptest! {
    #[test]
    fn any_duration_is_exact_or_refused(seconds in any::<u64>(), nanos in 0..1_000_000_000_u32) {
        let given = Duration::new(seconds, nanos);
        match Ttl::new(given) {
            Ok(ttl) => prop_assert_eq!(ttl.duration(), given),
            Err(_) => prop_assert!(
                given.is_zero() || nanos % 1_000_000 != 0 || given.as_millis() > u128::from(u64::MAX)
            ),
        }
    }
}

fn acquire(ttl_ms: u64) -> Result<(), RuleError> {
    apply(&LeaseOp::Acquire {
        candidate: Principal::new("worker-a").unwrap(),
        ttl: Ttl::from_millis(ttl_ms).unwrap(),
        grant_id: GrantId::from_bytes([1; 16]),
    })
}

fn apply(op: &LeaseOp) -> Result<(), RuleError> {
    let resource = ResourceName::new("catalog/current").unwrap();
    let authority = Authority::from_bytes([7; 16]);
    let view = RowView {
        authority,
        resource: &resource,
        floor: 0,
        row: None,
    };
    transition(&view, &Judged::default(), &TtlBounds::default(), op).map(|_| ())
}

/// A held row lasts its ttl to the last instant; a claim can shorten it and never make it longer.
#[test]
fn a_held_row_lasts_its_ttl_and_a_claim_only_shortens_it() {
    let ttl = Ttl::from_millis(1_000).unwrap();
    let ms = Duration::from_millis;
    let left = |elapsed, claim_left| {
        let judged = Judged::held(ttl, elapsed, claim_left);
        let left = judged.remaining.unwrap();
        assert_eq!(judged.expired, left.is_zero());
        left
    };
    assert_eq!(left(ms(0), None), ms(1_000));
    assert_eq!(
        left(ms(1_000) - Duration::from_nanos(1), None),
        Duration::from_nanos(1)
    );
    assert_eq!(left(ms(1_000), None), ms(0));
    assert_eq!(left(Duration::MAX, None), ms(0));
    assert_eq!(left(ms(100), Some(ms(200))), ms(200));
    assert_eq!(left(ms(100), Some(ms(0))), ms(0));
    assert_eq!(left(ms(900), Some(ms(500))), ms(100));
    assert_eq!(left(ms(1_000), Some(ms(500))), ms(0));
}
