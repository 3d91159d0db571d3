//! One run: starts the processes, does to them what the plan says, and ends them all.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::Duration;

use aster_evidence::Deadline;
use aster_lease::clock::boot_time;
use aster_sqlite::{SqliteSerializer, rusqlite};
use serde::{Deserialize, Serialize};

use crate::history::{CONDUCTOR, HistoryError};
use crate::member::{Member, MemberError};
use crate::orders::{Orders, Role, Word};
use crate::plan::{Aim, Fault, Kind, Plan};
use crate::process::Process;
use crate::storage::{Check, create_tables};

/// How long the faults go on if nobody says otherwise.
const SECONDS: u64 = 30;
/// What is said and not yet heard.
const WORDS_MAX: usize = 1_024;
/// How long a fault waits for a process that it is aimed at, before it takes anyone.
const AIMING_MAX: Duration = Duration::from_millis(1_500);
/// How long the conductor waits for a word at most.
const LISTENING_MAX: Duration = Duration::from_millis(10);
/// How long everybody may take to end when asked to. A wait in the queue and a busy file are in it.
const ENDING_MAX: Duration = Duration::from_secs(30);
/// How long the conductor waits for each resource at the end, when nobody else is left.
const LAST_WAIT: Duration = Duration::from_secs(10);

/// What a run is like.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Settings {
    /// The plan of the faults and what each process draws follow from it.
    pub seed: u64,
    /// How long the faults go on; starting and ending come on top.
    pub seconds: u64,
    /// When writes are checked.
    pub check: Check,
    /// How many owners there are at any time.
    pub owners: usize,
    /// How many resources they take over from each other.
    pub resources: usize,
    /// How long a lease lasts.
    pub ttl_ms: u64,
    /// How long a stopped process stands still.
    pub stop_ms: u64,
    /// How many may stand still at once.
    pub stopped_max: usize,
}

impl Settings {
    /// Six owners, an observer and an operator on three resources, leases of 2 s, stops of 5 s.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self {
            seed,
            seconds: SECONDS,
            check: Check::Within,
            owners: 6,
            resources: 3,
            ttl_ms: 2_000,
            stop_ms: 5_000,
            stopped_max: 3,
        }
    }

    fn file(directory: &Path) -> PathBuf {
        directory.join("run.json")
    }

    /// The settings of the run that was kept in `directory`.
    ///
    /// # Errors
    ///
    /// [`RunError`] if there was none.
    pub fn read(directory: &Path) -> Result<Self, RunError> {
        let text = fs::read(Self::file(directory))?;
        serde_json::from_slice(&text).map_err(|error| RunError::Io(error.into()))
    }

    fn names(&self) -> Vec<String> {
        (1..=self.resources)
            .map(|number| format!("catalog/{number}"))
            .collect()
    }
}

/// What was done to the processes, and what they should not have done.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Ran {
    /// How many processes there were.
    pub started: u64,
    /// How many times one was stopped.
    pub stops: u64,
    /// How many of these had their fence in hand and a write to send.
    pub stops_before_a_write: u64,
    /// How many of these were just sending one.
    pub stops_in_a_write: u64,
    /// How many were killed.
    pub kills: u64,
    /// How many of these were just sending a write.
    pub kills_in_a_write: u64,
    /// Processes that ended by themselves or did not end, and resources that stayed taken.
    pub failures: Vec<String>,
}

/// Runs in `directory`, which exists and is empty, with `program` as every process. The histories are
/// there afterwards. Blocks, and every process that it started is gone when it returns.
///
/// # Errors
///
/// [`RunError`] when the run itself cannot go on. What a process does wrong is in [`Ran::failures`].
pub fn run(settings: &Settings, program: &Path, directory: &Path) -> Result<Ran, RunError> {
    fs::create_dir(Orders::histories(directory))?;
    let text = serde_json::to_vec_pretty(settings).map_err(io::Error::from)?;
    fs::write(Settings::file(directory), text)?;
    let database = Orders::database(directory);
    create_tables(&database)?;
    // Makes the store, so that no process has to wait for another one doing so.
    drop(SqliteSerializer::open(&database).map_err(MemberError::from)?);
    let mut conductor = Conductor::new(settings, program, directory);
    conductor.conduct()?;
    conductor.end_all()?;
    let last = conductor.read_everything();
    let mut ran = conductor.ran;
    if let Err(failure) = last? {
        ran.failures.push(failure);
    }
    Ok(ran)
}

