//! Waiters that die, give up or are forgotten, and what they leave behind.

use super::*;

/// A waiter times out, the holder releases, a third acquires: at once, and no ghost is in the queue.
#[tokio::test(start_paused = true)]
async fn a_waiter_whose_wait_ran_out_leaves_nothing() {
    let store = MemorySerializer::new();
    let fence = held(&store, "a", 1).await;
    let wait = Duration::from_secs(5);
    let began = now();
    let answer = store.acquire_wait(RESOURCE, wish("b", 2, wait)).await;
    let Ok(WaitOutcome::Denied(DenyReason::WaitRanOut, snapshot)) = answer else {
        panic!("{answer:?}")
    };
    assert_eq!(snapshot.holder.as_deref(), Some("a"));
    assert!((wait..wait + MOMENT).contains(&began.elapsed()));
    assert_eq!(queue_of(&store).await, [""; 0]);
    release(&store, &fence).await;
    assert_eq!(holder_of(&store).await, None);
    held(&store, "c", 3).await;
}

/// The head of the queue exists and is never polled again: the next one is granted after about one
/// claim time, not after a ttl.
#[tokio::test(start_paused = true)]
async fn a_dead_head_costs_about_one_claim_time() {
    let store = MemorySerializer::new();
    let fence = held(&store, "a", 1).await;
    let mut dead = by_hand(&store, "dead", 2);
    assert!(poll(&mut dead).is_pending());
    let next = waiter(&store, "b", 3);
    settle().await;
    assert_eq!(queue_of(&store).await, ["dead", "b"]);

    release(&store, &fence).await;
    let released = now();
    assert_eq!(holder_of(&store).await.as_deref(), Some("dead"));
    let (granted, _) = claimed(next.await.expect("no panic"));
    let late = released.elapsed();
    assert!(
        (CLAIM_TIME..CLAIM_TIME + MOMENT).contains(&late),
        "{late:?}"
    );
    assert_eq!(renew(&store, &granted).await, TransitionOutcome::Renewed);
    // The dead one comes back: it was passed over, and it owns nothing.
    let Poll::Ready(Ok(WaitOutcome::Denied(DenyReason::Expired, _))) = poll(&mut dead) else {
        panic!("it must hear that its grant lapsed")
    };
    assert_eq!(holder_of(&store).await.as_deref(), Some("b"));
}

/// Also where the claim time is shorter than a waiter's own rounds: a hand-over rings the next one.
#[tokio::test(start_paused = true)]
async fn the_next_in_line_watches_a_short_claim_from_the_hand_over_on() {
    let claim_time = Duration::from_millis(50);
    let store = MemorySerializer::with_options(MemoryOptions {
        claim_time,
        ..MemoryOptions::default()
    })
    .expect("random bytes");
    let fence = held(&store, "a", 1).await;
    let mut dead = by_hand(&store, "dead", 2);
    assert!(poll(&mut dead).is_pending());
    let next = waiter(&store, "b", 3);
    settle().await;
    release(&store, &fence).await;
    let released = now();
    let (_, claim) = claimed(next.await.expect("no panic"));
    assert_eq!((claim, released.elapsed()), (claim_time, claim_time));
}

/// The same when it is the holder that died: nobody at the head notices the expiry.
#[tokio::test(start_paused = true)]
async fn a_dead_head_at_an_expiry_costs_about_one_claim_time() {
    let store = MemorySerializer::new();
    held(&store, "a", 1).await;
    let began = now();
    let mut dead = by_hand(&store, "dead", 2);
    assert!(poll(&mut dead).is_pending());
    // So that no look of its own rounds falls on the expiry.
    sleep(Duration::from_millis(1_100)).await;
    let next = waiter(&store, "b", 3);
    let (granted, _) = claimed(next.await.expect("no panic"));
    assert_eq!(&*granted.holder, "b");
    let late = began.elapsed() - TTL;
    let most = CLAIM_TIME * 5 / 4 + MOMENT;
    assert!((CLAIM_TIME..=most).contains(&late), "{late:?}");
}

