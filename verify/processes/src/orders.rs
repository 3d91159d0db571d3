//! What a process is told when it starts, and the few words that it says.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::storage::Check;

/// What a process is there for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Takes over and writes.
    Owner,
    /// Reads.
    Observer,
    /// Revokes.
    Operator,
}

/// What a process is told when it starts.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Orders {
    /// Its number, which is its identity.
    pub number: u32,
    /// What it is there for.
    pub role: Role,
    /// The run's seed.
    pub seed: u64,
    /// Where the file and the histories are.
    pub directory: PathBuf,
    /// What they take over.
    pub resources: Vec<String>,
    /// How long a lease lasts.
    pub ttl_ms: u64,
    /// When writes are checked.
    pub check: Check,
    /// The process that gave the orders; nobody works for another.
    pub parent: i32,
}

impl Orders {
    /// The file that all share.
    #[must_use]
    pub fn database(directory: &Path) -> PathBuf {
        directory.join("store.db")
    }

    /// Where the histories are.
    #[must_use]
    pub fn histories(directory: &Path) -> PathBuf {
        directory.join("history")
    }
}

/// What an owner tells the conductor, one word a line. It aims the faults and decides nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Word {
    /// Holds a lease.
    Holds,
    /// Has its fence in hand and will send a write.
    WillWrite,
    /// Is sending it, and has no answer yet.
    Writes,
    /// Holds no lease.
    Idles,
}

impl Word {
    pub(crate) const ALL: [Self; 4] = [Self::Holds, Self::WillWrite, Self::Writes, Self::Idles];

    pub(crate) fn text(self) -> &'static str {
        match self {
            Word::Holds => "holds",
            Word::WillWrite => "will write",
            Word::Writes => "writes",
            Word::Idles => "idles",
        }
    }
}
