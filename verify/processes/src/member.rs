//! What one process does, until its input ends or it is killed.
//!
//! An *owner* acquires, reads, stands still with its fence in hand, writes, and steps down. The
//! standing still is the specification's write on its way to the storage: what is stopped there
//! arrives after the takeover. An *observer* reads. An *operator* revokes.

use std::io::{self, Read as _, Write as _};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use aster_lease::{
    AUDIT_PAGE_MAX, AcquireOutcome, AuditEvent, AuditLog as _, AuditQuery, AuditRecord, ErrorKind,
    ExpectedRevision, Fence, LeaseError, LeaseHandle, LeaseOptions, ReleaseOutcome, ResourceName,
    RevokeOutcome, revoke, revoke_with_hold_off,
};
use aster_sqlite::{OpenError, SqliteSerializer, rusqlite};
use rustix::process::{Pid, Signal, getppid, set_parent_process_death_signal};

use crate::history::{Answer, Call, HistoryError, Mark, Recorder, Told, Value};
use crate::orders::{Orders, Role, Word};
use crate::storage::{Storage, failed, refused, unexpected};
use aster_evidence::Random;

/// How long an owner waits in the queue.
const WAIT_MS: (u64, u64) = (300, 3_000);
/// How long an owner pauses that was denied, or has stepped down.
const PAUSE_MS: (u64, u64) = (5, 150);
/// How long an owner stands still between taking its fence and sending its write.
const STANDSTILL_MS: (u64, u64) = (5, 90);
/// How many updates an owner makes before it steps down.
const UPDATES: (u64, u64) = (1, 12);
/// How many of a hundred owners stay for as many updates as this, for longer than a ttl: their lease has
/// to be renewed.
const STAYS_PERCENT: u64 = 15;
const UPDATES_OF_A_STAY: (u64, u64) = (40, 70);
/// How long an observer pauses between two reads.
const LOOK_MS: (u64, u64) = (2, 30);
/// How long an operator pauses between two revokes.
const REVOKE_MS: (u64, u64) = (800, 2_500);
/// How long a revoked holder is kept out, where it is.
const HOLD_OFF_MS: (u64, u64) = (200, 1_500);

/// How often the file is opened that others keep busy; each attempt waits for the store's busy bound.
const OPENINGS_MAX: u32 = 5;

/// What stands before a process's number in its identity.
const IDENTITY: &str = "process-";

/// Works as `orders` say until the standard input ends. Ends with its parent in any case.
///
/// # Errors
///
/// [`MemberError`] when it cannot work or cannot write down what it does.
pub fn work(orders: &Orders) -> Result<(), MemberError> {
    set_parent_process_death_signal(Some(Signal::KILL)).map_err(io::Error::from)?;
    if getppid().map(Pid::as_raw_pid) != Some(orders.parent) {
        // The parent has died before we were tied to it.
        return Ok(());
    }
    let is_over = Arc::new(AtomicBool::new(false));
    let hears = Arc::clone(&is_over);
    std::thread::Builder::new()
        .name("hear the end".to_owned())
        .spawn(move || {
            let _ = io::stdin().lock().read_to_end(&mut Vec::new());
            hears.store(true, Ordering::SeqCst);
        })?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()?;
    let mut member = Member::join(orders, is_over)?;
    runtime.block_on(member.work(orders.role))
}

/// One process at work.
#[derive(Debug)]
pub(crate) struct Member {
    identity: String,
    number: u32,
    resources: Vec<String>,
    ttl: Duration,
    store: Arc<SqliteSerializer>,
    storage: Storage,
    recorder: Recorder,
    random: Random,
    marks: u32,
    is_over: Arc<AtomicBool>,
}

impl Member {
    pub(crate) fn join(orders: &Orders, is_over: Arc<AtomicBool>) -> Result<Self, MemberError> {
        let store = open(&Orders::database(&orders.directory))?;
        Ok(Self {
            identity: format!("{IDENTITY}{}", orders.number),
            number: orders.number,
            resources: orders.resources.clone(),
            ttl: Duration::from_millis(orders.ttl_ms),
            storage: Storage::open(store.clone(), orders.check)?,
            store: Arc::new(store),
            recorder: Recorder::create(&Orders::histories(&orders.directory), orders.number)?,
            random: Random::stream(orders.seed, u64::from(orders.number) + 1),
            marks: 0,
            is_over,
        })
    }

