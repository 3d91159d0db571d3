//! Runs the processes for a given time, and judges a history that was kept.
#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "it talks to the person who runs it"
)]

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use aster_evidence::{Deadline, Options};
use aster_lease::{Entropy as _, SystemEntropy};
use aster_processes::member;
use aster_processes::orders::Orders;
use aster_processes::proof::{self, Order};

const USAGE: &str = "\
usage: aster-processes [--seconds N] [--seed S] [--evidence FILE] [--unfenced] [--keep DIR]
           with the check, with one that comes too early, and without; with --unfenced not with it;
           --keep keeps the histories
       aster-processes check DIR
           judges the history of one run that was kept again
";
/// Our own program, also when its file was replaced in the meantime.
const OWN_PROGRAM: &str = "/proc/self/exe";
const WRONG_USE: u8 = 64;

fn main() -> ExitCode {
    let mut words: Vec<String> = std::env::args().skip(1).collect();
    match words.first().map(String::as_str) {
        Some(aster_processes::WORK) => work(words.get(1)),
        Some("check") if words.len() == 2 => check(Path::new(&words.remove(1))),
        _ => match parse(words) {
            Ok((order, options)) => prove(&order, &options),
            Err(message) => wrong_use(&message),
        },
    }
}

fn wrong_use(message: &str) -> ExitCode {
    eprint!("aster-processes: {message}\n{USAGE}");
    ExitCode::from(WRONG_USE)
}

fn failed(message: &str) -> ExitCode {
    eprintln!("aster-processes: {message}");
    ExitCode::FAILURE
}

fn work(orders: Option<&String>) -> ExitCode {
    let orders: Orders = match serde_json::from_str(orders.map_or("", String::as_str)) {
        Ok(orders) => orders,
        Err(error) => return wrong_use(&error.to_string()),
    };
    match member::work(&orders) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => failed(&error.to_string()),
    }
}

fn prove(order: &Order, options: &Options) -> ExitCode {
    println!("seed {}, about {} s", order.seed, order.seconds);
    let started = Deadline::after_s(order.seconds);
    let mut evidence = match proof::prove(order, Path::new(OWN_PROGRAM)) {
        Ok(evidence) => evidence,
        Err(error) => return failed(&format!("{error}; repeat it with: {}", order.command())),
    };
    print!("{evidence}");
    if let Err(error) = evidence.write(options.evidence(), started.elapsed()) {
        return failed(&error.to_string());
    }
    match evidence.is_sound() {
        true => ExitCode::SUCCESS,
        false => failed(&format!("repeat it with: {}", order.command())),
    }
}

fn check(directory: &Path) -> ExitCode {
    let (settings, checked) = match proof::check_again(directory) {
        Ok(checked) => checked,
        Err(error) => return failed(&format!("{}: {error}", directory.display())),
    };
    println!("{settings:?}\n{:?}\n{:?}", checked.figures, checked.updates);
    for broken in &checked.broken {
        println!("BROKEN {broken}");
    }
    match checked.broken.is_empty() {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    }
}

fn parse(words: Vec<String>) -> Result<(Order, Options), String> {
    let (options, others) = Options::take(words).map_err(|error| error.to_string())?;
    let mut order = Order {
        seed: fresh()?,
        seconds: options.seconds.unwrap_or(proof::SECONDS),
        unfenced_only: false,
        keep: None,
    };
    let mut words = others.into_iter();
    while let Some(word) = words.next() {
        let mut value = || words.next().ok_or(format!("{word} needs a value"));
        match word.as_str() {
            "--seed" => {
                let text = value()?;
                order.seed = text.parse().map_err(|_| format!("{text} is no number"))?;
            }
            "--keep" => order.keep = Some(PathBuf::from(value()?)),
            "--unfenced" => order.unfenced_only = true,
            _ => return Err(format!("{word} is not understood")),
        }
    }
    Ok((order, options))
}

/// A seed that nobody has tried before.
fn fresh() -> Result<u64, String> {
    let mut bytes = [0; 4];
    SystemEntropy
        .fill(&mut bytes)
        .map_err(|error| error.to_string())?;
    Ok(u64::from(u32::from_le_bytes(bytes)))
}
