//! Waiting in the queue of a store, in one process. Time stands still unless a test moves it.

#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "a test that cannot go on fails, and it owns its tasks"
)]

mod support;

use std::time::Duration;

use aster_core::{DenyReason, ErrorKind, ExpectedRevision, LeaseOp, TransitionOutcome};
use aster_lease::{AuditEvent, AuditLog, AuditQuery, CLAIM_TIME, LeaseSerializer, Registers};
use aster_sqlite::{SqliteOptions, SqliteSerializer};
use support::*;

const CLAIM_MS: u64 = CLAIM_TIME.as_millis() as u64;

async fn cancel(store: &SqliteSerializer, candidate: &str, id: aster_core::GrantId) -> Outcome {
    let candidate = principal(candidate);
    let op = LeaseOp::Cancel {
        candidate,
        grant_id: id,
    };
    store.transition("catalog", op).await
}

#[tokio::test]
async fn a_free_resource_is_granted_at_once_and_without_a_claim() {
    let place = Place::new();
    let store = place.open_at(&TestTime::new("boot"));
    let (fence, claim) = granted_after_wait(wait(&store, "catalog", "worker-a", LONG).await);
    assert_eq!((fence.epoch, claim), (1, None));
    assert_eq!(store.queue("catalog").await.unwrap(), []);
}

#[tokio::test]
async fn a_release_hands_over_to_the_first_in_the_same_step() {
    let place = Place::new();
    let store = place.open_at(&TestTime::new("boot"));
    let fence = acquire(&store, "catalog", "worker-a").await;
    let first = waiting(&store, "catalog", "worker-b", 1).await;
    let second = waiting(&store, "catalog", "worker-c", 2).await;
    let queue = store.queue("catalog").await.unwrap();
    let names: Vec<_> = queue
        .iter()
        .map(|waiter| waiter.candidate.as_str())
        .collect();
    assert_eq!(names, ["worker-b", "worker-c"]);
    assert_eq!((queue[1].position, queue[1].ttl.as_millis()), (1, TTL_MS));
    assert!(queue[0].waiting.is_some());

    release(&store, &fence).await.unwrap();
    // One step: free is never seen.
    let row = store.snapshot("catalog").await.unwrap();
    assert_eq!((row.epoch, row.held), (3, true));
    let (theirs, claim) = granted_after_wait(first.await.unwrap());
    assert_eq!((theirs.epoch, theirs.holder.as_str()), (3, "worker-b"));
    assert_eq!(claim, Some(CLAIM_TIME));
    assert!(!second.is_finished());
    assert_renewed(renew(&store, &theirs).await);
    release(&store, &theirs).await.unwrap();
    let (theirs, _) = granted_after_wait(second.await.unwrap());
    assert_eq!((theirs.epoch, theirs.holder.as_str()), (5, "worker-c"));

    let records = store.audit(AuditQuery::default()).await.unwrap();
    let told: Vec<_> = records
        .iter()
        .map(|record| (record.event, record.epoch_current))
        .collect();
    use AuditEvent::{Granted, Released};
    let expected = [
        (Granted, 1),
        (Released, 2),
        (Granted, 3),
        (Released, 4),
        (Granted, 5),
    ];
    assert_eq!(told, expected);
}

#[tokio::test]
async fn revoke_cancel_and_release_with_value_hand_over_too() {
    let place = Place::new();
    let store = place.open_at(&TestTime::new("boot"));
    let fence = acquire(&store, "catalog", "worker-a").await;
    let next = waiting(&store, "catalog", "worker-b", 1).await;
    let outcome = store
        .transition("catalog", revoke_op(fence.epoch, None))
        .await;
    assert!(matches!(outcome, Ok(TransitionOutcome::Revoked)));
    let (fence, _) = granted_after_wait(next.await.unwrap());

    let next = waiting(&store, "catalog", "worker-c", 1).await;
    let any = ExpectedRevision::Any;
    let value = b"v1".to_vec();
    let written = store.release_with_value(&fence, "worker-b", any, value, write_id(1));
    assert_eq!(written.await.unwrap(), 1);
    let (fence, _) = granted_after_wait(next.await.unwrap());
    release(&store, &fence).await.unwrap();

    let id = fresh_grant_id();
    let op = acquire_op("worker-d", TTL_MS, id);
    granted(store.transition("catalog", op).await);
    let next = waiting(&store, "catalog", "worker-e", 1).await;
    let outcome = cancel(&store, "worker-d", id).await;
    assert!(matches!(outcome, Ok(TransitionOutcome::Cancelled)));
    let (fence, _) = granted_after_wait(next.await.unwrap());
    assert_eq!((fence.epoch, fence.holder.as_str()), (9, "worker-e"));
}

