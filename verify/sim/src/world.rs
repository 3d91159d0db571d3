//! The world: machines, the network between them, and time. It moves in steps no longer than the fastest
//! message takes, so that within a step the machines can run one after the other.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use aster_core::{Principal, ResourceName, TtlBounds};
use aster_lease::{LeaseHandle, LeaseSerializer, ListQuery, MemoryOptions};

use crate::bug::Bug;
use crate::clock::{MachineClock, RATE_PPM_MAX};
use crate::history::{Event, Recorder, Trace};
use crate::invariants::{self, Invariant, Violation};
use crate::machine::{Letter, Machine, Pace};
use crate::network::Network;
use crate::plan::Plan;
use crate::random::{Random, SeededEntropy};
use crate::service::{Kind, SERVER, Service, ServiceParts};
use crate::tally::Tally;
use crate::weather::Weather;
use crate::wire::{Outgoing, Remote, Reply, unavailable};
use crate::worker::{Common, Worker};

/// Once the faults are over, everyone is served within this time, and a little more for each worker:
/// what was under way before has to end first.
const SERVED_MS_MAX: u64 = 180_000;
const SERVED_MS_PER_WORKER: u64 = 2_000;
/// Once everyone was served, whatever a killed machine has left in a queue ends within this time.
const SETTLED_MS_MAX: u64 = 120_000;
/// So many workers are a crowd.
const CROWD_MIN: u64 = 20;
/// Nobody waits for messages any more then, so the world moves faster.
const SETTLING_STEP_MS: u64 = 100;

/// How one run went.
#[derive(Debug)]
pub struct Run {
    /// The seed that repeats it.
    pub seed: u64,
    /// The rule that was broken, if one was.
    pub violation: Option<Violation>,
    /// What happened.
    pub trace: Trace,
    /// How long it took in the world's own time, in milliseconds.
    pub world_ms: u64,
    /// How long it took until everybody was served after the faults, in milliseconds.
    pub served_ms: u64,
    /// What there was to judge.
    pub tally: Tally,
}

