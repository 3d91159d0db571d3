//! The queue when something is lost: the side file, a boot, a commit, a socket.

#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "a test that cannot go on fails, and it owns its tasks"
)]

mod support;

use std::process::Command;
use std::time::Duration;

use aster_core::{DenyReason, ErrorKind, LeaseOp};
use aster_lease::{CLAIM_TIME, LeaseSerializer, WaitOutcome};
use aster_sqlite::{SqliteOptions, SqliteSerializer};
use support::*;

fn remove_side(place: &Place) {
    for suffix in ["", "-wal", "-shm"] {
        let _ = std::fs::remove_file(format!("{}{suffix}", place.side().display()));
    }
}

fn sockets(place: &Place) -> Vec<std::path::PathBuf> {
    use std::os::unix::fs::FileTypeExt;
    let entries = std::fs::read_dir(place.directory.path()).unwrap();
    let entries = entries.map(|entry| entry.unwrap());
    entries
        .filter(|entry| entry.file_type().unwrap().is_socket())
        .map(|entry| entry.path())
        .collect()
}

/// The queue is lost with the side file. Whoever waited hears so and asks again; nobody is granted
/// twice, and nobody waits for nothing.
#[tokio::test]
async fn a_side_file_that_is_lost_while_callers_wait_makes_them_ask_again() {
    let place = Place::new();
    let store = place.open_at(&TestTime::new("boot"));
    let mut fence = acquire(&store, "catalog", "worker-a").await;
    for round in 0..3 {
        let id = fresh_grant_id();
        let request = wait_request("worker-b", TTL_MS, id, LONG);
        let ask = || {
            let (store, request) = (store.clone(), request.clone());
            tokio::spawn(async move { store.acquire_wait("catalog", request).await })
        };
        let lost = ask();
        until_queued(&store, "catalog", 1).await;
        remove_side(&place);
        // Whatever comes first finds it lost; a release is carried out all the same.
        let released_first = round % 2 == 0;
        if released_first {
            release(&store, &fence).await.unwrap();
        } else {
            // Refused until there is a new side file.
            while renew(&store, &fence).await.is_err() {
                tokio::task::yield_now().await;
            }
        }
        let error = lost.await.unwrap().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Retry, "{error}");
        let again = ask();
        if !released_first {
            until_queued(&store, "catalog", 1).await;
            release(&store, &fence).await.unwrap();
        }
        let before = fence.epoch;
        (fence, _) = granted_after_wait(again.await.unwrap());
        assert_eq!(fence.epoch, before + 2, "round {round}");
        assert_renewed(renew(&store, &fence).await);
    }
}

/// Those who waited before the machine went down wait no more, also if their places are still there.
#[tokio::test]
async fn a_reboot_leaves_no_ghosts_in_the_queue() {
    let place = Place::new();
    let time = TestTime::new("boot 1/0");
    let before = place.open_at(&time);
    acquire(&before, "catalog", "worker-a").await;
    let _ghost = waiting(&before, "catalog", "worker-b", 1).await;
    let rebooted = TestTime::new("boot 2/0");
    let store = place.open_at(&rebooted);
    assert_eq!(store.queue("catalog").await.unwrap(), []);
    let next = waiting(&store, "catalog", "worker-c", 1).await;
    rebooted.advance_ms(TTL_MS);
    let (fence, _) = granted_after_wait(next.await.unwrap());
    assert_eq!((fence.epoch, fence.holder.as_str()), (2, "worker-c"));
}

/// A claim is as volatile as the clock that it was read from: after a reboot the whole ttl counts.
#[tokio::test]
async fn a_reboot_forgets_claims() {
    let place = Place::new();
    let time = TestTime::new("boot 1/0");
    {
        let store = place.open_at(&time);
        let fence = acquire(&store, "catalog", "worker-a").await;
        let next = waiting(&store, "catalog", "worker-b", 1).await;
        release(&store, &fence).await.unwrap();
        granted_after_wait(next.await.unwrap());
    }
    let rebooted = TestTime::new("boot 2/0");
    let store = place.open_at(&rebooted);
    rebooted.advance_ms(TTL_MS - 1);
    let (reason, _) = denied(try_acquire(&store, "catalog", "worker-c").await);
    assert_eq!(reason, DenyReason::HeldByOther);
    rebooted.advance_ms(1);
    acquire(&store, "catalog", "worker-c").await;
}

