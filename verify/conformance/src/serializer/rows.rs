//! Rows: names, ttls, revisions, batches, lists, the authority, restarts.

use std::time::Duration;

use aster_lease::{
    DenyReason, ErrorKind, ListQuery, RESOURCE_BYTES_MAX, SerializerError, TTL_MAX, TTL_MIN,
    TransitionOutcome,
};

use super::{Harness, Report, Rule, run_cases};
use crate::drive::{
    A, B, Checked, Drive, RESOURCE, Stop, TTL, acquire, broken, ensure, release, renew,
    resource_name, revoke,
};

pub(super) async fn cases<H: Harness>(harness: &H, report: &mut Report) {
    run_cases!(
        harness, report,
        NamesAreKeptApart: look_alike_names_are_different_resources,
        NamesAreKeptApart: invalid_names_are_the_callers_to_fix,
        TtlIsKept: a_ttl_is_exact_or_refused,
        NoChangeWithoutSuccess: a_refused_ttl_or_hold_off_changes_nothing,
        RevisionGrows: the_revision_grows_with_every_change,
        BatchAnswersInOrder: a_batch_is_answered_in_order_and_fails_one_by_one,
        BatchAnswersInOrder: a_full_batch_of_renewals_is_answered_one_by_one,
        ListIsComplete: a_list_is_in_byte_order_and_pages,
        FenceCarriesTheAuthority: every_fence_carries_the_authority,
        FenceCarriesTheAuthority: each_store_has_an_authority_of_its_own,
        RestartKeepsRows: a_restart_keeps_rows_epochs_and_grants,
    );
}

const LOOK_ALIKES: [&str; 14] = [
    "a", "A", "a ", " a", "а", "a/", "a/b", "a%2Fb", "a//b", "../a", "é", "e\u{301}", "a\\b", "a'b",
];

async fn look_alike_names_are_different_resources<H: Harness>(harness: &H) -> Checked {
    let drive = Drive::fresh(harness).await;
    let longest = "r".repeat(drive.name_bytes_max());
    let names: Vec<&str> = LOOK_ALIKES.into_iter().chain([longest.as_str()]).collect();
    let mut fences = Vec::new();
    for (grant, name) in (1..).zip(&names) {
        let fence = drive.granted(name, acquire(A, TTL, grant)).await?;
        ensure(fence.resource == *drive.name(name), || {
            format!("{name:?} was granted as {fence}")
        })?;
        fences.push(fence);
    }
    for (name, fence) in names.iter().zip(&fences) {
        let row = drive.snapshot(name).await?;
        ensure(
            row.held && row.resource == *drive.name(name) && row.epoch == fence.epoch,
            || format!("{name:?} is {row:?}, granted {fence}"),
        )?;
    }
    Ok(())
}

async fn invalid_names_are_the_callers_to_fix<H: Harness>(harness: &H) -> Checked {
    let drive = Drive::fresh(harness).await;
    let too_long = "r".repeat(drive.name_bytes_max() + 1);
    let too_many_bytes = "é".repeat(RESOURCE_BYTES_MAX / 2) + "r";
    let empty = drive.serializer().transition("", acquire(A, TTL, 1)).await;
    ensure(is_callers_to_fix(&empty), || {
        format!("an empty name was answered {empty:?}")
    })?;
    for name in [
        "a\nb",
        "a\0b",
        "a\u{7f}b",
        "a\u{85}b",
        &too_long,
        &too_many_bytes,
    ] {
        for answer in [
            drive.answer(name, acquire(A, TTL, 1)).await.map(|_| ()),
            drive.answer(name, renew(A, 1)).await.map(|_| ()),
            drive
                .serializer()
                .snapshot(&drive.name(name))
                .await
                .map(|_| ()),
        ] {
            ensure(is_callers_to_fix(&answer), || {
                format!("{name:?} was answered {answer:?}")
            })?;
        }
    }
    Ok(())
}

fn is_callers_to_fix<T>(answer: &Result<T, SerializerError>) -> bool {
    matches!(answer, Err(error) if error.kind() == ErrorKind::FixCall)
}

async fn a_ttl_is_exact_or_refused<H: Harness>(harness: &H) -> Checked {
    let drive = Drive::fresh(harness).await;
    let milli = Duration::from_millis(1);
    let mut grant = 0;
    for ttl in [
        TTL_MIN,
        TTL_MIN + milli,
        Duration::from_millis(1_500),
        TTL_MAX,
    ] {
        grant += 1;
        let name = format!("ttl/{}", ttl.as_millis());
        let fence = drive.granted(&name, acquire(A, ttl, grant)).await?;
        let row = drive.snapshot(&name).await?;
        // A day is long at a store in use.
        drive.ask(&name, release(A, fence.epoch)).await?;
        ensure(row.ttl == Some(ttl), || {
            format!("asked for {ttl:?}, kept {:?}", row.ttl)
        })?;
    }
    for ttl in [
        milli,
        TTL_MIN - milli,
        TTL_MAX + milli,
        Duration::from_millis(u64::MAX),
    ] {
        grant += 1;
        let answer = drive.answer(RESOURCE, acquire(A, ttl, grant)).await;
        ensure(is_callers_to_fix(&answer), || {
            format!("a ttl of {ttl:?}: {answer:?}")
        })?;
    }
    Ok(())
}

