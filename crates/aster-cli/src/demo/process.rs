//! A worker process, as the story handles it.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::Duration;

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};

use super::unexpected;
use super::worker::{Order, Reply};
use crate::failure::{Failure, FailureKind};
use crate::identity::random_hex;
use crate::run::launch::OWN_PROGRAM;

/// No step takes longer, even on a busy machine.
const REPLY_WAIT: Duration = Duration::from_secs(60);
/// A worker answers one line to one order, so one place is enough.
const REPLIES_WAITING_MAX: usize = 4;

pub(crate) struct WorkerProcess {
    name: &'static str,
    process: Child,
    orders: ChildStdin,
    replies: Receiver<String>,
}

impl WorkerProcess {
    pub(crate) fn start(
        name: &'static str,
        database: &Path,
        unfenced: bool,
    ) -> Result<Self, Failure> {
        let mut command = Command::new(OWN_PROGRAM);
        command
            .arg0("aster")
            .arg("__demo-worker")
            .arg("--database")
            .arg(database)
            .arg("--worker-identity")
            .arg(format!("worker-{name}-{}", &random_hex()?[..8]))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        if unfenced {
            command.arg("--unfenced");
        }
        let failed =
            |error: std::io::Error| Failure::io(format!("cannot start worker {name}"), &error);
        let no_pipe = || failed(std::io::Error::other("it has no pipe"));
        let mut process = command.spawn().map_err(failed)?;
        let orders = process.stdin.take().ok_or_else(no_pipe)?;
        let output = process.stdout.take().ok_or_else(no_pipe)?;
        let (sender, replies) = sync_channel(REPLIES_WAITING_MAX);
        std::thread::Builder::new()
            .name(format!("aster-demo-{name}"))
            .spawn(move || {
                for line in BufReader::new(output).lines().map_while(Result::ok) {
                    if sender.send(line).is_err() {
                        break;
                    }
                }
            })
            .map_err(failed)?;
        Ok(Self {
            name,
            process,
            orders,
            replies,
        })
    }

    pub(crate) fn send(&mut self, order: &Order) -> Result<(), Failure> {
        let line = serde_json::to_string(order)
            .map_err(|error| Failure::new(FailureKind::Internal, error.to_string()))?;
        self.orders
            .write_all(format!("{line}\n").as_bytes())
            .map_err(|error| Failure::io(format!("worker {} does not listen", self.name), &error))
    }

    pub(crate) fn receive(&self) -> Result<Reply, Failure> {
        let line = self.replies.recv_timeout(REPLY_WAIT).map_err(|error| {
            let what = match error {
                RecvTimeoutError::Timeout => "does not answer",
                RecvTimeoutError::Disconnected => "has ended",
            };
            Failure::new(
                FailureKind::NotObserved,
                format!("worker {} {what}", self.name),
            )
        })?;
        match serde_json::from_str(&line) {
            Ok(Reply::Failed(message)) => Err(Failure::new(
                FailureKind::NotObserved,
                format!("worker {}: {message}", self.name),
            )),
            Ok(reply) => Ok(reply),
            Err(error) => Err(Failure::new(FailureKind::Internal, error.to_string())),
        }
    }

    pub(crate) fn ask(&mut self, order: &Order) -> Result<Reply, Failure> {
        self.send(order)?;
        self.receive()
    }

    pub(crate) fn expect(&mut self, order: &Order, expected: &Reply) -> Result<(), Failure> {
        let reply = self.ask(order)?;
        if reply == *expected {
            return Ok(());
        }
        Err(unexpected(self.name, &reply))
    }

    /// Returns when it stands still.
    pub(crate) fn stop(&self) -> Result<(), Failure> {
        self.signal(Signal::STOP)?;
        waitid(WaitId::Pid(self.id()?), WaitIdOptions::STOPPED)
            .map(|_| ())
            .map_err(|error| self.failed(error))
    }

    pub(crate) fn go_on(&self) -> Result<(), Failure> {
        self.signal(Signal::CONT)
    }

    fn signal(&self, signal: Signal) -> Result<(), Failure> {
        kill_process(self.id()?, signal).map_err(|error| self.failed(error))
    }

    fn id(&self) -> Result<Pid, Failure> {
        i32::try_from(self.process.id())
            .ok()
            .and_then(Pid::from_raw)
            .ok_or_else(|| Failure::new(FailureKind::Internal, "the worker has no process id"))
    }

    fn failed(&self, error: rustix::io::Errno) -> Failure {
        Failure::io(
            format!("worker {} cannot be signalled", self.name),
            &error.into(),
        )
    }
}

/// KILL works on a stopped process too.
impl Drop for WorkerProcess {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
