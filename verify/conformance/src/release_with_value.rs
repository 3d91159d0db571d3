//! Cases of a release that leaves a value behind.

use std::future::poll_fn;
use std::task::Poll;

use aster_lease::{
    DenyReason, ErrorKind, ExpectedRevision, Fence, FenceRejection, RegisterError, SerializerError,
    TransitionOutcome, WriteId,
};

use crate::drive::{
    A, B, C, Checked, Drive, RESOURCE, Stop, TTL, acquire, broken, ensure, release, renew,
};
use crate::harness::Harness;
use crate::line::Line;
use crate::registers::{read, registers, written};
use crate::report::Report;
use crate::rule::Rule;
use crate::serializer::run_cases;

pub(crate) async fn cases<H: Harness>(harness: &H, report: &mut Report) {
    run_cases!(
        harness, report,
        BothOrNeither: a_release_with_a_value_does_both,
        BothOrNeither: a_refused_release_with_a_value_does_neither,
        BothOrNeither: a_release_with_a_value_that_was_given_up_is_whole_or_nothing,
        BothOrNeither: a_value_that_is_there_already_is_still_released_with,
        HandOverIsDirect: a_release_with_a_value_hands_over,
        ReleaseWithValueIsRecognized: a_release_with_a_value_that_comes_again_is_recognized,
        ReleaseWithValueIsRecognized: a_release_with_a_value_is_recognized_after_a_restart,
        StaleFenceIsRejected: a_stale_release_with_a_value_is_rejected,
    );
}

const ID: WriteId = WriteId::from_bytes([1; 16]);
const OTHER_ID: WriteId = WriteId::from_bytes([2; 16]);

async fn a_release_with_a_value_does_both<H: Harness>(harness: &H) -> Checked {
    let drive = Drive::fresh(harness).await;
    let fence = drive.acquired(A, 1).await?;
    written(&drive, &fence, A, ExpectedRevision::Absent, b"one", None).await?;
    let revision = released(&drive, &fence, ExpectedRevision::Exactly(1), b"two").await?;
    let value = read(&drive, RESOURCE).await?;
    let is_written = value.as_ref().is_some_and(|value| {
        value.value == b"two" && value.value_revision == 2 && value.epoch == fence.epoch
    });
    ensure(revision == 2 && is_written, || {
        format!("answered revision {revision}, the register is {value:?}")
    })?;
    let row = drive.row().await?;
    ensure(!row.held && row.epoch > fence.epoch, || {
        format!("{fence} was released with a value, the row is {row:?}")
    })?;
    drive
        .denied(renew(A, fence.epoch), DenyReason::EpochMismatch)
        .await?;
    drive.acquired(B, 2).await.map(|_| ())
}

async fn a_refused_release_with_a_value_does_neither<H: Harness>(harness: &H) -> Checked {
    let drive = Drive::fresh(harness).await;
    let fence = drive.acquired(A, 1).await?;
    written(&drive, &fence, A, ExpectedRevision::Absent, b"one", None).await?;
    let (value, row) = (read(&drive, RESOURCE).await?, drive.row().await?);
    let forged = Fence {
        epoch: fence.epoch + 1,
        ..fence.clone()
    };
    let too_large = vec![0; harness.register_bytes_max() + 1];
    for (what, fence, writer, expected, bytes) in [
        (
            "another revision",
            &fence,
            A,
            ExpectedRevision::Exactly(7),
            &b"x"[..],
        ),
        ("another writer", &fence, B, ExpectedRevision::Any, b"x"),
        ("another epoch", &forged, A, ExpectedRevision::Any, b"x"),
        (
            "a value over the bound",
            &fence,
            A,
            ExpectedRevision::Any,
            &too_large,
        ),
    ] {
        let answer = attempt(&drive, fence, writer, expected, bytes, ID).await?;
        let is_right = match (what, &answer) {
            ("another revision", Err(RegisterError::Conflict { current })) => *current == Some(1),
            ("another writer", Err(RegisterError::Rejected(rejection))) => {
                *rejection == FenceRejection::NotHolder
            }
            ("another epoch", Err(RegisterError::Rejected(_))) => true,
            ("a value over the bound", Err(error)) => error.kind() == ErrorKind::FixCall,
            _ => false,
        };
        ensure(is_right, || format!("{what} was answered {answer:?}"))?;
        let (value_after, row_after) = (read(&drive, RESOURCE).await?, drive.row().await?);
        ensure(value_after == value && row_after == row, || {
            format!("{what} was refused and left {row_after:?} with another value or owner")
        })?;
    }
    drive
        .answered(renew(A, fence.epoch), TransitionOutcome::Renewed)
        .await
}

async fn a_release_with_a_value_that_was_given_up_is_whole_or_nothing<H: Harness>(
    harness: &H,
) -> Checked {
    let drive = Drive::fresh(harness).await;
    let fence = drive.acquired(A, 1).await?;
    {
        let registers = registers(&drive)?;
        let any = ExpectedRevision::Any;
        let mut request = registers.release_with_value(&fence, A, any, b"one".to_vec(), ID);
        poll_fn(|context| {
            let _ = request.as_mut().poll(context);
            Poll::Ready(())
        })
        .await;
    }
    let revision = released(&drive, &fence, ExpectedRevision::Any, b"one").await?;
    let (value, row) = (read(&drive, RESOURCE).await?, drive.row().await?);
    ensure(
        revision == 1 && value.is_some_and(|value| value.value == b"one") && !row.held,
        || format!("asked again, revision {revision} and {row:?}"),
    )
}

