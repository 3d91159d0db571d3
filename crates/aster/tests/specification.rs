//! The specification's own text as tests, by its section titles.
#![allow(
    clippy::unwrap_used,
    clippy::print_stderr,
    reason = "a failure here is a failure of the test"
)]

#[path = "specification/catalog.rs"]
mod catalog;
#[path = "specification/link.rs"]
mod link;

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use aster::lease::{
    AcquireOutcome, DenyReason, Fence, FenceRejection, LeaseHandle, LeaseOptions, LeaseStatus,
};

use catalog::Catalog;
use link::Link;

type Outcome = Result<(), Box<dyn Error>>;

const RESOURCE: &str = "catalog/current";
const WORKER_A: &str = "worker-a";
const WORKER_B: &str = "worker-b";
/// Long enough for what A does before it is cut off, short enough to wait for.
const TTL: Duration = Duration::from_secs(2);
/// How often B asks before the test gives up: half a minute.
const ASKS_MAX: u32 = 3_000;
const ASK_PAUSE: Duration = Duration::from_millis(10);

/// "In-memory enforcement fragment", character for character.
#[rustfmt::skip]
async fn in_memory_enforcement_fragment(node_id: String) -> Result<(), Box<dyn Error>> {
use std::sync::Arc;
use aster::lease::{AcquireOutcome, LeaseHandle, LeaseOptions, MemorySerializer};

let serializer = Arc::new(MemorySerializer::new());
let mut catalog = String::new();
match LeaseHandle::acquire(
    serializer.clone(), "catalog/current", &node_id, LeaseOptions::default(),
).await? {
    AcquireOutcome::Granted(lease) => {
        if let Some(fence) = lease.fence() {
            serializer.mutate_fenced(&fence, &node_id, || {
                catalog = "catalog-v1".to_owned();
            })?;
            assert_eq!(catalog, "catalog-v1");
        }
        lease.release().await?;
    }
    AcquireOutcome::Denied(reason, snapshot) => {
        eprintln!("lease denied: {reason:?}; state: {snapshot:?}");
    }
}
    Ok(())
}

#[tokio::test]
async fn the_fragment_compiles_and_runs_as_it_stands() -> Outcome {
    in_memory_enforcement_fragment("node-1".to_owned()).await
}

async fn acquire(catalog: &impl Catalog, holder: &str) -> Result<LeaseHandle, Box<dyn Error>> {
    let options = LeaseOptions::with_ttl(TTL);
    for _ in 0..ASKS_MAX {
        match LeaseHandle::acquire(catalog.serializer(), RESOURCE, holder, options).await? {
            AcquireOutcome::Granted(lease) => return Ok(lease),
            AcquireOutcome::Denied(DenyReason::HeldByOther, _) => {
                tokio::time::sleep(ASK_PAUSE).await;
            }
            AcquireOutcome::Denied(reason, snapshot) => {
                return Err(format!("{holder} was denied: {reason}, {snapshot:?}").into());
            }
        }
    }
    Err(format!("{holder} was never granted").into())
}

fn fence_of(lease: &LeaseHandle) -> Result<Fence, &'static str> {
    lease.fence().ok_or("a lease that is held has a fence")
}

/// A takeover up to the moment at which A's delayed write is about to reach storage. Answers A's write in
/// flight, and B's lease.
async fn until_the_delayed_write(
    catalog: &impl Catalog,
) -> Result<(Fence, LeaseHandle), Box<dyn Error>> {
    // Worker A acquires the lease: A gets the current fence and can submit protected writes.
    let link = Arc::new(Link::to(catalog.serializer()));
    let options = LeaseOptions::with_ttl(TTL);
    let a = match LeaseHandle::acquire(link.clone(), RESOURCE, WORKER_A, options).await? {
        AcquireOutcome::Granted(lease) => lease,
        AcquireOutcome::Denied(reason, _) => return Err(format!("A was denied: {reason}").into()),
    };
    catalog.publish(&fence_of(&a)?, WORKER_A, "catalog-v1")?;
    assert_eq!(catalog.value(), "catalog-v1");

    // A loses connectivity: A may still have work in flight; disconnection alone does not make those
    // writes safe. Nothing at the serializer knows of it: A's write would still be accepted.
    let in_flight = fence_of(&a)?;
    link.cut();
    catalog.publish(&in_flight, WORKER_A, "catalog-v1.1")?;
    assert_eq!(catalog.value(), "catalog-v1.1");

    // Ownership changes and B acquires the lease: B gets a current fence; A's earlier fence is stale.
    let b = acquire(catalog, WORKER_B).await?;
    assert!(b.epoch() > in_flight.epoch);
    // ("Handle lease loss": by then A itself does not supply a fence any more.)
    assert_eq!(a.fence(), None);
    assert_eq!(a.status(), LeaseStatus::Lost);
    catalog.publish(&fence_of(&b)?, WORKER_B, "catalog-v2")?;
    Ok((in_flight, b))
}

