//! Requests on their way into one commit, and the pair of transactions that they share.
//!
//! Each request sees what those before it changed. One that fails in the rules changes nothing and
//! fails alone; any other failure is the batch's, and the writer thread sees to it that it becomes
//! nobody else's.

use std::collections::HashMap;

use aster_core::{Effect, LeaseOp, ResourceName, RowState, RowView, TransitionOutcome, transition};
use aster_lease::SerializerError;
use rusqlite::Connection;
use tokio::sync::oneshot;

use crate::audit;
use crate::judge::{Renewal, Verdict, effective, judge};
use crate::news::News;
use crate::reader;
use crate::registers::{self, WriteRequest, Written};
use crate::renewals::contradiction;
use crate::rows::{self, Stamp, StoredRow};
use crate::schema::StoreRow;
use crate::shared::Shared;
use crate::side::{End, SideError, SideFile};
use crate::side_tables::SideTransaction;
use crate::wishes::{Advance, Join, Leave, RanOut};

/// More renewals than can reach one lease while the end of that lease is on its way to the disk: so
/// far does its revision jump, so that none of them can equal it.
const RENEWALS_IN_FLIGHT_MAX: u64 = 16;

/// What one request is told. An error in it is that request's own: it changed nothing.
pub(crate) type Own<T> = Result<T, SerializerError>;

/// A request that shares its commit with others.
#[derive(Debug)]
pub(crate) enum Item {
    Transition(Asked<TransitionRequest, TransitionOutcome>),
    Write(Asked<WriteRequest, Written>),
    Join(Join),
    Leave(Leave),
    RanOut(RanOut),
    Advance(Advance),
}

/// Acquire, release, revoke or cancel.
#[derive(Debug, Clone)]
pub(crate) struct TransitionRequest {
    pub(crate) resource: ResourceName,
    pub(crate) op: LeaseOp,
}

/// A request, what it will be told once that is durable, and where the answer goes.
#[derive(Debug)]
pub(crate) struct Asked<Q, A> {
    request: Q,
    answer: Option<Own<A>>,
    reply: oneshot::Sender<Own<A>>,
}

impl<Q, A> Asked<Q, A> {
    pub(crate) fn new(request: Q) -> (Self, oneshot::Receiver<Own<A>>) {
        let (reply, receiver) = oneshot::channel();
        let asked = Self {
            request,
            answer: None,
            reply,
        };
        (asked, receiver)
    }

    fn tell(self) {
        if let Some(answer) = self.answer {
            // Nobody waits any more: what was done stands, and a retry is recognized.
            let _ = self.reply.send(answer);
        }
    }
}

impl Item {
    /// Whether it takes the side file's lock.
    pub(crate) fn needs_side(&self) -> bool {
        match self {
            Item::Write(asked) => asked.request.release,
            _ => true,
        }
    }

    /// How much it adds to a commit, in bytes, beyond a row.
    pub(crate) fn bytes(&self) -> usize {
        match self {
            Item::Write(asked) => asked.request.write.value.len(),
            _ => 0,
        }
    }

    /// Finds out by a plain read whether it is denied or refused; the answer is kept then. `false` when
    /// it takes the locks to tell.
    pub(crate) fn look(
        &mut self,
        shared: &Shared,
        main: &Connection,
        side: &mut Option<SideFile>,
    ) -> bool {
        // A failure to look is no answer: the request waits and sees.
        match self {
            Item::Transition(asked) => {
                let looked = reader::look_at_transition(shared, main, side, &asked.request);
                asked.answer = looked.ok().flatten().map(Ok);
                asked.answer.is_some()
            }
            Item::Write(asked) => {
                let looked = registers::look_at_write(shared, main, &asked.request);
                asked.answer = looked.ok().flatten().map(Ok);
                asked.answer.is_some()
            }
            Item::Join(_) | Item::Leave(_) | Item::RanOut(_) | Item::Advance(_) => false,
        }
    }

    /// Does it within `batch`. May be called again when an earlier batch was rolled back.
    ///
    /// An error is the whole batch's: nothing of it may be committed.
    pub(crate) fn carry_out(&mut self, batch: &mut Batch<'_>) -> Result<(), SideError> {
        match self {
            Item::Transition(asked) => {
                let TransitionRequest { resource, op } = &asked.request;
                asked.answer = Some(batch.transition(resource, op)?);
            }
            Item::Write(asked) => asked.answer = Some(batch.write(&asked.request)?),
            Item::Join(join) => join.carry_out(batch)?,
            Item::Leave(leave) => leave.carry_out(batch)?,
            Item::RanOut(ran_out) => ran_out.carry_out(batch)?,
            Item::Advance(advance) => advance.carry_out(batch)?,
        }
        Ok(())
    }

