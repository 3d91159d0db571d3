//! Explores the worlds and plants the bugs: `cargo run --release -p aster-model -- --seconds 600`.
//!
//! Without `--seconds` it explores the worlds of the tests to their end. With it, whatever time is left
//! after that is spent on wider worlds: half of it breadth first, so that every short history is seen, and
//! half of it on histories by chance to their end, which `--seed` repeats.
#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "it talks to the person who runs it"
)]

use std::process::ExitCode;
use std::time::Duration;

use aster_evidence::{Deadline, Evidence, Options};
use aster_model::{
    CONTROLS, Control, FURTHER, Ingredient, LeaseModel, PROPERTIES, Seen, Setting, WORLDS,
};
use stateright::{Checker, HasDiscoveries, Model, UniformChooser};

const USAGE: &str = "usage: aster-model [--seconds N] [--seed S] [--evidence FILE]\n";
const COMMAND: &str = "cargo run --release -p aster-model --";
/// Where chance begins unless `--seed` says otherwise.
const SEED: u64 = 1;
const THREADS: usize = 2;
/// A world is given up at so many states, before they fill the memory.
const STATES_MAX: usize = 60_000_000;
/// What is explored in less time shows nothing.
const FURTHER_MIN: Duration = Duration::from_secs(1);

fn main() -> ExitCode {
    let (options, others) = match Options::take(std::env::args().skip(1)) {
        Ok(taken) => taken,
        Err(error) => {
            eprint!("aster-model: {error}\n{USAGE}");
            return ExitCode::from(64);
        }
    };
    let seed = match others.as_slice() {
        [] => Some(SEED),
        [word, seed] if word == "--seed" => seed.parse().ok(),
        _ => None,
    };
    let Some(seed) = seed else {
        eprint!(
            "aster-model: {} is not understood\n{USAGE}",
            others.join(" ")
        );
        return ExitCode::from(64);
    };
    let deadline = Deadline::after_s(options.seconds.unwrap_or(0));
    let command = match options.seconds {
        Some(seconds) => format!("{COMMAND} --seconds {seconds} --seed {seed}"),
        None => COMMAND.to_owned(),
    };
    let mut evidence = Evidence::new(
        "model",
        "every order of events up to a bound, over the real rules",
        &command,
    );
    for control in &CONTROLS {
        plant(control, &mut evidence);
    }
    for (number, setting) in WORLDS.iter().enumerate() {
        let worlds_left = u32::try_from(WORLDS.len() - number).unwrap_or(1);
        let limit = options.seconds.map(|_| deadline.left() / worlds_left);
        explore(
            setting,
            limit.map(|limit| limit.max(FURTHER_MIN)),
            &mut evidence,
        );
    }
    if options.seconds.is_some() {
        for (number, setting) in FURTHER.iter().enumerate() {
            // What one world leaves of its time the others share.
            let worlds_left = u32::try_from(FURTHER.len() - number).unwrap_or(1);
            let limit = deadline.left() / worlds_left;
            if limit >= FURTHER_MIN {
                explore(setting, Some(limit / 2), &mut evidence);
                walk(setting, seed, limit / 2, &mut evidence);
            }
        }
        evidence.seed(seed);
    }
    if evidence.broken.is_empty() {
        for property in PROPERTIES {
            evidence.held(property);
        }
    }
    evidence.not_covered("more than one resource, three holders and three wishes to acquire");
    evidence.not_covered("hold-offs and registers");
    evidence
        .not_covered("the code around the rules: the engine, the queue and the stores are played");
    print!("{evidence}");
    if let Err(error) = evidence.write(options.evidence(), deadline.elapsed()) {
        eprintln!("aster-model: {error}");
        return ExitCode::FAILURE;
    }
    match evidence.is_sound() {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    }
}

/// The planted bug has to be found, and as a breach of its property.
fn plant(control: &Control, evidence: &mut Evidence) {
    let model = LeaseModel::new(control.bounds, control.bug);
    let checker = model
        .checker()
        .threads(THREADS)
        .finish_when(HasDiscoveries::AllOf([control.property].into()))
        .spawn_bfs()
        .join();
    let found = checker.discovery(control.property);
    let seen = match &found {
        Some(path) => format!("after {} steps", path.clone().into_actions().len()),
        None => format!("not in {} states", checker.unique_state_count()),
    };
    evidence.control(control.property, control.planted, found.is_some(), &seen);
}

/// Explores a world to its end, or for as long as `limit`.
fn explore(setting: &Setting, limit: Option<Duration>, evidence: &mut Evidence) {
    let Setting { name, bounds, .. } = setting;
    let model = LeaseModel::new(*bounds, None);
    let seen = model.seen();
    let deadline = Deadline::after_s(limit.map_or(u64::MAX, |limit| limit.as_secs()));
    let mut builder = model
        .checker()
        .threads(THREADS)
        .target_state_count(STATES_MAX);
    if let Some(limit) = limit {
        builder = builder.timeout(limit);
    }
    let checker = builder.spawn_bfs().join();
    let is_whole = !deadline.is_over() && checker.state_count() < STATES_MAX;
    println!(
        "{name}: {} states, {} of them distinct, {} steps deep, {}",
        checker.state_count(),
        checker.unique_state_count(),
        checker.max_depth(),
        if is_whole {
            "all there are"
        } else {
            "and there are more"
        },
    );
    let count = |count: usize| u64::try_from(count).unwrap_or(u64::MAX);
    let how = if is_whole {
        "explored to their end"
    } else {
        "explored in part"
    };
    evidence.tried(&format!("worlds {how}"), 1);
    evidence.tried("distinct states", count(checker.unique_state_count()));
    evidence.tried("steps", count(checker.state_count()));
    conclude(setting, &checker, &seen, evidence);
    for ingredient in setting.shows {
        if is_whole && seen.count(*ingredient) == 0 {
            evidence.broken(format!("{name}: no {}", ingredient.words()));
        }
    }
}

/// Follows histories by chance to their end, for as long as `limit`.
fn walk(setting: &Setting, seed: u64, limit: Duration, evidence: &mut Evidence) {
    let model = LeaseModel::new(setting.bounds, None);
    let seen = model.seen();
    let checker = model
        .checker()
        .threads(THREADS)
        .timeout(limit)
        .spawn_simulation(seed, UniformChooser)
        .join();
    println!(
        "{}: {} steps of histories by chance, the longest of {}",
        setting.name,
        checker.state_count(),
        checker.max_depth(),
    );
    let steps = u64::try_from(checker.state_count()).unwrap_or(u64::MAX);
    evidence.tried("steps of histories by chance", steps);
    conclude(setting, &checker, &seen, evidence);
}

fn conclude(
    setting: &Setting,
    checker: &impl Checker<LeaseModel>,
    seen: &Seen,
    evidence: &mut Evidence,
) {
    for ingredient in Ingredient::ALL {
        evidence.tried(ingredient.words(), seen.count(ingredient));
    }
    for (property, path) in checker.discoveries() {
        evidence.broken(format!(
            "{property}, in the world {:?}: {:?}; repeat it with: {}",
            setting.name,
            path.into_actions(),
            evidence.command
        ));
    }
}
