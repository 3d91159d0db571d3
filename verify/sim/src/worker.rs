//! What a worker does with the engine: it acquires, waits, leads, writes, releases, forgets, goes away.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use aster_core::{ExpectedRevision, LeaseOp, Principal, ResourceName, TransitionOutcome};
use aster_lease::{
    AcquireOutcome, EndedReason, LeaseBuilder, LeaseError, LeaseHandle, LeaseSerializer, Registers,
    ReleaseOutcome,
};
use tokio::runtime::Handle;
use tokio::time::{sleep, timeout};

use crate::bug::Bug;
use crate::history::{Event, Recorder};
use crate::plan::Plan;
use crate::random::Random;
use crate::wire::{PlantedPanic, Remote};

/// How long a worker works at most between two looks at its lease.
const STEP_MS_MAX: u64 = 1_500;
/// How many steps one tenure has at most.
const STEPS_MAX: u64 = 6;
/// How many resources one worker holds at once.
const COLLECTED_MAX: u64 = 24;
/// How long a worker waits for its turn while faults go on.
const WAIT_MS_MAX: u64 = 8_000;
/// How long it waits for the one turn that it has to get in the end.
const GOAL_WAIT: Duration = Duration::from_secs(600);

/// What all workers of a world share.
pub(crate) struct Common {
    pub(crate) plan: Plan,
    pub(crate) recorder: Recorder,
    pub(crate) is_healed: AtomicBool,
    pub(crate) leases: AtomicU64,
    pub(crate) serial: AtomicU64,
    pub(crate) bug: Option<Bug>,
    /// The leases that are out, and on which host, so that the world can look at their fences.
    pub(crate) out: Mutex<BTreeMap<u64, (usize, Weak<LeaseHandle>)>>,
}

#[derive(Clone)]
pub(crate) struct Worker {
    pub(crate) common: Arc<Common>,
    pub(crate) remote: Arc<Remote>,
    pub(crate) host: usize,
    pub(crate) name: Principal,
    pub(crate) random: Random,
}

/// A lease under observation.
struct Observed {
    worker: Worker,
    handle: Arc<LeaseHandle>,
    lease: u64,
    /// Whether it is looked at from guarded work.
    is_guarded: bool,
}

impl Worker {
    fn record(&self, event: Event) {
        let at_ms = self.remote.clock.world_ms();
        self.common.recorder.record(at_ms, self.host, event);
    }

    fn tells(&self, what: &'static str, answer: impl Into<String>) {
        let answer = answer.into();
        self.record(Event::Heard { what, answer });
    }

    fn heard(&self, what: &'static str, answer: &Result<AcquireOutcome, LeaseError>) {
        match answer {
            Ok(AcquireOutcome::Granted(_)) => self.tells(what, "granted"),
            Ok(AcquireOutcome::Denied(reason, _)) => self.tells(what, format!("{reason:?}")),
            Err(error) => self.tells(what, kind(error)),
        }
    }

    fn fork(&mut self) -> Self {
        Self {
            random: self.random.fork(),
            ..self.clone()
        }
    }

    fn serial(&self) -> u64 {
        self.common.serial.fetch_add(1, Ordering::Relaxed)
    }

    fn has(&self, bug: Bug) -> bool {
        self.common.bug == Some(bug)
    }

    fn is_healed(&self) -> bool {
        self.common.is_healed.load(Ordering::Relaxed)
    }

    /// Lives until it has got its one turn after the faults.
    pub(crate) async fn live(mut self) {
        while !self.is_healed() {
            let episode = self.fork();
            self.survive(async move { episode.episode().await }).await;
            self.idle(800).await;
        }
        loop {
            let goal = self.fork();
            if self.survive(async move { goal.goal().await }).await == Some(true) {
                break;
            }
            self.idle(500).await;
        }
        self.record(Event::Served {
            worker: self.name.clone(),
        });
    }

