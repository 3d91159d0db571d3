//! Prints how many bytes a held row takes, of as many as the argument says.
#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "its output is its result"
)]

use std::alloc::System;
use std::error::Error;
use std::process::ExitCode;

use aster_lease::{GrantId, LeaseOp, LeaseSerializer, MemorySerializer, Principal, Ttl};
use stats_alloc::{INSTRUMENTED_SYSTEM, StatsAlloc};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// Nothing expires while it is counted.
const TTL_MS: u64 = 60 * 60 * 1_000;
/// What common allocators spend on each piece themselves.
const PIECE_BYTES: usize = 8;
/// So many holders share the rows.
const HOLDERS: usize = 16;

fn main() -> ExitCode {
    match measure() {
        Ok(bytes) => {
            println!("{bytes}");
            ExitCode::SUCCESS
        }
        Err(failure) => {
            eprintln!("aster-bench-bytes: {failure}");
            ExitCode::FAILURE
        }
    }
}

#[allow(
    clippy::cast_precision_loss,
    reason = "bytes of a machine are far below 2^52"
)]
fn measure() -> Result<f64, Box<dyn Error>> {
    let rows: usize = std::env::args()
        .nth(1)
        .ok_or("say how many rows")?
        .parse()?;
    let runtime = tokio::runtime::Builder::new_current_thread().build()?;
    let store = MemorySerializer::new();
    let before = taken();
    for index in 0..rows {
        // Each request carries names of its own, as one that came over a wire does.
        let resource = format!("resource-{index:011}");
        let acquire = LeaseOp::Acquire {
            candidate: Principal::new(format!("worker-{:02}", index % HOLDERS))?,
            ttl: Ttl::from_millis(TTL_MS)?,
            grant_id: GrantId::from_bytes((index as u128).to_be_bytes()),
        };
        runtime.block_on(store.transition(&resource, acquire))?;
    }
    let taken = taken().saturating_sub(before);
    if store.row_count() != rows {
        return Err(format!("{} rows instead of {rows}", store.row_count()).into());
    }
    Ok(taken as f64 / rows as f64)
}

/// Bytes that were asked for and not given back, with what the allocator adds.
fn taken() -> usize {
    let stats = ALLOCATOR.stats();
    let bytes = stats
        .bytes_allocated
        .saturating_sub(stats.bytes_deallocated);
    let pieces = stats.allocations.saturating_sub(stats.deallocations);
    bytes + pieces * PIECE_BYTES
}
