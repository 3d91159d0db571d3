//! A fenced mutation of the memory store beside a bare sharded map.

use std::cell::Cell;
use std::hash::BuildHasher;
use std::hint::black_box;
use std::sync::Barrier;

use aster_lease::{Fence, MemorySerializer};
use tokio::runtime::Runtime;

use crate::bare::BareMap;
use crate::leases::{TTL_LONG_MS, grant, name, shuffled};
use crate::measure::{Failure, Pair, Scale, Spread, nanos_each, now, pairs};
use crate::table::{Goal, Line};

const CASE: &str = "memory-mutate";
const WRITER: &str = "worker-a";
/// A round is short, so that few of them are disturbed.
const ROUNDS: usize = 21;
/// Ours may take this much longer than the bare map.
const RATIO_MAX: f64 = 2.0;
/// Two threads may each take this much longer than one alone.
const TOGETHER_MAX: f64 = 1.2;

pub(super) fn run(scale: Scale) -> Result<Vec<Line>, Failure> {
    let runtime = Runtime::new()?;
    let few = Rows::new(&runtime, 2)?;
    let many = Rows::new(&runtime, scale.pick(1_000_000, 10_000))?;
    let steps = scale.pick(100_000, 10_000);
    let mut lines = Vec::new();
    for rows in [&few, &many] {
        let what = format!("one fenced mutation, {} rows", rows.fences.len());
        let with_default = format!("{what}; beside: with the default hash of std");
        lines.push(beside(scale, rows, &rows.bare, steps, what)?);
        lines.push(beside(
            scale,
            rows,
            &rows.bare_default,
            steps,
            with_default,
        )?);
    }
    lines.push(together(scale, &few, steps)?);
    Ok(lines)
}

fn beside<S: BuildHasher + Default>(
    scale: Scale,
    rows: &Rows,
    bare: &BareMap<S>,
    steps: usize,
    what: String,
) -> Result<Line, Failure> {
    // Each takes up where the other has stopped, so that neither finds in a cache what was just used.
    let start = Cell::new(0);
    let next = || {
        let (before, after) = rows.fences.split_at(start.get());
        start.set((start.get() + steps) % rows.fences.len());
        after.iter().chain(before)
    };
    let add = |step: &mut u64| *step = black_box(*step).wrapping_add(1);
    let pair = pairs(
        scale.pick(ROUNDS, 1),
        || time(next(), steps, |fence, step| rows.write(fence, step)),
        || {
            time(next(), steps, |fence, step| {
                bare.mutate(fence, WRITER, || add(step)).is_some()
            })
        },
    )?;
    Ok(Line::pair(CASE, what, "ns", pair, Goal::AtMost(RATIO_MAX)))
}

/// The same rows in the store and in bare maps, and their fences, as granted, in an order without a
/// pattern.
struct Rows {
    store: MemorySerializer,
    /// With the hash of the store, and with that which most people would take.
    bare: BareMap<foldhash::quality::RandomState>,
    bare_default: BareMap<std::hash::RandomState>,
    fences: Vec<Fence>,
}

impl Rows {
    fn new(runtime: &Runtime, count: usize) -> Result<Self, Failure> {
        let store = MemorySerializer::new();
        let (bare, bare_default) = (BareMap::new(), BareMap::new());
        let mut fences = Vec::with_capacity(count);
        for index in shuffled(count) {
            let resource = name(index);
            let fence = runtime.block_on(grant(&store, &resource, WRITER, TTL_LONG_MS))?;
            bare.insert(&fence);
            bare_default.insert(&fence);
            fences.push(fence);
        }
        let order = shuffled(count).into_iter();
        let fences = order.map(|index| fences[index].clone()).collect();
        Ok(Self {
            store,
            bare,
            bare_default,
            fences,
        })
    }

    fn write(&self, fence: &Fence, step: &mut u64) -> bool {
        let add = || *step = black_box(*step).wrapping_add(1);
        self.store.mutate_fenced(fence, WRITER, add).is_ok()
    }
}

/// Nanoseconds for one of `steps`.
fn time<'f>(
    fences: impl Iterator<Item = &'f Fence> + Clone,
    steps: usize,
    operation: impl Fn(&Fence, &mut u64) -> bool,
) -> Result<f64, Failure> {
    let mut written = 0;
    let started = now();
    for fence in fences.cycle().take(steps) {
        if !operation(black_box(fence), &mut written) {
            return Err(format!("a write under {fence} was refused").into());
        }
    }
    let took = started.elapsed();
    if written != steps as u64 {
        return Err(format!("{written} of {steps} writes were made").into());
    }
    Ok(nanos_each(took, steps))
}

/// Two threads on two resources, each beside one thread alone.
fn together(scale: Scale, rows: &Rows, steps: usize) -> Result<Line, Failure> {
    let one = |fence: &Fence| time(std::iter::once(fence), steps, |f, step| rows.write(f, step));
    let (first, second) = (&rows.fences[0], &rows.fences[1]);
    let (mut both, mut alone, mut ratio) = (Vec::new(), Vec::new(), Vec::new());
    one(first)?;
    for _ in 0..scale.pick(ROUNDS, 1) {
        let single = one(first)?;
        let start = Barrier::new(2);
        let slower = std::thread::scope(|scope| {
            let other = scope.spawn(|| {
                start.wait();
                one(second)
            });
            start.wait();
            let mine = one(first)?;
            let other = other.join().map_err(|_| "the other thread panicked")??;
            Ok::<f64, Failure>(mine.max(other))
        })?;
        both.push(slower);
        alone.push(single);
        ratio.push(slower / single);
    }
    let pair = Pair {
        ours: Spread::of(both),
        bare: Spread::of(alone),
        ratio: Spread::of(ratio),
    };
    let what = "two threads on two resources, the slower one; beside: one thread alone";
    Ok(Line::pair(
        CASE,
        what,
        "ns",
        pair,
        Goal::AtMost(TOGETHER_MAX),
    ))
}
