//! What a held row costs in memory, counted at the allocator.
#![allow(clippy::unwrap_used, reason = "test code outside a #[test] function")]

use std::alloc::System;
use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use aster_lease::{
    Fence, GrantId, LeaseOp, LeaseSerializer, MemorySerializer, Principal, TransitionOutcome, Ttl,
};
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, Stats, StatsAlloc};

const ROWS: u64 = 1_000_000;
const HOLDERS: u64 = 16;
/// The bound that the store promises for 20-byte names.
const BYTES_MAX: f64 = 165.0;
/// What common allocators spend on each piece themselves.
const PIECE_BYTES: isize = 8;

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// Bytes asked for and not given back, and in how many pieces.
fn in_use(stats: &Stats) -> (isize, isize) {
    let bytes = stats.bytes_allocated as isize - stats.bytes_deallocated as isize;
    let pieces = stats.allocations as isize - stats.deallocations as isize;
    (bytes, pieces)
}

/// The memory store answers at once when no closure runs.
fn now<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(answer) => answer,
        Poll::Pending => panic!("the memory store had to wait"),
    }
}

fn name(number: u64) -> String {
    format!("resource/{number:011}")
}

/// Every request carries its own copies of the texts, as requests from a network do.
fn acquire(store: &MemorySerializer, number: u64) -> Fence {
    let mut grant = [7; 16];
    grant[..8].copy_from_slice(&number.to_le_bytes());
    let op = LeaseOp::Acquire {
        candidate: Principal::new(format!("holder/{:02}", number % HOLDERS)).unwrap(),
        ttl: Ttl::from_millis(30_000).unwrap(),
        grant_id: GrantId::from_bytes(grant),
    };
    match now(store.transition(&name(number), op)).unwrap() {
        TransitionOutcome::Granted(fence) => fence,
        other => panic!("{number}: {other:?}"),
    }
}

#[test]
fn a_million_held_rows_take_little_memory_each() {
    assert_eq!(name(0).len(), 20);
    let all = Region::new(ALLOCATOR);
    let store = MemorySerializer::new();
    for number in 0..ROWS {
        drop(acquire(&store, number));
    }
    let (bytes, pieces) = in_use(&all.change());
    let asked = bytes as f64 / ROWS as f64;
    let spent = (bytes + pieces * PIECE_BYTES) as f64 / ROWS as f64;
    assert!(spent <= BYTES_MAX, "{spent:.1} bytes for a held row");

    // Renewals and retries add nothing to it, and a protected write asks the allocator for nothing,
    // not even for a moment. The test's own harness may ask for a little.
    let mut asked_by_writes = 0;
    for number in (0..ROWS).step_by(97) {
        let fence = acquire(&store, number);
        let writer = fence.holder.to_string();
        let op = LeaseOp::Renew {
            holder: Principal::new(&writer).unwrap(),
            epoch: fence.epoch,
        };
        let renewed = now(store.transition(&fence.resource, op)).unwrap();
        assert_eq!(renewed, TransitionOutcome::Renewed);
        let write = Region::new(ALLOCATOR);
        assert_eq!(store.mutate_fenced(&fence, &writer, || 1), Ok(1));
        asked_by_writes += write.change().allocations;
    }
    let more = in_use(&all.change()).1 - pieces;
    assert!(
        more < 100 && asked_by_writes < 100,
        "{more} {asked_by_writes}"
    );
    // Not before: what a test prints is kept, and would count.
    println!("a held row takes {asked:.1} bytes, {spent:.1} with the allocator's own");

    drop(store);
    let (left, _) = in_use(&all.change());
    assert!(
        left <= 64 * 1024,
        "{left} bytes stay when the store is gone"
    );
}
