//! Who is granted when.

use super::*;

#[tokio::test(start_paused = true)]
async fn a_free_resource_is_granted_at_once_and_for_the_whole_ttl() {
    let store = MemorySerializer::new();
    let answer = store.acquire_wait(RESOURCE, wish("a", 1, LONG)).await;
    let Ok(WaitOutcome::Granted { fence, claim: None }) = answer else {
        panic!("{answer:?}")
    };
    assert_eq!(fence.epoch, 1);
    sleep(TTL - MOMENT).await;
    assert_eq!(renew(&store, &fence).await, TransitionOutcome::Renewed);
}

#[tokio::test(start_paused = true)]
async fn first_come_first_served_and_no_time_passes_at_a_release() {
    let store = MemorySerializer::new();
    let mut fence = held(&store, "a", 1).await;
    let waiting = waiters(&store, &["b", "c", "d", "e"]).await;
    assert_eq!(queue_of(&store).await, ["b", "c", "d", "e"]);
    let began = now();
    for (waiter, name) in waiting.into_iter().zip(["b", "c", "d", "e"]) {
        release(&store, &fence).await;
        // It is the owner already, before its own task has run.
        assert_eq!(holder_of(&store).await.as_deref(), Some(name));
        let before = fence.epoch;
        let (granted, claim) = claimed(waiter.await.expect("no panic"));
        assert_eq!((&*granted.holder, claim), (name, CLAIM_TIME));
        assert_eq!(granted.epoch, before + 2, "freed, then granted");
        assert_eq!(renew(&store, &granted).await, TransitionOutcome::Renewed);
        assert!(store.mutate_fenced(&fence, "a", || ()).is_err());
        fence = granted;
    }
    assert_eq!(began.elapsed(), Duration::ZERO);
    assert_eq!(queue_of(&store).await, [""; 0]);
    let records = store.audit(AuditQuery::default()).await.expect("read");
    let told: Vec<_> = records[..3]
        .iter()
        .map(|it| (it.event, it.epoch_current))
        .collect();
    let expected = [
        (AuditEvent::Granted, 1),
        (AuditEvent::Released, 2),
        (AuditEvent::Granted, 3),
    ];
    assert_eq!(told, expected);
}

#[tokio::test(start_paused = true)]
async fn an_expiry_a_revoke_and_a_cancel_hand_over() {
    let store = MemorySerializer::new();
    held(&store, "a", 1).await;
    let mut waiting = waiters(&store, &["b", "c", "d"]).await.into_iter();
    let began = now();

    let (b, _) = claimed(waiting.next().expect("b").await.expect("no panic"));
    assert!(
        (TTL..TTL + MOMENT).contains(&began.elapsed()),
        "at the expiry"
    );
    assert_eq!(b.epoch, 2, "taken over: one epoch");
    assert_eq!(renew(&store, &b).await, TransitionOutcome::Renewed);

    revoke(&store, RESOURCE, "operator", None)
        .await
        .expect("revoked");
    assert_eq!(holder_of(&store).await.as_deref(), Some("c"));
    let (c, _) = claimed(waiting.next().expect("c").await.expect("no panic"));
    let cancel = LeaseOp::Cancel {
        candidate: principal("c"),
        grant_id: id(101),
    };
    let cancelled = store.transition(RESOURCE, cancel).await.expect("answered");
    assert_eq!(cancelled, TransitionOutcome::Cancelled);
    let (d, _) = claimed(waiting.next().expect("d").await.expect("no panic"));
    assert_eq!(d.epoch, c.epoch + 2);
}

