//! Runs seeds: `cargo xtask sim` calls it.
#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "it talks to the person who runs it"
)]

use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use aster_evidence::{Deadline, Evidence, Options};
use aster_lease::{Entropy as _, SystemEntropy};
use aster_sim::{Bug, FOUND_WITHIN, Kind, RULES, Run, Settings, Tally, WorldError, find, run};

const USAGE: &str = "\
usage: cargo xtask sim [--seeds N] [--start S] [--bug NAME]   run N seeds from S (a fresh one by default)
       cargo xtask sim --seconds N [--start S]                plant every bug, and run seeds for N seconds
       cargo xtask sim --seed S [--trace] [--bug NAME]        run one seed; with --trace print what happened
       --store memory|sqlite        with this store only; by default every fourth seed has SQLite
       --evidence FILE              writes what was tried and seen
";
/// How much of the trace is shown for a broken rule.
const TRACE_LINES: usize = 60;
const SEEDS: u64 = 100;
/// Every so many seeds one runs with the SQLite store, unless `--store` says otherwise.
const SQLITE_EVERY: u64 = 4;
/// What is planted beside the SQLite store as well.
const ON_DISK: [Bug; 3] = [
    Bug::UnfencedWrites,
    Bug::ReleaseForgotten,
    Bug::RetryMintsAgain,
];

struct Arguments {
    /// How many seeds, or until the time is over.
    seeds: Option<u64>,
    start: u64,
    trace: bool,
    bug: Option<Bug>,
    /// None: now this, now that one.
    store: Option<Kind>,
    options: Options,
}

/// What all runs came to.
#[derive(Default)]
struct Totals {
    seeds: u64,
    on_disk: u64,
    tally: Tally,
    world_ms: u64,
    served_ms: u64,
    broken: Vec<String>,
}

fn main() -> ExitCode {
    let arguments = match parse(std::env::args().skip(1)) {
        Ok(arguments) => arguments,
        Err(message) => {
            eprint!("sim: {message}\n{USAGE}");
            return ExitCode::from(64);
        }
    };
    let deadline = Deadline::after_s(arguments.options.seconds.unwrap_or(0));
    let mut evidence = Evidence::new(
        "sim",
        "a world that one seed repeats, around the real engine and the real stores",
        &command(&arguments),
    );
    let is_proof = arguments.options != Options::default();
    if is_proof {
        for bug in Bug::ALL {
            plant(bug, Kind::Memory, &mut evidence);
        }
        for bug in ON_DISK {
            plant(bug, Kind::Sqlite, &mut evidence);
        }
    }
    // However long the bugs took, seeds are run too.
    let seconds = arguments.options.seconds.unwrap_or(0);
    let left_s = deadline.left().as_secs().max(seconds.div_ceil(2));
    let totals = simulate(&arguments, Deadline::after_s(left_s));
    println!(
        "{} s of world time, everybody served {} ms after the faults at the latest\n{}",
        totals.world_ms / 1_000,
        totals.served_ms,
        totals.tally
    );
    conclude(&arguments, totals, &mut evidence);
    if is_proof {
        print!("{evidence}");
    }
    if let Err(error) = evidence.write(arguments.options.evidence(), deadline.elapsed()) {
        eprintln!("sim: {error}");
        return ExitCode::FAILURE;
    }
    match evidence.is_sound() {
        true => {
            println!("no rule was broken; {} rules were checked", RULES.len());
            ExitCode::SUCCESS
        }
        false => ExitCode::FAILURE,
    }
}

/// The planted bug has to be found, by the invariant that it breaks.
fn plant(bug: Bug, store: Kind, evidence: &mut Evidence) {
    let (is_caught, seen) = match find(bug, store) {
        Ok(Some(run)) => (true, format!("with seed {}", run.seed)),
        Ok(None) => (false, format!("not in {FOUND_WITHIN} seeds")),
        Err(error) => (false, error.to_string()),
    };
    let rule = in_words(bug.breaks());
    let planted = match store {
        Kind::Memory => bug.name().to_owned(),
        Kind::Sqlite => format!("{} beside the SQLite store", bug.name()),
    };
    evidence.control(&rule, &planted, is_caught, &seen);
}

fn in_words(rule: &str) -> String {
    let words = RULES.iter().find(|(name, _)| *name == rule);
    format!("{rule}: {}", words.map_or("", |(_, words)| words))
}

/// Runs seeds on all processors, up to the first broken rule.
fn simulate(arguments: &Arguments, deadline: Deadline) -> Totals {
    match arguments.seeds {
        Some(seeds) => println!("{seeds} seeds from {}", arguments.start),
        None => println!("seeds from {}", arguments.start),
    }
    let next = AtomicU64::new(0);
    let totals = Mutex::new(Totals::default());
    let lock = || totals.lock().unwrap_or_else(PoisonError::into_inner);
    let work = || {
        while lock().broken.is_empty() {
            let number = next.fetch_add(1, Ordering::Relaxed);
            let is_over = match arguments.seeds {
                Some(seeds) => number >= seeds,
                None => deadline.is_over(),
            };
            if is_over {
                return;
            }
            let seed = arguments.start.wrapping_add(number);
            let settings = Settings {
                seed,
                store: arguments.store(seed),
                bug: arguments.bug,
                trace_lines_max: if arguments.trace {
                    usize::MAX
                } else {
                    TRACE_LINES
                },
            };
            lock().add(settings, run(settings), arguments);
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(work);
        }
    });
    totals.into_inner().unwrap_or_else(PoisonError::into_inner)
}

