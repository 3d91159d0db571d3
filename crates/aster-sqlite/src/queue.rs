//! The queue under both locks: joining it, leaving it, and handing a row to whoever is first.
//!
//! A hand-over happens in the transaction that frees the row. At an expiry nobody needs to notice but
//! those who wait: the first one asks for an [`Advance`], and the others only if it does not.

use std::time::Duration;

use aster_core::{
    DenyReason, Fence, GrantId, LeaseOp, LeaseSnapshot, Principal, ResourceName, TransitionOutcome,
};
use aster_lease::metrics::HandOver;
use aster_lease::{SerializerError, WaitOutcome};

use crate::batch::{Batch, Own, Present};
use crate::calls::{Answer, Left, Place};
use crate::judge::Claim;
use crate::news::{self, HandedOver, Whose};
use crate::rows::{self, StoredRow};
use crate::shared::Shared;
use crate::side::{ClockName, End, SideError, SideFile};
use crate::waiters::{Joined, ProcessId, Queued};
use crate::wake::{self, Reached};
use crate::wishes::{Join, Step};
use crate::writer::{Writer, begin};

/// What a caller is told to wait when a queue is full.
const FULL_RETRY_AFTER: Duration = Duration::from_secs(1);

impl Batch<'_> {
    /// Grants the row to the first in its queue, if it may be taken. Whoever is refused is told so, and
    /// whoever is gone is dropped; `present` is not gone, whatever its time.
    pub(crate) fn advance(
        &mut self,
        resource: &ResourceName,
        present: Option<GrantId>,
    ) -> Result<(), SideError> {
        let side = self.side()?;
        // Bounded: every turn takes somebody out of the queue, or is the last one.
        loop {
            let before = rows::load(self.main, resource)?;
            let Some(first) = self.first_waiter(resource, before.as_ref())? else {
                return Ok(());
            };
            if !self.present(resource, before.as_ref())?.may_be_taken() {
                return Ok(());
            }
            let Some(whose) = self.find(&first, present)? else {
                continue;
            };
            let op = LeaseOp::Acquire {
                candidate: first.candidate.clone(),
                ttl: first.ttl,
                grant_id: first.grant_id,
            };
            let answer = match self.transition_of(resource, before.as_ref(), &op)? {
                Ok(TransitionOutcome::Granted(fence)) => {
                    let duration = self.shared.options.claim_time.min(first.ttl.duration());
                    let claim = Claim {
                        grant_id: first.grant_id,
                        era: side.era,
                        since_ns: news::durable_at_ns(self.shared, duration),
                        duration,
                    };
                    side.put_claim(resource, &claim)?;
                    self.changes.side = true;
                    self.changes.news.handed_over.push(HandedOver {
                        ticket: first.ticket,
                        grant_id: first.grant_id,
                        fence,
                        claim,
                        whose,
                        cause: match before.is_some_and(|row| row.state.held.is_some()) {
                            true => HandOver::Expired,
                            false => HandOver::Freed,
                        },
                    });
                    return Ok(());
                }
                refused => answer_of(refused),
            };
            let is_durable = !self.changes.rows.contains_key(resource);
            let news = &mut self.changes.news;
            if is_durable {
                side.drop_ticket(first.ticket)?;
                self.changes.side = true;
            } else {
                news.refused_tickets.push(first.ticket);
            }
            match whose {
                Whose::Ours => news
                    .refused
                    .push((resource.clone(), first.grant_id, answer)),
                Whose::Theirs(peer) => news.wakes.extend(peer.map(|peer| (resource.clone(), peer))),
            }
        }
    }

    /// The first who waits for a row that was loaded as `before`. Whoever has had its turn waits no
    /// more. Its place is dropped once its grant is durable, and before another one replaces that, so
    /// that no grant id is granted twice: a place that is gone tells its owner that the row has changed.
    pub(crate) fn first_waiter(
        &mut self,
        resource: &ResourceName,
        before: Option<&StoredRow>,
    ) -> Result<Option<Queued>, SideError> {
        let side = self.side()?;
        let granted = before.map(|row| row.state.grant_id);
        let mut passed = 0;
        while let Some((ticket, waiter)) = side.next_waiter(resource, passed)? {
            passed = ticket;
            match waiter {
                Some(waiter) if self.changes.news.has_granted(resource, waiter.grant_id) => {}
                Some(_) if self.changes.news.refused_tickets.contains(&ticket) => {}
                Some(waiter) if Some(waiter.grant_id) != granted => return Ok(Some(waiter)),
                _ => {
                    side.drop_ticket(ticket)?;
                    self.changes.side = true;
                }
            }
        }
        Ok(None)
    }

    /// Whose waiter it is; `None` when nobody waits there any more, and then its place is dropped.
    fn find(
        &mut self,
        first: &Queued,
        present: Option<GrantId>,
    ) -> Result<Option<Whose>, SideError> {
        let side = self.side()?;
        let is_present = present == Some(first.grant_id);
        if !is_present && side.is_ghost(first, self.shared.now_ns())? {
            side.drop_ticket(first.ticket)?;
            self.changes.side = true;
            return Ok(None);
        }
        if first.process == self.shared.waiting.process {
            return Ok(Some(Whose::Ours));
        }
        match wake::reach(&self.shared.path, first.process) {
            Reached::Alive(peer) => Ok(Some(Whose::Theirs(Some(peer)))),
            Reached::Unknown => Ok(Some(Whose::Theirs(None))),
            Reached::Dead => {
                side.drop_process(first.process)?;
                self.changes.side = true;
                self.changes.news.dead.push(first.process);
                Ok(None)
            }
        }
    }

    /// Takes everybody out of a full queue who does not wait there any more. Whether there was anybody.
    fn drop_gone(&mut self, resource: &ResourceName) -> Result<bool, SideError> {
        let side = self.side()?;
        let mut has_dropped = side.drop_late(resource, self.shared.now_ns())?;
        for process in side.processes(resource)? {
            if process != self.shared.waiting.process
                && matches!(wake::reach(&self.shared.path, process), Reached::Dead)
            {
                side.drop_process(process)?;
                self.changes.news.dead.push(process);
                has_dropped = true;
            }
        }
        self.changes.side |= has_dropped;
        Ok(has_dropped)
    }

    /// The first step of a wait: a decision, or a place in the queue.
    pub(crate) fn join(&mut self, join: &Join) -> Result<Step, SideError> {
        let Join {
            resource, request, ..
        } = join;
        let side = self.side()?;
        if let Err(error) = self.shared.options.ttl_bounds.check(request.ttl) {
            return Ok(Step::Decided(Err(error.into())));
        }
        let is_its_own = |row: &StoredRow| row.state.grant_id == request.grant_id;
        let mut before = rows::load(self.main, resource)?;
        if !before.as_ref().is_some_and(is_its_own)
            && self.first_waiter(resource, before.as_ref())?.is_some()
        {
            self.advance(resource, Some(request.grant_id))?;
            before = rows::load(self.main, resource)?;
        }
        if self.changes.news.has_granted(resource, request.grant_id) {
            return Ok(Step::Elsewhere);
        }
        let present = self.present(resource, before.as_ref())?;
        // Whoever waited before has been granted by now, or there is nobody.
        if before.as_ref().is_some_and(is_its_own) || present.may_be_taken() {
            let decided = self.transition_of(resource, before.as_ref(), &request.acquire())?;
            return Ok(Step::Decided(answer_of(decided)));
        }
        let denied = |batch: &Self, reason| {
            let snapshot = batch.snapshot(resource, &present);
            Ok(Step::Decided(Ok(WaitOutcome::Denied(reason, snapshot))))
        };
        let state = present.row.as_ref().map(|row| &row.state);
        if state.is_some_and(|state| state.hold_offs.keep_out(&request.candidate)) {
            return denied(self, DenyReason::HeldOff);
        }
        if request.wait.is_zero() {
            return denied(self, DenyReason::WaitRanOut);
        }
        let waiter = Queued {
            ticket: 0,
            candidate: request.candidate.clone(),
            ttl: request.ttl,
            grant_id: request.grant_id,
            process: self.shared.waiting.process,
            era: side.era,
            since_ns: present.now_ns,
            until_ns: join.until_ns,
        };
        let waiters_max = self.shared.options.waiters_max;
        let mut joined = side.join_queue(resource, &waiter, waiters_max)?;
        if joined == Joined::Full && self.drop_gone(resource)? {
            joined = side.join_queue(resource, &waiter, waiters_max)?;
        }
        match joined {
            Joined::At(ticket) => {
                self.changes.side = true;
                Ok(Step::Queued(Place {
                    ticket,
                    side: self.store.side_id,
                }))
            }
            Joined::Mismatch => denied(self, DenyReason::HeldByOther),
            Joined::Full => Ok(Step::Decided(Err(SerializerError::Overloaded {
                retry_after: FULL_RETRY_AFTER,
            }))),
        }
    }

    /// Gives up a place, or a grant that was made meanwhile.
    pub(crate) fn leave(&mut self, left: &Left) -> Result<(), SideError> {
        let Left {
            resource,
            candidate,
            grant_id,
        } = left;
        let before = rows::load(self.main, resource)?;
        let is_granted = before
            .as_ref()
            .is_some_and(|row| row.state.grant_id == *grant_id && row.state.held.is_some());
        if is_granted {
            let op = LeaseOp::Cancel {
                candidate: candidate.clone(),
                grant_id: *grant_id,
            };
            // Denied or exhausted, it lapses after its claim time.
            let _ = self.transition(resource, &op)?;
        }
        self.leave_queue(resource, *grant_id)
    }

    /// A cancelled wish waits no more. Whether it did.
    pub(crate) fn withdraw(
        &mut self,
        resource: &ResourceName,
        candidate: &Principal,
        grant_id: GrantId,
    ) -> Result<bool, SideError> {
        let waiter = self.side()?.waiter(resource, grant_id)?;
        let Some(waiter) = waiter.filter(|waiter| waiter.candidate == *candidate) else {
            return Ok(false);
        };
        let before = rows::load(self.main, resource)?;
        if before.is_some_and(|row| row.state.grant_id == grant_id) {
            return Ok(false);
        }
        let is_ours = waiter.process == self.shared.waiting.process;
        if is_ours {
            let ending = self.shared.waiting.end(resource, grant_id);
            self.changes.news.endings.push(ending);
        }
        self.leave_queue(resource, grant_id)?;
        if is_ours {
            let before = rows::load(self.main, resource)?;
            let present = self.present(resource, before.as_ref())?;
            let snapshot = self.snapshot(resource, &present);
            let denied = WaitOutcome::Denied(DenyReason::WaitRanOut, snapshot);
            let news = &mut self.changes.news;
            news.refused.push((resource.clone(), grant_id, Ok(denied)));
        } else if let Reached::Alive(peer) = wake::reach(&self.shared.path, waiter.process) {
            self.changes.news.wakes.push((resource.clone(), peer));
        }
        Ok(true)
    }

    /// Takes somebody out of the queue. Whoever is first now has to watch the row.
    fn leave_queue(&mut self, resource: &ResourceName, grant_id: GrantId) -> Result<(), SideError> {
        if !self.side()?.leave_queue(resource, grant_id)? {
            return Ok(());
        }
        self.changes.side = true;
        self.advance(resource, None)?;
        self.changes.news.changed.push(resource.clone());
        let before = rows::load(self.main, resource)?;
        if let Some(first) = self.first_waiter(resource, before.as_ref())?
            && first.process != self.shared.waiting.process
            && let Reached::Alive(peer) = wake::reach(&self.shared.path, first.process)
        {
            self.changes.news.wakes.push((resource.clone(), peer));
        }
        Ok(())
    }

    /// The last step of a wait that is over: its grant, or leaving the queue without one.
    pub(crate) fn run_out(&mut self, wish: &Left) -> Result<Step, SideError> {
        let Left {
            resource, grant_id, ..
        } = wish;
        self.advance(resource, Some(*grant_id))?;
        if self.changes.news.has_granted(resource, *grant_id) {
            return Ok(Step::Elsewhere);
        }
        let before = rows::load(self.main, resource)?;
        let present = self.present(resource, before.as_ref())?;
        let snapshot = self.snapshot(resource, &present);
        let own = present.row.as_ref().map(|row| &row.state);
        let reason = match own.filter(|state| state.grant_id == *grant_id) {
            Some(state) if state.held.is_none() => DenyReason::NotHeld,
            Some(_) if present.verdict.judged.expired => DenyReason::Expired,
            Some(_) => {
                return Ok(Step::Decided(Ok(WaitOutcome::Granted {
                    fence: Fence {
                        authority: self.store.authority,
                        resource: resource.clone(),
                        epoch: snapshot.epoch,
                        holder: wish.candidate.clone(),
                    },
                    claim: present.verdict.judged.remaining,
                })));
            }
            None => {
                self.leave_queue(resource, *grant_id)?;
                DenyReason::WaitRanOut
            }
        };
        Ok(Step::Decided(Ok(WaitOutcome::Denied(reason, snapshot))))
    }

    fn snapshot(&self, resource: &ResourceName, present: &Present) -> LeaseSnapshot {
        self.view(resource, present.row.as_ref())
            .snapshot(present.verdict.judged.remaining)
    }
}

