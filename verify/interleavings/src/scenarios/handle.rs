//! A lease's end against everything else: release, renewal, loss, guard, drop.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use shuttle::future::block_on;
use stand_in::{point, tokio, world};

use super::super::lease::{EndedReason, LeaseEnded, LeaseHandle, LeaseStatus, revoke};
use super::engine::{Engine, LEASE_TTL, Link};
use super::{LONGEST, RESOURCE, join, nothing_is_left, sleep, task, thread, until_idle};
use crate::explore::Scenario;

fn takes_no_time(since: Duration, what: &str) {
    let now = world::now();
    assert!(
        now.saturating_sub(since) < Duration::from_millis(1),
        "BROKEN {what} takes no time: it took {:?}",
        now.saturating_sub(since)
    );
}

/// A release while a renewal is on its way.
pub(super) const RELEASE_AGAINST_RENEWAL: Scenario = Scenario {
    name: "release-against-renewal",
    rule: "a release frees at once while a renewal is in flight, and nothing is renewed afterwards",
    longest: LONGEST,
    run: || {
        let engine = Engine::near();
        let lease = engine.recorded();
        let old = lease.fence();
        engine.until_renewal();
        let began = world::now();
        engine.release(&lease);
        let next = engine.place.acquire("b");
        takes_no_time(began, "a release");
        assert!(engine.place.write(&next), "BROKEN the owner may write");
        if let Some(old) = old {
            assert!(
                !engine.place.write(&old),
                "BROKEN no write by an ended owner"
            );
        }
        sleep(LEASE_TTL);
        engine.no_renewal_after(began);
        assert_eq!(lease.ended_reason(), Some(EndedReason::Released));
        nothing_is_left();
    },
};

/// A handle is released by several threads at once.
pub(super) const RELEASED_TWICE: Scenario = Scenario {
    name: "released-by-two",
    rule: "a release can be repeated by anyone who shares the handle",
    longest: LONGEST,
    run: || {
        let engine = Engine::near();
        let lease = Arc::new(engine.recorded());
        let other = {
            let (engine, lease) = (engine.clone(), lease.clone());
            thread(move || engine.release(&lease))
        };
        engine.release(&lease);
        engine.place.acquire("b");
        join(other);
        nothing_is_left();
    },
};

/// An operator revokes; the loss is noticed while the holder releases.
pub(super) const ENDS_ONCE: Scenario = Scenario {
    name: "ends-once",
    rule: "a lease ends once, for one reason, and everyone hears the same",
    longest: LONGEST,
    run: || {
        let engine = Engine::near();
        let lease = Arc::new(engine.recorded());
        let heard = {
            let lost = lease.lost();
            thread(move || block_on(lost))
        };
        let mut status = lease.watch();
        let first = thread(move || {
            let changed = block_on(status.changed());
            assert!(
                changed.is_ok(),
                "BROKEN a watch goes on while its lease lives"
            );
            let first = *status.borrow();
            (first, status)
        });
        let revoked = block_on(revoke(&engine.place.store, RESOURCE, "operator", None));
        assert!(
            revoked.is_ok(),
            "BROKEN an operator may revoke: {revoked:?}"
        );
        engine.until_renewal();
        let released = block_on(lease.release());
        assert!(
            released.is_ok(),
            "BROKEN a release of what is over is no failure: {released:?}"
        );
        let (first, status) = join(first);
        until_idle();
        assert_eq!(
            Some(join(heard)),
            lease.ended_reason(),
            "BROKEN a lease ends for one reason"
        );
        assert_eq!(
            (first, *status.borrow()),
            (lease.status(), lease.status()),
            "BROKEN a status changes once"
        );
        nothing_is_left();
    },
};

