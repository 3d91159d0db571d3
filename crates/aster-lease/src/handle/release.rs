//! Giving a lease up.

use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::Duration;

use aster_core::{
    DenyReason, ErrorKind, ExpectedRevision, FenceRejection, LeaseOp, RegisterWrite,
    TransitionOutcome, WriteId, retry_outcome,
};

use super::attempt::{Backoff, within};
use super::guard::LeaseEnded;
use super::state::{EndedReason, Shared};
use crate::clock::Moment;
use crate::entropy;
use crate::error::{LeaseError, SerializerError};
use crate::registers::{RegisterError, Registers};

/// A release gives up after its lease would have expired anyway, but not before and not after these.
const RELEASE_TIME_MIN: Duration = Duration::from_secs(1);
const RELEASE_TIME_MAX: Duration = Duration::from_secs(10);
/// Guarded work may take this part of the whole time to end.
const GUARD_PARTS: u32 = 2;
/// One attempt may take this part of the whole time.
const ATTEMPT_PARTS: u32 = 2;
/// The first attempt may take this long, also when the whole time has passed before it: the process may
/// have stood still, and the next owner should not wait for a ttl because of that.
const FIRST_ATTEMPT_MIN: Duration = Duration::from_millis(100);

/// What a release found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ReleaseOutcome {
    /// The resource is free now.
    Released,
    /// This ownership had ended already: an earlier release, a revoke, another owner.
    AlreadyEnded,
}

/// A write that a release carried. The same call again carries the same id.
pub(super) struct LastWrite {
    writer: String,
    write: RegisterWrite,
    /// An attempt had no definite answer, so it may have been carried out.
    is_open: bool,
}

/// Frees the row, with retries, in bounded time.
pub(super) async fn run(shared: Arc<Shared>) -> Result<ReleaseOutcome, LeaseError> {
    if shared.epoch_over() {
        return Ok(ReleaseOutcome::AlreadyEnded);
    }
    let mut attempts = Attempts::new(&shared);
    attempts.wait_for_guards().await?;
    let op = LeaseOp::Release {
        holder: shared.fence.holder.clone(),
        epoch: shared.fence.epoch,
    };
    let mut limit_min = FIRST_ATTEMPT_MIN;
    loop {
        let limit = attempts.limit().max(std::mem::take(&mut limit_min));
        let answer = shared
            .parts
            .send(&shared.fence.resource, op.clone(), limit)
            .await;
        let failure = match answer {
            Ok(TransitionOutcome::Released) => {
                shared.set_epoch_over();
                return Ok(ReleaseOutcome::Released);
            }
            Ok(TransitionOutcome::Denied(reason, snapshot)) => {
                if retry_outcome(&op, reason, &snapshot) {
                    shared.set_epoch_over();
                    return Ok(ReleaseOutcome::AlreadyEnded);
                }
                let denied = LeaseError::Denied {
                    operation: "release",
                    reason,
                };
                if reason != DenyReason::Unauthorized {
                    return Err(denied);
                }
                denied
            }
            Ok(outcome) => {
                let message = format!("{outcome:?} to a release");
                return Err(SerializerError::Unexpected { message }.into());
            }
            Err(error) if error.kind() == ErrorKind::Retry => error.into(),
            Err(error) => return Err(error.into()),
        };
        if !attempts.pause().await {
            return Err(failure);
        }
    }
}

