//! The one thread of a process that changes the main file.
//!
//! It takes what has queued up, carries it out in one transaction, and answers each caller after that
//! is durable: so callers who come together pay for one sync together.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use aster_core::ResourceName;
use aster_lease::SerializerError;
use rusqlite::{Connection, Transaction, TransactionBehavior};

use crate::audit;
use crate::batch::{Batch, Changes, Item};
use crate::connection::wait_for_others;
use crate::error::{again, is_full, storage};
use crate::gate::Turn;
use crate::idle::{self, Sweeps};
use crate::news;
use crate::open;
use crate::schema::{StoreRow, count_change};
use crate::shared::{Shared, side_unavailable};
use crate::side::{End, SideError, SideFile, Witness};
use crate::side_tables::SideTransaction;
use crate::worker::{TICK, Work};

/// How many requests share one commit at most.
const BATCH_MAX: usize = 256;
/// How many bytes of values share one commit at most; a larger one is committed alone.
const BATCH_BYTES_MAX: usize = 4 * 1024 * 1024;

/// For how long others may hold the lock before we see to those who need not wait for it…
const LOCK_IS_SHORT: Duration = Duration::from_millis(2);
/// …and how often we look whether more of them have come.
const LOOK_EVERY: Duration = Duration::from_millis(25);

/// How long the thread's own affairs wait for other writers, while no caller waits for them.
const HOUSEKEEPING_PATIENCE: Duration = Duration::from_millis(100);

/// How often one batch replaces a broken side file before it gives up.
const REPAIRS_MAX: usize = 3;

/// What follows a change waits until nobody has asked for this long…
const QUIET: Duration = Duration::from_millis(5);
/// …or, while there is no quiet, at most this long…
const AFTERWARDS_EVERY: Duration = Duration::from_millis(100);
/// …or until so many rows wait for it.
const AFTERWARDS_MAX: usize = 4_096;

/// What the writer thread is asked to do, and since when.
pub(crate) struct Job {
    queued: Instant,
    work: JobWork,
}

enum JobWork {
    /// Together with what else is queued.
    Shared(Item),
    /// In transactions of its own.
    Alone(Box<dyn FnOnce(&mut Writer) + Send>),
}

impl Job {
    /// A request that shares its commit with others.
    pub(crate) fn shared(item: Item) -> Self {
        Self::queued_now(JobWork::Shared(item))
    }

    /// A step with transactions of its own; it answers through a channel of its own.
    pub(crate) fn alone(step: impl FnOnce(&mut Writer) + Send + 'static) -> Self {
        Self::queued_now(JobWork::Alone(Box::new(step)))
    }

    #[allow(
        clippy::disallowed_methods,
        reason = "how long a caller waits for other writers is real time, and decides nothing else"
    )]
    fn queued_now(work: JobWork) -> Self {
        Self {
            queued: Instant::now(),
            work,
        }
    }
}

/// A request in a batch and since when it waits.
struct Waiting {
    queued: Instant,
    item: Item,
}

/// Why a batch was not committed. Nothing of it was kept.
enum Trouble {
    /// It was not begun, or its commit failed: that is nobody's fault.
    Batch(SerializerError),
    /// One of the requests cannot be kept.
    Item(SerializerError),
    /// One of the requests panicked.
    Panic,
    NeedsRepair,
}

pub(crate) struct Writer {
    pub(crate) shared: Arc<Shared>,
    pub(crate) main: Connection,
    pub(crate) side: Option<SideFile>,
    pub(crate) sweeps: Sweeps,
    pub(crate) afterwards: Afterwards,
    /// What was taken from the queue behind the present batch, and does not belong into it.
    next: Option<Job>,
    /// How long the present step may wait for other writers.
    pub(crate) patience: Duration,
}

impl Work for Writer {
    type Job = Job;

    const LINGERS: bool = true;

