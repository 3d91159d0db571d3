//! Rows that are dropped, and watches of rows that change.

use aster_core::{LeaseOp, ResourceName, TransitionOutcome};
use shuttle::future::block_on;

use super::super::lease::{LeaseSerializer, LeaseSnapshot, LeaseWatch, SerializerError};
use super::{LONGEST, Place, RESOURCE, TTL, join, thread};
use crate::explore::Scenario;

/// Free rows are dropped at once, while others acquire them.
pub(super) const DROPPED_ROWS: Scenario = Scenario {
    name: "dropped-rows",
    rule: "epochs grow, also when rows are dropped and made again",
    longest: LONGEST,
    run: || {
        let place = Place::with(|options| {
            options.idle_rows_max = 1;
            options.idle_retention = TTL;
        });
        let threads = ["a", "b", "c"].map(|holder| {
            let place = place.clone();
            thread(move || {
                for _ in 0..2 {
                    if let Some(fence) = place.try_acquire(holder, TTL) {
                        assert!(place.write(&fence), "BROKEN the owner may write");
                        place.release(&fence);
                    }
                }
            })
        });
        // Changes of another row, which have the free ones dropped.
        for number in 0..2 {
            let op = place.wish("other", TTL);
            let name = format!("other/{number}");
            let answer = block_on(place.store.transition(&name, op));
            let Ok(TransitionOutcome::Granted(fence)) = answer else {
                panic!("BROKEN a free resource can be acquired: {answer:?}")
            };
            let op = LeaseOp::Release {
                holder: fence.holder,
                epoch: fence.epoch,
            };
            let answer = block_on(place.store.transition(&name, op));
            assert!(matches!(answer, Ok(TransitionOutcome::Released)));
        }
        for thread in threads {
            join(thread);
        }
    },
};

/// The epoch at which the watched resource comes to rest.
const LAST: u64 = 4;

/// A watcher, and whoever it watches.
pub(super) const WATCHES: Scenario = Scenario {
    name: "watchers-see-the-present",
    rule: "a watch never goes back, and shows the present in the end",
    longest: LONGEST,
    run: || {
        let place = Place::new();
        let watchers = [(); 2].map(|()| {
            let place = place.clone();
            thread(move || {
                let mut watch = match block_on(place.store.watch(RESOURCE)) {
                    Ok(watch) => watch,
                    Err(error) => panic!("BROKEN a watch begins: {error}"),
                };
                let mut seen = 0;
                while seen < LAST {
                    let Some(snapshot) = block_on(watch.next()) else {
                        panic!("BROKEN a watch goes on while its store lives")
                    };
                    assert!(
                        snapshot.epoch >= seen,
                        "BROKEN a watch never goes back: {} after {seen}",
                        snapshot.epoch
                    );
                    seen = snapshot.epoch;
                }
            })
        });
        for holder in ["a", "b"] {
            let fence = place.acquire(holder);
            place.release(&fence);
        }
        for watcher in watchers {
            join(watcher);
        }
    },
};

/// A store that ends a watch, and says why.
pub(super) const FAILED_WATCH: Scenario = Scenario {
    name: "watch-tells-its-failure",
    rule: "whoever sees the end of a watch can learn why it ended",
    longest: LONGEST,
    run: || {
        let resource = match ResourceName::new(RESOURCE) {
            Ok(resource) => resource,
            Err(error) => panic!("{error}"),
        };
        let (sender, mut watch) = LeaseWatch::channel(LeaseSnapshot::withheld(resource));
        let watching = thread(move || {
            while block_on(watch.next()).is_some() {}
            assert!(
                watch.take_failure().is_some(),
                "BROKEN the end of a watch has its reason"
            );
        });
        sender.fail(SerializerError::Unsupported { operation: "watch" });
        join(watching);
    },
};
