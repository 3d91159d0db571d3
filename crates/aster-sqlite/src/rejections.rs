//! Rejected writes on their way to the audit trail. The first one is written at once, repeats are
//! counted and written at most once a second, so that a stale writer in a loop costs its store next
//! to nothing.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use aster_core::{Fence, FenceRejection, Principal, ResourceName};

/// How many different rejections are counted apart at a time.
const KINDS_MAX: usize = 1_024;
/// How often repeats are written, in nanoseconds of the store's clock.
const FLUSH_EVERY_NS: u64 = 1_000_000_000;

/// Equal rejections differ in nothing of this.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Rejected {
    pub(crate) resource: ResourceName,
    pub(crate) writer: String,
    pub(crate) carried: u64,
    pub(crate) reason: &'static str,
}

/// A line for the audit trail.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Report {
    /// `None` stands for the many that were not kept apart.
    pub(crate) rejected: Option<Rejected>,
    pub(crate) current: u64,
    pub(crate) holder: Option<Principal>,
    pub(crate) count: u64,
}

#[derive(Debug)]
struct Pending {
    current: u64,
    holder: Option<Principal>,
    count: u64,
    written_ns: Option<u64>,
}

#[derive(Debug, Default)]
pub(crate) struct Rejections {
    pending: Mutex<Kept>,
    future_epochs: AtomicU64,
}

#[derive(Debug, Default)]
struct Kept {
    kinds: HashMap<Rejected, Pending>,
    others: u64,
    others_written_ns: Option<u64>,
    future_logged_ns: Option<u64>,
}

impl Rejections {
    /// Counts a rejection; `true` when it should be written now.
    pub(crate) fn note(
        &self,
        fence: &Fence,
        writer: &str,
        rejection: &FenceRejection,
        holder: Option<&Principal>,
        current: u64,
        now_ns: u64,
    ) -> bool {
        let mut kept = self.pending.lock().unwrap_or_else(PoisonError::into_inner);
        if let FenceRejection::FutureEpoch { carried, current } = rejection {
            self.future_epochs.fetch_add(1, Ordering::Relaxed);
            if is_due(kept.future_logged_ns, now_ns) {
                kept.future_logged_ns = Some(now_ns);
                tracing::error!(
                    resource = %fence.resource,
                    %writer,
                    carried,
                    current,
                    "a fence from the future: it is forged, or the store went back in time"
                );
            }
        }
        let rejected = Rejected {
            resource: fence.resource.clone(),
            writer: writer.to_owned(),
            carried: fence.epoch,
            reason: rejection.name(),
        };
        let room = kept.kinds.len() < KINDS_MAX;
        match kept.kinds.entry(rejected) {
            Entry::Occupied(mut entry) => {
                let pending = entry.get_mut();
                pending.count += 1;
                pending.current = current;
                pending.holder = holder.cloned();
                false
            }
            Entry::Vacant(entry) if room => {
                entry.insert(Pending {
                    current,
                    holder: holder.cloned(),
                    count: 1,
                    written_ns: None,
                });
                true
            }
            Entry::Vacant(_) => {
                kept.others += 1;
                false
            }
        }
    }

    /// How many fences from the future were refused.
    pub(crate) fn future_epochs(&self) -> u64 {
        self.future_epochs.load(Ordering::Relaxed)
    }

    /// What should be written now: everything new, and repeats that have waited long enough. With
    /// `all`, everything. [`give_back`](Self::give_back) what could not be written.
    pub(crate) fn take_due(&self, now_ns: u64, all: bool) -> Vec<Report> {
        let mut kept = self.pending.lock().unwrap_or_else(PoisonError::into_inner);
        let mut due = Vec::new();
        kept.kinds.retain(|rejected, pending| {
            if !all && !is_due(pending.written_ns, now_ns) {
                return true;
            }
            if pending.count == 0 {
                // Nothing new for a while: the next one counts as a first one again.
                return false;
            }
            due.push(Report {
                rejected: Some(rejected.clone()),
                current: pending.current,
                holder: pending.holder.clone(),
                count: std::mem::take(&mut pending.count),
            });
            pending.written_ns = Some(now_ns);
            true
        });
        if kept.others > 0 && (all || is_due(kept.others_written_ns, now_ns)) {
            due.push(Report {
                rejected: None,
                current: 0,
                holder: None,
                count: std::mem::take(&mut kept.others),
            });
            kept.others_written_ns = Some(now_ns);
        }
        due
    }

    /// Whether anything waits to be written.
    pub(crate) fn is_empty(&self) -> bool {
        let kept = self.pending.lock().unwrap_or_else(PoisonError::into_inner);
        kept.kinds.is_empty() && kept.others == 0
    }

    /// The store could not write these: count them again.
    pub(crate) fn give_back(&self, reports: Vec<Report>) {
        let mut kept = self.pending.lock().unwrap_or_else(PoisonError::into_inner);
        for report in reports {
            match report
                .rejected
                .and_then(|rejected| kept.kinds.get_mut(&rejected))
            {
                Some(pending) => pending.count += report.count,
                None => kept.others += report.count,
            }
        }
    }
}

fn is_due(written_ns: Option<u64>, now_ns: u64) -> bool {
    written_ns.is_none_or(|written| now_ns.saturating_sub(written) >= FLUSH_EVERY_NS)
}

#[cfg(test)]
mod tests {
    use aster_core::{Authority, Fence, FenceRejection, Principal, ResourceName};

    use super::{FLUSH_EVERY_NS, KINDS_MAX, Rejections};

    fn fence(epoch: u64) -> Fence {
        Fence {
            authority: Authority::from_bytes([1; 16]),
            resource: ResourceName::new("catalog").unwrap(),
            epoch,
            holder: Principal::new("worker-a").unwrap(),
        }
    }

    fn note(rejections: &Rejections, epoch: u64, now_ns: u64) -> bool {
        let stale = FenceRejection::NotHeld;
        rejections.note(&fence(epoch), "worker-a", &stale, None, 9, now_ns)
    }

    #[test]
    fn the_first_is_due_at_once_and_repeats_once_a_second() {
        let rejections = Rejections::default();
        assert!(note(&rejections, 1, 0));
        assert_eq!(rejections.take_due(0, false)[0].count, 1);
        for _ in 0..500 {
            assert!(!note(&rejections, 1, 10));
        }
        assert!(rejections.take_due(FLUSH_EVERY_NS - 1, false).is_empty());
        assert_eq!(rejections.take_due(FLUSH_EVERY_NS, false)[0].count, 500);
        rejections.take_due(2 * FLUSH_EVERY_NS, false);
        assert!(rejections.is_empty());
    }

    #[test]
    fn many_kinds_stay_bounded_and_none_is_lost() {
        let rejections = Rejections::default();
        let kinds = KINDS_MAX as u64 + 100;
        for epoch in 1..=kinds {
            note(&rejections, epoch, 0);
        }
        let reports = rejections.take_due(0, true);
        assert_eq!(reports.len(), KINDS_MAX + 1);
        assert_eq!(
            reports.iter().map(|report| report.count).sum::<u64>(),
            kinds
        );
        rejections.give_back(reports);
        let again = rejections.take_due(0, true);
        assert_eq!(again.iter().map(|report| report.count).sum::<u64>(), kinds);
    }
}