#[tokio::test]
async fn an_expired_resource_goes_to_the_first_without_anybody_asking() {
    let place = Place::new();
    let time = TestTime::new("boot");
    let store = place.open_at(&time);
    acquire(&store, "catalog", "worker-a").await;
    let first = waiting(&store, "catalog", "worker-b", 1).await;
    let second = waiting(&store, "catalog", "worker-c", 2).await;
    time.advance_ms(TTL_MS - 1);
    // A look at the row that is not expired yet must not take it.
    tokio::time::sleep(Duration::from_millis(120)).await;
    assert!(!first.is_finished());
    time.advance_ms(1);
    let (fence, _) = granted_after_wait(first.await.unwrap());
    assert_eq!((fence.epoch, fence.holder.as_str()), (2, "worker-b"));
    assert!(!second.is_finished());
}

/// The first waiter's caller is there but does not act: it never renews.
#[tokio::test]
async fn an_unclaimed_grant_costs_a_claim_time_and_a_claimed_one_lasts() {
    let place = Place::new();
    let time = TestTime::new("boot");
    let store = place.open_at(&time);
    let fence = acquire(&store, "catalog", "worker-a").await;
    let first = waiting(&store, "catalog", "worker-b", 1).await;
    let second = waiting(&store, "catalog", "worker-c", 2).await;
    let third = waiting(&store, "catalog", "worker-d", 3).await;
    release(&store, &fence).await.unwrap();
    let (lapsing, _) = granted_after_wait(first.await.unwrap());
    time.advance_ms(CLAIM_MS - 1);
    denied(try_acquire(&store, "catalog", "worker-x").await);
    assert!(!second.is_finished());
    time.advance_ms(1);
    // Expired, and perhaps taken over already.
    denied(renew(&store, &lapsing).await);
    let (claimed, _) = granted_after_wait(second.await.unwrap());
    assert_eq!((claimed.epoch, claimed.holder.as_str()), (4, "worker-c"));
    // Renewed it lasts for its whole ttl.
    time.advance_ms(CLAIM_MS - 1);
    assert_renewed(renew(&store, &claimed).await);
    time.advance_ms(TTL_MS - 1);
    let (reason, _) = denied(try_acquire(&store, "catalog", "worker-x").await);
    assert_eq!(reason, DenyReason::HeldByOther);
    assert!(!third.is_finished());
    time.advance_ms(1);
    granted_after_wait(third.await.unwrap());
}

#[tokio::test]
async fn a_plain_acquire_does_not_overtake() {
    let place = Place::new();
    let time = TestTime::new("boot");
    let store = place.open_at(&time);
    acquire(&store, "catalog", "worker-a").await;
    let first = waiting(&store, "catalog", "worker-b", 1).await;
    time.advance_ms(TTL_MS);
    let (reason, snapshot) = denied(try_acquire(&store, "catalog", "worker-c").await);
    assert_eq!(reason, DenyReason::HeldByOther);
    assert_eq!(snapshot.holder.unwrap().as_str(), "worker-b");
    granted_after_wait(first.await.unwrap());
}

#[tokio::test]
async fn no_time_to_wait_is_no_place_in_the_queue() {
    let place = Place::new();
    let store = place.open_at(&TestTime::new("boot"));
    acquire(&store, "catalog", "worker-a").await;
    let denied = wait(&store, "catalog", "worker-b", Duration::ZERO).await;
    assert_eq!(denied_after_wait(denied).0, DenyReason::WaitRanOut);
    assert_eq!(store.queue("catalog").await.unwrap(), []);
}

#[tokio::test]
async fn a_waiter_whose_time_is_over_leaves_no_ghost() {
    let place = Place::new();
    let time = TestTime::new("boot");
    let store = place.open_at(&time);
    let fence = acquire(&store, "catalog", "worker-a").await;
    let waited = wait(&store, "catalog", "worker-b", Duration::from_millis(300));
    let (waited, ()) = tokio::join!(waited, async {
        until_queued(&store, "catalog", 1).await;
        time.advance_ms(300);
    });
    let (reason, snapshot) = denied_after_wait(waited);
    assert_eq!(reason, DenyReason::WaitRanOut);
    assert_eq!(snapshot.holder.unwrap().as_str(), "worker-a");
    assert_eq!(store.queue("catalog").await.unwrap(), []);
    release(&store, &fence).await.unwrap();
    assert_eq!(acquire(&store, "catalog", "worker-c").await.epoch, 3);
}

