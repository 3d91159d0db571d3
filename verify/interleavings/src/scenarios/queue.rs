//! Waiters, hand-overs, withdrawals and expiry in the memory store's queue.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use aster_core::{DenyReason, ErrorKind, Fence, GrantId, LeaseOp, TransitionOutcome};
use shuttle::future::block_on;
use stand_in::world;

use super::super::lease::{
    AuditEvent, AuditLog, AuditQuery, LeaseSerializer, SerializerError, WaitOutcome, WaitRequest,
};
use super::{
    LONGEST, Place, RESOURCE, TTL, join, nothing_is_left, principal, sleep, task, thread, ttl_of,
    until_idle,
};
use crate::explore::Scenario;

/// Longer than anything here takes.
const WAIT: Duration = Duration::from_secs(200);
/// Shorter than the time after which those who wait look again by themselves.
const SHORT_TTL: Duration = Duration::from_millis(400);
/// Ends long after that ttl, and at no second's beat.
const CLOSURE: Duration = Duration::from_millis(710);
/// What is done at once takes no time, but for timers that do not resolve less.
const AT_ONCE: Duration = Duration::from_millis(3);

/// An answer that is not a grant.
pub(super) type Refused = Result<DenyReason, SerializerError>;

impl Place {
    async fn wait(&self, holder: &str, grant_id: GrantId) -> Result<Fence, Refused> {
        let request = WaitRequest {
            candidate: principal(holder),
            ttl: ttl_of(TTL),
            grant_id,
            wait: WAIT,
        };
        match self.store.acquire_wait(RESOURCE, request).await {
            Ok(WaitOutcome::Granted { fence, .. }) => Ok(fence),
            Ok(WaitOutcome::Denied(reason, _)) => Err(Ok(reason)),
            Err(error) => Err(Err(error)),
            Ok(other) => panic!("BROKEN a wait was answered with {other:?}"),
        }
    }

    /// Waits for a turn, which may lapse before it is heard of where time runs ahead.
    pub(super) fn try_turn(&self, holder: &str) -> Result<Fence, Refused> {
        let ended_up_to = self.record.ended_up_to();
        let fence = block_on(self.wait(holder, self.grant_id()))?;
        self.record.granted(fence.epoch, ended_up_to);
        Ok(fence)
    }

    /// Waits for a turn.
    fn turn(&self, holder: &str) -> Fence {
        match self.try_turn(holder) {
            Ok(fence) => fence,
            Err(refused) => panic!("BROKEN whoever waits gets a turn: {holder} got {refused:?}"),
        }
    }

    /// Claims a turn, writes and releases.
    fn use_turn(&self, fence: &Fence) {
        let op = LeaseOp::Renew {
            holder: fence.holder.clone(),
            epoch: fence.epoch,
        };
        let renewed = self.ask(op);
        assert!(
            matches!(renewed, Ok(TransitionOutcome::Renewed)),
            "BROKEN a turn can be claimed: {renewed:?}"
        );
        assert!(self.write(fence), "BROKEN the owner may write");
        self.release(fence);
    }

    fn whole_turn(&self, holder: &'static str) -> shuttle::thread::JoinHandle<Duration> {
        let place = self.clone();
        thread(move || {
            let fence = place.turn(holder);
            let heard = world::now();
            place.use_turn(&fence);
            heard
        })
    }

    /// Nobody is left in the queue, and the audit tells what happened in its order.
    fn ends_well(&self) {
        let query = AuditQuery::default();
        let records = match block_on(self.store.audit(query)) {
            Ok(records) => records,
            Err(error) => panic!("BROKEN the audit can be read: {error}"),
        };
        let changes = records
            .iter()
            .filter(|record| record.event != AuditEvent::Rejected);
        let epochs: Vec<_> = changes.map(|record| record.epoch_current).collect();
        assert!(
            epochs.windows(2).all(|pair| pair[0] < pair[1]),
            "BROKEN the audit tells the changes of a row in their order: {epochs:?}"
        );
        let queue = block_on(self.store.queue(RESOURCE));
        assert!(
            queue.as_ref().is_ok_and(Vec::is_empty),
            "BROKEN nobody is left in the queue: {queue:?}"
        );
    }
}

