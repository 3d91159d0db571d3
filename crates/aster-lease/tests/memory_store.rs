//! The memory store: bounded memory, epochs that never go back, registers, audit.

#![allow(clippy::expect_used, reason = "helpers of tests may panic")]

mod support;

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use aster_lease::{
    AuditEvent, AuditLog, AuditQuery, ErrorKind, ExpectedRevision, Fence, FenceRejection, GrantId,
    LeaseOp, LeaseSerializer, ListQuery, MemoryOptions, MemorySerializer, RegisterError, Registers,
    SystemEntropy, TransitionOutcome, Ttl, WriteId, entropy, revoke,
};
use support::{DrivenClock, RESOURCE, TTL, acquire_raw, principal, store_at};

fn acquire_op() -> LeaseOp {
    LeaseOp::Acquire {
        candidate: principal("a"),
        ttl: Ttl::new(TTL).expect("whole milliseconds"),
        grant_id: entropy::grant_id(&SystemEntropy).expect("random bytes"),
    }
}

async fn acquire(store: &MemorySerializer, name: &str) -> Fence {
    match store.transition(name, acquire_op()).await {
        Ok(TransitionOutcome::Granted(fence)) => fence,
        other => panic!("{name}: {other:?}"),
    }
}

async fn release(store: &MemorySerializer, fence: &Fence) {
    let op = LeaseOp::Release {
        holder: fence.holder.clone(),
        epoch: fence.epoch,
    };
    let outcome = store.transition(&fence.resource, op).await;
    assert!(
        matches!(outcome, Ok(TransitionOutcome::Released)),
        "{outcome:?}"
    );
}

fn small_store(idle_rows_max: usize) -> MemorySerializer {
    let options = MemoryOptions {
        idle_rows_max,
        ..MemoryOptions::default()
    };
    MemorySerializer::with_options(options).expect("random bytes")
}

#[tokio::test]
async fn a_million_distinct_names_stay_bounded_and_epochs_never_go_back() {
    let store = MemorySerializer::new();
    let early = acquire(&store, "name/0").await;
    release(&store, &early).await;
    for number in 1..1_000_000 {
        let fence = acquire(&store, &format!("name/{number}")).await;
        release(&store, &fence).await;
    }
    let bound = aster_lease::memory::IDLE_ROWS_MAX;
    assert!(
        store.row_count() <= bound + 128,
        "{} rows",
        store.row_count()
    );
    let again = acquire(&store, "name/0").await;
    assert!(
        again.epoch > early.epoch + 1,
        "a dropped name starts above the floor"
    );
    let stale = store.mutate_fenced(&early, "a", || ());
    assert!(
        matches!(stale, Err(FenceRejection::StaleEpoch { .. })),
        "{stale:?}"
    );
}

/// Idle rows are dropped by other threads while the same names are acquired again.
#[test]
fn dropping_idle_rows_never_reuses_an_epoch() {
    let store = small_store(64);
    let highest = Mutex::new(HashMap::<u32, u64>::new());
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .expect("a runtime");
    thread::scope(|scope| {
        for worker in 0..4_u32 {
            let (store, highest, runtime) = (&store, &highest, runtime.handle().clone());
            scope.spawn(move || {
                for round in 0..10_000_u32 {
                    // Half the names are everybody's, half make the others' rows go.
                    let name = if round % 2 == 0 {
                        round % 50
                    } else {
                        1_000 + round * 4 + worker
                    };
                    let text = format!("name/{name}");
                    let granted = runtime.block_on(store.transition(&text, acquire_op()));
                    let Ok(TransitionOutcome::Granted(fence)) = granted else {
                        continue;
                    };
                    let before = highest.lock().expect("no panic").insert(name, fence.epoch);
                    assert!(
                        before < Some(fence.epoch),
                        "{text}: {before:?} then {}",
                        fence.epoch
                    );
                    runtime.block_on(release(store, &fence));
                }
            });
        }
    });
    assert!(store.row_count() <= 64 + 128, "{} rows", store.row_count());
}

#[tokio::test]
async fn rows_with_a_register_and_held_rows_are_never_dropped() {
    let store = small_store(0);
    let with_register = acquire(&store, "register").await;
    store
        .compare_and_set(&with_register, "a", ExpectedRevision::Absent, b"v".to_vec())
        .await
        .expect("written");
    release(&store, &with_register).await;
    let held = acquire(&store, "held").await;
    for number in 0..2_000 {
        let fence = acquire(&store, &format!("name/{number}")).await;
        release(&store, &fence).await;
    }
    assert_eq!(
        store
            .read("register")
            .await
            .expect("read")
            .expect("kept")
            .value,
        b"v"
    );
    assert_eq!(
        store.snapshot("register").await.expect("read").epoch,
        2,
        "its own row, no floor"
    );
    assert_eq!(store.mutate_fenced(&held, "a", || 1), Ok(1));
}