    fn run(&mut self, first: Job, queue: &Receiver<Job>) {
        self.next = Some(first);
        while let Some(job) = self.next.take() {
            match job.work {
                JobWork::Alone(step) => {
                    self.be_patient(self.left_of(job.queued));
                    step(self);
                }
                JobWork::Shared(item) => {
                    let mut batch = vec![Waiting {
                        queued: job.queued,
                        item,
                    }];
                    self.gather(&mut batch, queue);
                    self.carry_out(batch, Some(queue));
                    self.shared.blocked.store(false, Ordering::Release);
                }
            }
        }
        if self.sweeps.is_due() {
            self.be_patient(HOUSEKEEPING_PATIENCE);
            // What fails here is tried again after the next changes.
            if let Err(error) = idle::sweep(self) {
                tracing::debug!(?error, "idle rows were not dropped this time");
            }
        }
    }

    fn rest(&self) -> Duration {
        if self.afterwards.is_empty() {
            TICK
        } else {
            QUIET
        }
    }

    fn tick(&mut self, is_quiet: bool) {
        if is_quiet || self.afterwards.is_due() {
            self.do_afterwards();
        }
        if !self.shared.rejections.is_empty() {
            self.be_patient(HOUSEKEEPING_PATIENCE);
            self.write_rejections(false);
        }
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.be_patient(self.shared.options.busy_bound);
        self.write_rejections(true);
        self.do_afterwards();
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
        let began_ns = shared.now_ns();
        self.transaction.commit().map_err(storage)?;
        let took_ns = shared.now_ns().saturating_sub(began_ns);
        shared.commit_took_ns.store(took_ns, Ordering::Relaxed);
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
    pub(crate) fn new(shared: Arc<Shared>, main: Connection) -> Self {
        Self {
            patience: shared.options.busy_bound,
            shared,
            main,
            side: None,
            sweeps: Sweeps::default(),
            afterwards: Afterwards::default(),
            next: None,
        }
    }

    fn be_patient(&mut self, patience: Duration) {
        self.patience = patience;
        if let Err(error) = wait_for_others(&mut self.main, patience) {
            tracing::debug!(%error, "the connection keeps the patience that it had");
        }
    }

    /// How long a request that was queued then may still wait for other writers. Time in the queue
    /// counts: when a closure holds everybody up, all who wait hear of it in time, and not one after
    /// the other.
    fn left_of(&self, queued: Instant) -> Duration {
        let bound = self.shared.options.busy_bound;
        bound.saturating_sub(queued.elapsed())
    }

    /// Takes what is queued into the batch, in its order, as far as it shares a commit.
    fn gather(&mut self, batch: &mut Vec<Waiting>, queue: &Receiver<Job>) {
        let mut bytes: usize = batch.iter().map(|waiting| waiting.item.bytes()).sum();
        while self.next.is_none()
            && batch.len() < BATCH_MAX
            && bytes < BATCH_BYTES_MAX
            && let Ok(job) = queue.try_recv()
        {
            let queued = job.queued;
            match job.work {
                JobWork::Shared(item) if bytes + item.bytes() <= BATCH_BYTES_MAX => {
                    bytes += item.bytes();
                    batch.push(Waiting { queued, item });
                }
                work => self.next = Some(Job { queued, work }),
            }
        }
    }

    /// Carries out a batch and tells each of its requests what became of it. While others hold the
    /// lock, more may join it from `queue`.
    fn carry_out(&mut self, mut batch: Vec<Waiting>, queue: Option<&Receiver<Job>>) {
        let mut wait_max = LOCK_IS_SHORT;
        let mut repairs = 0;
        let mut has_made_room = false;
        // Bounded: every turn ends the batch, waits for some of the time that its requests have, or
        // uses up one of the two above.
        while let Some(oldest) = batch.first().map(|waiting| waiting.queued) {
            self.be_patient(self.left_of(oldest).min(wait_max));
            let attempt = catch_unwind(AssertUnwindSafe(|| self.attempt(&mut batch)));
            match attempt.unwrap_or(Err(Trouble::Panic)) {
                Ok(()) => {
                    batch.drain(..).for_each(|waiting| waiting.item.tell());
                }
                Err(Trouble::NeedsRepair) if repairs < REPAIRS_MAX => {
                    repairs += 1;
                    self.be_patient(self.left_of(oldest));
                    if let Err(error) = self.repair_side() {
                        fail_all(&mut batch, &error);
                    }
                }
                Err(Trouble::NeedsRepair) => fail_all(&mut batch, &side_unavailable()),
                Err(Trouble::Batch(SerializerError::Busy { message })) => {
                    wait_max = LOOK_EVERY;
                    self.fail_late(&mut batch, &message);
                    self.shared.blocked.store(true, Ordering::Release);
                    if let Some(queue) = queue {
                        self.gather(&mut batch, queue);
                    }
                    self.tell_denied(&mut batch);
                }
                Err(Trouble::Batch(error)) if !is_full(&error) => fail_all(&mut batch, &error),
                Err(Trouble::Batch(error) | Trouble::Item(error)) if batch.len() == 1 => {
                    if is_full(&error) && !has_made_room {
                        has_made_room = true;
                        self.make_room();
                    } else {
                        fail_all(&mut batch, &error);
                    }
                }
                Err(Trouble::Panic) if batch.len() == 1 => {
                    tracing::error!("a request to the store panicked; this is a bug");
                    // It notices that nobody answers.
                    batch.clear();
                }
                // One of them is at fault, or does not fit: each for itself then.
                Err(Trouble::Batch(_) | Trouble::Item(_) | Trouble::Panic) => {
                    for waiting in batch.drain(..) {
                        self.carry_out(vec![waiting], None);
                    }
                }
            }
        }
    }

    /// Tells those whose time is over that others kept the store busy.
    fn fail_late(&self, batch: &mut Vec<Waiting>, message: &str) {
        let is_late = |waiting: &mut Waiting| self.left_of(waiting.queued).is_zero();
        for late in batch.extract_if(.., is_late) {
            late.item.fail(SerializerError::Busy {
                message: message.to_owned(),
            });
        }
    }

    /// Tells those who are denied or refused whatever the others do: they need not wait for the lock.
    fn tell_denied(&mut self, batch: &mut Vec<Waiting>) {
        let (shared, main, side) = (&*self.shared, &self.main, &mut self.side);
        let is_denied = |waiting: &mut Waiting| waiting.item.look(shared, main, side);
        for denied in batch.extract_if(.., is_denied) {
            denied.item.tell();
        }
    }

    /// All of the batch in one commit. Side marks are committed first: a renewal that reads its row
    /// before our commit must find them.
    fn attempt(&mut self, batch: &mut [Waiting]) -> Result<(), Trouble> {
        let shared = &*self.shared;
        let begun = begin(shared, &self.main, self.patience).map_err(Trouble::Batch)?;
        let needs_side = batch.iter().any(|waiting| waiting.item.needs_side());
        let mut is_items = false;
        let mut carry_out =
            |side: Option<&SideTransaction<'_>>| -> Result<(Changes, End), SideError> {
                let mut steps = Batch {
                    shared,
                    main: &begun.transaction,
                    store: &begun.store,
                    side,
                    changes: Changes::default(),
                };
                is_items = true;
                for waiting in batch.iter_mut() {
                    waiting.item.carry_out(&mut steps)?;
                }
                is_items = false;
                let end = steps.end_of_side();
                Ok((steps.changes, end))
            };
        let changes = if needs_side {
            shared
                .side(&mut self.side, &begun.store)
                .and_then(|side| side.write_once(|side| carry_out(Some(side))))
        } else {
            carry_out(None).map(|(changes, _)| changes)
        };
        let mut changes = changes.map_err(|error| match error {
            SideError::NeedsRepair => Trouble::NeedsRepair,
            SideError::Store(error) if is_items => Trouble::Item(error),
            SideError::Store(error) => Trouble::Batch(error),
        })?;
        let news = std::mem::take(&mut changes.news);
        let changed = shared.waiting.concerned(changes.rows.keys());
        if changes.main {
            let store = begun.commit(shared).map_err(Trouble::Batch)?;
            self.sweeps.committed(store.sequence, changes.transitions);
            self.afterwards.add(&store, changes, news.granted_tickets());
            news::restart_claims(shared, &mut self.side, &store, &news);
            let refused = news.refused_tickets();
            if !refused.is_empty() {
                news::drop_tickets(shared, &mut self.side, &store, refused);
            }
        } else {
            drop(begun);
        }
        news.tell(&shared.path, &shared.waiting);
        shared.waiting.changed(&changed);
        Ok(())
    }

