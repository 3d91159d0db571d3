//! One frame: the lengths of header and body, a JSON header, a raw body.

use std::io;

use aster::lease::{ExpectedRevision, Fence, REGISTER_BYTES_MAX, ResourceName, WriteId};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use crate::failure::Failure;

/// The longest header. A fence with the longest names takes a third of it.
pub(crate) const HEADER_BYTES_MAX: usize = 8 * 1024;
/// The longest body: a register value.
pub(crate) const BODY_BYTES_MAX: usize = REGISTER_BYTES_MAX;
/// Two lengths of four bytes, most significant byte first.
pub(crate) const PREFIX_BYTES: usize = 8;

/// What a command asks of its run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "request", rename_all = "snake_case")]
pub(crate) enum Request {
    /// The launcher is about to become the command.
    Ready,
    /// Write the body to the register.
    Put { expect: Expect, write_id: WriteId },
    /// Read the register.
    Get,
    /// The current fence.
    Fence,
}

/// [`ExpectedRevision`] on the wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Expect {
    Any,
    Absent,
    Exactly(u64),
}

impl From<ExpectedRevision> for Expect {
    fn from(expected: ExpectedRevision) -> Self {
        match expected {
            ExpectedRevision::Any => Expect::Any,
            ExpectedRevision::Absent => Expect::Absent,
            ExpectedRevision::Exactly(revision) => Expect::Exactly(revision),
        }
    }
}

impl From<Expect> for ExpectedRevision {
    fn from(expect: Expect) -> Self {
        match expect {
            Expect::Any => ExpectedRevision::Any,
            Expect::Absent => ExpectedRevision::Absent,
            Expect::Exactly(revision) => ExpectedRevision::Exactly(revision),
        }
    }
}

/// What the run answers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "answer", rename_all = "snake_case")]
pub(crate) enum Answer {
    /// The launcher may become the command.
    Go,
    /// The value is written.
    Written {
        resource: ResourceName,
        value_revision: u64,
        epoch: u64,
    },
    /// The body is the register's value.
    Value {
        resource: ResourceName,
        value_revision: u64,
        epoch: u64,
    },
    /// Nothing was ever written.
    Absent { resource: ResourceName },
    /// The fence of this moment.
    Fence { fence: Fence },
    /// No.
    Failed { failure: Failure },
}

/// The two lengths, checked before anything is allocated for them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Lengths {
    pub(crate) header: usize,
    pub(crate) body: usize,
}

impl Lengths {
    pub(crate) fn parse(prefix: [u8; PREFIX_BYTES]) -> io::Result<Self> {
        let [a, b, c, d, e, f, g, h] = prefix;
        let length = |bytes| u32::from_be_bytes(bytes) as usize;
        let lengths = Self {
            header: length([a, b, c, d]),
            body: length([e, f, g, h]),
        };
        if lengths.header > HEADER_BYTES_MAX || lengths.body > BODY_BYTES_MAX {
            return Err(invalid("the frame is too large"));
        }
        Ok(lengths)
    }
}

/// A whole frame as bytes.
pub(crate) fn encode(header: &impl Serialize, body: &[u8]) -> io::Result<Vec<u8>> {
    let header = serde_json::to_vec(header).map_err(io::Error::other)?;
    if header.len() > HEADER_BYTES_MAX || body.len() > BODY_BYTES_MAX {
        return Err(invalid("the frame is too large"));
    }
    let length = |bytes: &[u8]| u32::try_from(bytes.len()).map_err(io::Error::other);
    let mut frame = Vec::with_capacity(PREFIX_BYTES + header.len() + body.len());
    frame.extend(length(&header)?.to_be_bytes());
    frame.extend(length(body)?.to_be_bytes());
    frame.extend(header);
    frame.extend(body);
    Ok(frame)
}

/// Reads the header's JSON.
pub(crate) fn decode<T: DeserializeOwned>(header: &[u8]) -> io::Result<T> {
    serde_json::from_slice(header).map_err(|_| invalid("the frame's header is not understood"))
}

fn invalid(what: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_survive_the_way_and_their_bounds_hold() {
        let request = Request::Put {
            expect: Expect::Exactly(4),
            write_id: WriteId::from_bytes([3; 16]),
        };
        let frame = encode(&request, b"value").unwrap();
        let lengths = Lengths::parse(frame[..PREFIX_BYTES].try_into().unwrap()).unwrap();
        let header = &frame[PREFIX_BYTES..PREFIX_BYTES + lengths.header];
        assert_eq!(decode::<Request>(header).unwrap(), request);
        assert_eq!(&frame[PREFIX_BYTES + lengths.header..], b"value");
        assert_eq!(lengths.body, 5);

        assert!(encode(&request, &vec![0; BODY_BYTES_MAX]).is_ok());
        assert!(encode(&request, &vec![0; BODY_BYTES_MAX + 1]).is_err());
        assert!(Lengths::parse([0xff; 8]).is_err());
        assert!(decode::<Request>(b"{}").is_err());
    }

    #[test]
    fn the_longest_fence_fits_a_header() {
        let fence = Fence {
            authority: aster::lease::Authority::from_bytes([1; 16]),
            resource: ResourceName::new("\"".repeat(512)).unwrap(),
            epoch: aster::lease::EPOCH_MAX,
            holder: aster::lease::Principal::new("\\".repeat(256)).unwrap(),
        };
        assert!(encode(&Answer::Fence { fence }, b"").is_ok());
    }
}
