//! A model store: rows, a clock, a floor, registers and high-water marks. Every call to the rules is
//! recorded.

use std::collections::BTreeMap;
use std::time::Duration;

use aster_core::{
    Authority, Effect, ExpectedRevision, Fence, GrantId, HighWaterMark, HoldOff, Judged, LeaseOp,
    Principal, RegisterDecision, RegisterState, RegisterWrite, ResourceName, RowState,
    TransitionOutcome, Ttl, TtlBounds, WriteId,
};

use super::history::{Act, Expected, Grant, History, Pick, Step, Tamper};
use super::rules::Rules;
use super::trace::{
    Announced, Asked, Event, FenceChecked, MarkAsk, RegisterWritten, Trace, authority, view_of,
};
use super::truth::Truth;

/// Rows free for this long may be dropped.
const IDLE_MS: u64 = 2_000;
const REGISTER_BYTES_MAX: usize = 64;
const TTLS_MS: [u64; 5] = [100, 1_000, 3_000, 99, 86_400_001];
const RESOURCES: [&str; 2] = ["catalog/current", "catalog/next"];
const HOLDERS: [&str; 3] = ["worker-a", "worker-b", "worker-c"];

/// Runs a history under `rules`.
pub(crate) fn run(history: &History, rules: &dyn Rules) -> Trace {
    let resources = RESOURCES.map(|name| ResourceName::new(name).unwrap());
    let mut world = World {
        rules,
        marks: resources
            .clone()
            .map(|name| HighWaterMark::new(name, authority())),
        resources,
        now_ms: 0,
        floor: history.floor,
        late_floor: 0,
        rows: BTreeMap::new(),
        registers: BTreeMap::new(),
        truths: BTreeMap::new(),
        sent: Vec::new(),
        granted: Vec::new(),
        granted_ids: Vec::new(),
        grants: 0,
        writes: 0,
        trace: Vec::new(),
    };
    for step in &history.steps {
        world.step(step);
    }
    world.trace
}

struct Stored {
    row: RowState,
    armed_at_ms: u64,
    /// When each hold-off began, by its epoch.
    hold_offs_at_ms: BTreeMap<u64, u64>,
}

impl Stored {
    fn is_over(&self, hold_off: &HoldOff, now_ms: u64) -> bool {
        let duration_ms = u64::try_from(hold_off.duration.as_millis()).unwrap();
        let since_ms = self.hold_offs_at_ms.get(&hold_off.epoch).copied();
        now_ms >= since_ms.unwrap_or(now_ms) + duration_ms
    }

    /// Whose hold-offs have had their time.
    fn over(&self, now_ms: u64) -> Vec<Principal> {
        let hold_offs = self.row.hold_offs.iter();
        let over = hold_offs.filter(|hold_off| self.is_over(hold_off, now_ms));
        over.map(|hold_off| hold_off.holder.clone()).collect()
    }
}

struct World<'a> {
    rules: &'a dyn Rules,
    resources: [ResourceName; 2],
    marks: [HighWaterMark; 2],
    now_ms: u64,
    floor: u64,
    /// A floor that a broken store raises only after the next operation.
    late_floor: u64,
    rows: BTreeMap<ResourceName, Stored>,
    registers: BTreeMap<ResourceName, RegisterState>,
    truths: BTreeMap<ResourceName, Truth>,
    sent: Vec<(ResourceName, LeaseOp)>,
    granted: Vec<Fence>,
    /// The grant id of each of those.
    granted_ids: Vec<GrantId>,
    grants: u8,
    writes: u8,
    trace: Trace,
}