/// Whoever is first watches the expiry. When it goes away, the next one does so from then on.
#[tokio::test(start_paused = true)]
async fn the_watch_over_an_expiry_is_handed_on_by_whoever_leaves() {
    for is_cancelled in [false, true] {
        let store = MemorySerializer::new();
        held(&store, "a", 1).await;
        let began = now();
        // So that no look of its own rounds falls on the expiry.
        let offset = Duration::from_millis(1_100);
        sleep(offset).await;
        let waiting = waiters(&store, &["first", "next"]).await;
        sleep(TTL - offset - Duration::from_millis(700)).await;
        if is_cancelled {
            let op = LeaseOp::Cancel {
                candidate: principal("first"),
                grant_id: id(100),
            };
            store.transition(RESOURCE, op).await.expect("answered");
        } else {
            waiting[0].abort();
        }
        let next = waiting.into_iter().nth(1).expect("two of them");
        let (granted, _) = claimed(next.await.expect("no panic"));
        assert_eq!(&*granted.holder, "next");
        let late = began.elapsed() - TTL;
        assert!(
            late <= MOMENT,
            "cancelled: {is_cancelled}, late by {late:?}"
        );
    }
}

/// Many dead ones before a living one: each costs about a claim time.
#[tokio::test(start_paused = true)]
async fn dead_waiters_in_a_row_cost_a_claim_time_each() {
    const DEAD: u32 = 8;
    let store = MemorySerializer::new();
    let fence = held(&store, "a", 1).await;
    let mut dead: Vec<_> = (0..u64::from(DEAD))
        .map(|number| by_hand(&store, "dead", 10 + number))
        .collect();
    assert!(dead.iter_mut().all(|it| poll(it).is_pending()));
    let next = waiter(&store, "b", 50);
    settle().await;
    sleep(Duration::from_secs(20)).await;
    release(&store, &fence).await;
    let released = now();
    let (granted, _) = claimed(next.await.expect("no panic"));
    assert_eq!(&*granted.holder, "b");
    let late = released.elapsed();
    let least = CLAIM_TIME * DEAD;
    assert!(
        late >= least && late <= least + Duration::from_secs(u64::from(DEAD) + 1),
        "{late:?}"
    );
}

/// The future is dropped when its grant was made and not seen yet: the next one has it at once.
#[tokio::test(start_paused = true)]
async fn a_grant_that_nobody_saw_is_given_back() {
    let store = MemorySerializer::new();
    let fence = held(&store, "a", 1).await;
    let mut gone = by_hand(&store, "gone", 2);
    assert!(poll(&mut gone).is_pending());
    let next = waiter(&store, "b", 3);
    settle().await;
    release(&store, &fence).await;
    assert_eq!(holder_of(&store).await.as_deref(), Some("gone"));
    let released = now();
    drop(gone);
    assert_eq!(holder_of(&store).await.as_deref(), Some("b"));
    claimed(next.await.expect("no panic"));
    assert_eq!(released.elapsed(), Duration::ZERO);
    // It was a cancel, in the audit as well.
    let records = store.audit(AuditQuery::default()).await.expect("read");
    assert!(
        records
            .iter()
            .any(|it| it.event == AuditEvent::Cancelled && it.holder.as_deref() == Some("gone"))
    );
}

/// … but not when the same wish asked again meanwhile and was answered: that caller owns it.
#[tokio::test(start_paused = true)]
async fn a_grant_that_its_retry_has_seen_is_not_given_back() {
    let store = MemorySerializer::new();
    let fence = held(&store, "a", 1).await;
    let mut gone = by_hand(&store, "b", 2);
    assert!(poll(&mut gone).is_pending());
    release(&store, &fence).await;
    let again = by_hand(&store, "b", 2).await;
    let Ok(WaitOutcome::Granted { fence, claim: None }) = again else {
        panic!("{again:?}")
    };
    drop(gone);
    assert_eq!(holder_of(&store).await.as_deref(), Some("b"));
    sleep(TTL - MOMENT).await;
    assert_eq!(renew(&store, &fence).await, TransitionOutcome::Renewed);
}

