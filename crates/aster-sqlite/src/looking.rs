//! The thread of a process that waits and watches on behalf of its callers. It runs only while somebody
//! waits or watches.
//!
//! Every wake is a hint: after it, and every 50 ms without one, the thread reads which rows have
//! changed and answers whom that concerns. What has to be written it asks the writer for.

use std::collections::HashSet;
use std::os::fd::AsFd;
use std::os::unix::net::UnixDatagram;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::SyncSender;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use aster_core::{DenyReason, ErrorKind, ResourceName, RowView};
use aster_lease::{SerializerError, WaitOutcome};
use rusqlite::{Connection, TransactionBehavior};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::audit;
use crate::batch::Item;
use crate::calls::Mine;
use crate::error::{again, storage};
use crate::look::{Found, Look};
use crate::plans::{Plans, after};
use crate::rows;
use crate::shared::Shared;
use crate::side::{SideError, SideFile};
use crate::waiters::ProcessId;
use crate::waiting::Waiting;
use crate::wake::{self, Mailbox};
use crate::wishes::{Advance, Leave, RanOut};
use crate::worker::submit_to;
use crate::writer::Job;

/// How often it looks by itself while somebody waits or watches.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// How often a row is looked at again that should have changed, or whose clock is another.
const RELOOK: Duration = Duration::from_secs(1);
/// By which part of the claim time a process asks later at an expiry than the one before it…
const STAGGER_DIVISOR: u32 = 4;
/// …as far as so many are before it; whoever comes after them asks together with the next one.
const RANK_MAX: u32 = 8;
/// Every so many rounds it looks after its own affairs.
const ROUNDS: u64 = 20;
/// How long it keeps its mailbox while nobody waits.
const LINGER: Duration = Duration::from_secs(5);
/// How many changes are read one by one; with more of them everything is looked at.
const CHANGES_MAX: usize = 1_024;

/// The thread, started when somebody first waits or watches.
#[derive(Debug)]
pub(crate) struct Looking {
    waiting: Arc<Waiting>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Looking {
    pub(crate) fn new(waiting: Arc<Waiting>) -> Self {
        Self {
            waiting,
            thread: Mutex::default(),
        }
    }

    /// Starts the thread unless it runs.
    pub(crate) fn start(
        &self,
        shared: &Arc<Shared>,
        writer: impl FnOnce() -> Option<SyncSender<Job>>,
    ) -> Result<(), SerializerError> {
        let mut thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner);
        if thread.is_some() {
            return Ok(());
        }
        let started = UnixDatagram::pair().and_then(|(rung, bell)| {
            rung.set_nonblocking(true)?;
            bell.set_nonblocking(true)?;
            let mut looker = Looker {
                shared: shared.clone(),
                writer: writer(),
                rung,
                mailbox: None,
                eyes: None,
                plans: Plans::default(),
                rounds: 0,
            };
            let builder = std::thread::Builder::new().name("aster-sqlite-waiting".to_owned());
            let handle = builder.spawn(move || looker.run())?;
            Ok((bell, handle))
        });
        let (bell, handle) = started.map_err(|error| SerializerError::Unavailable {
            message: format!("a thread to wait with cannot be started ({error})"),
            source: Some(Box::new(error)),
        })?;
        self.waiting.set_bell(bell);
        *thread = Some(handle);
        Ok(())
    }
}

impl Drop for Looking {
    fn drop(&mut self) {
        self.waiting.close();
        let thread = self
            .thread
            .get_mut()
            .unwrap_or_else(PoisonError::into_inner);
        if let Some(thread) = thread.take()
            && thread.thread().id() != std::thread::current().id()
        {
            // A panic was reported by the panic hook already.
            let _ = thread.join();
        }
    }
}

struct Looker {
    shared: Arc<Shared>,
    writer: Option<SyncSender<Job>>,
    /// Rung by this process.
    rung: UnixDatagram,
    /// Rung by others.
    mailbox: Option<Mailbox>,
    eyes: Option<Eyes>,
    plans: Plans,
    rounds: u64,
}

/// What it reads with.
struct Eyes {
    main: Connection,
    side: Option<SideFile>,
    /// Of the main file as this connection saw it last.
    data_version: Option<i64>,
    /// The newest audit record that was seen: every change of ownership writes one.
    audit_id: u64,
}

impl Looker {
    fn run(&mut self) {
        let waiting = self.shared.waiting.clone();
        while !waiting.is_closed() {
            let caught = catch_unwind(AssertUnwindSafe(|| {
                self.round();
                self.rest();
            }));
            if caught.is_err() {
                tracing::error!("looking after waiting callers panicked; this is a bug");
                self.eyes = None;
                std::thread::sleep(LOOK_EVERY);
            }
        }
        self.send_left();
        // Nobody can wait any more; whatever is left in a queue is a ghost.
        let process = waiting.process;
        self.submit(Job::alone(move |writer| {
            writer.drop_waiters_of(&[process]);
        }));
    }

