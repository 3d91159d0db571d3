//! What an error tells its caller to do, and the names under which events are kept.

use std::error::Error as _;

use aster_lease::{
    AuditEvent, DenyReason, Entropy, EntropyError, ErrorKind, FenceRejection, FencedError,
    InvalidInput, LeaseError, MemoryOptions, MemorySerializer, RegisterError, SerializerError,
};

struct NoEntropy;

impl Entropy for NoEntropy {
    fn fill(&self, _bytes: &mut [u8]) -> Result<(), EntropyError> {
        Err(EntropyError {
            message: "no random bytes".to_owned(),
        })
    }
}

fn stale() -> FenceRejection {
    FenceRejection::StaleEpoch {
        carried: 1,
        current: 2,
    }
}

fn future() -> FenceRejection {
    FenceRejection::FutureEpoch {
        carried: 2,
        current: 1,
    }
}

#[test]
fn a_rejected_write_is_to_be_stopped_corrected_or_reported() {
    for (rejection, kind) in [
        (FenceRejection::WrongAuthority, ErrorKind::Stop),
        (FenceRejection::WrongResource, ErrorKind::FixCall),
        (stale(), ErrorKind::Stop),
        (future(), ErrorKind::Report),
        (FenceRejection::NotHeld, ErrorKind::Stop),
        (FenceRejection::NotHolder, ErrorKind::Stop),
        (FenceRejection::Reentrant, ErrorKind::FixCall),
    ] {
        assert_eq!(FencedError::<()>::from(rejection.clone()).kind(), kind);
        assert_eq!(RegisterError::from(rejection).kind(), kind);
    }
}

#[test]
fn a_failure_of_the_store_keeps_its_advice_whatever_carries_it() {
    let busy = || SerializerError::Busy {
        message: "for now".to_owned(),
    };
    assert_eq!(FencedError::<()>::from(busy()).kind(), ErrorKind::Retry);
    assert_eq!(RegisterError::from(busy()).kind(), ErrorKind::Retry);
    assert_eq!(LeaseError::from(busy()).kind(), ErrorKind::Retry);
    let closed = FencedError::<()>::from(SerializerError::Closed);
    assert_eq!(closed.kind(), ErrorKind::Stop);
    let conflict = RegisterError::Conflict { current: Some(1) };
    assert_eq!(conflict.kind(), ErrorKind::Retry);
    let own: FencedError<std::fmt::Error> = FencedError::Operation(std::fmt::Error);
    assert_eq!(own.kind(), ErrorKind::FixCall, "only the caller knows");
    assert!(own.source().is_some());
    let invalid = RegisterError::from(InvalidInput::Epoch(0));
    assert_eq!(invalid.kind(), ErrorKind::FixCall);
    let denied = LeaseError::Denied {
        operation: "release",
        reason: DenyReason::NotHolder,
    };
    assert_eq!(denied.kind(), ErrorKind::Stop);
}

#[test]
fn a_store_without_random_bytes_is_not_made_and_says_so() {
    let error = MemorySerializer::with_options(MemoryOptions {
        entropy: std::sync::Arc::new(NoEntropy),
        ..MemoryOptions::default()
    })
    .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Report);
    let failure = SerializerError::from(error);
    assert_eq!(failure.kind(), ErrorKind::Report);
    assert!(failure.to_string().contains("no random bytes"), "{failure}");
    assert!(failure.source().is_some());
}

/// Names are kept in audit trails and read back.
#[test]
fn events_keep_their_names() {
    for (event, name) in [
        (AuditEvent::Granted, "granted"),
        (AuditEvent::TakenOver, "taken_over"),
        (AuditEvent::Released, "released"),
        (AuditEvent::Revoked, "revoked"),
        (AuditEvent::Cancelled, "cancelled"),
        (AuditEvent::Rejected, "rejected"),
        (AuditEvent::Adopted, "adopted"),
    ] {
        assert_eq!(event.name(), name);
        assert_eq!(AuditEvent::from_name(name), Some(event));
    }
    assert_eq!(AuditEvent::from_name("stolen"), None);
}