#[tokio::test]
async fn a_store_that_is_closed_takes_its_waiters_along_and_leaves_the_others_their_places() {
    let place = Place::new();
    let store = place.open_at(&TestTime::new("boot"));
    let fence = acquire(&store, "catalog", "worker-a").await;
    {
        let other = place.open_at(&TestTime::new("boot"));
        let mut leaving = Box::pin(wait(&other, "catalog", "worker-b", LONG));
        assert!(poll_once(&mut leaving).await.is_none());
        until_queued(&store, "catalog", 1).await;
        let stays = waiting(&store, "catalog", "worker-c", 2).await;
        drop(leaving);
        drop(other);
        let queue = store.queue("catalog").await.unwrap();
        assert_eq!(queue.len(), 1);
        assert_eq!(queue[0].candidate.as_str(), "worker-c");
        // Opened again, it sees the same queue, and what it does is seen by those who wait.
        let again = place.open_at(&TestTime::new("boot"));
        release(&again, &fence).await.unwrap();
        let (fence, _) = granted_after_wait(stays.await.unwrap());
        assert_eq!(fence.epoch, 3);
    }
    assert_eq!(sockets(&place).len(), 1);
}

/// The side file has the claim of a grant whose commit in the main file then fails.
#[tokio::test]
async fn a_hand_over_that_is_not_committed_is_told_to_nobody_and_keeps_every_place() {
    let place = Place::new();
    let time = TestTime::new("boot");
    let store = place.open_at(&time);
    let fence = acquire(&store, "catalog", "worker-a").await;
    assert_renewed(renew(&store, &fence).await);
    let first = waiting(&store, "catalog", "worker-b", 1).await;
    let second = waiting(&store, "catalog", "worker-c", 2).await;
    let outside = rusqlite::Connection::open(&place.path).unwrap();
    outside
        .execute_batch(
            "CREATE TRIGGER failing BEFORE UPDATE ON aster_store
             BEGIN SELECT RAISE(ABORT, 'no'); END;",
        )
        .unwrap();
    for _ in 0..3 {
        release(&store, &fence).await.unwrap_err();
    }
    // More than a claim time: what was put down shortens nobody's lease.
    time.advance_ms(2 * CLAIM_TIME.as_millis() as u64);
    outside.execute_batch("DROP TRIGGER failing").unwrap();
    assert_renewed(renew(&store, &fence).await);
    assert!(!first.is_finished() && !second.is_finished());
    assert_eq!(store.queue("catalog").await.unwrap().len(), 2);
    release(&store, &fence).await.unwrap();
    let (fence, claim) = granted_after_wait(first.await.unwrap());
    assert_eq!((fence.epoch, fence.holder.as_str()), (3, "worker-b"));
    assert_eq!(claim, Some(CLAIM_TIME));
    assert!(!second.is_finished());
}

