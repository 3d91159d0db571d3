//! One process, as the conductor handles it. Whatever happens to the conductor, it is gone afterwards.

use std::io::{self, BufRead as _, BufReader, Read as _};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::SyncSender;
use std::thread::JoinHandle;

use rustix::process::{Pid, Signal, getpid, kill_process};

use crate::orders::{Orders, Role, Word};

/// How the hidden subcommand is called.
pub const WORK: &str = "__work";
/// How much of what a failed process said is kept.
const COMPLAINT_BYTES_MAX: u64 = 4_096;

/// A process that works.
#[derive(Debug)]
pub(crate) struct Process {
    pub(crate) number: u32,
    pub(crate) role: Role,
    pub(crate) said: Word,
    pub(crate) is_stopped: bool,
    child: Child,
    complaint: Option<JoinHandle<String>>,
}

impl Process {
    /// Starts `program` under `orders`. What it says goes to `words`. Call it on the thread that lives
    /// as long as the run: the kernel ties the process's life to it.
    pub(crate) fn start(
        program: &Path,
        orders: &Orders,
        words: SyncSender<(u32, Word)>,
    ) -> io::Result<Self> {
        let orders = Orders {
            parent: getpid().as_raw_pid(),
            ..orders.clone()
        };
        let mut child = Command::new(program)
            .arg(WORK)
            .arg(serde_json::to_string(&orders)?)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()?;
        let (output, errors) = (child.stdout.take(), child.stderr.take());
        let mut process = Self {
            number: orders.number,
            role: orders.role,
            said: Word::Idles,
            is_stopped: false,
            child,
            complaint: None,
        };
        let number = orders.number;
        std::thread::Builder::new()
            .name(format!("hear {number}"))
            .spawn(move || {
                let lines = output.map(BufReader::new).into_iter();
                for line in lines.flat_map(|lines| lines.lines().map_while(Result::ok)) {
                    let word = Word::ALL.into_iter().find(|word| word.text() == line);
                    if word.is_some_and(|word| words.send((number, word)).is_err()) {
                        return;
                    }
                }
            })?;
        let complaint = std::thread::Builder::new()
            .name(format!("errors of {number}"))
            .spawn(move || {
                let mut text = Vec::new();
                if let Some(errors) = errors {
                    let _ = errors.take(COMPLAINT_BYTES_MAX).read_to_end(&mut text);
                }
                String::from_utf8_lossy(&text).trim().to_owned()
            })?;
        process.complaint = Some(complaint);
        Ok(process)
    }

    pub(crate) fn stop(&mut self) -> io::Result<()> {
        self.is_stopped = true;
        self.signal(Signal::STOP)
    }

    pub(crate) fn go_on(&mut self) -> io::Result<()> {
        self.is_stopped = false;
        self.signal(Signal::CONT)
    }

    /// SIGKILL, which works on a stopped process too. Returns when it is gone.
    pub(crate) fn kill(&mut self) -> io::Result<()> {
        self.child.kill()?;
        self.child.wait().map(drop)
    }

    /// Tells it to come to an end.
    pub(crate) fn finish(&mut self) {
        drop(self.child.stdin.take());
    }

    /// How it ended, if it has.
    pub(crate) fn ended(&mut self) -> io::Result<Option<ExitStatus>> {
        self.child.try_wait()
    }

    /// What it wrote to its standard error. Call it once the process has ended.
    pub(crate) fn complaint(&mut self) -> String {
        let complaint = self.complaint.take().map(JoinHandle::join);
        complaint.and_then(Result::ok).unwrap_or_default()
    }

    /// Only ever our own child: it is not reaped before it is waited for, so its id is still its own.
    fn signal(&self, signal: Signal) -> io::Result<()> {
        let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw);
        match pid {
            Some(pid) => Ok(kill_process(pid, signal)?),
            None => Err(io::Error::other("a process without an id")),
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
