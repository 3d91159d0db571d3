//! Taking a lease away from its holder: an operator's act.

use std::time::Duration;

use aster_core::{DenyReason, ErrorKind, LeaseOp, Principal, TransitionOutcome, retry_outcome};

use crate::clock::{Clock, SystemClock};
use crate::error::{LeaseError, SerializerError};
use crate::handle::within;
use crate::serializer::LeaseSerializer;

/// One attempt may take this long.
const ATTEMPT_MAX: Duration = Duration::from_secs(5);
/// How often a revoke is sent when answers are lost.
const ATTEMPTS_MAX: u32 = 4;
/// The pause before the second attempt; it doubles from there.
const PAUSE_FIRST: Duration = Duration::from_millis(100);

/// What a revoke found.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum RevokeOutcome {
    /// The ownership at this epoch has ended by this revoke.
    Revoked {
        /// The epoch that ended.
        epoch: u64,
        /// Who held it, when the call had to look.
        holder: Option<Principal>,
    },
    /// That epoch had ended already. Its successor, if there is one, is untouched.
    AlreadyEnded,
    /// Nobody holds the resource.
    NotHeld,
}

/// Ends the ownership of `resource` at `epoch`, or of whoever holds it at the call when `epoch` is
/// `None`. Its fence is rejected from then on (specification, "Choose a grantor": revoke at the
/// serializer and enforce the advanced fence at the resource).
///
/// `operator` is the authenticated identity of who does it. A lost answer is retried for the same
/// epoch, so a revoke never ends the next holder's lease. Not cancel safe: a dropped call may or may
/// not have revoked.
///
/// # Errors
///
/// [`LeaseError::Denied`] when the operator may not do this, [`LeaseError::Serializer`] when there was
/// no answer.
pub async fn revoke(
    serializer: &dyn LeaseSerializer,
    resource: &str,
    operator: &str,
    epoch: Option<u64>,
) -> Result<RevokeOutcome, LeaseError> {
    run(serializer, resource, operator, epoch, None).await
}

/// The same, and the old holder may not acquire again for `hold_off` (whole milliseconds, at most
/// [`HOLD_OFF_MAX`](aster_core::HOLD_OFF_MAX)).
///
/// Hold-offs of several holders run side by side. A resource keeps at most
/// [`HOLD_OFFS_MAX`](aster_core::HOLD_OFFS_MAX): one more lets the oldest go.
///
/// # Errors
///
/// As [`revoke`].
pub async fn revoke_with_hold_off(
    serializer: &dyn LeaseSerializer,
    resource: &str,
    operator: &str,
    epoch: Option<u64>,
    hold_off: Duration,
) -> Result<RevokeOutcome, LeaseError> {
    run(serializer, resource, operator, epoch, Some(hold_off)).await
}

async fn run(
    serializer: &dyn LeaseSerializer,
    resource: &str,
    operator: &str,
    epoch: Option<u64>,
    hold_off: Option<Duration>,
) -> Result<RevokeOutcome, LeaseError> {
    let operator = Principal::new(operator)?;
    let clock = SystemClock::new();
    let (epoch, holder) = match epoch {
        Some(epoch) => (epoch, None),
        None => {
            let snapshot = attempts(&clock, || serializer.snapshot(resource)).await?;
            if !snapshot.held {
                return Ok(RevokeOutcome::NotHeld);
            }
            (snapshot.epoch, snapshot.holder)
        }
    };
    let op = LeaseOp::Revoke {
        operator,
        epoch,
        hold_off,
    };
    match attempts(&clock, || serializer.transition(resource, op.clone())).await? {
        TransitionOutcome::Revoked => Ok(RevokeOutcome::Revoked { epoch, holder }),
        TransitionOutcome::Denied(reason, snapshot) if retry_outcome(&op, reason, &snapshot) => {
            Ok(RevokeOutcome::AlreadyEnded)
        }
        TransitionOutcome::Denied(DenyReason::NotHeld, _) => Ok(RevokeOutcome::NotHeld),
        TransitionOutcome::Denied(reason, _) => Err(LeaseError::Denied {
            operation: "revoke",
            reason,
        }),
        outcome => {
            let message = format!("{outcome:?} to a revoke");
            Err(SerializerError::Unexpected { message }.into())
        }
    }
}

async fn attempts<T, F>(
    clock: &dyn Clock,
    mut send: impl FnMut() -> F,
) -> Result<T, SerializerError>
where
    F: Future<Output = Result<T, SerializerError>>,
{
    let mut pause = PAUSE_FIRST;
    for attempt in 1.. {
        let error = match within(clock, ATTEMPT_MAX, send()).await {
            Some(Ok(answer)) => return Ok(answer),
            Some(Err(error)) => error,
            None => SerializerError::Timeout { after: ATTEMPT_MAX },
        };
        if error.kind() != ErrorKind::Retry || attempt >= ATTEMPTS_MAX {
            return Err(error);
        }
        tokio::time::sleep(pause).await;
        pause *= 2;
    }
    Err(SerializerError::Timeout { after: ATTEMPT_MAX })
}
