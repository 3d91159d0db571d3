//! Other processes: this test binary run again, with a role in the environment. They are driven line
//! by line over their standard input and output, never by time.

#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "the parent reads it, and people read what was not checked"
)]

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

const ROLE: &str = "ASTER_TEST_ROLE";
const STORE: &str = "ASTER_TEST_STORE";
/// Marks the lines that are meant for the parent, among those of the test harness.
const MARK: &str = "@@ ";

/// Another process in a role. It is killed when this is dropped.
pub struct Other {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

/// A command that runs the test `test` of this binary in `role`.
pub fn command(test: &str, role: &str, store: &Path) -> Command {
    prefixed(&[], test, role, store)
}

/// The same under another program, such as `unshare`.
pub fn prefixed(prefix: &[&str], test: &str, role: &str, store: &Path) -> Command {
    let binary = std::env::current_exe().unwrap();
    let mut command = match prefix.split_first() {
        Some((program, arguments)) => {
            let mut command = Command::new(program);
            command.args(arguments).arg(binary);
            command
        }
        None => Command::new(binary),
    };
    command
        .args(["--exact", test, "--nocapture", "--test-threads=1"])
        .env(ROLE, role)
        .env(STORE, store);
    command
}

impl Other {
    pub fn start(test: &str, role: &str, store: &Path) -> Self {
        Self::spawn(command(test, role, store))
    }

    pub fn spawn(mut command: Command) -> Self {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        Self {
            input: child.stdin.take(),
            output: BufReader::new(child.stdout.take().unwrap()),
            child,
        }
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    pub fn send(&mut self, line: &str) {
        writeln!(self.input.as_mut().unwrap(), "{line}").unwrap();
    }

    /// The next line that was meant for us.
    pub fn line(&mut self) -> String {
        loop {
            let mut line = String::new();
            let read = self.output.read_line(&mut line).unwrap();
            assert!(read > 0, "the other process ended before it answered");
            // The harness may have begun the line with the test's name.
            if let Some((_, told)) = line.split_once(MARK) {
                return told.trim_end().to_owned();
            }
        }
    }

    #[track_caller]
    pub fn expect(&mut self, line: &str) {
        assert_eq!(self.line(), line);
    }

    pub fn ask(&mut self, line: &str) -> String {
        self.send(line);
        self.line()
    }

    pub fn signal(&self, name: &str) {
        let id = self.id().to_string();
        assert!(
            Command::new("kill")
                .args(["-s", name, &id])
                .status()
                .unwrap()
                .success()
        );
    }

    /// Ends its input and waits until it is gone; its test must have passed.
    pub fn finish(mut self) {
        self.input = None;
        assert!(self.child.wait().unwrap().success());
    }

    pub fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        // It has ended already, or nobody needs it any more.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The role of this process, `None` in the parent.
pub fn role() -> Option<String> {
    std::env::var(ROLE).ok()
}

pub fn store_path() -> std::path::PathBuf {
    std::env::var_os(STORE).unwrap().into()
}

/// Says a line to the parent.
pub fn tell(line: &str) {
    println!("{MARK}{line}");
}

/// The next line from the parent; `None` when it has nothing more to say.
pub fn hear() -> Option<String> {
    let mut line = String::new();
    let read = std::io::stdin().lock().read_line(&mut line).unwrap();
    (read > 0).then(|| line.trim_end().to_owned())
}

/// Whether this environment permits `prefix`; says so when it does not.
pub fn is_permitted(prefix: &[&str], store: &Path) -> bool {
    let mut command = Command::new(prefix[0]);
    command.args(&prefix[1..]).arg("true").env(STORE, store);
    let permitted = command.output().is_ok_and(|output| output.status.success());
    if !permitted {
        eprintln!("not checked: {prefix:?} is not permitted here");
    }
    permitted
}
