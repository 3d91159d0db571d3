//! Everything once: the scenarios in the time that is given, and the controls until they are caught.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use aster_evidence::Evidence;

use crate::SCENARIOS;
use crate::controls::{CONTROLS, Control};
use crate::explore::{Failure, Found, Scenario, explore};
use crate::scheduler::{Budget, Way};

/// The command that this is run by, and that repeats what it finds.
pub const COMMAND: &str = "cargo xtask interleavings";

/// The most departures from the plain order that are tried in every way.
const DEPARTURES_MAX: usize = 3;
/// Which part of a scenario's time goes to executions within the bound, if they are not done before.
const BOUNDED_PARTS: u32 = 2;
/// A control that is not caught in so many executions, and in this time, is missed.
const CONTROL_EXECUTIONS_MAX: u64 = 60_000;
const CONTROL_TIME_MAX: Duration = Duration::from_secs(30);
/// A control is looked for within the bound first, for so many executions.
const CONTROL_BOUNDED_MAX: u64 = 1_500;
/// More at once would only get in each other's way.
const WORKERS_MAX: usize = 8;

/// What one scenario or control came to.
enum Outcome {
    Scenario(Scenario, Found, Found),
    Control(&'static Control, Found),
}

#[derive(Clone, Copy)]
enum Job {
    Scenario(Scenario),
    Control(&'static Control),
}

/// Tries every scenario, all of them in `time` together, and every control. `seed` is what chance comes
/// from.
#[must_use]
pub fn run(time: Duration, seed: u64) -> Evidence {
    let workers = thread::available_parallelism().map_or(1, |cores| cores.get().min(WORKERS_MAX));
    let scenarios = u32::try_from(SCENARIOS.len()).unwrap_or(u32::MAX).max(1);
    let share = time * u32::try_from(workers).unwrap_or(1) / scenarios;
    // The controls first: most are caught at once, and what they take is not known.
    let controls = CONTROLS.iter().map(Job::Control);
    let jobs: Vec<_> = controls
        .chain(SCENARIOS.iter().copied().map(Job::Scenario))
        .collect();
    let next = AtomicUsize::new(0);
    let done = Mutex::new(Vec::new());
    thread::scope(|scope| {
        for _ in 0..workers {
            scope.spawn(|| {
                while let Some((at, job)) = {
                    let at = next.fetch_add(1, Ordering::Relaxed);
                    jobs.get(at).map(|job| (at, *job))
                } {
                    let outcome = match job {
                        Job::Scenario(scenario) => try_scenario(scenario, share, seed),
                        Job::Control(control) => Outcome::Control(control, catch(control, seed)),
                    };
                    let mut done = done.lock().unwrap_or_else(PoisonError::into_inner);
                    done.push((at, outcome));
                }
            });
        }
    });
    let mut done = done.into_inner().unwrap_or_else(PoisonError::into_inner);
    done.sort_by_key(|(at, _)| *at);
    told(done.into_iter().map(|(_, outcome)| outcome), seed)
}

fn try_scenario(scenario: Scenario, share: Duration, seed: u64) -> Outcome {
    let whole = Budget::new(u64::MAX, share);
    let way = Way::Bounded {
        departures: DEPARTURES_MAX,
    };
    let budget = Budget::new(u64::MAX, share / BOUNDED_PARTS);
    let bounded = explore(scenario, None, way, budget);
    let by_chance = match bounded.failure {
        Some(_) => Found::default(),
        None => {
            let budget = Budget::new(u64::MAX, whole.time_left());
            explore(scenario, None, Way::Chance { seed }, budget)
        }
    };
    Outcome::Scenario(scenario, bounded, by_chance)
}

/// Looks for the bug of `control`: within the bound, then by chance.
#[must_use]
pub fn catch(control: &Control, seed: u64) -> Found {
    let Some(scenario) = control.scenario() else {
        return Found::default();
    };
    let way = Way::Bounded {
        departures: DEPARTURES_MAX,
    };
    let budget = Budget::new(CONTROL_BOUNDED_MAX, CONTROL_TIME_MAX);
    let bounded = explore(scenario, Some(control.bug), way, budget);
    if bounded.failure.is_some() {
        return bounded;
    }
    let budget = Budget::new(CONTROL_EXECUTIONS_MAX, budget.time_left());
    let mut found = explore(scenario, Some(control.bug), Way::Chance { seed }, budget);
    found.executions += bounded.executions;
    found
}

/// Repeats a failure.
#[must_use]
pub fn repeat_command(scenario: &str, failure: &Failure) -> String {
    format!("{COMMAND} --scenario {scenario} --replay {}", failure.plan)
}

fn told(outcomes: impl Iterator<Item = Outcome>, seed: u64) -> Evidence {
    let what =
        "orders of the steps of threads and tasks within the memory store and the holder's engine";
    let mut evidence = Evidence::new("interleavings", what, &format!("{COMMAND} --seed {seed}"));
    evidence.seed(seed);
    let (mut all_bounded, mut all_by_chance) = (0, 0);
    let mut each = Vec::new();
    for outcome in outcomes {
        match outcome {
            Outcome::Scenario(scenario, bounded, by_chance) => {
                all_bounded += bounded.executions;
                all_by_chance += by_chance.executions;
                let failure = bounded.failure.or(by_chance.failure);
                let executions = bounded.executions + by_chance.executions;
                let complete = bounded
                    .complete_up_to
                    .map_or_else(String::new, |departures| {
                        format!(", all with up to {departures} departures")
                    });
                each.push((format!("of {}{complete}", scenario.name), executions));
                match failure {
                    None => evidence.held(scenario.rule),
                    Some(failure) => evidence.broken(format!(
                        "{}: {}; repeat it: {}",
                        scenario.name,
                        failure.first_line(),
                        repeat_command(scenario.name, &failure)
                    )),
                }
            }
            Outcome::Control(control, found) => {
                let rule = control
                    .scenario()
                    .map_or(control.scenario, |scenario| scenario.rule);
                let seen = match &found.failure {
                    Some(failure) => format!(
                        "{} after {} executions: {}",
                        control.scenario,
                        found.executions,
                        failure.first_line()
                    ),
                    None => format!(
                        "not in {} executions of {}",
                        found.executions, control.scenario
                    ),
                };
                evidence.control(rule, control.planted, found.failure.is_some(), &seen);
            }
        }
    }
    evidence.tried(
        "executions within so many departures from the plain order",
        all_bounded,
    );
    evidence.tried(
        "executions by chance, at random and by random priorities",
        all_by_chance,
    );
    for (what, executions) in each {
        evidence.tried(&what, executions);
    }
    for what in [
        "atomics weaker than the strongest ordering: here each is as strong as that",
        "the steps within tokio: its Notify and watch are one step each, its tasks and timers are stand-ins",
        "more rows, threads and turns than each scenario has, and locks that are spread as the product's are",
        "the SQLite store's threads",
    ] {
        evidence.not_covered(what);
    }
    evidence
}