/// The write of an earlier attempt is there, its release is not.
async fn a_value_that_is_there_already_is_still_released_with<H: Harness>(harness: &H) -> Checked {
    let drive = Drive::fresh(harness).await;
    let fence = drive.acquired(A, 1).await?;
    written(
        &drive,
        &fence,
        A,
        ExpectedRevision::Absent,
        b"one",
        Some(ID),
    )
    .await?;
    let revision = released(&drive, &fence, ExpectedRevision::Absent, b"one").await?;
    let row = drive.row().await?;
    ensure(revision == 1 && !row.held, || {
        format!("answered revision {revision}, the row is {row:?}")
    })
}

async fn a_release_with_a_value_hands_over<H: Harness>(harness: &H) -> Checked {
    let drive = Drive::fresh(harness).await;
    let fence = drive.acquired(A, 1).await?;
    let mut line = Line::new(&drive);
    let waiter = line.join(B, 2, &[]).await?;
    released(&drive, &fence, ExpectedRevision::Absent, b"for the next").await?;
    let row = drive.row().await?;
    ensure(row.holder.as_deref() == Some(B), || {
        format!("{fence} was released with a value while {B} waits: {row:?}")
    })?;
    drive
        .denied(acquire(C, TTL, 3), DenyReason::HeldByOther)
        .await?;
    let next = line.claimed(waiter).await?;
    let value = read(&drive, RESOURCE).await?;
    ensure(
        next.holder == *B && value.is_some_and(|value| value.value == b"for the next"),
        || format!("{next} does not find the value"),
    )?;
    // The first one's retry finds its own deed and spares the next one.
    let again = released(&drive, &fence, ExpectedRevision::Absent, b"for the next").await?;
    ensure(again == 1, || format!("its retry was answered {again}"))?;
    drive
        .answered(renew(B, next.epoch), TransitionOutcome::Renewed)
        .await
}

async fn a_release_with_a_value_that_comes_again_is_recognized<H: Harness>(harness: &H) -> Checked {
    let drive = Drive::fresh(harness).await;
    let fence = drive.acquired(A, 1).await?;
    for expected in [
        ExpectedRevision::Absent,
        ExpectedRevision::Absent,
        ExpectedRevision::Any,
    ] {
        let revision = released(&drive, &fence, expected, b"one").await?;
        ensure(revision == 1, || {
            format!("the same release with a value came again and made {revision}")
        })?;
    }
    let next = drive.acquired(A, 2).await?;
    let revision = released(&drive, &fence, ExpectedRevision::Absent, b"one").await?;
    let row = drive.row().await?;
    ensure(revision == 1 && row.held && row.epoch == next.epoch, || {
        format!("came again under {next}: revision {revision}, {row:?}")
    })?;
    // Once the next owner has written there is nothing left to recognize.
    written(&drive, &next, A, ExpectedRevision::Exactly(1), b"two", None).await?;
    refused(&drive, &fence, ID).await
}

async fn a_release_with_a_value_is_recognized_after_a_restart<H: Harness>(harness: &H) -> Checked {
    let mut drive = Drive::fresh(harness).await;
    let fence = drive.acquired(A, 1).await?;
    released(&drive, &fence, ExpectedRevision::Absent, b"one").await?;
    drive.restart().await?;
    let revision = released(&drive, &fence, ExpectedRevision::Absent, b"one").await?;
    let row = drive.row().await?;
    ensure(revision == 1 && !row.held, || {
        format!("after the restart: revision {revision}, {row:?}")
    })
}

async fn a_stale_release_with_a_value_is_rejected<H: Harness>(harness: &H) -> Checked {
    let drive = Drive::fresh(harness).await;
    let stale = drive.acquired(A, 1).await?;
    written(&drive, &stale, A, ExpectedRevision::Any, b"one", Some(ID)).await?;
    drive
        .answered(release(A, stale.epoch), TransitionOutcome::Released)
        .await?;
    let next = drive.acquired(A, 2).await?;
    let before = (read(&drive, RESOURCE).await?, drive.row().await?);
    refused(&drive, &stale, OTHER_ID).await?;
    let after = (read(&drive, RESOURCE).await?, drive.row().await?);
    ensure(before == after, || {
        format!("a stale release under {next} made {before:?} into {after:?}")
    })
}

async fn refused<H: Harness>(drive: &Drive<'_, H>, stale: &Fence, id: WriteId) -> Checked {
    let any = ExpectedRevision::Any;
    match attempt(drive, stale, A, any, b"must-not-be-written", id).await? {
        Err(RegisterError::Rejected(FenceRejection::StaleEpoch { .. })) => Ok(()),
        other => broken(format!("a release with a value under {stale}: {other:?}")),
    }
}

async fn released<H: Harness>(
    drive: &Drive<'_, H>,
    fence: &Fence,
    expected: ExpectedRevision,
    value: &[u8],
) -> Checked<u64> {
    match attempt(drive, fence, A, expected, value, ID).await? {
        Ok(revision) => Ok(revision),
        Err(error) => broken(format!("a release of {fence} with a value failed: {error}")),
    }
}

async fn attempt<H: Harness>(
    drive: &Drive<'_, H>,
    fence: &Fence,
    writer: &str,
    expected: ExpectedRevision,
    value: &[u8],
    id: WriteId,
) -> Checked<Result<u64, RegisterError>> {
    let registers = registers(drive)?;
    let answer = registers
        .release_with_value(fence, writer, expected, value.to_vec(), id)
        .await;
    match answer {
        Err(RegisterError::Store(SerializerError::Unsupported { .. })) => {
            Err(Stop::NotPossible("a store that releases with a value"))
        }
        answer => Ok(answer),
    }
}
