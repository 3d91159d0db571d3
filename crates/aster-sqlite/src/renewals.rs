//! The thread of a process that renews: in batches, in the side file, without fsync and without the
//! main file's write lock, so that no user's closure can hold it up.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, SyncSender};

use aster_core::{Effect, LeaseOp, ResourceName, RowView, TransitionOutcome, transition};
use aster_lease::SerializerError;
use rusqlite::{Connection, TransactionBehavior};
use tokio::sync::oneshot;

use crate::error::{again, is_of_one_row, went_back};
use crate::judge::{Evidence, Renewal, Verdict, effective, judge};
use crate::rows::{self, StoredRow};
use crate::schema::StoreRow;
use crate::shared::{Shared, side_unavailable};
use crate::side::{End, SideError, SideFile};
use crate::side_tables::SideTransaction;
use crate::worker::{Work, submit_to};
use crate::writer;

/// How many renewals share one commit of the side file.
pub(crate) const BATCH_MAX: usize = 512;

type Outcome = Result<TransitionOutcome, SerializerError>;

/// One renewal and where its answer goes.
#[derive(Debug)]
pub(crate) struct Request {
    pub(crate) resource: ResourceName,
    pub(crate) op: LeaseOp,
    pub(crate) reply: oneshot::Sender<Outcome>,
}

pub(crate) struct Renewals {
    pub(crate) shared: Arc<Shared>,
    /// Used for plain reads only.
    pub(crate) main: Connection,
    pub(crate) side: Option<SideFile>,
    pub(crate) writer: Option<SyncSender<writer::Job>>,
}

impl Work for Renewals {
    type Job = Vec<Request>;

    /// A process with a hundred thousand leases may have many of them due at once.
    const QUEUE_MAX: usize = 32_768;

    fn run(&mut self, first: Vec<Request>, queue: &Receiver<Vec<Request>>) {
        let mut batch = first;
        while batch.len() < BATCH_MAX
            && let Ok(more) = queue.try_recv()
        {
            batch.extend(more);
        }
        while !batch.is_empty() {
            let rest = batch.split_off(batch.len().min(BATCH_MAX));
            let outcomes = self.renew(&batch);
            for (request, outcome) in batch.into_iter().zip(outcomes) {
                // Nobody waits any more: the renewal stands all the same.
                let _ = request.reply.send(outcome);
            }
            batch = rest;
        }
    }
}

impl Renewals {
    fn renew(&mut self, batch: &[Request]) -> Vec<Outcome> {
        match self.try_renew(batch) {
            Ok(outcomes) => outcomes,
            Err(SideError::NeedsRepair) => {
                self.order_repair();
                batch.iter().map(|_| Err(side_unavailable())).collect()
            }
            // Every request of the batch hears of the failure that they share.
            Err(SideError::Store(error)) => {
                let mut outcomes: Vec<_> = (1..batch.len()).map(|_| Err(again(&error))).collect();
                outcomes.push(Err(error));
                outcomes
            }
        }
    }

    fn try_renew(&mut self, batch: &[Request]) -> Result<Vec<Outcome>, SideError> {
        let shared = &*self.shared;
        let main = &self.main;
        let store = shared.begin(main, TransactionBehavior::Deferred)?.1;
        let side = shared.side(&mut self.side, &store)?;
        let outcomes = side.write(|side| {
            // Rows are read after the side file is locked: a takeover that has judged a row leaves
            // its mark there before it commits.
            let (transaction, store) = shared.begin(main, TransactionBehavior::Deferred)?;
            let mut step = Step {
                shared,
                store: &store,
                main: &transaction,
                side,
                known: HashMap::with_capacity(batch.len()),
                changed: false,
            };
            let outcomes = batch
                .iter()
                .map(|request| step.renew(&request.resource, &request.op))
                .collect::<Result<Vec<_>, SideError>>()?;
            let end = if step.changed {
                End::Commit
            } else {
                End::Rollback
            };
            Ok((outcomes, end))
        })?;
        // Whoever replaced the side file meanwhile has not seen these renewals, and begins to watch
        // only after the replacement is visible here.
        let store = shared.begin(main, TransactionBehavior::Deferred)?.1;
        if !side.serves(store.side_id) {
            return Err(SideError::NeedsRepair);
        }
        Ok(outcomes)
    }

