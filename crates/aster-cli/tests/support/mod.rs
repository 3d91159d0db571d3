//! Real processes of the real program, each test in a directory of its own.
#![allow(dead_code, reason = "each test file uses a part of it")]
#![allow(
    clippy::unwrap_used,
    reason = "a failure here is a failure of the test"
)]

use std::ffi::OsStr;
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process, test_kill_process};
use serde_json::Value;
use tempfile::TempDir;

pub(crate) const ASTER: &str = env!("CARGO_BIN_EXE_aster");
/// The resource of most tests.
pub(crate) const CATALOG: &str = "catalog/current";
/// No condition takes longer, also on a busy machine: a minute.
const POLLS_MAX: u32 = 6_000;
const POLL_PAUSE: Duration = Duration::from_millis(10);

/// Looks until `condition` holds. Panics with its name after a minute.
#[track_caller]
pub(crate) fn eventually(name: &str, mut condition: impl FnMut() -> bool) {
    for _ in 0..POLLS_MAX {
        if condition() {
            return;
        }
        thread::sleep(POLL_PAUSE);
    }
    panic!("did not come true within a minute: {name}");
}

/// What a finished command said.
#[derive(Debug)]
pub(crate) struct Finished {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Finished {
    #[track_caller]
    pub(crate) fn exits(self, code: i32) -> Self {
        assert_eq!(self.code, Some(code), "{self:?}");
        self
    }

    #[track_caller]
    pub(crate) fn json(&self) -> Value {
        let value = serde_json::from_str(&self.stdout);
        value.unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// The `error` object on stderr; nothing may be on stdout.
    #[track_caller]
    pub(crate) fn json_error(&self) -> Value {
        assert_eq!(self.stdout, "", "{self:?}");
        let document: Value =
            serde_json::from_str(&self.stderr).unwrap_or_else(|error| panic!("{error}: {self:?}"));
        assert_eq!(
            document["error"]["exit_code"],
            self.code.unwrap(),
            "{self:?}"
        );
        document["error"].clone()
    }
}

/// A process that is killed, if need be, when the test is over.
pub(crate) struct Running(Option<Child>);

impl Running {
    #[track_caller]
    pub(crate) fn spawn(mut command: Command) -> Self {
        Self(Some(command.spawn().unwrap()))
    }

    pub(crate) fn id(&self) -> i32 {
        self.0.as_ref().unwrap().id().try_into().unwrap()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        signal_process(self.id(), signal);
    }

    pub(crate) fn stdin(&mut self) -> std::process::ChildStdin {
        self.0.as_mut().unwrap().stdin.take().unwrap()
    }

    /// Its output, for who reads it as it comes.
    pub(crate) fn stdout(&mut self) -> std::process::ChildStdout {
        self.0.as_mut().unwrap().stdout.take().unwrap()
    }

    /// Waits for its end.
    #[track_caller]
    pub(crate) fn finish(mut self) -> Finished {
        let mut child = self.0.take().unwrap();
        let stdout = reader(child.stdout.take());
        let stderr = reader(child.stderr.take());
        let mut status = None;
        for _ in 0..POLLS_MAX {
            status = child.try_wait().unwrap();
            if status.is_some() {
                break;
            }
            thread::sleep(POLL_PAUSE);
        }
        let Some(status) = status else {
            let _ = child.kill();
            panic!("the process did not end: {:?}", stderr.join());
        };
        Finished {
            code: status.code(),
            stdout: stdout.join().unwrap(),
            stderr: stderr.join().unwrap(),
        }
    }