impl World<'_> {
    fn step(&mut self, step: &Step) {
        match &step.act {
            Act::Acquire {
                resource,
                candidate,
                ttl,
                grant,
            } => {
                let op = LeaseOp::Acquire {
                    candidate: holder(*candidate),
                    ttl: Ttl::from_millis(TTLS_MS[*ttl]).unwrap(),
                    grant_id: self.grant_id(grant),
                };
                self.send(self.resources[*resource].clone(), op, step.late);
            }
            Act::Renew { fence } => {
                let fence = self.fence(fence);
                let op = LeaseOp::Renew {
                    holder: fence.holder,
                    epoch: fence.epoch,
                };
                self.send(fence.resource, op, step.late);
            }
            Act::Release { fence } => {
                let fence = self.fence(fence);
                let op = LeaseOp::Release {
                    holder: fence.holder,
                    epoch: fence.epoch,
                };
                self.send(fence.resource, op, step.late);
            }
            Act::Revoke { fence, hold_off_ms } => {
                let fence = self.fence(fence);
                self.send(fence.resource, revoke(fence.epoch, *hold_off_ms), step.late);
            }
            Act::HandOver {
                candidate,
                hold_off_ms,
            } => {
                let fence = self.untampered(0);
                let revoke = revoke(fence.epoch, Some(*hold_off_ms));
                self.send(fence.resource.clone(), revoke, step.late);
                let op = LeaseOp::Acquire {
                    candidate: holder(*candidate),
                    ttl: Ttl::from_millis(TTLS_MS[1]).unwrap(),
                    grant_id: self.grant_id(&Grant::Fresh),
                };
                self.send(fence.resource, op, step.late);
            }
            Act::Cancel { fence, grant_back } => {
                let own = nth_last(&self.granted_ids, fence.back).copied();
                let fence = self.fence(fence);
                let used = grant_back.map(|back| self.grant_id(&Grant::Used { back }));
                let op = LeaseOp::Cancel {
                    candidate: fence.holder,
                    grant_id: used.or(own).unwrap_or(GrantId::from_bytes([0; 16])),
                };
                self.send(fence.resource, op, step.late);
            }
            Act::Redeliver { back } => {
                if let Some((resource, op)) = nth_last(&self.sent, *back).cloned() {
                    self.ask(resource, op, step.late);
                }
            }
            Act::Write { fence, writer } => self.write(fence, *writer),
            Act::WriteRegister {
                fence,
                writer,
                expected,
                repeat,
            } => {
                self.write_register(fence, *writer, *expected, *repeat);
            }
            Act::Announce { fence, writer } => self.mark(fence, *writer, MarkAsk::Announce),
            Act::CheckMark { fence, writer } => self.mark(fence, *writer, MarkAsk::Check),
            Act::AnnounceEnd { fence } => {
                let epoch = self.fence(fence).epoch.saturating_add(1);
                self.mark(fence, None, MarkAsk::End { epoch });
            }
            Act::Advance { ms } => self.now_ms += ms,
            Act::DropIdle => self.drop_idle(),
            Act::Restart => self.restart(),
        }
    }

    fn send(&mut self, resource: ResourceName, op: LeaseOp, late: bool) {
        self.sent.push((resource.clone(), op.clone()));
        self.ask(resource, op, late);
    }

    fn ask(&mut self, resource: ResourceName, op: LeaseOp, late: bool) {
        let (judged, over) = self.judge(&resource, late);
        if let Some(stored) = self.rows.get_mut(&resource)
            && self.rules.hold_offs_end()
        {
            let hold_offs = &mut stored.row.hold_offs;
            hold_offs.retain(|hold_off| !over.contains(&hold_off.holder));
        }
        let before = self.rows.get(&resource).map(|stored| stored.row.clone());
        let view = view_of(&resource, self.floor, before.as_ref());
        let decision = self
            .rules
            .transition(&view, &judged, &TtlBounds::default(), &op);
        let (answer, effect) = match decision {
            Ok(decision) => (Ok(decision.outcome), decision.effect),
            Err(error) => (Err(error), Effect::Keep),
        };
        let already_ended = match &answer {
            Ok(TransitionOutcome::Denied(reason, snapshot)) => {
                self.rules.already_ended(&op, *reason, snapshot)
            }
            _ => false,
        };
        self.store(&resource, &effect);
        let truth = self.truths.entry(resource.clone()).or_default();
        let truth_before = truth.clone();
        truth.let_go(&over);
        if let Ok(outcome) = &answer {
            truth.learn(self.now_ms, &op, outcome);
            if let (TransitionOutcome::Granted(fence), LeaseOp::Acquire { grant_id, .. }) =
                (outcome, &op)
            {
                self.granted.push(fence.clone());
                self.granted_ids.push(*grant_id);
            }
        }
        self.trace.push(Event::Asked(Box::new(Asked {
            at_ms: self.now_ms,
            after: self.rows.get(&resource).map(|stored| stored.row.clone()),
            resource,
            op,
            floor: self.floor,
            judged,
            over,
            before,
            answer,
            effect,
            already_ended,
            truth: truth_before,
        })));
        self.floor = self.floor.max(std::mem::take(&mut self.late_floor));
    }

    /// Never too early; too late when the step says so. And whose hold-offs are over.
    fn judge(&self, resource: &ResourceName, late: bool) -> (Judged, Vec<Principal>) {
        let Some(stored) = self.rows.get(resource) else {
            return (Judged::default(), Vec::new());
        };
        let ttl_ms = stored.row.ttl().map_or(0, Ttl::as_millis);
        let deadline_ms = stored.armed_at_ms + ttl_ms;
        let judged = Judged {
            expired: stored.row.held.is_some() && !late && self.now_ms >= deadline_ms,
            remaining: Some(Duration::from_millis(
                deadline_ms.saturating_sub(self.now_ms),
            )),
        };
        let over = if late {
            Vec::new()
        } else {
            stored.over(self.now_ms)
        };
        (judged, over)
    }

    fn store(&mut self, resource: &ResourceName, effect: &Effect) {
        let (Effect::Rearm(row) | Effect::Replace(row)) = effect else {
            return;
        };
        let kept = self.rows.get(resource);
        let since_ms = |epoch| kept.and_then(|stored| stored.hold_offs_at_ms.get(&epoch));
        let epochs = row.hold_offs.iter().map(|hold_off| hold_off.epoch);
        let hold_offs_at_ms = epochs
            .map(|epoch| (epoch, since_ms(epoch).copied().unwrap_or(self.now_ms)))
            .collect();
        self.rows.insert(
            resource.clone(),
            Stored {
                row: row.clone(),
                armed_at_ms: self.now_ms,
                hold_offs_at_ms,
            },
        );
    }

    fn write(&mut self, pick: &Pick, writer: Option<usize>) {
        let fence = self.fence(pick);
        let resource = self.addressed(pick);
        let writer = writer.map_or_else(|| fence.holder.clone(), holder);
        let row = self.rows.get(&resource).map(|stored| stored.row.clone());
        let view = view_of(&resource, self.floor, row.as_ref());
        let verdict = self.rules.check_fence(&view, &fence, &writer);
        self.trace.push(Event::FenceChecked(Box::new(FenceChecked {
            truth: self.truths.entry(resource.clone()).or_default().clone(),
            at_ms: self.now_ms,
            resource,
            fence,
            writer,
            floor: self.floor,
            row,
            verdict,
        })));
    }

    fn write_register(
        &mut self,
        pick: &Pick,
        writer: Option<usize>,
        expected: Expected,
        repeat: bool,
    ) {
        let fence = self.fence(pick);
        let resource = self.addressed(pick);
        let writer = writer.map_or_else(|| fence.holder.clone(), holder);
        let row = self.rows.get(&resource).map(|stored| stored.row.clone());
        let view = view_of(&resource, self.floor, row.as_ref());
        if self.rules.check_fence(&view, &fence, &writer).is_err() {
            return;
        }
        let before = self.registers.get(&resource).copied();
        let current = before.map_or(0, |state| state.value_revision);
        self.writes = self.writes.wrapping_add(1);
        let fresh = WriteId::from_bytes([self.writes; 16]);
        let write = RegisterWrite {
            expected: match expected {
                Expected::Any => ExpectedRevision::Any,
                Expected::Absent => ExpectedRevision::Absent,
                Expected::Current(off_by) => ExpectedRevision::Exactly(current + off_by),
            },
            value: vec![self.writes; usize::from(self.writes) % (REGISTER_BYTES_MAX + 2)],
            write_id: before
                .filter(|_| repeat)
                .map_or(fresh, |state| state.write_id),
        };
        let outcome = self
            .rules
            .write_register(before.as_ref(), &write, REGISTER_BYTES_MAX);
        if let Ok(RegisterDecision::Write(state)) = &outcome {
            self.registers.insert(resource.clone(), *state);
        }
        self.trace.push(Event::RegisterWritten(RegisterWritten {
            resource,
            write,
            outcome,
        }));
    }

    fn mark(&mut self, pick: &Pick, writer: Option<usize>, ask: MarkAsk) {
        let fence = self.fence(pick);
        let writer = writer.map_or_else(|| fence.holder.clone(), holder);
        let resource = self.addressed(pick);
        let Some(index) = self.resources.iter().position(|name| *name == resource) else {
            return;
        };
        let mark = &mut self.marks[index];
        let epoch_before = mark.epoch();
        let verdict = match ask {
            MarkAsk::Announce => self.rules.announce(mark, &fence, &writer),
            MarkAsk::Check => self.rules.check_mark(mark, &fence, &writer),
            MarkAsk::End { epoch } => self.rules.announce_end(mark, epoch, &fence),
        };
        self.trace.push(Event::Announced(Announced {
            ask,
            resource,
            fence,
            writer,
            epoch_before,
            verdict,
            epoch_after: mark.epoch(),
        }));
    }

    /// Drops rows that are free for long, carry no register and keep nobody out.
    fn drop_idle(&mut self) {
        for resource in self.resources.clone() {
            let Some(stored) = self.rows.get(&resource) else {
                continue;
            };
            let is_idle = stored.row.held.is_none()
                && self.now_ms >= stored.armed_at_ms + IDLE_MS
                && !self.registers.contains_key(&resource)
                && stored.over(self.now_ms).len() == stored.row.hold_offs.iter().count();
            if !is_idle {
                continue;
            }
            if let Some(stored) = self.rows.remove(&resource) {
                if self.rules.floor_rises_with_drop() {
                    self.floor = self.floor.max(stored.row.epoch);
                } else {
                    self.late_floor = self.late_floor.max(stored.row.epoch);
                }
                self.truths
                    .entry(resource.clone())
                    .or_default()
                    .forget_row();
                self.trace.push(Event::Dropped {
                    resource: resource.clone(),
                    epoch: stored.row.epoch,
                    floor: self.floor,
                });
            }
        }
    }

    /// Instants are gone: every held row lasts one full ttl more, and every hold-off begins anew.
    fn restart(&mut self) {
        for stored in self.rows.values_mut() {
            stored.armed_at_ms = self.now_ms;
            for since_ms in stored.hold_offs_at_ms.values_mut() {
                *since_ms = self.now_ms;
            }
        }
        for truth in self.truths.values_mut() {
            truth.restart(self.now_ms);
        }
        self.trace.push(Event::Restarted);
    }

    fn grant_id(&mut self, grant: &Grant) -> GrantId {
        let number = match grant {
            Grant::Used { back } if self.grants > 0 => self
                .grants
                .saturating_sub(u8::try_from(*back).unwrap())
                .max(1),
            _ => {
                self.grants += 1;
                self.grants
            }
        };
        GrantId::from_bytes([number; 16])
    }

    /// The resource at which a fence is presented, whatever the fence says.
    fn addressed(&self, pick: &Pick) -> ResourceName {
        self.untampered(pick.back).resource
    }

    fn untampered(&self, back: usize) -> Fence {
        nth_last(&self.granted, back)
            .cloned()
            .unwrap_or_else(|| Fence {
                authority: authority(),
                resource: self.resources[0].clone(),
                epoch: self.floor,
                holder: holder(0),
            })
    }

    fn fence(&self, pick: &Pick) -> Fence {
        let mut fence = self.untampered(pick.back);
        match pick.tamper {
            Tamper::Nothing => {}
            Tamper::Authority => fence.authority = Authority::from_bytes([8; 16]),
            Tamper::Resource => {
                let other = usize::from(fence.resource == self.resources[0]);
                fence.resource = self.resources[other].clone();
            }
            Tamper::Holder(index) => fence.holder = holder(index),
            Tamper::EpochUp => fence.epoch = fence.epoch.saturating_add(1),
            Tamper::EpochDown => fence.epoch = fence.epoch.saturating_sub(1),
            Tamper::EpochLargest => fence.epoch = u64::MAX,
        }
        fence
    }
}

fn revoke(epoch: u64, hold_off_ms: Option<u64>) -> LeaseOp {
    LeaseOp::Revoke {
        operator: Principal::new("operator").unwrap(),
        epoch,
        hold_off: hold_off_ms.map(Duration::from_millis),
    }
}

fn holder(index: usize) -> Principal {
    Principal::new(HOLDERS[index]).unwrap()
}

fn nth_last<T>(items: &[T], back: usize) -> Option<&T> {
    items.len().checked_sub(back + 1).map(|index| &items[index])
}
