//! Leases that join the renewal schedule and leave it, calls in flight, and the end of its task.

use std::time::Duration;

use shuttle::future::block_on;
use stand_in::{point, world};

use super::super::lease::{AcquireOutcome, EndedReason, LeaseHandle, LeaseStatus};
use super::engine::{Engine, LEASE_TTL};
use super::{LONGEST, RESOURCE, join, nothing_is_left, sleep, thread, until_idle};
use crate::explore::Scenario;
use crate::scheduler::Time;

/// Held for long enough to have been renewed several times, and only by that.
fn stays_held(lease: &LeaseHandle) {
    sleep(LEASE_TTL * 2);
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
    time: Time::Patient,
    longest: LONGEST,
    run: || {
        let engine = Engine::new();
        let first = engine.lease("first", "a", LEASE_TTL);
        let leaving = thread(move || drop(first));
        let second = engine.lease("second", "a", LEASE_TTL);
        join(leaving);
        stays_held(&second);
        give_back(second);
        nothing_is_left();
    },
};

/// A lease leaves while its renewal is in flight, and another takes its place in the table.
pub(super) const TAKES_ITS_PLACE: Scenario = Scenario {
    name: "place-taken-while-in-flight",
    rule: "the answer to a renewal is for the lease that asked, whoever sits in its place now",
    time: Time::Patient,
    longest: LONGEST,
    run: || {
        let engine = Engine::new();
        let first = engine.recorded("a");
        // Keeps the table from being emptied.
        let other = engine.lease("other", "a", LEASE_TTL);
        let moving = {
            let engine = engine.clone();
            thread(move || {
                engine.until_renewal();
                drop(first);
                engine.lease("second", "a", LEASE_TTL)
            })
        };
        let second = join(moving);
        stays_held(&second);
        assert_eq!(other.status(), LeaseStatus::Held, "BROKEN the others stay");
        give_back(second);
        give_back(other);
        nothing_is_left();
    },
};

/// Leases of one serializer are acquired by several threads at once, and some go at once.
pub(super) const ONE_SCHEDULE: Scenario = Scenario {
    name: "one-schedule",
    rule: "the leases of one serializer share one task, however they come and go",
    time: Time::Patient,
    longest: LONGEST,
    run: || {
        let engine = Engine::new();
        let threads = ["b", "c"].map(|resource| {
            let engine = engine.clone();
            thread(move || drop(engine.lease(resource, "a", LEASE_TTL)))
        });
        let first = engine.lease("first", "a", LEASE_TTL);
        for thread in threads {
            join(thread);
        }
        let second = engine.lease("second", "a", LEASE_TTL);
        until_idle();
        let tasks = world::tasks();
        assert_eq!(
            tasks, 1,
            "BROKEN one task renews for all: there are {tasks}"
        );
        stays_held(&first);
        stays_held(&second);
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
    time: Time::Patient,
    longest: LONGEST,
    run: || {
        let engine = Engine::new();
        let long = thread({
            let engine = engine.clone();
            move || engine.lease("long", "a", Duration::from_secs(3600))
        });
        let short = engine.lease("short", "a", SHORT_TTL);
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
    time: Time::Patient,
    longest: LONGEST,
    run: || {
        let engine = Engine::new();
        let first = engine.lease("first", "a", LEASE_TTL);
        let stopping = thread(world::stop_runtime);
        let second = block_on(engine.builder("second", "a", LEASE_TTL).acquire());
        join(stopping);
        until_idle();
        let mut leases = vec![first];
        match second {
            Ok(AcquireOutcome::Granted(second)) => leases.push(second),
            other => panic!("BROKEN the store has answered: {other:?}"),
        }
        for lease in leases {
            assert_eq!(
                lease.ended_reason(),
                Some(EndedReason::RuntimeStopped),
                "BROKEN a lease that nobody renews has ended"
            );
        }
        nothing_is_left();
    },
};

/// Leases come and go while others are renewed, in batches.
pub(super) const COME_AND_GO: Scenario = Scenario {
    name: "come-and-go",
    rule: "leases that come and go leave every other one renewed",
    time: Time::Patient,
    longest: LONGEST,
    run: || {
        let engine = Engine::new();
        let stays = engine.recorded("a");
        let threads = ["b", "c", "d"].map(|resource| {
            let engine = engine.clone();
            thread(move || {
                engine.until_renewal();
                let lease = engine.lease(resource, "a", LEASE_TTL);
                // About when the others are renewed, and with them.
                sleep(LEASE_TTL / 3);
                point();
                assert!(
                    lease.fence().is_some(),
                    "BROKEN a lease that is held is renewed"
                );
                give_back(lease);
            })
        });
        for thread in threads {
            join(thread);
        }
        stays_held(&stays);
        assert_eq!(stays.resource().to_string(), RESOURCE);
        give_back(stays);
        nothing_is_left();
    },
};
