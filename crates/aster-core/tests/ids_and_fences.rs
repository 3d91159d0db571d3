//! Ids and fences as text and as JSON: what is written can be read, what is invalid is refused.
#![allow(clippy::unwrap_used, reason = "this crate is all tests")]

use aster_core::{
    Authority, DenyReason, EPOCH_MAX, ErrorKind, Fence, FenceRejection, GrantId, InvalidInput,
    LeaseOp, Principal, ResourceName, Ttl, WriteId,
};
use proptest::prelude::*;

const HEX: &str = "00ff0123456789abcdef00112233aabb";

#[test]
fn an_id_is_32_hexadecimal_digits_in_either_case() {
    let id: Authority = HEX.parse().unwrap();
    assert_eq!(id.to_string(), HEX);
    assert_eq!(format!("{id:?}"), HEX);
    assert_eq!(HEX.to_uppercase().parse::<Authority>().unwrap(), id);
    let long = format!("{HEX}00");
    let prefixed = format!("0x{}", &HEX[2..]);
    let signed = format!("+{}", &HEX[1..]);
    let accented = format!("é{}", &HEX[2..]);
    for bad in [
        "",
        "00",
        &HEX[1..],
        &long,
        &prefixed,
        &signed,
        &accented,
        "0".repeat(31).as_str(),
    ] {
        assert_eq!(
            bad.parse::<Authority>(),
            Err(InvalidInput::Id { what: "authority" }),
            "{bad}"
        );
        assert_eq!(
            bad.parse::<GrantId>(),
            Err(InvalidInput::Id { what: "grant id" }),
            "{bad}"
        );
        assert_eq!(
            bad.parse::<WriteId>(),
            Err(InvalidInput::Id { what: "write id" }),
            "{bad}"
        );
    }
}

#[test]
fn a_fence_in_json_is_what_it_says() {
    let json = serde_json::to_value(fence(7)).unwrap();
    assert_eq!(
        json,
        serde_json::json!({
            "authority": HEX, "resource": "catalog/current", "epoch": 7, "holder": "worker-a"
        })
    );
    assert_eq!(serde_json::from_value::<Fence>(json).unwrap(), fence(7));
}

#[test]
fn a_fence_with_an_invalid_part_is_refused_when_it_is_read() {
    let good = serde_json::to_value(fence(7)).unwrap();
    for (field, bad) in [
        ("resource", serde_json::json!("")),
        ("resource", serde_json::json!("a\u{85}b")),
        ("resource", serde_json::json!("r".repeat(513))),
        ("holder", serde_json::json!("")),
        ("holder", serde_json::json!("h".repeat(257))),
        ("holder", serde_json::json!("a\nb")),
        ("authority", serde_json::json!("00ff")),
        ("epoch", serde_json::json!(-1)),
        ("epoch", serde_json::json!(1.5)),
    ] {
        let mut fence = good.clone();
        fence[field] = bad;
        assert!(serde_json::from_value::<Fence>(fence).is_err(), "{field}");
        let mut fence = good.clone();
        fence.as_object_mut().unwrap().remove(field);
        assert!(
            serde_json::from_value::<Fence>(fence).is_err(),
            "without {field}"
        );
    }
}

#[test]
fn a_fence_is_one_line_in_a_log() {
    let text = fence(7).to_string();
    assert_eq!(
        text,
        format!("catalog/current@7 held by worker-a (authority {HEX})")
    );
}

#[test]
fn operations_and_rejections_survive_the_wire() {
    let holder = Principal::new("worker-a").unwrap();
    let grant_id = GrantId::from_bytes([1; 16]);
    let hold_off = Some(std::time::Duration::from_millis(1_500));
    for op in [
        LeaseOp::Acquire {
            candidate: holder.clone(),
            ttl: Ttl::from_millis(100).unwrap(),
            grant_id,
        },
        LeaseOp::Renew {
            holder: holder.clone(),
            epoch: EPOCH_MAX,
        },
        LeaseOp::Release {
            holder: holder.clone(),
            epoch: 1,
        },
        LeaseOp::Revoke {
            operator: holder.clone(),
            epoch: 1,
            hold_off,
        },
        LeaseOp::Cancel {
            candidate: holder.clone(),
            grant_id,
        },
    ] {
        assert_eq!(op.actor(), "worker-a");
        let json = serde_json::to_string(&op).unwrap();
        assert_eq!(serde_json::from_str::<LeaseOp>(&json).unwrap(), op);
    }
    for rejection in [
        FenceRejection::StaleEpoch {
            carried: 1,
            current: 3,
        },
        FenceRejection::FutureEpoch {
            carried: u64::MAX,
            current: 3,
        },
        FenceRejection::NotHolder,
    ] {
        let json = serde_json::to_string(&rejection).unwrap();
        assert_eq!(
            serde_json::from_str::<FenceRejection>(&json).unwrap(),
            rejection
        );
    }
    assert_eq!(
        serde_json::to_string(&DenyReason::HeldByOther).unwrap(),
        "\"held_by_other\""
    );
}

#[test]
fn invalid_input_is_the_callers_to_fix() {
    assert_eq!(InvalidInput::Epoch(0).kind(), ErrorKind::FixCall);
}

proptest! {
    #[test]
    fn ids_are_read_back_from_text_and_json(bytes in any::<[u8; 16]>()) {
        let id = GrantId::from_bytes(bytes);
        prop_assert_eq!(id.as_bytes(), &bytes);
        prop_assert_eq!(id.to_string().parse::<GrantId>().unwrap(), id);
        let json = serde_json::to_string(&id).unwrap();
        prop_assert_eq!(serde_json::from_str::<GrantId>(&json).unwrap(), id);
    }
}

fn fence(epoch: u64) -> Fence {
    Fence {
        authority: HEX.parse().unwrap(),
        resource: ResourceName::new("catalog/current").unwrap(),
        epoch,
        holder: Principal::new("worker-a").unwrap(),
    }
}

/// A mark that no announcement can have made would refuse every owner for good.
#[test]
fn a_stored_high_water_mark_is_one_that_can_have_been_made() {
    let stored = |epoch: u64, holder: Option<&str>| {
        serde_json::from_value::<aster_core::HighWaterMark>(serde_json::json!({
            "resource": "bucket/index",
            "authority": "01010101010101010101010101010101",
            "epoch": epoch,
            "holder": holder,
        }))
    };
    for (epoch, holder) in [
        (0, None),
        (1, Some("a")),
        (2, None),
        (aster_core::EPOCH_MAX, Some("a")),
    ] {
        let mark = stored(epoch, holder).unwrap();
        let again = serde_json::from_value(serde_json::to_value(&mark).unwrap());
        assert_eq!(again.ok(), Some(mark));
    }
    for (epoch, holder) in [
        (0, Some("a")),
        (aster_core::EPOCH_MAX + 1, None),
        (u64::MAX, Some("a")),
    ] {
        let refused = stored(epoch, holder).unwrap_err().to_string();
        assert!(refused.contains("is outside 1 to"), "{refused}");
    }
}
