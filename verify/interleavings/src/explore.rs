//! Trying one scenario's executions.

use std::cell::Cell;
use std::panic::{self, AssertUnwindSafe, catch_unwind};
use std::sync::{Once, PoisonError};
use std::time::Duration;

use shuttle::{Config, FailurePersistence, MaxSteps, Runner};
use stand_in::{bugs, world};

use crate::plan::Plan;
use crate::scheduler::{Budget, Explorer, Progress, Way};

/// How many points one execution may have. More means that somebody goes round in circles.
const POINTS_MAX: usize = 200_000;
const STACK_BYTES: usize = 256 * 1024;

/// What some threads do, and what must hold whatever the order of their steps.
#[derive(Debug, Clone, Copy)]
pub struct Scenario {
    /// Its name, for `--scenario`.
    pub name: &'static str,
    /// What must hold.
    pub rule: &'static str,
    /// Whoever waits for longer than this of the world's time waits in vain.
    pub longest: Duration,
    /// Panics when something does not hold.
    pub run: fn(),
}

/// What came of a search.
#[derive(Debug, Clone, Default)]
pub struct Found {
    /// How many executions were tried.
    pub executions: u64,
    /// Every one with so many departures from the plain order was tried.
    pub complete_up_to: Option<usize>,
    /// The first that failed.
    pub failure: Option<Failure>,
}

/// An execution that failed.
#[derive(Debug, Clone)]
pub struct Failure {
    /// Repeats it.
    pub plan: Plan,
    /// What did not hold.
    pub message: String,
}

/// A deadlock names every task: more of a message is for whoever repeats the execution.
const LINE_CHARS_MAX: usize = 160;

impl Failure {
    /// The message's first line, or the beginning of it.
    #[must_use]
    pub fn first_line(&self) -> String {
        let line = self.message.lines().next().unwrap_or_default();
        line.chars().take(LINE_CHARS_MAX).collect()
    }
}

thread_local! {
    static IS_EXPLORING: Cell<bool> = const { Cell::new(false) };
}

/// Tries `scenario`, with a planted bug or none, until an execution fails or the budget is used up.
#[must_use]
pub fn explore(scenario: Scenario, bug: Option<&'static str>, way: Way, budget: Budget) -> Found {
    keep_panics_quiet();
    let thread = std::thread::Builder::new()
        .name(scenario.name.to_owned())
        .spawn(move || explore_here(scenario, bug, way, budget));
    let outcome = thread.map(std::thread::JoinHandle::join);
    match outcome {
        Ok(Ok(found)) => found,
        // Neither is a scenario's doing.
        Ok(Err(panic)) => panic::resume_unwind(panic),
        Err(error) => Found {
            executions: 0,
            complete_up_to: None,
            failure: Some(Failure {
                plan: Plan::PLAIN,
                message: format!("no thread to run on: {error}"),
            }),
        },
    }
}

fn explore_here(scenario: Scenario, bug: Option<&'static str>, way: Way, budget: Budget) -> Found {
    IS_EXPLORING.set(true);
    bugs::arm(bug);
    let (explorer, progress) = Explorer::new(way, budget);
    let runner = Runner::new(explorer, config());
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        runner.run(move || {
            world::begin(scenario.longest);
            (scenario.run)();
            world::end();
        })
    }));
    let Progress {
        executions,
        plan,
        complete_up_to,
        ..
    } = progress
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .clone();
    let failure = outcome.err().map(|panic| Failure {
        plan: plan.unwrap_or(Plan::PLAIN),
        message: told(&*panic),
    });
    Found {
        executions,
        complete_up_to,
        failure,
    }
}

fn config() -> Config {
    let mut config = Config::new();
    config.stack_size = STACK_BYTES;
    config.failure_persistence = FailurePersistence::None;
    config.max_steps = MaxSteps::FailAfter(POINTS_MAX);
    // Its orderings are all the strongest one, and it says so.
    config.silence_warnings = true;
    config
        .ungraceful_shutdown_config
        .immediately_return_on_panic = false;
    config
}

fn told(panic: &(dyn std::any::Any + Send)) -> String {
    if let Some(message) = panic.downcast_ref::<String>() {
        return message.clone();
    }
    match panic.downcast_ref::<&str>() {
        Some(message) => (*message).to_owned(),
        None => "a panic without a message".to_owned(),
    }
}

/// A control's panic is what is wanted, and a failure is told with its plan: neither needs a trace.
fn keep_panics_quiet() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let usual = panic::take_hook();
        // The scheduler puts a hook of its own in place, once.
        let (explorer, _) = Explorer::new(
            Way::Replay(Plan::PLAIN),
            Budget::new(1, Duration::from_secs(60)),
        );
        Runner::new(explorer, config()).run(|| ());
        panic::set_hook(Box::new(move |info| {
            if !IS_EXPLORING.get() {
                usual(info);
            }
        }));
    });
}