impl Arguments {
    /// It depends on the seed alone, so that a seed is repeated with its store.
    fn store(&self, seed: u64) -> Kind {
        let by_seed = match seed % SQLITE_EVERY {
            0 => Kind::Sqlite,
            _ => Kind::Memory,
        };
        self.store.unwrap_or(by_seed)
    }
}

impl Totals {
    fn add(&mut self, settings: Settings, run: Result<Run, WorldError>, arguments: &Arguments) {
        let run = match run {
            Ok(run) => run,
            Err(error) => {
                eprintln!("sim: seed {}: {error}", settings.seed);
                self.broken.push(format!("seed {}: {error}", settings.seed));
                return;
            }
        };
        self.seeds += 1;
        self.on_disk += u64::from(settings.store == Kind::Sqlite);
        self.tally.add(&run.tally);
        self.world_ms += run.world_ms;
        self.served_ms = self.served_ms.max(run.served_ms);
        if arguments.trace || run.violation.is_some() {
            for line in &run.trace.text {
                println!("{line}");
            }
            println!(
                "seed {}: {} lines, hash {:016x}, {} ms",
                run.seed, run.trace.lines, run.trace.hash, run.world_ms
            );
        }
        if let Some(violation) = &run.violation {
            let bug = arguments
                .bug
                .map_or(String::new(), |bug| format!(" --bug {}", bug.name()));
            let store = match settings.store {
                Kind::Memory => "memory",
                Kind::Sqlite => "sqlite",
            };
            let broken = format!(
                "{} is broken at {} ms: {}\nrepeat it with: cargo xtask sim --seed {} --store {store}{bug} --trace",
                violation.invariant, violation.at_ms, violation.what, run.seed
            );
            println!("{broken}");
            self.broken.push(broken);
        }
    }
}

fn conclude(arguments: &Arguments, totals: Totals, evidence: &mut Evidence) {
    let (start, end) = (arguments.start, arguments.start.wrapping_add(totals.seeds));
    evidence.seed(format!("{start} up to {end}"));
    evidence.tried("seeds", totals.seeds);
    evidence.tried("of these with the SQLite store", totals.on_disk);
    evidence.tried("seconds of world time", totals.world_ms / 1_000);
    for (kind, count) in totals.tally.iter() {
        evidence.tried(kind, count);
    }
    match totals.broken.is_empty() {
        true if totals.seeds == 0 => evidence.broken("no seed was run: give it more time"),
        true => {
            for (rule, _) in RULES {
                evidence.held(&in_words(rule));
            }
        }
        false => evidence.broken.extend(totals.broken),
    }
    evidence.not_covered("what threads do to each other: each machine has one");
    evidence.not_covered("the SQLite store's queue and watches, and several processes on its file");
    evidence.not_covered("wire bytes: messages are values");
}

fn command(arguments: &Arguments) -> String {
    let bug = arguments
        .bug
        .map_or(String::new(), |bug| format!(" --bug {}", bug.name()));
    let how_long = match (arguments.seeds, arguments.options.seconds) {
        (Some(seeds), _) => format!("--seeds {seeds}"),
        (None, seconds) => format!("--seconds {}", seconds.unwrap_or(0)),
    };
    format!(
        "cargo xtask sim {how_long} --start {}{bug}",
        arguments.start
    )
}

fn parse(words: impl Iterator<Item = String>) -> Result<Arguments, String> {
    let (options, words) = Options::take(words).map_err(|error| error.to_string())?;
    let mut words = words.into_iter();
    let mut arguments = Arguments {
        seeds: match options.seconds {
            Some(_) => None,
            None => Some(SEEDS),
        },
        start: fresh()?,
        trace: false,
        bug: None,
        store: None,
        options,
    };
    while let Some(word) = words.next() {
        let mut number = || -> Result<u64, String> {
            let text = words.next().ok_or(format!("{word} needs a number"))?;
            text.parse().map_err(|_| format!("{text} is no number"))
        };
        match word.as_str() {
            "--seeds" => arguments.seeds = Some(number()?),
            "--start" => arguments.start = number()?,
            "--seed" => {
                arguments.start = number()?;
                arguments.seeds = Some(1);
            }
            "--store" => {
                arguments.store = match words.next().as_deref() {
                    Some("memory") => Some(Kind::Memory),
                    Some("sqlite") => Some(Kind::Sqlite),
                    _ => return Err("--store is memory or sqlite".to_owned()),
                };
            }
            "--trace" => arguments.trace = true,
            "--bug" => {
                let name = words.next().ok_or("--bug needs a name")?;
                let bug = Bug::ALL.into_iter().find(|bug| bug.name() == name);
                arguments.bug = Some(bug.ok_or_else(|| {
                    let names: Vec<_> = Bug::ALL.iter().map(|bug| bug.name()).collect();
                    format!("no bug is called {name}; there are {}", names.join(", "))
                })?);
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