    /// Tells it what [`carry_out`](Self::carry_out) did, which is durable now.
    pub(crate) fn tell(self) {
        match self {
            Item::Transition(asked) => asked.tell(),
            Item::Write(asked) => asked.tell(),
            Item::Join(join) => join.tell(),
            Item::RanOut(ran_out) => ran_out.tell(),
            Item::Leave(_) | Item::Advance(_) => {}
        }
    }

    /// Tells it that nothing was done.
    pub(crate) fn fail(self, error: SerializerError) {
        // Nobody waits any more: then nobody hears of it.
        match self {
            Item::Transition(asked) => drop(asked.reply.send(Err(error))),
            Item::Write(asked) => drop(asked.reply.send(Err(error))),
            Item::Join(join) => join.fail(error),
            Item::Leave(leave) => leave.fail(),
            Item::RanOut(ran_out) => ran_out.fail(error),
            // Whoever waits for it looks again.
            Item::Advance(_) => {}
        }
    }
}

/// What a batch changed, for the commit and for what follows it.
#[derive(Debug, Default)]
pub(crate) struct Changes {
    /// The main file has something to commit.
    pub(crate) main: bool,
    /// The side file has something to commit.
    pub(crate) side: bool,
    /// How many ownership changes there were.
    pub(crate) transitions: u64,
    /// The rows with a new owner or none, and their present epochs.
    pub(crate) rows: HashMap<ResourceName, u64>,
    /// Of those, the ones about whose past the side file still keeps something.
    pub(crate) remembered: Vec<ResourceName>,
    /// Hold-offs that rows have no more, by the epoch that names each.
    pub(crate) ended_hold_offs: Vec<(ResourceName, u64)>,
    /// What the queues have to tell.
    pub(crate) news: News,
}

/// A row as it stands on our clock.
#[derive(Debug)]
pub(crate) struct Present {
    pub(crate) row: Option<StoredRow>,
    pub(crate) verdict: Verdict,
    pub(crate) now_ns: u64,
}

impl Present {
    /// Free, or expired.
    pub(crate) fn may_be_taken(&self) -> bool {
        let is_held = self
            .row
            .as_ref()
            .is_some_and(|row| row.state.held.is_some());
        !is_held || self.verdict.judged.expired
    }
}

/// One transaction on the main file, and one on the side file if any request needs it.
pub(crate) struct Batch<'a> {
    pub(crate) shared: &'a Shared,
    pub(crate) main: &'a Connection,
    pub(crate) store: &'a StoreRow,
    /// Its lock keeps out renewals that have read their clock and not yet committed.
    pub(crate) side: Option<&'a SideTransaction<'a>>,
    pub(crate) changes: Changes,
}

impl<'a> Batch<'a> {
    pub(crate) fn end_of_side(&self) -> End {
        match self.changes.side {
            true => End::Commit,
            false => End::Rollback,
        }
    }

    /// Acquire, release, revoke or cancel.
    pub(crate) fn transition(
        &mut self,
        resource: &ResourceName,
        op: &LeaseOp,
    ) -> Result<Own<TransitionOutcome>, SideError> {
        let mut before = rows::load(self.main, resource)?;
        if let LeaseOp::Acquire { grant_id, .. } = op {
            // Nobody overtakes those who wait; only a grant's own retry is not about them.
            let is_retry = before
                .as_ref()
                .is_some_and(|row| row.state.grant_id == *grant_id);
            if !is_retry && self.first_waiter(resource, before.as_ref())?.is_some() {
                self.advance(resource, None)?;
                before = rows::load(self.main, resource)?;
            }
        }
        if let LeaseOp::Cancel {
            candidate,
            grant_id,
        } = op
            && self.withdraw(resource, candidate, *grant_id)?
        {
            before = rows::load(self.main, resource)?;
        }
        self.transition_of(resource, before.as_ref(), op)
    }

    pub(crate) fn side(&self) -> Result<&'a SideTransaction<'a>, SideError> {
        let missing = || SerializerError::Unexpected {
            message: "an ownership change without the side file".to_owned(),
        };
        self.side.ok_or_else(|| missing().into())
    }

