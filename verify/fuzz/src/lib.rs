//! Fuzz targets for everything that reads bytes from a user, a peer or a disk.
//!
//! A target is a plain function of bytes that checks what is promised, not only that nothing panics:
//! what is accepted is within its documented bounds and survives the way out and in again, what is
//! refused is refused for a named reason, two routes to the same value agree, and nothing allocates more
//! than its bound. [`targets::ALL`] lists them, with a control for each: a planted fault that the same
//! check must notice.
//!
//! Three ways to run them:
//!
//! - `cargo test -p aster-fuzz`: the committed corpus, then mutations of it by fixed and fresh seeds;
//! - `aster-fuzz --seconds N`: the same for longer ([`runner`]);
//! - `cargo xtask fuzz TARGET --seconds N`: libFuzzer, guided by coverage (`verify/fuzz/libfuzzer`).
#![allow(
    clippy::missing_panics_doc,
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a target fails by a panic, and so does a test tool that cannot go on"
)]

pub mod control;
pub mod corpus;
pub mod mutator;
pub mod runner;
pub mod targets;

use std::alloc::System;
use std::hash::{DefaultHasher, Hash, Hasher};

use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};

/// Counts what is allocated, so that a decoder which trusts a length is noticed.
#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// What an input led to, in short. An input that leads to something new is kept and mutated further.
pub type Seen = u64;

/// One thing that parses.
#[derive(Debug, Clone, Copy)]
pub struct Target {
    /// One word, the name of its corpus.
    pub name: &'static str,
    /// What it reads, and what must hold.
    pub what: &'static str,
    /// The check. It panics when something does not hold.
    pub run: fn(&[u8]) -> Seen,
    /// The longest input that is tried, in bytes.
    pub bytes_max: usize,
    /// Words that the mutator knows, in the form of libFuzzer's dictionaries.
    pub dictionary: &'static str,
    /// How often it is run by default, for each seed.
    pub executions: u64,
}

/// A number that stands for `parts`.
pub fn seen(parts: impl Hash) -> Seen {
    let mut hasher = DefaultHasher::new();
    parts.hash(&mut hasher);
    hasher.finish()
}

/// Runs `step`, which must allocate no more than `bytes_max` bytes in all.
///
/// Other threads count too, so a process does nothing else meanwhile.
pub fn bounded<T>(bytes_max: usize, step: impl FnOnce() -> T) -> T {
    let region = Region::new(ALLOCATOR);
    let value = step();
    let change = region.change();
    assert!(
        change.bytes_allocated <= bytes_max,
        "{} bytes were allocated, the bound is {bytes_max}",
        change.bytes_allocated
    );
    value
}

/// Runs the target with this name on `data`, for libFuzzer.
pub fn run(name: &str, data: &[u8]) {
    let target = targets::find(name).expect("a target has this name");
    (target.run)(data);
}
