//! One machine: a runtime with a paused clock of its own, an inbox, and whether it runs at all.

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Waker};
use std::time::Duration;

use tokio::runtime::{Builder, Runtime};
use tokio::time::Instant;

use crate::clock::MachineClock;
use crate::wire::{Desk, Outgoing};

/// Whether a machine runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pace {
    Runs,
    /// Its processes are stopped; its clocks go on.
    Stopped {
        until_ms: u64,
    },
    /// It is suspended; only the clock that counts suspension goes on.
    Suspended {
        since_ms: u64,
        until_ms: u64,
    },
    /// Its process was killed.
    Down {
        until_ms: u64,
    },
}

/// A message that arrives at a machine.
#[derive(Debug)]
pub(crate) struct Letter {
    pub(crate) from: usize,
    pub(crate) what: Outgoing,
}

pub(crate) struct Machine {
    pub(crate) pace: Pace,
    pub(crate) clock: Arc<MachineClock>,
    pub(crate) desk: Arc<Desk>,
    runtime: Runtime,
    origin: Instant,
    /// The runtime's origin in world time without suspension.
    origin_ms: u64,
    suspended_ms: u64,
    inbox: BTreeMap<(u64, u64), Letter>,
}

impl Machine {
    pub(crate) fn new(clock: Arc<MachineClock>, at_ms: u64) -> std::io::Result<Self> {
        let runtime = build()?;
        let origin = begin(&runtime, &clock, at_ms);
        Ok(Self {
            pace: Pace::Runs,
            clock,
            desk: Arc::default(),
            runtime,
            origin,
            origin_ms: at_ms,
            suspended_ms: 0,
            inbox: BTreeMap::new(),
        })
    }

    pub(crate) fn runtime(&self) -> &Runtime {
        &self.runtime
    }

    pub(crate) fn runs(&self) -> bool {
        self.pace == Pace::Runs
    }

    pub(crate) fn post(&mut self, at_ms: u64, number: u64, letter: Letter) {
        self.inbox.insert((at_ms, number), letter);
    }

    pub(crate) fn forget_letters(&mut self) -> Vec<Letter> {
        std::mem::take(&mut self.inbox).into_values().collect()
    }

    /// Runs the machine until `until_ms` in world time, handing over letters when they arrive.
    pub(crate) fn run(&mut self, until_ms: u64, mut open: impl FnMut(&Runtime, Letter)) {
        while let Some(first) = self.inbox.first_entry()
            && first.key().0 < until_ms
        {
            let (at_ms, letter) = (first.key().0, first.remove());
            self.sleep_until(at_ms);
            open(&self.runtime, letter);
        }
        self.sleep_until(until_ms);
    }

    fn sleep_until(&self, world_ms: u64) {
        let awake_ms = world_ms
            .saturating_sub(self.suspended_ms)
            .saturating_sub(self.origin_ms);
        let deadline = self.origin + Duration::from_millis(awake_ms);
        self.runtime
            .block_on(async { tokio::time::sleep_until(deadline).await });
    }

    /// Goes on at `now_ms` after it stood still: everything that was due is due at once.
    pub(crate) fn go_on(&mut self, now_ms: u64) {
        self.catch_up(now_ms);
        self.pace = Pace::Runs;
    }

    /// Ends everything that runs here, as a kill does, and boots for the next start.
    pub(crate) fn kill(&mut self, now_ms: u64, until_ms: u64) -> std::io::Result<()> {
        self.catch_up(now_ms);
        let before = std::mem::replace(&mut self.runtime, build()?);
        // What runs while its tasks are dropped still reads their clock.
        drop(before);
        self.origin = begin(&self.runtime, &self.clock, now_ms);
        self.origin_ms = now_ms - self.suspended_ms;
        self.pace = Pace::Down { until_ms };
        Ok(())
    }

    /// The monotonic clock of a machine whose processes were stopped has gone on.
    fn catch_up(&mut self, now_ms: u64) {
        if let Pace::Suspended { since_ms, .. } = self.pace {
            let ms = now_ms - since_ms;
            self.suspended_ms += ms;
            self.clock.was_suspended(ms);
        }
        let _enter = self.runtime.enter();
        let behind = now_ms.saturating_sub(self.clock.world_ms());
        if behind > 0 {
            // Its first poll moves the clock. Nothing else runs: a process that is killed while it is
            // stopped does nothing more.
            let advance = pin!(tokio::time::advance(Duration::from_millis(behind)));
            let _yielded = advance.poll(&mut Context::from_waker(Waker::noop()));
        }
    }

    /// How many tasks are alive here.
    pub(crate) fn tasks(&self) -> usize {
        self.runtime.metrics().num_alive_tasks()
    }
}

fn build() -> std::io::Result<Runtime> {
    Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
}

#[allow(
    clippy::disallowed_methods,
    reason = "the origin of a paused clock, which follows from nothing outside"
)]
fn begin(runtime: &Runtime, clock: &MachineClock, at_ms: u64) -> Instant {
    let _enter = runtime.enter();
    clock.start(at_ms);
    Instant::now()
}
