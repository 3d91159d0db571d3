//! What `aster-crash` does: rounds of all kinds until its time is over, then the controls.

use std::path::Path;
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use aster_crash::VolatileDisk;
use aster_crash::controls::Planted;
use aster_crash::judge::judge_here;
use aster_crash::lives::{Mounted, ordered};
use aster_crash::rounds::{Kind, Tally, run};
use aster_crash::rules::{Broken, Rule};
use aster_crash::work::work;
use aster_evidence::{Deadline, Evidence, Options};
use aster_lease::{Entropy as _, SystemEntropy};

const USAGE: &str = "\
usage: aster-crash [--seconds N] [--evidence FILE] [--start S]   go on for N seconds (60), with seeds from S
       aster-crash --seed S [--cut N]                            one seed; with --cut one place, in every way

A seed repeats what is asked, what fails and which cuts are picked. Threads and processes of a life meet by chance,
so its steps can shift a little from run to run: run a seed several times.
Exit codes: 0 all held, 1 something did not, 64 wrong use, 69 nothing could be checked (it takes root and /dev/fuse).
";
/// Nothing could be checked: neither a pass nor a broken rule.
const NOT_CHECKED: u8 = 69;
const SECONDS: u64 = 60;
/// How many cuts one life is good for.
const CUTS_EACH: usize = 60;
const COMMAND: &str = "cargo run --release -p aster-crash --";

struct Arguments {
    options: Options,
    start: Option<u64>,
    seed: Option<u64>,
    cut: Option<usize>,
}

pub(crate) fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    // What this program starts itself as.
    if let Some((directory, plan)) = ordered(&words) {
        return done(&work(directory, &plan));
    }
    if let [order, directory, boot] = words.as_slice()
        && order == "judge"
        && let Ok(boot) = boot.parse()
    {
        return done(&judge_here(Path::new(directory), boot));
    }
    match parse(words) {
        Ok(arguments) => go(&arguments),
        Err(message) => {
            eprint!("aster-crash: {message}\n{USAGE}");
            ExitCode::from(64)
        }
    }
}

fn go(arguments: &Arguments) -> ExitCode {
    let program = match std::env::current_exe() {
        Ok(program) => program,
        Err(error) => {
            eprintln!("aster-crash: {error}");
            return ExitCode::FAILURE;
        }
    };
    let seconds = arguments.options.seconds.unwrap_or(SECONDS);
    let deadline = Deadline::after_s(seconds);
    let mut evidence = Evidence::new(
        "crash",
        "the SQLite store dies at any write and any sync: power loss, kill -9, failing disks",
        &format!("{COMMAND} --seconds {seconds}"),
    );
    if let Err(error) = Mounted::new(VolatileDisk::new()) {
        eprintln!("not checked: FUSE cannot be mounted here ({error}); run as root with /dev/fuse");
        evidence.not_covered("anything: FUSE could not be mounted, which takes root and /dev/fuse");
        let _ = finish(evidence, arguments, &deadline);
        return ExitCode::from(NOT_CHECKED);
    }
    if let Some(seed) = arguments.seed {
        let mut tally = Tally::default();
        println!("seed {seed}: {:?}", Kind::of(seed));
        evidence.seed(seed);
        note(
            &mut evidence,
            run(&program, seed, CUTS_EACH, arguments.cut, &mut tally),
            seed,
        );
        count(&mut evidence, &tally);
        return finish(evidence, arguments, &deadline);
    }
    let start = arguments.start.unwrap_or_else(fresh);
    let seeds = go_on_until(&deadline, &program, start, &mut evidence);
    evidence.seed(format!("{start} to {}", start.wrapping_add(seeds)));
    for planted in Planted::ALL {
        let rule = planted.rule().text();
        match planted.find(&program, start) {
            Ok(Some(seen)) => evidence.caught(rule, planted.what(), &short(&seen)),
            Ok(None) => evidence.missed(rule, planted.what(), "nothing was noticed"),
            Err(error) => evidence.missed(rule, planted.what(), &short(&error)),
        }
    }
    evidence.not_covered("disks that lie about a sync, or change what they once kept");
    evidence
        .not_covered("the file systems under a real disk, and other operating systems than Linux");
    evidence.not_covered(
        "a sync that failed, a process killed before its next commit, and then a power loss",
    );
    finish(evidence, arguments, &deadline)
}

