//! Lives of the store: processes of their own that work on a mounted disk, and the log of that.

use std::io;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use fuser::{BackgroundSession, Config};
use tempfile::TempDir;

use crate::bend::Bend;
use crate::disk::VolatileDisk;
use crate::mount::mount;
use crate::volume::{Event, Volume};
use crate::words::{Line, Word};
use crate::work::Plan;

/// A process that has not ended by then hangs.
pub const LIFE_MAX: Duration = Duration::from_secs(60);
const LOOK_EVERY: Duration = Duration::from_millis(2);

/// A disk in use, mounted at a directory of its own.
#[derive(Debug)]
pub struct Mounted {
    /// The disk.
    pub disk: VolatileDisk,
    // In this order: the mount goes before the directory.
    session: Option<BackgroundSession>,
    directory: TempDir,
}

impl Mounted {
    /// Mounts `disk`.
    ///
    /// # Errors
    ///
    /// Where FUSE is not permitted.
    pub fn new(disk: VolatileDisk) -> io::Result<Self> {
        let directory = tempfile::tempdir()?;
        let session = mount(&disk, directory.path(), &Config::default())?;
        Ok(Self {
            disk,
            session: Some(session),
            directory,
        })
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.directory.path()
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        drop(self.session.take());
    }
}

/// What a disk held in the beginning, and everything that happened on it since.
#[derive(Debug, Clone, Default)]
pub struct Recorded {
    /// In the beginning.
    pub start: Volume,
    /// Since.
    pub log: Vec<Event>,
}

impl Recorded {
    /// Where the power can be cut: before each of these events, and after the last.
    #[must_use]
    pub fn steps(&self) -> Vec<usize> {
        let steps = self.log.iter().enumerate();
        let steps = steps.filter(|(_, event)| event.is_step());
        steps
            .map(|(index, _)| index)
            .chain([self.log.len()])
            .collect()
    }

    /// Where in the log that was said first; its end if it was not.
    #[must_use]
    pub fn position(&self, word: &Word) -> usize {
        let is_it = |event: &Event| match event {
            Event::Told(text) => Line::parse(text).is_some_and(|line| line.word == *word),
            _ => false,
        };
        let found = self.log.iter().position(is_it);
        found.unwrap_or(self.log.len())
    }

    /// Everything that was said.
    pub fn words(&self) -> impl Iterator<Item = Line> {
        said(&self.log)
    }
}

/// What was said in a log.
pub fn said(log: &[Event]) -> impl Iterator<Item = Line> {
    log.iter().filter_map(|event| match event {
        Event::Told(text) => Line::parse(text),
        _ => None,
    })
}

/// How a life is lived.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    /// How many processes share the file.
    pub processes: u64,
    /// How many callers each of them has.
    pub callers: u64,
    /// How many turns each caller takes.
    pub turns: u64,
}

impl Shape {
    /// The shape that a seed picks: short and long lives, of one and of two processes. In a long one idle
    /// rows are dropped.
    #[must_use]
    pub fn of(seed: u64) -> Self {
        let (processes, callers, turns) = match seed / 4 % 4 {
            0 => (1, 6, 30),
            1 => (2, 3, 30),
            2 => (1, 3, 8),
            _ => (2, 4, 8),
        };
        Self {
            processes,
            callers,
            turns,
        }
    }

    /// What a process of such a life does.
    #[must_use]
    pub fn plan(self, seed: u64, process: u64, life: u64) -> Plan {
        Plan {
            seed,
            process,
            life,
            boot: 0,
            callers: self.callers,
            turns: self.turns,
            bend: None,
        }
    }
}

/// Lives a whole life on an empty disk.
///
/// # Errors
///
/// What went wrong without any fault: that is a finding.
pub fn record(
    program: &Path,
    seed: u64,
    shape: Shape,
    bend: Option<Bend>,
) -> Result<Recorded, String> {
    let mounted = Mounted::new(VolatileDisk::recording(Volume::default())).map_err(text)?;
    let mut workers = Vec::new();
    for process in 0..shape.processes {
        let plan = Plan {
            bend,
            ..shape.plan(seed, process, 0)
        };
        workers.push(Worker::start(program, mounted.path(), &plan).map_err(text)?);
    }
    for worker in workers {
        worker.finish()?;
    }
    let recorded = Recorded {
        start: Volume::default(),
        log: mounted.disk.log(),
    };
    let failed = recorded
        .words()
        .find(|line| matches!(line.word, Word::Failed(_) | Word::NotOpened(_)));
    match failed {
        Some(line) => Err(format!("a life without any fault: {line:?}")),
        None => Ok(recorded),
    }
}

/// A process at work. Dropped, it is killed.
#[derive(Debug)]
pub struct Worker {
    child: Child,
}

impl Worker {
    /// Starts a process that does what is planned.
    ///
    /// # Errors
    ///
    /// If it cannot be started.
    pub fn start(program: &Path, directory: &Path, plan: &Plan) -> io::Result<Self> {
        let child = Command::new(program)
            .arg("work")
            .arg(directory)
            .args(arguments(plan))
            .stdin(Stdio::null())
            .stderr(Stdio::inherit())
            .spawn()?;
        Ok(Self { child })
    }

    /// Its id.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Whether it has ended.
    #[must_use]
    pub fn has_ended(&mut self) -> bool {
        !matches!(self.child.try_wait(), Ok(None))
    }

    /// Sends it SIGKILL. It ends once what it is in the midst of has been answered.
    pub fn kill(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
    }

    /// Waits for its end.
    ///
    /// # Errors
    ///
    /// If it does not end in time, or not as it should.
    pub fn finish(mut self) -> Result<(), String> {
        let status = self.wait()?;
        match status.success() {
            true => Ok(()),
            false => Err(format!("a process ended with {status}")),
        }
    }

    /// Waits for its end, however it ends.
    ///
    /// # Errors
    ///
    /// If it does not end in time.
    pub fn wait(&mut self) -> Result<std::process::ExitStatus, String> {
        let mut waited = Duration::ZERO;
        while waited < LIFE_MAX {
            if let Some(status) = self.child.try_wait().map_err(text)? {
                return Ok(status);
            }
            std::thread::sleep(LOOK_EVERY);
            waited += LOOK_EVERY;
        }
        Err("a process hangs".to_owned())
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.kill();
        let _ = self.child.wait();
    }
}

fn arguments(plan: &Plan) -> Vec<String> {
    let Plan {
        seed,
        process,
        life,
        boot,
        callers,
        turns,
        bend,
    } = plan;
    let numbers = [*seed, *process, *life, *boot, *callers, *turns];
    let mut arguments: Vec<String> = numbers.iter().map(ToString::to_string).collect();
    arguments.extend(bend.map(|bend| bend.name().to_owned()));
    arguments
}

/// What the program is to do that was started by [`Worker::start`], if it was.
#[must_use]
pub fn ordered(words: &[String]) -> Option<(&Path, Plan)> {
    let [order, directory, numbers @ ..] = words else {
        return None;
    };
    if order != "work" || numbers.len() < 6 {
        return None;
    }
    let number = |index: usize| numbers[index].parse::<u64>().ok();
    let plan = Plan {
        seed: number(0)?,
        process: number(1)?,
        life: number(2)?,
        boot: number(3)?,
        callers: number(4)?,
        turns: number(5)?,
        bend: numbers.get(6).and_then(|name| Bend::from_name(name)),
    };
    Some((Path::new(directory), plan))
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}