    /// Folds the side file's journal back: on a full disk that may be the room which is missing.
    fn make_room(&mut self) {
        if let Some(side) = &self.side {
            side.fold_journal();
        }
    }

    /// What could wait until the callers had their answers.
    fn do_afterwards(&mut self) {
        let Some(due) = self.afterwards.take() else {
            return;
        };
        let done = self
            .shared
            .side(&mut self.side, &due.store)
            .and_then(|side| {
                side.write(|side| {
                    side.put_witness(Witness {
                        authority: due.store.authority,
                        sequence: due.store.sequence,
                    })?;
                    for (resource, epoch) in &due.rows {
                        side.forget_below(resource, *epoch)?;
                    }
                    for ticket in &due.served {
                        side.drop_ticket(*ticket)?;
                    }
                    for (resource, epoch) in &due.ended_hold_offs {
                        side.forget_hold_off(resource, *epoch)?;
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
        shared
            .side(&mut self.side, &store)
            .map_err(open::unserved)?;
        open::arm(shared, &self.main, &mut self.side).map_err(open::unserved)
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

/// Every request of the batch hears of the failure that they share.
fn fail_all(batch: &mut Vec<Waiting>, error: &SerializerError) {
    for waiting in batch.drain(..) {
        waiting.item.fail(again(error));
    }
}

/// What the side file has to be told after a commit, and can be told later: how far the main file has
/// come, and what it need not remember any more.
#[derive(Debug, Default)]
pub(crate) struct Afterwards {
    due: Option<Due>,
}

#[derive(Debug)]
struct Due {
    since: Instant,
    store: StoreRow,
    rows: HashMap<ResourceName, u64>,
    ended_hold_offs: Vec<(ResourceName, u64)>,
    /// Tickets whose turn has come.
    served: Vec<i64>,
}

impl Afterwards {
    #[allow(
        clippy::disallowed_methods,
        reason = "when the side file is told is real time, and decides nothing"
    )]
    fn add(&mut self, store: &StoreRow, changes: Changes, served: impl IntoIterator<Item = i64>) {
        let due = self.due.get_or_insert_with(|| Due {
            since: Instant::now(),
            store: store.clone(),
            rows: HashMap::new(),
            ended_hold_offs: Vec::new(),
            served: Vec::new(),
        });
        due.served.extend(served);
        due.store = store.clone();
        let remembered = changes.remembered.into_iter();
        due.rows.extend(remembered.filter_map(|resource| {
            let epoch = *changes.rows.get(&resource)?;
            Some((resource, epoch))
        }));
        due.ended_hold_offs.extend(changes.ended_hold_offs);
    }

    /// The store as a commit of another kind left it.
    pub(crate) fn saw(&mut self, store: &StoreRow) {
        self.add(store, Changes::default(), []);
    }

    fn is_empty(&self) -> bool {
        self.due.is_none()
    }

    fn is_due(&self) -> bool {
        self.due.as_ref().is_some_and(|due| {
            due.rows.len() + due.ended_hold_offs.len() >= AFTERWARDS_MAX
                || due.since.elapsed() >= AFTERWARDS_EVERY
        })
    }

    fn take(&mut self) -> Option<Due> {
        self.due.take()
    }
}
