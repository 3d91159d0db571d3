//! Several processes on one file.

#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "a test that cannot go on fails, and it owns its threads"
)]

mod support;

use std::time::Duration;

use aster_core::{DenyReason, Fence, FenceRejection, TransitionOutcome};
use aster_lease::{FencedError, LeaseSerializer};
use support::process::{Other, hear, role, store_path, tell};
use support::*;

const ACQUIRERS: usize = 50;

/// What the other process does in its role; in the parent this test does nothing.
#[test]
fn other_process() {
    let Some(role) = role() else { return };
    let runtime = tokio::runtime::Runtime::new().unwrap();
    match role.as_str() {
        "worker" => runtime.block_on(worker()),
        "contender" => runtime.block_on(contender()),
        "closure" => closure(&runtime),
        other => panic!("no role {other}"),
    }
}

/// Obeys `acquire`, `renew`, `release`, `publish TEXT`.
async fn worker() {
    let store = aster_sqlite::SqliteSerializer::open(store_path()).unwrap();
    tell("ready");
    let mut fence: Option<Fence> = None;
    while let Some(line) = hear() {
        let (verb, rest) = line.split_once(' ').unwrap_or((&line, ""));
        let answer = match verb {
            "acquire" => match try_acquire(&store, "catalog", "worker-b").await {
                Ok(TransitionOutcome::Granted(granted)) => {
                    let epoch = granted.epoch;
                    fence = Some(granted);
                    format!("granted {epoch}")
                }
                other => format!("{:?}", denied(other).0),
            },
            "renew" => format!(
                "{:?}",
                renew(&store, fence.as_ref().unwrap()).await.unwrap()
            ),
            "release" => format!(
                "{:?}",
                release(&store, fence.as_ref().unwrap()).await.unwrap()
            ),
            "publish" => {
                let fence = fence.as_ref().unwrap();
                match store.mutate_fenced(fence, "worker-b", |tx| publish(tx, rest)) {
                    Ok(()) => "published".to_owned(),
                    Err(FencedError::Rejected(rejection)) => format!("{rejection:?}"),
                    Err(other) => panic!("{other}"),
                }
            }
            other => panic!("no verb {other}"),
        };
        tell(&answer);
    }
}

/// Many acquirers at once; tells how many grants and denials there were, and every other outcome.
async fn contender() {
    let store = aster_sqlite::SqliteSerializer::open(store_path()).unwrap();
    tell("ready");
    hear();
    let (grants, denials) = contend(&store).await;
    tell(&format!("{grants} {denials}"));
}

async fn contend(store: &aster_sqlite::SqliteSerializer) -> (usize, usize) {
    let tasks: Vec<_> = (0..ACQUIRERS)
        .map(|number| {
            let store = store.clone();
            tokio::spawn(async move {
                let name = format!("worker-{}-{number}", std::process::id());
                let (mut grants, mut denials) = (0, 0);
                for round in 0..20 {
                    let resource = format!("contended/{}", round % 3);
                    match try_acquire(&store, &resource, &name).await {
                        Ok(TransitionOutcome::Granted(fence)) => {
                            grants += 1;
                            store
                                .mutate_fenced(&fence, &name, |tx| publish(tx, "x"))
                                .unwrap();
                            release(&store, &fence).await.unwrap();
                        }
                        Ok(TransitionOutcome::Denied(DenyReason::HeldByOther, _)) => denials += 1,
                        other => panic!("neither grant nor denial: {other:?}"),
                    }
                }
                (grants, denials)
            })
        })
        .collect();
    let mut sum = (0, 0);
    for task in tasks {
        let (grants, denials) = task.await.unwrap();
        sum = (sum.0 + grants, sum.1 + denials);
    }
    sum
}

/// Runs one protected closure that lasts until the parent says so.
fn closure(runtime: &tokio::runtime::Runtime) {
    let store = aster_sqlite::SqliteSerializer::open(store_path()).unwrap();
    let fence = runtime.block_on(acquire(&store, "closure", "worker-c"));
    store
        .mutate_fenced(&fence, "worker-c", |tx| {
            publish(tx, "begun")?;
            tell("inside");
            hear();
            publish(tx, "ended")
        })
        .unwrap();
    tell("done");
}