/// A process that stands still does not see that its waiter's time is over. Whoever comes next does, and
/// need not wait for a claim time first.
#[tokio::test]
async fn a_waiter_whose_time_is_over_is_passed_over_while_its_process_stands_still() {
    let place = Place::new();
    let time = TestTime::new("boot");
    let ours = place.open_at(&time);
    let still = place.open_at(&TestTime::new("boot"));
    acquire(&ours, "catalog", "worker-a").await;
    let waiter = waiting(&still, "catalog", "worker-b", 1).await;
    time.advance_ms(u64::try_from(LONG.as_millis()).unwrap());
    let fence = acquire(&ours, "catalog", "worker-c").await;
    assert_eq!((fence.epoch, fence.holder.as_str()), (2, "worker-c"));
    waiter.abort();
}

#[tokio::test]
async fn a_dropped_wait_leaves_the_queue_and_gives_back_a_grant_that_it_did_not_see() {
    let place = Place::new();
    let store = place.open_at(&TestTime::new("boot"));
    for is_queued in [false, true] {
        let fence = acquire(&store, "catalog", "worker-a").await;
        let mut waits = Box::pin(wait(&store, "catalog", "worker-b", LONG));
        assert!(poll_once(&mut waits).await.is_none());
        if is_queued {
            until_queued(&store, "catalog", 1).await;
        }
        drop(waits);
        until_queued(&store, "catalog", 0).await;
        release(&store, &fence).await.unwrap();
        // Not held by a ghost.
        let fence = acquire(&store, "catalog", "worker-c").await;
        release(&store, &fence).await.unwrap();
    }
    // Granted and never polled again: it is given back, not left to lapse.
    let fence = acquire(&store, "catalog", "worker-a").await;
    let mut unseen = Box::pin(wait(&store, "catalog", "worker-b", LONG));
    assert!(poll_once(&mut unseen).await.is_none());
    until_queued(&store, "catalog", 1).await;
    release(&store, &fence).await.unwrap();
    let row = store.snapshot("catalog").await.unwrap();
    assert_eq!(row.holder.unwrap().as_str(), "worker-b");
    let next = waiting(&store, "catalog", "worker-c", 1).await;
    drop(unseen);
    let (fence, _) = granted_after_wait(next.await.unwrap());
    assert_eq!(fence.holder.as_str(), "worker-c");
}

#[tokio::test]
async fn asking_again_under_the_same_grant_id_keeps_the_place_and_tells_the_earlier_call() {
    let place = Place::new();
    let store = place.open_at(&TestTime::new("boot"));
    let fence = acquire(&store, "catalog", "worker-a").await;
    let id = fresh_grant_id();
    let ask = || {
        let store = store.clone();
        let request = wait_request("worker-b", TTL_MS, id, LONG);
        tokio::spawn(async move { store.acquire_wait("catalog", request).await })
    };
    let earlier = ask();
    until_queued(&store, "catalog", 1).await;
    let behind = waiting(&store, "catalog", "worker-c", 2).await;
    let later = ask();
    let error = earlier.await.unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Retry, "{error}");
    assert_eq!(store.queue("catalog").await.unwrap().len(), 2);
    release(&store, &fence).await.unwrap();
    let (fence, _) = granted_after_wait(later.await.unwrap());
    assert_eq!(fence.holder.as_str(), "worker-b");
    assert!(!behind.is_finished());
    // A late duplicate finds the grant, and claims it by that.
    let request = wait_request("worker-b", TTL_MS, id, LONG);
    let again = store.acquire_wait("catalog", request).await;
    assert_eq!(granted_after_wait(again), (fence, None));
}

/// The earlier call is dropped right after the later one was made: it must not take its place along.
#[tokio::test]
async fn a_call_that_was_replaced_takes_nothing_with_it() {
    let place = Place::new();
    let store = place.open_at(&TestTime::new("boot"));
    let fence = acquire(&store, "catalog", "worker-a").await;
    let id = fresh_grant_id();
    let request = || wait_request("worker-b", TTL_MS, id, LONG);
    for _ in 0..50 {
        let mut earlier = Box::pin(store.acquire_wait("catalog", request()));
        assert!(poll_once(&mut earlier).await.is_none());
        let mut later = Box::pin(store.acquire_wait("catalog", request()));
        assert!(poll_once(&mut later).await.is_none());
        drop(earlier);
        // And the same the other way round: dropped first, asked again at once.
        drop(later);
    }
    let last = store.acquire_wait("catalog", request());
    let (waited, _) = tokio::join!(last, async {
        until_queued(&store, "catalog", 1).await;
        release(&store, &fence).await
    });
    let (fence, _) = granted_after_wait(waited);
    assert_renewed(renew(&store, &fence).await);
    // Nothing that was left behind ends it afterwards.
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_renewed(renew(&store, &fence).await);
}

