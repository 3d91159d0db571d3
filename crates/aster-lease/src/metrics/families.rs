//! The metrics themselves. `docs/metrics.md` describes each; a test compares the two.

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::{Registry, Unit};

use super::{Answer, Event};

/// The upper bounds of the buckets of a transition: 10 µs, a memory store, to about 10 s, a store
/// that is in trouble.
const TRANSITION_SECONDS_FIRST: f64 = 0.000_01;
const TRANSITION_BUCKETS: u16 = 11;
/// Those of a wait: 1 ms to about a day.
const WAIT_SECONDS_FIRST: f64 = 0.001;
const WAIT_BUCKETS: u16 = 14;
const SECONDS_FACTOR: f64 = 4.0;
/// Those of a batch: 1 to 4096 renewals.
const BATCH_BUCKETS: u16 = 13;

/// The labels that are there from the start, so that the first event is seen as an increase.
const HAND_OVERS: [&str; 2] = ["freed", "expired"];
const RENEWALS: [&str; 3] = ["ok", "retried", "denied"];
const ENDED: [&str; 9] = [
    "released",
    "dropped",
    "superseded",
    "revoked",
    "expired",
    "unauthorized",
    "unreachable",
    "store_refused",
    "runtime_stopped",
];
const REJECTIONS: [&str; 7] = [
    "wrong_authority",
    "wrong_resource",
    "stale_epoch",
    "future_epoch",
    "not_held",
    "not_holder",
    "reentrant",
];

/// Labels as pairs of static words: a name of a resource cannot become one by mistake.
type Labels<const N: usize> = [(&'static str, &'static str); N];

#[derive(Debug)]
pub(super) struct Families {
    transitions: Family<Labels<3>, Counter>,
    transition_seconds: Family<Labels<1>, Histogram>,
    wait_seconds: Histogram,
    rejections: Family<Labels<1>, Counter>,
    future_epochs: Counter,
    waiters: Gauge,
    hand_overs: Family<Labels<1>, Counter>,
    claims_lapsed: Counter,
    leases_held: Gauge,
    leases_ended: Family<Labels<1>, Counter>,
    renewals: Family<Labels<1>, Counter>,
    renewal_batch_size: Histogram,
}

impl Families {
    pub(super) fn register(registry: &mut Registry) -> Self {
        let families = Self {
            transitions: Family::default(),
            transition_seconds: Family::new_with_constructor(|| {
                buckets(TRANSITION_SECONDS_FIRST, SECONDS_FACTOR, TRANSITION_BUCKETS)
            }),
            wait_seconds: buckets(WAIT_SECONDS_FIRST, SECONDS_FACTOR, WAIT_BUCKETS),
            rejections: Family::default(),
            future_epochs: Counter::default(),
            waiters: Gauge::default(),
            hand_overs: Family::default(),
            claims_lapsed: Counter::default(),
            leases_held: Gauge::default(),
            leases_ended: Family::default(),
            renewals: Family::default(),
            renewal_batch_size: buckets(1.0, 2.0, BATCH_BUCKETS),
        };
        start_at_zero(&families.rejections, "reason", &REJECTIONS);
        start_at_zero(&families.hand_overs, "cause", &HAND_OVERS);
        start_at_zero(&families.leases_ended, "reason", &ENDED);
        start_at_zero(&families.renewals, "result", &RENEWALS);
        families.register_store(registry);
        families.register_engine(registry);
        families
    }

    fn register_store(&self, registry: &mut Registry) {
        let aster = registry.sub_registry_with_prefix("aster");
        aster.register(
            "transitions",
            "Operations and register writes that a store answered, by outcome and reason",
            self.transitions.clone(),
        );
        aster.register_with_unit(
            "transition",
            "How long a store took to answer an operation",
            Unit::Seconds,
            self.transition_seconds.clone(),
        );
        aster.register_with_unit(
            "wait",
            "How long those who were ready to queue waited for their answer",
            Unit::Seconds,
            self.wait_seconds.clone(),
        );
        aster.register(
            "rejections",
            "Protected writes that the fence rule refused, by reason",
            self.rejections.clone(),
        );
        aster.register(
            "future_epochs",
            "Fences from epochs that were never issued: forged, or the store went back in time",
            self.future_epochs.clone(),
        );
        aster.register(
            "waiters",
            "Who stands in a queue of this process now",
            self.waiters.clone(),
        );
        aster.register(
            "hand_overs",
            "Grants to the first of a queue, by why the resource could be had",
            self.hand_overs.clone(),
        );
        aster.register(
            "claims_lapsed",
            "Grants to one who had waited that went to somebody else because nobody claimed them",
            self.claims_lapsed.clone(),
        );
    }

    fn register_engine(&self, registry: &mut Registry) {
        let aster = registry.sub_registry_with_prefix("aster");
        aster.register(
            "leases_held",
            "Leases that handles of this process hold now",
            self.leases_held.clone(),
        );
        aster.register(
            "leases_ended",
            "Leases of this process that ended, by reason",
            self.leases_ended.clone(),
        );
        aster.register(
            "renewals",
            "Renewals that this process sent, by result",
            self.renewals.clone(),
        );
        aster.register(
            "renewal_batch_size",
            "How many renewals travelled in one call",
            self.renewal_batch_size.clone(),
        );
    }

    pub(super) fn record(&self, event: Event) {
        match event {
            Event::Transition { op, answer, took } => {
                self.answered(op, &answer);
                self.transition_seconds
                    .get_or_create(&[("op", op)])
                    .observe(took.as_secs_f64());
            }
            Event::Waited { answer, took } => {
                self.answered("acquire_wait", &answer);
                self.wait_seconds.observe(took.as_secs_f64());
            }
            Event::Rejected {
                reason,
                from_the_future,
            } => {
                self.rejections.get_or_create(&[("reason", reason)]).inc();
                if from_the_future {
                    self.future_epochs.inc();
                }
            }
            Event::Waiters(change) => {
                self.waiters.inc_by(change);
            }
            Event::HandedOver(cause) => {
                self.hand_overs.get_or_create(&[("cause", cause)]).inc();
            }
            Event::ClaimLapsed => {
                self.claims_lapsed.inc();
            }
            Event::LeaseHeld => {
                self.leases_held.inc();
            }
            Event::LeaseEnded(reason) => {
                self.leases_held.dec();
                self.leases_ended.get_or_create(&[("reason", reason)]).inc();
            }
            Event::Renewed(result) => {
                self.renewals.get_or_create(&[("result", result)]).inc();
            }
            #[allow(
                clippy::cast_precision_loss,
                reason = "a batch has nowhere near 2^52 renewals"
            )]
            Event::RenewalBatch(renewals) => self.renewal_batch_size.observe(renewals as f64),
        }
    }

    fn answered(&self, op: &'static str, answer: &Answer) {
        let (outcome, reason) = match *answer {
            Answer::Ok => ("ok", ""),
            Answer::Denied(reason) => ("denied", reason),
            Answer::Error(kind) => ("error", kind),
        };
        self.transitions
            .get_or_create(&[("op", op), ("outcome", outcome), ("reason", reason)])
            .inc();
    }
}

fn start_at_zero(
    family: &Family<Labels<1>, Counter>,
    label: &'static str,
    values: &[&'static str],
) {
    for value in values {
        drop(family.get_or_create(&[(label, *value)]));
    }
}

fn buckets(first: f64, factor: f64, count: u16) -> Histogram {
    Histogram::new(exponential_buckets(first, factor, count))
}
