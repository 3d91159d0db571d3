//! The memory store's audit trail stays bounded and keeps what matters.
#![allow(clippy::unwrap_used, reason = "helpers of tests may panic")]

mod support;

use std::sync::Arc;

use aster_lease::{
    AuditEvent, AuditLog, AuditQuery, AuditRecord, Authority, Fence, GrantId, LeaseOp,
    LeaseSerializer, MemoryOptions, MemorySerializer, Principal, TransitionOutcome, Ttl,
};
use support::{DrivenClock, store_at};

const RECORDS_MAX: usize = 100;

fn store() -> MemorySerializer {
    MemorySerializer::with_options(MemoryOptions {
        audit_records_max: RECORDS_MAX,
        ..MemoryOptions::default()
    })
    .unwrap()
}

async fn acquire(store: &MemorySerializer, resource: &str, grant: u8) -> Fence {
    let op = LeaseOp::Acquire {
        candidate: Principal::new("a").unwrap(),
        ttl: Ttl::from_millis(30_000).unwrap(),
        grant_id: GrantId::from_bytes([grant; 16]),
    };
    match store.transition(resource, op).await.unwrap() {
        TransitionOutcome::Granted(fence) => fence,
        other => panic!("{other:?}"),
    }
}

async fn release(store: &MemorySerializer, fence: &Fence) {
    let op = LeaseOp::Release {
        holder: fence.holder.clone(),
        epoch: fence.epoch,
    };
    let outcome = store.transition(&fence.resource, op).await.unwrap();
    assert_eq!(outcome, TransitionOutcome::Released);
}

async fn records(store: &MemorySerializer) -> Vec<AuditRecord> {
    store.audit(AuditQuery::default()).await.unwrap()
}

#[tokio::test]
async fn the_newest_records_stay_and_there_are_never_more_than_the_bound() {
    let store = store();
    let mut last = 0;
    for round in 0..1_000_u32 {
        let fence = acquire(&store, "catalog", (round % 251) as u8).await;
        release(&store, &fence).await;
        last = fence.epoch + 1;
    }
    let kept = records(&store).await;
    assert!((RECORDS_MAX / 2..=RECORDS_MAX).contains(&kept.len()));
    assert_eq!(kept.last().unwrap().epoch_current, last);
    assert!(kept.windows(2).all(|pair| pair[0].id + 1 == pair[1].id));
}

#[tokio::test]
async fn a_zombie_with_many_fences_pushes_out_no_change_of_ownership() {
    let store = store();
    let mut stale = Vec::new();
    for round in 0..20 {
        let fence = acquire(&store, &format!("catalog-{round}"), round).await;
        release(&store, &fence).await;
        stale.push(fence);
    }
    let before = records(&store).await;
    for writer in 0..50 {
        for fence in &stale {
            let writer = format!("zombie-{writer}");
            store.mutate_fenced(fence, &writer, || ()).unwrap_err();
        }
    }
    let kept = records(&store).await;
    assert!(kept.len() <= RECORDS_MAX);
    let changes: Vec<_> = kept
        .iter()
        .filter(|record| record.event != AuditEvent::Rejected)
        .cloned()
        .collect();
    assert_eq!(changes, before);
    assert!(kept.len() > before.len(), "the newest rejections are there");
    assert!(kept.windows(2).all(|pair| pair[0].id < pair[1].id));
}

#[tokio::test]
async fn without_room_nothing_is_kept() {
    let store = MemorySerializer::with_options(MemoryOptions {
        audit_records_max: 0,
        ..MemoryOptions::default()
    })
    .unwrap();
    let fence = acquire(&store, "catalog", 1).await;
    store.mutate_fenced(&fence, "b", || ()).unwrap_err();
    assert_eq!(records(&store).await, []);
}

/// What happened to one resource, and what happened since.
#[tokio::test]
async fn a_query_answers_one_resource_and_what_came_after() {
    let store = store();
    for (resource, grant) in [("catalog", 1), ("index", 2)] {
        let fence = acquire(&store, resource, grant).await;
        store.mutate_fenced(&fence, "b", || ()).unwrap_err();
        release(&store, &fence).await;
    }
    let all = records(&store).await;
    let query = |resource: Option<&str>, after| AuditQuery {
        resource: resource.map(|name| name.parse().unwrap()),
        after,
        limit: 0,
    };
    let events = |records: &[AuditRecord]| -> Vec<_> {
        let records = records.iter();
        records
            .map(|record| (record.resource.clone().unwrap().to_string(), record.event))
            .collect()
    };
    let story = [
        AuditEvent::Granted,
        AuditEvent::Rejected,
        AuditEvent::Released,
    ];
    let index = story.map(|event| ("index".to_owned(), event));
    let answer = store.audit(query(Some("index"), None)).await.unwrap();
    assert_eq!(events(&answer), index);
    for (at, record) in all.iter().enumerate() {
        let later = store.audit(query(None, Some(record.id))).await.unwrap();
        assert_eq!(later, all[at + 1..], "after {record:?}");
        let later = store
            .audit(query(Some("catalog"), Some(record.id)))
            .await
            .unwrap();
        assert_eq!(later, all[(at + 1).min(3)..3], "after {record:?}");
    }
}

/// Rejections that differ in anything that an operator asks for are told one by one; equal ones are
/// counted, and each is told with its time.
#[tokio::test]
async fn only_equal_rejections_are_counted_together() {
    let clock = Arc::new(DrivenClock::default());
    clock.set_wall_ms(7);
    let store = store_at(&clock);
    let stale = acquire(&store, "catalog", 1).await;
    release(&store, &stale).await;
    let other = acquire(&store, "index", 2).await;
    release(&store, &other).await;
    let present = acquire(&store, "catalog", 3).await;
    let future = Fence {
        epoch: present.epoch + 1,
        ..present.clone()
    };
    let wrong_authority = Fence {
        authority: Authority::from_bytes([9; 16]),
        ..stale.clone()
    };
    let refused =
        |fence: &Fence, writer: &str| store.mutate_fenced(fence, writer, || ()).unwrap_err();
    // Each differs from the one above it in one thing: writer, carried epoch, reason, resource, present epoch.
    for (fence, writer) in [
        (&stale, "a"),
        (&stale, "b"),
        (&future, "b"),
        (&wrong_authority, "b"),
        (&other, "b"),
    ] {
        for _ in 0..3 {
            refused(fence, writer);
        }
    }
    release(&store, &present).await;
    refused(&stale, "b");
    let all = records(&store).await;
    assert!(
        all.iter().all(|record| record.at_unix_ms == 7),
        "each with its time"
    );
    let told = all
        .into_iter()
        .filter(|record| record.event == AuditEvent::Rejected);
    let told: Vec<_> = told.collect();
    let counts: Vec<_> = told.iter().map(|record| record.count).collect();
    assert_eq!(counts, [3, 3, 3, 3, 3, 1], "{told:#?}");
}
