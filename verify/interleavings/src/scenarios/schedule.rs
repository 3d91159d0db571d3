//! Leases that join the renewal schedule and leave it, calls in flight, and the end of its task.

use std::time::Duration;

use shuttle::future::block_on;
use stand_in::world;

use super::super::lease::{EndedReason, LeaseHandle, LeaseOptions, LeaseStatus};
use super::engine::{Engine, LEASE_TTL, renewed_every_second};
use super::{LONGEST, RESOURCE, join, nothing_is_left, sleep, thread, until_idle};
use crate::explore::Scenario;

/// Held for long enough to have been renewed several times, and only by that.
fn stays_held(lease: &LeaseHandle, ttl: Duration) {
    sleep(ttl * 2);
    assert_eq!(
        (lease.status(), lease.ended_reason()),
        (LeaseStatus::Held, None),
        "BROKEN a lease that is held is renewed"
    );
    assert!(
        lease.fence().is_some(),
        "BROKEN a lease that is held is renewed"
    );
}

fn give_back(lease: LeaseHandle) {
    let released = block_on(lease.release());
    assert!(
        released.is_ok(),
        "BROKEN a release is confirmed: {released:?}"
    );
}

/// The last lease leaves, so the task ends, while another joins.
pub(super) const LAST_LEAVES: Scenario = Scenario {
    name: "join-while-the-last-leaves",
    rule: "a lease that joins while the schedule's task ends is renewed",
    longest: LONGEST,
    run: || {
        let engine = Engine::near();
        let first = engine.lease("first", renewed_every_second());
        let leaving = thread(move || drop(first));
        let second = engine.lease("second", renewed_every_second());
        join(leaving);
        stays_held(&second, LEASE_TTL);
        give_back(second);
        nothing_is_left();
    },
};

/// A lease is released and its handle dropped, which leaves twice, while another joins.
pub(super) const LEAVES_TWICE: Scenario = Scenario {
    name: "leaves-twice",
    rule: "a lease that leaves takes no other one along",
    longest: LONGEST,
    run: || {
        let engine = Engine::near();
        let first = engine.lease("first", renewed_every_second());
        // Keeps the table from being emptied.
        let other = engine.lease("other", renewed_every_second());
        let leaving = thread(move || give_back(first));
        let second = engine.lease("second", renewed_every_second());
        join(leaving);
        stays_held(&second, LEASE_TTL);
        stays_held(&other, Duration::ZERO);
        give_back(second);
        give_back(other);
        nothing_is_left();
    },
};

/// A lease leaves while its renewal is in flight, and another takes its place in the table.
pub(super) const TAKES_ITS_PLACE: Scenario = Scenario {
    name: "place-taken-while-in-flight",
    rule: "the answer to a renewal is for the lease that asked, whoever sits in its place now",
    longest: LONGEST,
    run: || {
        let engine = Engine::near();
        let first = engine.recorded();
        takes_its_place(&engine, first, renewed_every_second());
    },
};

/// Renewed so often that all renewals travel together.
const TOGETHER: LeaseOptions = LeaseOptions {
    ttl: Duration::from_millis(100),
    renew_interval: Duration::from_millis(4),
    holder_margin: Duration::from_millis(10),
};

/// The same with leases whose renewals are in one batch.
pub(super) const TAKES_ITS_PLACE_IN_A_BATCH: Scenario = Scenario {
    name: "place-taken-while-a-batch-is-in-flight",
    rule: "the answers to a batch are for the leases that asked, whoever sits in their places now",
    longest: LONGEST,
    run: || {
        let engine = Engine::near();
        let first = engine.lease(RESOURCE, TOGETHER);
        takes_its_place(&engine, first, TOGETHER);
    },
};

fn takes_its_place(engine: &Engine, first: LeaseHandle, options: LeaseOptions) {
    // Keeps the table from being emptied.
    let other = engine.lease("other", options);
    let moving = {
        let engine = engine.clone();
        thread(move || {
            engine.until_renewal();
            drop(first);
            engine.lease("second", options)
        })
    };
    let second = join(moving);
    stays_held(&second, options.ttl);
    stays_held(&other, Duration::ZERO);
    give_back(second);
    give_back(other);
    nothing_is_left();
}

/// Leases of one serializer are acquired by several threads at once, and some go at once.
pub(super) const ONE_SCHEDULE: Scenario = Scenario {
    name: "one-schedule",
    rule: "the leases of one serializer share one task, however they come and go",
    longest: LONGEST,
    run: || {
        let engine = Engine::near();
        let threads = ["b", "c"].map(|resource| {
            let engine = engine.clone();
            thread(move || drop(engine.lease(resource, renewed_every_second())))
        });
        let first = engine.lease("first", renewed_every_second());
        for thread in threads {
            join(thread);
        }
        let second = engine.lease("second", renewed_every_second());
        until_idle();
        let tasks = world::tasks();
        assert_eq!(
            tasks, 1,
            "BROKEN one task renews for all: there are {tasks}"
        );
        stays_held(&first, LEASE_TTL);
        stays_held(&second, LEASE_TTL);
        give_back(first);
        give_back(second);
        nothing_is_left();
    },
};

/// Much shorter than the time for which the task sleeps.
const SHORT_TTL: Duration = Duration::from_millis(300);

/// A lease that is to be renewed soon joins a task that sleeps for longer.
pub(super) const JOINS_A_SLEEPER: Scenario = Scenario {
    name: "joins-a-sleeping-task",
    rule: "a lease that joins wakes a task that would sleep past its time",
    longest: LONGEST,
    run: || {
        let engine = Engine::near();
        let long = thread({
            let engine = engine.clone();
            move || engine.lease("long", LeaseOptions::with_ttl(Duration::from_secs(3600)))
        });
        let short = engine.lease("short", LeaseOptions::with_ttl(SHORT_TTL));
        let long = join(long);
        sleep(SHORT_TTL * 2);
        assert_eq!(
            short.status(),
            LeaseStatus::Held,
            "BROKEN a lease that is held is renewed"
        );
        give_back(short);
        assert_eq!(long.status(), LeaseStatus::Held, "BROKEN the others stay");
        give_back(long);
        nothing_is_left();
    },
};

/// The runtime stops while a lease joins.
pub(super) const RUNTIME_STOPS: Scenario = Scenario {
    name: "runtime-stops",
    rule: "when the runtime stops every lease ends at once, and its holder is told",
    longest: LONGEST,
    run: || {
        let engine = Engine::near();
        let first = engine.lease("first", renewed_every_second());
        let stopping = thread(world::stop_runtime);
        let second = engine.lease("second", renewed_every_second());
        join(stopping);
        until_idle();
        for lease in [first, second] {
            assert_eq!(
                lease.ended_reason(),
                Some(EndedReason::RuntimeStopped),
                "BROKEN a lease that nobody renews has ended"
            );
        }
        nothing_is_left();
    },
};
