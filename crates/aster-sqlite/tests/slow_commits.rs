//! Hand-overs on a disk that takes longer for a commit than anybody may take for a claim.

#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "a test that cannot go on fails, and it owns its tasks"
)]

mod support;

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use aster_core::DenyReason;
use aster_lease::{CLAIM_TIME, LeaseSerializer};
use aster_sqlite::{ClockDomain, SqliteOptions, SqliteSerializer, StoreTime};
use support::*;

const SLOW_MS: u64 = 5_000;

/// A clock that moves on by [`SLOW_MS`] in the midst of every commit while the disk is slow: as soon as its
/// frames are in the log, and so before anybody can see them.
#[derive(Clone)]
struct SlowCommits {
    time: TestTime,
    log: PathBuf,
    log_length: Arc<Mutex<u64>>,
    is_slow: Arc<AtomicBool>,
}

impl SlowCommits {
    fn new(place: &Place) -> Self {
        assert!(u128::from(SLOW_MS) > 2 * CLAIM_TIME.as_millis());
        Self {
            time: TestTime::new("boot"),
            log: PathBuf::from(format!("{}-wal", place.path.display())),
            log_length: Arc::default(),
            is_slow: Arc::new(AtomicBool::new(true)),
        }
    }

    fn open(&self, place: &Place) -> SqliteSerializer {
        let options = SqliteOptions {
            time: Arc::new(self.clone()),
            ..SqliteOptions::default()
        };
        SqliteSerializer::open_with(&place.path, options).unwrap()
    }
}

impl StoreTime for SlowCommits {
    fn domain(&self) -> Option<ClockDomain> {
        self.time.domain()
    }

    fn now_ns(&self) -> u64 {
        let length = std::fs::metadata(&self.log).map_or(0, |log| log.len());
        let mut known = self.log_length.lock().unwrap();
        if length > *known && self.is_slow.load(Ordering::SeqCst) {
            self.time.advance_ms(SLOW_MS);
        }
        *known = length;
        self.time.now_ns()
    }

    fn wall_unix_ms(&self) -> u64 {
        self.time.wall_unix_ms()
    }
}

/// The claim begins when the grant is durable, and not when it was decided.
#[tokio::test]
async fn a_hand_over_whose_commit_takes_longer_than_the_claim_time_is_claimed() {
    let place = Place::new();
    let clock = SlowCommits::new(&place);
    let store = clock.open(&place);
    let other = clock.open(&place);
    let mut fence = acquire(&store, "catalog", "worker-a").await;
    // By turns its waiter is of the same opening of the store and of another one.
    for waits_at in [&store, &other, &store, &other] {
        let next = waiting(waits_at, "catalog", "worker-b", 1).await;
        let before = clock.time.now_ns();
        release(&store, &fence).await.unwrap();
        let claim;
        (fence, claim) = granted_after_wait(next.await.unwrap());
        assert!(clock.time.now_ns() - before >= SLOW_MS * 1_000_000);
        assert!(claim.is_some());
        assert_renewed(renew(waits_at, &fence).await);
    }
}

/// The same where the whole ttl is shorter than the commit.
#[tokio::test]
async fn a_hand_over_whose_commit_takes_longer_than_its_ttl_is_claimed() {
    let place = Place::new();
    let clock = SlowCommits::new(&place);
    let store = clock.open(&place);
    let fence = acquire(&store, "catalog", "worker-a").await;
    let request = wait_request("worker-b", SLOW_MS / 5, fresh_grant_id(), LONG);
    let next = {
        let store = store.clone();
        tokio::spawn(async move { store.acquire_wait("catalog", request).await })
    };
    until_queued(&store, "catalog", 1).await;
    release(&store, &fence).await.unwrap();
    let (fence, _) = granted_after_wait(next.await.unwrap());
    assert_renewed(renew(&store, &fence).await);
}

/// Also the first slow commit takes nothing of the claim, and none after it adds to it.
#[tokio::test]
async fn a_claim_begins_when_it_is_durable_whatever_the_last_commit_took() {
    let place = Place::new();
    let clock = SlowCommits::new(&place);
    clock.is_slow.store(false, Ordering::SeqCst);
    let store = clock.open(&place);
    for is_slow in [true, false, true] {
        let fence = acquire(&store, "catalog", "worker-a").await;
        let next = waiting(&store, "catalog", "worker-b", 1).await;
        clock.is_slow.store(is_slow, Ordering::SeqCst);
        release(&store, &fence).await.unwrap();
        // How that wait ends is the business of the other tests.
        drop(next.await.unwrap());
        let snapshot = store.snapshot("catalog").await.unwrap();
        assert_eq!(snapshot.remaining, Some(CLAIM_TIME), "slow: {is_slow}");
        clock
            .time
            .advance_ms(u64::try_from(CLAIM_TIME.as_millis()).unwrap() - 1);
        let (reason, _) = denied(try_acquire(&store, "catalog", "worker-c").await);
        assert_eq!(reason, DenyReason::HeldByOther);
        clock.time.advance_ms(1);
        let fence = acquire(&store, "catalog", "worker-c").await;
        release(&store, &fence).await.unwrap();
    }
}

/// A claim that began anew is as short as any other: a dead waiter costs no more.
#[tokio::test]
async fn control_a_claim_lapses_when_the_time_passes_after_the_commit() {
    let place = Place::new();
    let clock = SlowCommits::new(&place);
    let store = clock.open(&place);
    let fence = acquire(&store, "catalog", "worker-a").await;
    let next = waiting(&store, "catalog", "worker-b", 1).await;
    release(&store, &fence).await.unwrap();
    let (fence, claim) = granted_after_wait(next.await.unwrap());
    let claim_ms = u64::try_from(claim.unwrap().as_millis()).unwrap();
    assert!(Duration::from_millis(claim_ms) <= CLAIM_TIME);
    clock.time.advance_ms(claim_ms);
    let (reason, _) = denied(renew(&store, &fence).await);
    assert_eq!(reason, DenyReason::Expired);
    let fence = acquire(&store, "catalog", "worker-c").await;
    assert_eq!(fence.holder.as_str(), "worker-c");
}