    /// Runs `work` as a task of its own. A planted panic ends that only; a real one is reported.
    async fn survive<T: Send + 'static>(
        &self,
        work: impl Future<Output = T> + Send + 'static,
    ) -> Option<T> {
        match Handle::current().spawn(work).await {
            Ok(output) => Some(output),
            Err(error) => {
                if error.is_panic() && !error.into_panic().is::<PlantedPanic>() {
                    self.record(Event::Panicked {
                        worker: self.name.clone(),
                    });
                }
                None
            }
        }
    }

    async fn idle(&mut self, ms_max: u64) {
        let ms = self.random.between(1, ms_max);
        sleep(Duration::from_millis(ms)).await;
    }

    fn builder(&mut self, resource: &ResourceName) -> LeaseBuilder {
        let options = self.common.plan.options(&mut self.random);
        LeaseHandle::builder(self.remote.clone(), resource, &self.name)
            .options(options)
            .clock(self.remote.clock.clone())
            .entropy(self.remote.entropy.clone())
    }

    async fn episode(mut self) {
        let serial = self.serial();
        let resource = self.common.plan.resource(&mut self.random, serial);
        // Now and then the caller loses patience, at any await.
        let patience = match self.random.chance(250) {
            true => self.random.between(1, 4_000),
            false => 60_000,
        };
        let tells = self.clone();
        let episode: std::pin::Pin<Box<dyn Future<Output = ()> + Send>> =
            match self.random.below(10) {
                0..=2 => Box::pin(self.acquires(resource)),
                3..=6 => Box::pin(self.waits(resource)),
                7 => Box::pin(self.collects()),
                _ => Box::pin(self.leads(resource)),
            };
        let in_time = timeout(Duration::from_millis(patience), episode).await;
        if in_time.is_err() {
            tells.tells("episode", "dropped");
        }
    }

    async fn acquires(mut self, resource: ResourceName) {
        let answer = self.builder(&resource).acquire().await;
        self.heard("acquire", &answer);
        if let Ok(AcquireOutcome::Granted(lease)) = answer {
            self.uses(lease).await;
        }
    }

    async fn waits(mut self, resource: ResourceName) {
        let wait = Duration::from_millis(self.random.below(WAIT_MS_MAX));
        let mut builder = self.builder(&resource);
        if self.has(Bug::LapseEndsWait) {
            // Whoever names a grant is told what became of it.
            builder = builder.grant_id(self.random.grant_id());
        }
        let answer = builder.acquire_wait(wait).await;
        self.heard("acquire_wait", &answer);
        if let Ok(AcquireOutcome::Granted(lease)) = answer {
            self.uses(lease).await;
        }
    }

    /// Holds many resources at once, which are renewed together.
    async fn collects(mut self) {
        let mut held = Vec::new();
        for _ in 0..self.random.between(2, COLLECTED_MAX) {
            let serial = self.serial();
            let Ok(resource) = ResourceName::new(format!("many/{serial}")) else {
                return;
            };
            let answer = self.builder(&resource).acquire().await;
            self.heard("acquire", &answer);
            if let Ok(AcquireOutcome::Granted(lease)) = answer {
                held.push(Observed::new(self.fork(), Arc::new(lease)));
            }
        }
        for _ in 0..self.random.between(1, STEPS_MAX) {
            self.idle(2 * STEP_MS_MAX).await;
            for observed in &mut held {
                if observed.look() && self.random.chance(200) {
                    observed.writes().await;
                }
            }
        }
        for observed in held {
            if self.random.chance(700) {
                observed.gives_up();
                let _released = observed.handle.release().await;
            }
        }
    }

    async fn leads(mut self, resource: ResourceName) {
        let terms = self.random.between(1, 3);
        let mut lead = self.fork();
        let mut term = 0;
        let patience = Duration::from_millis(self.random.between(500, 15_000));
        let work = move |lease: Arc<LeaseHandle>| {
            term += 1;
            let is_last = term >= terms;
            let observed = Observed::new(lead.fork(), lease);
            async move {
                observed.works().await;
                match is_last {
                    true => ControlFlow::Break(()),
                    false => ControlFlow::Continue(()),
                }
            }
        };
        let leading = self.builder(&resource).run_while_leader(work);
        match timeout(patience, leading).await {
            Ok(Ok(())) => self.tells("lead", "done"),
            Ok(Err(error)) => self.tells("lead", kind(&error)),
            Err(_late) => self.tells("lead", "dropped"),
        }
    }

    async fn uses(mut self, lease: LeaseHandle) {
        let mut observed = Observed::new(self.fork(), Arc::new(lease));
        let is_guarded = self.random.chance(250);
        if is_guarded {
            let guarded = observed.guarded(self.fork());
            let handle = observed.handle.clone();
            Handle::current().spawn(async move {
                let _ended = handle.guard(guarded.works()).await;
            });
        }
        observed.steps().await;
        match self.random.below(10) {
            // Forgets it: the ttl has to do.
            0 => {}
            1 => {
                // Loses patience while it releases.
                observed.gives_up();
                let patience = Duration::from_millis(self.random.below(40));
                let released = timeout(patience, observed.handle.release()).await;
                if released.is_err() {
                    self.tells("release", "dropped");
                }
            }
            2..=4 => observed.releases_with_value().await,
            _ => {
                observed.gives_up();
                match observed.handle.release().await {
                    Ok(ReleaseOutcome::Released) => self.tells("release", "released"),
                    Ok(ReleaseOutcome::AlreadyEnded) => self.tells("release", "already ended"),
                    Err(error) => self.tells("release", kind(&error)),
                }
            }
        }
        observed.look();
    }

    /// The one thing that it has to get after the faults: a turn.
    async fn goal(mut self) -> bool {
        let at = self.random.below(self.common.plan.hot.len() as u64);
        let resource = self.common.plan.hot[usize::try_from(at).unwrap_or(0)].clone();
        match self.random.below(3) {
            0 => {
                let acquire = self.builder(&resource).acquire();
                let Ok(AcquireOutcome::Granted(lease)) = acquire.await else {
                    return false;
                };
                self.is_served(lease).await
            }
            1 => {
                let acquire = self.builder(&resource).acquire_wait(GOAL_WAIT);
                let Ok(AcquireOutcome::Granted(lease)) = acquire.await else {
                    return false;
                };
                self.is_served(lease).await
            }
            _ => {
                let lead = self.clone();
                let leading = self.builder(&resource).run_while_leader(move |lease| {
                    let mut lead = lead.clone();
                    async move {
                        match lead.has_written(&lease).await {
                            true => ControlFlow::Break(()),
                            false => ControlFlow::Continue(()),
                        }
                    }
                });
                leading.await.is_ok()
            }
        }
    }

    async fn is_served(&mut self, lease: LeaseHandle) -> bool {
        let lease = Arc::new(lease);
        let has_written = self.has_written(&lease).await;
        let is_released = lease.release().await.is_ok();
        has_written && is_released
    }

    async fn has_written(&mut self, lease: &LeaseHandle) -> bool {
        self.idle(200).await;
        let Some(fence) = lease.fence() else {
            return false;
        };
        matches!(self.remote.mutate(fence, &self.name).await, Ok(Ok(())))
    }
}

