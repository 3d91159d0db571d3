//! What becomes of a message on its way.

use std::collections::BTreeMap;

use crate::random::Random;
use crate::tally::Tally;
use crate::weather::Conditions;

/// The link between one machine and the serializer.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Link {
    /// Nothing gets from the machine to the serializer before this.
    pub(crate) up_cut_until_ms: u64,
    /// Nothing gets from the serializer to the machine before this.
    pub(crate) down_cut_until_ms: u64,
}

/// What became of messages, and how often.
#[derive(Debug, Default)]
pub(crate) struct Fates {
    lost: u64,
    lost_in_a_cut: u64,
    after_a_cut: u64,
    doubled: u64,
    slow: u64,
    overtook: u64,
}

impl Fates {
    pub(crate) fn tell(&self, tally: &mut Tally) {
        for (fate, times) in [
            ("lost", self.lost),
            ("lost in a cut link", self.lost_in_a_cut),
            ("kept until a cut link was whole", self.after_a_cut),
            ("doubled", self.doubled),
            ("slow", self.slow),
            ("overtook an earlier one", self.overtook),
        ] {
            tally.count_up(&format!("message: {fate}"), times);
        }
    }
}

pub(crate) struct Network {
    random: Random,
    /// When the last message from one host to another arrives.
    latest_ms: BTreeMap<(usize, usize), u64>,
    pub(crate) fates: Fates,
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
            latest_ms: BTreeMap::new(),
            fates: Fates::default(),
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
        (from, to): (usize, usize),
        at_ms: u64,
        cut_until_ms: u64,
        may_double: bool,
    ) -> Vec<u64> {
        let (random, fates) = (&mut self.random, &mut self.fates);
        let mut sent_at_ms = at_ms;
        if cut_until_ms > at_ms {
            // Some of it waits in a buffer, and is sent again when the link is whole.
            if random.chance(700) {
                fates.lost_in_a_cut += 1;
                return Vec::new();
            }
            fates.after_a_cut += 1;
            sent_at_ms = cut_until_ms;
        }
        if random.chance(conditions.message_lost) {
            fates.lost += 1;
            return Vec::new();
        }
        let is_doubled = may_double && random.chance(conditions.message_doubled);
        fates.doubled += u64::from(is_doubled);
        let mut arrivals = Vec::new();
        for _ in 0..1 + u64::from(is_doubled) {
            let jitter = random.below(self.latency_ms * JITTER_LATENCIES);
            let slow = match random.chance(conditions.message_slow) {
                true => random.below(conditions.slow_ms_max),
                false => 0,
            };
            fates.slow += u64::from(slow > 0);
            let arrives_ms = sent_at_ms + self.latency_ms + jitter + slow;
            let latest_ms = self.latest_ms.entry((from, to)).or_default();
            fates.overtook += u64::from(arrives_ms < *latest_ms);
            *latest_ms = arrives_ms.max(*latest_ms);
            arrivals.push(arrives_ms);
        }
        arrivals
    }
}