/// Guarded work that is running when the lease is released.
pub(super) const GUARD_AGAINST_RELEASE: Scenario = Scenario {
    name: "guard-against-release",
    rule: "guarded work has ended before a release frees, and does not begin again",
    longest: LONGEST,
    run: || {
        let engine = Engine::near();
        let lease = engine.recorded();
        let (runs, is_free) = (
            Arc::new(AtomicBool::new(false)),
            Arc::new(AtomicBool::new(false)),
        );
        let guarded = {
            let (runs, is_free) = (runs.clone(), is_free.clone());
            let work = lease.guard(async move {
                for _ in 0..2 {
                    runs.store(true, Ordering::Relaxed);
                    assert!(
                        !is_free.load(Ordering::Relaxed),
                        "BROKEN no guarded work in the time of the next owner"
                    );
                    point();
                    assert!(
                        !is_free.load(Ordering::Relaxed),
                        "BROKEN no guarded work in the time of the next owner"
                    );
                    runs.store(false, Ordering::Relaxed);
                    tokio::task::yield_now().await;
                }
                std::future::pending::<()>().await;
            });
            thread(move || block_on(work))
        };
        engine.release(&lease);
        is_free.store(true, Ordering::Relaxed);
        assert!(
            !runs.load(Ordering::Relaxed),
            "BROKEN guarded work has ended before a release frees"
        );
        takes_no_time(Duration::ZERO, "a release");
        assert_eq!(
            join(guarded),
            Err(LeaseEnded {
                reason: EndedReason::Released
            })
        );
        nothing_is_left();
    },
};

/// An operator revokes and the next owner writes; the loss is noticed while the handle is dropped.
pub(super) const GUARD_AGAINST_LOSS: Scenario = Scenario {
    name: "guard-against-loss",
    rule: "guarded work ends at the first renewal that is refused, whatever else ends the lease",
    longest: LONGEST,
    run: || {
        let engine = Engine::near();
        let lease = engine.recorded();
        let old = lease.fence();
        let works = thread({
            let guarded = lease.guard(std::future::pending::<()>());
            move || (block_on(guarded), world::now())
        });
        let revoked = block_on(revoke(&engine.place.store, RESOURCE, "operator", None));
        assert!(
            revoked.is_ok(),
            "BROKEN an operator may revoke: {revoked:?}"
        );
        engine.place.record.ended(lease.epoch());
        let next = engine.place.acquire("b");
        let writes = {
            let place = engine.place.clone();
            thread(move || {
                assert!(place.write(&next), "BROKEN the owner may write");
            })
        };
        if let Some(old) = old {
            assert!(
                !engine.place.write(&old),
                "BROKEN no write by an ended owner"
            );
        }
        engine.until_renewal();
        let noticed = world::now();
        point();
        drop(lease);
        join(writes);
        let (ended, at) = join(works);
        assert!(ended.is_err(), "BROKEN guarded work ends with its lease");
        assert!(
            at.saturating_sub(noticed) < Duration::from_millis(1),
            "BROKEN guarded work ends at the first renewal that is refused: at {at:?}"
        );
        nothing_is_left();
    },
};

/// A handle is dropped while others wait for its end.
pub(super) const DROP: Scenario = Scenario {
    name: "drop-against-everything",
    rule: "a dropped handle renews no more, and whoever waits for its end hears of it at once",
    longest: LONGEST,
    run: || {
        let engine = Engine::near();
        let lease = engine.recorded();
        let (lost, guarded, mut status) = (
            lease.lost(),
            lease.guard(std::future::pending::<()>()),
            lease.watch(),
        );
        let hears = thread(move || block_on(lost));
        let works = thread(move || block_on(guarded));
        let watches = thread(move || {
            let changed = block_on(status.changed());
            (changed.is_ok(), *status.borrow())
        });
        engine.until_renewal();
        let began = world::now();
        let dropping = thread(move || drop(lease));
        join(dropping);
        let reason = EndedReason::Dropped;
        assert_eq!(join(hears), reason, "BROKEN lost() resolves");
        assert_eq!(join(works), Err(LeaseEnded { reason }), "BROKEN work ends");
        let (_, status) = join(watches);
        assert_eq!(status, LeaseStatus::Released, "BROKEN a watch is told");
        takes_no_time(began, "hearing of a drop");
        sleep(LEASE_TTL * 2);
        engine.no_renewal_after(began);
        nothing_is_left();
        engine.place.acquire("b");
    },
};

/// An acquire is dropped wherever it waits.
pub(super) const DROPPED_ACQUIRE: Scenario = Scenario {
    name: "acquire-dropped",
    rule: "an acquire that was dropped leaves nothing behind",
    longest: LONGEST,
    run: || {
        let engine = Engine::with(Link::Far);
        let heard: Arc<Mutex<Option<LeaseHandle>>> = Arc::default();
        let acquiring = {
            let (engine, heard) = (engine.clone(), heard.clone());
            task(async move {
                let lease = engine.turn("a", Duration::ZERO).await.ok();
                *heard.lock().unwrap_or_else(PoisonError::into_inner) = lease;
            })
        };
        acquiring.abort();
        until_idle();
        let lease = heard.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(lease) = lease {
            engine.release(&lease);
        }
        engine.place.acquire("b");
        nothing_is_left();
    },
};