#[tokio::test(start_paused = true)]
async fn a_dropped_waiter_leaves_the_queue_at_once() {
    let store = MemorySerializer::new();
    let fence = held(&store, "a", 1).await;
    let waiting = waiters(&store, &["b", "c", "d"]).await;
    for gone in &waiting[..2] {
        gone.abort();
    }
    settle().await;
    assert_eq!(queue_of(&store).await, ["d"]);
    release(&store, &fence).await;
    assert_eq!(holder_of(&store).await.as_deref(), Some("d"));
}

/// The Cancel of a wish that still waits takes its place away, and nobody else's.
#[tokio::test(start_paused = true)]
async fn a_cancelled_wish_leaves_the_queue() {
    let store = MemorySerializer::new();
    let fence = held(&store, "a", 1).await;
    let mut waiting = waiters(&store, &["b", "c"]).await.into_iter();
    let cancel = |candidate| LeaseOp::Cancel {
        candidate: principal(candidate),
        grant_id: id(100),
    };
    // Somebody else's knowledge of the id is not enough.
    for (candidate, left) in [("c", &["b", "c"][..]), ("b", &["c"][..])] {
        let denied = store.transition(RESOURCE, cancel(candidate)).await;
        let Ok(TransitionOutcome::Denied(DenyReason::HeldByOther, _)) = denied else {
            panic!("it never had the row: {denied:?}")
        };
        assert_eq!(queue_of(&store).await, left);
    }
    let told = waiting.next().expect("b").await.expect("no panic");
    assert!(
        matches!(told, Ok(WaitOutcome::Denied(DenyReason::WaitRanOut, _))),
        "{told:?}"
    );
    release(&store, &fence).await;
    claimed(waiting.next().expect("c").await.expect("no panic"));
}

/// A claim that is not renewed lapses; one that is lasts for the whole ttl; and it shortens no other
/// grant.
#[tokio::test(start_paused = true)]
async fn a_claim_belongs_to_its_grant_alone() {
    let store = MemorySerializer::new();
    let first = held(&store, "a", 1).await;
    let waiting = waiters(&store, &["b"]).await.remove(0);
    release(&store, &first).await;
    let (b, claim) = claimed(waiting.await.expect("no panic"));
    assert_eq!(claim, CLAIM_TIME);
    sleep(CLAIM_TIME - MOMENT).await;
    assert_eq!(renew(&store, &b).await, TransitionOutcome::Renewed);
    sleep(TTL - MOMENT).await;
    assert_eq!(
        renew(&store, &b).await,
        TransitionOutcome::Renewed,
        "a whole ttl"
    );

    // The next claim is never renewed …
    let waiting = waiter(&store, "c", 200);
    settle().await;
    release(&store, &b).await;
    let (c, _) = claimed(waiting.await.expect("no panic"));
    sleep(CLAIM_TIME).await;
    let late = renew(&store, &c).await;
    assert!(
        matches!(late, TransitionOutcome::Denied(DenyReason::Expired, _)),
        "{late:?}"
    );
    assert_eq!(
        store.mutate_fenced(&c, "c", || 1),
        Ok(1),
        "ownership ends at a transition"
    );
    // … and the grant that takes over from it is a whole one.
    let d = held(&store, "d", 9).await;
    sleep(TTL - MOMENT).await;
    assert_eq!(renew(&store, &d).await, TransitionOutcome::Renewed);
}

