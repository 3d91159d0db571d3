//! Waiting for one's turn: what the engine makes of a queue's answers, also of those that never come.

mod support;

use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use aster_lease::{
    AcquireOutcome, Clock, DenyReason, ErrorKind, GrantId, LeaseError, LeaseHandle,
    LeaseSerializer, LeaseStatus, MemorySerializer, Moment, SerializerError, SystemClock,
    TransitionOutcome,
};
use support::turns::{Turn, Turns};
use support::{Fault, RESOURCE, SuspendedClock, TTL, acquire_raw, options, settle};

const SECOND: Duration = Duration::from_secs(1);

async fn wait(
    turns: &Arc<Turns>,
    holder: &str,
    wait: Duration,
) -> Result<AcquireOutcome, LeaseError> {
    LeaseHandle::acquire_wait(turns.clone(), RESOURCE, holder, options(), wait).await
}

#[allow(clippy::panic, reason = "test code outside a #[test] function")]
async fn granted(turns: &Arc<Turns>, limit: Duration) -> LeaseHandle {
    match wait(turns, "a", limit).await {
        Ok(AcquireOutcome::Granted(lease)) => lease,
        other => panic!("not granted: {other:?}"),
    }
}

#[allow(clippy::panic, reason = "test code outside a #[test] function")]
async fn denied(turns: &Arc<Turns>, limit: Duration) -> DenyReason {
    match wait(turns, "a", limit).await {
        Ok(AcquireOutcome::Denied(reason, _)) => reason,
        other => panic!("not denied: {other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_free_is_granted_for_the_whole_ttl_without_a_renewal() {
    let turns = Turns::new(Turn::AtOnce);
    let lease = granted(&turns, TTL).await;
    assert_eq!(lease.epoch(), 1);
    assert!(lease.remaining().unwrap() > TTL - options().holder_margin - SECOND);
    assert_eq!(turns.network.count("renew"), 0);
    assert_eq!(turns.asked().len(), 1);
}

/// The request is old by the time of the grant; counted from it the lease would be over before it
/// begins. Counted from the answer it could outlast the serializer's own count.
#[tokio::test(start_paused = true)]
async fn a_grant_that_was_waited_for_counts_from_a_renewal_sent_after_it() {
    let turns = Turns::new(Turn::Waited(TTL * 2, 2 * SECOND));
    turns.network.script([Fault::ReplyLate(SECOND)]);
    let lease = granted(&turns, TTL * 10).await;
    assert_eq!(turns.network.count("renew"), 1);
    let usable = TTL - options().holder_margin;
    let left = lease.remaining().unwrap();
    assert!(
        left <= usable - SECOND,
        "counted from the sending: {left:?}"
    );
    assert!(left > usable - 2 * SECOND, "{left:?}");
    tokio::time::sleep(TTL * 2).await;
    assert_eq!(lease.status(), LeaseStatus::Held);
}

#[tokio::test(start_paused = true)]
async fn a_lost_reply_to_the_first_renewal_is_asked_again() {
    let turns = Turns::new(Turn::Waited(SECOND, 2 * SECOND));
    turns
        .network
        .script([Fault::ReplyLost, Fault::RequestLost, Fault::Busy]);
    let lease = granted(&turns, TTL).await;
    assert_eq!(lease.epoch(), 1, "no second epoch was spent");
    assert_eq!(turns.network.count("renew"), 4);
    assert_eq!(turns.asked().len(), 1, "it has its turn already");
}

/// A store that is closed meanwhile renews nothing, however often it is asked.
#[tokio::test(start_paused = true)]
async fn a_store_that_is_closed_before_the_first_renewal_ends_the_wait() {
    let turns = Turns::new(Turn::Waited(SECOND, 2 * SECOND));
    turns.network.always(Fault::Closed);
    let error = wait(&turns, "a", TTL).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Stop, "{error}");
    assert_eq!(turns.network.count("renew"), 1);
}

/// The turn came and went before the answer was here: the next one is waited for under a fresh id,
/// because an id is granted once.
#[tokio::test(start_paused = true)]
async fn a_turn_that_lapsed_is_waited_for_again_under_a_fresh_id() {
    for lapsed in [
        Turn::Lapsed(SECOND),
        Turn::Denied(DenyReason::Expired),
        // What was granted unheard was revoked, or given back by a store that could not tell us.
        Turn::Denied(DenyReason::NotHeld),
    ] {
        let turns = Turns::new(Turn::AtOnce);
        turns.script([lapsed.clone(), lapsed.clone()]);
        let lease = granted(&turns, TTL).await;
        assert!(lease.fence().is_some());
        let asked = turns.asked();
        assert_eq!(asked.len(), 3, "{lapsed:?}");
        assert_ne!(asked[0].grant_id, asked[1].grant_id, "{lapsed:?}");
        assert_ne!(asked[1].grant_id, asked[2].grant_id, "{lapsed:?}");
        settle().await;
        assert!(turns.network.store.snapshot(RESOURCE).await.unwrap().held);
    }
}

/// Whoever names the grant wants to hear what became of it.
#[tokio::test(start_paused = true)]
async fn a_named_grant_that_lapsed_is_answered_as_expired() {
    let turns = Turns::new(Turn::Lapsed(SECOND));
    let outcome = LeaseHandle::builder(turns.clone(), RESOURCE, "a")
        .options(options())
        .grant_id(GrantId::from_bytes([9; 16]))
        .acquire_wait(TTL)
        .await;
    let Ok(AcquireOutcome::Denied(reason, _)) = outcome else {
        panic!("{outcome:?}")
    };
    assert_eq!(reason, DenyReason::Expired);
    assert_eq!(turns.asked().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_wait_that_ran_out_says_so_in_time() {
    for limit in [Duration::ZERO, SECOND / 10, 7 * SECOND, 400 * SECOND] {
        let turns = Turns::new(Turn::RanOut);
        let _held = acquire_raw(&turns.network.store, "b", 1).await;
        let clock = SystemClock::new();
        let started = clock.now();
        assert_eq!(denied(&turns, limit).await, DenyReason::WaitRanOut);
        let took = virtual_since(&clock, started);
        assert!(
            took >= limit && took < limit + SECOND / 10,
            "{limit:?}: {took:?}"
        );
        assert_eq!(turns.waiting(), 0, "nobody is left in the queue");
        // One id for all of it, which keeps the place.
        let asked = turns.asked();
        assert!(asked.iter().all(|it| it.grant_id == asked[0].grant_id));
        assert!(asked.len() <= 16, "{limit:?}: {} requests", asked.len());
    }
}

/// A store that keeps nobody waiting for as long as it was asked to: the rest of the wait is still ours.
#[tokio::test(start_paused = true)]
async fn a_queue_that_gives_up_early_is_joined_again() {
    let turns = Turns::new(Turn::AtOnce);
    turns.script([
        Turn::Denied(DenyReason::WaitRanOut),
        Turn::Denied(DenyReason::WaitRanOut),
    ]);
    let lease = granted(&turns, TTL * 10).await;
    assert!(lease.fence().is_some());
    let asked = turns.asked();
    assert_eq!(asked.len(), 3);
    assert_eq!(asked[0].grant_id, asked[2].grant_id);
}

/// Denials that waiting cannot mend are answered at once.
/// A queue that has given the caller all the time that it asked for is not asked again.
#[tokio::test(start_paused = true)]
async fn a_whole_wait_that_ran_out_early_is_believed() {
    let turns = Turns::new(Turn::Denied(DenyReason::WaitRanOut));
    assert_eq!(denied(&turns, SECOND).await, DenyReason::WaitRanOut);
    assert_eq!(turns.asked().len(), 1);
}

/// A full queue may ask for patience, but not for more than the caller has.
#[tokio::test(start_paused = true)]
async fn a_full_queue_keeps_nobody_beyond_its_wait() {
    let clock = SystemClock::new();
    for (first, then, asked) in [
        (3 * SECOND, 3 * SECOND, 3..=8),
        (6 * SECOND, 3_600 * SECOND, 2..=3),
        (3_600 * SECOND, 3_600 * SECOND, 1..=2),
    ] {
        let turns = Turns::new(Turn::Full(then));
        turns.script([Turn::Full(first)]);
        let started = clock.now();
        let error = wait(&turns, "a", 10 * SECOND).await.unwrap_err();
        let took = virtual_since(&clock, started);
        assert_eq!(error.kind(), ErrorKind::Retry, "{error}");
        assert!(took >= 10 * SECOND && took < 12 * SECOND, "{took:?}");
        let times = turns.asked().len();
        assert!(asked.contains(&times), "{times} in {took:?} for {first:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn who_is_kept_out_does_not_wait() {
    for reason in [DenyReason::HeldOff, DenyReason::Unauthorized] {
        let turns = Turns::new(Turn::Denied(reason));
        let clock = SystemClock::new();
        let started = clock.now();
        assert_eq!(denied(&turns, TTL).await, reason);
        assert_eq!(virtual_since(&clock, started).as_secs(), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn a_store_without_a_queue_says_so() {
    let turns = Turns::new(Turn::Unsupported);
    let error = wait(&turns, "a", TTL).await.unwrap_err();
    assert!(
        matches!(
            error,
            LeaseError::Serializer(SerializerError::Unsupported {
                operation: "acquire_wait"
            })
        ),
        "{error}"
    );
    assert_eq!(error.kind(), ErrorKind::FixCall);
    settle().await;
    assert_eq!(turns.network.count("cancel"), 0, "nothing was asked for");
}

/// The queue is forgotten at a restart; the place is asked for again under the same id.
#[tokio::test(start_paused = true)]
async fn a_forgotten_queue_is_joined_again_under_the_same_id() {
    let turns = Turns::new(Turn::Waited(SECOND, SECOND));
    turns.script([Turn::Unavailable, Turn::Unavailable, Turn::Unavailable]);
    let _lease = granted(&turns, TTL * 4).await;
    let asked = turns.asked();
    assert_eq!(asked.len(), 4);
    assert!(asked.iter().all(|it| it.grant_id == asked[0].grant_id));
}

#[tokio::test(start_paused = true)]
async fn a_store_that_is_closed_ends_the_wait() {
    let turns = Turns::new(Turn::Closed);
    let error = wait(&turns, "a", TTL).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Stop, "{error}");
}

/// A request that got lost does not cost the whole wait, and one that is only slow keeps its place:
/// it lives on until the next one has been asked twice over.
#[tokio::test(start_paused = true)]
async fn a_place_is_asked_for_again_before_the_request_that_keeps_it_is_given_up() {
    let turns = Turns::new(Turn::Waited(SECOND, SECOND));
    turns.script([Turn::Silent]);
    let waiting = spawn({
        let turns = turns.clone();
        async move { granted(&turns, TTL * 10).await }
    });
    while turns.asked().len() < 2 {
        tokio::time::sleep(SECOND / 10).await;
    }
    assert_eq!(turns.waiting(), 2, "both keep the place");
    let lease = waiting.await.unwrap();
    assert_eq!(lease.epoch(), 1);
    assert_eq!(turns.waiting(), 0);
    let asked = turns.asked();
    assert_eq!(asked.len(), 2);
    assert_eq!(asked[0].grant_id, asked[1].grant_id);
}

/// The answer to the grant got lost; asked again, the store finds the grant by its id.
#[tokio::test(start_paused = true)]
async fn a_lost_answer_finds_its_own_grant_again() {
    let turns = Turns::new(Turn::AtOnce);
    turns.script([Turn::AnswerLost]);
    let limit = TTL - 3 * SECOND;
    let lease = granted(&turns, limit).await;
    assert_eq!(lease.epoch(), 1, "no second epoch was spent");
    assert_eq!(turns.asked().len(), 2);
}

/// The one before was granted after all, while a newer request for the same place waits.
#[tokio::test(start_paused = true)]
async fn a_grant_to_the_older_request_counts() {
    let turns = Turns::new(Turn::Silent);
    turns.script([Turn::Waited(40 * SECOND, SECOND)]);
    let lease = granted(&turns, TTL * 10).await;
    assert_eq!(turns.asked().len(), 2);
    assert!(lease.remaining().unwrap() > TTL / 2, "renewed since");
    assert_eq!(turns.waiting(), 0);
}

/// The newer request fails; the place is still kept by the one before.
#[tokio::test(start_paused = true)]
async fn a_failed_refresh_does_not_leave_the_queue() {
    let turns = Turns::new(Turn::Unavailable);
    turns.script([Turn::Waited(50 * SECOND, SECOND)]);
    let _lease = granted(&turns, TTL * 10).await;
    assert_eq!(
        turns.asked().len(),
        2,
        "and it is not asked in a tight loop"
    );
}

/// Whoever is refused while another of its requests may still be carried out takes that one back: a
/// grant that nobody waits for must not stand in the way of others.
#[tokio::test(start_paused = true)]
async fn a_refused_wait_takes_back_what_may_still_be_granted() {
    for (asked, may_be_granted) in [
        (vec![Turn::Denied(DenyReason::HeldOff)], false),
        (vec![Turn::Silent, Turn::Denied(DenyReason::HeldOff)], true),
        // The first one is given up for the third; the two others are answered.
        (vec![Turn::Silent, Turn::RanOut, Turn::RanOut], true),
        (vec![Turn::RanOut, Turn::RanOut, Turn::RanOut], false),
    ] {
        let turns = Turns::new(Turn::AtOnce);
        turns.script(asked.clone());
        denied(&turns, 30 * SECOND).await;
        settle().await;
        let is_taken_back = turns.network.count("cancel") > 0;
        assert_eq!(is_taken_back, may_be_granted, "{asked:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_silent_serializer_ends_the_wait_in_bounded_time() {
    for (turn, limit) in [
        (Turn::Silent, Duration::ZERO),
        (Turn::Silent, SECOND),
        (Turn::Silent, 100 * SECOND),
        (Turn::AnswerLost, 10 * SECOND),
    ] {
        let turns = Turns::new(turn.clone());
        let clock = SystemClock::new();
        let started = clock.now();
        let error = wait(&turns, "a", limit).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Retry, "{turn:?}: {error}");
        let took = virtual_since(&clock, started);
        assert!(took <= limit + 11 * SECOND, "{turn:?} {limit:?}: {took:?}");
        assert_eq!(turns.waiting(), 0);
        settle().await;
        let row = turns.network.store.snapshot(RESOURCE).await.unwrap();
        assert!(!row.held, "{turn:?}: what was granted is given back");
    }
}

/// The first renewal never gets through: no lease is handed out, and the grant does not stay.
#[tokio::test(start_paused = true)]
async fn a_grant_that_cannot_be_renewed_is_not_handed_out() {
    let turns = Turns::new(Turn::Waited(SECOND, 2 * SECOND));
    support::turns::cut(&turns);
    let error = wait(&turns, "a", 10 * SECOND).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Retry, "{error}");
    turns.network.always(Fault::None);
    tokio::time::sleep(TTL / 3).await;
    assert!(!turns.network.store.snapshot(RESOURCE).await.unwrap().held);
}

/// The machine slept between the grant and the answer to its renewal: nothing is handed out that the
/// clock says is over, and what is handed out is renewed.
#[tokio::test(start_paused = true)]
async fn a_machine_that_slept_through_its_turn_asks_again() {
    let turns = Turns::new(Turn::AtOnce);
    turns.script([Turn::Waited(SECOND, SECOND)]);
    turns.network.script([Fault::ReplyLate(SECOND)]);
    let clock = SuspendedClock::new();
    let waiting = LeaseHandle::builder(turns.clone(), RESOURCE, "a")
        .options(options())
        .clock(clock.clone())
        .acquire_wait(TTL * 10);
    let sleep = async {
        tokio::time::sleep(SECOND * 3 / 2).await;
        clock.suspend(TTL * 2);
    };
    let (outcome, ()) = tokio::join!(waiting, sleep);
    let Ok(AcquireOutcome::Granted(lease)) = outcome else {
        panic!("{outcome:?}")
    };
    assert!(lease.fence().is_some());
    assert_eq!(turns.asked().len(), 2, "the first grant was not handed out");
}

/// Stopped until long after the end of the wait: the store was there all the time, so that is an
/// ordinary end of a wait. A store that is silent is an error, in bounded time.
#[tokio::test(start_paused = true)]
async fn who_was_stopped_beyond_its_wait_asks_once_how_it_ended() {
    for (last, denied) in [
        (Turn::RanOut, Some(DenyReason::WaitRanOut)),
        (Turn::Denied(DenyReason::HeldOff), Some(DenyReason::HeldOff)),
        (Turn::Silent, None),
    ] {
        // In the queue, with nothing to tell.
        let turns = Turns::new(Turn::Silent);
        let clock = SuspendedClock::new();
        let started = SystemClock::new();
        let begun = started.now();
        let waiting = LeaseHandle::builder(turns.clone(), RESOURCE, "a")
            .options(options())
            .clock(clock.clone())
            .acquire_wait(5 * SECOND);
        let stop = async {
            tokio::time::sleep(SECOND * 3 / 2).await;
            turns.always(last.clone());
            clock.suspend(60 * SECOND);
        };
        let (outcome, ()) = tokio::join!(waiting, stop);
        match (outcome, denied) {
            (Ok(AcquireOutcome::Denied(reason, _)), Some(expected)) => {
                assert_eq!(reason, expected, "{last:?}");
            }
            (Err(error), None) => assert_eq!(error.kind(), ErrorKind::Retry, "{error}"),
            (outcome, _) => panic!("{last:?}: {outcome:?}"),
        }
        let asked = turns.asked();
        assert_eq!(asked.last().unwrap().wait, Duration::ZERO, "{asked:?}");
        let last_asked = asked.iter().filter(|asked| asked.wait.is_zero());
        assert_eq!(last_asked.count(), 1, "{asked:?}");
        assert!(virtual_since(&started, begun) < 20 * SECOND);
        assert_eq!(turns.waiting(), 0);
    }
}

/// The same for one that was stopped while it took up its turn: the turn has lapsed by then.
#[tokio::test(start_paused = true)]
async fn who_was_stopped_while_it_took_up_its_turn_asks_once_how_it_ended() {
    let turns = Turns::new(Turn::Denied(DenyReason::HeldOff));
    turns.script([Turn::Waited(SECOND, SECOND)]);
    turns.network.script([Fault::RequestLost]);
    let clock = SuspendedClock::new();
    let waiting = LeaseHandle::builder(turns.clone(), RESOURCE, "a")
        .options(options())
        .clock(clock.clone())
        .acquire_wait(5 * SECOND);
    let stop = async {
        tokio::time::sleep(SECOND * 3 / 2).await;
        clock.suspend(60 * SECOND);
    };
    let (outcome, ()) = tokio::join!(waiting, stop);
    assert!(
        matches!(outcome, Ok(AcquireOutcome::Denied(DenyReason::HeldOff, _))),
        "{outcome:?}"
    );
    assert_eq!(turns.asked().len(), 2);
}

/// Dropping the future at every await point leaves no entry and no grant.
#[tokio::test(start_paused = true)]
async fn dropping_the_wait_at_any_await_leaves_nothing_behind() {
    let mut dropped_while = [0, 0];
    for turn in [
        Turn::AtOnce,
        Turn::Waited(Duration::ZERO, SECOND),
        Turn::Lapsed(Duration::ZERO),
    ] {
        for polls in 1..60 {
            let turns = Turns::with_yields(Turn::Silent, 2);
            turns.script([turn.clone()]);
            let (finished, was_waiting) = {
                let mut wait = pin!(wait(&turns, "a", TTL));
                let mut context = Context::from_waker(Waker::noop());
                let mut finished = false;
                for _ in 0..polls {
                    finished = matches!(wait.as_mut().poll(&mut context), Poll::Ready(_));
                    if finished {
                        break;
                    }
                    // A sleep of zero needs the timer to run once.
                    tokio::time::advance(Duration::from_millis(1)).await;
                }
                (finished, turns.waiting())
            };
            assert_eq!(turns.waiting(), 0, "{turn:?} after {polls} polls");
            dropped_while[0] += usize::from(was_waiting > 0);
            if turns.network.store.snapshot(RESOURCE).await.unwrap().held {
                dropped_while[1] += usize::from(!finished);
            }
            settle().await;
            if finished {
                tokio::time::sleep(TTL).await;
            }
            let next = acquire_raw(&turns.network.store, "b", 77).await;
            assert!(
                matches!(next, TransitionOutcome::Granted(_)),
                "{turn:?} after {polls} polls: {next:?}"
            );
            let renewals = turns.network.count("renew");
            tokio::time::sleep(TTL).await;
            assert_eq!(turns.network.count("renew"), renewals, "{turn:?} {polls}");
        }
    }
    assert!(
        dropped_while.iter().all(|&times| times > 0),
        "some drops met the queue, some a grant already made: {dropped_while:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn bad_names_and_options_are_refused_before_anything_is_sent() {
    let turns = Turns::new(Turn::AtOnce);
    let error = LeaseHandle::acquire_wait(turns.clone(), "", "a", options(), TTL)
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::FixCall);
    assert!(turns.asked().is_empty());
    let mut no_runtime = pin!(LeaseHandle::acquire_wait(
        Arc::new(MemorySerializer::new()),
        RESOURCE,
        "a",
        options(),
        TTL
    ));
    let polled = std::thread::scope(|scope| {
        let poll = || {
            let mut context = Context::from_waker(Waker::noop());
            matches!(
                no_runtime.as_mut().poll(&mut context),
                Poll::Ready(Err(LeaseError::NoRuntime))
            )
        };
        std::thread::Builder::new()
            .spawn_scoped(scope, poll)
            .unwrap()
            .join()
            .unwrap()
    });
    assert!(polled, "outside a runtime");
}

/// A task of the test's own, on its own runtime.
fn spawn<T: Send + 'static>(
    task: impl Future<Output = T> + Send + 'static,
) -> tokio::task::JoinHandle<T> {
    tokio::runtime::Handle::current().spawn(task)
}

/// Time on the test's own clock alone: the machine's may be busy.
fn virtual_since(clock: &SystemClock, started: Moment) -> Duration {
    clock.now().monotonic - started.monotonic
}
