//! A small process beside the run that outlives it by a moment: when the run is gone, or stopped past the
//! end of its lease, it kills the command's process group.
//!
//! The run tells it what to do in lines on a pipe: `group ID`, `directory PATH` (in hexadecimal),
//! `deadline NANOSECONDS` on the boot-time clock, `done`. The end of the pipe without `done` means that the
//! run was killed.

use std::io::{self, Read, Write};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::Duration;

use aster::lease::clock::boot_time;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, Signal, kill_process_group};

use super::group::Group;
use super::launch::OWN_PROGRAM;
use crate::failure::Failure;
use crate::socket::server::remove_private_directory;

/// The guard looks at the clock at least this often: a wait does not count suspension.
const LOOK_AGAIN: Duration = Duration::from_secs(1);
/// The longest line that the run sends: a path in hexadecimal.
const LINE_BYTES_MAX: usize = 16 * 1024;
/// A guard that is killed is replaced, but not for ever.
const STARTS_MAX: u32 = 8;
/// How often the guard kills, with a pause, before it gives up on a group that does not end.
const KILLS_MAX: u32 = 200;
const KILL_PAUSE: Duration = Duration::from_millis(10);

/// The run's side: the process, and all that it has been told.
#[derive(Debug)]
pub(crate) struct Guard {
    process: Child,
    pipe: ChildStdin,
    told: Vec<String>,
    deadline: Option<String>,
    starts: u32,
}

impl Guard {
    pub(crate) fn start(directory: &Path) -> Result<Self, Failure> {
        let (process, pipe) =
            spawn().map_err(|error| Failure::io("cannot start the guard process", &error))?;
        let mut guard = Self {
            process,
            pipe,
            told: Vec::new(),
            deadline: None,
            starts: 1,
        };
        let bytes = directory.as_os_str().as_bytes().iter();
        let hexadecimal: String = bytes.map(|byte| format!("{byte:02x}")).collect();
        guard.remember(format!("directory {hexadecimal}"));
        Ok(guard)
    }

    pub(crate) fn watch_group(&mut self, group: &Group) {
        self.remember(format!("group {}", group.id().as_raw_nonzero()));
    }

    /// Kill the group at this boot time unless told a later one before.
    pub(crate) fn set_deadline(&mut self, boot: Duration) {
        let line = format!("deadline {}", boot.as_nanos());
        self.tell(&line);
        self.deadline = Some(line);
    }

    /// Starts another one if somebody has killed this one.
    pub(crate) fn revive(&mut self) {
        if !matches!(self.process.try_wait(), Ok(Some(_))) || self.starts >= STARTS_MAX {
            return;
        }
        self.starts += 1;
        match spawn() {
            Ok((process, pipe)) => {
                tracing::warn!("the guard process was killed; another one is in its place");
                self.process = process;
                self.pipe = pipe;
                let told = self.told.iter().chain(&self.deadline).cloned();
                for line in told.collect::<Vec<_>>() {
                    self.tell(&line);
                }
            }
            Err(error) => tracing::error!(%error, "cannot start another guard process"),
        }
    }

    /// The group is gone; nothing is left to guard.
    pub(crate) fn finish(mut self) {
        self.tell("done");
        let Self {
            mut process, pipe, ..
        } = self;
        drop(pipe);
        for _ in 0..KILLS_MAX {
            match process.try_wait() {
                Ok(None) => std::thread::sleep(KILL_PAUSE),
                _ => return,
            }
        }
    }

    fn remember(&mut self, line: String) {
        self.tell(&line);
        self.told.push(line);
    }

    /// Lines are shorter than what a pipe writes at once, so they never mix or tear.
    fn tell(&mut self, line: &str) {
        if let Err(error) = self.pipe.write_all(format!("{line}\n").as_bytes()) {
            tracing::warn!(%error, "the guard process does not listen");
        }
    }
}

/// In a process group of its own, so that the terminal's signals pass it by.
fn spawn() -> io::Result<(Child, ChildStdin)> {
    let mut process = Command::new(OWN_PROGRAM)
        .arg0("aster")
        .arg("__guard")
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .current_dir("/")
        .process_group(0)
        .spawn()?;
    let pipe = process
        .stdin
        .take()
        .ok_or_else(|| io::Error::other("it has no pipe"))?;
    // A guard that is stopped must not stop the run too.
    rustix::io::ioctl_fionbio(&pipe, true)?;
    Ok((process, pipe))
}

/// What the guard has been told so far.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Orders {
    pub(crate) group: Option<i32>,
    pub(crate) directory: Option<PathBuf>,
    pub(crate) deadline: Option<Duration>,
    pub(crate) done: bool,
}

