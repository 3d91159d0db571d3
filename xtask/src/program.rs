//! Programs of the repository that a chore only starts: they say themselves how to use them.

use std::process::{Command, ExitCode};

use crate::repository::Repository;

/// The simulation, in a release build.
pub(crate) const SIM: &[&str] = &["--release", "--package", "aster-sim"];
/// The orders of threads: a workspace of its own.
pub(crate) const INTERLEAVINGS: &[&str] = &[
    "--manifest-path",
    "verify/interleavings/Cargo.toml",
    "--target-dir",
    "target/interleavings",
];

/// Runs the program that cargo finds by `place` with `arguments`, and ends as it does.
pub(crate) fn run(repository: &Repository, place: &[&str], arguments: &[String]) -> ExitCode {
    let status = Command::new("cargo")
        .args(["run", "--locked"])
        .args(place)
        .arg("--")
        .args(arguments)
        .current_dir(repository.root())
        .status();
    match status {
        Ok(status) if status.success() => ExitCode::SUCCESS,
        Ok(status) => ExitCode::from(
            status
                .code()
                .and_then(|code| code.try_into().ok())
                .unwrap_or(1),
        ),
        Err(error) => {
            eprintln!("xtask: cargo: {error}");
            ExitCode::FAILURE
        }
    }
}
