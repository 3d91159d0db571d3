//! The memory store's audit trail stays bounded and keeps what matters.
#![allow(clippy::unwrap_used, reason = "helpers of tests may panic")]

use aster_lease::{
    AuditEvent, AuditLog, AuditQuery, AuditRecord, Fence, GrantId, LeaseOp, LeaseSerializer,
    MemoryOptions, MemorySerializer, Principal, TransitionOutcome, Ttl,
};

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
