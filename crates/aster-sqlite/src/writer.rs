//! The one thread of a process that changes the main file, one request after the other.
//!
//! It takes one job at a time and commits it before the next; a commit that carries several jobs
//! would be built into [`Work::run`].

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use aster_core::{Effect, LeaseOp, ResourceName, RowState, RowView, TransitionOutcome, transition};
use aster_lease::SerializerError;
use rusqlite::{Connection, Transaction, TransactionBehavior};

use crate::audit;
use crate::connection::wait_for_others;
use crate::error::storage;
use crate::gate::Turn;
use crate::idle::{self, Sweeps};
use crate::judge::{Renewal, Verdict, effective, judge};
use crate::open;
use crate::rows::{self, Stamp, StoredRow};
use crate::schema::{StoreRow, count_change};
use crate::shared::{Shared, side_unavailable};
use crate::side::{End, SideError, SideFile, Witness};
use crate::side_tables::SideTransaction;
use crate::worker::Work;

/// What the writer thread is asked to do; it answers through a channel of its own.
pub(crate) struct Job {
    queued: Instant,
    step: Box<dyn FnOnce(&mut Writer) + Send>,
}

impl Job {
    #[allow(
        clippy::disallowed_methods,
        reason = "how long a caller waits for other writers is real time, and decides nothing else"
    )]
    pub(crate) fn new(step: impl FnOnce(&mut Writer) + Send + 'static) -> Self {
        Self {
            queued: Instant::now(),
            step: Box::new(step),
        }
    }
}

/// How long the thread's own affairs wait for other writers, while no caller waits for them.
const HOUSEKEEPING_PATIENCE: Duration = Duration::from_millis(100);

/// How often one request replaces a broken side file before it gives up.
const REPAIRS_MAX: usize = 3;

/// More renewals than can reach one lease while the end of that lease is on its way to the disk: so
/// far does its revision jump, so that none of them can equal it.
const RENEWALS_IN_FLIGHT_MAX: u64 = 16;

pub(crate) struct Writer {
    pub(crate) shared: Arc<Shared>,
    pub(crate) main: Connection,
    pub(crate) side: Option<SideFile>,
    pub(crate) sweeps: Sweeps,
    /// How long the present step may wait for other writers.
    pub(crate) patience: Duration,
}

impl Work for Writer {
    type Job = Job;

    fn run(&mut self, first: Job, _queue: &Receiver<Job>) {
        // Time in the queue counts: when a closure holds everybody up, all who wait hear of it in
        // time, and not one after the other.
        let bound = self.shared.options.busy_bound;
        self.be_patient(bound.saturating_sub(first.queued.elapsed()));
        (first.step)(self);
        if self.sweeps.is_due() {
            self.be_patient(HOUSEKEEPING_PATIENCE);
            // What fails here is tried again after the next changes.
            if let Err(error) = idle::sweep(self) {
                tracing::debug!(?error, "idle rows were not dropped this time");
            }
        }
    }

    fn tick(&mut self) {
        self.be_patient(HOUSEKEEPING_PATIENCE);
        self.write_rejections(false);
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.be_patient(self.shared.options.busy_bound);
        self.write_rejections(true);
    }
}

/// A change that is ready to be committed.
pub(crate) struct Begun<'c> {
    pub(crate) transaction: Transaction<'c>,
    pub(crate) store: StoreRow,
    _turn: Turn<'c>,
}

impl Begun<'_> {
    /// Counts the change and makes it durable.
    pub(crate) fn commit(mut self, shared: &Shared) -> Result<StoreRow, SerializerError> {
        count_change(&self.transaction, &mut self.store)?;
        self.transaction.commit().map_err(storage)?;
        shared.saw(self.store.sequence);
        Ok(self.store)
    }
}

/// Takes this process's turn and then the file's write lock, each within `patience`.
pub(crate) fn begin<'c>(
    shared: &'c Shared,
    connection: &'c Connection,
    patience: Duration,
) -> Result<Begun<'c>, SerializerError> {
    let turn = shared
        .gate
        .enter(patience)
        .ok_or_else(|| SerializerError::Busy {
            message: "a protected closure of this process has been running for too long".to_owned(),
        })?;
    let (transaction, store) = shared.begin(connection, TransactionBehavior::Immediate)?;
    Ok(Begun {
        transaction,
        store,
        _turn: turn,
    })
}

