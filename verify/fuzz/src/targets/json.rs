//! Everything of ours that is read from JSON, and the high-water mark that users keep as JSON.

use aster_core::{
    Authority, DenyReason, EPOCH_MAX, Fence, FenceRejection, GrantId, HighWaterMark,
    HighWaterRejection, LeaseOp, LeaseSnapshot, Principal, ResourceName, TransitionOutcome, Ttl,
};
use aster_lease::{AuditEvent, AuditRecord};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::control::Control;
use crate::targets::draw::Draw;
use crate::{Seen, Target, bounded, seen};

pub(super) const JSON: Target = Target {
    name: "json",
    what: "every type that is read from JSON: what is accepted keeps its bounds, its text and its size",
    run: json,
    bytes_max: 4_096,
    dictionary: include_str!("../../dictionaries/json.dict"),
    executions: 12_000,
};

pub(super) const HIGH_WATER: Target = Target {
    name: "high_water",
    what: "a stored high-water mark: bounds hold, epochs never go back, a refusal changes nothing",
    run: |data| high_water::<HighWaterMark>(data),
    bytes_max: 1_024,
    dictionary: include_str!("../../dictionaries/json.dict"),
    executions: 15_000,
};

pub(super) const CONTROLS: [Control; 3] = [
    Control {
        target: "json",
        rule: "what is accepted comes back as it was",
        planted: "a field that is read and not written",
        run: |data| seen(round_trip::<Forgetful>(data).is_some()),
    },
    Control {
        target: "json",
        rule: "nothing allocates more than its bound",
        planted: "a reader that trusts the length it is told",
        run: |data| seen(round_trip::<Trusting>(data).is_some()),
    },
    Control {
        target: "high_water",
        rule: "an epoch is at most 2^63 - 1",
        planted: "a mark that is read without a look at its epoch",
        run: high_water::<Unchecked>,
    },
];

/// What one parse may allocate: the text a few times, and a little.
fn allocation_max(bytes: usize) -> usize {
    16 * bytes + 16 * 1_024
}

/// What was read, if anything was. Written and read again it is the same.
fn round_trip<T>(data: &[u8]) -> Option<T>
where
    T: Serialize + DeserializeOwned + PartialEq + std::fmt::Debug,
{
    let read = bounded(allocation_max(data.len()), || {
        serde_json::from_slice::<T>(data)
    });
    let value = match read {
        Ok(value) => value,
        Err(error) => {
            assert!(!error.to_string().is_empty());
            return None;
        }
    };
    let written = serde_json::to_vec(&value).expect("what was read can be written");
    let again: T = serde_json::from_slice(&written).expect("what was written can be read");
    assert_eq!(again, value);
    Some(value)
}

fn assert_name(text: &str, bytes_max: usize) {
    assert!(
        (1..=bytes_max).contains(&text.len()),
        "{} bytes",
        text.len()
    );
    assert!(!text.contains(|character: char| character.is_control()));
}

fn assert_fence(fence: &Fence) {
    assert_name(&fence.resource, 512);
    assert_name(&fence.holder, 256);
    assert!(!fence.to_string().contains('\n'), "one line in a log");
}

fn assert_snapshot(snapshot: &LeaseSnapshot) {
    assert_name(&snapshot.resource, 512);
    if let Some(holder) = &snapshot.holder {
        assert_name(holder, 256);
    }
}

fn json(data: &[u8]) -> Seen {
    let fence = round_trip::<Fence>(data);
    if let Some(fence) = &fence {
        assert_fence(fence);
    }
    let op = round_trip::<LeaseOp>(data);
    if let Some(op) = &op {
        assert_name(op.actor(), 256);
        if let LeaseOp::Acquire { ttl, .. } = op {
            assert!(ttl.as_millis() > 0);
        }
    }
    let outcome = round_trip::<TransitionOutcome>(data);
    match &outcome {
        Some(TransitionOutcome::Granted(fence)) => assert_fence(fence),
        Some(TransitionOutcome::Denied(_, snapshot)) => assert_snapshot(snapshot),
        _ => {}
    }
    let snapshot = round_trip::<LeaseSnapshot>(data);
    if let Some(snapshot) = &snapshot {
        assert_snapshot(snapshot);
    }
    let record = round_trip::<AuditRecord>(data);
    if let Some(record) = &record {
        assert_eq!(
            AuditEvent::from_name(record.event.name()),
            Some(record.event)
        );
        if let Some(resource) = &record.resource {
            assert_name(resource, 512);
        }
    }
    let ttl = round_trip::<Ttl>(data);
    if let Some(ttl) = ttl {
        assert!(ttl.as_millis() > 0);
        assert_eq!(Ttl::new(ttl.duration()), Ok(ttl));
    }
    let reason = round_trip::<DenyReason>(data);
    if let Some(reason) = reason {
        let named = serde_json::to_value(reason).unwrap();
        assert_eq!(named, reason.name(), "one name in JSON and in metrics");
    }
    let event = round_trip::<AuditEvent>(data);
    if let Some(event) = event {
        assert_eq!(serde_json::to_value(event).unwrap(), event.name());
    }
    seen((
        fence.is_some(),
        op.as_ref().map(std::mem::discriminant),
        outcome.as_ref().map(std::mem::discriminant),
        (snapshot.is_some(), record.is_some(), ttl.is_some()),
        (reason, event),
        round_trip::<FenceRejection>(data).map(|rejection| rejection.name()),
        round_trip::<HighWaterRejection>(data).is_some(),
        round_trip::<HighWaterMark>(data).is_some(),
        round_trip::<ResourceName>(data).is_some(),
        round_trip::<GrantId>(data).is_some(),
    ))
}