/// An Acquire's answer as one who waits for it hears it.
fn answer_of(outcome: Own<TransitionOutcome>) -> Answer {
    match outcome? {
        TransitionOutcome::Granted(fence) => Ok(WaitOutcome::Granted { fence, claim: None }),
        TransitionOutcome::Denied(reason, snapshot) => Ok(WaitOutcome::Denied(reason, snapshot)),
        other => Err(SerializerError::Unexpected {
            message: format!("an Acquire was answered with {other:?}"),
        }),
    }
}

impl SideFile {
    /// Nobody waits any more who did before the machine started. As the side file is never synced, their
    /// places can outlive the page that names their boot; then they look like those of clocks without a
    /// name, each of which would be handed the row for a claim time. Under the main lock, so that nobody of
    /// this boot takes a place meanwhile.
    pub(crate) fn forget_waiters(&mut self, shared: &Shared) -> Result<(), SideError> {
        let ClockName::Shared(domain) = &shared.clock else {
            return Ok(());
        };
        if self.knows_boot_of(domain)? {
            // Somebody of this boot was here first, and may wait.
            return Ok(());
        }
        self.write(|side| {
            let processes = side.waiting_processes()?;
            if processes.is_empty() {
                return Ok(((), End::Rollback));
            }
            // A clock without a name may be of this boot.
            let (alive, gone): (Vec<_>, Vec<_>) = processes
                .into_iter()
                .partition(|other| matches!(wake::reach(&shared.path, *other), Reached::Alive(_)));
            if alive.is_empty() {
                side.drop_everybody()?;
            }
            for process in gone {
                side.drop_process(process)?;
            }
            Ok(((), End::Commit))
        })
    }
}

impl Writer {
    /// Takes everybody of dead processes out of the queues, and removes their sockets after that: as
    /// long as their places are there, their sockets tell that they are dead.
    pub(crate) fn bury(&mut self, dead: &[ProcessId]) {
        if self.drop_waiters_of(dead) {
            for process in dead {
                wake::bury(&self.shared.path, *process);
            }
        }
    }

    /// Takes everybody of these processes out of the queues. Whether that was done.
    pub(crate) fn drop_waiters_of(&mut self, processes: &[ProcessId]) -> bool {
        let shared = &*self.shared;
        let dropped = begin(shared, &self.main, self.patience)
            .map_err(SideError::from)
            .and_then(|begun| {
                let side = shared.side(&mut self.side, &begun.store)?;
                side.write(|side| {
                    for process in processes {
                        side.drop_process(*process)?;
                    }
                    Ok(((), End::Commit))
                })
            });
        if let Err(error) = &dropped {
            // Whoever hands over to one of them finds the process gone.
            tracing::debug!(?error, "places in queues are left behind");
        }
        dropped.is_ok()
    }
}
