//! What those who use a store say about it: what they ask, before they ask it, and what they were told.
//! The disk keeps these lines in its log, between its own steps.

use serde::{Deserialize, Serialize};

/// A line in the log of a disk.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Line {
    /// Who says it. Each caller has one request at a time.
    pub caller: String,
    /// What.
    pub word: Word,
}

/// What a caller says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Word {
    /// Asks for something. Until it is answered it may have happened or not.
    Asks(Wish),
    /// The resource was granted.
    Granted {
        /// Which.
        resource: String,
        /// Under this epoch.
        epoch: u64,
        /// To this holder.
        holder: String,
    },
    /// The register was written.
    Wrote {
        /// Which.
        resource: String,
        /// Under this epoch.
        epoch: u64,
        /// And is now at this revision.
        value_revision: u64,
        /// With this value.
        value: Value,
    },
    /// The user's own write was done.
    Mutated {
        /// Under the fence of this resource.
        resource: String,
        /// And this epoch.
        epoch: u64,
        /// Its number, which no other has.
        number: u64,
    },
    /// The lease was released, revoked or cancelled.
    Ended {
        /// Of this resource.
        resource: String,
        /// This epoch.
        epoch: u64,
    },
    /// The lease was revoked, and its holder may not come back for a long time.
    HeldOff {
        /// Of this resource.
        resource: String,
        /// This epoch.
        epoch: u64,
        /// Who is kept out.
        holder: String,
    },
    /// The register was written and the lease released.
    WroteAndEnded {
        /// Which.
        resource: String,
        /// This epoch.
        epoch: u64,
        /// At this revision.
        value_revision: u64,
        /// With this value.
        value: Value,
    },
    /// Saw the row of somebody else.
    Saw {
        /// Of this resource.
        resource: String,
        /// At this epoch.
        epoch: u64,
        /// Held or free.
        held: bool,
    },
    /// Saw the value of somebody else.
    SawValue {
        /// Of this resource.
        resource: String,
        /// At this revision.
        value_revision: u64,
    },
    /// The answer was no, and nothing has changed.
    Denied,
    /// There was no answer but a failure: what was asked may have happened, or may show up after a power
    /// loss.
    Failed(String),
    /// The store is open.
    Opened,
    /// All that is in the store was looked at.
    Looked,
    /// The store could not be opened.
    NotOpened(String),
    /// Everything that was planned is done.
    Done,
}

/// What a caller asks for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Wish {
    /// To be granted the resource.
    Acquire {
        /// Which.
        resource: String,
    },
    /// To write the register.
    Write {
        /// Which.
        resource: String,
        /// The value.
        value: Value,
    },
    /// To write the register and release the lease, both or neither.
    WriteAndEnd {
        /// Which.
        resource: String,
        /// Of which epoch.
        epoch: u64,
        /// The value.
        value: Value,
    },
    /// To write into the user's own tables.
    Mutate {
        /// Under whose fence.
        resource: String,
        /// The number that is written to each of the two tables.
        number: u64,
    },
    /// To end the lease.
    End {
        /// Which.
        resource: String,
    },
}

impl Wish {
    /// What it is about.
    #[must_use]
    pub fn resource(&self) -> &str {
        match self {
            Wish::Acquire { resource }
            | Wish::Write { resource, .. }
            | Wish::WriteAndEnd { resource, .. }
            | Wish::Mutate { resource, .. }
            | Wish::End { resource } => resource,
        }
    }

    /// Whether it changes who owns the resource.
    #[must_use]
    pub fn is_about_ownership(&self) -> bool {
        !matches!(self, Wish::Write { .. } | Wish::Mutate { .. })
    }

    /// The value that it writes.
    #[must_use]
    pub fn value(&self) -> Option<&Value> {
        match self {
            Wish::Write { value, .. } | Wish::WriteAndEnd { value, .. } => Some(value),
            _ => None,
        }
    }
}

/// A register's value: a name that no other value has, and so many bytes behind it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Value {
    /// The name.
    pub name: String,
    /// How many bytes more.
    pub padding: usize,
}

impl Value {
    /// What is written.
    #[must_use]
    pub fn bytes(&self) -> Vec<u8> {
        let mut bytes = self.name.clone().into_bytes();
        bytes.resize(bytes.len() + self.padding, b'.');
        bytes
    }
}

impl Line {
    /// As it stands in the log.
    #[must_use]
    pub fn text(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }

    /// What a line of the log says.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        serde_json::from_str(text).ok()
    }
}