    /// Judges the row that was loaded as `before`, in this batch.
    pub(crate) fn present(
        &mut self,
        resource: &ResourceName,
        before: Option<&StoredRow>,
    ) -> Result<Present, SideError> {
        let side = self.side()?;
        let evidence = side.evidence(resource, before)?;
        if let Some(error) = contradiction(resource, before, &evidence) {
            return Err(error.into());
        }
        let now_ns = self.shared.now_ns();
        let mut row = before.map(|row| effective(row, evidence.renewal.as_ref()));
        let verdict = row.as_mut().map_or_else(Verdict::default, |row| {
            judge(row, &evidence, side.era, now_ns)
        });
        for (watched, seen) in &verdict.watches {
            side.watch(resource, *watched, *seen)?;
            self.changes.side = true;
        }
        Ok(Present {
            row,
            verdict,
            now_ns,
        })
    }

    pub(crate) fn view<'v>(
        &self,
        resource: &'v ResourceName,
        row: Option<&'v StoredRow>,
    ) -> RowView<'v> {
        RowView {
            authority: self.store.authority,
            resource,
            floor: self.store.floor,
            row: row.map(|row| &row.state),
        }
    }

    /// The same when the row was loaded already, in this batch and unchanged since.
    pub(crate) fn transition_of(
        &mut self,
        resource: &ResourceName,
        before: Option<&StoredRow>,
        op: &LeaseOp,
    ) -> Result<Own<TransitionOutcome>, SideError> {
        let side = self.side()?;
        let Present {
            row,
            verdict,
            now_ns,
        } = self.present(resource, before)?;
        let view = self.view(resource, row.as_ref());
        let bounds = &self.shared.options.ttl_bounds;
        let decision = match transition(&view, &verdict.judged, bounds, op) {
            Ok(decision) => decision,
            Err(error) => return Ok(Err(error.into())),
        };
        let now = Stamp {
            era: side.era,
            since_ns: now_ns,
        };
        // Nobody else can see such a row before the commit, and if that fails there is no such epoch:
        // the side file must not know of it.
        let is_new = self.changes.rows.contains_key(resource);
        match decision.effect {
            Effect::Keep => {}
            Effect::Rearm(state) if is_new => {
                self.changes.side |= side.drop_claim(resource)?;
                self.put_row(resource, before, &stamped(state, before, now))?;
            }
            Effect::Rearm(state) => {
                let renewal = Renewal {
                    epoch: state.epoch,
                    revision: state.revision,
                    era: side.era,
                    since_ns: now_ns,
                    expired: false,
                };
                side.put_renewal(resource, &renewal)?;
                self.changes.side = true;
            }
            Effect::Replace(mut state) => {
                self.changes.side |= side.drop_claim(resource)?;
                let is_acquire = matches!(op, LeaseOp::Acquire { .. });
                if is_acquire && verdict.unclaimed {
                    self.changes.news.claim_lapsed();
                }
                if !is_acquire {
                    state.revision = state.revision.saturating_add(RENEWALS_IN_FLIGHT_MAX);
                } else if let Some(row) = row.as_ref().filter(|row| row.state.held.is_some())
                    && !is_new
                {
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
                    self.changes.side = true;
                }
                // The side file may keep what the new epoch makes pointless.
                if before.is_some() {
                    self.changes.remembered.push(resource.clone());
                }
                let is_free = state.held.is_none();
                self.replace(resource, op, &decision.outcome, before, state, now)?;
                if is_free {
                    self.advance(resource, None)?;
                }
            }
        }
        Ok(Ok(decision.outcome))
    }

    /// The new row and the record of how it came about.
    fn replace(
        &mut self,
        resource: &ResourceName,
        op: &LeaseOp,
        outcome: &TransitionOutcome,
        before: Option<&StoredRow>,
        state: RowState,
        now: Stamp,
    ) -> Result<(), SerializerError> {
        let options = &self.shared.options;
        let row = stamped(state, before, now);
        self.put_row(resource, before, &row)?;
        let detail = aster_lease::audit::detail_of(op);
        let record = audit::of_transition(
            resource,
            op,
            outcome,
            before,
            row.state.epoch,
            options.time.wall_unix_ms(),
            detail.as_deref(),
        );
        if let Some(record) = record {
            audit::insert(self.main, &record, options.audit_records_max)?;
        }
        self.changes.transitions += 1;
        Ok(())
    }

    fn put_row(
        &mut self,
        resource: &ResourceName,
        before: Option<&StoredRow>,
        row: &StoredRow,
    ) -> Result<(), SerializerError> {
        rows::store(self.main, resource, row, before)?;
        let changes = &mut self.changes;
        changes.main = true;
        changes.rows.insert(resource.clone(), row.state.epoch);
        for epoch in rows::ended_hold_offs(row, before) {
            changes.ended_hold_offs.push((resource.clone(), epoch));
        }
        Ok(())
    }
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
