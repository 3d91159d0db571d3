//! Leader election in one call: three workers, one of them publishes at a time.
//!
//! `cargo run --example leader`
#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "an example shows what happens"
)]

use std::error::Error;
use std::ops::ControlFlow;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use aster::lease::{LeaseError, LeaseOptions, MemorySerializer, run_while_leader};

/// How many entries are published before everybody is done.
const ENTRIES: usize = 6;

type Catalog = Arc<Mutex<Vec<String>>>;

// begin: worker
/// Publishes whenever it leads, two entries a term, until the catalog is full.
async fn worker(
    store: Arc<MemorySerializer>,
    node_id: String,
    catalog: Catalog,
) -> Result<(), LeaseError> {
    let options = LeaseOptions::with_ttl(Duration::from_secs(3));
    run_while_leader(
        store.clone(),
        "catalog/current",
        &node_id,
        options,
        |lease| {
            let (store, node_id, catalog) = (store.clone(), node_id.clone(), catalog.clone());
            // Dropped where it awaits as soon as the lease is lost.
            async move {
                for _ in 0..2 {
                    // The present fence, for this write only.
                    let Some(fence) = lease.fence() else { break };
                    let published = store.mutate_fenced(&fence, &node_id, || {
                        let mut catalog = catalog.lock().unwrap_or_else(PoisonError::into_inner);
                        if catalog.len() < ENTRIES {
                            catalog
                                .push(format!("published by {node_id} at epoch {}", fence.epoch));
                        }
                        catalog.len()
                    });
                    match published {
                        Ok(ENTRIES) => return ControlFlow::Break(()),
                        Ok(_) => tokio::time::sleep(Duration::from_millis(20)).await,
                        Err(rejection) => {
                            eprintln!("{node_id}: {rejection}");
                            break;
                        }
                    }
                }
                // Step down, and queue behind the others.
                ControlFlow::Continue(())
            }
        },
    )
    .await
}
// end: worker

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let store = Arc::new(MemorySerializer::new());
    let catalog = Catalog::default();
    let (a, b, c) = tokio::join!(
        worker(store.clone(), "node-a".to_owned(), catalog.clone()),
        worker(store.clone(), "node-b".to_owned(), catalog.clone()),
        worker(store.clone(), "node-c".to_owned(), catalog.clone()),
    );
    for finished in [a, b, c] {
        finished?;
    }
    let catalog = catalog.lock().unwrap_or_else(PoisonError::into_inner);
    for entry in catalog.iter() {
        println!("{entry}");
    }
    assert_eq!(catalog.len(), ENTRIES);
    Ok(())
}