fn at_once(since: Duration, heard: Duration) {
    assert!(
        heard.saturating_sub(since) <= AT_ONCE,
        "BROKEN whose turn has come hears of it at once: {:?} later",
        heard.saturating_sub(since)
    );
}

/// One releases, two wait.
pub(super) const HAND_OVER: Scenario = Scenario {
    name: "hand-over",
    rule: "whoever waits gets a turn, at once when the resource is released",
    longest: LONGEST,
    run: || {
        let place = Place::new();
        let fence = place.acquire("a");
        let waiters = [place.whole_turn("b"), place.whole_turn("c")];
        place.release(&fence);
        for waiter in waiters {
            at_once(Duration::ZERO, join(waiter));
        }
        place.ends_well();
    },
};

/// A waiter's future is dropped while its turn comes.
pub(super) const DROPPED_WAITER: Scenario = Scenario {
    name: "waiter-dropped-while-granted",
    rule: "a waiter that goes away gives its turn to the next, at once",
    longest: LONGEST,
    run: || {
        let place = Place::new();
        let fence = place.acquire("a");
        let heard: Arc<Mutex<Option<Fence>>> = Arc::default();
        let leaving = {
            let (place, heard) = (place.clone(), heard.clone());
            let grant_id = place.grant_id();
            task(async move {
                let fence = place.wait("b", grant_id).await.ok();
                *heard.lock().unwrap_or_else(PoisonError::into_inner) = fence;
            })
        };
        let stays = place.whole_turn("c");
        let releasing = {
            let place = place.clone();
            thread(move || place.release(&fence))
        };
        leaving.abort();
        join(releasing);
        until_idle();
        // It heard of its turn before it could be dropped: then it has to give it back itself.
        if let Some(fence) = heard.lock().unwrap_or_else(PoisonError::into_inner).take() {
            place.use_turn(&fence);
        }
        at_once(Duration::ZERO, join(stays));
        place.ends_well();
        nothing_is_left();
    },
};

/// A wish is cancelled while it is granted.
pub(super) const CANCELLED_WISH: Scenario = Scenario {
    name: "wish-cancelled-while-granted",
    rule: "a cancelled wish owns nothing and is in nobody's way",
    longest: LONGEST,
    run: || {
        let place = Place::new();
        let fence = place.acquire("a");
        let grant_id = place.grant_id();
        let cancelled = {
            let place = place.clone();
            thread(move || block_on(place.wait("b", grant_id)))
        };
        let stays = place.whole_turn("c");
        let cancelling = {
            let place = place.clone();
            thread(move || {
                let queue = block_on(place.store.queue(RESOURCE)).unwrap_or_default();
                let waited = queue.iter().any(|waiter| &*waiter.candidate == "b");
                let op = LeaseOp::Cancel {
                    candidate: principal("b"),
                    grant_id,
                };
                let answer = place.ask(op);
                assert!(answer.is_ok(), "BROKEN a cancel is answered: {answer:?}");
                waited || matches!(answer, Ok(TransitionOutcome::Cancelled))
            })
        };
        place.release(&fence);
        let is_over = join(cancelling);
        until_idle();
        if let Ok(fence) = join(cancelled) {
            let may_write = place.write(&fence);
            assert!(
                !(is_over && may_write),
                "BROKEN a cancelled wish owns nothing"
            );
            // The cancel came before the wish: then the wish goes on, and gives its own turn back.
            if may_write {
                place.use_turn(&fence);
            }
        }
        at_once(Duration::ZERO, join(stays));
        place.ends_well();
    },
};