/// "Follow a takeover", row by row.
async fn takeover(catalog: &impl Catalog) -> Outcome {
    let (in_flight, b) = until_the_delayed_write(catalog).await?;

    // A's delayed write reaches storage: storage checks ownership inside the mutation and rejects A's stale
    // fence.
    let rejection = catalog
        .publish(&in_flight, WORKER_A, "catalog-v1-late")
        .unwrap_err();
    let expected = FenceRejection::StaleEpoch {
        carried: in_flight.epoch,
        current: b.epoch(),
    };
    assert_eq!(rejection, expected);
    assert_eq!(catalog.value(), "catalog-v2");

    // B submits a write: storage accepts it if B's fence and authenticated identity still match current
    // ownership.
    let fence = fence_of(&b)?;
    assert_eq!(
        catalog.publish(&fence, WORKER_A, "catalog-v3").unwrap_err(),
        FenceRejection::NotHolder
    );
    catalog.publish(&fence, WORKER_B, "catalog-v3")?;
    assert_eq!(catalog.value(), "catalog-v3");
    b.release().await?;
    Ok(())
}

/// The control of [`takeover`]: the same delayed write, and storage does not check.
async fn takeover_without_the_check(catalog: &impl Catalog) -> Outcome {
    let (_, b) = until_the_delayed_write(catalog).await?;
    catalog.publish_unchecked("catalog-v1-late");
    assert_eq!(catalog.value(), "catalog-v1-late", "B's catalog is damaged");
    b.release().await?;
    Ok(())
}

/// "Check enforcement with a delayed write": acquire as A, capture its fence, apply a mutation, release A,
/// acquire as B.
async fn until_a_released(catalog: &impl Catalog) -> Result<(Fence, LeaseHandle), Box<dyn Error>> {
    let a = acquire(catalog, WORKER_A).await?;
    let saved = fence_of(&a)?;
    catalog.publish(&saved, WORKER_A, "catalog-v1")?;
    assert_eq!(catalog.value(), "catalog-v1");
    a.release().await?;
    assert_eq!(a.status(), LeaseStatus::Released);
    Ok((saved, acquire(catalog, WORKER_B).await?))
}

async fn delayed_write(catalog: &impl Catalog) -> Outcome {
    let (saved, b) = until_a_released(catalog).await?;

    // Submit A's saved fence again: rejection before the mutation runs.
    let runs = catalog.mutations_run();
    let rejection = catalog
        .publish(&saved, WORKER_A, "catalog-v1-late")
        .unwrap_err();
    assert!(
        matches!(rejection, FenceRejection::StaleEpoch { carried, .. } if carried == saved.epoch)
    );
    assert_eq!(catalog.mutations_run(), runs, "the mutation must not run");
    assert_eq!(catalog.value(), "catalog-v1");

    // B's current fence should succeed.
    let fence = fence_of(&b)?;
    catalog.publish(&fence, WORKER_B, "catalog-v2")?;
    assert_eq!(catalog.value(), "catalog-v2");

    // B's fence with A's identity: rejection.
    let rejection = catalog
        .publish(&fence, WORKER_A, "catalog-v2-forged")
        .unwrap_err();
    assert_eq!(rejection, FenceRejection::NotHolder);
    assert_eq!(catalog.value(), "catalog-v2");
    b.release().await?;
    Ok(())
}

/// The control of [`delayed_write`].
async fn delayed_write_without_the_check(catalog: &impl Catalog) -> Outcome {
    let (_, b) = until_a_released(catalog).await?;
    catalog.publish(&fence_of(&b)?, WORKER_B, "catalog-v2")?;
    catalog.publish_unchecked("catalog-v1-late");
    assert_eq!(catalog.value(), "catalog-v1-late", "B's catalog is damaged");
    b.release().await?;
    Ok(())
}

mod memory {
    use super::*;
    use catalog::MemoryCatalog;

    #[tokio::test]
    async fn follow_a_takeover() -> Outcome {
        takeover(&MemoryCatalog::default()).await
    }

    #[tokio::test]
    async fn follow_a_takeover_control_without_the_check() -> Outcome {
        takeover_without_the_check(&MemoryCatalog::default()).await
    }

    #[tokio::test]
    async fn check_enforcement_with_a_delayed_write() -> Outcome {
        delayed_write(&MemoryCatalog::default()).await
    }

    #[tokio::test]
    async fn check_enforcement_with_a_delayed_write_control_without_the_check() -> Outcome {
        delayed_write_without_the_check(&MemoryCatalog::default()).await
    }
}

#[cfg(feature = "sqlite")]
mod sqlite {
    use super::*;
    use catalog::SqliteCatalog;

    #[tokio::test]
    async fn follow_a_takeover() -> Outcome {
        takeover(&SqliteCatalog::new()?).await
    }

    #[tokio::test]
    async fn follow_a_takeover_control_without_the_check() -> Outcome {
        takeover_without_the_check(&SqliteCatalog::new()?).await
    }

    #[tokio::test]
    async fn check_enforcement_with_a_delayed_write() -> Outcome {
        delayed_write(&SqliteCatalog::new()?).await
    }

    #[tokio::test]
    async fn check_enforcement_with_a_delayed_write_control_without_the_check() -> Outcome {
        delayed_write_without_the_check(&SqliteCatalog::new()?).await
    }
}
