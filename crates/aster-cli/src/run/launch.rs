//! From us to the command: a hidden subcommand of our own binary that ties itself to the run and then
//! becomes the command. Doing it there needs no code between fork and exec.

use std::env;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use rustix::process::{Pid, Signal, getpid, getppid, set_parent_process_death_signal};

use crate::arguments::LaunchArguments;
use crate::failure::{Failure, FailureKind};
use crate::socket::client;
use crate::socket::frame::{Answer, Request};
use crate::socket::{RESOURCE_VARIABLE, SOCKET_VARIABLE};

/// Our own program, also when its file was replaced in the meantime.
pub(crate) const OWN_PROGRAM: &str = "/proc/self/exe";
/// Exit codes of a command that could not start, as shells give them.
const CANNOT_EXECUTE: u8 = 126;
const NOT_FOUND: u8 = 127;

/// What the command finds in its environment.
#[derive(Debug)]
pub(crate) struct Surroundings<'a> {
    pub(crate) socket: &'a Path,
    pub(crate) resource: &'a str,
    /// For the command's own `aster inspect` and the like: the same store and identity.
    pub(crate) store: &'a OsStr,
    pub(crate) identity: &'a Path,
}

/// Starts the launcher in a process group of its own.
///
/// Call it on the main thread only: the kernel ties the command's life to the thread that started it.
pub(crate) fn start(command: &[OsString], surroundings: &Surroundings<'_>) -> Result<Pid, Failure> {
    let mut launcher = Command::new(OWN_PROGRAM);
    launcher
        .arg0("aster")
        .arg("__launch")
        .arg("--parent")
        .arg(getpid().as_raw_nonzero().to_string())
        .arg("--")
        .args(command)
        .env(SOCKET_VARIABLE, surroundings.socket)
        .env(RESOURCE_VARIABLE, surroundings.resource)
        .env("ASTER_STORE", surroundings.store)
        .env("ASTER_IDENTITY", surroundings.identity)
        .process_group(0);
    if let Some(path) = path_with_us() {
        launcher.env("PATH", path);
    }
    let child = launcher
        .spawn()
        .map_err(|error| Failure::io("cannot start a process for the command", &error))?;
    i32::try_from(child.id())
        .ok()
        .and_then(Pid::from_raw)
        .ok_or_else(|| Failure::new(FailureKind::Internal, "the child has no process id"))
}

/// `PATH` with our own directory at its end, unless it finds an `aster` already.
fn path_with_us() -> Option<OsString> {
    let own_directory = env::current_exe().ok()?.parent()?.to_owned();
    let path = env::var_os("PATH").unwrap_or_default();
    let directories: Vec<_> = env::split_paths(&path).collect();
    if directories
        .iter()
        .any(|directory| directory.join("aster").is_file())
    {
        return None;
    }
    env::join_paths(directories.into_iter().chain([own_directory])).ok()
}

/// The hidden subcommand. Returns only if the command could not start.
pub(crate) fn launch(arguments: &LaunchArguments) -> Result<u8, Failure> {
    set_parent_process_death_signal(Some(Signal::KILL))
        .map_err(|error| Failure::io("cannot tie the command to its run", &error.into()))?;
    // Had the run died before the line above, nobody would ever send that signal.
    if getppid().map(|parent| parent.as_raw_nonzero().get()) != Some(arguments.parent) {
        return Err(Failure::new(FailureKind::Internal, "the run is gone"));
    }
    // The run answers once the guard knows us and the terminal is ours.
    match client::ask("run", &Request::Ready, &[])? {
        (Answer::Go, _) => {}
        (answer, _) => return Err(client::unexpected(&answer)),
    }
    let Some((program, rest)) = arguments.command.split_first() else {
        return Err(Failure::new(FailureKind::Usage, "no command"));
    };
    let error = Command::new(program).args(rest).exec();
    let code = match error.kind() {
        io::ErrorKind::NotFound => NOT_FOUND,
        _ => CANNOT_EXECUTE,
    };
    crate::output::complain(&format!("cannot run {}: {error}", program.display()));
    Ok(code)
}