    async fn work(&mut self, role: Role) -> Result<(), MemberError> {
        while !self.is_over.load(Ordering::SeqCst) {
            let last = self.resources.len().saturating_sub(1) as u64;
            let at = usize::try_from(self.random.between(0, last)).unwrap_or(0);
            let Some(resource) = self.resources.get(at).cloned() else {
                return Ok(());
            };
            match role {
                Role::Owner => self.own(&resource).await?,
                Role::Observer => self.observe(&resource).await?,
                Role::Operator => self.operate(&resource).await?,
            }
        }
        Ok(())
    }

    async fn own(&mut self, resource: &str) -> Result<(), MemberError> {
        let wait = match self.random.chance(60, 100) {
            true => Some(self.drawn(WAIT_MS)),
            false => None,
        };
        if let Some(lease) = self.acquire(resource, wait).await? {
            say(Word::Holds)?;
            let (low, high) = match self.random.chance(STAYS_PERCENT, 100) {
                true => UPDATES_OF_A_STAY,
                false => UPDATES,
            };
            let updates = self.random.between(low, high);
            let mut may_go_on = true;
            for _ in 0..updates {
                may_go_on = match self.random.chance(55, 100) {
                    true => self.update_register(&lease, true).await?,
                    false => self.append(&lease, true).await?,
                };
                say(Word::Holds)?;
                if !may_go_on {
                    break;
                }
            }
            self.step_down(lease, may_go_on).await?;
            say(Word::Idles)?;
        }
        self.pause(PAUSE_MS).await;
        Ok(())
    }

    /// Asks for the lease and writes down what came of it.
    pub(crate) async fn acquire(
        &mut self,
        resource: &str,
        wait: Option<Duration>,
    ) -> Result<Option<LeaseHandle>, MemberError> {
        let wait_ms = wait.map(|wait| u64::try_from(wait.as_millis()).unwrap_or(u64::MAX));
        let id = self.recorder.begin(resource, Call::Acquire { wait_ms })?;
        let (store, options) = (self.store.clone(), LeaseOptions::with_ttl(self.ttl));
        let outcome = match wait {
            Some(wait) => {
                LeaseHandle::acquire_wait(store, resource, &self.identity, options, wait).await
            }
            None => LeaseHandle::acquire(store, resource, &self.identity, options).await,
        };
        let (answer, lease) = match outcome {
            Ok(AcquireOutcome::Granted(lease)) => {
                let epoch = lease.epoch();
                (Answer::Granted { epoch }, Some(lease))
            }
            Ok(AcquireOutcome::Denied(reason, _)) => {
                let reason = reason.name().to_owned();
                (Answer::Denied { reason }, None)
            }
            Err(error) => (lease_failed(&error), None),
        };
        self.recorder.end(id, answer)?;
        Ok(lease)
    }

    /// Reads the register, stands still, and writes what builds on what was read. `false` when there
    /// is no more to do under this lease.
    pub(crate) async fn update_register(
        &mut self,
        lease: &LeaseHandle,
        stands_still: bool,
    ) -> Result<bool, MemberError> {
        let resource = lease.resource().clone();
        let Some(value) = self.next_value(&resource).await? else {
            return Ok(true);
        };
        let Some(fence) = self.take_fence(lease, stands_still).await? else {
            return Ok(false);
        };
        let call = Call::Write {
            epoch: fence.epoch,
            value,
            releases: false,
        };
        let id = self.recorder.begin(&resource, call)?;
        let answer = self.storage.write(&fence, &self.identity, value).await;
        let may_go_on = matches!(answer, Answer::Written { .. });
        self.recorder.end(id, answer)?;
        Ok(may_go_on)
    }

    /// The same with the user's counter and list.
    pub(crate) async fn append(
        &mut self,
        lease: &LeaseHandle,
        stands_still: bool,
    ) -> Result<bool, MemberError> {
        let resource = lease.resource().clone();
        let Answer::Counted { count, .. } = self.count(&resource)? else {
            return Ok(true);
        };
        let Some(fence) = self.take_fence(lease, stands_still).await? else {
            return Ok(false);
        };
        let (position, mark) = (count + 1, self.next_mark());
        let call = Call::Append {
            epoch: fence.epoch,
            position,
            mark,
        };
        let id = self.recorder.begin(&resource, call)?;
        let answer = self
            .storage
            .append(&fence, &self.identity, position, mark)
            .await;
        let may_go_on = matches!(answer, Answer::Appended { .. });
        self.recorder.end(id, answer)?;
        Ok(may_go_on)
    }

