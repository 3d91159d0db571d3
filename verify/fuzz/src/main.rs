//! `aster-fuzz`: runs the targets for a while, looks for the controls, and writes what was tried.
#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "it talks to the person who runs it"
)]

use std::process::ExitCode;
use std::time::Duration;

use aster_evidence::{Deadline, Evidence, Options};
use aster_fuzz::control::{EXECUTIONS_MAX, SEED};
use aster_fuzz::runner::{self, Failure, Until};
use aster_fuzz::{Target, targets};
use aster_lease::{Entropy, SystemEntropy};

const USAGE: &str = "\
usage: aster-fuzz [--seconds N] [--evidence FILE] [--target NAME] [--seed S]
       aster-fuzz --target NAME --input HEXADECIMAL   run one input
       aster-fuzz --list                              name the targets
";
/// How long it goes on by default, in seconds.
const SECONDS: u64 = 60;
/// Wrong use.
const USAGE_CODE: u8 = 64;

/// What the command line asks for.
#[derive(Default)]
struct Asked {
    target: Option<&'static Target>,
    seed: Option<u64>,
    input: Option<Vec<u8>>,
    list: bool,
}

fn main() -> ExitCode {
    let wrong = |message: &str| {
        eprintln!("aster-fuzz: {message}\n{USAGE}");
        ExitCode::from(USAGE_CODE)
    };
    let (options, words) = match Options::take(std::env::args().skip(1)) {
        Ok(taken) => taken,
        Err(error) => return wrong(&error.to_string()),
    };
    let asked = match ask(&words) {
        Ok(asked) => asked,
        Err(message) => return wrong(&message),
    };
    if asked.list {
        for target in &targets::ALL {
            println!("{:<13} {}", target.name, target.what);
        }
        return ExitCode::SUCCESS;
    }
    match (asked.target, asked.input) {
        (Some(target), Some(input)) => return run_once(target, &input),
        (None, Some(_)) => return wrong("--input needs --target"),
        _ => {}
    }
    let seed = asked.seed.unwrap_or_else(fresh_seed);
    let deadline = Deadline::after_s(options.seconds.unwrap_or(SECONDS));
    let mut evidence = run(asked.target, seed, &deadline);
    print!("{evidence}");
    if let Err(error) = evidence.write(options.evidence(), deadline.elapsed()) {
        eprintln!("aster-fuzz: {error}");
        return ExitCode::FAILURE;
    }
    match evidence.is_sound() {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    }
}

fn ask(words: &[String]) -> Result<Asked, String> {
    let mut asked = Asked::default();
    let mut words = words.iter();
    while let Some(word) = words.next() {
        if word == "--list" {
            asked.list = true;
            continue;
        }
        let value = words
            .next()
            .ok_or(format!("{word} is unknown or needs a value"))?;
        match word.as_str() {
            "--target" => {
                let target = targets::find(value).ok_or(format!("no target {value}"))?;
                asked.target = Some(target);
            }
            "--seed" => {
                asked.seed = Some(value.parse().map_err(|_| format!("{value} is no seed"))?);
            }
            "--input" => asked.input = Some(bytes_of(value).ok_or("--input needs hexadecimal")?),
            _ => return Err(format!("{word} is unknown")),
        }
    }
    Ok(asked)
}

fn bytes_of(digits: &str) -> Option<Vec<u8>> {
    let digits: Option<Vec<u8>> = digits
        .chars()
        .map(|digit| {
            digit
                .to_digit(16)
                .and_then(|digit| u8::try_from(digit).ok())
        })
        .collect();
    let pairs = digits?;
    let is_whole = pairs.len().is_multiple_of(2);
    is_whole.then(|| pairs.chunks(2).map(|pair| pair[0] << 4 | pair[1]).collect())
}

fn fresh_seed() -> u64 {
    let mut bytes = [0; 4];
    match SystemEntropy.fill(&mut bytes) {
        Ok(()) => u64::from(u32::from_le_bytes(bytes)),
        Err(_) => SEED,
    }
}

fn run_once(target: &Target, input: &[u8]) -> ExitCode {
    match runner::once(target.run, input) {
        Ok(_) => {
            println!("{}: held", target.name);
            ExitCode::SUCCESS
        }
        Err(message) => {
            println!("{}: {message}", target.name);
            ExitCode::FAILURE
        }
    }
}

fn run(only: Option<&'static Target>, seed: u64, deadline: &Deadline) -> Evidence {
    let mut evidence = Evidence::new(
        "fuzz",
        "everything that reads bytes from a user, a peer or a disk, on mutated inputs",
        "cargo run -p aster-fuzz -- --seconds 600",
    );
    evidence.seed(seed);
    let is_asked = |name: &str| only.is_none_or(|target| target.name == name);
    for control in targets::controls() {
        if !is_asked(control.target) {
            continue;
        }
        let Some(target) = targets::find(control.target) else {
            evidence.missed(control.rule, control.planted, "it names no target");
            continue;
        };
        let report = runner::search(target, control.run, SEED, Until::Executions(EXECUTIONS_MAX));
        let seen = match &report.failure {
            Some(failure) => format!(
                "{} after {} runs: {}",
                control.target,
                report.executions,
                first_words(failure)
            ),
            None => format!("not in {} runs", report.executions),
        };
        // Under the words that it is held under.
        let planted = format!("{} ({})", control.planted, control.rule);
        evidence.control(target.what, &planted, report.failure.is_some(), &seen);
    }
    let asked: Vec<&Target> = targets::ALL
        .iter()
        .filter(|target| is_asked(target.name))
        .collect();
    for (done, target) in asked.iter().enumerate() {
        let share = deadline.left() / u32::try_from(asked.len() - done).unwrap_or(1);
        let until = Until::Elapsed(share.max(Duration::from_secs(1)));
        let report = runner::search(target, target.run, seed, until);
        evidence.tried(&format!("inputs of {}", target.name), report.executions);
        evidence.tried("different outcomes", report.outcomes as u64);
        match report.failure {
            Some(failure) => evidence.broken(failure.to_string()),
            None => evidence.held(target.what),
        }
    }
    evidence.not_covered(
        "damage that SQLite itself does not see: a page that was lost whole, so that a row seems to be absent",
    );
    evidence.not_covered("the C code of SQLite itself, which its authors fuzz");
    evidence
}

fn first_words(failure: &Failure) -> String {
    failure.message.chars().take(120).collect()
}