impl Observed {
    fn new(worker: Worker, handle: Arc<LeaseHandle>) -> Self {
        let lease = worker.common.leases.fetch_add(1, Ordering::Relaxed);
        worker.record(Event::Holds {
            lease,
            resource: handle.resource().clone(),
            epoch: handle.epoch(),
            worker: worker.name.clone(),
        });
        worker
            .common
            .out
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(lease, (worker.host, Arc::downgrade(&handle)));
        let lost = handle.lost();
        let hears = worker.clone();
        Handle::current().spawn(async move {
            let reason = lost.await;
            let is_own = matches!(reason, EndedReason::Released | EndedReason::Dropped);
            if is_own || !hears.has(Bug::LossUntold) {
                hears.record(Event::Lost { lease, reason });
            }
        });
        Self {
            worker,
            handle,
            lease,
            is_guarded: false,
        }
    }

    /// The same lease, looked at from work that runs under its guard.
    fn guarded(&self, worker: Worker) -> Self {
        Self {
            worker,
            handle: self.handle.clone(),
            lease: self.lease,
            is_guarded: true,
        }
    }

    /// What a worker does under a guard.
    async fn works(mut self) {
        self.is_guarded = true;
        self.steps().await;
    }

    async fn steps(&mut self) {
        for _ in 0..self.worker.random.between(1, STEPS_MAX) {
            self.worker.idle(STEP_MS_MAX).await;
            if self.is_guarded {
                self.worker.record(Event::Worked { lease: self.lease });
            }
            if !self.look() && !self.revives().await {
                return;
            }
            self.writes().await;
        }
    }

