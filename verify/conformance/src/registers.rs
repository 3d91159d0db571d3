//! The suite of a register store: small values that only the current owner changes.

use aster_lease::{
    ErrorKind, ExpectedRevision, Fence, FenceRejection, RegisterError, RegisterValue, Registers,
    TransitionOutcome, WriteId,
};

use crate::drive::{
    A, B, Checked, Drive, LONG_IDLE, RESOURCE, Stop, TTL, acquire, broken, ensure, release,
};
use crate::harness::Harness;
use crate::release_with_value;
use crate::report::Report;
use crate::rule::Rule;
use crate::serializer::run_cases;

/// Checks registers: the fence rule, the revision, retries by write id, the value itself
/// (specification, "Enforce at the write boundary").
///
/// Needs [`Harness::registers`].
pub async fn registers_suite<H: Harness>(harness: &H) -> Report {
    let mut report = Report::new("registers");
    run_cases!(
        harness, &mut report,
        RegisterKeepsItsValue: a_register_gives_back_what_was_written,
        RegisterKeepsItsValue: registers_are_kept_apart,
        RegisterKeepsItsValue: a_value_over_the_bound_is_refused,
        RegisterKeepsItsValue: a_register_survives_a_restart,
        RegisterKeepsItsValue: a_register_outlives_the_time_of_idle_rows,
        RegisterComparesAndCounts: a_write_at_another_revision_conflicts,
        RegisterComparesAndCounts: the_revision_goes_on_under_the_next_owner,
        RegisterWriteIsRecognized: a_repeated_write_is_recognized,
        StaleFenceIsRejected: a_stale_register_write_is_rejected,
        WriterIsTheHolder: a_register_write_by_another_writer_is_rejected,
        NamesAreKeptApart: an_invalid_register_name_is_the_callers_to_fix,
    );
    release_with_value::cases(harness, &mut report).await;
    report
}

async fn a_register_gives_back_what_was_written<H: Harness>(harness: &H) -> Checked {
    let drive = Drive::fresh(harness).await;
    let fence = drive.acquired(A, 1).await?;
    ensure(read(&drive, RESOURCE).await?.is_none(), || {
        "a fresh register has a value".to_owned()
    })?;
    let every_byte: Vec<u8> = (0..=u8::MAX).collect();
    for (value_revision, value) in (1..).zip([every_byte, Vec::new(), b"catalog-v1".to_vec()]) {
        let answered = written(&drive, &fence, A, ExpectedRevision::Any, &value, None).await?;
        let expected = RegisterValue {
            value,
            value_revision,
            epoch: fence.epoch,
        };
        let seen = read(&drive, RESOURCE).await?;
        ensure(
            answered == value_revision && seen.as_ref() == Some(&expected),
            || format!("wrote revision {value_revision}, answered {answered}, read {seen:?}"),
        )?;
    }
    Ok(())
}

async fn registers_are_kept_apart<H: Harness>(harness: &H) -> Checked {
    let drive = Drive::fresh(harness).await;
    let first = drive.acquired(A, 1).await?;
    let second = drive.granted("catalog/next", acquire(A, TTL, 2)).await?;
    written(&drive, &first, A, ExpectedRevision::Absent, b"one", None).await?;
    written(&drive, &second, A, ExpectedRevision::Absent, b"two", None).await?;
    for (resource, expected) in [(RESOURCE, b"one"), ("catalog/next", b"two")] {
        let seen = read(&drive, resource).await?.map(|register| register.value);
        ensure(seen.as_deref() == Some(expected), || {
            format!("{resource} holds {seen:?}")
        })?;
    }
    Ok(())
}

async fn a_value_over_the_bound_is_refused<H: Harness>(harness: &H) -> Checked {
    let drive = Drive::fresh(harness).await;
    let fence = drive.acquired(A, 1).await?;
    let bytes_max = harness.register_bytes_max();
    written(
        &drive,
        &fence,
        A,
        ExpectedRevision::Any,
        &vec![7; bytes_max],
        None,
    )
    .await?;
    let too_large = vec![8; bytes_max + 1];
    match write(&drive, &fence, A, ExpectedRevision::Any, &too_large, None).await? {
        Err(error) if error.kind() == ErrorKind::FixCall => {}
        other => return broken(format!("{} bytes were answered {other:?}", too_large.len())),
    }
    let seen = read(&drive, RESOURCE).await?;
    let is_kept = |seen: &RegisterValue| seen.value_revision == 1 && seen.value.first() == Some(&7);
    ensure(seen.as_ref().is_some_and(is_kept), || {
        "the refused value changed it".to_owned()
    })
}