#[tokio::test]
async fn ownership_and_data_are_one_across_processes() {
    let place = Place::new();
    let store = place.open();
    let ours = acquire(&store, "catalog", "worker-a").await;
    store
        .mutate_fenced(&ours, "worker-a", |tx| publish(tx, "v1"))
        .unwrap();

    let mut other = Other::start("other_process", "worker", &place.path);
    other.expect("ready");
    assert_eq!(other.ask("acquire"), "HeldByOther");
    release(&store, &ours).await.unwrap();
    assert_eq!(other.ask("acquire"), "granted 3");
    assert_eq!(other.ask("publish v2"), "published");

    let late = store.mutate_fenced(&ours, "worker-a", |tx| publish(tx, "late"));
    let Err(FencedError::Rejected(rejection)) = late else {
        panic!("{late:?}")
    };
    assert_eq!(
        rejection,
        FenceRejection::StaleEpoch {
            carried: 1,
            current: 3
        }
    );
    assert_eq!(other.ask("renew"), "Renewed");
    assert_eq!(other.ask("release"), "Released");
    assert_eq!(
        other.ask("publish v3"),
        "StaleEpoch { carried: 3, current: 4 }"
    );
    other.finish();
    assert_eq!(published(&place.path), ["v1", "v2"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn two_processes_with_fifty_acquirers_each_see_only_grants_and_denials() {
    let place = Place::new();
    let store = place.open();
    let mut other = Other::start("other_process", "contender", &place.path);
    other.expect("ready");
    other.send("go");
    let (grants, denials) = contend(&store).await;
    let told = other.line();
    let (their_grants, their_denials) = told.split_once(' ').unwrap();
    let their_grants: usize = their_grants.parse().unwrap();
    let their_denials: usize = their_denials.parse().unwrap();
    assert_eq!(grants + denials, ACQUIRERS * 20);
    assert_eq!(their_grants + their_denials, ACQUIRERS * 20);
    assert!(grants > 0 && their_grants > 0);
    other.finish();
    // Each grant wrote once, and each was released: two epochs a grant, none lost or doubled.
    assert_eq!(published(&place.path).len(), grants + their_grants);
    let rows = store.list(aster_lease::ListQuery::default()).await.unwrap();
    let epochs: u64 = rows.iter().map(|row| row.epoch).sum();
    assert_eq!(epochs, 2 * (grants + their_grants) as u64);
}

#[tokio::test]
async fn renewals_go_on_while_a_closure_of_another_process_runs() {
    let place = Place::new();
    let options = aster_sqlite::SqliteOptions {
        busy_bound: Duration::from_millis(50),
        ..aster_sqlite::SqliteOptions::default()
    };
    let store = aster_sqlite::SqliteSerializer::open_with(&place.path, options).unwrap();
    let fence = acquire(&store, "catalog", "worker-a").await;
    let mut other = Other::start("other_process", "closure", &place.path);
    other.expect("inside");
    for _ in 0..100 {
        assert_renewed(renew(&store, &fence).await);
    }
    // What needs the file's write lock waits, within its bound, and is told to try again.
    let error = release(&store, &fence).await.unwrap_err();
    assert_eq!(error.kind(), aster_core::ErrorKind::Retry, "{error}");
    // Many who wait hear of it together, not one after the other.
    let waiting: Vec<_> = (0..40)
        .map(|number| {
            let store = store.clone();
            tokio::spawn(
                async move { try_acquire(&store, &format!("x/{number}"), "worker-a").await },
            )
        })
        .collect();
    let begun = std::time::Instant::now();
    for outcome in waiting {
        let error = outcome.await.unwrap().unwrap_err();
        assert_eq!(error.kind(), aster_core::ErrorKind::Retry, "{error}");
    }
    // One after the other they would take two seconds at least.
    assert!(
        begun.elapsed() < 38 * Duration::from_millis(50),
        "{:?}",
        begun.elapsed()
    );
    // Plain reads and denials need no lock.
    assert!(store.snapshot("catalog").await.unwrap().held);
    // On a busy machine a look alone may take longer than so short a bound: then it is asked again.
    let begun = std::time::Instant::now();
    let denial = loop {
        match try_acquire(&store, "catalog", "worker-b").await {
            Err(error) if error.kind() == aster_core::ErrorKind::Retry => {
                assert!(begun.elapsed() < Duration::from_secs(30), "{error}");
            }
            other => break other,
        }
    };
    denied(denial);
    other.send("end");
    other.expect("done");
    other.finish();
    release(&store, &fence).await.unwrap();
    assert_eq!(published(&place.path), ["begun", "ended"]);
}

#[tokio::test]
async fn a_killed_process_leaves_the_store_usable_and_its_lease_held_for_its_ttl() {
    let place = Place::new();
    let mut other = Other::start("other_process", "closure", &place.path);
    other.expect("inside");
    other.kill();
    let store = place.open();
    // The closure never committed; the lease was granted and stays held.
    assert_eq!(published(&place.path), [""; 0]);
    let (reason, snapshot) = denied(try_acquire(&store, "closure", "worker-a").await);
    assert_eq!(reason, DenyReason::HeldByOther);
    assert!(snapshot.remaining.unwrap() <= Duration::from_millis(TTL_MS));
    acquire(&store, "catalog", "worker-a").await;
}