    /// Whether the lease has a fence now.
    fn look(&mut self) -> bool {
        let lease = self.lease;
        let has_fence = self.handle.fence().is_some_and(|fence| {
            fence.epoch == self.handle.epoch() && fence.holder == self.worker.name
        });
        let is_kept = self.worker.has(Bug::FenceKept);
        if has_fence || is_kept {
            self.worker.record(Event::Usable {
                lease,
                resource: self.handle.resource().clone(),
                epoch: self.handle.epoch(),
            });
            return true;
        }
        self.worker.record(Event::Unusable { lease });
        false
    }

    /// A planted bug: a renewal that succeeds after the end brings the lease back.
    async fn revives(&mut self) -> bool {
        if !self.worker.has(Bug::RenewalRevives) {
            return false;
        }
        let op = LeaseOp::Renew {
            holder: self.worker.name.clone(),
            epoch: self.handle.epoch(),
        };
        let resource = self.handle.resource().clone();
        let answer = self.worker.remote.transition(&resource, op).await;
        if !matches!(answer, Ok(TransitionOutcome::Renewed)) {
            return false;
        }
        self.worker.record(Event::Usable {
            lease: self.lease,
            resource,
            epoch: self.handle.epoch(),
        });
        true
    }

    async fn writes(&mut self) {
        let worker = &mut self.worker;
        let Some(fence) = self.handle.fence() else {
            return;
        };
        // A machine may be slow at any moment: the write leaves long after the fence was fetched.
        let late = match worker.random.chance(150) {
            true => worker.random.between(500, 20_000),
            false => 0,
        };
        let writer = match worker.random.chance(20) {
            true => "somebody else".to_owned(),
            false => worker.name.to_string(),
        };
        let kind = worker.random.below(4);
        let remote = worker.remote.clone();
        let value = worker.serial();
        let write = async move {
            sleep(Duration::from_millis(late)).await;
            match kind {
                0 | 1 => drop(remote.mutate(fence, &writer).await),
                2 => {
                    let bytes = value.to_le_bytes().to_vec();
                    let expected = ExpectedRevision::Any;
                    let _ = remote
                        .compare_and_set(&fence, &writer, expected, bytes)
                        .await;
                }
                _ => {
                    let found = remote.read(&fence.resource).await;
                    let expected = match found {
                        Ok(Some(found)) => ExpectedRevision::Exactly(found.value_revision),
                        Ok(None) => ExpectedRevision::Absent,
                        Err(_) => return,
                    };
                    let bytes = value.to_le_bytes().to_vec();
                    let _ = remote
                        .compare_and_set(&fence, &writer, expected, bytes)
                        .await;
                }
            }
        };
        let write = timeout(Duration::from_secs(30), write);
        if late > 0 || worker.random.chance(300) {
            // A task that ends by a planted panic ends alone.
            Handle::current().spawn(write);
        } else {
            let _answer = write.await;
        }
    }

    fn gives_up(&self) {
        self.worker.record(Event::GivesUp { lease: self.lease });
    }

    async fn releases_with_value(&mut self) {
        self.gives_up();
        let value = self.worker.serial().to_le_bytes().to_vec();
        let remote = self.worker.remote.clone();
        let name = self.worker.name.as_str();
        let release = self
            .handle
            .release_with_value(remote, name, ExpectedRevision::Any, value);
        match release.await {
            Ok(_revision) => self.worker.tells("release_with_value", "released"),
            Err(error) => {
                self.worker.tells("release_with_value", kind(&error));
                let _released = self.handle.release().await;
            }
        }
    }
}

/// The name of an error, without what it says.
fn kind(error: &LeaseError) -> String {
    let text = format!("{error:?}");
    let end = text.find([' ', '{']).unwrap_or(text.len());
    let mut parts = text[..end].split('(');
    let (outer, inner) = (parts.next().unwrap_or(""), parts.next().unwrap_or(""));
    format!("{outer} {inner}")
        .trim_end_matches([')', ' '])
        .to_owned()
}
