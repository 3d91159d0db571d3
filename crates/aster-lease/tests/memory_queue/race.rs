//! Many callers at once on several threads: some work, some give up, some die.

use std::sync::{Arc, Mutex};

use super::*;

const WORKERS: u64 = 24;
const TURNS: u64 = 30;
const SHORT_TTL: Duration = Duration::from_millis(100);

/// What the lease protects: the epochs under which it was written, in their order.
#[derive(Default)]
struct Written(Mutex<Vec<u64>>);

/// One worker's turn: what it does is decided by its number, when it happens by the threads.
async fn turn(store: &MemorySerializer, written: &Written, number: u64) {
    let request = WaitRequest {
        ttl: Ttl::new(SHORT_TTL).expect("whole milliseconds"),
        ..wish(&format!("w{}", number % WORKERS), number, LONG)
    };
    let impatient = number % 5 == 1;
    let patience = match impatient {
        true => Duration::from_micros(number % 7 * 300),
        false => LONG,
    };
    let waiting = store.acquire_wait(RESOURCE, request);
    let Ok(answer) = tokio::time::timeout(patience, waiting).await else {
        return;
    };
    let fence = match answer {
        Ok(WaitOutcome::Granted { fence, .. }) => fence,
        // It was granted, and its thread had no time to hear of it.
        Ok(WaitOutcome::Denied(DenyReason::Expired, _)) => return,
        other => panic!("{other:?}"),
    };
    if number % 7 == 2 || renew(store, &fence).await != TransitionOutcome::Renewed {
        return;
    }
    let writer = fence.holder.to_string();
    let write = store.mutate_fenced(&fence, &writer, || {
        written.0.lock().expect("no panic").push(fence.epoch);
    });
    if write.is_ok() && number % 11 != 3 {
        release(store, &fence).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn whatever_they_do_epochs_grow_nobody_is_stuck_and_nothing_is_left() {
    let store = MemorySerializer::with_options(MemoryOptions {
        claim_time: Duration::from_millis(20),
        ..MemoryOptions::default()
    })
    .expect("random bytes");
    let written = Arc::new(Written::default());
    let mut workers = Vec::new();
    for worker in 0..WORKERS {
        let (store, written) = (store.clone(), written.clone());
        let work = async move {
            for at in 0..TURNS {
                turn(&store, &written, at * WORKERS + worker).await;
            }
        };
        workers.push(Handle::current().spawn(work));
    }
    for worker in workers {
        worker.await.expect("no panic");
    }
    let written = written.0.lock().expect("no panic").clone();
    assert!(written.is_sorted(), "a stale write: {written:?}");
    assert!(!written.is_empty());
    assert_eq!(queue_of(&store).await, [""; 0]);
    let query = AuditQuery::default();
    let records = store.audit(query).await.expect("read");
    let epochs: Vec<_> = records.iter().map(|it| it.epoch_current).collect();
    let steps = epochs.windows(2).all(|pair| pair[0] + 1 == pair[1]);
    assert!(steps, "the audit tells each step in its order: {epochs:?}");
    assert_eq!(store.row_count(), 1);
}
