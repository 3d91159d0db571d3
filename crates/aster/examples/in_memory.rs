//! The serializer and the protected state in one process.
//!
//! `cargo run --example in_memory`
#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "an example shows what happens"
)]

// begin: fragment
use std::error::Error;
use std::sync::Arc;

use aster::lease::{AcquireOutcome, LeaseHandle, LeaseOptions, MemorySerializer};

async fn publish(node_id: String) -> Result<String, Box<dyn Error>> {
    let serializer = Arc::new(MemorySerializer::new());
    let mut catalog = String::new();
    let options = LeaseOptions::default();
    match LeaseHandle::acquire(serializer.clone(), "catalog/current", &node_id, options).await? {
        AcquireOutcome::Granted(lease) => {
            if let Some(fence) = lease.fence() {
                serializer.mutate_fenced(&fence, &node_id, || {
                    catalog = "catalog-v1".to_owned();
                })?;
            }
            lease.release().await?;
        }
        AcquireOutcome::Denied(reason, snapshot) => {
            eprintln!("lease denied: {reason:?}; state: {snapshot:?}");
        }
    }
    Ok(catalog)
}
// end: fragment

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let catalog = publish("node-1".to_owned()).await?;
    assert_eq!(catalog, "catalog-v1");
    println!("the catalog is {catalog}");
    Ok(())
}