    /// Sleeps until there is something to do.
    fn rest(&mut self) {
        let timeout = match (self.shared.waiting.is_idle(), &self.mailbox) {
            (true, None) => None,
            (true, Some(_)) => Some(LINGER),
            (false, _) => Some(self.nap()),
        };
        let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
        let mut sources = vec![PollFd::from_borrowed_fd(self.rung.as_fd(), PollFlags::IN)];
        if let Some(mailbox) = &self.mailbox {
            sources.push(PollFd::from_borrowed_fd(mailbox.as_fd(), PollFlags::IN));
        }
        let ready = match poll(&mut sources, timeout.as_ref()) {
            Ok(ready) => ready,
            Err(rustix::io::Errno::INTR) => return,
            Err(error) => {
                tracing::warn!(%error, "waiting for news of the queue failed");
                std::thread::sleep(LOOK_EVERY);
                return;
            }
        };
        let mut byte = [0; 1];
        while self.rung.recv(&mut byte).is_ok() {}
        if let Some(mailbox) = &self.mailbox {
            self.shared.waiting.changed(&mailbox.hear());
        }
        if ready == 0 && self.shared.waiting.is_idle() {
            self.mailbox = None;
        }
    }

    fn nap(&self) -> Duration {
        let next = [self.plans.next_ns(), self.shared.waiting.next_until_ns()];
        let Some(next_ns) = next.into_iter().flatten().min() else {
            return LOOK_EVERY;
        };
        LOOK_EVERY.min(Duration::from_nanos(
            next_ns.saturating_sub(self.shared.now_ns()),
        ))
    }

    fn round(&mut self) {
        let waiting = self.shared.waiting.clone();
        self.send_left();
        if waiting.is_idle() {
            return;
        }
        let is_time = self.rounds.is_multiple_of(ROUNDS);
        self.rounds = self.rounds.wrapping_add(1);
        if is_time {
            self.look_after_mailbox();
            waiting.drop_closed_watches();
        }
        let now_ns = self.shared.now_ns();
        for mine in waiting.take_over(now_ns) {
            let id = mine.id;
            let ran_out = RanOut::new(waiting.clone(), mine);
            if !self.submit(Job::shared(Item::RanOut(ran_out))) {
                waiting.put_off(id, after(now_ns, LOOK_EVERY));
            }
        }
        // A file that was removed does not change: nothing else would tell.
        let looked = self.shared.check_file().and_then(|()| self.look(now_ns));
        if let Err(error) = looked {
            self.eyes = None;
            if error.kind() == ErrorKind::Stop {
                waiting.fail_all(|| again(&error));
            } else {
                // Whatever it is, the next look tries again, and no wait is longer than was asked.
                tracing::debug!(%error, "the queue cannot be looked at");
            }
        }
    }

    fn send_left(&self) {
        let waiting = &self.shared.waiting;
        waiting.send_left(self.shared.now_ns(), |left| {
            let leave = Leave::new(waiting.clone(), left.clone());
            self.submit(Job::shared(Item::Leave(leave)))
        });
    }

    fn submit(&self, job: Job) -> bool {
        submit_to(self.writer.as_ref(), job).is_ok()
    }

    fn look_after_mailbox(&mut self) {
        let (path, process) = (&self.shared.path, self.shared.waiting.process);
        if self.mailbox.as_ref().is_some_and(Mailbox::is_in_place) {
            return;
        }
        self.mailbox = match Mailbox::bind(path, process) {
            Ok(mailbox) => {
                self.bury(wake::all_dead(path));
                Some(mailbox)
            }
            Err(error) => {
                tracing::debug!(%error, "no socket beside the store; the queue is looked at instead");
                None
            }
        };
    }

    /// Has the places and the sockets of dead processes removed.
    fn bury(&self, dead: Vec<ProcessId>) {
        if !dead.is_empty() {
            self.submit(Job::alone(move |writer| writer.bury(&dead)));
        }
    }

    /// Looks at what has changed and at what is due.
    fn look(&mut self, now_ns: u64) -> Result<(), SerializerError> {
        let shared = self.shared.clone();
        let waiting = &shared.waiting;
        let eyes = match &mut self.eyes {
            Some(eyes) => eyes,
            None => {
                let eyes = Eyes {
                    main: shared.connect()?,
                    side: None,
                    data_version: None,
                    audit_id: 0,
                };
                // What happened meanwhile is not known.
                waiting.look_again(&waiting.resources());
                self.eyes.insert(eyes)
            }
        };
        let data_version = eyes.data_version()?;
        let mut resources = waiting.take_changed();
        resources.extend(self.plans.take_due(now_ns));
        let has_changed = eyes.data_version != Some(data_version);
        if resources.is_empty() && !has_changed {
            return Ok(());
        }
        let looked = eyes.look(&shared, now_ns, has_changed, &mut resources);
        let found = match looked {
            Ok(found) => found,
            Err(error) => {
                waiting.look_again(&resources);
                return match error {
                    SideError::Store(error) => Err(error),
                    SideError::NeedsRepair => {
                        eyes.side = None;
                        self.order_repair();
                        Ok(())
                    }
                };
            }
        };
        eyes.data_version = Some(data_version);
        for (resource, found) in found {
            self.act_on(&resource, found, now_ns)?;
        }
        Ok(())
    }

