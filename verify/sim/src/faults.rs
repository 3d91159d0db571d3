//! What is done to the world while faults go on, and how machines come back.

use std::time::Duration;

use aster_core::ResourceName;

use crate::history::Event;
use crate::machine::Pace;
use crate::random::Random;
use crate::service::SERVER;
use crate::weather::Conditions;
use crate::wire::Outgoing;
use crate::world::{World, WorldError};

const HOUR_MS: i64 = 3_600_000;
/// The longest that a machine, a link or the serializer is away.
const AWAY_MS_MAX: u64 = 12_000;
/// An operator decides on what it saw, this much later at most.
const OPERATOR_THINKS_MS_MAX: u64 = 2_000;
const HOLD_OFF_MS_MAX: u64 = 10_000;

impl World {
    /// Brings back who was away for long enough, and now and then does something new.
    pub(crate) fn cause_faults(&mut self) -> Result<(), WorldError> {
        for host in 0..self.machines.len() {
            self.resume(host, self.now_ms)?;
        }
        if self.now_ms < self.next_fault_ms {
            return Ok(());
        }
        let pause_ms = self.common.plan.fault_pause_ms;
        self.next_fault_ms = self.now_ms + self.random.between(1, 2 * pause_ms);
        let mischief = self.common.plan.mischief;
        let away_ms = match self.random.chance(500) {
            true => self.random.between(20, 1_000),
            false => self.random.between(500, AWAY_MS_MAX),
        };
        let until_ms = self.now_ms + away_ms;
        let host = self.anybody();
        match self.random.below(12) {
            0 | 1 if mischief.cuts => self.cut(host, until_ms),
            2 if mischief.stops => self.stop(host, until_ms),
            3 if mischief.stops && self.random.chance(300) => self.stop(SERVER, until_ms),
            4 if mischief.suspensions => {
                let host = if self.random.chance(150) {
                    SERVER
                } else {
                    host
                };
                self.suspend(host, until_ms);
            }
            5 if mischief.kills => self.kill(host, until_ms)?,
            6 if mischief.restarts => self.restart()?,
            7 if mischief.outages && self.random.chance(500) => self.take_down(until_ms)?,
            8 | 9 if mischief.revokes => self.revoke(),
            10 if mischief.wall_jumps => self.jump(),
            11 => self.change_weather(),
            _ => {}
        }
        Ok(())
    }

    fn fault(&self, kind: &'static str, what: String) {
        self.note(Event::Fault { kind, what });
    }

    fn anybody(&mut self) -> usize {
        let machines = self.common.plan.machines as u64;
        usize::try_from(self.random.between(1, machines)).unwrap_or(1)
    }

