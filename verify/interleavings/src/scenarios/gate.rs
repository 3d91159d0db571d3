//! Protected closures, releases and register writes on one row, and on rows behind the same lock.

use aster_core::{ExpectedRevision, WriteId};
use shuttle::future::block_on;

use super::super::lease::{RegisterError, Registers};
use super::{LONGEST, Place, RESOURCE, join, thread};
use crate::explore::Scenario;

/// Two closures of one row, and one of the row beside it.
pub(super) const CLOSURES_EXCLUDE: Scenario = Scenario {
    name: "closures-exclude",
    rule: "closures of one resource exclude each other, and each of them runs",
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

/// Two writes of one owner, one of which waits for the other's closure, and the owner's release.
pub(super) const WAITING_WRITE: Scenario = Scenario {
    name: "a-write-that-waited",
    rule: "a write that has waited for a closure is checked again when its turn comes",
    longest: LONGEST,
    run: waiting_write,
};

fn waiting_write() {
    let place = Place::new();
    let fence = place.acquire("a");
    let writers: Vec<_> = (0..2)
        .map(|_| {
            let (place, fence) = (place.clone(), fence.clone());
            // Accepted or rejected: the record knows which of them it may be.
            thread(move || {
                place.write(&fence);
            })
        })
        .collect();
    place.release(&fence);
    let next = place.acquire("b");
    for writer in writers {
        join(writer);
    }
    assert!(place.write(&next), "BROKEN the owner may write");
    assert!(!place.write(&fence), "BROKEN no write by an ended owner");
}

/// A closure that reads the register, a write, and a release with a value.
pub(super) const REGISTERS: Scenario = Scenario {
    name: "registers-and-closures",
    rule: "a register changes under no closure, and not after its release",
    longest: LONGEST,
    run: registers,
};

fn registers() {
    let place = Place::new();
    let fence = place.acquire("a");
    let read = |place: &Place| {
        let value = block_on(place.store.read(RESOURCE));
        match value {
            Ok(value) => value,
            Err(error) => panic!("BROKEN a read is answered: {error}"),
        }
    };
    let reading = {
        let (place, fence) = (place.clone(), fence.clone());
        thread(move || {
            place.write_for(&fence, || {
                let (first, second) = (read(&place), read(&place));
                assert_eq!(
                    first, second,
                    "BROKEN a register does not change under a closure"
                );
            });
        })
    };
    let writing = {
        let (place, fence) = (place.clone(), fence.clone());
        thread(move || {
            let write = place.store.compare_and_set(
                &fence,
                "a",
                ExpectedRevision::Any,
                b"written".to_vec(),
            );
            match block_on(write) {
                Ok(_) | Err(RegisterError::Rejected(_)) => {}
                Err(error) => panic!("BROKEN a write is accepted or rejected: {error}"),
            }
        })
    };
    let last = place.store.release_with_value(
        &fence,
        "a",
        ExpectedRevision::Any,
        b"last".to_vec(),
        WriteId::from_bytes([1; 16]),
    );
    match block_on(last) {
        Ok(_) => place.record.ended(fence.epoch),
        Err(error) => panic!("BROKEN the owner may release with a value: {error}"),
    }
    let next = place.acquire("b");
    join(writing);
    join(reading);
    let value = read(&place).map(|register| (register.value, register.epoch));
    assert_eq!(
        value,
        Some((b"last".to_vec(), fence.epoch)),
        "BROKEN no write of an epoch comes after its release"
    );
    assert!(place.write(&next), "BROKEN the owner may write");
}