async fn a_refused_ttl_or_hold_off_changes_nothing<H: Harness>(harness: &H) -> Checked {
    let drive = Drive::fresh(harness).await;
    let answer = drive.answer(RESOURCE, acquire(A, TTL_MAX * 2, 1)).await;
    ensure(is_callers_to_fix(&answer), || {
        format!("answered {answer:?}")
    })?;
    let row = drive.row().await?;
    ensure(!row.held, || format!("a refused acquire left {row:?}"))?;
    let fence = drive.acquired(A, 2).await?;
    let before = drive.row().await?;
    for hold_off in [Duration::ZERO, Duration::from_nanos(1), Duration::MAX] {
        let answer = drive
            .answer(RESOURCE, revoke(fence.epoch, Some(hold_off)))
            .await;
        ensure(is_callers_to_fix(&answer), || {
            format!("a hold-off of {hold_off:?}: {answer:?}")
        })?;
    }
    let after = drive.row().await?;
    ensure(before == after, || format!("{before:?} became {after:?}"))
}

async fn the_revision_grows_with_every_change<H: Harness>(harness: &H) -> Checked {
    let drive = Drive::fresh(harness).await;
    let fence = drive.acquired(A, 1).await?;
    let mut last = drive.row().await?.revision;
    for (op, expected) in [
        (renew(A, fence.epoch), TransitionOutcome::Renewed),
        (renew(A, fence.epoch), TransitionOutcome::Renewed),
        (release(A, fence.epoch), TransitionOutcome::Released),
    ] {
        let name = op.name();
        drive.answered(op, expected).await?;
        let revision = drive.row().await?.revision;
        ensure(revision > last, || {
            format!("{name} left the revision at {revision}")
        })?;
        last = revision;
    }
    drive.acquired(B, 2).await?;
    let revision = drive.row().await?.revision;
    ensure(revision > last, || {
        format!("a grant left the revision at {revision}")
    })
}

/// The answers stand in order; in which order the store carries out one batch is its own affair, so
/// each resource is named once.
async fn a_batch_is_answered_in_order_and_fails_one_by_one<H: Harness>(harness: &H) -> Checked {
    let drive = Drive::fresh(harness).await;
    let mut epochs = Vec::new();
    for (grant, name) in (1..).zip(["batch/1", "batch/2", "batch/5", "batch/6"]) {
        epochs.push(drive.granted(name, acquire(A, TTL, grant)).await?.epoch);
    }
    let request = |name: &str, op| (resource_name(&drive.name(name)), op);
    let answers = drive
        .serializer()
        .transition_many(vec![
            request("batch/1", renew(A, epochs[0])),
            request("batch/2", renew(B, epochs[1])),
            request("batch/3", acquire(A, TTL_MAX * 2, 9)),
            request("batch/4", acquire(B, TTL, 10)),
            request("batch/5", release(A, epochs[2])),
            request("batch/6", renew(A, epochs[3] + 1)),
        ])
        .await;
    let [a, b, c, d, e, f] = &answers[..] else {
        return broken(format!("6 requests, {} answers", answers.len()));
    };
    let denied = |answer: &Result<_, _>, expected| matches!(answer, Ok(TransitionOutcome::Denied(reason, _)) if *reason == expected);
    let in_order = matches!(a, Ok(TransitionOutcome::Renewed))
        && denied(b, DenyReason::NotHolder)
        && is_callers_to_fix(c)
        && matches!(d, Ok(TransitionOutcome::Granted(fence)) if fence.resource == *drive.name("batch/4"))
        && matches!(e, Ok(TransitionOutcome::Released))
        && denied(f, DenyReason::EpochMismatch);
    ensure(in_order, || format!("answered {answers:?}"))?;
    let none = drive.serializer().transition_many(Vec::new()).await;
    ensure(none.is_empty(), || {
        format!("no request was answered {none:?}")
    })
}

/// As the engine of a holder with many leases sends them, with one among them that has ended.
async fn a_full_batch_of_renewals_is_answered_one_by_one<H: Harness>(harness: &H) -> Checked {
    const ITEMS_MAX: usize = 64;
    /// At a store in use, where each item leaves a row.
    const ITEMS_IN_USE_MAX: usize = 8;
    let drive = Drive::fresh(harness).await;
    let items = drive.serializer().batch_max();
    ensure(items >= 1, || "a batch of at most 0 items".to_owned())?;
    let items = items.min(match drive.is_alone() {
        true => ITEMS_MAX,
        false => ITEMS_IN_USE_MAX,
    });
    let mut requests = Vec::new();
    for index in 0..items {
        let name = format!("batch/{index}");
        let fence = drive.granted(&name, acquire(A, TTL, 1)).await?;
        if index == items / 2 {
            drive.ask(&name, release(A, fence.epoch)).await?;
        }
        requests.push((fence.resource, renew(A, fence.epoch)));
    }
    let mut answers = drive.serializer().transition_many(requests.clone()).await;
    ensure(answers.len() == items, || {
        format!("{items} requests, {} answers", answers.len())
    })?;
    for (index, answer) in answers.iter_mut().enumerate() {
        // An item that could not be answered at once is asked for again.
        let busy = matches!(answer, Err(error) if error.kind() == ErrorKind::Retry);
        if busy {
            let op = requests[index].1.clone();
            *answer = drive.answer(&format!("batch/{index}"), op).await;
        }
        let is_right = match answer {
            Ok(TransitionOutcome::Renewed) => index != items / 2,
            Ok(TransitionOutcome::Denied(DenyReason::EpochMismatch, _)) => index == items / 2,
            _ => false,
        };
        ensure(is_right, || {
            format!(
                "renewal {index} of {items}, with {} ended: {answer:?}",
                items / 2
            )
        })?;
    }
    Ok(())
}

