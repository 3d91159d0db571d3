//! Protected closures, releases and register writes on one row, and on rows behind the same lock.

use super::{LONGEST, Place, join, thread};
use crate::explore::Scenario;
use crate::scheduler::Time;

/// Two closures of one row, and one of the row beside it.
pub(super) const CLOSURES_EXCLUDE: Scenario = Scenario {
    name: "closures-exclude",
    rule: "closures of one resource exclude each other, and each of them runs",
    time: Time::Patient,
    preemptions: 2,
    longest: LONGEST,
    run: closures_exclude,
};

fn closures_exclude() {
    let place = Place::new();
    let fence = place.acquire("a");
    let writers: Vec<_> = (0..3)
        .map(|_| {
            let (place, fence) = (place.clone(), fence.clone());
            thread(move || {
                assert!(place.write(&fence), "BROKEN the owner may write");
            })
        })
        .collect();
    for writer in writers {
        join(writer);
    }
    assert_eq!(place.record.writes(), 3);
}

/// A writer, its own release, and the next owner, who writes as well.
pub(super) const RELEASE_WAITS: Scenario = Scenario {
    name: "release-waits-for-the-closure",
    rule: "no write by an ended owner, and a release waits for the closure that runs",
    time: Time::Patient,
    preemptions: 2,
    longest: LONGEST,
    run: release_waits,
};

fn release_waits() {
    let place = Place::new();
    let fence = place.acquire("a");
    let writer = {
        let (place, fence) = (place.clone(), fence.clone());
        thread(move || {
            place.write(&fence);
            place.write(&fence);
        })
    };
    let next = {
        let (place, fence) = (place.clone(), fence.clone());
        thread(move || {
            place.release(&fence);
            let next = place.acquire("b");
            assert!(place.write(&next), "BROKEN the owner may write");
        })
    };
    join(writer);
    join(next);
    assert!(!place.write(&fence), "BROKEN no write by an ended owner");
}