impl Orders {
    fn take(&mut self, line: &str) {
        match line.split_once(' ') {
            // To the kernel 0 is our own group, 1 is everybody, and a negative one is a single process.
            Some(("group", id)) => self.group = id.parse().ok().filter(|id| *id > 1),
            Some(("deadline", nanos)) => {
                self.deadline = nanos.parse().ok().map(Duration::from_nanos);
            }
            Some(("directory", hexadecimal)) => self.directory = path_of(hexadecimal),
            _ => self.done |= line == "done",
        }
    }
}

fn path_of(hexadecimal: &str) -> Option<PathBuf> {
    // A sign would be read too.
    if !hexadecimal.bytes().all(|digit| digit.is_ascii_hexdigit()) {
        return None;
    }
    let bytes: Option<Vec<u8>> = (0..hexadecimal.len())
        .step_by(2)
        .map(|at| u8::from_str_radix(hexadecimal.get(at..at + 2)?, 16).ok())
        .collect();
    Some(PathBuf::from(std::ffi::OsString::from_vec(bytes?)))
}

/// The hidden subcommand.
pub(crate) fn guard() {
    let mut orders = Orders::default();
    let mut pending = Vec::new();
    loop {
        match wait_for_input(orders.deadline) {
            Ok(Input::Ready) => {
                match read_lines(&mut io::stdin().lock(), &mut pending, &mut orders) {
                    Ok(true) => {}
                    Ok(false) | Err(_) => break,
                }
            }
            Ok(Input::Nothing) => {}
            Err(_) => break,
        }
        if orders.done {
            return;
        }
        if orders
            .deadline
            .is_some_and(|deadline| boot_time() >= deadline)
        {
            // The run is stopped or stuck, and its lease is about to end. It may come back and be done.
            kill_group(&orders);
            orders.deadline = None;
        }
    }
    if !orders.done {
        kill_group(&orders);
        if let Some(directory) = &orders.directory {
            remove_private_directory(directory);
        }
    }
}

enum Input {
    Ready,
    Nothing,
}

fn wait_for_input(deadline: Option<Duration>) -> io::Result<Input> {
    let wait = match deadline {
        Some(deadline) => deadline.saturating_sub(boot_time()).min(LOOK_AGAIN),
        None => LOOK_AGAIN,
    };
    let timeout = Timespec::try_from(wait).map_err(io::Error::other)?;
    let stdin = rustix::stdio::stdin();
    let mut fds = [PollFd::new(&stdin, PollFlags::IN)];
    match poll(&mut fds, Some(&timeout)) {
        Ok(0) | Err(rustix::io::Errno::INTR) => Ok(Input::Nothing),
        Ok(_) => Ok(Input::Ready),
        Err(error) => Err(error.into()),
    }
}

/// `false` at the end of the pipe.
pub(crate) fn read_lines(
    pipe: &mut impl Read,
    pending: &mut Vec<u8>,
    orders: &mut Orders,
) -> io::Result<bool> {
    let mut chunk = [0; 4096];
    let read = pipe.read(&mut chunk)?;
    pending.extend_from_slice(&chunk[..read]);
    while let Some(end) = pending.iter().position(|byte| *byte == b'\n') {
        let line: Vec<u8> = pending.drain(..=end).collect();
        orders.take(String::from_utf8_lossy(&line).trim_end());
    }
    if pending.len() > LINE_BYTES_MAX {
        return Err(io::Error::other("a line without an end"));
    }
    Ok(read > 0)
}

fn kill_group(orders: &Orders) {
    let Some(id) = orders.group.and_then(Pid::from_raw) else {
        return;
    };
    let group = Group::of_leader(id);
    for _ in 0..KILLS_MAX {
        if kill_process_group(id, Signal::KILL).is_err() || group.is_gone() {
            return;
        }
        std::thread::sleep(KILL_PAUSE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orders_are_read_and_nonsense_is_ignored() {
        let mut orders = Orders::default();
        for line in [
            "group 77",
            "deadline 1500000000",
            "directory 2f746d70ff",
            "",
            "x y",
            "group",
        ] {
            orders.take(line);
        }
        assert_eq!(orders.group, Some(77));
        assert_eq!(orders.deadline, Some(Duration::from_millis(1_500)));
        let path = orders.directory.as_deref().unwrap();
        assert_eq!(path.as_os_str().as_bytes(), b"/tmp\xff");
        assert!(!orders.done);
        orders.take("done");
        assert!(orders.done);
    }

    #[test]
    fn no_group_but_that_of_a_run_is_ever_taken() {
        for line in [
            "group 1",
            "group 0",
            "group -1",
            "group -77",
            "group 99999999999",
        ] {
            let mut orders = Orders::default();
            orders.take(line);
            assert_eq!(orders.group, None, "{line}");
        }
        let mut orders = Orders::default();
        orders.take("directory +f+f");
        assert_eq!(orders.directory, None);
    }
}