/// Two calls under one grant id, of which one hears of the grant: the other is dropped and takes nothing
/// along, whichever of the two it is.
#[tokio::test]
async fn a_grant_that_one_of_two_calls_has_seen_is_not_given_back_by_the_other() {
    let place = Place::new();
    let store = place.open_at(&TestTime::new("boot"));
    let mut fence = acquire(&store, "catalog", "worker-a").await;
    for (hears_first, drops_first) in [(true, false), (false, false), (true, true)] {
        let id = fresh_grant_id();
        let request = || wait_request("worker-b", TTL_MS, id, LONG);
        let mut first = Box::pin(store.acquire_wait("catalog", request()));
        assert!(poll_once(&mut first).await.is_none());
        until_queued(&store, "catalog", 1).await;
        // The grant is on its way to the first call when the second one is made.
        release(&store, &fence).await.unwrap();
        let mut second = Box::pin(store.acquire_wait("catalog", request()));
        assert!(poll_once(&mut second).await.is_none());
        let (hears, other) = match hears_first {
            true => (first, second),
            false => (second, first),
        };
        let waited = match drops_first {
            true => {
                drop(other);
                tokio::time::sleep(Duration::from_millis(200)).await;
                hears.await
            }
            false => {
                let waited = hears.await;
                drop(other);
                waited
            }
        };
        (fence, _) = granted_after_wait(waited);
        // Nothing that was left behind ends it afterwards.
        tokio::time::sleep(Duration::from_millis(200)).await;
        assert_renewed(renew(&store, &fence).await);
    }
}

/// The request to leave is on its way already, and waits for the lock, when the same wish asks again.
#[tokio::test]
async fn leaving_that_is_overtaken_by_asking_again_keeps_the_place() {
    let place = Place::new();
    let store = place.open_at(&TestTime::new("boot"));
    let fence = acquire(&store, "catalog", "worker-a").await;
    let id = fresh_grant_id();
    let request = || wait_request("worker-b", TTL_MS, id, LONG);
    let mut earlier = Box::pin(store.acquire_wait("catalog", request()));
    assert!(poll_once(&mut earlier).await.is_none());
    until_queued(&store, "catalog", 1).await;
    let behind = waiting(&store, "catalog", "worker-c", 2).await;
    let outside = rusqlite::Connection::open(&place.path).unwrap();
    outside.execute_batch("BEGIN IMMEDIATE").unwrap();
    drop(earlier);
    // Time to be sent. Where it is not enough, the place is kept all the more.
    tokio::time::sleep(Duration::from_millis(200)).await;
    let mut later = Box::pin(store.acquire_wait("catalog", request()));
    assert!(poll_once(&mut later).await.is_none());
    outside.execute_batch("ROLLBACK").unwrap();
    release(&store, &fence).await.unwrap();
    let (fence, _) = granted_after_wait(later.await);
    assert_eq!((fence.epoch, fence.holder.as_str()), (3, "worker-b"));
    assert!(!behind.is_finished());
}

#[tokio::test]
async fn who_is_held_off_is_told_so_and_the_next_one_is_granted() {
    let place = Place::new();
    let store = place.open_at(&TestTime::new("boot"));
    hold_off(&store, "catalog", "worker-b", 60_000).await;
    let fence = acquire(&store, "catalog", "worker-a").await;
    // At once, although somebody else has it.
    let denied = wait(&store, "catalog", "worker-b", LONG).await;
    assert_eq!(denied_after_wait(denied).0, DenyReason::HeldOff);
    // Held off while it waits.
    let first = waiting(&store, "catalog", "worker-a", 1).await;
    let second = waiting(&store, "catalog", "worker-c", 2).await;
    let revoke = revoke_op(fence.epoch, Some(Duration::from_secs(60)));
    store.transition("catalog", revoke).await.unwrap();
    let (reason, _) = denied_after_wait(first.await.unwrap());
    assert_eq!(reason, DenyReason::HeldOff);
    let (fence, _) = granted_after_wait(second.await.unwrap());
    assert_eq!(fence.holder.as_str(), "worker-c");
}

