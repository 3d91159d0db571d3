//! Tries orders of the engine's own steps for a given time, or repeats one.
#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "it talks to the person who runs it"
)]

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher as _, Hasher as _};
use std::process::ExitCode;
use std::time::Duration;

use aster_evidence::{Deadline, Options};
use aster_interleavings::SCENARIOS;
use aster_interleavings::controls::CONTROLS;
use aster_interleavings::explore::{Scenario, explore};
use aster_interleavings::plan::Plan;
use aster_interleavings::proof::{self, repeat_command};
use aster_interleavings::scheduler::{Budget, Way};

const USAGE: &str = "\
usage: cargo xtask interleavings [--seconds N] [--seed S] [--evidence FILE]   everything, for about so long
       cargo xtask interleavings --scenario NAME [--seconds N] [--seed S]     one scenario, by chance
       cargo xtask interleavings --scenario NAME --replay PLAN                one execution again
       cargo xtask interleavings … --bug NAME                                 the same with a planted bug
       cargo xtask interleavings --list                                       name the scenarios and the bugs
";
const SECONDS: u64 = 30;
const USAGE_EXIT: u8 = 64;
const REPLAY_TIME: Duration = Duration::from_secs(600);

#[derive(Default)]
struct Asked {
    seed: Option<u64>,
    scenario: Option<String>,
    replay: Option<Plan>,
    bug: Option<String>,
    list: bool,
}

fn main() -> ExitCode {
    let (options, words) = match Options::take(std::env::args().skip(1)) {
        Ok(taken) => taken,
        Err(error) => return misused(&error.to_string()),
    };
    let asked = match Asked::of(words) {
        Ok(asked) => asked,
        Err(message) => return misused(&message),
    };
    if asked.list {
        list();
        return ExitCode::SUCCESS;
    }
    let seconds = options.seconds.unwrap_or(SECONDS);
    let seed = asked.seed.unwrap_or_else(fresh_seed);
    if let Some(name) = &asked.scenario {
        return one(name, &asked, seconds, seed);
    }
    if asked.bug.is_some() || asked.replay.is_some() {
        return misused("--bug and --replay need --scenario");
    }
    let started = Deadline::after_s(seconds);
    println!("seed {seed}");
    let mut evidence = proof::run(Duration::from_secs(seconds), seed);
    print!("{evidence}");
    if let Err(error) = evidence.write(options.evidence(), started.elapsed()) {
        eprintln!("{error}");
        return ExitCode::FAILURE;
    }
    match evidence.is_sound() {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    }
}

impl Asked {
    fn of(words: Vec<String>) -> Result<Self, String> {
        let mut asked = Self::default();
        let mut words = words.into_iter();
        while let Some(word) = words.next() {
            if word == "--list" {
                asked.list = true;
                continue;
            }
            let value = words
                .next()
                .ok_or_else(|| format!("{word} needs a value"))?;
            match word.as_str() {
                "--seed" => {
                    let seed = value.parse().map_err(|_| format!("{value} is no seed"))?;
                    asked.seed = Some(seed);
                }
                "--scenario" => asked.scenario = Some(value),
                "--bug" => asked.bug = Some(value),
                "--replay" => {
                    asked.replay = Some(value.parse().map_err(|error| format!("{error}"))?);
                }
                _ => return Err(format!("what is {word}?")),
            }
        }
        Ok(asked)
    }
}

fn one(name: &str, asked: &Asked, seconds: u64, seed: u64) -> ExitCode {
    let (scenario, bug) = match &asked.bug {
        None => (
            SCENARIOS.iter().find(|known| known.name == name).copied(),
            None,
        ),
        Some(bug) => {
            let control = CONTROLS
                .iter()
                .find(|control| control.bug == bug && control.scenario == name);
            let scenario: Option<Scenario> = control.and_then(|control| control.scenario());
            (scenario, control.map(|control| control.bug))
        }
    };
    let Some(scenario) = scenario else {
        return misused("no such scenario, or not with this bug: see --list");
    };
    let (way, budget) = match &asked.replay {
        Some(plan) => (Way::Replay(plan.clone()), Budget::new(1, REPLAY_TIME)),
        None => (
            Way::Chance { seed },
            Budget::new(u64::MAX, Duration::from_secs(seconds)),
        ),
    };
    println!("{}: {}", scenario.name, scenario.rule);
    let found = explore(scenario, bug, way, budget);
    println!("{} executions, seed {seed}", found.executions);
    match found.failure {
        None => {
            println!("held");
            ExitCode::SUCCESS
        }
        Some(failure) => {
            println!("{}", failure.message);
            let bug = bug.map_or_else(String::new, |bug| format!(" --bug {bug}"));
            println!(
                "repeat it: {}{bug}",
                repeat_command(scenario.name, &failure)
            );
            ExitCode::FAILURE
        }
    }
}

fn list() {
    for scenario in SCENARIOS {
        println!("{}: {}", scenario.name, scenario.rule);
        for control in CONTROLS {
            if control.scenario == scenario.name {
                println!("    --bug {}: {}", control.bug, control.planted);
            }
        }
    }
}

fn misused(message: &str) -> ExitCode {
    eprintln!("{message}");
    eprint!("{USAGE}");
    ExitCode::from(USAGE_EXIT)
}

/// Another one each time.
fn fresh_seed() -> u64 {
    RandomState::new().build_hasher().finish()
}
