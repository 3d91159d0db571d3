//! What becomes of a message on its way.

use crate::random::Random;
use crate::weather::Conditions;

/// The link between one machine and the serializer.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Link {
    /// Nothing gets from the machine to the serializer before this.
    pub(crate) up_cut_until_ms: u64,
    /// Nothing gets from the serializer to the machine before this.
    pub(crate) down_cut_until_ms: u64,
}

pub(crate) struct Network {
    random: Random,
    /// No message is faster. While the world moves by this much, nobody can hear of what another does.
    latency_ms: u64,
    pub(crate) links: Vec<Link>,
}

/// How much the fastest and the slowest message of a calm network differ, in latencies.
const JITTER_LATENCIES: u64 = 3;

impl Network {
    pub(crate) fn new(random: Random, latency_ms: u64, machines: usize) -> Self {
        Self {
            random,
            latency_ms,
            links: vec![Link::default(); machines],
        }
    }

    pub(crate) fn heal(&mut self) {
        self.links.fill(Link::default());
    }

    /// When a message that is sent at `at_ms` arrives: never, once or twice.
    pub(crate) fn arrivals(
        &mut self,
        conditions: &Conditions,
        at_ms: u64,
        cut_until_ms: u64,
        may_double: bool,
    ) -> Vec<u64> {
        let random = &mut self.random;
        let mut sent_at_ms = at_ms;
        if cut_until_ms > at_ms {
            // Some of it waits in a buffer, and is sent again when the link is whole.
            if random.chance(700) {
                return Vec::new();
            }
            sent_at_ms = cut_until_ms;
        }
        if random.chance(conditions.message_lost) {
            return Vec::new();
        }
        let copies = 1 + u64::from(may_double && random.chance(conditions.message_doubled));
        (0..copies)
            .map(|_| {
                let jitter = random.below(self.latency_ms * JITTER_LATENCIES);
                let slow = match random.chance(conditions.message_slow) {
                    true => random.below(conditions.slow_ms_max),
                    false => 0,
                };
                sent_at_ms + self.latency_ms + jitter + slow
            })
            .collect()
    }
}
