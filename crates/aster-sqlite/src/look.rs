//! What a look at one resource finds: who is answered by it, who is first, and who has lost its place.

use std::time::Duration;

use aster_core::{DenyReason, Fence, ResourceName, RowView};
use aster_lease::WaitOutcome;

use crate::calls::Mine;
use crate::judge::{Verdict, effective, judge};
use crate::plans::Seen;
use crate::rows::StoredRow;
use crate::schema::StoreRow;
use crate::shared::Shared;
use crate::side::SideError;
use crate::side_tables::SideTransaction;
use crate::waiters::ProcessId;
use crate::wake::{self, Reached};

/// What a look at one resource found.
pub(crate) struct Found {
    pub(crate) row: Seen,
    /// The first of ours in the queue.
    pub(crate) first: Option<First>,
    /// One of ours that has lost its place.
    pub(crate) missing: Option<Mine>,
}

/// Who is first of ours, as far as others matter to it.
pub(crate) struct First {
    /// How many other processes have somebody before it, as far as they are not known to be dead.
    pub(crate) processes_before: u32,
    /// Processes before it that are dead.
    pub(crate) dead_before: Vec<ProcessId>,
}

/// A look at one resource.
pub(crate) struct Look<'a> {
    pub(crate) shared: &'a Shared,
    pub(crate) store: &'a StoreRow,
    pub(crate) side: &'a SideTransaction<'a>,
    pub(crate) now_ns: u64,
    pub(crate) resource: &'a ResourceName,
}

impl Look<'_> {
    /// Answers whom the row as it stands concerns, and tells what is left to do.
    pub(crate) fn at(
        &self,
        row: Option<StoredRow>,
        first: Option<Mine>,
    ) -> Result<Found, SideError> {
        let Self {
            shared,
            side,
            resource,
            ..
        } = *self;
        let waiting = &shared.waiting;
        let evidence = side.evidence(resource, row.as_ref())?;
        let mut row = row.map(|row| effective(&row, evidence.renewal.as_ref()));
        let verdict = row.as_mut().map_or_else(Verdict::default, |row| {
            judge(row, &evidence, side.era, self.now_ns)
        });
        let view = RowView {
            authority: self.store.authority,
            resource,
            floor: self.store.floor,
            row: row.as_ref().map(|row| &row.state),
        };
        let remaining = verdict.judged.remaining;
        if waiting.is_watched(resource) {
            waiting.publish(resource, &view.snapshot(remaining));
        }
        let is_held = row.as_ref().is_some_and(|row| row.state.held.is_some());
        let granted = row.as_ref().map(|row| row.state.grant_id);
        if let Some(granted) = granted
            && let Some(mine) = waiting.of_grant(resource, granted)
            && mine.place.is_some()
        {
            let denied = |reason| WaitOutcome::Denied(reason, view.snapshot(remaining));
            let outcome = match remaining {
                _ if !is_held => denied(DenyReason::NotHeld),
                Some(Duration::ZERO) => denied(DenyReason::Expired),
                claim => WaitOutcome::Granted {
                    fence: Fence {
                        authority: self.store.authority,
                        resource: resource.clone(),
                        epoch: view.epoch(),
                        holder: mine.wish.candidate.clone(),
                    },
                    claim,
                },
            };
            waiting.answer(mine.id, Ok(outcome));
        }
        let mut found = Found {
            row: Seen {
                epoch: view.epoch(),
                revision: view.row.map_or(0, |row| row.revision),
                remaining: remaining.filter(|_| is_held).unwrap_or_default(),
                is_certain: verdict.is_certain(),
                is_foreign: is_held && row.as_ref().is_some_and(|row| row.stamp.era != side.era),
            },
            first: None,
            missing: None,
        };
        let Some(mine) = first else {
            return Ok(found);
        };
        let Some(place) = mine.place else {
            return Ok(found);
        };
        if !side.has_ticket(place.ticket)? {
            found.missing = Some(mine);
            return Ok(found);
        }
        let before = side.processes_ahead(resource, place.ticket, granted, self.now_ns)?;
        let others = before.into_iter().filter(|other| *other != waiting.process);
        let (dead_before, left): (Vec<_>, Vec<_>) =
            others.partition(|other| matches!(wake::reach(&shared.path, *other), Reached::Dead));
        found.first = Some(First {
            processes_before: u32::try_from(left.len()).unwrap_or(u32::MAX),
            dead_before,
        });
        Ok(found)
    }
}