/// The world itself could not be made; nothing was judged.
#[derive(Debug, thiserror::Error)]
pub enum WorldError {
    /// The system gave no runtime.
    #[error("no runtime for a machine: {0}")]
    Runtime(#[from] std::io::Error),
    /// A fixed name or number of the simulation is not acceptable.
    #[error("the simulation's own setup is wrong: {0}")]
    Setup(String),
}

/// What to run.
#[derive(Debug, Clone, Copy)]
pub struct Settings {
    /// Everything follows from it.
    pub seed: u64,
    /// Which store the serializer has.
    pub store: Kind,
    /// A planted bug. Only the invariant that it [breaks](Bug::breaks) judges then.
    pub bug: Option<Bug>,
    /// How many of the last lines of the trace to keep.
    pub trace_lines_max: usize,
}

pub(crate) struct World {
    pub(crate) now_ms: u64,
    pub(crate) random: Random,
    pub(crate) machines: Vec<Machine>,
    pub(crate) remotes: Vec<Arc<Remote>>,
    pub(crate) service: Arc<Service>,
    pub(crate) network: Network,
    pub(crate) weather: Arc<Weather>,
    pub(crate) common: Arc<Common>,
    pub(crate) operator: Principal,
    pub(crate) next_fault_ms: u64,
    letters: u64,
    invariants: Vec<Box<dyn Invariant>>,
    trace: Trace,
    tally: Tally,
    unserved: BTreeSet<Principal>,
    /// Every resource that was ever granted.
    names: BTreeSet<ResourceName>,
}

/// Runs one world to its end, or to the first broken rule.
///
/// # Errors
///
/// [`WorldError`] when the world could not be made. A broken rule is in the [`Run`].
pub fn run(settings: Settings) -> Result<Run, WorldError> {
    let mut world = World::new(settings)?;
    let mut served_ms = 0;
    let violation = world.live(&mut served_ms)?.err();
    world.network.fates.tell(&mut world.tally);
    Ok(Run {
        seed: settings.seed,
        violation,
        world_ms: world.now_ms,
        served_ms,
        tally: world.tally,
        trace: world.trace,
    })
}

impl World {
    fn new(settings: Settings) -> Result<Self, WorldError> {
        let setup = |error: &dyn std::fmt::Display| WorldError::Setup(error.to_string());
        let mut random = Random::new(settings.seed);
        let plan = Plan::new(&mut random);
        let recorder = Recorder::default();
        let weather = Arc::new(Weather::default());
        let mut machines = Vec::new();
        for host in 0..=plan.machines {
            let range = u64::try_from(2 * RATE_PPM_MAX).unwrap_or(0);
            // The extremes are the interesting ones.
            let rate = match random.below(3) {
                0 => 0,
                1 => range,
                _ => random.below(range + 1),
            };
            let rate_ppm = i64::try_from(rate).unwrap_or(0) - RATE_PPM_MAX;
            let by_wall = host == SERVER && settings.bug == Some(Bug::WallClockExpiry);
            let clock = Arc::new(MachineClock::new(rate_ppm, by_wall));
            machines.push(Machine::new(clock, 0)?);
        }
        let service = Service::new(ServiceParts {
            kind: settings.store,
            options: MemoryOptions {
                ttl_bounds: TtlBounds::default(),
                idle_retention: plan.idle_retention,
                idle_rows_max: plan.idle_rows_max,
                claim_time: plan.claim_time,
                waiters_max: plan.waiters_max,
                clock: machines[SERVER].clock.clone(),
                entropy: Arc::new(SeededEntropy::new(Random::new(0))),
                ..MemoryOptions::default()
            },
            entropy_seed: random.fork().draw(),
            clock: machines[SERVER].clock.clone(),
            desk: machines[SERVER].desk.clone(),
            weather: weather.clone(),
            recorder: recorder.clone(),
            random: random.fork(),
            bug: settings.bug,
        })
        .map_err(|error| setup(&error))?;
        let remotes = machines
            .iter()
            .map(|machine| {
                Arc::new(Remote {
                    desk: machine.desk.clone(),
                    clock: machine.clock.clone(),
                    entropy: Arc::new(SeededEntropy::new(random.fork())),
                    weather: weather.clone(),
                    chance: Mutex::new(random.fork()),
                    batch_max: plan.batch_max,
                })
            })
            .collect();
        let network = Network::new(random.fork(), plan.latency_ms, machines.len());
        let mut invariants = invariants::all(plan.idle_retention, plan.idle_rows_max < 128 * 1024);
        if settings.store == Kind::Sqlite {
            // Its queue and its watches live in its own time.
            let left_out = ["first_come_first_served", "watchers_see_the_present"];
            invariants.retain(|invariant| !left_out.contains(&invariant.name()));
        }
        if let Some(bug) = settings.bug {
            // Each rule has to find its bug alone.
            invariants.retain(|invariant| invariant.name() == bug.breaks());
        }
        let common = Arc::new(Common {
            plan,
            recorder,
            is_healed: AtomicBool::new(false),
            leases: AtomicU64::new(0),
            serial: AtomicU64::new(0),
            bug: settings.bug,
            out: Mutex::default(),
        });
        let operator = Principal::new("operator").map_err(|error| setup(&error))?;
        let mut world = Self {
            now_ms: 0,
            random,
            machines,
            remotes,
            service,
            network,
            weather,
            common,
            operator,
            next_fault_ms: 0,
            letters: 0,
            invariants,
            trace: Trace::new(settings.trace_lines_max),
            tally: Tally::default(),
            unserved: BTreeSet::new(),
            names: BTreeSet::new(),
        };
        let server = world.machines[SERVER].runtime();
        world.service.follow(server, &world.common.plan.hot);
        for host in 1..world.machines.len() {
            world.employ(host).map_err(|error| setup(&error))?;
        }
        let workers = world.unserved.len() as u64;
        world.tally.count_up("workers", workers);
        let is_crowded = workers >= CROWD_MIN;
        world
            .tally
            .count_up("worlds with twenty workers or more", is_crowded.into());
        Ok(world)
    }

    /// The workers of a machine begin, also after it was killed.
    pub(crate) fn employ(&mut self, host: usize) -> Result<(), aster_core::InvalidInput> {
        for number in 0..self.common.plan.workers {
            let name = Principal::new(format!("worker-{host}-{number}"))?;
            self.unserved.insert(name.clone());
            let worker = Worker {
                common: self.common.clone(),
                remote: self.remotes[host].clone(),
                host,
                name,
                random: self.random.fork(),
            };
            self.machines[host].runtime().spawn(worker.live());
        }
        Ok(())
    }

