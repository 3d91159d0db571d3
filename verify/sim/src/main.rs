//! Runs seeds: `cargo xtask sim` calls it.
#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "it talks to the person who runs it"
)]

use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use aster_lease::{Entropy as _, SystemEntropy};
use aster_sim::{Bug, Run, Settings, Tally, run};

const USAGE: &str = "\
usage: cargo xtask sim [--seeds N] [--start S] [--bug NAME]   run N seeds from S (a fresh one by default)
       cargo xtask sim --seed S [--trace] [--bug NAME]        run one seed; with --trace print what happened
";
/// How much of the trace is shown for a broken rule.
const TRACE_LINES: usize = 60;

struct Arguments {
    seeds: u64,
    start: u64,
    trace: bool,
    bug: Option<Bug>,
}

fn main() -> ExitCode {
    let arguments = match parse(std::env::args().skip(1)) {
        Ok(arguments) => arguments,
        Err(message) => {
            eprint!("sim: {message}\n{USAGE}");
            return ExitCode::from(64);
        }
    };
    println!("{} seeds from {}", arguments.seeds, arguments.start);
    let next = AtomicU64::new(0);
    let has_failed = AtomicBool::new(false);
    let totals = Mutex::new((Tally::default(), 0_u64, 0_u64));
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while !has_failed.load(Ordering::Relaxed) {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number >= arguments.seeds {
                        return;
                    }
                    let settings = Settings {
                        seed: arguments.start.wrapping_add(number),
                        bug: arguments.bug,
                        trace_lines_max: if arguments.trace {
                            usize::MAX
                        } else {
                            TRACE_LINES
                        },
                    };
                    match run(settings) {
                        Ok(run) => {
                            let mut totals = totals.lock().unwrap_or_else(PoisonError::into_inner);
                            totals.0.add(&run.tally);
                            totals.1 += run.world_ms;
                            totals.2 = totals.2.max(run.served_ms);
                            if arguments.trace || run.violation.is_some() {
                                show(&run, arguments.bug);
                            }
                            if run.violation.is_some() {
                                has_failed.store(true, Ordering::Relaxed);
                            }
                        }
                        Err(error) => {
                            eprintln!("sim: seed {}: {error}", settings.seed);
                            has_failed.store(true, Ordering::Relaxed);
                        }
                    }
                }
            });
        }
    });
    let totals = totals.lock().unwrap_or_else(PoisonError::into_inner);
    println!(
        "{} s of world time, everybody served {} ms after the faults at the latest\n{}",
        totals.1 / 1_000,
        totals.2,
        totals.0
    );
    match has_failed.load(Ordering::Relaxed) {
        true => ExitCode::FAILURE,
        false => ExitCode::SUCCESS,
    }
}

fn show(run: &Run, bug: Option<Bug>) {
    for line in &run.trace.text {
        println!("{line}");
    }
    println!(
        "seed {}: {} lines, hash {:016x}, {} ms",
        run.seed, run.trace.lines, run.trace.hash, run.world_ms
    );
    if let Some(violation) = &run.violation {
        let bug = bug.map_or(String::new(), |bug| format!(" --bug {}", bug.name()));
        println!(
            "{} is broken at {} ms: {}\nrepeat it with: cargo xtask sim --seed {}{bug} --trace",
            violation.invariant, violation.at_ms, violation.what, run.seed
        );
    }
}

fn parse(mut words: impl Iterator<Item = String>) -> Result<Arguments, String> {
    let mut arguments = Arguments {
        seeds: 100,
        start: fresh()?,
        trace: false,
        bug: None,
    };
    while let Some(word) = words.next() {
        let mut number = || -> Result<u64, String> {
            let text = words.next().ok_or(format!("{word} needs a number"))?;
            text.parse().map_err(|_| format!("{text} is no number"))
        };
        match word.as_str() {
            "--seeds" => arguments.seeds = number()?,
            "--start" => arguments.start = number()?,
            "--seed" => {
                arguments.start = number()?;
                arguments.seeds = 1;
            }
            "--trace" => arguments.trace = true,
            "--bug" => {
                let name = words.next().ok_or("--bug needs a name")?;
                let bug = Bug::ALL.into_iter().find(|bug| bug.name() == name);
                arguments.bug = Some(bug.ok_or(format!("no bug is called {name}"))?);
            }
            _ => return Err(format!("{word} is not understood")),
        }
    }
    Ok(arguments)
}

/// A start that nobody has tried before.
fn fresh() -> Result<u64, String> {
    let mut bytes = [0; 4];
    SystemEntropy
        .fill(&mut bytes)
        .map_err(|error| error.to_string())?;
    Ok(u64::from(u32::from_le_bytes(bytes)))
}