impl Writer {
    fn be_patient(&mut self, patience: Duration) {
        self.patience = patience;
        if let Err(error) = wait_for_others(&mut self.main, patience) {
            tracing::debug!(%error, "the connection keeps the patience that it had");
        }
    }

    /// Acquire, release, revoke or cancel. Durable when it returns.
    pub(crate) fn transition(
        &mut self,
        resource: &ResourceName,
        op: &LeaseOp,
    ) -> Result<(TransitionOutcome, Option<Changed>), SerializerError> {
        for _ in 0..REPAIRS_MAX {
            match self.transition_once(resource, op) {
                Err(SideError::NeedsRepair) => self.repair_side()?,
                Err(SideError::Store(error)) => return Err(error),
                Ok(done) => return Ok(done),
            }
        }
        Err(side_unavailable())
    }

    fn transition_once(
        &mut self,
        resource: &ResourceName,
        op: &LeaseOp,
    ) -> Result<(TransitionOutcome, Option<Changed>), SideError> {
        let shared = &*self.shared;
        let begun = begin(shared, &self.main, self.patience)?;
        let before = rows::load(&begun.transaction, resource)?;
        let side = shared.side(&mut self.side, &begun.store)?;
        // The side file's lock keeps out renewals that have read their clock and not yet committed.
        let step =
            side.write(|side| decide(shared, &begun.store, resource, before.as_ref(), op, side))?;
        let Some((after, era)) = step.replace else {
            return Ok((step.outcome, None));
        };
        let row = stamped(
            after,
            before.as_ref(),
            Stamp {
                era,
                since_ns: shared.now_ns(),
            },
        );
        rows::store(&begun.transaction, resource, &row, before.as_ref())?;
        let at_unix_ms = shared.options.time.wall_unix_ms();
        let detail = aster_lease::audit::detail_of(op);
        let record = audit::of_transition(
            resource,
            op,
            &step.outcome,
            before.as_ref(),
            row.state.epoch,
            at_unix_ms,
            detail.as_deref(),
        );
        if let Some(record) = record {
            audit::insert(
                &begun.transaction,
                &record,
                shared.options.audit_records_max,
            )?;
        }
        let store = begun.commit(shared)?;
        self.sweeps.count();
        let changed = Changed {
            store,
            epoch: row.state.epoch,
            ended_hold_offs: rows::ended_hold_offs(&row, before.as_ref()),
        };
        Ok((step.outcome, Some(changed)))
    }

    /// What can wait until the caller has its answer.
    pub(crate) fn after_change(&mut self, resource: Option<&ResourceName>, changed: &Changed) {
        let store = &changed.store;
        let witness = Witness {
            authority: store.authority,
            sequence: store.sequence,
        };
        let done = self.shared.side(&mut self.side, store).and_then(|side| {
            side.write(|side| {
                side.put_witness(witness)?;
                if let Some(resource) = resource {
                    side.forget_below(resource, changed.epoch)?;
                    for epoch in &changed.ended_hold_offs {
                        side.forget_hold_off(resource, *epoch)?;
                    }
                }
                Ok(((), End::Commit))
            })
        });
        if let Err(error) = done {
            // It only notices restored files, and the next change tries again.
            tracing::debug!(?error, "the witness was not written");
        }
    }

    /// Gives the main file a new side file, if the present one does not serve.
    pub(crate) fn repair_side(&mut self) -> Result<(), SerializerError> {
        let shared = &*self.shared;
        shared.repair_queued.store(false, Ordering::Release);
        let mut begun = begin(shared, &self.main, self.patience)?;
        // It may look fine from afar: open it afresh, and look inside.
        self.side = None;
        match shared.side(&mut self.side, &begun.store) {
            Ok(side) if side.is_sound() => return Ok(()),
            Ok(_) | Err(SideError::NeedsRepair) => self.side = None,
            Err(SideError::Store(error)) => return Err(error),
        }
        tracing::warn!(
            path = ?shared.side_path,
            "the side file is missing or damaged; a new one is made, and every held lease lasts one \
             more ttl"
        );
        open::replace_side(
            &begun.transaction,
            &mut begun.store,
            &shared.path,
            &shared.options,
        )?;
        let store = begun.commit(shared)?;
        // Watching begins only now that everybody can see that the old side file is out of use.
        match shared.side(&mut self.side, &store) {
            Ok(_) => {}
            Err(SideError::Store(error)) => return Err(error),
            Err(SideError::NeedsRepair) => return Err(side_unavailable()),
        }
        open::arm(shared, &self.main, &mut self.side)
    }

