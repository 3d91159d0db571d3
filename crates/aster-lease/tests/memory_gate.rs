//! Who waits for a running closure is checked again when it is its turn: ownership may end between the two.
#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "a test that cannot go on fails, and it owns its threads"
)]

mod support;

use std::sync::mpsc;
use std::time::Duration;

use aster_lease::{FenceRejection, LeaseOp, LeaseSerializer, MemorySerializer, TransitionOutcome};
use support::{RESOURCE, acquire_raw, principal};

/// How often the second write races with the release.
const ROUNDS: usize = 60;
/// How long the first closure gives the second write to come to its gate.
const ON_ITS_WAY: Duration = Duration::from_millis(3);

/// Two writes of one owner, the second behind the gate of the first, and a release right after the first.
/// The thread that releases runs already and the other has to wake up, so mostly the release comes first.
#[tokio::test]
async fn a_write_that_waited_for_a_closure_is_rejected_if_ownership_ended_meanwhile() {
    let mut rejected = 0;
    for _ in 0..ROUNDS {
        let store = MemorySerializer::new();
        let fence = match acquire_raw(&store, "a", 1).await {
            TransitionOutcome::Granted(fence) => fence,
            other => panic!("{other:?}"),
        };
        let (comes, is_coming) = mpsc::channel();
        let (ended, has_ended) = mpsc::channel::<()>();
        let second = {
            let (store, fence) = (store.clone(), fence.clone());
            std::thread::spawn(move || {
                comes.send(()).unwrap();
                store.mutate_fenced(&fence, "a", || has_ended.try_recv().is_ok())
            })
        };
        store
            .mutate_fenced(&fence, "a", || {
                is_coming.recv().unwrap();
                std::thread::sleep(ON_ITS_WAY);
            })
            .unwrap();
        let release = LeaseOp::Release {
            holder: principal("a"),
            epoch: fence.epoch,
        };
        let released = store.transition(RESOURCE, release).await.unwrap();
        assert_eq!(released, TransitionOutcome::Released);
        ended.send(()).ok();
        match second.join().unwrap() {
            Ok(ran_after_the_end) => assert!(!ran_after_the_end, "a closure of an ended owner ran"),
            Err(rejection) => {
                let (carried, current) = (1, 2);
                assert_eq!(rejection, FenceRejection::StaleEpoch { carried, current });
                rejected += 1;
            }
        }
    }
    assert!(rejected > 0, "no release came before the second write");
}