/// The mark, or a faulty reader of it.
trait Mark: DeserializeOwned {
    fn take(self) -> (HighWaterMark, u64);
}

impl Mark for HighWaterMark {
    fn take(self) -> (HighWaterMark, u64) {
        let epoch = self.epoch();
        (self, epoch)
    }
}

/// The JSON of a mark up to the first line break, then what is done with it.
fn high_water<M: Mark>(data: &[u8]) -> Seen {
    let end = data.iter().position(|byte| *byte == b'\n');
    let (text, rest) = data.split_at(end.unwrap_or(data.len()));
    let Ok(read) = serde_json::from_slice::<M>(text) else {
        return seen("refused");
    };
    let (mut mark, epoch) = read.take();
    assert!(epoch <= EPOCH_MAX, "epoch {epoch}");
    let mut draw = Draw::new(rest);
    let mut led_to = Vec::new();
    // What the mark says of itself: its resource and authority.
    let shown = serde_json::to_value(&mark).unwrap();
    let resource: ResourceName = serde_json::from_value(shown["resource"].clone()).unwrap();
    let authority: Authority = serde_json::from_value(shown["authority"].clone()).unwrap();
    let mut present = authority;
    for _ in 0..draw.below(12) {
        let before = mark.clone();
        let fence = Fence {
            authority: draw.one_of(&[authority, Authority::from_bytes([9; 16])]),
            resource: match draw.below(8) {
                0 => ResourceName::new("other").unwrap(),
                _ => resource.clone(),
            },
            epoch: draw.near(mark.epoch()),
            holder: draw.principal(),
        };
        let writer = draw.principal();
        let outcome = match draw.below(4) {
            0 => mark.announce(&fence, &writer),
            1 => mark.check(&fence, &writer),
            2 => mark.announce_end(fence.authority, fence.epoch),
            _ => {
                mark.adopt(fence.authority);
                if fence.authority == present {
                    assert_eq!(mark, before, "its epochs never go back");
                } else {
                    assert_eq!(mark.epoch(), 0);
                }
                present = fence.authority;
                continue;
            }
        };
        assert!(mark.epoch() >= before.epoch(), "epochs never go back");
        assert!(mark.epoch() <= EPOCH_MAX);
        if outcome.is_err() {
            assert_eq!(mark, before, "a refusal changes nothing");
        } else {
            assert_eq!(fence.authority, present);
        }
        if mark.check(&fence, &writer).is_ok() {
            assert_eq!(fence.epoch, mark.epoch());
            assert_eq!((&fence.resource, &fence.holder), (&resource, &writer));
            assert!(fence.epoch > 0);
        }
        led_to.push(outcome.is_ok());
    }
    seen((led_to, epoch.checked_ilog2()))
}

/// As the mark was read before its epoch was looked at.
#[derive(Deserialize)]
struct Unchecked {
    resource: ResourceName,
    authority: Authority,
    epoch: u64,
    #[serde(rename = "holder")]
    _holder: Option<Principal>,
}

impl Mark for Unchecked {
    fn take(self) -> (HighWaterMark, u64) {
        (
            HighWaterMark::new(self.resource, self.authority),
            self.epoch,
        )
    }
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Forgetful {
    authority: Authority,
    #[serde(skip_serializing, default)]
    epoch: u64,
}

#[derive(Debug, PartialEq)]
struct Trusting(usize);

impl Serialize for Trusting {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u64(self.0 as u64)
    }
}

impl<'de> Deserialize<'de> for Trusting {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let length = u32::deserialize(deserializer)? as usize;
        let buffer = vec![0_u8; length];
        Ok(Self(std::hint::black_box(buffer).len()))
    }
}