struct Conductor<'a> {
    settings: &'a Settings,
    program: &'a Path,
    orders: Orders,
    plan: Plan,
    processes: Vec<Process>,
    /// When each stopped process goes on.
    stopped: Vec<(u32, Duration)>,
    words: Receiver<(u32, Word)>,
    speaks: SyncSender<(u32, Word)>,
    last_number: u32,
    ran: Ran,
}

impl<'a> Conductor<'a> {
    fn new(settings: &'a Settings, program: &'a Path, directory: &Path) -> Self {
        let (speaks, words) = sync_channel(WORDS_MAX);
        Self {
            settings,
            program,
            orders: Orders {
                number: CONDUCTOR,
                role: Role::Observer,
                seed: settings.seed,
                directory: directory.to_owned(),
                resources: settings.names(),
                ttl_ms: settings.ttl_ms,
                check: settings.check,
                parent: 0,
            },
            plan: Plan::new(settings.seed),
            processes: Vec::new(),
            stopped: Vec::new(),
            words,
            speaks,
            last_number: CONDUCTOR,
            ran: Ran::default(),
        }
    }

    fn conduct(&mut self) -> Result<(), RunError> {
        let deadline = Deadline::after_s(self.settings.seconds);
        let mut next = self.plan.next();
        let mut due = next.map(|fault| boot_time() + fault.gap);
        while !deadline.is_over() {
            self.look_after_everybody()?;
            let spoke = self.listen()?;
            let (Some(fault), Some(since)) = (next, due) else {
                continue;
            };
            let waited = boot_time().saturating_sub(since);
            let is_due = boot_time() >= since;
            let Some(at) = is_due.then(|| self.target(fault, &spoke, waited)).flatten() else {
                continue;
            };
            self.strike(fault, at)?;
            next = self.plan.next();
            due = next.map(|fault| boot_time() + fault.gap);
        }
        Ok(())
    }

    /// Lets go on who has stood still for long enough, notes who ended, and starts who is missing.
    fn look_after_everybody(&mut self) -> Result<(), RunError> {
        let now = boot_time();
        let processes = &mut self.processes;
        let mut gone_on = Ok(());
        self.stopped.retain(|(number, until)| {
            if now < *until {
                return true;
            }
            let stopped = processes.iter_mut().find(|one| one.number == *number);
            if let Some(stopped) = stopped
                && let Err(error) = stopped.go_on()
            {
                gone_on = Err(error);
            }
            false
        });
        gone_on?;
        self.note_who_ended("ended by itself")?;
        let missing = |role, wanted, processes: &[Process]| {
            let there = processes.iter().filter(|one| one.role == role).count();
            std::iter::repeat_n(role, usize::saturating_sub(wanted, there))
        };
        let roles: Vec<_> = missing(Role::Owner, self.settings.owners, &self.processes)
            .chain(missing(Role::Observer, 1, &self.processes))
            .chain(missing(Role::Operator, 1, &self.processes))
            .collect();
        for role in roles {
            self.last_number += 1;
            let orders = Orders {
                number: self.last_number,
                role,
                ..self.orders.clone()
            };
            let process = Process::start(self.program, &orders, self.speaks.clone())?;
            self.processes.push(process);
            self.ran.started += 1;
        }
        Ok(())
    }

    /// Hears what is said, and answers who spoke just now.
    fn listen(&mut self) -> Result<Vec<usize>, RunError> {
        let mut word = match self.words.recv_timeout(LISTENING_MAX) {
            Ok(word) => Some(word),
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => return Err(RunError::Deaf),
        };
        let mut spoke = Vec::new();
        while let Some((number, said)) = word {
            if let Some(at) = self.position(number)
                && let Some(process) = self.processes.get_mut(at)
            {
                process.said = said;
                spoke.push(at);
            }
            word = self.words.try_recv().ok();
        }
        Ok(spoke)
    }

    fn position(&self, number: u32) -> Option<usize> {
        self.processes
            .iter()
            .position(|process| process.number == number)
    }