    fn live(&mut self, served_ms: &mut u64) -> Result<Result<(), Violation>, WorldError> {
        let faults_ms = self.common.plan.faults_ms;
        while self.now_ms < faults_ms {
            self.cause_faults()?;
            if let Err(violation) = self.step(self.common.plan.latency_ms) {
                return Ok(Err(violation));
            }
        }
        self.heal()?;
        let workers = self.unserved.len() as u64;
        let deadline_ms = self.now_ms + SERVED_MS_MAX + SERVED_MS_PER_WORKER * workers;
        while !self.unserved.is_empty() {
            if self.now_ms > deadline_ms {
                let workers = self.unserved.iter().map(Principal::to_string).collect();
                let after_ms = self.now_ms - faults_ms;
                self.note(Event::Starved { workers, after_ms });
            }
            if let Err(violation) = self.step(self.common.plan.latency_ms) {
                return Ok(Err(violation));
            }
        }
        *served_ms = self.now_ms - faults_ms;
        let settled_ms = self.now_ms + SETTLED_MS_MAX;
        while self.now_ms < settled_ms {
            if let Err(violation) = self.step(SETTLING_STEP_MS) {
                return Ok(Err(violation));
            }
        }
        self.note(Event::Settled);
        self.look_for_leftovers();
        Ok(self.step(SETTLING_STEP_MS))
    }

    pub(crate) fn note(&self, event: Event) {
        let recorder = &self.common.recorder;
        recorder.record(self.now_ms, SERVER, event);
    }

    /// Everybody runs for `ms`; then the messages are on their way, and the oracle looks.
    fn step(&mut self, ms: u64) -> Result<(), Violation> {
        let until_ms = self.now_ms + ms;
        let service = self.service.clone();
        for host in 0..self.machines.len() {
            let machine = &mut self.machines[host];
            if !machine.runs() {
                continue;
            }
            if host == SERVER {
                machine.run(until_ms, |runtime, letter| {
                    service.open(runtime, letter.from, letter.what);
                });
                continue;
            }
            let desk = machine.desk.clone();
            machine.run(until_ms, |_, letter| {
                if let Outgoing::Reply { id, reply, .. } = letter.what {
                    desk.arrived(id, reply);
                }
            });
        }
        self.now_ms = until_ms;
        self.carry_messages();
        self.judge()
    }

    fn carry_messages(&mut self) {
        let conditions = self.weather.now();
        for host in 0..self.machines.len() {
            for (at_ms, what) in self.machines[host].desk.take() {
                let (to, id, may_double) = match &what {
                    Outgoing::Request { id, .. } => (SERVER, *id, true),
                    Outgoing::Reset { id } => (SERVER, *id, false),
                    Outgoing::Reply { to, id, .. } => (*to, *id, false),
                };
                let cut_until_ms = match to {
                    SERVER => self.network.links[host].up_cut_until_ms,
                    machine => self.network.links[machine].down_cut_until_ms,
                };
                let arrivals =
                    self.network
                        .arrivals(&conditions, (host, to), at_ms, cut_until_ms, may_double);
                let Some((&last, others)) = arrivals.split_last() else {
                    continue;
                };
                for &at_ms in others {
                    if let Outgoing::Request { request, .. } = &what {
                        let request = request.clone();
                        let copy = Outgoing::Request { id, request };
                        self.post(to, at_ms, host, copy);
                    }
                }
                self.post(to, last, host, what);
            }
        }
    }

    pub(crate) fn post(&mut self, to: usize, at_ms: u64, from: usize, what: Outgoing) {
        if let Pace::Down { .. } = self.machines[to].pace {
            self.refuse(to, from, what);
            return;
        }
        self.letters += 1;
        self.machines[to].post(at_ms, self.letters, Letter { from, what });
    }

    /// What reaches a serializer that is down is refused now and then, and otherwise lost.
    pub(crate) fn refuse(&mut self, to: usize, from: usize, what: Outgoing) {
        if let Outgoing::Request { id, .. } = what
            && to == SERVER
            && self.random.chance(500)
        {
            let reply = Outgoing::Reply {
                to: from,
                id,
                reply: Reply::Failed(unavailable("connection refused")),
            };
            let at_ms = self.now_ms + self.common.plan.latency_ms;
            self.letters += 1;
            if !matches!(self.machines[from].pace, Pace::Down { .. }) {
                let letter = Letter {
                    from: SERVER,
                    what: reply,
                };
                self.machines[from].post(at_ms, self.letters, letter);
            }
        }
    }

