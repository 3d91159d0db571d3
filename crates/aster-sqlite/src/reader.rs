//! The thread of a process that reads: snapshots, lists, registers, audit, and the first look at an
//! operation, which answers denials without any lock.

use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::time::Duration;

use aster_core::Fence;
use aster_core::{
    FenceRejection, LeaseOp, LeaseSnapshot, Principal, ResourceName, RowView, TransitionOutcome,
    check_fence, transition,
};
use aster_lease::{AuditQuery, AuditRecord, ListQuery, RegisterValue, SerializerError, Waiter};
use rusqlite::{Connection, OptionalExtension, TransactionBehavior, params};

use crate::audit;
use crate::batch::TransitionRequest;
use crate::error::storage;
use crate::judge::{Verdict, effective, judge};
use crate::registers::{self, WriteRequest, Written};
use crate::rows::{self, RawRow, StoredRow};
use crate::schema::{StoreRow, count};
use crate::shared::{Shared, side_unavailable};
use crate::side::{SideError, SideFile};
use crate::worker::Work;

/// What the reader thread is asked to do; it answers through a channel of its own.
pub(crate) type Job = Box<dyn FnOnce(&mut Reader) + Send>;

pub(crate) struct Reader {
    pub(crate) shared: Arc<Shared>,
    pub(crate) main: Connection,
    pub(crate) side: Option<SideFile>,
}

impl Work for Reader {
    type Job = Job;

    fn run(&mut self, first: Job, _queue: &Receiver<Job>) {
        first(self);
    }
}

impl Reader {
    /// See [`look_at_transition`].
    pub(crate) fn first_look(
        &mut self,
        request: &TransitionRequest,
    ) -> Result<Option<TransitionOutcome>, SerializerError> {
        look_at_transition(&self.shared, &self.main, &mut self.side, request)
    }

    /// See [`look_at_write`](registers::look_at_write).
    pub(crate) fn look_at_write(
        &self,
        request: &WriteRequest,
    ) -> Result<Option<Written>, SerializerError> {
        registers::look_at_write(&self.shared, &self.main, request)
    }

    pub(crate) fn snapshot(
        &mut self,
        resource: &ResourceName,
    ) -> Result<LeaseSnapshot, SerializerError> {
        let (store, row) = load(&self.shared, &self.main, resource)?;
        self.snapshot_of(&store, resource, row.as_ref())
    }

    /// The rows in byte order of their names.
    pub(crate) fn list(
        &mut self,
        query: &ListQuery,
    ) -> Result<Vec<LeaseSnapshot>, SerializerError> {
        let shared = self.shared.clone();
        let (rows, store) = {
            let (transaction, store) = shared.begin(&self.main, TransactionBehavior::Deferred)?;
            (page(&transaction, query)?, store)
        };
        rows.iter()
            .map(|(resource, row)| self.snapshot_of(&store, resource, Some(row)))
            .collect()
    }

    /// Who waits, the next one first.
    pub(crate) fn queue(
        &mut self,
        resource: &ResourceName,
    ) -> Result<Vec<Waiter>, SerializerError> {
        let (store, row) = load(&self.shared, &self.main, resource)?;
        let granted = row.map(|row| row.state.grant_id);
        let shared = &*self.shared;
        let now_ns = shared.now_ns();
        let queue = shared.side(&mut self.side, &store).and_then(|side| {
            side.read(|side| {
                let mut waiters = Vec::new();
                for queued in side.waiters(resource)? {
                    if Some(queued.grant_id) == granted || side.is_ghost(&queued, now_ns)? {
                        continue;
                    }
                    let waiting_ns = now_ns.saturating_sub(queued.since_ns);
                    let is_our_clock = queued.era == side.era;
                    waiters.push(Waiter {
                        position: waiters.len(),
                        candidate: queued.candidate,
                        ttl: queued.ttl,
                        waiting: is_our_clock.then(|| Duration::from_nanos(waiting_ns)),
                    });
                }
                Ok(waiters)
            })
        });
        match queue {
            Ok(waiters) => Ok(waiters),
            Err(SideError::NeedsRepair) => Err(side_unavailable()),
            Err(SideError::Store(error)) => Err(error),
        }
    }

    pub(crate) fn register(
        &mut self,
        resource: &ResourceName,
    ) -> Result<Option<RegisterValue>, SerializerError> {
        let (transaction, _) = self
            .shared
            .begin(&self.main, TransactionBehavior::Deferred)?;
        let mut select = transaction
            .prepare_cached(
                "SELECT value, value_revision, epoch FROM main.aster_registers WHERE resource = ?1",
            )
            .map_err(storage)?;
        select
            .query_row([resource.as_str()], |row| {
                Ok(RegisterValue {
                    value: row.get(0)?,
                    value_revision: count(row, 1)?,
                    epoch: count(row, 2)?,
                })
            })
            .optional()
            .map_err(storage)
    }

    pub(crate) fn audit(
        &mut self,
        query: &AuditQuery,
    ) -> Result<Vec<AuditRecord>, SerializerError> {
        let (transaction, _) = self
            .shared
            .begin(&self.main, TransactionBehavior::Deferred)?;
        audit::query(&transaction, query)
    }