#[tokio::test(start_paused = true)]
async fn old_idle_rows_go_after_the_retention() {
    let store = MemorySerializer::new();
    for number in 0..5_000 {
        let fence = acquire(&store, &format!("name/{number}")).await;
        release(&store, &fence).await;
    }
    assert_eq!(store.row_count(), 5_000, "young ones are remembered");
    tokio::time::sleep(aster_lease::memory::IDLE_RETENTION).await;
    for number in 0..5_000 {
        let fence = acquire(&store, &format!("later/{number}")).await;
        release(&store, &fence).await;
    }
    assert!(store.row_count() < 5_200, "{} rows", store.row_count());
}

#[tokio::test]
async fn every_name_is_kept_apart_from_every_other() {
    let store = MemorySerializer::new();
    let names = [
        "a/b", "a%2Fb", "../a", "A", "a", "a ", "á", "a\u{301}", "a//b", ".",
    ];
    for name in names {
        assert_eq!(acquire(&store, name).await.epoch, 1, "{name:?}");
    }
    let mut sorted = names;
    sorted.sort_unstable();
    let listed = store.list(ListQuery::default()).await.expect("listed");
    assert_eq!(
        listed
            .iter()
            .map(|row| row.resource.as_str())
            .collect::<Vec<_>>(),
        sorted
    );
    let query = ListQuery {
        prefix: "a".to_owned(),
        limit: 2,
        ..ListQuery::default()
    };
    let page = store.list(query.clone()).await.expect("listed");
    assert_eq!(page.len(), 2);
    let after = Some(page[1].resource.clone());
    let next = store
        .list(ListQuery { after, ..query })
        .await
        .expect("listed");
    assert!(next[0].resource > page[1].resource);
    assert!(store.transition("", acquire_op()).await.is_err());
    assert!(store.snapshot("tab\there").await.is_err());
}

#[tokio::test]
async fn a_register_counts_its_writes_and_recognizes_a_retry() {
    let store = MemorySerializer::new();
    let fence = acquire(&store, RESOURCE).await;
    assert_eq!(store.read(RESOURCE).await.expect("read"), None);
    let id = WriteId::from_bytes([1; 16]);
    let write = |value: &str, expected, id| {
        store.compare_and_set_with_id(&fence, "a", expected, value.as_bytes().to_vec(), id)
    };
    assert_eq!(
        write("v1", ExpectedRevision::Absent, id)
            .await
            .expect("written"),
        1
    );
    assert_eq!(
        write("v1", ExpectedRevision::Absent, id)
            .await
            .expect("the same write again"),
        1
    );
    let conflict = write("v2", ExpectedRevision::Absent, WriteId::from_bytes([2; 16])).await;
    assert!(
        matches!(conflict, Err(RegisterError::Conflict { current: Some(1) })),
        "{conflict:?}"
    );
    assert_eq!(
        write("v2", 1.into(), WriteId::from_bytes([3; 16]))
            .await
            .expect("written"),
        2
    );
    let conflict = write("v3", 1.into(), WriteId::from_bytes([4; 16])).await;
    assert!(matches!(
        conflict,
        Err(RegisterError::Conflict { current: Some(2) })
    ));
    assert_eq!(
        write("v3", ExpectedRevision::Any, WriteId::from_bytes([5; 16]))
            .await
            .expect("ok"),
        3
    );
    let value = store.read(RESOURCE).await.expect("read").expect("there");
    assert_eq!(
        (value.value.as_slice(), value.value_revision, value.epoch),
        (&b"v3"[..], 3, 1)
    );
}

#[tokio::test]
async fn a_register_takes_only_the_holders_write_and_survives_the_takeover() {
    let store = MemorySerializer::new();
    let old = acquire(&store, RESOURCE).await;
    store
        .compare_and_set(&old, "a", ExpectedRevision::Any, b"v1".to_vec())
        .await
        .expect("written");
    revoke(&store, RESOURCE, "operator", None)
        .await
        .expect("revoked");
    let new = acquire(&store, RESOURCE).await;
    let late = store
        .compare_and_set(&old, "a", ExpectedRevision::Any, b"late".to_vec())
        .await;
    let stale = FenceRejection::StaleEpoch {
        carried: 1,
        current: 3,
    };
    assert!(
        matches!(late, Err(RegisterError::Rejected(ref it)) if *it == stale),
        "{late:?}"
    );
    let forged = store
        .compare_and_set(&new, "b", ExpectedRevision::Any, b"x".to_vec())
        .await;
    assert!(matches!(
        forged,
        Err(RegisterError::Rejected(FenceRejection::NotHolder))
    ));
    let kept = store.read(RESOURCE).await.expect("read").expect("there");
    assert_eq!(
        (kept.value.as_slice(), kept.value_revision),
        (&b"v1"[..], 1)
    );
    let revision = store
        .compare_and_set(&new, "a", 1.into(), b"v2".to_vec())
        .await;
    assert_eq!(
        revision.expect("written"),
        2,
        "revisions go on across owners"
    );
}

