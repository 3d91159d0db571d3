//! What happened, in the order of the world's time: what the oracle judges and the trace shows.

use std::fmt::Write as _;
use std::sync::{Arc, Mutex, PoisonError};

use aster_core::{DenyReason, FenceRejection, GrantId, Principal, ResourceName, WriteId};
use aster_lease::EndedReason;

/// One thing that happened.
#[derive(Debug, Clone)]
#[allow(dead_code, reason = "some fields are only shown in the trace")]
pub(crate) enum Event {
    /// The serializer began a request.
    Began {
        call: u64,
        resource: ResourceName,
        what: &'static str,
        grant: Option<GrantId>,
    },
    /// It granted, or answered a grant again.
    Granted {
        call: u64,
        resource: ResourceName,
        epoch: u64,
        grant: GrantId,
        holder: Principal,
        ttl_ms: u64,
        is_claim: bool,
        monotonic_us: u64,
    },
    Renewed {
        resource: ResourceName,
        epoch: u64,
        monotonic_us: u64,
    },
    /// Renewals came together.
    Together { renewals: usize },
    /// An ownership ended by a request.
    Ended {
        resource: ResourceName,
        /// `None` for a cancel, which names the grant only.
        epoch: Option<u64>,
        grant: Option<GrantId>,
        how: &'static str,
        /// For how long the holder may not come back; 0 if it may.
        hold_off_ms: u64,
        monotonic_us: u64,
    },
    Denied {
        call: u64,
        resource: ResourceName,
        what: &'static str,
        reason: DenyReason,
        epoch: u64,
        held: bool,
        ttl_ms: u64,
        monotonic_us: u64,
    },
    /// A waiter was answered without a grant, or went away.
    Left {
        call: u64,
        resource: ResourceName,
        grant: GrantId,
    },
    /// A request failed.
    Failed {
        call: u64,
        resource: ResourceName,
        what: &'static str,
        error: String,
    },
    /// A protected closure ran.
    Wrote {
        resource: ResourceName,
        epoch: u64,
        holder: Principal,
        writer: String,
    },
    Rejected {
        resource: ResourceName,
        epoch: u64,
        why: FenceRejection,
    },
    /// A register write was acknowledged.
    Set {
        resource: ResourceName,
        epoch: u64,
        holder: Principal,
        writer: String,
        write: WriteId,
        revision: u64,
        value: u64,
        releases: bool,
    },
    Read {
        call: u64,
        resource: ResourceName,
        revision: Option<u64>,
        value: u64,
    },
    /// The serializer restarted.
    Restarted { monotonic_us: u64 },

    /// A worker has a lease.
    Holds {
        lease: u64,
        resource: ResourceName,
        epoch: u64,
        worker: Principal,
    },
    /// A worker looked, and its lease had a fence.
    Usable {
        lease: u64,
        resource: ResourceName,
        epoch: u64,
    },
    /// A worker looked, and its lease had none.
    Unusable { lease: u64 },
    /// A worker called release.
    GivesUp { lease: u64 },
    /// Guarded work ran.
    Worked { lease: u64 },
    /// `lost()` resolved.
    Lost { lease: u64, reason: EndedReason },
    /// The machine of these leases was killed: nobody hears of them any more.
    Killed { machine: usize },
    /// A worker got what it wanted after the faults were over.
    Served { worker: Principal },
    /// A worker's code panicked, and not because of a planted panic.
    Panicked { worker: Principal },
    /// What a worker's call came to.
    Heard { what: &'static str, answer: String },
    /// Who follows the resource was shown this.
    Shown { resource: ResourceName, epoch: u64 },
    /// The row, as it is at the end.
    Row { resource: ResourceName, epoch: u64 },
    /// How many names the serializer has forgotten by the end.
    RowsDropped { rows: usize },
    /// Something was done to the world.
    Fault { kind: &'static str, what: String },
    /// The serializer did not do as it was asked, or not at once.
    Befell { what: &'static str },
    /// A machine is stopped or suspended.
    StandsStill { machine: usize },
    /// A machine that stood still goes on.
    GoesOn { machine: usize },
    /// The faults are over.
    Healed,
    /// These workers were not served in time.
    Starved { workers: Vec<String>, after_ms: u64 },
    /// Everybody was served, and whatever was under way had time to end.
    Settled,
    /// What is left at the end.
    LeftOver { what: String },
}

/// An event with its place in the world.
#[derive(Debug, Clone)]
pub(crate) struct Entry {
    pub(crate) at_ms: u64,
    /// 0 is the serializer, then the machines.
    pub(crate) host: usize,
    pub(crate) event: Event,
}

/// Takes down what one or several hosts do.
#[derive(Debug, Clone, Default)]
pub(crate) struct Recorder {
    entries: Arc<Mutex<Vec<Entry>>>,
}

impl Recorder {
    pub(crate) fn record(&self, at_ms: u64, host: usize, event: Event) {
        let mut entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        entries.push(Entry { at_ms, host, event });
    }

    /// What was taken down since the last call, in the world's order. Hosts run one after the other for
    /// a stretch of time in which they cannot hear of each other, so the order has to be made.
    pub(crate) fn take(&self) -> Vec<Entry> {
        let mut entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        let mut taken = std::mem::take(&mut *entries);
        drop(entries);
        taken.sort_by_key(|entry| (entry.at_ms, entry.host));
        taken
    }
}

/// The whole run as text, or its hash only.
#[derive(Debug)]
pub struct Trace {
    /// How many lines there were.
    pub lines: u64,
    /// The hash of all of them (FNV-1a).
    pub hash: u64,
    /// The last lines, all of them if asked for.
    pub text: std::collections::VecDeque<String>,
    lines_max: usize,
}

impl Trace {
    pub(crate) fn new(lines_max: usize) -> Self {
        Self {
            lines: 0,
            hash: 0xcbf2_9ce4_8422_2325,
            text: std::collections::VecDeque::new(),
            lines_max,
        }
    }

    pub(crate) fn add(&mut self, entry: &Entry) {
        let Entry { at_ms, host, event } = entry;
        let mut line = String::new();
        let _ = write!(line, "{at_ms:>8} {host:>2} {event:?}");
        for byte in line.bytes() {
            self.hash = (self.hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
        self.lines += 1;
        if self.lines_max > 0 {
            if self.text.len() == self.lines_max {
                self.text.pop_front();
            }
            self.text.push_back(line);
        }
    }
}