    fn order_repair(&mut self) {
        self.side = None;
        order_repair(&self.shared, self.writer.as_ref());
    }
}

/// Asks the writer for a side file that serves, unless somebody of this process has asked already.
pub(crate) fn order_repair(shared: &Shared, writer: Option<&SyncSender<writer::Job>>) {
    if shared.repair_queued.swap(true, Ordering::AcqRel) {
        return;
    }
    let job = writer::Job::alone(|writer| {
        if let Err(error) = writer.repair_side() {
            tracing::warn!(%error, "the side file was not replaced; who needs it asks again");
        }
    });
    if submit_to(writer, job).is_err() {
        shared.repair_queued.store(false, Ordering::Release);
    }
}

/// Why a row must not be served that has gone back behind a renewal of it.
pub(crate) fn contradiction(
    resource: &ResourceName,
    row: Option<&StoredRow>,
    evidence: &Evidence,
) -> Option<SerializerError> {
    let row = row.filter(|row| evidence.is_ahead_of(row))?;
    let renewed = evidence.renewal?.epoch;
    Some(went_back(resource, row.state.epoch, renewed))
}

/// One batch under the side file's lock.
struct Step<'a> {
    shared: &'a Shared,
    store: &'a StoreRow,
    main: &'a Connection,
    side: &'a SideTransaction<'a>,
    /// Rows that this batch has seen, with the renewals that it made.
    known: HashMap<ResourceName, (Option<StoredRow>, Evidence)>,
    changed: bool,
}

impl Step<'_> {
    fn renew(&mut self, resource: &ResourceName, op: &LeaseOp) -> Result<Outcome, SideError> {
        let (row, evidence) = match self.known.get(resource) {
            Some(known) => known.clone(),
            None => {
                let row = match rows::load(self.main, resource) {
                    Ok(row) => row,
                    // One damaged row must not cost the other leases their renewals.
                    Err(error) if is_of_one_row(&error) => return Ok(Err(error)),
                    Err(error) => return Err(error.into()),
                };
                let evidence = self.side.evidence(resource, row.as_ref())?;
                (row, evidence)
            }
        };
        if let Some(error) = contradiction(resource, row.as_ref(), &evidence) {
            return Ok(Err(error));
        }
        let now_ns = self.shared.now_ns();
        let mut present = row
            .as_ref()
            .map(|row| effective(row, evidence.renewal.as_ref()));
        let verdict = present.as_mut().map_or_else(Verdict::default, |row| {
            judge(row, &evidence, self.side.era, now_ns)
        });
        for (watched, seen) in &verdict.watches {
            self.side.watch(resource, *watched, *seen)?;
            self.changed = true;
        }
        let view = RowView {
            authority: self.store.authority,
            resource,
            floor: self.store.floor,
            row: present.as_ref().map(|row| &row.state),
        };
        let bounds = &self.shared.options.ttl_bounds;
        let decision = match transition(&view, &verdict.judged, bounds, op) {
            Ok(decision) => decision,
            Err(error) => return Ok(Err(error.into())),
        };
        let mut evidence = evidence;
        if let Effect::Rearm(state) = decision.effect {
            let renewal = Renewal {
                epoch: state.epoch,
                revision: state.revision,
                era: self.side.era,
                since_ns: now_ns,
                expired: false,
            };
            self.side.put_renewal(resource, &renewal)?;
            evidence.renewal = Some(renewal);
            self.changed = true;
        }
        self.known.insert(resource.clone(), (row, evidence));
        Ok(Ok(decision.outcome))
    }
}