async fn a_list_is_in_byte_order_and_pages<H: Harness>(harness: &H) -> Checked {
    let drive = Drive::fresh(harness).await;
    let names = ["b/2", "a", "b/1", "B", "b/%", "c", "b/é"];
    for (grant, name) in (1..).zip(names) {
        let fence = drive.granted(name, acquire(A, TTL, grant)).await?;
        if name == "b/2" {
            drive.ask(name, release(A, fence.epoch)).await?;
        }
    }
    let everything = ["B", "a", "b/%", "b/1", "b/2", "b/é", "c"];
    let query = |prefix: &str| ListQuery {
        prefix: drive.name(prefix),
        ..ListQuery::default()
    };
    same(&listed(&drive, query("")).await?, &everything)?;
    same(
        &listed(&drive, query("b/")).await?,
        &["b/%", "b/1", "b/2", "b/é"],
    )?;
    same(&listed(&drive, query("b/%")).await?, &["b/%"])?;
    let held = ListQuery {
        held_only: true,
        ..query("b/")
    };
    same(&listed(&drive, held).await?, &["b/%", "b/1", "b/é"])?;
    let page = ListQuery {
        after: Some(resource_name(&drive.name("b/%"))),
        limit: 2,
        ..query("b/")
    };
    same(&listed(&drive, page).await?, &["b/1", "b/2"])
}

async fn listed<H: Harness>(drive: &Drive<'_, H>, query: ListQuery) -> Checked<Vec<String>> {
    match drive.serializer().list(query).await {
        Ok(rows) => Ok(rows
            .into_iter()
            .map(|row| drive.plain(&row.resource).to_owned())
            .collect()),
        Err(SerializerError::Unsupported { .. }) => Err(Stop::NotPossible("a store that can list")),
        Err(error) => broken(format!("list failed: {error}")),
    }
}

fn same(listed: &[String], expected: &[&str]) -> Checked {
    ensure(listed == expected, || {
        format!("listed {listed:?}, expected {expected:?}")
    })
}

async fn every_fence_carries_the_authority<H: Harness>(harness: &H) -> Checked {
    let drive = Drive::fresh(harness).await;
    let authority = match drive.serializer().authority().await {
        Ok(authority) => authority,
        Err(SerializerError::Unsupported { .. }) => {
            return Err(Stop::NotPossible("a store that tells its authority"));
        }
        Err(error) => return broken(format!("authority failed: {error}")),
    };
    let fence = drive.acquired(A, 1).await?;
    ensure(fence.authority == authority, || {
        format!("{fence} at the authority {authority}")
    })
}

async fn each_store_has_an_authority_of_its_own<H: Harness>(harness: &H) -> Checked {
    let drive = Drive::fresh(harness).await;
    let authority = drive.acquired(A, 1).await?.authority;
    let other = drive.another().await?.acquired(A, 1).await?;
    ensure(other.authority != authority, || {
        format!("two stores issue fences as {authority}: make it random with the store")
    })
}

async fn a_restart_keeps_rows_epochs_and_grants<H: Harness>(harness: &H) -> Checked {
    let mut drive = Drive::fresh(harness).await;
    let held = drive.acquired(A, 1).await?;
    let freed = drive.granted("catalog/next", acquire(B, TTL, 2)).await?;
    drive.ask("catalog/next", release(B, freed.epoch)).await?;
    let free_epoch = drive.snapshot("catalog/next").await?.epoch;
    drive.restart().await?;
    let row = drive.row().await?;
    ensure(
        row.held && row.epoch == held.epoch && row.holder.as_deref() == Some(A),
        || format!("granted {held}, after the restart {row:?}"),
    )?;
    drive
        .denied(acquire(B, TTL, 3), DenyReason::HeldByOther)
        .await?;
    drive
        .answered(acquire(A, TTL, 1), TransitionOutcome::Granted(held.clone()))
        .await?;
    drive
        .answered(renew(A, held.epoch), TransitionOutcome::Renewed)
        .await?;
    let again = drive.granted("catalog/next", acquire(A, TTL, 4)).await?;
    ensure(
        again.epoch > free_epoch && again.authority == freed.authority,
        || format!("{again} granted after the restart, it was free at {free_epoch}"),
    )
}