/// Places that were given up take no room, also while nothing is handed over: each time the queue is
/// filled up again.
#[tokio::test]
async fn waits_that_are_over_leave_room_in_the_queue() {
    let place = Place::new();
    let time = TestTime::new("boot");
    let options = SqliteOptions {
        waiters_max: 2,
        ..options_at(&time)
    };
    let store = SqliteSerializer::open_with(&place.path, options).unwrap();
    acquire(&store, "catalog", "worker-a").await;
    let side = rusqlite::Connection::open(place.side()).unwrap();
    for _ in 0..3 {
        let short = || wait(&store, "catalog", "worker-b", Duration::from_millis(300));
        let (first, second, ()) = tokio::join!(short(), short(), async {
            until_queued(&store, "catalog", 2).await;
            time.advance_ms(300);
        });
        for waited in [first, second] {
            assert_eq!(denied_after_wait(waited).0, DenyReason::WaitRanOut);
        }
        let kept = "SELECT count(*) FROM waiters";
        let kept: i64 = side.query_row(kept, [], |row| row.get(0)).unwrap();
        assert_eq!(kept, 0, "nothing is left in the table");
    }
}

#[tokio::test]
async fn a_full_queue_takes_nobody() {
    let place = Place::new();
    let options = SqliteOptions {
        waiters_max: 2,
        ..options_at(&TestTime::new("boot"))
    };
    let store = SqliteSerializer::open_with(&place.path, options).unwrap();
    acquire(&store, "catalog", "worker-a").await;
    let _first = waiting(&store, "catalog", "worker-b", 1).await;
    let _second = waiting(&store, "catalog", "worker-c", 2).await;
    let error = wait(&store, "catalog", "worker-d", LONG).await.unwrap_err();
    assert!(
        matches!(error, aster_lease::SerializerError::Overloaded { .. }),
        "{error}"
    );
    // Others are not concerned.
    acquire(&store, "other", "worker-d").await;
}

#[tokio::test]
async fn five_hundred_waiters_are_all_served_in_order() {
    const WAITERS: usize = 500;
    let place = Place::new();
    let store = place.open_at(&TestTime::new("boot"));
    let fence = acquire(&store, "catalog", "worker-a").await;
    let (served, mut order) = tokio::sync::mpsc::unbounded_channel();
    let mut tasks = Vec::new();
    for number in 0..WAITERS {
        let (task_store, served) = (store.clone(), served.clone());
        tasks.push(tokio::spawn(async move {
            let name = format!("worker-{number}");
            let waited = wait(&task_store, "catalog", &name, LONG).await;
            let (fence, _) = granted_after_wait(waited);
            assert_renewed(renew(&task_store, &fence).await);
            served.send((number, fence.epoch)).unwrap();
            release(&task_store, &fence).await.unwrap();
        }));
        if number == 0 {
            until_queued(&store, "catalog", 1).await;
        }
        tokio::task::yield_now().await;
    }
    until_queued(&store, "catalog", WAITERS).await;
    let queued = store.queue("catalog").await.unwrap();
    let expected: Vec<usize> = queued
        .iter()
        .map(|waiter| {
            waiter
                .candidate
                .strip_prefix("worker-")
                .unwrap()
                .parse()
                .unwrap()
        })
        .collect();
    release(&store, &fence).await.unwrap();
    for task in tasks {
        task.await.unwrap();
    }
    for (position, number) in expected.into_iter().enumerate() {
        // Each hand-over is one change: free and granted, two epochs.
        let epoch = 3 + 2 * position as u64;
        assert_eq!(order.recv().await, Some((number, epoch)));
    }
    assert_eq!(
        store.snapshot("catalog").await.unwrap().epoch,
        2 + 2 * WAITERS as u64
    );
}

/// The Cancel of a wish that still waits takes its place away, and nobody else's.
#[tokio::test]
async fn a_cancelled_wish_leaves_the_queue() {
    let place = Place::new();
    let store = place.open_at(&TestTime::new("boot"));
    let fence = acquire(&store, "catalog", "worker-a").await;
    let id = fresh_grant_id();
    let request = wait_request("worker-b", TTL_MS, id, LONG);
    let first = {
        let store = store.clone();
        tokio::spawn(async move { store.acquire_wait("catalog", request).await })
    };
    until_queued(&store, "catalog", 1).await;
    let second = waiting(&store, "catalog", "worker-c", 2).await;
    // Somebody else's knowledge of the id is not enough.
    for (candidate, length) in [("worker-c", 2), ("worker-b", 1)] {
        let (reason, _) = denied(cancel(&store, candidate, id).await);
        assert_eq!(reason, DenyReason::HeldByOther, "it never had the row");
        assert_eq!(store.queue("catalog").await.unwrap().len(), length);
    }
    let (reason, _) = denied_after_wait(first.await.unwrap());
    assert_eq!(reason, DenyReason::WaitRanOut);
    release(&store, &fence).await.unwrap();
    granted_after_wait(second.await.unwrap());
}