#[tokio::test]
async fn a_value_over_the_bound_is_refused_and_changes_nothing() {
    let store = MemorySerializer::new();
    let fence = acquire(&store, RESOURCE).await;
    let big = vec![0; 1024 * 1024 + 1];
    let error = store
        .compare_and_set(&fence, "a", ExpectedRevision::Any, big)
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::FixCall, "{error}");
    assert_eq!(store.read(RESOURCE).await.expect("read"), None);
    let exact = vec![0; 1024 * 1024];
    store
        .compare_and_set(&fence, "a", ExpectedRevision::Any, exact)
        .await
        .expect("the bound itself");
}

#[tokio::test]
async fn the_audit_tells_the_story_and_a_zombie_does_not_drown_it() {
    let store = MemorySerializer::new();
    let old = acquire(&store, RESOURCE).await;
    revoke(&store, RESOURCE, "operator", None)
        .await
        .expect("revoked");
    let new = acquire(&store, RESOURCE).await;
    for _ in 0..5_000 {
        assert!(store.mutate_fenced(&old, "a", || ()).is_err());
    }
    release(&store, &new).await;
    let records = store.audit(AuditQuery::default()).await.expect("read");
    let told: Vec<_> = records
        .iter()
        .map(|record| (record.event, record.epoch_current))
        .collect();
    assert_eq!(
        told,
        [
            (AuditEvent::Granted, 1),
            (AuditEvent::Revoked, 2),
            (AuditEvent::Granted, 3),
            (AuditEvent::Rejected, 3),
            (AuditEvent::Released, 4),
        ]
    );
    assert_eq!(records[1].actor.as_deref(), Some("operator"));
    let rejected = &records[3];
    assert_eq!((rejected.epoch_carried, rejected.count), (Some(1), 5_000));
    assert_eq!(rejected.detail.as_deref(), Some("stale_epoch"));
    assert!(records.windows(2).all(|pair| pair[0].id < pair[1].id));
    let query = AuditQuery {
        limit: 2,
        after: Some(records[0].id),
        ..AuditQuery::default()
    };
    assert_eq!(store.audit(query).await.expect("read"), records[3..]);
}

#[tokio::test(start_paused = true)]
async fn a_takeover_is_audited_as_one() {
    let store = MemorySerializer::new();
    acquire_raw(&store, "a", 1).await;
    tokio::time::sleep(TTL).await;
    acquire_raw(&store, "b", 2).await;
    let records = store.audit(AuditQuery::default()).await.expect("read");
    assert_eq!(records[1].event, AuditEvent::TakenOver);
    assert_eq!(records[1].holder.as_deref(), Some("b"));
}

#[tokio::test(start_paused = true)]
async fn a_held_off_holder_waits_and_others_do_not() {
    let store = MemorySerializer::new();
    acquire_raw(&store, "a", 1).await;
    aster_lease::revoke_with_hold_off(&store, RESOURCE, "operator", None, TTL * 3)
        .await
        .expect("revoked");
    let told = store.audit(AuditQuery::default()).await.expect("read");
    assert_eq!(told[1].detail.as_deref(), Some("held off for 90s"));
    let denied = acquire_raw(&store, "a", 2).await;
    assert!(matches!(
        denied,
        TransitionOutcome::Denied(aster_lease::DenyReason::HeldOff, _)
    ));
    let TransitionOutcome::Granted(b) = acquire_raw(&store, "b", 3).await else {
        panic!()
    };
    release(&store, &b).await;
    let still = acquire_raw(&store, "a", 4).await;
    assert!(
        matches!(still, TransitionOutcome::Denied(..)),
        "also after another grant: {still:?}"
    );
    tokio::time::sleep(TTL * 3).await;
    assert!(matches!(
        acquire_raw(&store, "a", 5).await,
        TransitionOutcome::Granted(_)
    ));
}

#[tokio::test(start_paused = true)]
async fn several_holders_are_held_off_at_once_each_for_its_own_time() {
    let store = MemorySerializer::new();
    let revoke =
        |hold_off| aster_lease::revoke_with_hold_off(&store, RESOURCE, "operator", None, hold_off);
    assert_granted(&acquire_raw(&store, "a", 1).await);
    revoke(TTL * 3).await.expect("revoked");
    tokio::time::sleep(TTL).await;
    assert_granted(&acquire_raw(&store, "b", 2).await);
    revoke(TTL).await.expect("revoked");
    assert_held_off(&acquire_raw(&store, "a", 3).await);
    assert_held_off(&acquire_raw(&store, "b", 4).await);
    // The later one ends first.
    tokio::time::sleep(TTL).await;
    assert_held_off(&acquire_raw(&store, "a", 5).await);
    assert_granted(&acquire_raw(&store, "b", 6).await);
    aster_lease::revoke(&store, RESOURCE, "operator", None)
        .await
        .expect("revoked");
    // All those changes have not moved the beginning of the first.
    tokio::time::sleep(TTL - Duration::from_millis(1)).await;
    assert_held_off(&acquire_raw(&store, "a", 7).await);
    tokio::time::sleep(Duration::from_millis(1)).await;
    assert_granted(&acquire_raw(&store, "a", 8).await);
}