/// Three of one process wait for one resource; one of them goes away.
pub(super) const ENGINE_QUEUE: Scenario = Scenario {
    name: "engines-take-turns",
    rule: "whoever waits gets the lease at once when it is its turn, whoever else goes away",
    longest: LONGEST,
    run: || {
        let engine = Engine::with(Link::Far);
        let lease = engine.recorded();
        let heard: Arc<Mutex<Option<LeaseHandle>>> = Arc::default();
        let leaving = {
            let (engine, heard) = (engine.clone(), heard.clone());
            task(async move {
                let lease = engine.turn("b", LONGEST).await.ok();
                *heard.lock().unwrap_or_else(PoisonError::into_inner) = lease;
            })
        };
        let stays = {
            let engine = engine.clone();
            thread(move || match block_on(engine.turn("c", LONGEST)) {
                Ok(lease) => {
                    let now = world::now();
                    engine.release(&lease);
                    now
                }
                Err(refused) => panic!("BROKEN whoever waits gets a turn: {refused:?}"),
            })
        };
        let releasing = {
            let engine = engine.clone();
            thread(move || engine.release(&lease))
        };
        leaving.abort();
        join(releasing);
        until_idle();
        let lease = heard.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(lease) = lease {
            engine.release(&lease);
        }
        let when = join(stays);
        assert!(
            when < Duration::from_millis(3),
            "BROKEN whose turn has come hears of it at once: {when:?} later"
        );
        nothing_is_left();
    },
};

/// How often a thread looks at its fence while time runs.
const LOOKS: usize = 6;

/// A holder looks at its fence while time runs ahead of everyone.
pub(super) const ENDED_IS_FINAL: Scenario = Scenario {
    name: "ended-is-final",
    rule: "a fence that was withheld once is never handed out again",
    longest: LONGEST,
    run: || {
        let engine = Engine::with(Link::Far);
        let lease = Arc::new(engine.recorded());
        world::hurry();
        let looking = {
            let lease = lease.clone();
            thread(move || {
                let mut has_ended = false;
                for _ in 0..LOOKS {
                    let is_usable = lease.fence().is_some();
                    assert!(
                        !(has_ended && is_usable),
                        "BROKEN a lease that has ended stays ended"
                    );
                    has_ended |= !is_usable;
                }
                has_ended
            })
        };
        sleep(LEASE_TTL);
        let has_ended = join(looking);
        if has_ended {
            assert!(
                lease.fence().is_none() && lease.ended_reason().is_some(),
                "BROKEN a lease that has ended stays ended"
            );
        }
        drop(lease);
    },
};

/// How long each request and each answer of the holder takes.
const SLOW: Duration = Duration::from_millis(250);

/// One waits for what another holds, whose renewals are not answered any more.
pub(super) const ONE_USABLE_FENCE: Scenario = Scenario {
    name: "one-usable-fence",
    rule: "no fence is usable once another was granted, however long each thread was stopped",
    longest: LONGEST,
    run: || one_usable_fence(1),
};

/// The same where not one renewal was answered.
pub(super) const ONE_USABLE_GRANT: Scenario = Scenario {
    name: "one-usable-grant",
    rule: "no fence is usable once another was granted, however long each thread was stopped",
    longest: LONGEST,
    run: || one_usable_fence(0),
};

fn one_usable_fence(renewals: usize) {
    let engine = Engine::with(Link::Slow(SLOW, renewals));
    let first = Arc::new(engine.recorded());
    world::hurry();
    let waiting = {
        let (engine, first) = (engine.clone(), first.clone());
        thread(move || {
            // At the store itself, so it owns from the first possible moment on.
            let second = engine.place.try_turn("b");
            for _ in 0..LOOKS {
                look(&engine, &first);
            }
            if let Ok(second) = second {
                engine.place.write(&second);
            }
        })
    };
    for _ in 0..LOOKS {
        look(&engine, &first);
        sleep(LEASE_TTL / 3);
    }
    join(waiting);
}

fn look(engine: &Engine, lease: &LeaseHandle) {
    let granted_up_to = engine.place.record.granted_up_to();
    if let Some(fence) = lease.fence() {
        engine.place.record.usable(fence.epoch, granted_up_to);
        engine.place.write(&fence);
    }
}
