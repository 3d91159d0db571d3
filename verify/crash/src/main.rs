//! `aster-crash`: the SQLite store dies thousands of times. Needs root and `/dev/fuse`.
#![cfg_attr(
    target_os = "linux",
    allow(
        clippy::print_stdout,
        clippy::print_stderr,
        reason = "it talks to the person who runs it"
    )
)]

#[cfg(target_os = "linux")]
mod program;

#[cfg(target_os = "linux")]
fn main() -> std::process::ExitCode {
    program::main()
}

#[cfg(not(target_os = "linux"))]
fn main() {}