/// Writes the value and frees the row, with retries, in bounded time. The lease has been ended.
pub(super) async fn run_with_value<R>(
    shared: Arc<Shared>,
    registers: Arc<R>,
    writer: String,
    expected: ExpectedRevision,
    value: Vec<u8>,
) -> Result<u64, LeaseError>
where
    R: Registers + ?Sized,
{
    if let Some(reason) = shared.ended()
        && reason != EndedReason::Released
    {
        return Err(LeaseEnded { reason }.into());
    }
    let write = remembered(&shared, &writer, expected, value)?;
    let mut attempts = Attempts::new(&shared);
    attempts.wait_for_guards().await?;
    loop {
        let limit = attempts.limit();
        let request = registers.release_with_value(
            &shared.fence,
            &writer,
            write.expected,
            write.value.clone(),
            write.write_id,
        );
        let failure = match within(&*shared.parts.clock, limit, request).await {
            Some(Ok(value_revision)) => {
                shared.set_epoch_over();
                return Ok(value_revision);
            }
            Some(Err(RegisterError::Store(error))) if error.kind() == ErrorKind::Retry => error,
            Some(Err(error)) => {
                let RegisterError::Rejected(FenceRejection::StaleEpoch { .. }) = error else {
                    return Err(error.into());
                };
                shared.set_epoch_over();
                // An attempt that was carried out has ended the epoch itself.
                return Err(match is_open(&shared, write.write_id) {
                    true => LeaseError::Unsettled,
                    false => error.into(),
                });
            }
            None => SerializerError::Timeout { after: limit },
        };
        set_open(&shared, write.write_id);
        if !attempts.pause().await {
            return Err(failure.into());
        }
    }
}

/// The write with its id: the one that an equal call before had.
fn remembered(
    shared: &Shared,
    writer: &str,
    expected: ExpectedRevision,
    value: Vec<u8>,
) -> Result<RegisterWrite, LeaseError> {
    let mut last = last_write(shared);
    if let Some(last) = last.as_deref()
        && last.writer == writer
        && last.write.expected == expected
        && last.write.value == value
    {
        return Ok(last.write.clone());
    }
    let write = RegisterWrite {
        expected,
        value,
        write_id: entropy::write_id(&*shared.parts.entropy)?,
    };
    *last = Some(Box::new(LastWrite {
        writer: writer.to_owned(),
        write: write.clone(),
        is_open: false,
    }));
    Ok(write)
}

fn is_open(shared: &Shared, write_id: WriteId) -> bool {
    let last = last_write(shared);
    last.as_deref()
        .is_some_and(|last| last.is_open && last.write.write_id == write_id)
}

fn set_open(shared: &Shared, write_id: WriteId) {
    let mut last = last_write(shared);
    if let Some(last) = last.as_deref_mut()
        && last.write.write_id == write_id
    {
        last.is_open = true;
    }
}

fn last_write(shared: &Shared) -> MutexGuard<'_, Option<Box<LastWrite>>> {
    let last = shared.last_write.lock();
    last.unwrap_or_else(PoisonError::into_inner)
}

/// The time that a release may take, and how it is spent.
struct Attempts<'a> {
    shared: &'a Shared,
    started: Moment,
    time_max: Duration,
    backoff: Backoff,
}

impl<'a> Attempts<'a> {
    fn new(shared: &'a Shared) -> Self {
        let ttl = shared.timing.ttl.duration();
        let time_max = ttl.clamp(RELEASE_TIME_MIN, RELEASE_TIME_MAX);
        let attempt_max = time_max / ATTEMPT_PARTS;
        Self {
            shared,
            started: shared.parts.clock.now(),
            time_max,
            backoff: shared.parts.backoff(attempt_max / ATTEMPT_PARTS),
        }
    }

    async fn wait_for_guards(&self) -> Result<(), LeaseError> {
        let clock = &*self.shared.parts.clock;
        self.shared
            .guards
            .wait_until_still(clock, self.time_max / GUARD_PARTS)
            .await
    }

    fn left(&self) -> Duration {
        self.time_max
            .saturating_sub(self.shared.parts.clock.now().since(self.started))
    }

    fn limit(&self) -> Duration {
        (self.time_max / ATTEMPT_PARTS).min(self.left())
    }

    /// `false` when there is no time left for another attempt.
    async fn pause(&mut self) -> bool {
        let pause = self.backoff.pause(self.left());
        tokio::time::sleep(pause).await;
        !self.left().is_zero()
    }
}