    /// The fence, and then the time that the write is on its way.
    async fn take_fence(
        &mut self,
        lease: &LeaseHandle,
        stands_still: bool,
    ) -> Result<Option<Fence>, MemberError> {
        let Some(fence) = lease.fence() else {
            return Ok(None);
        };
        if !self.storage.may_send(&fence).await {
            return Ok(None);
        }
        if stands_still {
            say(Word::WillWrite)?;
            self.pause(STANDSTILL_MS).await;
            say(Word::Writes)?;
        }
        Ok(Some(fence))
    }

    /// Releases, releases with a value, or just walks away.
    async fn step_down(&mut self, lease: LeaseHandle, may_go_on: bool) -> Result<(), MemberError> {
        match self.random.between(0, 9) {
            0..=4 => self.release(&lease).await,
            5..=7 if may_go_on => self.release_with_value(&lease).await,
            // Dropped: whoever wants it next waits for its ttl.
            _ => Ok(()),
        }
    }

    pub(crate) async fn release(&mut self, lease: &LeaseHandle) -> Result<(), MemberError> {
        let call = Call::Release {
            epoch: lease.epoch(),
        };
        let id = self.recorder.begin(lease.resource(), call)?;
        let answer = match lease.release().await {
            Ok(ReleaseOutcome::Released) => Answer::Released,
            Ok(ReleaseOutcome::AlreadyEnded) => Answer::AlreadyEnded,
            Err(error) => lease_failed(&error),
        };
        self.recorder.end(id, answer)?;
        Ok(())
    }

    async fn release_with_value(&mut self, lease: &LeaseHandle) -> Result<(), MemberError> {
        let resource = lease.resource().clone();
        let Some(value) = self.next_value(&resource).await? else {
            return Ok(());
        };
        let call = Call::Write {
            epoch: lease.epoch(),
            value,
            releases: true,
        };
        let Some(fence) = self.take_fence(lease, true).await? else {
            return Ok(());
        };
        let id = self.recorder.begin(&resource, call)?;
        let answer = if self.storage.is_fenced() {
            self.send_release_with_value(lease, value).await
        } else {
            // Without the check there is no such step: the write, and then the release.
            let written = self.storage.write(&fence, &self.identity, value).await;
            let _ = lease.release().await;
            written
        };
        self.recorder.end(id, answer)?;
        Ok(())
    }

    async fn send_release_with_value(&self, lease: &LeaseHandle, value: Value) -> Answer {
        let text = match serde_json::to_vec(&value) {
            Ok(text) => text,
            Err(error) => return unexpected(&error),
        };
        let (store, expected) = (self.store.clone(), ExpectedRevision::Any);
        let released = lease
            .release_with_value(store, &self.identity, expected, text)
            .await;
        match released {
            Ok(revision) => Answer::Written { revision },
            Err(error) => lease_failed(&error),
        }
    }

    async fn observe(&mut self, resource: &str) -> Result<(), MemberError> {
        match self.random.chance(50, 100) {
            true => drop(self.read(resource).await?),
            false => drop(self.count(resource)?),
        }
        self.pause(LOOK_MS).await;
        Ok(())
    }

    async fn operate(&mut self, resource: &str) -> Result<(), MemberError> {
        let hold_off = match self.random.chance(30, 100) {
            true => Some(self.drawn(HOLD_OFF_MS)),
            false => None,
        };
        let id = self.recorder.begin(resource, Call::Revoke)?;
        let (store, operator) = (&*self.store, self.identity.as_str());
        let revoked = match hold_off {
            None => revoke(store, resource, operator, None).await,
            Some(hold_off) => revoke_with_hold_off(store, resource, operator, None, hold_off).await,
        };
        let answer = match revoked {
            Ok(RevokeOutcome::Revoked { epoch, .. }) => Answer::Revoked { epoch },
            Ok(RevokeOutcome::AlreadyEnded) => Answer::AlreadyEnded,
            Ok(_) => Answer::NotHeld,
            Err(error) => lease_failed(&error),
        };
        self.recorder.end(id, answer)?;
        self.pause(REVOKE_MS).await;
        Ok(())
    }

