//! The queue of a store across processes that are killed, stopped and slow.

#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "a test that cannot go on fails, and it owns its tasks"
)]

mod support;

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use aster_core::{Fence, TransitionOutcome};
use aster_lease::{
    AcquireOutcome, CLAIM_TIME, LeaseHandle, LeaseOptions, LeaseSerializer, WaitOutcome,
};
use aster_sqlite::{SqliteOptions, SqliteSerializer};
use support::process::{Other, hear, role, store_path, tell};
use support::*;

/// Half a ttl: much more than a hand-over or a claim time takes on a busy machine.
const NOT_A_TTL: Duration = Duration::from_millis(TTL_MS / 2);

/// Nothing depends on how soon a grant is claimed: what happens has no claim time to wait for.
fn open_patiently(path: &Path) -> SqliteSerializer {
    let options = SqliteOptions {
        claim_time: LONG,
        ..SqliteOptions::default()
    };
    SqliteSerializer::open_with(path, options).unwrap()
}

/// What the other process does in its role; in the parent this test does nothing.
#[test]
fn other_process() {
    let Some(role) = role() else { return };
    let runtime = tokio::runtime::Runtime::new().unwrap();
    match role.as_str() {
        "waiter" => runtime.block_on(waiter(open_patiently(&store_path()))),
        "hasty waiter" => runtime.block_on(waiter(SqliteSerializer::open(store_path()).unwrap())),
        "contender" => runtime.block_on(contender()),
        other => panic!("no role {other}"),
    }
}

