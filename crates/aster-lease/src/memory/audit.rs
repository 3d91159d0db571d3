//! The bounded ring of audit records.

use std::collections::VecDeque;

use crate::audit::{AuditEvent, AuditQuery, AuditRecord};

/// How far back an equal rejection is looked for, to count it there instead of adding a line.
const COALESCE_DEPTH: usize = 32;

pub(super) struct AuditRing {
    records: VecDeque<AuditRecord>,
    records_max: usize,
    last_id: u64,
}

impl AuditRing {
    pub(super) fn new(records_max: usize) -> Self {
        Self {
            records: VecDeque::new(),
            records_max,
            last_id: 0,
        }
    }

    /// Adds a record under the next id. A rejection that equals a recent one is counted there: a
    /// zombie in a loop must not push everything else out.
    pub(super) fn push(&mut self, record: AuditRecord) {
        if record.event == AuditEvent::Rejected
            && let Some(same) = self
                .records
                .iter_mut()
                .rev()
                .take(COALESCE_DEPTH)
                .find(|old| same(old, &record))
        {
            same.count += 1;
            return;
        }
        if self.records_max == 0 {
            return;
        }
        if self.records.len() >= self.records_max {
            self.records.pop_front();
        }
        self.last_id += 1;
        self.records.push_back(AuditRecord {
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
        let mut page: Vec<_> = self
            .records
            .iter()
            .rev()
            .filter(matches)
            .take(query.page())
            .cloned()
            .collect();
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