/// Two openings with clocks a day apart: a release hands over between them, an expiry is judged by
/// watching, and a claim of the other clock shortens nothing.
#[tokio::test]
async fn a_queue_across_time_namespaces() {
    let place = Place::new();
    let time = TestTime::new("boot/0 0");
    let here = place.open_at(&time);
    let there = place.open_at(&time.as_clock(Some("boot/86400 0"), Duration::from_secs(86_400)));
    let fence = acquire(&here, "catalog", "worker-a").await;
    let first = waiting(&there, "catalog", "worker-b", 1).await;
    let second = waiting(&here, "catalog", "worker-c", 2).await;
    release(&here, &fence).await.unwrap();
    let (fence, _) = granted_after_wait(first.await.unwrap());
    assert_eq!(fence.holder.as_str(), "worker-b");
    // Granted on the clock of `here`. By that clock it lapses after the claim time.
    assert_renewed(renew(&there, &fence).await);
    time.advance_ms(TTL_MS - 1);
    tokio::time::sleep(Duration::from_millis(120)).await;
    assert!(!second.is_finished());
    // Seen by looking once a second; never before its ttl has been watched.
    let begun = std::time::Instant::now();
    while !second.is_finished() {
        assert!(begun.elapsed() < LONG);
        time.advance_ms(1_000);
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let (fence, _) = granted_after_wait(second.await.unwrap());
    assert_eq!(fence.holder.as_str(), "worker-c");
}

/// Somebody tidies up and removes the socket. It is only a hint.
#[tokio::test]
async fn a_socket_that_was_removed_is_missed_by_nobody_and_comes_back() {
    let place = Place::new();
    let store = place.open_at(&TestTime::new("boot"));
    let other = place.open_at(&TestTime::new("boot"));
    let fence = acquire(&store, "catalog", "worker-a").await;
    let first = waiting(&other, "catalog", "worker-b", 1).await;
    while sockets(&place).is_empty() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    std::fs::remove_file(&sockets(&place)[0]).unwrap();
    let second = waiting(&other, "catalog", "worker-c", 2).await;
    release(&store, &fence).await.unwrap();
    let (fence, _) = granted_after_wait(first.await.unwrap());
    assert_renewed(renew(&store, &fence).await);
    while sockets(&place).is_empty() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    release(&store, &fence).await.unwrap();
    granted_after_wait(second.await.unwrap());
}

/// A name so long that no socket can stand beside it.
#[tokio::test]
async fn without_sockets_the_queue_works_by_looking() {
    let place = Place::new();
    let path = place.directory.path().join("n".repeat(120));
    let store = SqliteSerializer::open(&path).unwrap();
    let other = SqliteSerializer::open(&path).unwrap();
    let fence = acquire(&store, "catalog", "worker-a").await;
    let next = waiting(&other, "catalog", "worker-b", 1).await;
    release(&store, &fence).await.unwrap();
    granted_after_wait(next.await.unwrap());
    assert!(sockets(&place).is_empty());
}

/// A child must not keep our socket alive.
#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_child_process_inherits_no_socket() {
    let place = Place::new();
    let store = place.open_at(&TestTime::new("boot"));
    acquire(&store, "catalog", "worker-a").await;
    let _next = waiting(&store, "catalog", "worker-b", 1).await;
    while sockets(&place).is_empty() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let listed = Command::new("sh")
        .args(["-c", "ls -l /proc/self/fd | sed -n '/ [3-9] ->/p'"])
        .output()
        .unwrap();
    let listed = String::from_utf8(listed.stdout).unwrap();
    assert!(
        !listed.contains("socket:") && !listed.contains("leases"),
        "{listed}"
    );
}

