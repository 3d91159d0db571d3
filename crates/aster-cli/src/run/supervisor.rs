//! The loop while the command runs.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use aster::lease::clock::boot_time;
use aster::lease::{Clock, LeaseHandle, LeaseStatus, Moment, SystemClock};
use rustix::process::Signal;
use tokio::signal::unix::{Signal as SignalStream, SignalKind, signal};
use tokio::time::sleep;

use super::group::{Group, LeaderEnd, LeaderNews};
use super::guard::Guard;
use super::signals::ForwardedSignals;
use super::terminal::Terminal;
use super::timing::Timing;
use crate::failure::Failure;
use crate::socket::server::{Server, Verdict};

/// How often the end of the group is looked for while it is being ended.
const END_PAUSE: Duration = Duration::from_millis(10);
/// How often members that do not end are killed again before we give up: some 30 s.
const KILLS_MAX: u32 = 3_000;

/// A deadline that moved by less than this is the same one, read at another moment.
const NEWS_MIN: Duration = Duration::from_millis(1);

/// How the work ended.
#[derive(Debug)]
pub(crate) struct WorkEnd {
    pub(crate) leader: LeaderEnd,
    /// Why the lease ended before the command did.
    pub(crate) lost: Option<String>,
    /// KILL was sent.
    pub(crate) killed: bool,
    /// Nobody in the group lives.
    pub(crate) is_gone: bool,
}

/// The lease was lost: the group was told to end, and will be killed.
#[derive(Debug)]
struct Ending {
    reason: String,
    since: Moment,
    grace: Duration,
    killed: bool,
}

pub(crate) struct Supervisor {
    lease: Arc<LeaseHandle>,
    verdict: Arc<Verdict>,
    timing: Timing,
    clock: SystemClock,
    children: SignalStream,
    /// When the lease was last looked at and how much time until its self-limit was left. Never too long:
    /// a renewal since then only adds.
    seen: (Moment, Duration),
    /// The deadline that the guard knows.
    told: Duration,
    leader: Option<LeaderEnd>,
    ending: Option<Ending>,
}

impl Supervisor {
    /// Call it before the command starts, so that its end is not missed.
    pub(crate) fn new(
        lease: Arc<LeaseHandle>,
        verdict: Arc<Verdict>,
        timing: Timing,
    ) -> Result<Self, Failure> {
        let children = signal(SignalKind::child())
            .map_err(|error| Failure::io("cannot listen to the command's end", &error))?;
        let clock = SystemClock::new();
        let left = lease.remaining().unwrap_or_default();
        Ok(Self {
            seen: (clock.now(), left),
            told: Duration::ZERO,
            lease,
            verdict,
            timing,
            clock,
            children,
            leader: None,
            ending: None,
        })
    }

    /// Returns when the command and its group have ended.
    pub(crate) async fn supervise(
        &mut self,
        group: &mut Group,
        guard: &mut Guard,
        terminal: Option<&Terminal>,
        server: &mut Server,
        signals: &mut ForwardedSignals,
    ) -> WorkEnd {
        let mut lost = pin!(self.lease.lost());
        let verdict = self.verdict.clone();
        self.look_at_the_lease(guard);
        loop {
            let pause = match &self.ending {
                Some(_) => END_PAUSE,
                None => self.timing.tick(),
            };
            tokio::select! {
                () = server.serve() => {}
                _ = self.children.recv() => {
                    guard.revive();
                    self.look_at_the_leader(group, terminal);
                }
                signal = signals.next() => group.signal(signal),
                reason = &mut lost, if self.ending.is_none() => {
                    let grace = match self.lease.status() {
                        LeaseStatus::Lost => self.timing.grace,
                        _ => self.timing.grace_when_fenced(),
                    };
                    self.end_the_work(group, reason.to_string(), grace);
                }
                rejection = verdict.passed(), if self.ending.is_none() => {
                    let reason = format!("a write was rejected, {rejection}");
                    self.end_the_work(group, reason, self.timing.grace_when_fenced());
                }
                () = sleep(pause) => {
                    self.look_at_the_lease(guard);
                    self.kill_if_due(group);
                }
            }
            if let Some(leader) = self.leader
                && self.may_stop_waiting(group)
            {
                return self.clear(group, leader).await;
            }
        }
    }

    /// Tells the guard how long it may let the group live if we say nothing more.
    fn look_at_the_lease(&mut self, guard: &mut Guard) {
        let now = self.clock.now();
        let boot_now = boot_time();
        let Some(left) = self.lease.remaining() else {
            return;
        };
        self.seen = (now, left);
        // Behind our own KILL, before the ttl is over.
        let deadline = boot_now + left + self.timing.grace + self.timing.reserve / 2;
        if deadline.saturating_sub(self.told) > NEWS_MIN {
            self.told = deadline;
            guard.set_deadline(deadline);
        }
    }

    fn look_at_the_leader(&mut self, group: &Group, terminal: Option<&Terminal>) {
        match (group.leader_news(), terminal) {
            (Ok(Some(LeaderNews::Ended(end))), _) => self.leader = Some(end),
            (Ok(Some(LeaderNews::Stopped(signal))), Some(terminal)) => {
                terminal.command_was_stopped(group, signal);
            }
            (Ok(Some(LeaderNews::Stopped(_)) | None), _) => {}
            (Err(error), _) => {
                tracing::error!(%error, "cannot wait for the command; its group will be killed");
                self.leader = Some(LeaderEnd::Unknown);
            }
        }
    }

    /// TERM now, KILL after the grace.
    fn end_the_work(&mut self, group: &Group, reason: String, grace: Duration) {
        self.ending = Some(Ending {
            reason,
            since: self.clock.now(),
            grace,
            killed: false,
        });
        group.signal(Signal::TERM);
        group.signal(Signal::CONT); // a stopped process hears TERM only when it goes on
        self.kill_if_due(group);
    }

    fn kill_if_due(&mut self, group: &Group) {
        let now = self.clock.now();
        let (seen, left) = self.seen;
        let is_at_limit = now.since(seen) >= left + self.timing.grace;
        if let Some(ending) = &mut self.ending
            && !ending.killed
            && (is_at_limit || now.since(ending.since) >= ending.grace)
        {
            ending.killed = true;
            group.signal(Signal::KILL);
        }
    }

    /// After a loss the other members have their grace too, even if the command itself has ended.
    fn may_stop_waiting(&self, group: &Group) -> bool {
        self.ending
            .as_ref()
            .is_none_or(|ending| ending.killed || group.is_gone())
    }

    /// The command has ended. Whoever is left in its group must not outlive the lease.
    async fn clear(&mut self, group: &mut Group, leader: LeaderEnd) -> WorkEnd {
        // While the leader is a zombie its id cannot name another group.
        group.signal(Signal::KILL);
        group.reap_leader();
        let mut is_gone = group.is_gone();
        for _ in 0..KILLS_MAX {
            if is_gone {
                break;
            }
            group.signal(Signal::KILL);
            sleep(END_PAUSE).await;
            is_gone = group.is_gone();
        }
        let lost = match &self.ending {
            Some(ending) => Some(ending.reason.clone()),
            None => self.lease.ended_reason().map(|reason| reason.to_string()),
        };
        let killed_by_guard =
            lost.is_some() && leader == LeaderEnd::Signaled(Signal::KILL.as_raw());
        WorkEnd {
            leader,
            lost,
            killed: self.ending.as_ref().is_some_and(|ending| ending.killed) || killed_by_guard,
            is_gone,
        }
    }
}
