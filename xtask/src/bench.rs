//! `cargo xtask bench`: a release build, the measurements, and their table in the docs.

use std::process::{Command, ExitCode, Stdio};

use crate::printed;
use crate::repository::Repository;

const PAGE: &str = "docs/benchmarks.md";

/// Runs the cases named in `arguments`, or all. Only a whole run at full size is written to the page.
pub(crate) fn run(repository: &Repository, arguments: &[String]) -> ExitCode {
    match measure(repository, arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("xtask: {message}");
            ExitCode::FAILURE
        }
    }
}

fn measure(repository: &Repository, arguments: &[String]) -> Result<(), String> {
    // The measuring program starts another one that it finds beside itself.
    let build = ["build", "--release", "--locked", "--package", "aster-bench"];
    let built = cargo(repository, &build)
        .status()
        .map_err(|error| format!("cargo: {error}"))?;
    if !built.success() {
        return Err(format!("the release build failed ({built})"));
    }
    let run = [
        "run",
        "--quiet",
        "--release",
        "--locked",
        "--package",
        "aster-bench",
        "--bin",
        "aster-bench",
        "--",
    ];
    let output = cargo(repository, &run)
        .args(arguments)
        .stderr(Stdio::inherit())
        .output()
        .map_err(|error| format!("cargo: {error}"))?;
    let said = String::from_utf8_lossy(&output.stdout);
    print!("{said}");
    if !output.status.success() {
        return Err(format!("the measurements failed ({})", output.status));
    }
    if !arguments.is_empty() {
        return Ok(());
    }
    printed::put(repository, PAGE, &said)?;
    println!("written to {PAGE}");
    Ok(())
}

fn cargo(repository: &Repository, words: &[&str]) -> Command {
    let mut command = Command::new("cargo");
    command
        .args(words)
        .current_dir(repository.root())
        .stdin(Stdio::null());
    command
}