/// The place goes with the side file's commit, and the Cancel fails with the main file's. Whoever waited
/// hears of it all the same, long before its wait is over.
#[tokio::test]
async fn a_cancel_that_fails_halfway_leaves_nobody_waiting_for_nothing() {
    let place = Place::new();
    let time = TestTime::new("boot");
    let options = SqliteOptions {
        claim_time: LONG,
        ..options_at(&time)
    };
    let store = SqliteSerializer::open_with(&place.path, options).unwrap();
    acquire(&store, "catalog", "worker-a").await;
    let id = fresh_grant_id();
    let request = wait_request("worker-b", TTL_MS, id, LONG);
    let cancelled = {
        let store = store.clone();
        tokio::spawn(async move { store.acquire_wait("catalog", request).await })
    };
    until_queued(&store, "catalog", 1).await;
    let second = waiting(&store, "catalog", "worker-c", 2).await;
    let outside = rusqlite::Connection::open(&place.path).unwrap();
    outside
        .execute_batch(
            "CREATE TRIGGER failing BEFORE UPDATE ON aster_store
             BEGIN SELECT RAISE(ABORT, 'no'); END;",
        )
        .unwrap();
    // Expired: whatever comes first has the row to hand over, which cannot be committed.
    time.advance_ms(TTL_MS);
    let cancel = LeaseOp::Cancel {
        candidate: principal("worker-b"),
        grant_id: id,
    };
    store.transition("catalog", cancel).await.unwrap_err();
    outside.execute_batch("DROP TRIGGER failing").unwrap();
    let heard = tokio::time::timeout(LONG / 20, cancelled).await;
    let waited = heard.expect("it hears, and does not wait for nothing");
    match waited.unwrap() {
        // The Cancel was not carried out.
        Ok(WaitOutcome::Granted { fence, .. }) => {
            release(&store, &fence).await.unwrap();
        }
        other => drop(denied_after_wait(other)),
    }
    // A hand-over that failed is tried again once a second.
    let begun = std::time::Instant::now();
    while !second.is_finished() {
        assert!(begun.elapsed() < LONG, "nobody hands over");
        time.advance_ms(1_000);
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    granted_after_wait(second.await.unwrap());
}

/// Nobody else waits, so nothing but the failed attempt itself reminds the store of trying again.
#[tokio::test]
async fn giving_up_a_place_while_the_store_is_busy_is_tried_again() {
    let place = Place::new();
    // So long a name that no socket stands beside it: nothing ever wakes by itself.
    let path = place.directory.path().join("n".repeat(120));
    let options = SqliteOptions {
        busy_bound: Duration::from_millis(50),
        ..SqliteOptions::default()
    };
    let store = SqliteSerializer::open_with(&path, options).unwrap();
    acquire(&store, "catalog", "worker-a").await;
    let mut given_up = Box::pin(wait(&store, "catalog", "worker-b", LONG));
    assert!(poll_once(&mut given_up).await.is_none());
    until_queued(&store, "catalog", 1).await;
    let outside = rusqlite::Connection::open(&path).unwrap();
    outside.execute_batch("BEGIN IMMEDIATE").unwrap();
    drop(given_up);
    // Each of these waits for the whole bound, so the first attempt to leave has failed by then.
    for number in 0..6 {
        let busy = try_acquire(&store, &format!("other/{number}"), "worker-b").await;
        assert_eq!(busy.unwrap_err().kind(), ErrorKind::Retry);
    }
    assert_eq!(store.queue("catalog").await.unwrap().len(), 1, "a control");
    outside.execute_batch("ROLLBACK").unwrap();
    let left = tokio::time::timeout(LONG / 20, until_queued(&store, "catalog", 0)).await;
    assert!(left.is_ok(), "a ghost stays in the queue");
}

/// The side file is never synced, so a power loss may leave the places of those who waited and not the name
/// of their boot. They wait no more all the same.
#[tokio::test]
async fn a_torn_side_file_leaves_no_ghosts_in_the_queue() {
    for is_torn in [true, false] {
        let place = Place::new();
        let fence = {
            let store = place.open_at(&TestTime::new("boot 1/0"));
            acquire(&store, "catalog", "worker-a").await
        };
        let side = rusqlite::Connection::open(place.side()).unwrap();
        for ghost in ["worker-b", "worker-c"] {
            side.execute(
                "INSERT INTO waiters
                 (resource, candidate, ttl_ms, grant_id, process, era, since_ns, until_ns)
                 SELECT 'catalog', ?1, 60000, randomblob(16), randomblob(8), era, 0, 1 << 60 FROM eras",
                [ghost],
            )
            .unwrap();
        }
        if is_torn {
            side.execute("DELETE FROM eras", []).unwrap();
        }
        drop(side);
        let store = place.open_at(&TestTime::new("boot 2/0"));
        assert_eq!(store.queue("catalog").await.unwrap(), [], "{is_torn}");
        release(&store, &fence).await.unwrap();
        let fence = acquire(&store, "catalog", "worker-d").await;
        assert_eq!(fence.epoch, 3, "{is_torn}");
    }
}

/// A clock that cannot be named may be of this boot: whoever waits by it and is alive keeps its place when
/// the first clock of this boot comes that has a name.
#[tokio::test]
async fn who_waits_by_a_clock_without_a_name_keeps_its_place_at_the_first_opening_after_a_reboot() {
    let place = Place::new();
    let time = TestTime::new("boot 2/0");
    let nameless = place.open_at(&time.as_clock(None, Duration::ZERO));
    let fence = acquire(&nameless, "catalog", "worker-a").await;
    let next = waiting(&nameless, "catalog", "worker-b", 1).await;
    // Its socket is there once it was looked at.
    while sockets(&place).is_empty() {
        tokio::task::yield_now().await;
    }
    let store = place.open_at(&time);
    assert_eq!(store.queue("catalog").await.unwrap().len(), 1);
    release(&store, &fence).await.unwrap();
    let (fence, _) = granted_after_wait(next.await.unwrap());
    assert_eq!((fence.epoch, fence.holder.as_str()), (3, "worker-b"));
}
