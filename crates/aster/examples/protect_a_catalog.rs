//! Worker A publishes a catalog, loses ownership, and its delayed write is rejected.
//!
//! `cargo run --example protect_a_catalog`
#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "an example shows what happens"
)]

// begin: uses
use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use aster::lease::{
    AcquireOutcome, ExpectedRevision, FenceRejection, LeaseHandle, LeaseOptions, RegisterError,
    Registers,
};
use aster::sqlite::SqliteSerializer;
// end: uses

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let directory = tempfile::tempdir()?;
    let store = Arc::new(SqliteSerializer::open(directory.path().join("leases.db"))?);

    // begin: publish
    let worker_a = "worker-a"; // in real life: from the connection, the role, the identity file
    // How long others wait if this process dies. Renewed every third of it, as long as it is held.
    let options = LeaseOptions::with_ttl(Duration::from_secs(10));
    let outcome = LeaseHandle::acquire(store.clone(), "catalog/current", worker_a, options).await?;
    let lease_a = match outcome {
        AcquireOutcome::Granted(lease) => lease,
        AcquireOutcome::Denied(reason, snapshot) => {
            return Err(format!("denied: {reason}; state: {snapshot:?}").into());
        }
    };

    // Take the fence immediately before the write. None means: stop, the lease is over.
    let fence = lease_a.fence().ok_or("the lease is over")?;
    let value = b"catalog-v1".to_vec();
    store
        .compare_and_set(&fence, worker_a, ExpectedRevision::Any, value)
        .await?;
    // end: publish

    // begin: delayed
    let delayed = lease_a.fence().ok_or("the lease is over")?; // taken, and not used yet
    lease_a.release().await?;

    let worker_b = "worker-b";
    let outcome = LeaseHandle::acquire(store.clone(), "catalog/current", worker_b, options).await?;
    let AcquireOutcome::Granted(lease_b) = outcome else {
        return Err("a released lease is free at once".into());
    };
    let fence = lease_b.fence().ok_or("the lease is over")?;
    let value = b"catalog-v2".to_vec();
    store
        .compare_and_set(&fence, worker_b, ExpectedRevision::Any, value)
        .await?;

    // A's write arrives now. The store checks the fence in the transaction of the write.
    let value = b"catalog-v1-late".to_vec();
    let late = store
        .compare_and_set(&delayed, worker_a, ExpectedRevision::Any, value)
        .await;
    assert!(matches!(
        late,
        Err(RegisterError::Rejected(FenceRejection::StaleEpoch { .. }))
    ));
    // end: delayed

    let published = store
        .read("catalog/current")
        .await?
        .ok_or("nothing was published")?;
    assert_eq!(published.value, b"catalog-v2");
    println!(
        "{} at epoch {}, revision {}",
        String::from_utf8_lossy(&published.value),
        published.epoch,
        published.value_revision
    );
    lease_b.release().await?;
    Ok(())
}
