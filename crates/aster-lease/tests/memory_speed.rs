//! How fast a fenced mutation is beside a bare sharded map. Prints; asserts nothing about time.
//!
//! `cargo test --release -p aster-lease --test memory_speed -- --ignored --nocapture`
#![allow(clippy::unwrap_used, reason = "test code outside a #[test] function")]
#![allow(
    clippy::disallowed_methods,
    clippy::print_stdout,
    reason = "a measurement reads the clock itself and prints what it found"
)]

use std::future::Future;
use std::hash::BuildHasher;
use std::hint::black_box;
use std::pin::pin;
use std::sync::{Barrier, Mutex};
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::Instant;

use aster_lease::{
    Fence, GrantId, LeaseOp, LeaseSerializer, MemorySerializer, Principal, TransitionOutcome, Ttl,
};
use foldhash::quality::RandomState;
use hashbrown::HashTable;

const SLICES: usize = 500;
const SLICE_CALLS: usize = 1_000;
const ROUNDS: usize = 400;
const SHARDS: usize = 64;

fn now<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(answer) => answer,
        Poll::Pending => panic!("the memory store had to wait"),
    }
}

fn fences(store: &MemorySerializer, rows: u64) -> Vec<Fence> {
    (0..rows)
        .map(|number| {
            let op = LeaseOp::Acquire {
                candidate: Principal::new(format!("holder/{:02}", number % 16)).unwrap(),
                ttl: Ttl::from_millis(86_400_000).unwrap(),
                grant_id: GrantId::from_bytes(u128::from(number).to_le_bytes()),
            };
            match now(store.transition(&format!("resource/{number:011}"), op)).unwrap() {
                TransitionOutcome::Granted(fence) => fence,
                other => panic!("{other:?}"),
            }
        })
        .collect()
}

/// What somebody would write who needs no fencing: find, compare, run.
struct Bare {
    hasher: RandomState,
    shards: Vec<BareShard>,
}

#[repr(align(128))]
struct BareShard(Mutex<HashTable<BareRow>>);

struct BareRow {
    name: Box<str>,
    epoch: u64,
    holder: Box<str>,
}

impl Bare {
    fn of(fences: &[Fence]) -> Self {
        let hasher = RandomState::default();
        let shards = (0..SHARDS)
            .map(|_| BareShard(Mutex::new(HashTable::new())))
            .collect();
        let bare = Self { hasher, shards };
        for fence in fences {
            let row = BareRow {
                name: fence.resource.as_str().into(),
                epoch: fence.epoch,
                holder: fence.holder.as_str().into(),
            };
            let hash = bare.hasher.hash_one(&*row.name);
            let rehash = |row: &BareRow| bare.hasher.hash_one(&*row.name);
            let mut rows = bare.shard(hash).lock().unwrap();
            rows.insert_unique(hash, row, rehash);
        }
        bare
    }

    fn shard(&self, hash: u64) -> &Mutex<HashTable<BareRow>> {
        &self.shards[(hash >> 40) as usize % SHARDS].0
    }

    fn mutate<R>(&self, fence: &Fence, writer: &str, run: impl FnOnce() -> R) -> Option<R> {
        let hash = self.hasher.hash_one(fence.resource.as_str());
        let rows = self.shard(hash).lock().unwrap();
        let row = rows.find(hash, |row| *row.name == *fence.resource)?;
        (row.epoch == fence.epoch && *row.holder == *writer).then(run)
    }
}

/// In an order that no cache foresees.
fn shuffled(length: usize, seed: u64) -> Vec<usize> {
    let mut order: Vec<_> = (0..length).collect();
    let mut state = seed | 1;
    for at in (1..length).rev() {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        order.swap(at, (state >> 33) as usize % (at + 1));
    }
    order
}

fn nanos(calls: usize, mut call: impl FnMut(usize)) -> f64 {
    let began = Instant::now();
    for at in 0..calls {
        call(at);
    }
    began.elapsed().as_nanos() as f64 / calls as f64
}

fn median(figures: &mut [f64]) -> String {
    figures.sort_by(f64::total_cmp);
    let at = |percent: usize| figures[figures.len() * percent / 100];
    let (low, middle, high) = (at(10), at(50), at(90));
    format!("{middle:6.1} ns ({low:.1} to {high:.1})")
}

fn report(what: &str, mut bare: Vec<f64>, mut fenced: Vec<f64>) {
    let (bare, fenced) = (median(&mut bare), median(&mut fenced));
    println!("{what:28} bare {bare}   fenced {fenced}");
}

#[test]
#[ignore = "a measurement, for a quiet machine and a release build"]
fn a_fenced_mutation_beside_a_bare_map() {
    for rows in [2_u64, 1_000_000] {
        let store = MemorySerializer::new();
        let fences = fences(&store, rows);
        let bare = Bare::of(&fences);
        let writers: Vec<_> = fences
            .iter()
            .map(|fence| fence.holder.to_string())
            .collect();
        let order = shuffled(fences.len(), 7);
        let of = |at: usize| order[at % order.len()];
        let mut counter = 0_u64;
        let (mut plain, mut fenced) = (Vec::new(), Vec::new());
        // Slices shorter than what a busy machine gives us at a time, and no slice finds in a cache
        // what the one before it has just used.
        for slice in 0..SLICES {
            let first = 2 * slice * SLICE_CALLS;
            plain.push(nanos(SLICE_CALLS, |at| {
                let at = of(first + at);
                black_box(bare.mutate(&fences[at], &writers[at], || counter += 1)).unwrap();
            }));
            let first = first + SLICE_CALLS;
            fenced.push(nanos(SLICE_CALLS, |at| {
                let at = of(first + at);
                let (fence, writer) = (&fences[at], &writers[at]);
                black_box(store.mutate_fenced(fence, writer, || counter += 1)).unwrap();
            }));
        }
        report(&format!("one thread, {rows} rows"), plain, fenced);
    }
}

#[test]
#[ignore = "a measurement, for a quiet machine and a release build"]
fn two_threads_on_different_resources() {
    const CALLS: usize = 10_000;
    let store = MemorySerializer::new();
    let fences = fences(&store, 2);
    let bare = Bare::of(&fences);
    let one = |fence: &Fence, is_fenced: bool| {
        let writer = fence.holder.to_string();
        let mut counter = 0_u64;
        nanos(CALLS, |_| match is_fenced {
            true => black_box(store.mutate_fenced(fence, &writer, || counter += 1)).unwrap(),
            false => black_box(bare.mutate(fence, &writer, || counter += 1)).unwrap(),
        })
    };
    let both = |is_fenced: bool| {
        let together = Barrier::new(2);
        let run = |fence| {
            together.wait();
            one(fence, is_fenced)
        };
        thread::scope(|scope| {
            let other = scope.spawn(|| run(&fences[1]));
            let mine = run(&fences[0]);
            (mine + other.join().unwrap()) / 2.0
        })
    };
    let (mut bare_alone, mut fenced_alone) = (Vec::new(), Vec::new());
    let (mut bare_both, mut fenced_both) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        bare_alone.push(one(&fences[0], false));
        fenced_alone.push(one(&fences[0], true));
        bare_both.push(both(false));
        fenced_both.push(both(true));
    }
    report("one of two threads, alone", bare_alone, fenced_alone);
    report("each of two threads", bare_both, fenced_both);
}