    /// Whom the fault hits now; none: it waits.
    fn target(&self, fault: Fault, spoke: &[usize], waited: Duration) -> Option<usize> {
        if fault.kind == Kind::Stop && self.stopped.len() >= self.settings.stopped_max {
            return None;
        }
        let among = |fits: &dyn Fn(&Process) -> bool| {
            let fitting: Vec<_> = (0..self.processes.len())
                .filter(|at| self.processes.get(*at).is_some_and(fits))
                .collect();
            let count = u64::try_from(fitting.len()).ok().filter(|len| *len > 0)?;
            let chosen = usize::try_from(fault.choice % count).ok()?;
            fitting.get(chosen).copied()
        };
        let just_said = |word| {
            spoke.iter().copied().find(|at| {
                let process = self.processes.get(*at);
                process.is_some_and(|process| !process.is_stopped && process.said == word)
            })
        };
        let aimed = match fault.aim {
            Aim::BeforeAWrite => just_said(Word::WillWrite),
            Aim::InAWrite => just_said(Word::Writes),
            Aim::Holder => among(&|process| !process.is_stopped && process.said != Word::Idles),
            Aim::Anyone => None,
        };
        match aimed {
            None if fault.aim != Aim::Anyone && waited < AIMING_MAX => None,
            // A stopped process may be killed, but not stopped once more.
            None => among(&|process| fault.kind == Kind::Kill || !process.is_stopped),
            aimed => aimed,
        }
    }

    fn strike(&mut self, fault: Fault, at: usize) -> Result<(), RunError> {
        let Some(process) = self.processes.get_mut(at) else {
            return Ok(());
        };
        let before = u64::from(process.said == Word::WillWrite);
        let within = u64::from(process.said == Word::Writes);
        match fault.kind {
            Kind::Stop => {
                process.stop()?;
                self.ran.stops += 1;
                self.ran.stops_before_a_write += before;
                self.ran.stops_in_a_write += within;
                let until = boot_time() + Duration::from_millis(self.settings.stop_ms);
                self.stopped.push((process.number, until));
            }
            Kind::Kill => {
                process.kill()?;
                self.ran.kills += 1;
                self.ran.kills_in_a_write += within;
                let number = process.number;
                self.processes.swap_remove(at);
                self.stopped.retain(|(stopped, _)| *stopped != number);
            }
        }
        Ok(())
    }

    fn note_who_ended(&mut self, how: &str) -> Result<(), RunError> {
        let mut at = 0;
        while let Some(process) = self.processes.get_mut(at) {
            let Some(status) = process.ended()? else {
                at += 1;
                continue;
            };
            let mut process = self.processes.swap_remove(at);
            if !how.is_empty() || !status.success() {
                let (number, role) = (process.number, process.role);
                let complaint = process.complaint();
                self.ran.failures.push(format!(
                    "process {number} ({role:?}) {how}: {status} {complaint}"
                ));
            }
        }
        Ok(())
    }

    /// Everybody goes on, comes to an end, and is gone.
    fn end_all(&mut self) -> Result<(), RunError> {
        for process in &mut self.processes {
            if process.is_stopped {
                process.go_on()?;
            }
            process.finish();
        }
        let deadline = Deadline::after_s(ENDING_MAX.as_secs());
        while !self.processes.is_empty() && !deadline.is_over() {
            self.listen()?;
            self.note_who_ended("")?;
        }
        for process in self.processes.drain(..) {
            let (number, role) = (process.number, process.role);
            self.ran.failures.push(format!(
                "process {number} ({role:?}) did not end within {ENDING_MAX:?}"
            ));
        }
        Ok(())
    }

    /// The conductor's own part, when nobody else is left: each resource can be acquired and written,
    /// and what it holds is written down.
    fn read_everything(&self) -> Result<Result<(), String>, RunError> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .build()?;
        let mut member = Member::join(&self.orders, Arc::new(AtomicBool::new(false)))?;
        runtime.block_on(async {
            let mut still_taken = Vec::new();
            for resource in &self.orders.resources {
                match member.acquire(resource, Some(LAST_WAIT)).await? {
                    Some(lease) => {
                        member.update_register(&lease, false).await?;
                        member.append(&lease, false).await?;
                        member.release(&lease).await?;
                    }
                    None => still_taken.push(resource.as_str()),
                }
                member.read(resource).await?;
                member.list(resource)?;
                member.trail(resource).await?;
            }
            Ok(match still_taken.is_empty() {
                true => Ok(()),
                false => Err(format!(
                    "nobody is left, and still not granted within {LAST_WAIT:?}: {}",
                    still_taken.join(", ")
                )),
            })
        })
    }
}

/// A run that cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The system said no.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The user's tables cannot be made.
    #[error(transparent)]
    Tables(#[from] rusqlite::Error),
    /// The conductor's own part failed.
    #[error(transparent)]
    Member(#[from] MemberError),
    /// The histories cannot be read.
    #[error(transparent)]
    History(#[from] HistoryError),
    /// A run ended with a panic of ours.
    #[error("a run has panicked (please report this)")]
    Panicked,
    /// Nobody can be heard any more.
    #[error("the conductor's own channel has closed (please report this)")]
    Deaf,
}