/// Rounds, two at a time, until the time is over or a rule is broken. Answers how many.
fn go_on_until(deadline: &Deadline, program: &Path, start: u64, evidence: &mut Evidence) -> u64 {
    let next = AtomicU64::new(0);
    let shared = Mutex::new((Tally::default(), evidence));
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while !deadline.is_over() {
                    let seed = start.wrapping_add(next.fetch_add(1, Ordering::Relaxed));
                    let mut tally = Tally::default();
                    let result = run(program, seed, CUTS_EACH, None, &mut tally);
                    let mut shared = shared.lock().unwrap_or_else(PoisonError::into_inner);
                    shared.0.add(&tally);
                    note(shared.1, result, seed);
                    if !shared.1.broken.is_empty() {
                        return;
                    }
                }
            });
        }
    });
    let (tally, evidence) = shared.into_inner().unwrap_or_else(PoisonError::into_inner);
    count(evidence, &tally);
    if evidence.broken.is_empty() {
        for rule in Rule::ALL {
            evidence.held(rule.text());
        }
    }
    next.into_inner()
}

fn note(evidence: &mut Evidence, result: Result<(), Broken>, seed: u64) {
    if let Err(what) = result {
        let broken = format!("seed {seed}: {what}; repeat it with: {COMMAND} --seed {seed}");
        eprintln!("{broken}");
        evidence.broken(broken);
    }
}

fn count(evidence: &mut Evidence, tally: &Tally) {
    evidence.tried("lives of the store recorded", tally.lives);
    evidence.tried("writes, syncs and changes of names in them", tally.steps);
    evidence.tried("power cuts judged", tally.cuts);
    evidence.tried("power cuts that left the same as another", tally.repeated);
    evidence.tried(
        "second power cuts, mostly during the recovery",
        tally.second_cuts,
    );
    evidence.tried("processes killed in a write or a sync", tally.kills);
    evidence.tried("of those with another process at work", tally.survived);
    evidence.tried("writes and syncs that failed", tally.faults);
    evidence.tried("requests that were told of a failure", tally.failures);
    evidence.tried(
        "acknowledgements found again, over all cuts",
        tally.acknowledged,
    );
}

fn finish(mut evidence: Evidence, arguments: &Arguments, deadline: &Deadline) -> ExitCode {
    print!("{evidence}");
    if let Err(error) = evidence.write(arguments.options.evidence(), deadline.elapsed()) {
        eprintln!("aster-crash: {error}");
        return ExitCode::FAILURE;
    }
    match evidence.is_sound() {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    }
}

fn parse(words: Vec<String>) -> Result<Arguments, String> {
    let (options, others) = Options::take(words).map_err(|error| error.to_string())?;
    let mut arguments = Arguments {
        options,
        start: None,
        seed: None,
        cut: None,
    };
    let mut others = others.into_iter();
    while let Some(word) = others.next() {
        let mut number = || -> Result<u64, String> {
            let text = others.next().ok_or(format!("{word} needs a number"))?;
            text.parse().map_err(|_| format!("{text} is no number"))
        };
        match word.as_str() {
            "--start" => arguments.start = Some(number()?),
            "--seed" => arguments.seed = Some(number()?),
            "--cut" => arguments.cut = usize::try_from(number()?).ok(),
            _ => return Err(format!("{word} is not understood")),
        }
    }
    if arguments.cut.is_some() && arguments.seed.is_none() {
        return Err("--cut needs --seed".to_owned());
    }
    Ok(arguments)
}

/// A start that nobody has tried before; the same as last time where there is no randomness.
fn fresh() -> u64 {
    let mut bytes = [0; 4];
    let _ = SystemEntropy.fill(&mut bytes);
    u64::from(u32::from_le_bytes(bytes))
}

fn done(result: &std::io::Result<()>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("aster-crash: {error}");
            ExitCode::FAILURE
        }
    }
}

/// The first words of what was seen: it stands in a table.
fn short(seen: &str) -> String {
    const LENGTH_MAX: usize = 160;
    let mut text: String = seen.chars().take(LENGTH_MAX).collect();
    if text.len() < seen.len() {
        text.push('…');
    }
    text
}
