//! A lease is never held for less than its ttl after its last acknowledged grant or renewal: many
//! workers, four openings on three clocks, and a side file that is lost again and again.

#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    clippy::print_stderr,
    reason = "a test that cannot go on fails, and it owns its threads"
)]

mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use aster_core::{ErrorKind, TransitionOutcome};
use aster_sqlite::{SqliteSerializer, StoreTime};
use support::*;

const WORKERS: u64 = 12;
const ROUNDS: usize = 250;
const RESOURCES: u64 = 3;
const SIDE_FILES_LOST: usize = 100;

/// What the workers saw, with the time before a call for what it acknowledged, and the time after it
/// for a grant.
#[derive(Default)]
struct History {
    acknowledged: Vec<(u64, u64, u64)>,
    granted: BTreeMap<(u64, u64), u64>,
    given_up: BTreeSet<(u64, u64)>,
}

/// A small generator, so that a seed decides what a worker does.
struct Dice(u64);

impl Dice {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
}

struct Worker {
    name: String,
    stores: Vec<SqliteSerializer>,
    time: TestTime,
    history: Arc<Mutex<History>>,
    dice: Dice,
}

impl Worker {
    fn store(&mut self) -> SqliteSerializer {
        let index = self.dice.below(self.stores.len() as u64);
        self.stores[usize::try_from(index).unwrap()].clone()
    }

    async fn work(mut self) {
        for _ in 0..ROUNDS {
            let number = self.dice.below(RESOURCES);
            let resource = format!("resource/{number}");
            let begun = self.time.now_ns();
            let store = self.store();
            let outcome = try_acquire(&store, &resource, &self.name).await;
            let ended = self.time.now_ns();
            self.time.advance_ms(self.dice.below(TTL_MS / 20));
            let fence = match outcome {
                Ok(TransitionOutcome::Granted(fence)) => fence,
                Ok(TransitionOutcome::Denied(..)) => continue,
                Ok(other) => panic!("{other:?}"),
                Err(error) if error.kind() == ErrorKind::Retry => continue,
                Err(error) => panic!("{error}"),
            };
            {
                let mut history = self.history.lock().unwrap();
                let doubled = history.granted.insert((number, fence.epoch), ended);
                assert!(doubled.is_none(), "{fence} was granted twice");
                history.acknowledged.push((number, fence.epoch, begun));
            }
            for _ in 0..self.dice.below(8) {
                self.time.advance_ms(self.dice.below(TTL_MS / 10));
                let begun = self.time.now_ns();
                let store = self.store();
                match renew(&store, &fence).await {
                    Ok(TransitionOutcome::Renewed) => {
                        let mut history = self.history.lock().unwrap();
                        history.acknowledged.push((number, fence.epoch, begun));
                    }
                    Ok(TransitionOutcome::Denied(..)) => break,
                    Ok(other) => panic!("{other:?}"),
                    Err(error) => assert_eq!(error.kind(), ErrorKind::Retry, "{error}"),
                }
            }
            // Some give it up, the others are never heard of again.
            if self.dice.below(3) == 0 {
                self.history
                    .lock()
                    .unwrap()
                    .given_up
                    .insert((number, fence.epoch));
                let store = self.store();
                if let Err(error) = release(&store, &fence).await {
                    assert_eq!(error.kind(), ErrorKind::Retry, "{error}");
                }
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_takeover_comes_never_before_the_ttl_of_the_last_acknowledged_renewal() {
    let place = Place::new();
    let time = TestTime::new("boot/0 0");
    let a_day = Duration::from_secs(86_400);
    let stores = vec![
        place.open_at(&time),
        place.open_at(&time),
        place.open_at(&time.as_clock(Some("boot/86400 0"), a_day)),
        place.open_at(&time.as_clock(None, 2 * a_day)),
    ];
    let history = Arc::new(Mutex::new(History::default()));
    let workers: Vec<_> = (0..WORKERS)
        .map(|number| {
            let worker = Worker {
                name: format!("worker-{number}"),
                stores: stores.clone(),
                time: time.clone(),
                history: history.clone(),
                dice: Dice(number + 1),
            };
            tokio::spawn(worker.work())
        })
        .collect();
    // Loses the side file at moments spread over the run, as the number of grants grows.
    let mut lost = 0;
    while !workers.iter().all(|worker| worker.is_finished()) {
        let grants = history.lock().unwrap().granted.len();
        if lost < SIDE_FILES_LOST && grants > 3 * (lost + 1) {
            lost += 1;
            // Somebody with a clock of its own looks in, and others come back.
            let _ = try_open_at(
                &place.path,
                &time.as_clock(Some(&format!("boot {lost}/0")), a_day),
            );
            for suffix in ["", "-wal", "-shm"] {
                let _ = std::fs::remove_file(format!("{}{suffix}", place.side().display()));
            }
        }
        tokio::task::yield_now().await;
    }
    for worker in workers {
        worker.await.unwrap();
    }

    let history = history.lock().unwrap();
    let ttl_ns = TTL_MS * 1_000_000;
    let mut takeovers = 0;
    for (&(number, epoch), &ended) in &history.granted {
        let before = history
            .granted
            .range((number, 0)..(number, epoch))
            .next_back();
        let Some((&(_, ended_epoch), _)) = before else {
            continue;
        };
        if history.given_up.contains(&(number, ended_epoch)) {
            continue;
        }
        takeovers += 1;
        for &(of, at_epoch, begun) in &history.acknowledged {
            if (of, at_epoch) == (number, ended_epoch) {
                assert!(
                    ended >= begun + ttl_ns,
                    "resource/{number}: epoch {ended_epoch} was acknowledged at {begun} and taken \
                     over by {epoch} at {ended}, {} ms early",
                    (begun + ttl_ns - ended) / 1_000_000
                );
            }
        }
    }
    eprintln!(
        "{} grants, {takeovers} takeovers, {} acknowledgements, {lost} side files lost",
        history.granted.len(),
        history.acknowledged.len()
    );
    assert!(takeovers > 5, "only {takeovers} takeovers");
    assert!(lost > 2, "only {lost} side files were lost");
}
