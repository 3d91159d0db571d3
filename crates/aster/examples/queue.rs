//! Two workers want the same resource: the second waits in the queue and is granted at the release.
//!
//! `cargo run --example queue`
#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "an example shows what happens"
)]
#![allow(
    clippy::disallowed_methods,
    reason = "an example spawns on the runtime that it made"
)]

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use aster::lease::{
    AcquireOutcome, DenyReason, ExpectedRevision, LeaseHandle, LeaseOptions, LeaseSerializer,
    MemorySerializer,
};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let store = Arc::new(MemorySerializer::new());
    let options = LeaseOptions::default();
    let first = LeaseHandle::acquire(store.clone(), "catalog/current", "worker-a", options).await?;
    let AcquireOutcome::Granted(first) = first else {
        return Err("nobody else is here yet".into());
    };

    let second = tokio::spawn(publish_when_it_is_my_turn(store.clone()));
    while store.queue("catalog/current").await?.is_empty() {
        tokio::task::yield_now().await;
    }
    println!("worker-b waits behind epoch {}", first.epoch());
    // begin: pass-on
    let value = b"catalog-v1".to_vec();
    let revision = first
        .release_with_value(store.clone(), "worker-a", ExpectedRevision::Any, value)
        .await?;
    // end: pass-on
    println!("worker-a left catalog-v1 behind, at revision {revision}");
    let epoch = second.await?.map_err(|error| error.to_string())?;
    println!("worker-b published at epoch {epoch:?}");
    Ok(())
}

async fn publish_when_it_is_my_turn(
    store: Arc<MemorySerializer>,
) -> Result<Option<u64>, Box<dyn Error + Send + Sync>> {
    // begin: wait
    let node = "worker-b";
    let patience = Duration::from_secs(5 * 60);
    let options = LeaseOptions::default();
    let outcome =
        LeaseHandle::acquire_wait(store.clone(), "catalog/current", node, options, patience)
            .await?;
    let lease = match outcome {
        AcquireOutcome::Granted(lease) => lease,
        AcquireOutcome::Denied(DenyReason::WaitRanOut, snapshot) => {
            eprintln!("still held by {:?}", snapshot.holder);
            return Ok(None);
        }
        AcquireOutcome::Denied(reason, _) => return Err(reason.to_string().into()),
    };
    if let Some(fence) = lease.fence() {
        store.mutate_fenced(&fence, node, || println!("publishing under {fence}"))?;
    }
    lease.release().await?;
    // end: wait
    Ok(Some(lease.epoch()))
}
