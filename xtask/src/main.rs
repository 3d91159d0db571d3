//! The project's chores. `cargo xtask verify` only reads; `cargo xtask fix` rewrites; `cargo xtask
//! bench` measures; `cargo xtask sim` simulates; `cargo xtask interleavings` orders threads; `cargo xtask
//! fuzz` fuzzes; `cargo xtask mutants` changes the rules and looks who notices; `cargo xtask proof` shows the promise on one page.
#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a chore talks to the person who runs it"
)]

mod bench;
mod checks;
mod fix;
mod fuzz;
mod mutants;
mod printed;
mod program;
mod proof;
mod repository;
mod step;
mod verify;

use std::process::ExitCode;

use repository::Repository;

const USAGE: &str = "\
usage: cargo xtask verify [STEP…]   check everything, or only the named steps; changes nothing
       cargo xtask verify --list    name the steps
       cargo xtask fix              rewrite what can be repaired: format, lints, quoted examples
       cargo xtask bench            measure everything on a quiet machine, and write the table to
                                    docs/benchmarks.md; changes nothing else
       cargo xtask bench [--quick] [CASE…]   measure the named cases, or all quickly, and print them
       cargo xtask bench --list     name the cases
       cargo xtask sim --seeds N [--start S]   simulate N seeds; --seed S repeats one, --trace shows it
       cargo xtask interleavings [--seconds N] [--seed S]   try orders of the engine's own steps; --list names
                                    the scenarios, --scenario NAME --replay PLAN repeats one order
       cargo xtask mutants [--core|--engine] [FILE…] [--seconds N] [--seed S]   change the rules and the
                                    engine a bit at a time, and demand that their tests notice
       cargo xtask proof [--minutes N] [--output FILE]   run everything that shows the promise, 30 minutes
                                    and builds, and write docs/proof.md, or FILE
       cargo xtask proof [--minutes N] [--page] PART…   run the named parts and print what they saw, or
                                    write docs/proof.md from them alone
       cargo xtask proof --list     name the parts
       cargo xtask fuzz [TARGET…] [--seconds N]   fuzz the targets with libFuzzer; --list names them
";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let Some((command, rest)) = arguments.split_first() else {
        eprint!("{USAGE}");
        return ExitCode::from(64);
    };
    let repository = match Repository::find() {
        Ok(repository) => repository,
        Err(message) => {
            eprintln!("xtask: {message}");
            return ExitCode::FAILURE;
        }
    };
    match (command.as_str(), rest) {
        ("verify", [flag]) if flag == "--list" => {
            verify::list(&repository);
            ExitCode::SUCCESS
        }
        ("verify", names) => verify::run(&repository, names),
        ("sim", arguments) => program::run(&repository, program::SIM, arguments),
        ("interleavings", arguments) => {
            program::run(&repository, program::INTERLEAVINGS, arguments)
        }
        ("proof", [flag]) if flag == "--list" => {
            proof::list();
            ExitCode::SUCCESS
        }
        ("proof", arguments) => proof::run(&repository, arguments),
        ("fuzz", arguments) => fuzz::run(&repository, arguments),
        ("mutants", arguments) => mutants::run(&repository, arguments),
        ("fix", []) => fix::run(&repository),
        ("bench", arguments) => bench::run(&repository, arguments),
        _ => {
            eprint!("{USAGE}");
            ExitCode::from(64)
        }
    }
}