async fn a_register_survives_a_restart<H: Harness>(harness: &H) -> Checked {
    let mut drive = Drive::fresh(harness).await;
    let fence = drive.acquired(A, 1).await?;
    let id = WriteId::from_bytes([1; 16]);
    let revision = written(
        &drive,
        &fence,
        A,
        ExpectedRevision::Absent,
        b"kept",
        Some(id),
    )
    .await?;
    let before = read(&drive, RESOURCE).await?;
    drive.restart().await?;
    let after = read(&drive, RESOURCE).await?;
    ensure(before == after, || format!("{before:?} became {after:?}"))?;
    let again = written(
        &drive,
        &fence,
        A,
        ExpectedRevision::Absent,
        b"kept",
        Some(id),
    )
    .await?;
    ensure(again == revision, || {
        format!("the write of revision {revision} came again after the restart and made {again}")
    })
}

async fn a_register_outlives_the_time_of_idle_rows<H: Harness>(harness: &H) -> Checked {
    let drive = Drive::fresh(harness).await;
    let fence = drive.acquired(A, 1).await?;
    written(&drive, &fence, A, ExpectedRevision::Any, b"kept", None).await?;
    drive
        .answered(release(A, fence.epoch), TransitionOutcome::Released)
        .await?;
    let before = read(&drive, RESOURCE).await?;
    drive.idle_for(LONG_IDLE).await?;
    let after = read(&drive, RESOURCE).await?;
    ensure(before == after, || format!("{before:?} became {after:?}"))?;
    let next = drive.acquired(B, 2).await?;
    let revision = written(
        &drive,
        &next,
        B,
        ExpectedRevision::Exactly(1),
        b"next",
        None,
    )
    .await?;
    ensure(revision == 2, || {
        format!("the next owner's write made revision {revision}")
    })
}

async fn a_write_at_another_revision_conflicts<H: Harness>(harness: &H) -> Checked {
    let drive = Drive::fresh(harness).await;
    let fence = drive.acquired(A, 1).await?;
    for expected in [ExpectedRevision::Exactly(0), ExpectedRevision::Exactly(1)] {
        conflicts(&drive, &fence, expected, None).await?;
    }
    written(&drive, &fence, A, ExpectedRevision::Absent, b"one", None).await?;
    written(
        &drive,
        &fence,
        A,
        ExpectedRevision::Exactly(1),
        b"two",
        None,
    )
    .await?;
    let before = read(&drive, RESOURCE).await?;
    for expected in [
        ExpectedRevision::Absent,
        ExpectedRevision::Exactly(1),
        ExpectedRevision::Exactly(3),
        ExpectedRevision::Exactly(u64::MAX),
    ] {
        conflicts(&drive, &fence, expected, Some(2)).await?;
    }
    let after = read(&drive, RESOURCE).await?;
    ensure(before == after, || {
        format!("conflicts made {before:?} into {after:?}")
    })
}

async fn the_revision_goes_on_under_the_next_owner<H: Harness>(harness: &H) -> Checked {
    let drive = Drive::fresh(harness).await;
    let first = drive.acquired(A, 1).await?;
    written(&drive, &first, A, ExpectedRevision::Any, b"one", None).await?;
    drive
        .answered(release(A, first.epoch), TransitionOutcome::Released)
        .await?;
    let kept = read(&drive, RESOURCE).await?;
    ensure(
        kept.is_some_and(|register| register.value == b"one"),
        || "the value went with its writer's lease".to_owned(),
    )?;
    let second = drive.acquired(B, 2).await?;
    let revision = written(
        &drive,
        &second,
        B,
        ExpectedRevision::Exactly(1),
        b"two",
        None,
    )
    .await?;
    let seen = read(&drive, RESOURCE).await?;
    ensure(
        revision == 2
            && seen
                .as_ref()
                .is_some_and(|register| register.epoch == second.epoch),
        || format!("the next owner's first write made revision {revision}, read {seen:?}"),
    )
}

async fn a_repeated_write_is_recognized<H: Harness>(harness: &H) -> Checked {
    let drive = Drive::fresh(harness).await;
    let fence = drive.acquired(A, 1).await?;
    let id = Some(WriteId::from_bytes([1; 16]));
    for expected in [
        ExpectedRevision::Absent,
        ExpectedRevision::Absent,
        ExpectedRevision::Any,
    ] {
        let revision = written(&drive, &fence, A, expected, b"one", id).await?;
        ensure(revision == 1, || {
            format!("the same write came again and made {revision}")
        })?;
    }
    let next = Some(WriteId::from_bytes([2; 16]));
    let revision = written(
        &drive,
        &fence,
        A,
        ExpectedRevision::Exactly(1),
        b"one",
        next,
    )
    .await?;
    ensure(revision == 2, || {
        format!("an equal value in another write made {revision}")
    })
}

