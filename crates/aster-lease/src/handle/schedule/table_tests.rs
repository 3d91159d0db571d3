//! The table keeps its own books: random histories, each step checked.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use aster_core::{Authority, Fence, Principal, ResourceName};
use tokio::runtime::Runtime;

use super::table::{FlightId, Slot, Table, Verdict};
use super::timing::chance;
use super::{Schedule, Source};
use crate::clock::Moment;
use crate::entropy::SystemEntropy;
use crate::handle::options::LeaseOptions;
use crate::handle::state::{EndedReason, Shared};
use crate::memory::MemorySerializer;
use crate::metrics::Metrics;

const HISTORIES: u64 = 200;
const STEPS: usize = 400;

/// A lease of this length, granted at `anchor`.
fn lease(schedule: &Arc<Schedule>, ttl: Duration, anchor: Moment) -> Arc<Shared> {
    let fence = Fence {
        authority: Authority::from_bytes([1; 16]),
        resource: ResourceName::new("catalog").unwrap(),
        epoch: 1,
        holder: Principal::new("a").unwrap(),
    };
    let parts = schedule
        .clone()
        .parts(Arc::new(SystemEntropy), Metrics::default());
    let timing = LeaseOptions::with_ttl(ttl).check().unwrap();
    Arc::new(Shared::new(parts, timing, fence, anchor))
}

fn schedule() -> (Runtime, Arc<Schedule>) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap();
    let source = Source::new(Arc::new(MemorySerializer::new()));
    let schedule = Schedule::shared(source, None, runtime.handle());
    (runtime, schedule)
}

fn moment(at: u64) -> Moment {
    let since = Duration::from_nanos(at);
    Moment {
        monotonic: since,
        boot: since,
    }
}

/// When a call was sent, and for which leases.
type Flying = (u64, Vec<(Slot, Arc<Shared>)>);

struct World {
    table: Table,
    held: Vec<(Slot, Arc<Shared>)>,
    flying: BTreeMap<FlightId, Flying>,
    at: u64,
    seed: u64,
    batch_max: usize,
    renewed: usize,
}

impl World {
    fn pick(&mut self, below: usize) -> usize {
        (chance(&mut self.seed) * below as f64) as usize
    }

    fn step(&mut self, schedule: &Arc<Schedule>) {
        match self.pick(10) {
            0..=2 => {
                let ttl = [200, 3_000, 30_000, 86_400_000][self.pick(4)];
                let shared = lease(schedule, Duration::from_millis(ttl), moment(self.at));
                let (seed, now) = (self.seed, moment(self.at));
                let (slot, _) =
                    self.table
                        .insert(shared.clone(), seed, self.batch_max, now, self.at);
                self.held.push((slot, shared));
            }
            3 if !self.held.is_empty() => {
                let leaving = self.pick(self.held.len());
                let (slot, shared) = self.held.swap_remove(leaving);
                shared.end(EndedReason::Released);
                assert!(self.table.remove(slot, &shared).is_some());
                assert!(self.table.remove(slot, &shared).is_none(), "twice");
            }
            4..=6 => {
                let choices = [1, 1_000_000, 100_000_000, 2_000_000_000, 12_000_000_000];
                self.at += choices[self.pick(choices.len())];
                self.send_due();
            }
            _ if !self.flying.is_empty() => {
                let landing = self.pick(self.flying.len());
                let id = *self.flying.keys().nth(landing).unwrap();
                self.land(id);
            }
            _ => {}
        }
    }

    fn send_due(&mut self) {
        let mut over = Vec::new();
        while self.table.ripen(moment(self.at), self.at, &mut over) {}
        self.forget(&over);
        while let Some(load) = self.table.load(self.at) {
            assert!((1..=self.batch_max).contains(&load.leases.len()));
            assert!(load.limit > Duration::ZERO);
            self.flying.insert(load.id, (self.at, load.leases));
        }
        for id in self.table.take_orphans() {
            self.flying.remove(&id);
        }
        let wake_at = self.table.rest(self.at);
        assert!(wake_at > self.at, "nothing that is due is left behind");
    }

    fn land(&mut self, id: FlightId) {
        let (sent_at, leases) = self.flying.remove(&id).unwrap();
        let mut verdicts = Vec::new();
        for (slot, shared) in leases {
            let verdict = match (self.pick(4), shared.remaining_at(moment(self.at))) {
                (_, None) => Verdict::Over,
                (0, Some(left)) => Verdict::Again { left, alone: false },
                (1, Some(left)) => Verdict::Again { left, alone: true },
                _ if shared.renewed_at(moment(sent_at), moment(self.at)) => Verdict::Renewed,
                _ => Verdict::Over,
            };
            self.renewed += usize::from(verdict == Verdict::Renewed);
            verdicts.push((slot, verdict));
        }
        let mut over = Vec::new();
        self.table
            .landed(id, sent_at, self.at, &verdicts, &mut over);
        self.forget(&over);
    }

    fn forget(&mut self, over: &[Arc<Shared>]) {
        for gone in over {
            assert!(gone.left_at(moment(self.at)).is_none(), "it had time left");
        }
        self.held
            .retain(|(_, lease)| !over.iter().any(|gone| Arc::ptr_eq(gone, lease)));
    }
}

#[test]
fn every_lease_is_always_waited_for_ready_or_on_its_way() {
    let (_runtime, schedule) = schedule();
    let (mut renewed, mut orphaned) = (0, false);
    for history in 0..HISTORIES {
        let mut world = World {
            table: Table::default(),
            held: Vec::new(),
            flying: BTreeMap::new(),
            at: 0,
            seed: history,
            batch_max: [1, 2, 16][(history % 3) as usize],
            renewed: 0,
        };
        for _ in 0..STEPS {
            world.step(&schedule);
            orphaned |= world.table.has_orphans();
            assert_eq!(world.table.len(), world.held.len(), "history {history}");
            world.table.check();
        }
        for (slot, shared) in std::mem::take(&mut world.held) {
            assert!(world.table.remove(slot, &shared).is_some());
        }
        world.table.check();
        assert!(
            world.table.is_bare(),
            "history {history}: something is left"
        );
        renewed += world.renewed;
    }
    assert!(renewed > 1_000 && orphaned, "a control: things happened");
}

/// However long they were for, leases that have left take no room.
#[test]
fn a_hundred_thousand_leases_that_came_and_went_leave_nothing() {
    let (_runtime, schedule) = schedule();
    let mut table = Table::default();
    let day = Duration::from_secs(24 * 60 * 60);
    let (stays, _) = table.insert(lease(&schedule, day, moment(0)), 0, 16, moment(0), 0);
    let shared = lease(&schedule, day, moment(0));
    for _ in 0..100_000 {
        let (slot, _) = table.insert(shared.clone(), 1, 16, moment(0), 0);
        assert_eq!(slot, stays + 1, "the same place again");
        table.remove(slot, &shared);
    }
    assert_eq!(Arc::strong_count(&shared), 1);
    assert_eq!((table.len(), table.timers()), (1, 1));
}