/// Obeys `wait NAME`, `renew NAME`, `release NAME`, `acquire NAME`; tells `queued`, and later what
/// became of a wait.
async fn waiter(store: SqliteSerializer) {
    let fences: Arc<Mutex<HashMap<String, Fence>>> = Arc::default();
    tell("ready");
    while let Some(line) = tokio::task::spawn_blocking(hear).await.unwrap() {
        let (verb, name) = line.split_once(' ').unwrap();
        let name = name.to_owned();
        let fence = fences.lock().unwrap().get(&name).cloned();
        match verb {
            "wait" => {
                let length = store.queue("catalog").await.unwrap().len();
                let (task_store, fences) = (store.clone(), fences.clone());
                tokio::spawn(async move {
                    let waited = wait(&task_store, "catalog", &name, LONG).await;
                    tell(&match waited {
                        Ok(WaitOutcome::Granted { fence, .. }) => {
                            let epoch = fence.epoch;
                            fences.lock().unwrap().insert(name.clone(), fence);
                            format!("granted {name} {epoch}")
                        }
                        Ok(WaitOutcome::Denied(reason, _)) => format!("{reason:?} {name}"),
                        other => format!("{other:?}"),
                    });
                });
                until_queued(&store, "catalog", length + 1).await;
                tell("queued");
            }
            // With the holder's engine: it claims its grants, and queues again when one has lapsed.
            "lead" => {
                let length = store.queue("catalog").await.unwrap().len();
                let store: Arc<dyn LeaseSerializer> = Arc::new(store.clone());
                let watched = store.clone();
                tokio::spawn(async move {
                    let options = LeaseOptions::default();
                    let led = LeaseHandle::acquire_wait(store, "catalog", &name, options, LONG);
                    let AcquireOutcome::Granted(lease) = led.await.unwrap() else {
                        panic!("not granted")
                    };
                    tell(&format!("leads {name} {}", lease.epoch()));
                    // Held until this process ends.
                    lease.lost().await;
                });
                while watched.queue("catalog").await.unwrap().len() == length {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
                tell("queued");
            }
            "acquire" => {
                let fence = acquire(&store, "catalog", &name).await;
                let epoch = fence.epoch;
                fences.lock().unwrap().insert(name.clone(), fence);
                tell(&format!("granted {name} {epoch}"));
            }
            "renew" => tell(&match renew(&store, &fence.unwrap()).await.unwrap() {
                TransitionOutcome::Denied(reason, _) => format!("{reason:?}"),
                other => format!("{other:?}"),
            }),
            "release" => {
                let outcome = release(&store, &fence.unwrap()).await.unwrap();
                tell(&format!("{outcome:?}"));
            }
            other => panic!("no verb {other}"),
        }
    }
}

fn start(role: &str, path: &Path) -> Other {
    let mut other = Other::start("other_process", role, path);
    other.expect("ready");
    other
}

fn queue_up(other: &mut Other, name: &str) {
    assert_eq!(other.ask(&format!("wait {name}")), "queued");
}

/// The names of socket files beside the store.
fn sockets(place: &Place) -> Vec<String> {
    let names = std::fs::read_dir(place.directory.path()).unwrap();
    names
        .map(|name| name.unwrap().file_name().into_string().unwrap())
        .filter(|name| {
            name.starts_with("leases.db-aster-")
                && !name.ends_with("-wal")
                && !name.ends_with("-shm")
        })
        .collect()
}

#[tokio::test]
async fn first_come_first_served_across_processes_and_at_once() {
    let place = Place::new();
    let store = open_patiently(&place.path);
    let mut other = start("waiter", &place.path);
    let fence = acquire(&store, "catalog", "a").await;
    queue_up(&mut other, "b");
    let c = waiting(&store, "catalog", "c", 2).await;
    queue_up(&mut other, "d");
    let e = waiting(&store, "catalog", "e", 4).await;

    // Released here, granted there.
    let begun = Instant::now();
    release(&store, &fence).await.unwrap();
    other.expect("granted b 3");
    assert!(begun.elapsed() < NOT_A_TTL, "{:?}", begun.elapsed());
    assert_eq!(other.ask("renew b"), "Renewed");
    assert!(!c.is_finished());
    // Released there, granted here.
    let begun = Instant::now();
    assert_eq!(other.ask("release b"), "Released");
    let (fence, _) = granted_after_wait(c.await.unwrap());
    assert!(begun.elapsed() < NOT_A_TTL, "{:?}", begun.elapsed());
    assert_eq!((fence.epoch, fence.holder.as_str()), (5, "c"));
    assert_renewed(renew(&store, &fence).await);
    // Revoked here, granted there.
    let revoke = revoke_op(fence.epoch, None);
    store.transition("catalog", revoke).await.unwrap();
    other.expect("granted d 7");
    assert_eq!(other.ask("release d"), "Released");
    granted_after_wait(e.await.unwrap());
    other.finish();
    // Whoever leaves takes its socket along.
    assert_eq!(sockets(&place).len(), 1);
    drop(store);
    assert_eq!(sockets(&place), [""; 0]);
}

/// The holder is gone; its lease runs out with nobody but waiters to notice.
#[tokio::test]
async fn an_expiry_is_noticed_by_the_process_whose_turn_it_is() {
    let place = Place::new();
    let mut other = start("waiter", &place.path);
    let store = open_patiently(&place.path);
    let holder = acquire_op("a", 600, fresh_grant_id());
    granted(store.transition("catalog", holder).await);
    queue_up(&mut other, "b");
    let c = waiting(&store, "catalog", "c", 2).await;
    other.expect("granted b 2");
    assert!(!c.is_finished());
    assert_eq!(other.ask("release b"), "Released");
    granted_after_wait(c.await.unwrap());
    other.finish();
}

#[tokio::test]
async fn a_killed_head_is_passed_over_at_once() {
    let place = Place::new();
    let store = open_patiently(&place.path);
    let mut other = start("waiter", &place.path);
    let fence = acquire(&store, "catalog", "a").await;
    queue_up(&mut other, "b");
    queue_up(&mut other, "c");
    while sockets(&place).len() != 1 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let d = waiting(&store, "catalog", "d", 3).await;
    other.kill();
    let begun = Instant::now();
    release(&store, &fence).await.unwrap();
    let (fence, _) = granted_after_wait(d.await.unwrap());
    // Nobody was granted in between: its socket says that it is dead.
    assert_eq!(fence.epoch, 3);
    assert!(begun.elapsed() < NOT_A_TTL, "{:?}", begun.elapsed());
    // Its socket is removed right after.
    while sockets(&place).len() != 1 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// Who waited there and was killed does not keep others out of a queue that is bounded.
#[tokio::test]
async fn the_dead_do_not_fill_a_queue() {
    let place = Place::new();
    let options = SqliteOptions {
        waiters_max: 2,
        ..SqliteOptions::default()
    };
    let store = SqliteSerializer::open_with(&place.path, options).unwrap();
    let mut other = start("waiter", &place.path);
    let fence = acquire(&store, "catalog", "a").await;
    queue_up(&mut other, "b");
    queue_up(&mut other, "c");
    while sockets(&place).len() != 1 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let full = wait(&store, "catalog", "d", LONG).await.unwrap_err();
    assert_eq!(full.kind(), aster_core::ErrorKind::Retry, "{full}");
    other.kill();
    let d = {
        let store = store.clone();
        tokio::spawn(async move { wait(&store, "catalog", "d", LONG).await })
    };
    while store.queue("catalog").await.unwrap().len() != 1 {
        assert!(!d.is_finished(), "{:?}", d.await);
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    release(&store, &fence).await.unwrap();
    granted_after_wait(d.await.unwrap());
}

/// Granted, and killed before it could renew.
#[tokio::test]
async fn a_waiter_that_is_killed_with_its_grant_costs_a_claim_time() {
    let place = Place::new();
    let store = place.open();
    let mut other = start("hasty waiter", &place.path);
    let fence = acquire(&store, "catalog", "a").await;
    queue_up(&mut other, "b");
    let c = waiting(&store, "catalog", "c", 2).await;
    release(&store, &fence).await.unwrap();
    other.expect("granted b 3");
    other.kill();
    let begun = Instant::now();
    let (fence, _) = granted_after_wait(c.await.unwrap());
    assert_eq!(fence.epoch, 4);
    // Not a ttl.
    assert!(begun.elapsed() < NOT_A_TTL, "{:?}", begun.elapsed());
}

/// A process that is stopped costs a claim time. When it goes on it hears that its turn has passed.
#[tokio::test]
async fn a_stopped_head_is_passed_over_after_a_claim_time_and_told_so_later() {
    let place = Place::new();
    let store = place.open();
    let mut other = start("hasty waiter", &place.path);
    let fence = acquire(&store, "catalog", "a").await;
    queue_up(&mut other, "b");
    let c = waiting(&store, "catalog", "c", 2).await;
    other.signal("STOP");
    let begun = Instant::now();
    release(&store, &fence).await.unwrap();
    assert_eq!(
        store
            .snapshot("catalog")
            .await
            .unwrap()
            .holder
            .unwrap()
            .as_str(),
        "b"
    );
    let (fence, _) = granted_after_wait(c.await.unwrap());
    assert_eq!((fence.epoch, fence.holder.as_str()), (4, "c"));
    assert!(begun.elapsed() >= CLAIM_TIME);
    assert!(begun.elapsed() < NOT_A_TTL, "{:?}", begun.elapsed());
    assert_renewed(renew(&store, &fence).await);
    other.signal("CONT");
    other.expect("Expired b");
    // It may ask again.
    queue_up(&mut other, "b");
    release(&store, &fence).await.unwrap();
    other.expect("granted b 6");
    other.finish();
}

/// The same with the holder's engine, which queues again by itself.
#[tokio::test]
async fn a_stopped_engine_queues_again_when_it_goes_on() {
    let place = Place::new();
    let store = place.open();
    let mut other = start("hasty waiter", &place.path);
    let fence = acquire(&store, "catalog", "a").await;
    assert_eq!(other.ask("lead b"), "queued");
    let c = waiting(&store, "catalog", "c", 2).await;
    other.signal("STOP");
    release(&store, &fence).await.unwrap();
    let (fence, _) = granted_after_wait(c.await.unwrap());
    assert_eq!((fence.epoch, fence.holder.as_str()), (4, "c"));
    assert_renewed(renew(&store, &fence).await);
    other.signal("CONT");
    until_queued(&store, "catalog", 1).await;
    release(&store, &fence).await.unwrap();
    other.expect("leads b 6");
    other.finish();
}

/// Two processes with fifty acquirers each, all of whom wait.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn two_processes_with_fifty_waiters_each_are_all_served() {
    let place = Place::new();
    let store = open_patiently(&place.path);
    let mut other = Other::start("other_process", "contender", &place.path);
    other.expect("ready");
    other.send("go");
    contend(&store).await;
    other.expect("served");
    other.finish();
    let rows = store.list(aster_lease::ListQuery::default()).await.unwrap();
    assert!(rows.iter().all(|row| !row.held), "{rows:?}");
    // Two epochs a grant: nobody was granted twice, and no grant was lost.
    let epochs: u64 = rows.iter().map(|row| row.epoch).sum();
    assert_eq!(epochs, 2 * 2 * (ACQUIRERS * ROUNDS) as u64);
    assert_eq!(published(&place.path).len(), 2 * ACQUIRERS * ROUNDS);
}

const ACQUIRERS: usize = 50;
const ROUNDS: usize = 4;

async fn contender() {
    let store = open_patiently(&store_path());
    tell("ready");
    hear();
    contend(&store).await;
    tell("served");
}

async fn contend(store: &SqliteSerializer) {
    let tasks: Vec<_> = (0..ACQUIRERS)
        .map(|number| {
            let store = store.clone();
            tokio::spawn(async move {
                let name = format!("worker-{}-{number}", std::process::id());
                for round in 0..ROUNDS {
                    let resource = format!("contended/{}", (number + round) % 3);
                    let waited = wait(&store, &resource, &name, LONG).await;
                    let (fence, claim) = granted_after_wait(waited);
                    if claim.is_some() {
                        assert_renewed(renew(&store, &fence).await);
                    }
                    store
                        .mutate_fenced(&fence, &name, |tx| publish(tx, "x"))
                        .unwrap();
                    let released = release(&store, &fence).await.unwrap();
                    assert_eq!(released, TransitionOutcome::Released);
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
}