/// A restart forgets when they began, so each runs its whole time again, and no longer.
#[tokio::test(start_paused = true)]
async fn a_restart_begins_every_hold_off_again() {
    let store = MemorySerializer::new();
    for (holder, grant, hold_off) in [("a", 1, TTL * 2), ("b", 2, TTL)] {
        assert_granted(&acquire_raw(&store, holder, grant).await);
        aster_lease::revoke_with_hold_off(&store, RESOURCE, "operator", None, hold_off)
            .await
            .expect("revoked");
    }
    tokio::time::sleep(TTL / 2).await;
    store.restart();
    tokio::time::sleep(TTL - Duration::from_millis(1)).await;
    assert_held_off(&acquire_raw(&store, "b", 3).await);
    tokio::time::sleep(Duration::from_millis(1)).await;
    let b = acquire_raw(&store, "b", 4).await;
    assert_granted(&b);
    if let TransitionOutcome::Granted(fence) = b {
        release(&store, &fence).await;
    }
    tokio::time::sleep(TTL - Duration::from_millis(1)).await;
    assert_held_off(&acquire_raw(&store, "a", 5).await);
    tokio::time::sleep(Duration::from_millis(1)).await;
    assert_granted(&acquire_raw(&store, "a", 6).await);
}

fn assert_granted(outcome: &TransitionOutcome) {
    assert!(
        matches!(outcome, TransitionOutcome::Granted(_)),
        "{outcome:?}"
    );
}

fn assert_held_off(outcome: &TransitionOutcome) {
    assert!(
        matches!(
            outcome,
            TransitionOutcome::Denied(aster_lease::DenyReason::HeldOff, _)
        ),
        "{outcome:?}"
    );
}

#[tokio::test]
async fn clones_are_one_store_and_two_stores_are_two() {
    let store = MemorySerializer::new();
    let fence = acquire(&store.clone(), RESOURCE).await;
    assert_eq!(
        Arc::new(store.clone()).mutate_fenced(&fence, "a", || 1),
        Ok(1)
    );
    let other = MemorySerializer::new();
    assert_ne!(other.authority().await.ok(), store.authority().await.ok());
    assert_eq!(GrantId::from_bytes([1; 16]).to_string().len(), 32);
}

/// The wall clock jumps either way: nothing expires by it, and nothing is kept by it.
#[tokio::test]
async fn the_wall_clock_decides_nothing() {
    let clock = Arc::new(DrivenClock::default());
    let store = store_at(&clock);
    assert!(matches!(
        acquire_raw(&store, "a", 1).await,
        TransitionOutcome::Granted(_)
    ));
    clock.advance(TTL / 2);
    for wall_ms in [0, 1_700_003_600_000, 1_699_996_400_000, u64::MAX] {
        clock.set_wall_ms(wall_ms);
        let snapshot = store.snapshot(RESOURCE).await.expect("read");
        assert_eq!(snapshot.remaining, Some(TTL / 2), "{wall_ms}");
        let denied = acquire_raw(&store, "b", 2).await;
        assert!(
            matches!(denied, TransitionOutcome::Denied(..)),
            "{wall_ms}: {denied:?}"
        );
    }
    clock.set_wall_ms(0);
    clock.advance(TTL / 2);
    let taken = acquire_raw(&store, "b", 2).await;
    assert!(matches!(taken, TransitionOutcome::Granted(_)), "{taken:?}");
}

#[tokio::test]
async fn a_panic_of_the_authorizer_reaches_its_caller_and_changes_nothing() {
    let store = MemorySerializer::new();
    let fence = acquire(&store, RESOURCE).await;
    store.set_authorizer(|_, resource| match resource {
        "forbidden" => panic!("a bug in the authorizer"),
        _ => true,
    });
    let asking = store.clone();
    let panicked = tokio::runtime::Handle::current()
        .spawn(async move { asking.transition("forbidden", acquire_op()).await.is_ok() })
        .await;
    assert!(panicked.expect_err("it panicked").is_panic());
    assert_eq!(store.snapshot("forbidden").await.expect("read").epoch, 0);
    assert_eq!(store.mutate_fenced(&fence, "a", || 1), Ok(1));
    release(&store, &fence).await;
}
