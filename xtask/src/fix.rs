//! `cargo xtask fix`: rewrites what a program can repair.

use std::process::ExitCode;

use crate::checks::quotes;
use crate::repository::Repository;
use crate::step::{Action, Step};

pub(crate) fn run(repository: &Repository) -> ExitCode {
    let steps = [
        program(
            "clippy",
            &[
                "cargo",
                "clippy",
                "--quiet",
                "--fix",
                "--allow-dirty",
                "--allow-staged",
                "--workspace",
                "--all-targets",
            ],
        ),
        program("format", &["cargo", "fmt", "--all"]),
        program(
            "no_std lock file",
            &[
                "cargo",
                "update",
                "--quiet",
                "--workspace",
                "--manifest-path",
                "verify/no_std/Cargo.toml",
            ],
        ),
        program(
            "interleavings format",
            &[
                "cargo",
                "fmt",
                "--all",
                "--manifest-path",
                "verify/interleavings/Cargo.toml",
            ],
        ),
        program(
            "interleavings lock file",
            &[
                "cargo",
                "update",
                "--quiet",
                "--workspace",
                "--manifest-path",
                "verify/interleavings/Cargo.toml",
            ],
        ),
    ];
    let mut failed = false;
    for step in &steps {
        let (outcome, took) = step.run(repository);
        println!("{:<24} {:>6.1} s", step.name, took.as_secs_f64());
        if let Err(message) = outcome {
            println!("{message}\n       to repair: {}", step.remedy);
            failed = true;
        }
    }
    match quotes::rewrite(repository) {
        Ok(pages) => println!("quoted examples  {} pages rewritten", pages.len()),
        Err(message) => {
            println!("quoted examples: {message}");
            failed = true;
        }
    }
    if failed {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    }
}

fn program(name: &'static str, words: &'static [&'static str]) -> Step {
    Step {
        name,
        what: "",
        remedy: "correct the error above by hand, then run this again",
        actions: vec![Action::Program {
            words,
            environment: &[],
        }],
    }
}
