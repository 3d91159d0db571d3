//! The project's chores. `cargo xtask verify` only reads; `cargo xtask fix` rewrites.
#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a chore talks to the person who runs it"
)]

mod checks;
mod fix;
mod repository;
mod step;
mod verify;

use std::process::ExitCode;

use repository::Repository;

const USAGE: &str = "\
usage: cargo xtask verify [STEP…]   check everything, or only the named steps; changes nothing
       cargo xtask verify --list    name the steps
       cargo xtask fix              rewrite what can be repaired: format, lints, quoted examples
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
        ("fix", []) => fix::run(&repository),
        _ => {
            eprint!("{USAGE}");
            ExitCode::from(64)
        }
    }
}
