//! Runs a target on inputs, on stable and without instrumentation: the committed ones, then mutations of
//! them. What leads to something new is kept and mutated further.

use std::collections::HashSet;
use std::fmt;
use std::panic::{self, AssertUnwindSafe};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, Once, PoisonError};
use std::time::{Duration, Instant};

use crate::mutator::Mutator;
use crate::{Seen, Target, corpus};

/// The most inputs that are kept beside the committed ones.
const KEPT_MAX: usize = 2_000;
/// How often a failing input is made shorter at most.
const SHORTENINGS_MAX: u32 = 400;
/// One input that takes longer than this is a failure. Generous: the machine may be busy.
pub const INPUT_BOUND: Duration = Duration::from_secs(30);

/// An input at which a check failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// The target.
    pub target: &'static str,
    /// The input, as short as could be found.
    pub input: Vec<u8>,
    /// What did not hold.
    pub message: String,
    /// The seed under which it was found, or the name of a committed input.
    pub origin: String,
}

impl fmt::Display for Failure {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Failure {
            target,
            input,
            message,
            origin,
        } = self;
        let shown = String::from_utf8_lossy(input);
        let digits: String = input.iter().map(|byte| format!("{byte:02x}")).collect();
        write!(
            formatter,
            "{target} ({origin}): {message}\n  input: {shown:?}\n  repeat it: \
             cargo run -p aster-fuzz -- --target {target} --input {digits}"
        )
    }
}

/// How a search went.
#[derive(Debug, Clone, Default)]
pub struct Report {
    /// How often the target was run.
    pub executions: u64,
    /// How many different things its inputs led to.
    pub outcomes: usize,
    /// The first failure, which ends the search.
    pub failure: Option<Failure>,
}

/// When a search ends, if nothing fails before.
#[derive(Debug, Clone, Copy)]
pub enum Until {
    /// After that many runs.
    Executions(u64),
    /// After that time.
    Elapsed(Duration),
}

/// Runs `run`, the check of `target` or a control of it, on the committed inputs and on mutations of them
/// that `seed` makes.
pub fn search(target: &Target, run: fn(&[u8]) -> Seen, seed: u64, until: Until) -> Report {
    let _alone = alone();
    let begun = now();
    let mut report = Report::default();
    let mut outcomes: HashSet<Seen> = HashSet::new();
    let mut known = vec![Vec::new()];
    for (name, input) in corpus::load(target) {
        report.executions += 1;
        match execute(run, &input) {
            Ok(seen) => outcomes.insert(seen),
            Err(message) => {
                report.failure = Some(shortest(target, run, input, message, name));
                return report;
            }
        };
        known.push(input);
    }
    let committed = known.len();
    let mut mutator = Mutator::new(seed, target.dictionary, target.bytes_max);
    let is_over = |executions: u64| match until {
        Until::Executions(executions_max) => executions >= executions_max,
        Until::Elapsed(limit) => begun.elapsed() >= limit,
    };
    while !is_over(report.executions) {
        report.executions += 1;
        let input = mutator.mutate(&known);
        match execute(run, &input) {
            Ok(seen) => {
                if outcomes.insert(seen) && known.len() < committed + KEPT_MAX {
                    known.push(input);
                }
            }
            Err(message) => {
                let origin = format!("seed {seed}");
                report.failure = Some(shortest(target, run, input, message, origin));
                break;
            }
        }
    }
    report.outcomes = outcomes.len();
    report
}

/// Runs the check of `target` on one input.
///
/// # Errors
///
/// What did not hold.
pub fn once(run: fn(&[u8]) -> Seen, input: &[u8]) -> Result<Seen, String> {
    let _alone = alone();
    execute(run, input)
}

fn execute(run: fn(&[u8]) -> Seen, input: &[u8]) -> Result<Seen, String> {
    listen();
    let begun = now();
    let outcome = panic::catch_unwind(AssertUnwindSafe(|| run(input)));
    let took = begun.elapsed();
    let heard = HEARD.lock().unwrap_or_else(PoisonError::into_inner).take();
    // Also a panic that somebody caught: the store's threads do.
    if let Some(message) = heard {
        return Err(message);
    }
    if took > INPUT_BOUND {
        return Err(format!("it took {took:?}, the bound is {INPUT_BOUND:?}"));
    }
    outcome.map_err(|_| "a panic without a message".to_owned())
}

/// Cuts pieces out of a failing input for as long as it fails.
fn shortest(
    target: &Target,
    run: fn(&[u8]) -> Seen,
    mut input: Vec<u8>,
    mut message: String,
    origin: String,
) -> Failure {
    let mut tried = 0;
    let mut piece = input.len() / 2;
    while piece > 0 && tried < SHORTENINGS_MAX {
        let mut at = 0;
        while at < input.len() && tried < SHORTENINGS_MAX {
            tried += 1;
            let mut shorter = input.clone();
            shorter.drain(at..(at + piece).min(input.len()));
            match execute(run, &shorter) {
                Err(why) => (input, message) = (shorter, why),
                Ok(_) => at += piece,
            }
        }
        piece /= 2;
    }
    Failure {
        target: target.name,
        input,
        message,
        origin,
    }
}

/// The first panic since it was last taken, of whatever thread.
static HEARD: Mutex<Option<String>> = Mutex::new(None);
static LISTENING: AtomicBool = AtomicBool::new(false);

/// Panics and allocations are counted for the whole process, so only one search goes on at a time.
fn alone() -> Alone {
    static ALONE: Mutex<()> = Mutex::new(());
    let guard = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    LISTENING.store(true, Ordering::SeqCst);
    Alone { _guard: guard }
}

struct Alone {
    _guard: MutexGuard<'static, ()>,
}

impl Drop for Alone {
    fn drop(&mut self) {
        LISTENING.store(false, Ordering::SeqCst);
    }
}

fn listen() {
    static INSTALLED: Once = Once::new();
    INSTALLED.call_once(|| {
        let before = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            if !LISTENING.load(Ordering::SeqCst) {
                return before(info);
            }
            let mut heard = HEARD.lock().unwrap_or_else(PoisonError::into_inner);
            heard.get_or_insert_with(|| info.to_string().replace('\n', " "));
        }));
    });
}

#[allow(
    clippy::disallowed_methods,
    reason = "how long a search may go on is real time"
)]
fn now() -> Instant {
    Instant::now()
}
