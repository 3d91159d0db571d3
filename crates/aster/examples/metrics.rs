//! Counting leases and rejected writes in a Prometheus registry of this program.
//!
//! `cargo run --example metrics --features metrics` prints what `/metrics` would serve.
#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "an example talks to the person who runs it"
)]

// begin: metrics
use std::sync::Arc;

use aster::lease::metrics::prometheus_client::encoding::text::encode;
use aster::lease::metrics::prometheus_client::registry::Registry;
use aster::lease::{
    AcquireOutcome, LeaseHandle, LeaseOptions, MemoryOptions, MemorySerializer, Metrics,
};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut registry = Registry::default();
    let options = MemoryOptions {
        metrics: Metrics::register(&mut registry),
        ..MemoryOptions::default()
    };
    let store = Arc::new(MemorySerializer::with_options(options)?);
    work(&store).await?;

    // What a handler of `/metrics` answers, as `application/openmetrics-text; version=1.0.0`.
    let mut text = String::new();
    encode(&mut text, &registry)?;
    print!("{text}");
    Ok(())
}
// end: metrics

/// One lease, one write under it, and one that comes too late.
async fn work(store: &Arc<MemorySerializer>) -> Result<(), Box<dyn std::error::Error>> {
    let options = LeaseOptions::default();
    let acquired =
        LeaseHandle::acquire(store.clone(), "catalog/current", "worker-a", options).await?;
    let lease = match acquired {
        AcquireOutcome::Granted(lease) => lease,
        AcquireOutcome::Denied(reason, _) => return Err(format!("denied: {reason}").into()),
    };
    let fence = lease.fence().ok_or("lost already")?;
    store.mutate_fenced(&fence, "worker-a", || ())?;
    lease.release().await?;
    if let Err(rejection) = store.mutate_fenced(&fence, "worker-a", || ()) {
        eprintln!("the late write was rejected: {rejection}");
    }
    Ok(())
}