    /// Writes the rejections that are due to the audit trail.
    pub(crate) fn write_rejections(&mut self, all: bool) {
        let shared = &*self.shared;
        if shared.rejections.is_empty() {
            return;
        }
        let reports = shared.rejections.take_due(shared.now_ns(), all);
        if reports.is_empty() {
            return;
        }
        let written = begin(shared, &self.main, self.patience).and_then(|begun| {
            let at_unix_ms = shared.options.time.wall_unix_ms();
            for report in &reports {
                let record = audit::of_rejection(report, at_unix_ms);
                audit::insert(
                    &begun.transaction,
                    &record,
                    shared.options.audit_records_max,
                )?;
            }
            begun.transaction.commit().map_err(storage)
        });
        if let Err(error) = written {
            tracing::warn!(%error, "rejected writes wait to be written to the audit trail");
            shared.rejections.give_back(reports);
        }
    }
}

/// A durable change, for what follows it.
pub(crate) struct Changed {
    pub(crate) store: StoreRow,
    pub(crate) epoch: u64,
    /// The epochs of hold-offs that the row has no more.
    pub(crate) ended_hold_offs: Vec<u64>,
}

struct Decided {
    outcome: TransitionOutcome,
    /// The new row and the era of our clock.
    replace: Option<(RowState, crate::schema::Id)>,
}

/// Judges and decides under both locks.
fn decide(
    shared: &Shared,
    store: &StoreRow,
    resource: &ResourceName,
    before: Option<&StoredRow>,
    op: &LeaseOp,
    side: &SideTransaction<'_>,
) -> Result<(Decided, End), SideError> {
    let evidence = side.evidence(resource, before)?;
    let now_ns = shared.now_ns();
    let mut row = before.map(|row| effective(row, evidence.renewal.as_ref()));
    let verdict = row.as_mut().map_or_else(Verdict::default, |row| {
        judge(row, &evidence, side.era, now_ns)
    });
    let mut end = End::Rollback;
    for (watched, seen) in &verdict.watches {
        side.watch(resource, *watched, *seen)?;
        end = End::Commit;
    }
    let view = RowView {
        authority: store.authority,
        resource,
        floor: store.floor,
        row: row.as_ref().map(|row| &row.state),
    };
    let decision = transition(&view, &verdict.judged, &shared.options.ttl_bounds, op)
        .map_err(SerializerError::from)?;
    let mut replace = None;
    match decision.effect {
        Effect::Keep => {}
        Effect::Rearm(state) => {
            let renewal = Renewal {
                epoch: state.epoch,
                revision: state.revision,
                era: side.era,
                since_ns: now_ns,
                expired: false,
            };
            side.put_renewal(resource, &renewal)?;
            end = End::Commit;
        }
        Effect::Replace(mut state) => {
            if !matches!(op, LeaseOp::Acquire { .. }) {
                state.revision = state.revision.saturating_add(RENEWALS_IN_FLIGHT_MAX);
            } else if let Some(row) = row.as_ref().filter(|row| row.state.held.is_some()) {
                // The old holder may read another clock by which it has not expired, and renew
                // before this takeover is durable. The mark refuses that.
                let mark = Renewal {
                    epoch: row.state.epoch,
                    revision: row.state.revision,
                    era: row.stamp.era,
                    since_ns: row.stamp.since_ns,
                    expired: true,
                };
                side.put_renewal(resource, &mark)?;
                end = End::Commit;
            }
            replace = Some((state, side.era));
        }
    }
    let outcome = decision.outcome;
    Ok((Decided { outcome, replace }, end))
}

/// The new row with its instants: hold-offs that were there before keep their own.
fn stamped(state: RowState, before: Option<&StoredRow>, now: Stamp) -> StoredRow {
    let before = |epoch| before.and_then(|row| row.hold_off_since(epoch));
    let epochs = state.hold_offs.iter().map(|hold_off| hold_off.epoch);
    let hold_offs_since = epochs
        .map(|epoch| (epoch, before(epoch).unwrap_or(now)))
        .collect();
    StoredRow {
        state,
        stamp: now,
        hold_offs_since,
    }
}