/// The owner has died; one of those who wait goes away.
pub(super) const EXPIRY: Scenario = Scenario {
    name: "expiry-is-watched",
    rule: "an expiry is noticed at once by whoever waits, whoever else goes away",
    longest: LONGEST,
    run: || {
        let place = Place::new();
        let dead = place.acquire_for("a", SHORT_TTL);
        let leaving = {
            let place = place.clone();
            let grant_id = place.grant_id();
            task(async move {
                let _ = place.wait("b", grant_id).await;
            })
        };
        let waiters = [place.whole_turn("c"), place.whole_turn("d")];
        leaving.abort();
        for waiter in waiters {
            at_once(SHORT_TTL, join(waiter));
        }
        assert!(!place.write(&dead), "BROKEN no write by an ended owner");
        place.ends_well();
        nothing_is_left();
    },
};

/// The lease runs out under a closure that goes on for long.
pub(super) const CLOSURE_OUTLIVES: Scenario = Scenario {
    name: "closure-outlives-the-ttl",
    rule: "ownership does not change under a closure, and changes at once after it",
    longest: LONGEST,
    run: || {
        let place = Place::new();
        let fence = place.acquire_for("a", SHORT_TTL);
        let writing = {
            let place = place.clone();
            thread(move || {
                place.write_for(&fence, || sleep(CLOSURE));
                world::now()
            })
        };
        let waiters = [place.whole_turn("b"), place.whole_turn("c")];
        let ended = join(writing);
        for waiter in waiters {
            let heard = join(waiter);
            at_once(ended.max(SHORT_TTL), heard);
        }
        place.ends_well();
    },
};

/// The store restarts while callers wait.
pub(super) const RESTART: Scenario = Scenario {
    name: "restart-while-waiting",
    rule: "who waits hears of a restart at once, and asks again under the same grant id",
    longest: LONGEST,
    run: || {
        let place = Place::new();
        let fence = place.acquire("a");
        let waiters = ["b", "c"].map(|holder| {
            let place = place.clone();
            thread(move || {
                let grant_id = place.grant_id();
                let fence = loop {
                    let ended_up_to = place.record.ended_up_to();
                    match block_on(place.wait(holder, grant_id)) {
                        Ok(fence) => {
                            place.record.granted(fence.epoch, ended_up_to);
                            break fence;
                        }
                        Err(Err(error)) if error.kind() == ErrorKind::Retry => {}
                        Err(refused) => panic!("BROKEN a wait goes on: {holder} got {refused:?}"),
                    }
                };
                let heard = world::now();
                place.use_turn(&fence);
                heard
            })
        });
        let restarting = {
            let place = place.clone();
            thread(move || place.store.restart())
        };
        place.release(&fence);
        join(restarting);
        for waiter in waiters {
            at_once(Duration::ZERO, join(waiter));
        }
        place.ends_well();
    },
};

/// The same wish is asked for twice.
pub(super) const ASKED_TWICE: Scenario = Scenario {
    name: "wish-asked-twice",
    rule: "a wish that is asked for twice has one place and one grant",
    longest: LONGEST,
    run: || {
        let place = Place::new();
        let fence = place.acquire("a");
        let grant_id = place.grant_id();
        let twice = ["first", "second"].map(|_| {
            let place = place.clone();
            thread(move || block_on(place.wait("b", grant_id)))
        });
        let behind = place.whole_turn("c");
        place.release(&fence);
        until_idle();
        let heard: Vec<_> = twice.into_iter().map(join).collect();
        let fences: Vec<_> = heard
            .iter()
            .filter_map(|heard| heard.as_ref().ok())
            .collect();
        let Some(fence) = fences.first() else {
            panic!("BROKEN whoever waits gets a turn: {heard:?}")
        };
        assert!(
            fences.iter().all(|other| other == fence),
            "BROKEN a grant id is granted once: {fences:?}"
        );
        place.use_turn(fence);
        at_once(Duration::ZERO, join(behind));
        place.ends_well();
    },
};