    fn act_on(
        &mut self,
        resource: &ResourceName,
        found: Found,
        now_ns: u64,
    ) -> Result<(), SerializerError> {
        let waiting = self.shared.waiting.clone();
        if let Some(mine) = found.missing {
            self.tell_missing(&mine)?;
            // Who is first now, and what does that mean?
            waiting.changed([resource]);
        }
        let Some(first) = found.first else {
            self.plans.forget(resource);
            return Ok(());
        };
        self.bury(first.dead_before);
        let plan = self.plans.of(resource, &found.row, now_ns);
        let rank = match self.plans.leads(resource, &found.row) {
            true => 0,
            false => first.processes_before.min(RANK_MAX),
        };
        let stagger = self.shared.options.claim_time / STAGGER_DIVISOR;
        let mut due_ns = match plan <= now_ns {
            true => after(plan, stagger.saturating_mul(rank)),
            // Then it is looked once more who of those before is left.
            false => plan,
        };
        let is_late = due_ns <= now_ns;
        let has_asked = is_late && first.processes_before > 0;
        if is_late || !found.row.is_certain {
            let advance = Advance::new(resource.clone());
            due_ns = match self.submit(Job::shared(Item::Advance(advance))) {
                true => after(now_ns, RELOOK),
                false => after(now_ns, LOOK_EVERY),
            };
        }
        if found.row.is_foreign {
            // Its renewals are seen by looking only.
            due_ns = due_ns.min(after(now_ns, RELOOK));
        }
        self.plans
            .set(resource, plan, &found.row, due_ns, has_asked);
        Ok(())
    }

    /// One of ours was in the queue and is not any more. Its place was given up after the row changed,
    /// so the row as it is now tells why.
    fn tell_missing(&mut self, mine: &Mine) -> Result<(), SerializerError> {
        let Some(eyes) = &mut self.eyes else {
            return Ok(());
        };
        let shared = &*self.shared;
        let wish = &mine.wish;
        let (transaction, store) = shared.begin(&eyes.main, TransactionBehavior::Deferred)?;
        if mine.place.is_some_and(|place| place.side != store.side_id) {
            shared.waiting.fail_lost(store.side_id);
            return Ok(());
        }
        let row = rows::load(&transaction, &wish.resource)?;
        let state = row.as_ref().map(|row| &row.state);
        if state.is_some_and(|state| state.grant_id == wish.grant_id) {
            // It was granted meanwhile; the next look answers it.
            return Ok(());
        }
        let is_held_off = state.is_some_and(|state| state.hold_offs.keep_out(&wish.candidate));
        let reason = if is_held_off {
            DenyReason::HeldOff
        } else if shared.now_ns() >= mine.until_ns {
            DenyReason::WaitRanOut
        } else {
            DenyReason::Expired
        };
        let view = RowView {
            authority: store.authority,
            resource: &wish.resource,
            floor: store.floor,
            row: state,
        };
        let denied = WaitOutcome::Denied(reason, view.snapshot(None));
        shared.waiting.answer(mine.id, Ok(denied));
        Ok(())
    }

    fn order_repair(&self) {
        crate::renewals::order_repair(&self.shared, self.writer.as_ref());
    }
}

impl Eyes {
    fn data_version(&self) -> Result<i64, SerializerError> {
        self.main
            .prepare_cached("PRAGMA data_version")
            .and_then(|mut select| select.query_row([], |row| row.get(0)))
            .map_err(storage)
    }

    /// Reads rows first and the queue after them: who is missing in the queue has left it after the
    /// row changed.
    fn look(
        &mut self,
        shared: &Shared,
        now_ns: u64,
        has_changed: bool,
        resources: &mut HashSet<ResourceName>,
    ) -> Result<Vec<(ResourceName, Found)>, SideError> {
        let waiting = &shared.waiting;
        let (transaction, store) = shared.begin(&self.main, TransactionBehavior::Deferred)?;
        let mut audit_id = self.audit_id;
        if has_changed {
            match audit::changed_since(&transaction, audit_id, CHANGES_MAX)? {
                audit::Changed::These(changed, newest) => {
                    audit_id = newest;
                    resources.extend(changed.into_iter().filter(|name| waiting.concerns(name)));
                }
                audit::Changed::Many(newest) => {
                    audit_id = newest;
                    resources.extend(waiting.resources());
                }
            }
        }
        let side = shared.side(&mut self.side, &store)?;
        waiting.fail_lost(store.side_id);
        // Asked before the queue is read: whoever is known here by now has its place there.
        let firsts: Vec<_> = resources
            .iter()
            .map(|resource| (resource, waiting.first(resource)))
            .collect();
        let found = side.read(|side| {
            let mut found = Vec::with_capacity(firsts.len());
            for (resource, first) in firsts {
                let look = Look {
                    shared,
                    store: &store,
                    side,
                    now_ns,
                    resource,
                };
                found.push((
                    resource.clone(),
                    look.at(rows::load(&transaction, resource)?, first)?,
                ));
            }
            Ok(found)
        })?;
        self.audit_id = audit_id;
        Ok(found)
    }
}
