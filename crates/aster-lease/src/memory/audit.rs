//! The bounded ring of audit records.

use std::collections::VecDeque;

use crate::audit::{AuditEvent, AuditQuery, AuditRecord};

/// How far back an equal rejection is looked for, to count it there instead of adding a line.
const COALESCE_DEPTH: usize = 32;
/// Rejections take this part of the ring at most, so that a zombie with many fences pushes out other
/// rejections and no change of ownership.
const REJECTIONS_DIVISOR: usize = 4;

/// Changes of ownership and rejections, each in the order of their ids.
pub(super) struct AuditRing {
    changes: VecDeque<AuditRecord>,
    rejections: VecDeque<AuditRecord>,
    records_max: usize,
    last_id: u64,
}

impl AuditRing {
    pub(super) fn new(records_max: usize) -> Self {
        Self {
            changes: VecDeque::new(),
            rejections: VecDeque::new(),
            records_max,
            last_id: 0,
        }
    }

    /// Adds a record under the next id. A rejection that equals a recent one is counted there.
    pub(super) fn push(&mut self, record: AuditRecord) {
        let rejections_max = self.records_max / REJECTIONS_DIVISOR;
        let (ring, room) = if record.event == AuditEvent::Rejected {
            if let Some(same) = self
                .rejections
                .iter_mut()
                .rev()
                .take(COALESCE_DEPTH)
                .find(|old| same(old, &record))
            {
                same.count += 1;
                return;
            }
            (&mut self.rejections, rejections_max)
        } else {
            (&mut self.changes, self.records_max - rejections_max)
        };
        self.last_id += 1;
        if room == 0 {
            return;
        }
        if ring.len() >= room {
            ring.pop_front();
        }
        ring.push_back(AuditRecord {
            id: self.last_id,
            ..record
        });
    }

    /// The newest matching records, oldest first.
    pub(super) fn page(&self, query: &AuditQuery) -> Vec<AuditRecord> {
        let matches = |record: &&AuditRecord| {
            query.after.is_none_or(|after| record.id > after)
                && (query.resource.is_none() || query.resource == record.resource)
        };
        let mut changes = self.changes.iter().rev().filter(matches).peekable();
        let mut rejections = self.rejections.iter().rev().filter(matches).peekable();
        let mut page = Vec::new();
        while page.len() < query.page() {
            let id = |record: Option<&&AuditRecord>| record.map(|record| record.id);
            let newest = match id(changes.peek()) >= id(rejections.peek()) {
                true => changes.next(),
                false => rejections.next(),
            };
            match newest {
                Some(record) => page.push(record.clone()),
                None => break,
            }
        }
        page.reverse();
        page
    }
}

fn same(old: &AuditRecord, new: &AuditRecord) -> bool {
    old.event == new.event
        && old.resource == new.resource
        && old.epoch_carried == new.epoch_carried
        && old.epoch_current == new.epoch_current
        && old.actor == new.actor
        && old.detail == new.detail
}