    /// Waits for its end without reading its output: whoever inherited it may still hold it.
    #[track_caller]
    pub(crate) fn wait(mut self) -> Option<i32> {
        let mut child = self.0.take().unwrap();
        let mut status = None;
        eventually("the process ends", || {
            status = child.try_wait().unwrap();
            status.is_some()
        });
        status.unwrap().code()
    }
}

fn reader(pipe: Option<impl Read + Send + 'static>) -> thread::JoinHandle<String> {
    let read = move || {
        let mut bytes = Vec::new();
        if let Some(mut pipe) = pipe {
            pipe.read_to_end(&mut bytes).unwrap();
        }
        String::from_utf8_lossy(&bytes).into_owned()
    };
    thread::Builder::new().spawn(read).unwrap()
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(child) = &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// A store, identities and temporary files of one test.
pub(crate) struct Sandbox {
    directory: TempDir,
}

impl Sandbox {
    pub(crate) fn new() -> Self {
        // Short, because a socket's path goes in there.
        let directory = tempfile::Builder::new().prefix("a-").tempdir().unwrap();
        fs::create_dir(directory.path().join("tmp")).unwrap();
        Self { directory }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    pub(crate) fn database(&self) -> PathBuf {
        self.path("leases.db")
    }

    /// The program, as the user `worker`, not started yet.
    pub(crate) fn command_as(&self, worker: &str) -> Command {
        // Whoever runs the tests may ignore signals (nohup, a job in the background of a script), and
        // a run honours that; here each one starts with the signals' defaults.
        let mut command = Command::new("env");
        command.args(["--default-signal=HUP,INT,QUIT,TERM,USR1,USR2", ASTER]);
        for variable in [
            "ASTER_SOCKET",
            "ASTER_RESOURCE",
            "ASTER_LOG",
            "COLUMNS",
            "NO_COLOR",
        ] {
            command.env_remove(variable);
        }
        command
            .env(
                "ASTER_STORE",
                format!("sqlite:{}", self.database().display()),
            )
            .env("ASTER_IDENTITY", self.path(&format!("identity-{worker}")))
            .env("TMPDIR", self.path("tmp"))
            .env("DIR", self.directory.path())
            .env("HOME", self.directory.path())
            .current_dir(self.directory.path())
            .stdin(Stdio::null());
        command
    }

    pub(crate) fn command(&self) -> Command {
        self.command_as("a")
    }

    #[track_caller]
    pub(crate) fn aster<S: AsRef<OsStr>>(&self, arguments: &[S]) -> Finished {
        self.start_as("a", arguments).finish()
    }

    #[track_caller]
    pub(crate) fn aster_as<S: AsRef<OsStr>>(&self, worker: &str, arguments: &[S]) -> Finished {
        self.start_as(worker, arguments).finish()
    }

    #[track_caller]
    pub(crate) fn start<S: AsRef<OsStr>>(&self, arguments: &[S]) -> Running {
        self.start_as("a", arguments)
    }

    #[track_caller]
    pub(crate) fn start_as<S: AsRef<OsStr>>(&self, worker: &str, arguments: &[S]) -> Running {
        let mut command = self.command_as(worker);
        command.args(arguments);
        start(command)
    }

    /// `aster run` with a shell script, in which `$DIR` is the sandbox.
    #[track_caller]
    pub(crate) fn run_script(&self, worker: &str, ttl: &str, script: &str) -> Running {
        self.start_as(
            worker,
            &["run", "--ttl", ttl, CATALOG, "--", "sh", "-c", script],
        )
    }

    /// The row as `aster inspect --json` shows it.
    #[track_caller]
    pub(crate) fn row(&self) -> Value {
        self.aster(&["inspect", "--json", CATALOG]).exits(0).json()
    }

    #[track_caller]
    pub(crate) fn value(&self) -> String {
        self.aster(&["get", CATALOG]).exits(0).stdout
    }

    pub(crate) fn exists(&self, name: &str) -> bool {
        self.path(name).exists()
    }

    /// Waits for a file that a script makes. Scripts write under another name and rename.
    #[track_caller]
    pub(crate) fn wait_for(&self, name: &str) -> String {
        eventually(&format!("{name} exists"), || self.exists(name));
        fs::read_to_string(self.path(name))
            .unwrap()
            .trim()
            .to_owned()
    }

    #[track_caller]
    pub(crate) fn wait_for_pid(&self, name: &str) -> i32 {
        self.wait_for(name).parse().unwrap()
    }

    pub(crate) fn touch(&self, name: &str) {
        fs::write(self.path(name), "").unwrap();
    }

    /// The private directories of runs that exist now.
    pub(crate) fn private_directories(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(self.path("tmp")).unwrap();
        entries.map(|entry| entry.unwrap().path()).collect()
    }
}

#[track_caller]
pub(crate) fn start(mut command: Command) -> Running {
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    Running::spawn(command)
}

/// In a script: writes the shell's process id to `$DIR/NAME`, whole or not at all.
pub(crate) fn tell_pid(name: &str) -> String {
    format!(r#"echo $$ > "$DIR/{name}.new" && mv "$DIR/{name}.new" "$DIR/{name}""#)
}

pub(crate) fn signal_process(pid: i32, signal: Signal) {
    kill_process(Pid::from_raw(pid).unwrap(), signal).unwrap();
}

/// Whether a process runs; a zombie does not.
pub(crate) fn lives(pid: i32) -> bool {
    if test_kill_process(Pid::from_raw(pid).unwrap()).is_err() {
        return false;
    }
    !matches!(state_of(pid), 'Z' | 'X')
}

/// `R`, `S`, `T` for stopped, `Z` for a zombie, as in `/proc`; `X` when there is none.
pub(crate) fn state_of(pid: i32) -> char {
    let Ok(stat) = fs::read_to_string(format!("/proc/{pid}/stat")) else {
        return 'X';
    };
    let after_name = &stat[stat.rfind(')').unwrap() + 1..];
    after_name.trim_start().chars().next().unwrap()
}

pub(crate) fn mode_of(path: &Path) -> u32 {
    use std::os::unix::fs::PermissionsExt;
    fs::metadata(path).unwrap().permissions().mode() & 0o7777
}