    fn judge(&mut self) -> Result<(), Violation> {
        let entries = self.common.recorder.take();
        let mut granted = Vec::new();
        for entry in &entries {
            self.trace.add(entry);
            self.tally.see(&entry.event);
            for invariant in &mut self.invariants {
                invariant.see(entry).map_err(|what| Violation {
                    invariant: invariant.name(),
                    at_ms: entry.at_ms,
                    what,
                })?;
            }
            match &entry.event {
                Event::Granted {
                    resource, epoch, ..
                } => {
                    granted.push((resource.clone(), *epoch));
                    self.names.insert(resource.clone());
                }
                Event::Served { worker } => {
                    self.unserved.remove(worker);
                }
                _ => {}
            }
        }
        if !granted.is_empty() && self.common.plan.looks_at_fences {
            self.look_at_fences(&granted);
        }
        Ok(())
    }

    /// Somebody was granted: does anybody else still have a fence?
    fn look_at_fences(&self, granted: &[(ResourceName, u64)]) {
        let mut out = self
            .common
            .out
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let mut found: Vec<(u64, usize, Arc<LeaseHandle>)> = Vec::new();
        out.retain(|lease, (host, handle)| match handle.upgrade() {
            Some(handle) => {
                found.push((*lease, *host, handle));
                true
            }
            None => false,
        });
        drop(out);
        for (lease, host, handle) in found {
            let machine = &self.machines[host];
            let (resource, epoch) = (handle.resource(), handle.epoch());
            let is_older = granted
                .iter()
                .any(|(other, granted)| other == resource && *granted > epoch);
            if !is_older || !machine.runs() {
                continue;
            }
            let _enter = machine.runtime().enter();
            if handle.fence().is_some() {
                let event = Event::Usable {
                    lease,
                    resource: resource.clone(),
                    epoch,
                };
                self.common.recorder.record(self.now_ms, host, event);
            }
        }
    }

    fn heal(&mut self) -> Result<(), WorldError> {
        self.weather.set(crate::weather::Conditions::default());
        self.network.heal();
        for host in 0..self.machines.len() {
            self.resume(host, u64::MAX)?;
        }
        self.common.is_healed.store(true, Ordering::Relaxed);
        self.note(Event::Healed);
        Ok(())
    }

    fn look_for_leftovers(&mut self) {
        let plan = &self.common.plan;
        for (host, machine) in self.machines.iter().enumerate() {
            // Those who follow resources stay.
            let expected = match (host, self.service.kind()) {
                (SERVER, Kind::Memory) => plan.hot.len(),
                _ => 0,
            };
            let tasks = machine.tasks();
            if tasks != expected {
                let what = format!("{tasks} tasks are left on host {host}, not {expected}");
                self.note(Event::LeftOver { what });
            }
        }
        let store = self.service.store();
        if let Some(rows) = store.row_count() {
            self.note(Event::RowsDropped {
                rows: self.names.len().saturating_sub(rows),
            });
        }
        let runtime = self.machines[SERVER].runtime();
        let hot = match self.service.kind() {
            Kind::Memory => plan.hot.as_slice(),
            Kind::Sqlite => &[],
        };
        for resource in hot {
            let queue = runtime.block_on(store.queue(resource));
            let waiters = queue.map_or(usize::MAX, |queue| queue.len());
            if waiters > 0 {
                let what = format!("{waiters} still wait for {resource}");
                self.note(Event::LeftOver { what });
            }
            if let Ok(row) = runtime.block_on(store.snapshot(resource)) {
                self.note(Event::Row {
                    resource: row.resource,
                    epoch: row.epoch,
                });
            }
        }
        let query = ListQuery {
            held_only: true,
            ..ListQuery::default()
        };
        for row in runtime.block_on(store.list(query)).unwrap_or_default() {
            if !row.remaining.is_some_and(|left| left.is_zero()) {
                let what = format!("{} is still held", row.resource);
                self.note(Event::LeftOver { what });
            }
        }
    }
}