    /// Comes back if it was away for long enough by `now_ms`.
    pub(crate) fn resume(&mut self, host: usize, now_ms: u64) -> Result<(), WorldError> {
        match self.machines[host].pace {
            Pace::Stopped { until_ms } | Pace::Suspended { until_ms, .. } if until_ms <= now_ms => {
                self.machines[host].go_on(self.now_ms);
                self.note(Event::GoesOn { machine: host });
            }
            Pace::Down { until_ms } if until_ms <= now_ms => {
                self.machines[host].go_on(self.now_ms);
                self.fault("started", format!("host {host}"));
                if host == SERVER {
                    self.restart()?;
                    self.service
                        .follow(self.machines[SERVER].runtime(), &self.common.plan.hot);
                } else {
                    self.employ(host)
                        .map_err(|error| WorldError::Setup(error.to_string()))?;
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn cut(&mut self, host: usize, until_ms: u64) {
        let direction = self.random.below(3);
        let link = &mut self.network.links[host];
        if direction != 1 {
            link.up_cut_until_ms = link.up_cut_until_ms.max(until_ms);
        }
        if direction != 0 {
            link.down_cut_until_ms = link.down_cut_until_ms.max(until_ms);
        }
        let directions = ["from", "to", "from and to"];
        let direction = directions[usize::try_from(direction).unwrap_or(0)];
        let what = format!("nothing gets {direction} host {host} until {until_ms}");
        self.fault("cut off", what);
    }

    fn stop(&mut self, host: usize, until_ms: u64) {
        if self.machines[host].runs() {
            self.machines[host].pace = Pace::Stopped { until_ms };
            self.note(Event::StandsStill { machine: host });
            let kind = match host {
                SERVER => "serializer stopped",
                _ => "stopped",
            };
            self.fault(kind, format!("host {host} until {until_ms}"));
        }
    }

    fn suspend(&mut self, host: usize, until_ms: u64) {
        if self.machines[host].runs() {
            let since_ms = self.now_ms;
            self.machines[host].pace = Pace::Suspended { since_ms, until_ms };
            self.note(Event::StandsStill { machine: host });
            let kind = match host {
                SERVER => "serializer suspended",
                _ => "suspended",
            };
            self.fault(kind, format!("host {host} until {until_ms}"));
        }
    }

    fn kill(&mut self, host: usize, until_ms: u64) -> Result<(), WorldError> {
        if let Pace::Down { .. } = self.machines[host].pace {
            return Ok(());
        }
        self.fault("killed", format!("host {host} until {until_ms}"));
        let open = self.machines[host].desk.clear();
        self.machines[host].kill(self.now_ms, until_ms)?;
        self.machines[host].desk.clear();
        self.machines[host].forget_letters();
        self.note(Event::Killed { machine: host });
        if self.random.chance(500) {
            // Its kernel closes the connections; a power cut does not.
            let at_ms = self.now_ms + self.common.plan.latency_ms;
            for id in open {
                self.post(SERVER, at_ms, host, Outgoing::Reset { id });
            }
        }
        Ok(())
    }

    fn restart(&mut self) -> Result<(), WorldError> {
        let machine = &self.machines[SERVER];
        if !machine.runs() {
            return Ok(());
        }
        let _enter = machine.runtime().enter();
        self.service
            .restart()
            .map_err(|error| WorldError::Setup(error.to_string()))
    }

    /// The serializer's process ends, and what it was carrying out with it.
    fn take_down(&mut self, until_ms: u64) -> Result<(), WorldError> {
        if let Pace::Down { .. } = self.machines[SERVER].pace {
            return Ok(());
        }
        self.fault("outage", format!("of the serializer until {until_ms}"));
        self.machines[SERVER].kill(self.now_ms, until_ms)?;
        self.machines[SERVER].desk.clear();
        self.service.forget_requests();
        for letter in self.machines[SERVER].forget_letters() {
            self.refuse(SERVER, letter.from, letter.what);
        }
        Ok(())
    }

    fn revoke(&mut self) {
        if !self.machines[SERVER].runs() {
            return;
        }
        let resource: ResourceName = self.common.plan.resource(&mut self.random, 0);
        let thinks = match self.random.chance(500) {
            true => 0,
            false => self.random.below(OPERATOR_THINKS_MS_MAX),
        };
        let hold_off = match self.random.chance(400) {
            true => Some(self.random.between(1, HOLD_OFF_MS_MAX)),
            false => None,
        };
        self.fault("operator", format!("looks at {resource}"));
        let (service, operator) = (self.service.clone(), self.operator.clone());
        self.machines[SERVER].runtime().spawn(async move {
            let thinks = Duration::from_millis(thinks);
            let hold_off = hold_off.map(Duration::from_millis);
            service.revoke(resource, operator, thinks, hold_off).await;
        });
    }

    fn jump(&mut self) {
        let host = match self.random.chance(400) {
            true => SERVER,
            false => self.anybody(),
        };
        let jump_ms = match self.random.chance(500) {
            true => HOUR_MS,
            false => -HOUR_MS,
        };
        self.machines[host].clock.set_wall(jump_ms);
        let kind = match host {
            SERVER => "wall clock of the serializer",
            _ => "wall clock",
        };
        self.fault(kind, format!("of host {host} jumps by {jump_ms} ms"));
    }

    fn change_weather(&mut self) {
        let mischief = self.common.plan.mischief;
        let random = &mut self.random;
        let mut conditions = Conditions {
            slow_ms_max: random.pick(&[50, 500, 4_000]),
            ..Conditions::default()
        };
        if mischief.bad_network && random.chance(700) {
            conditions.message_lost = often(random, 300);
            conditions.message_doubled = often(random, 300);
            conditions.message_slow = often(random, 500);
        }
        if mischief.bad_store && random.chance(600) {
            conditions.store_busy = often(random, 300);
            conditions.store_overloaded = often(random, 100);
            conditions.store_failed = often(random, 50);
            conditions.store_slow = often(random, 300);
        }
        if mischief.panics {
            conditions.store_panics = often(random, 20);
            conditions.client_panics = often(random, 10);
        }
        self.weather.set(conditions);
        self.fault("weather", format!("{conditions:?}"));
    }
}

fn often(random: &mut Random, per_mille_max: u64) -> u64 {
    match random.chance(500) {
        true => 0,
        false => random.below(per_mille_max + 1),
    }
}
