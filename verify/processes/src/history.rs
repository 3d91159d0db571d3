//! What each process writes down, and reading it together again.
//!
//! A request is written before it is sent and its answer after it came, each with one `write`, so a
//! process that is killed leaves at most one line that is cut off and requests without an answer. Those
//! may or may not have been carried out; the checker allows both.

use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use aster_lease::AuditEvent;
use aster_lease::clock::boot_time;
use serde::{Deserialize, Serialize};

/// The number of the conductor's own part, which reads everything at the end.
pub const CONDUCTOR: u32 = 0;

/// Names one update: which process made it, and its how many-th it was. No two updates share one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Mark {
    /// The process.
    pub process: u32,
    /// Its how many-th update, from 1.
    pub number: u32,
}

impl fmt::Display for Mark {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}.{}", self.process, self.number)
    }
}

/// Text that is no [`Mark`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0} is no mark of the form process.number")]
pub struct NoMark(String);

impl FromStr for Mark {
    type Err = NoMark;

    fn from_str(text: &str) -> Result<Self, NoMark> {
        let parsed = text.split_once('.').and_then(|(process, number)| {
            Some(Self {
                process: process.parse().ok()?,
                number: number.parse().ok()?,
            })
        });
        parsed.ok_or_else(|| NoMark(text.to_owned()))
    }
}

impl TryFrom<String> for Mark {
    type Error = NoMark;

    fn try_from(text: String) -> Result<Self, NoMark> {
        text.parse()
    }
}

impl From<Mark> for String {
    fn from(mark: Mark) -> Self {
        mark.to_string()
    }
}

/// What was asked for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Call {
    /// The lease, once or from the queue.
    Acquire {
        /// How long to wait for it; none: not at all.
        wait_ms: Option<u64>,
    },
    /// Give the lease of this epoch up.
    Release {
        /// The epoch.
        epoch: u64,
    },
    /// Take the lease away from whoever has it.
    Revoke,
    /// The register.
    Read,
    /// Write the register, whatever is there: the fence alone has to protect what was read before.
    Write {
        /// The epoch in the fence.
        epoch: u64,
        /// The new value.
        value: Value,
        /// Release the lease in the same step.
        releases: bool,
    },
    /// The user's counter.
    Count,
    /// Set the user's counter to `position` and put `mark` there in the user's list, whatever is
    /// there.
    Append {
        /// The epoch in the fence.
        epoch: u64,
        /// One more than the counter that was read before.
        position: u64,
        /// The entry.
        mark: Mark,
    },
    /// The user's whole list.
    List,
    /// The store's own record of who owned the resource when.
    Trail,
}

/// What a register holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Value {
    /// The update that wrote it.
    pub mark: Mark,
    /// The update that this one had read and builds on; none: the register was empty.
    pub parent: Option<Mark>,
    /// How many updates it builds on, itself included.
    pub count: u64,
}

/// What a read of a register found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Found {
    /// The value.
    pub value: Value,
    /// The register's revision.
    pub revision: u64,
    /// The epoch under which it was written.
    pub epoch: u64,
}

/// One entry of the user's list.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// Where it stands, from 1.
    pub position: u64,
    /// Whose update it is.
    pub mark: Mark,
    /// The epoch under which it was written.
    pub epoch: u64,
}

/// One change of ownership, as the store's audit trail tells it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Told {
    /// What happened.
    pub event: AuditEvent,
    /// The epoch that began or ended by it.
    pub epoch: u64,
    /// Whose epoch that was; none if the holder was no process of ours.
    pub process: Option<u32>,
}

/// What was answered.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    /// The lease, at this epoch.
    Granted {
        /// The epoch.
        epoch: u64,
    },
    /// No lease.
    Denied {
        /// Why.
        reason: String,
    },
    /// Released by this call.
    Released,
    /// That epoch had ended before.
    AlreadyEnded,
    /// Revoked by this call.
    Revoked {
        /// The epoch that ended.
        epoch: u64,
    },
    /// Nobody had it.
    NotHeld,
    /// What the register holds.
    Read(Option<Found>),
    /// The register was written.
    Written {
        /// Its new revision.
        revision: u64,
    },
    /// The counter, and the last entry's mark.
    Counted {
        /// The counter; 0 in the beginning.
        count: u64,
        /// Whose update set it.
        mark: Option<Mark>,
    },
    /// The entry was made.
    Appended {
        /// What the counter was in that moment.
        before: u64,
    },
    /// The whole list, in the order of its positions.
    Listed(Vec<Entry>),
    /// All of the record, the oldest first.
    Trail(Vec<Told>),
    /// The fence was refused: ownership has moved on from `carried` to `current`.
    Stale {
        /// The epoch in the fence.
        carried: u64,
        /// The row's epoch.
        current: u64,
    },
    /// An error after which nothing has changed.
    Undone {
        /// What was said.
        message: String,
    },
    /// An error after which it may or may not have been carried out.
    Unknown {
        /// What was said.
        message: String,
    },
    /// Something that no caller may hear in these runs.
    Unexpected {
        /// What was said.
        message: String,
    },
}

/// One line of a process's file.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Line {
    Began {
        id: u64,
        at_ns: u64,
        resource: String,
        call: Call,
    },
    Ended {
        id: u64,
        at_ns: u64,
        answer: Answer,
    },
}

/// One process's file.
#[derive(Debug)]
pub struct Recorder {
    file: File,
    path: PathBuf,
    last_id: u64,
}