    fn snapshot_of(
        &mut self,
        store: &StoreRow,
        resource: &ResourceName,
        row: Option<&StoredRow>,
    ) -> Result<LeaseSnapshot, SerializerError> {
        let judged = judge_now(&self.shared, &mut self.side, store, resource, row)?;
        let (row, remaining) = match judged {
            Some((row, verdict)) => (row, verdict.judged.remaining),
            None => (row.cloned(), None),
        };
        let view = RowView {
            authority: store.authority,
            resource,
            floor: store.floor,
            row: row.as_ref().map(|row| &row.state),
        };
        Ok(view.snapshot(remaining))
    }
}

/// Answers an ownership change that a look at the row already denies: so do contenders who poll, and
/// they cost no lock. `None` when it takes the locks to tell.
pub(crate) fn look_at_transition(
    shared: &Shared,
    main: &Connection,
    side: &mut Option<SideFile>,
    request: &TransitionRequest,
) -> Result<Option<TransitionOutcome>, SerializerError> {
    let TransitionRequest { resource, op } = request;
    if matches!(op, LeaseOp::Cancel { .. }) {
        // It may be about a place in the queue.
        return Ok(None);
    }
    let (store, row) = load(shared, main, resource)?;
    let Some((row, verdict)) = judge_now(shared, side, &store, resource, row.as_ref())? else {
        return Ok(None);
    };
    let view = RowView {
        authority: store.authority,
        resource,
        floor: store.floor,
        row: row.as_ref().map(|row| &row.state),
    };
    let bounds = &shared.options.ttl_bounds;
    let outcome = transition(&view, &verdict.judged, bounds, op)?.outcome;
    Ok(match outcome {
        TransitionOutcome::Denied(..) if verdict.is_certain() => Some(outcome),
        _ => None,
    })
}

fn load(
    shared: &Shared,
    main: &Connection,
    resource: &ResourceName,
) -> Result<(StoreRow, Option<StoredRow>), SerializerError> {
    let (transaction, store) = shared.begin(main, TransactionBehavior::Deferred)?;
    let row = rows::load(&transaction, resource)?;
    Ok((store, row))
}

/// The row as it stands now; `None` while the side file does not serve.
fn judge_now(
    shared: &Shared,
    side: &mut Option<SideFile>,
    store: &StoreRow,
    resource: &ResourceName,
    row: Option<&StoredRow>,
) -> Result<Option<(Option<StoredRow>, Verdict)>, SerializerError> {
    let Some(row) = row else {
        return Ok(Some((None, Verdict::default())));
    };
    let looked = shared.side(side, store).and_then(|side| {
        side.read(|side| {
            let evidence = side.evidence(resource, Some(row))?;
            let mut row = effective(row, evidence.renewal.as_ref());
            let verdict = judge(&mut row, &evidence, side.era, shared.now_ns());
            Ok((Some(row), verdict))
        })
    });
    match looked {
        Ok(judged) => Ok(Some(judged)),
        Err(SideError::NeedsRepair) => Ok(None),
        Err(SideError::Store(error)) => Err(error),
    }
}

/// The fence rule on rows as they are inside `connection`'s transaction, with what a rejection's audit
/// record needs.
pub(crate) fn check(
    connection: &Connection,
    store: &StoreRow,
    fence: &Fence,
    writer: &str,
) -> Result<Result<(), Refusal>, SerializerError> {
    let row = rows::load(connection, &fence.resource)?;
    Ok(check_row(store, row.as_ref(), fence, writer))
}

/// The fence rule on a row that was loaded in the same transaction.
pub(crate) fn check_row(
    store: &StoreRow,
    row: Option<&StoredRow>,
    fence: &Fence,
    writer: &str,
) -> Result<(), Refusal> {
    let view = RowView {
        authority: store.authority,
        resource: &fence.resource,
        floor: store.floor,
        row: row.map(|row| &row.state),
    };
    check_fence(&view, fence, writer).map_err(|rejection| Refusal {
        rejection,
        current: view.epoch(),
        holder: row.and_then(|row| row.state.holder().cloned()),
    })
}

/// A rejected write and what the row was.
#[derive(Debug)]
pub(crate) struct Refusal {
    pub(crate) rejection: FenceRejection,
    pub(crate) current: u64,
    pub(crate) holder: Option<Principal>,
}

fn page(
    connection: &Connection,
    query: &ListQuery,
) -> Result<Vec<(ResourceName, StoredRow)>, SerializerError> {
    let columns = rows::COLUMNS;
    let held = if query.held_only {
        "AND holder IS NOT NULL"
    } else {
        ""
    };
    let after = query.after.as_ref().map_or("", ResourceName::as_str);
    let mut select = connection
        .prepare_cached(&format!(
            "SELECT {columns} FROM main.aster_rows
             WHERE resource > ?1 AND resource >= ?2 {held} ORDER BY resource"
        ))
        .map_err(storage)?;
    let mut raw = select
        .query(params![after, query.prefix])
        .map_err(storage)?;
    let mut found = Vec::new();
    while found.len() < query.page()
        && let Some(row) = raw.next().map_err(storage)?
    {
        let (resource, row) = RawRow::read(row).map_err(storage)?.parse(connection)?;
        // Names with the prefix stand together, so the first without it is the end.
        if !resource.starts_with(query.prefix.as_str()) {
            break;
        }
        found.push((resource, row));
    }
    Ok(found)
}
