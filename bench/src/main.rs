//! What Aster costs, measured beside the bare thing in the same run: `cargo xtask bench`.
//!
//! | file | what lives there |
//! |---|---|
//! | `main.rs` | the arguments, and which cases run |
//! | `cases/` | one file for each thing that is measured |
//! | `bare.rs` | what Aster is measured beside |
//! | `measure.rs` | interleaved rounds, median and spread; the clocks |
//! | `machine.rs` | what it was measured on |
//! | `table.rs` | the lines of the result |
//! | `leases.rs` | grants and ids for the cases |
//! | `bytes.rs` | a program of its own, whose allocator counts |
#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "it talks to the person who runs it"
)]

mod bare;
mod cases;
mod leases;
mod measure;
mod table;

use std::process::ExitCode;

use measure::{Failure, Scale};

const USAGE: &str = "\
usage: aster-bench [--quick] [NAME…]   measures everything, or only the named cases
       aster-bench --list              names the cases
       --quick takes seconds, and its numbers mean nothing
";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    // Some cases need another process: this program again.
    if let Some(("--role", role)) = arguments
        .split_first()
        .map(|(first, rest)| (first.as_str(), rest))
    {
        return finish(cases::play(role));
    }
    let (flags, names): (Vec<_>, Vec<_>) = arguments.iter().partition(|word| word.starts_with('-'));
    let mut scale = Scale::full();
    for flag in flags {
        match flag.as_str() {
            "--quick" => scale = Scale::quick(),
            "--list" => {
                for case in cases::ALL {
                    println!("{:<14} {}", case.name, case.what);
                }
                return ExitCode::SUCCESS;
            }
            _ => return usage(),
        }
    }
    if !names
        .iter()
        .all(|name| cases::ALL.iter().any(|case| case.name == **name))
    {
        return usage();
    }
    finish(run(scale, &names))
}

fn run(scale: Scale, names: &[&String]) -> Result<(), Failure> {
    let mut lines = Vec::new();
    for case in cases::ALL {
        if names.is_empty() || names.iter().any(|name| *name == case.name) {
            eprintln!("{}: {}", case.name, case.what);
            lines.extend((case.run)(scale)?);
        }
    }
    if scale.is_quick() {
        println!("A quick run: these numbers mean nothing.\n");
    }
    println!("`cargo xtask bench` on {}:\n", aster_evidence::machine());
    print!("{}", table::markdown(&lines));
    Ok(())
}

fn usage() -> ExitCode {
    eprint!("{USAGE}");
    ExitCode::from(64)
}

fn finish(result: Result<(), Failure>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("aster-bench: {failure}");
            ExitCode::FAILURE
        }
    }
}