/// Also an immediate grant after a lapsed claim, through the queue's own entrance.
#[tokio::test(start_paused = true)]
async fn a_lapsed_claim_is_taken_over_by_whoever_comes() {
    let store = MemorySerializer::new();
    let first = held(&store, "a", 1).await;
    let mut dead = by_hand(&store, "dead", 2);
    assert!(poll(&mut dead).is_pending());
    release(&store, &first).await;
    let denied = acquire_raw(&store, "c", 3).await;
    assert!(matches!(
        denied,
        TransitionOutcome::Denied(DenyReason::HeldByOther, _)
    ));
    sleep(CLAIM_TIME).await;
    held(&store, "c", 4).await;
}

#[tokio::test(start_paused = true)]
async fn a_restart_forgets_the_queue_and_grants_nobody_twice() {
    let store = MemorySerializer::new();
    let fence = held(&store, "a", 1).await;
    let waiting = waiters(&store, &["b", "c"]).await;
    let restarted = now();
    store.restart();
    for waiter in waiting {
        let error = waiter.await.expect("no panic").expect_err("forgotten");
        assert_eq!(error.kind(), ErrorKind::Retry, "{error}");
    }
    // At once, and not when they would have looked again: whoever asks first is first.
    assert!(now() - restarted < MOMENT);
    assert_eq!(queue_of(&store).await, [""; 0]);
    // They rejoin under the same grant ids, in the order in which they come.
    let c = waiter(&store, "c", 101);
    settle().await;
    let b = waiter(&store, "b", 100);
    settle().await;
    assert_eq!(queue_of(&store).await, ["c", "b"]);
    release(&store, &fence).await;
    let (c, _) = claimed(c.await.expect("no panic"));
    assert!(!b.is_finished());
    release(&store, &c).await;
    let (b, _) = claimed(b.await.expect("no panic"));
    assert!(b.epoch > c.epoch);
    let grants = store.audit(AuditQuery::default()).await.expect("read");
    let granted = grants.iter().filter(|it| it.event == AuditEvent::Granted);
    let who: Vec<_> = granted
        .map(|it| it.holder.clone().expect("held").to_string())
        .collect();
    assert_eq!(who, ["a", "c", "b"]);
}

/// A grant that was made and not seen when the serializer restarted: the same wish finds it, for a
/// whole ttl, and a caller that is gone leaves no ghost.
#[tokio::test(start_paused = true)]
async fn a_restart_between_a_grant_and_its_delivery_leaves_no_ghost() {
    let store = MemorySerializer::new();
    let fence = held(&store, "a", 1).await;
    let mut waiting = by_hand(&store, "b", 2);
    assert!(poll(&mut waiting).is_pending());
    release(&store, &fence).await;
    store.restart();
    sleep(TTL - MOMENT).await;
    let Poll::Ready(answer) = poll(&mut waiting) else {
        panic!("granted")
    };
    let (fence, _) = claimed(answer);
    assert_eq!(renew(&store, &fence).await, TransitionOutcome::Renewed);

    let mut gone = by_hand(&store, "c", 3);
    assert!(poll(&mut gone).is_pending());
    release(&store, &fence).await;
    store.restart();
    drop(gone);
    assert_eq!(holder_of(&store).await, None);
}

/// Every holder dies with its claim: each next one is served a claim time later.
#[tokio::test(start_paused = true)]
async fn holders_that_die_are_passed_over_one_by_one() {
    let store = MemorySerializer::new();
    held(&store, "a", 1).await;
    let waiting = waiters(&store, &["b", "c", "d", "e"]).await;
    let began = now();
    let mut epochs = Vec::new();
    for waiter in waiting {
        epochs.push(claimed(waiter.await.expect("no panic")).0.epoch);
    }
    assert_eq!(epochs, [2, 3, 4, 5]);
    let took = began.elapsed();
    let expected = TTL + CLAIM_TIME * 3;
    assert!(
        (expected..expected + 4 * MOMENT).contains(&took),
        "{took:?}"
    );
}
