//! `cargo xtask interleavings`: the program of a workspace of its own.

use std::process::{Command, ExitCode};

use crate::repository::Repository;

/// Hands `arguments` on to the program, which says how to use it.
pub(crate) fn run(repository: &Repository, arguments: &[String]) -> ExitCode {
    let status = Command::new("cargo")
        .args([
            "run",
            "--quiet",
            "--locked",
            "--manifest-path",
            "verify/interleavings/Cargo.toml",
            "--target-dir",
            "target/interleavings",
            "--",
        ])
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
