//! What a seed decides before anything happens: how large the world is, and what goes wrong in it.

use std::time::Duration;

use aster_core::ResourceName;
use aster_lease::LeaseOptions;

use crate::random::Random;

/// How many names each of the rarely used resources may have.
const RARE_NAMES: u64 = 40;

/// What may happen in a world. A seed leaves some of it out, so that what remains is not drowned.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Mischief {
    pub(crate) cuts: bool,
    pub(crate) stops: bool,
    pub(crate) suspensions: bool,
    pub(crate) kills: bool,
    pub(crate) restarts: bool,
    pub(crate) outages: bool,
    pub(crate) revokes: bool,
    pub(crate) wall_jumps: bool,
    pub(crate) bad_network: bool,
    pub(crate) bad_store: bool,
    pub(crate) panics: bool,
}

#[derive(Debug, Clone)]
pub(crate) struct Plan {
    pub(crate) machines: usize,
    pub(crate) workers: usize,
    /// Resources that everybody wants.
    pub(crate) hot: Vec<ResourceName>,
    pub(crate) latency_ms: u64,
    pub(crate) faults_ms: u64,
    pub(crate) fault_pause_ms: u64,
    pub(crate) batch_max: usize,
    pub(crate) idle_retention: Duration,
    pub(crate) idle_rows_max: usize,
    pub(crate) claim_time: Duration,
    pub(crate) waiters_max: usize,
    pub(crate) ttls_ms: Vec<u64>,
    /// The world looks at every fence right after others were granted. Looking ends a lease whose time
    /// is over, so without it the engine's own timers have to notice.
    pub(crate) looks_at_fences: bool,
    pub(crate) mischief: Mischief,
}

impl Plan {
    pub(crate) fn new(random: &mut Random) -> Self {
        let machines = random.between(3, 7);
        let workers = random.between(2, 6);
        let resources = random.between(1, 4);
        let hot =
            (0..resources).filter_map(|number| ResourceName::new(format!("hot/{number}")).ok());
        Self {
            machines: usize::try_from(machines).unwrap_or(3),
            workers: usize::try_from(workers).unwrap_or(2),
            hot: hot.collect(),
            latency_ms: random.pick(&[2, 4, 8]),
            faults_ms: random.between(20_000, 60_000),
            fault_pause_ms: random.pick(&[300, 1_000, 3_000]),
            batch_max: random.pick(&[1, 2, 16, 512]),
            idle_retention: Duration::from_millis(random.pick(&[0, 2_000, 20_000, 3_600_000])),
            idle_rows_max: random.pick(&[0, 256, 128 * 1024]),
            claim_time: Duration::from_millis(random.pick(&[200, 1_000, 2_000])),
            waiters_max: random.pick(&[2, 8, 10_000]),
            ttls_ms: (0..2)
                .map(|_| random.pick(&[500, 1_000, 2_000, 5_000, 9_000]))
                .collect(),
            looks_at_fences: random.chance(500),
            mischief: Mischief {
                cuts: random.chance(600),
                stops: random.chance(600),
                suspensions: random.chance(500),
                kills: random.chance(500),
                restarts: random.chance(500),
                outages: random.chance(300),
                revokes: random.chance(600),
                wall_jumps: random.chance(500),
                bad_network: random.chance(700),
                bad_store: random.chance(600),
                panics: random.chance(300),
            },
        }
    }

    /// Where one worker goes next.
    pub(crate) fn resource(&self, random: &mut Random, serial: u64) -> ResourceName {
        let name = match random.below(100) {
            0..=9 => ResourceName::new(format!("once/{serial}")).ok(),
            10..=19 => ResourceName::new(format!("rare/{}", random.below(RARE_NAMES))).ok(),
            _ => None,
        };
        name.unwrap_or_else(|| {
            let at = random.below(self.hot.len() as u64);
            self.hot[usize::try_from(at).unwrap_or(0)].clone()
        })
    }

    /// Terms that a worker asks for; now and then the tightest that are allowed.
    pub(crate) fn options(&self, random: &mut Random) -> LeaseOptions {
        let ttl = Duration::from_millis(random.pick(&self.ttls_ms));
        let mut options = LeaseOptions::with_ttl(ttl);
        if random.chance(400) {
            options.holder_margin = ttl / 1_000;
        }
        options
    }
}
