//! Processes at the head of a queue that are killed or stopped, and what they cost those behind them.

#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "a test that cannot go on fails, and it owns its tasks"
)]

mod support;

use std::path::Path;
use std::time::{Duration, Instant};

use aster_lease::LeaseSerializer;
use aster_sqlite::{SqliteOptions, SqliteSerializer};
use support::process::{Other, hear, role, store_path, tell};
use support::*;
use tokio::task::JoinHandle;

/// So many processes are killed at the head.
const KILLED: usize = 10;
/// Whoever waits for a claim time waits for longer than this.
const NO_CLAIM_TIME: Duration = Duration::from_secs(60);

fn open_with_claim_time(path: &Path, claim_time: Duration) -> SqliteSerializer {
    let options = SqliteOptions {
        claim_time,
        ..SqliteOptions::default()
    };
    SqliteSerializer::open_with(path, options).unwrap()
}

/// Waits under the name that it is told, and says so. In the parent this test does nothing.
#[test]
fn other_process() {
    if role().is_none() {
        return;
    }
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let store = open_with_claim_time(&store_path(), LONG);
        tell("ready");
        let name = hear().unwrap();
        let length = store.queue("catalog").await.unwrap().len();
        let _waits = waiting(&store, "catalog", &name, length + 1).await;
        tell("queued");
        tokio::task::spawn_blocking(hear).await.unwrap();
    });
}

/// Processes that wait at the head, in this order.
fn start(path: &Path, count: usize) -> Vec<Other> {
    let start = |_| Other::start("other_process", "waiter", path);
    let mut others: Vec<_> = (0..count).map(start).collect();
    others.iter_mut().for_each(|other| other.expect("ready"));
    others
}

fn queue_up(others: &mut [Other]) {
    for (number, other) in others.iter_mut().enumerate() {
        assert_eq!(other.ask(&format!("worker-{number}")), "queued");
    }
}

fn sockets(place: &Place) -> usize {
    let names = std::fs::read_dir(place.directory.path()).unwrap();
    let names = names.map(|name| name.unwrap().file_name().into_string().unwrap());
    names
        .filter_map(|name| Some(name.strip_prefix("leases.db-aster-")?.len()))
        .filter(|digits| *digits == 16)
        .count()
}

async fn until_sockets(place: &Place, count: usize) {
    while sockets(place) != count {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// Kills them, so that their sockets stay behind.
async fn kill(place: &Place, others: Vec<Other>) {
    while sockets(place) < others.len() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    others.into_iter().for_each(Other::kill);
}

async fn granted_without_claim_time(live: JoinHandle<Waited>) -> u64 {
    let waited = tokio::time::timeout(NO_CLAIM_TIME, live).await;
    assert!(waited.is_ok(), "nobody waits for a claim time");
    granted_after_wait(waited.unwrap().unwrap()).0.epoch
}

#[tokio::test]
async fn the_dead_do_not_come_back_when_another_process_waits() {
    let place = Place::new();
    let store = open_with_claim_time(&place.path, LONG);
    let mut others = start(&place.path, KILLED);
    let fence = acquire(&store, "catalog", "a").await;
    queue_up(&mut others);
    kill(&place, others).await;
    let live = open_with_claim_time(&place.path, LONG);
    let waits = waiting_somewhere(&live, "live").await;
    // Whoever waits removes the sockets of the dead, and their places with them.
    until_sockets(&place, 1).await;
    let queue = live.queue("catalog").await.unwrap();
    assert_eq!(queue.len(), 1, "{queue:?}");
    release(&store, &fence).await.unwrap();
    assert_eq!(
        granted_without_claim_time(waits).await,
        3,
        "at once, and nobody else was granted in between"
    );
}

#[tokio::test]
async fn the_dead_do_not_come_back_when_another_process_watches() {
    let place = Place::new();
    let store = open_with_claim_time(&place.path, LONG);
    let mut others = start(&place.path, KILLED);
    acquire(&store, "catalog", "a").await;
    queue_up(&mut others);
    kill(&place, others).await;
    let watching = open_with_claim_time(&place.path, LONG);
    let _watch = watching.watch("other").await.unwrap();
    until_sockets(&place, 1).await;
    let queue = store.queue("catalog").await.unwrap();
    assert!(queue.is_empty(), "{queue:?}");
}

/// The one behind them saw them alive when it came, and nobody else is left to notice the expiry.
#[tokio::test]
async fn the_dead_cost_nothing_at_an_expiry() {
    let place = Place::new();
    let mut others = start(&place.path, KILLED);
    let store = open_with_claim_time(&place.path, LONG);
    granted(
        store
            .transition("catalog", acquire_op("a", 6_000, fresh_grant_id()))
            .await,
    );
    queue_up(&mut others);
    let waits = waiting_somewhere(&store, "live").await;
    until_sockets(&place, KILLED + 1).await;
    kill(&place, others).await;
    assert_eq!(granted_without_claim_time(waits).await, 2);
}

#[tokio::test]
async fn each_stopped_head_costs_one_claim_time() {
    const STOPPED: u32 = 4;
    let claim_time = Duration::from_secs(1);
    let place = Place::new();
    let store = open_with_claim_time(&place.path, claim_time);
    let mut others = start(&place.path, STOPPED as usize);
    let fence = acquire(&store, "catalog", "a").await;
    queue_up(&mut others);
    let waits = waiting_somewhere(&store, "live").await;
    others.iter().for_each(|other| other.signal("STOP"));
    let begun = Instant::now();
    release(&store, &fence).await.unwrap();
    let (fence, _) = granted_after_wait(waits.await.unwrap());
    assert_eq!(fence.epoch, 3 + u64::from(STOPPED), "each was granted once");
    // One claim time each, and three quarters of one at the first expiry. What is left is for a busy
    // machine; with the steps of each expiry it would be ten.
    let took = begun.elapsed();
    assert!(took >= claim_time * STOPPED, "{took:?}");
    assert!(took < claim_time * 2 * STOPPED, "{took:?}");
}

/// Waits for `catalog`, behind whoever is there already.
async fn waiting_somewhere(store: &SqliteSerializer, name: &str) -> JoinHandle<Waited> {
    let task = {
        let (store, name) = (store.clone(), name.to_owned());
        tokio::spawn(async move { wait(&store, "catalog", &name, LONG).await })
    };
    let is_there = |queue: Vec<aster_lease::Waiter>| {
        queue.iter().any(|waiter| waiter.candidate.as_str() == name)
    };
    while !is_there(store.queue("catalog").await.unwrap()) {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    task
}