    /// Reads the register and writes down what it holds.
    pub(crate) async fn read(&mut self, resource: &str) -> Result<Answer, MemberError> {
        let id = self.recorder.begin(resource, Call::Read)?;
        let answer = self.storage.read(resource).await;
        self.recorder.end(id, answer.clone())?;
        Ok(answer)
    }

    fn count(&mut self, resource: &str) -> Result<Answer, MemberError> {
        let id = self.recorder.begin(resource, Call::Count)?;
        let answer = self.storage.count(resource);
        self.recorder.end(id, answer.clone())?;
        Ok(answer)
    }

    /// Reads the user's whole list and writes down what it holds.
    pub(crate) fn list(&mut self, resource: &str) -> Result<(), MemberError> {
        let id = self.recorder.begin(resource, Call::List)?;
        let answer = self.storage.list(resource);
        self.recorder.end(id, answer)?;
        Ok(())
    }

    /// Reads the store's own record of who owned the resource, and writes it down.
    pub(crate) async fn trail(&mut self, resource: &str) -> Result<(), MemberError> {
        let id = self.recorder.begin(resource, Call::Trail)?;
        let query = AuditQuery {
            resource: ResourceName::new(resource).ok(),
            ..AuditQuery::default()
        };
        let answer = match self.store.audit(query).await {
            Ok(records) if records.len() < AUDIT_PAGE_MAX => {
                Answer::Trail(records.iter().filter_map(told).collect())
            }
            Ok(_) => Answer::Unexpected {
                message: "the audit trail is longer than what is read of it".to_owned(),
            },
            Err(error) => failed(&error),
        };
        self.recorder.end(id, answer)?;
        Ok(())
    }

    /// What is to be written, given what is there; none if that cannot be read now.
    async fn next_value(&mut self, resource: &str) -> Result<Option<Value>, MemberError> {
        let Answer::Read(found) = self.read(resource).await? else {
            return Ok(None);
        };
        Ok(Some(Value {
            mark: self.next_mark(),
            parent: found.map(|found| found.value.mark),
            count: found.map_or(0, |found| found.value.count) + 1,
        }))
    }

    fn next_mark(&mut self) -> Mark {
        self.marks += 1;
        Mark {
            process: self.number,
            number: self.marks,
        }
    }

    fn drawn(&mut self, (low, high): (u64, u64)) -> Duration {
        Duration::from_millis(self.random.between(low, high))
    }

    async fn pause(&mut self, range: (u64, u64)) {
        tokio::time::sleep(self.drawn(range)).await;
    }
}

/// Waits for a process that stands still while it writes to the file.
fn open(database: &Path) -> Result<SqliteSerializer, OpenError> {
    let mut attempt = 1;
    loop {
        match SqliteSerializer::open(database) {
            Err(error) if error.kind() == ErrorKind::Retry && attempt < OPENINGS_MAX => {
                attempt += 1;
            }
            opened => return opened,
        }
    }
}

/// What a record of the audit trail says about ownership.
fn told(record: &AuditRecord) -> Option<Told> {
    let epoch = match record.event {
        AuditEvent::Granted | AuditEvent::TakenOver => Some(record.epoch_current),
        AuditEvent::Released | AuditEvent::Revoked | AuditEvent::Cancelled => record.epoch_carried,
        _ => None,
    };
    let holder = record.holder.as_deref();
    Some(Told {
        event: record.event,
        epoch: epoch?,
        process: holder
            .and_then(|holder| holder.strip_prefix(IDENTITY))
            .and_then(|number| number.parse().ok()),
    })
}

/// What a holder's failed operation is to the history.
fn lease_failed(error: &LeaseError) -> Answer {
    match error {
        LeaseError::Register(aster_lease::RegisterError::Rejected(rejection)) => refused(rejection),
        LeaseError::Ended(ended) => Answer::Undone {
            message: ended.to_string(),
        },
        LeaseError::Serializer(error) => failed(error),
        LeaseError::Unsettled => Answer::Unknown {
            message: error.to_string(),
        },
        error => unexpected(error),
    }
}

fn say(word: Word) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(word.text().as_bytes())?;
    out.write_all(b"\n")?;
    out.flush()
}

/// A process that cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum MemberError {
    /// The store cannot be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The user's tables cannot be reached.
    #[error(transparent)]
    Tables(#[from] rusqlite::Error),
    /// What happens cannot be written down.
    #[error(transparent)]
    History(#[from] HistoryError),
    /// The system said no.
    #[error(transparent)]
    Io(#[from] io::Error),
}