async fn a_stale_register_write_is_rejected<H: Harness>(harness: &H) -> Checked {
    let drive = Drive::fresh(harness).await;
    let stale = drive.acquired(A, 1).await?;
    written(&drive, &stale, A, ExpectedRevision::Any, b"one", None).await?;
    drive
        .answered(release(A, stale.epoch), TransitionOutcome::Released)
        .await?;
    is_rejected(&drive, &stale, A, |rejection| {
        matches!(rejection, FenceRejection::StaleEpoch { .. })
    })
    .await?;
    let next = drive.acquired(B, 2).await?;
    written(&drive, &next, B, ExpectedRevision::Exactly(1), b"two", None).await?;
    is_rejected(&drive, &stale, A, |rejection| {
        matches!(rejection, FenceRejection::StaleEpoch { .. })
    })
    .await?;
    let future = Fence {
        epoch: next.epoch + 1,
        ..next
    };
    is_rejected(&drive, &future, B, |rejection| {
        matches!(rejection, FenceRejection::FutureEpoch { .. })
    })
    .await
}

async fn a_register_write_by_another_writer_is_rejected<H: Harness>(harness: &H) -> Checked {
    let drive = Drive::fresh(harness).await;
    let fence = drive.acquired(B, 1).await?;
    is_rejected(&drive, &fence, A, |rejection| {
        *rejection == FenceRejection::NotHolder
    })
    .await
}

async fn an_invalid_register_name_is_the_callers_to_fix<H: Harness>(harness: &H) -> Checked {
    let drive = Drive::fresh(harness).await;
    for name in ["a\nb", "a\u{85}b"] {
        match registers(&drive)?.read(&drive.name(name)).await {
            Err(error) if error.kind() == ErrorKind::FixCall => {}
            other => return broken(format!("{name:?} was answered {other:?}")),
        }
    }
    let unknown = read(&drive, "never/written").await?;
    ensure(unknown.is_none(), || {
        format!("a register that was never written holds {unknown:?}")
    })
}

pub(crate) fn registers<'d, H: Harness>(drive: &'d Drive<'_, H>) -> Checked<&'d dyn Registers> {
    drive
        .harness
        .registers(&drive.store)
        .ok_or(Stop::NotPossible("a store with registers"))
}

pub(crate) async fn read<H: Harness>(
    drive: &Drive<'_, H>,
    resource: &str,
) -> Checked<Option<RegisterValue>> {
    match registers(drive)?.read(&drive.name(resource)).await {
        Ok(value) => Ok(value),
        Err(error) => broken(format!("reading {resource} failed: {error}")),
    }
}

/// Writes under the given id, or a fresh one.
async fn write<H: Harness>(
    drive: &Drive<'_, H>,
    fence: &Fence,
    writer: &str,
    expected: ExpectedRevision,
    value: &[u8],
    write_id: Option<WriteId>,
) -> Checked<Result<u64, RegisterError>> {
    let registers = registers(drive)?;
    let value = value.to_vec();
    Ok(match write_id {
        Some(id) => {
            registers
                .compare_and_set_with_id(fence, writer, expected, value, id)
                .await
        }
        None => {
            registers
                .compare_and_set(fence, writer, expected, value)
                .await
        }
    })
}

pub(crate) async fn written<H: Harness>(
    drive: &Drive<'_, H>,
    fence: &Fence,
    writer: &str,
    expected: ExpectedRevision,
    value: &[u8],
    write_id: Option<WriteId>,
) -> Checked<u64> {
    match write(drive, fence, writer, expected, value, write_id).await? {
        Ok(revision) => Ok(revision),
        Err(error) => broken(format!(
            "a write under {fence} at {expected:?} failed: {error}"
        )),
    }
}

async fn conflicts<H: Harness>(
    drive: &Drive<'_, H>,
    fence: &Fence,
    expected: ExpectedRevision,
    at: Option<u64>,
) -> Checked {
    match write(drive, fence, A, expected, b"must-not-be-written", None).await? {
        Err(RegisterError::Conflict { current }) if current == at => Ok(()),
        other => broken(format!(
            "a write at {expected:?}, the register at {at:?}: {other:?}"
        )),
    }
}

async fn is_rejected<H: Harness>(
    drive: &Drive<'_, H>,
    fence: &Fence,
    writer: &str,
    is_right: impl Fn(&FenceRejection) -> bool,
) -> Checked {
    let before = read(drive, drive.plain(&fence.resource)).await?;
    let expected = ExpectedRevision::Any;
    match write(drive, fence, writer, expected, b"must-not-be-written", None).await? {
        Err(RegisterError::Rejected(rejection)) if is_right(&rejection) => {}
        other => return broken(format!("{writer} under {fence} was answered {other:?}")),
    }
    let after = read(drive, drive.plain(&fence.resource)).await?;
    ensure(before == after, || {
        format!("a rejected write made {before:?} into {after:?}")
    })
}