impl Recorder {
    /// Opens the file of process `process` in `directory`, which exists.
    ///
    /// # Errors
    ///
    /// [`HistoryError`] if the file cannot be made.
    pub fn create(directory: &Path, process: u32) -> Result<Self, HistoryError> {
        let path = directory.join(format!("{process:05}.jsonl"));
        let made = OpenOptions::new().append(true).create_new(true).open(&path);
        match made {
            Ok(file) => Ok(Self {
                file,
                path,
                last_id: 0,
            }),
            Err(source) => Err(HistoryError::File { path, source }),
        }
    }

    /// Writes down that `call` is about to be sent. Answers the id of this operation.
    ///
    /// # Errors
    ///
    /// [`HistoryError`] if it cannot be written; then do not send it.
    pub fn begin(&mut self, resource: &str, call: Call) -> Result<u64, HistoryError> {
        self.last_id += 1;
        let id = self.last_id;
        let resource = resource.to_owned();
        let at_ns = now_ns();
        self.append(&Line::Began {
            id,
            at_ns,
            resource,
            call,
        })?;
        Ok(id)
    }

    /// Writes down what operation `id` was answered.
    ///
    /// # Errors
    ///
    /// [`HistoryError`] if it cannot be written.
    pub fn end(&mut self, id: u64, answer: Answer) -> Result<(), HistoryError> {
        let at_ns = now_ns();
        self.append(&Line::Ended { id, at_ns, answer })
    }

    /// One `write`, so that nothing waits in a buffer when the process is killed.
    fn append(&mut self, line: &Line) -> Result<(), HistoryError> {
        let mut text = serde_json::to_vec(line).map_err(|source| HistoryError::Form {
            path: self.path.clone(),
            line: 0,
            source,
        })?;
        text.push(b'\n');
        self.file
            .write_all(&text)
            .map_err(|source| HistoryError::File {
                path: self.path.clone(),
                source,
            })
    }
}

/// The boot-time clock, which all processes of a machine share.
fn now_ns() -> u64 {
    u64::try_from(boot_time().as_nanos()).unwrap_or(u64::MAX)
}

/// One operation of one process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Operation {
    /// Who asked.
    pub process: u32,
    /// About which resource.
    pub resource: String,
    /// When it was about to be sent, on the boot-time clock.
    pub began_ns: u64,
    /// When the answer was there; `None` if there never was one.
    pub ended_ns: Option<u64>,
    /// What was asked for.
    pub call: Call,
    /// What was answered; `None` if there never was an answer.
    pub answer: Option<Answer>,
}

/// What all processes did, in the order in which it began.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct History {
    /// The operations.
    pub operations: Vec<Operation>,
}

impl History {
    /// Reads every process's file in `directory`.
    ///
    /// # Errors
    ///
    /// [`HistoryError`] if a file cannot be read, or if anything but its last line is damaged.
    pub fn read(directory: &Path) -> Result<Self, HistoryError> {
        let file = |source| HistoryError::File {
            path: directory.to_owned(),
            source,
        };
        let mut history = Self::default();
        for entry in fs::read_dir(directory).map_err(file)? {
            let path = entry.map_err(file)?.path();
            if path.extension().is_some_and(|end| end == "jsonl") {
                history.read_process(&path)?;
            }
        }
        history.sort();
        Ok(history)
    }

    /// Restores the order after a change.
    pub fn sort(&mut self) {
        self.operations
            .sort_by_key(|operation| (operation.began_ns, operation.process));
    }

    fn read_process(&mut self, path: &Path) -> Result<(), HistoryError> {
        let process = path
            .file_stem()
            .and_then(|stem| stem.to_str())
            .and_then(|stem| stem.parse().ok())
            .ok_or_else(|| HistoryError::Name(path.to_owned()))?;
        let text = fs::read_to_string(path).map_err(|source| HistoryError::File {
            path: path.to_owned(),
            source,
        })?;
        let mut open = std::collections::HashMap::new();
        // A killed process may leave its last line cut off: it has no line end then.
        for (number, line) in text.split_inclusive('\n').enumerate() {
            let Some(line) = line.strip_suffix('\n') else {
                break;
            };
            let parsed = serde_json::from_str(line).map_err(|source| HistoryError::Form {
                path: path.to_owned(),
                line: number + 1,
                source,
            })?;
            match parsed {
                Line::Began {
                    id,
                    at_ns,
                    resource,
                    call,
                } => {
                    open.insert(id, self.operations.len());
                    self.operations.push(Operation {
                        process,
                        resource,
                        began_ns: at_ns,
                        ended_ns: None,
                        call,
                        answer: None,
                    });
                }
                Line::Ended { id, at_ns, answer } => {
                    let known = open.remove(&id);
                    let operation = known
                        .and_then(|at| self.operations.get_mut(at))
                        .ok_or_else(|| HistoryError::NotAsked {
                            path: path.to_owned(),
                            line: number + 1,
                        })?;
                    operation.ended_ns = Some(at_ns);
                    operation.answer = Some(answer);
                }
            }
        }
        Ok(())
    }
}

/// A history that cannot be written or read.
#[derive(Debug, thiserror::Error)]
pub enum HistoryError {
    /// The file system said no.
    #[error("{}: {source}", path.display())]
    File {
        /// Which file.
        path: PathBuf,
        /// What it said.
        source: io::Error,
    },
    /// A line is none of ours.
    #[error("{}:{line}: {source}", path.display())]
    Form {
        /// Which file.
        path: PathBuf,
        /// Which line, from 1.
        line: usize,
        /// What is wrong with it.
        source: serde_json::Error,
    },
    /// An answer stands where nothing was asked.
    #[error("{}:{line}: an answer to nothing", path.display())]
    NotAsked {
        /// Which file.
        path: PathBuf,
        /// Which line, from 1.
        line: usize,
    },
    /// The file's name is no process's number.
    #[error("{}: the name is no process number", .0.display())]
    Name(PathBuf),
}