#[tokio::test(start_paused = true)]
async fn no_wait_means_no_place_in_the_queue() {
    let store = MemorySerializer::new();
    let no_wait =
        |candidate, number| store.acquire_wait(RESOURCE, wish(candidate, number, Duration::ZERO));
    held(&store, "a", 1).await;
    let denied = no_wait("b", 2).await;
    assert!(
        matches!(denied, Ok(WaitOutcome::Denied(DenyReason::WaitRanOut, _))),
        "{denied:?}"
    );
    sleep(TTL).await;
    let granted = no_wait("b", 3).await;
    assert!(
        matches!(granted, Ok(WaitOutcome::Granted { claim: None, .. })),
        "{granted:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_plain_acquire_does_not_overtake() {
    let store = MemorySerializer::new();
    held(&store, "a", 1).await;
    let mut first = by_hand(&store, "b", 2);
    assert!(poll(&mut first).is_pending());
    // Nobody has noticed the expiry yet; the plain Acquire is the first to look.
    tokio::time::advance(TTL).await;
    let denied = acquire_raw(&store, "c", 3).await;
    let TransitionOutcome::Denied(DenyReason::HeldByOther, snapshot) = denied else {
        panic!("{denied:?}")
    };
    assert_eq!(snapshot.holder.as_deref(), Some("b"));
    let Poll::Ready(answer) = poll(&mut first) else {
        panic!("granted")
    };
    claimed(answer);
    // Neither does another waiter's arrival.
    let mut second = by_hand(&store, "d", 4);
    assert!(poll(&mut second).is_pending());
    tokio::time::advance(TTL).await;
    let mut third = by_hand(&store, "e", 5);
    assert!(poll(&mut third).is_pending());
    assert_eq!(holder_of(&store).await.as_deref(), Some("d"));
}

/// The control: without the queue it is a race, and whoever comes first after the expiry has it.
#[tokio::test(start_paused = true)]
async fn control_without_a_queue_the_latest_comer_may_win() {
    let store = MemorySerializer::new();
    held(&store, "a", 1).await;
    let denied = acquire_raw(&store, "b", 2).await;
    assert!(matches!(denied, TransitionOutcome::Denied(..)));
    sleep(TTL).await;
    held(&store, "c", 3).await;
    let denied = acquire_raw(&store, "b", 2).await;
    assert!(
        matches!(denied, TransitionOutcome::Denied(..)),
        "b came first and has nothing"
    );
}

#[tokio::test(start_paused = true)]
async fn asking_again_under_the_same_grant_id_keeps_the_place() {
    let store = MemorySerializer::new();
    let fence = held(&store, "a", 1).await;
    let older = waiter(&store, "b", 2);
    settle().await;
    let behind = waiter(&store, "c", 3);
    settle().await;
    let newer = waiter(&store, "b", 2);
    settle().await;
    assert_eq!(queue_of(&store).await, ["b", "c"]);
    let error = older.await.expect("no panic").expect_err("replaced");
    assert_eq!(error.kind(), ErrorKind::Retry, "{error}");
    assert_eq!(
        queue_of(&store).await,
        ["b", "c"],
        "its end did not take the newer one's place"
    );
    // Nor does the end of one that never heard that it was replaced.
    let mut unaware = by_hand(&store, "c", 3);
    assert!(poll(&mut unaware).is_pending());
    let behind_again = waiter(&store, "c", 3);
    settle().await;
    drop(unaware);
    assert_eq!(queue_of(&store).await, ["b", "c"]);
    release(&store, &fence).await;
    claimed(newer.await.expect("no panic"));
    assert!(behind.await.expect("no panic").is_err(), "replaced as well");
    assert!(!behind_again.is_finished());
}

#[tokio::test(start_paused = true)]
async fn a_held_off_waiter_is_told_and_skipped() {
    let store = MemorySerializer::new();
    let fence = held(&store, "a", 1).await;
    // A second wish of the holder's waits when an operator takes the first away and keeps it out.
    let waiting = waiters(&store, &["a", "b"]).await;
    revoke_with_hold_off(&store, RESOURCE, "operator", Some(fence.epoch), TTL)
        .await
        .expect("revoked");
    assert_eq!(holder_of(&store).await.as_deref(), Some("b"));
    let mut waiting = waiting.into_iter();
    let denied = waiting.next().expect("a").await.expect("no panic");
    assert!(
        matches!(denied, Ok(WaitOutcome::Denied(DenyReason::HeldOff, _))),
        "{denied:?}"
    );
    claimed(waiting.next().expect("b").await.expect("no panic"));
    // And it is not let in while it is kept out.
    let denied = by_hand(&store, "a", 9).await;
    assert!(
        matches!(denied, Ok(WaitOutcome::Denied(DenyReason::HeldOff, _))),
        "{denied:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn when_every_waiter_is_held_off_the_row_is_free_and_may_be_dropped() {
    let options = MemoryOptions {
        idle_rows_max: 0,
        ..MemoryOptions::default()
    };
    let store = MemorySerializer::with_options(options).expect("random bytes");
    let fence = held(&store, "a", 1).await;
    let waiting = waiters(&store, &["a"]).await.remove(0);
    revoke_with_hold_off(&store, RESOURCE, "operator", Some(fence.epoch), TTL)
        .await
        .expect("revoked");
    let denied = waiting.await.expect("no panic");
    assert!(matches!(
        denied,
        Ok(WaitOutcome::Denied(DenyReason::HeldOff, _))
    ));
    assert_eq!(holder_of(&store).await, None);
    sleep(TTL).await;
    make_changes(&store).await;
    assert_eq!(store.row_count(), 0);
}

/// Ownership changes on so many names that each lock of the store looks at its idle rows.
async fn make_changes(store: &MemorySerializer) {
    for number in 0..2_000 {
        let name = format!("job/{number}");
        let op = wish("x", 1, LONG).acquire();
        let Ok(TransitionOutcome::Granted(fence)) = store.transition(&name, op).await else {
            panic!("free")
        };
        let op = LeaseOp::Release {
            holder: fence.holder,
            epoch: fence.epoch,
        };
        store.transition(&name, op).await.expect("released");
    }
}

#[tokio::test(start_paused = true)]
async fn a_row_with_waiters_is_never_dropped() {
    let options = MemoryOptions {
        idle_rows_max: 0,
        idle_retention: Duration::ZERO,
        ..MemoryOptions::default()
    };
    let store = MemorySerializer::with_options(options).expect("random bytes");
    held(&store, "a", 1).await;
    let mut waiting = by_hand(&store, "b", 2);
    assert!(poll(&mut waiting).is_pending());
    tokio::time::advance(TTL * 2).await;
    make_changes(&store).await;
    assert_eq!(queue_of(&store).await, ["b"]);
    let (fence, _) = claimed(waiting.await);
    assert_eq!(fence.epoch, 2, "its own row");
}

#[tokio::test(start_paused = true)]
async fn the_queue_is_bounded() {
    let options = MemoryOptions {
        waiters_max: 2,
        ..MemoryOptions::default()
    };
    let store = MemorySerializer::with_options(options).expect("random bytes");
    held(&store, "a", 1).await;
    let _waiting = waiters(&store, &["b", "c"]).await;
    let error = by_hand(&store, "d", 9).await.expect_err("full");
    assert!(
        matches!(error, SerializerError::Overloaded { .. }),
        "{error}"
    );
    let mut again = by_hand(&store, "c", 101);
    assert!(poll(&mut again).is_pending(), "who has a place keeps it");
}

/// A's protected closure, running on a thread of its own until it is told to end.
struct Inside {
    thread: thread::JoinHandle<Result<(), FenceRejection>>,
    resume: mpsc::Sender<()>,
}

impl Inside {
    fn enter(store: &MemorySerializer, fence: &Fence) -> Self {
        let (entered_tx, entered) = mpsc::channel();
        let (resume, resumed) = mpsc::channel::<()>();
        let (store, fence) = (store.clone(), fence.clone());
        let closure = move || {
            store.mutate_fenced(&fence, "a", || {
                entered_tx.send(()).expect("the test waits");
                resumed.recv().expect("the test resumes");
            })
        };
        let thread = thread::Builder::new().spawn(closure).expect("a thread");
        entered.recv().expect("inside");
        Self { thread, resume }
    }

    fn end(self) {
        self.resume.send(()).expect("inside");
        assert_eq!(self.thread.join().expect("no panic"), Ok(()));
    }
}

/// A closure that runs holds up the release, and so the hand-over.
#[tokio::test(start_paused = true)]
async fn a_hand_over_waits_for_the_closure_that_runs() {
    let store = MemorySerializer::new();
    let fence = held(&store, "a", 1).await;
    let inside = Inside::enter(&store, &fence);
    let next = waiter(&store, "b", 2);
    settle().await;
    let releasing = {
        let (store, fence) = (store.clone(), fence.clone());
        Handle::current().spawn(async move { release(&store, &fence).await })
    };
    settle().await;
    assert!(!next.is_finished() && !releasing.is_finished());
    assert_eq!(holder_of(&store).await.as_deref(), Some("a"));
    inside.end();
    assert_eq!(
        releasing.await.expect("no panic"),
        TransitionOutcome::Released
    );
    let (granted, _) = claimed(next.await.expect("no panic"));
    assert_eq!(granted.epoch, 3);
    assert!(store.mutate_fenced(&fence, "a", || ()).is_err());
}

/// The row expires while a closure runs on it: the take-over waits for the gate and hears of its
/// opening; who does not want to wait does not wait for the closure, and whose wait runs out leaves.
#[tokio::test(start_paused = true)]
async fn an_expiry_under_a_running_closure_hands_over_when_it_ends() {
    let store = MemorySerializer::new();
    let fence = held(&store, "a", 1).await;
    let inside = Inside::enter(&store, &fence);
    let impatient = store.acquire_wait(RESOURCE, wish("c", 3, TTL + CLAIM_TIME));
    let next = waiter(&store, "b", 2);
    sleep(TTL + MOMENT).await;
    assert!(!next.is_finished(), "it has looked, and the gate is closed");
    let no_wait = store
        .acquire_wait(RESOURCE, wish("d", 4, Duration::ZERO))
        .await;
    assert!(
        matches!(no_wait, Ok(WaitOutcome::Denied(DenyReason::WaitRanOut, _))),
        "{no_wait:?}"
    );
    let impatient = impatient.await;
    assert!(
        matches!(
            impatient,
            Ok(WaitOutcome::Denied(DenyReason::WaitRanOut, _))
        ),
        "{impatient:?}"
    );
    assert_eq!(queue_of(&store).await, ["b"]);
    let ended = now();
    inside.end();
    let (granted, _) = claimed(next.await.expect("no panic"));
    assert_eq!(granted.epoch, 2);
    assert_eq!(ended.elapsed(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn the_authorizer_is_asked_for_waiting_too() {
    let store = MemorySerializer::new();
    held(&store, "a", 1).await;
    store.set_authorizer(|op, _| op.actor() != "stranger");
    let denied = by_hand(&store, "stranger", 2).await;
    let Ok(WaitOutcome::Denied(DenyReason::Unauthorized, snapshot)) = denied else {
        panic!("{denied:?}")
    };
    assert_eq!((snapshot.epoch, snapshot.holder), (0, None));
    assert_eq!(queue_of(&store).await, [""; 0]);
}

#[test]
fn waiting_outside_a_runtime_is_an_error_and_no_panic() {
    let store = MemorySerializer::new();
    let Poll::Ready(Err(error)) = poll(&mut by_hand(&store, "a", 1)) else {
        panic!("refused")
    };
    assert_eq!(error.kind(), ErrorKind::FixCall, "{error}");
}

/// 500 waiters, each of which renews, works and releases: all are served, in order, with a bounded
/// number of wakes for each hand-over.
#[tokio::test(start_paused = true)]
async fn five_hundred_waiters_are_served_in_order_without_a_herd() {
    const WAITERS: u64 = 500;
    let store = MemorySerializer::new();
    let fence = held(&store, "a", 1).await;
    let (served_tx, served) = mpsc::channel();
    let polls = std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let mut tasks = Vec::new();
    for number in 0..WAITERS {
        let (store, served_tx, polls) = (store.clone(), served_tx.clone(), polls.clone());
        let task = async move {
            let request = wish(&format!("w{number}"), 1_000 + number, LONG);
            let mut waiting = store.acquire_wait(RESOURCE, request);
            let answer = std::future::poll_fn(|context| {
                polls.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                waiting.as_mut().poll(context)
            });
            let (fence, _) = claimed(answer.await);
            assert_eq!(renew(&store, &fence).await, TransitionOutcome::Renewed);
            sleep(Duration::from_millis(10)).await;
            served_tx.send(number).expect("the test counts");
            assert_eq!(release(&store, &fence).await, TransitionOutcome::Released);
        };
        tasks.push(Handle::current().spawn(task));
        tokio::task::yield_now().await;
    }
    settle().await;
    assert_eq!(queue_of(&store).await.len(), 500);
    release(&store, &fence).await;
    let began = now();
    for task in tasks {
        task.await.expect("no panic");
    }
    assert!(served.try_iter().eq(0..WAITERS), "in order");
    // 10 ms of work each and nothing between: no hand-over waited for a timer's slack.
    let took = began.elapsed();
    assert!(took <= Duration::from_millis(11) * 500 + MOMENT, "{took:?}");
    let polls = polls.load(std::sync::atomic::Ordering::Relaxed);
    // One to queue, one as the next in line, one for the grant; and a look now and then.
    assert!(polls <= 6 * 500, "{polls} polls");
}
