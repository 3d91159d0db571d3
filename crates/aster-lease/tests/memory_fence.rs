//! The memory store's protected write: what is rejected, what waits for what.

#![allow(clippy::expect_used, reason = "helpers of tests may panic")]

mod support;

use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::Duration;

use aster_lease::{
    Authority, Fence, FenceRejection, FencedError, GrantId, LeaseOp, LeaseSerializer,
    MemorySerializer, ResourceName, SerializerError, TransitionOutcome, Ttl, revoke,
};
use support::{DrivenClock, RESOURCE, TTL, acquire_raw, granted, principal, store_at};

/// A store, and A's fence of it.
async fn held_by_a() -> (MemorySerializer, Fence) {
    let store = MemorySerializer::new();
    let TransitionOutcome::Granted(fence) = acquire_raw(&store, "a", 1).await else {
        panic!("a new resource is free")
    };
    (store, fence)
}

async fn acquire_named(store: &MemorySerializer, name: &str, holder: &str) -> Fence {
    let op = LeaseOp::Acquire {
        candidate: principal(holder),
        ttl: Ttl::new(TTL).expect("whole milliseconds"),
        grant_id: GrantId::from_bytes([9; 16]),
    };
    match store.transition(name, op).await {
        Ok(TransitionOutcome::Granted(fence)) => fence,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn each_wrong_fence_gets_its_own_rejection_and_the_closure_does_not_run() {
    let (store, fence) = held_by_a().await;
    let (_, elsewhere) = held_by_a().await;
    let mut ran = false;
    let mut attempt = |fence: &Fence, writer: &str| {
        store
            .mutate_fenced(fence, writer, || ran = true)
            .expect_err("must be rejected")
    };
    let other_resource = ResourceName::new("catalog/other").expect("valid");
    assert_eq!(attempt(&elsewhere, "a"), FenceRejection::WrongAuthority);
    let zero = Authority::from_bytes([0; 16]);
    assert_eq!(
        attempt(
            &Fence {
                authority: zero,
                ..fence.clone()
            },
            "a"
        ),
        FenceRejection::WrongAuthority
    );
    assert_eq!(
        attempt(
            &Fence {
                epoch: u64::MAX,
                ..fence.clone()
            },
            "a"
        ),
        FenceRejection::FutureEpoch {
            carried: u64::MAX,
            current: 1
        }
    );
    assert_eq!(
        attempt(
            &Fence {
                epoch: 0,
                ..fence.clone()
            },
            "a"
        ),
        FenceRejection::StaleEpoch {
            carried: 0,
            current: 1
        }
    );
    // The store has no such row: the fence is of an epoch that it has not issued.
    assert_eq!(
        attempt(
            &Fence {
                resource: other_resource,
                ..fence.clone()
            },
            "a"
        ),
        FenceRejection::FutureEpoch {
            carried: 1,
            current: 0
        }
    );
    assert_eq!(attempt(&fence, "b"), FenceRejection::NotHolder);
    assert_eq!(attempt(&fence, ""), FenceRejection::NotHolder);
    assert_eq!(
        attempt(
            &Fence {
                holder: principal("b"),
                ..fence.clone()
            },
            "a"
        ),
        FenceRejection::NotHolder
    );
    assert_eq!(
        attempt(
            &Fence {
                holder: principal("b"),
                ..fence.clone()
            },
            "b"
        ),
        FenceRejection::NotHolder
    );
    revoke(&store, RESOURCE, "operator", None)
        .await
        .expect("revoked");
    let mut attempt = |fence: &Fence, writer: &str| {
        store
            .mutate_fenced(fence, writer, || ran = true)
            .expect_err("must be rejected")
    };
    assert_eq!(
        attempt(&fence, "a"),
        FenceRejection::StaleEpoch {
            carried: 1,
            current: 2
        }
    );
    assert_eq!(
        attempt(&Fence { epoch: 2, ..fence }, "a"),
        FenceRejection::NotHeld
    );
    assert!(!ran);
}

/// Ownership ends at a transition, not at expiry.
#[tokio::test(start_paused = true)]
async fn an_expired_row_that_nobody_took_still_accepts_its_fence() {
    let (store, fence) = held_by_a().await;
    tokio::time::sleep(TTL * 2).await;
    assert_eq!(store.mutate_fenced(&fence, "a", || 7), Ok(7));
    let TransitionOutcome::Granted(next) = acquire_raw(&store, "b", 2).await else {
        panic!()
    };
    assert!(store.mutate_fenced(&fence, "a", || 7).is_err());
    assert_eq!(store.mutate_fenced(&next, "b", || 8), Ok(8));
}

#[tokio::test]
async fn an_operation_that_fails_is_told_apart_from_a_rejection() {
    let (store, fence) = held_by_a().await;
    let failed = store.try_mutate_fenced(&fence, "a", || Err::<(), _>("disk on fire"));
    assert!(
        matches!(failed, Err(FencedError::Operation("disk on fire"))),
        "{failed:?}"
    );
    let rejected = store.try_mutate_fenced(&fence, "b", || Ok::<_, String>(()));
    assert!(matches!(
        rejected,
        Err(FencedError::Rejected(FenceRejection::NotHolder))
    ));
    assert_eq!(
        store
            .try_mutate_fenced(&fence, "a", || Ok::<_, String>(3))
            .ok(),
        Some(3)
    );
}

#[tokio::test]
async fn a_panic_unwinds_to_the_caller_and_leaves_the_store_usable() {
    let (store, fence) = held_by_a().await;
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        store.mutate_fenced(&fence, "a", || panic!("the operation's own bug"))
    }));
    assert!(panicked.is_err());
    assert_eq!(store.mutate_fenced(&fence, "a", || 1), Ok(1));
    revoke(&store, RESOURCE, "operator", None)
        .await
        .expect("the gate is open again");
}

#[tokio::test]
async fn reentry_on_the_same_resource_is_refused_not_a_deadlock() {
    let (store, fence) = held_by_a().await;
    let inner = store.mutate_fenced(&fence, "a", || store.mutate_fenced(&fence, "a", || ()));
    assert_eq!(inner, Ok(Err(FenceRejection::Reentrant)));
    // A release from inside would have to wait for the closure that waits for it.
    let release = store.mutate_fenced(&fence, "a", || {
        let op = LeaseOp::Release {
            holder: principal("a"),
            epoch: fence.epoch,
        };
        let mut release = pin!(store.transition(RESOURCE, op));
        release
            .as_mut()
            .poll(&mut Context::from_waker(Waker::noop()))
    });
    assert!(
        matches!(release, Ok(Poll::Ready(Err(SerializerError::Reentrant)))),
        "{release:?}"
    );
    assert_eq!(store.mutate_fenced(&fence, "a", || 1), Ok(1));
}

/// Closures of two resources that enter each other's resource: neither waits, so neither hangs.
#[tokio::test]
async fn nested_closures_on_two_resources_cannot_deadlock() {
    let store = MemorySerializer::new();
    let one = acquire_named(&store, "one", "a").await;
    let two = acquire_named(&store, "two", "b").await;
    let nested = store.mutate_fenced(&one, "a", || store.mutate_fenced(&two, "b", || 5));
    assert_eq!(
        nested,
        Ok(Ok(5)),
        "a free resource may be entered from inside"
    );

    let (entered_tx, entered) = mpsc::channel();
    let (resume, resumed) = mpsc::channel::<()>();
    let other = {
        let (store, two) = (store.clone(), two.clone());
        thread::Builder::new()
            .spawn(move || {
                store.mutate_fenced(&two, "b", || {
                    entered_tx.send(()).expect("the test waits");
                    resumed.recv().expect("the test resumes")
                })
            })
            .expect("a thread")
    };
    entered.recv().expect("two's closure runs");
    let refused = store.mutate_fenced(&one, "a", || store.mutate_fenced(&two, "b", || ()));
    assert_eq!(refused, Ok(Err(FenceRejection::Reentrant)));
    resume.send(()).expect("it waits");
    assert_eq!(other.join().expect("no panic"), Ok(()));
}

/// A closure that takes its time: other resources and its own renewal go on, a change of ownership
/// waits for it, and the next write under the old fence is rejected.
#[tokio::test]
async fn a_slow_closure_delays_only_the_change_of_its_own_ownership() {
    let (store, fence) = held_by_a().await;
    let (entered_tx, entered) = mpsc::channel();
    let (resume, resumed) = mpsc::channel::<()>();
    let log = Arc::new(Mutex::new(Vec::new()));
    let writer = {
        let (store, fence, log) = (store.clone(), fence.clone(), log.clone());
        thread::Builder::new()
            .spawn(move || {
                store.mutate_fenced(&fence, "a", || {
                    entered_tx.send(()).expect("the test waits");
                    resumed.recv().expect("the test resumes");
                    log.lock().expect("not poisoned").push("a's write");
                })
            })
            .expect("a thread")
    };
    entered.recv().expect("the closure runs, its check is done");

    // This test runs on one thread: if anything below blocked, it would never come back.
    for number in 0..200 {
        let name = format!("other/{number}");
        let other = acquire_named(&store, &name, "c").await;
        assert_eq!(store.mutate_fenced(&other, "c", || number), Ok(number));
    }
    let renew = LeaseOp::Renew {
        holder: principal("a"),
        epoch: fence.epoch,
    };
    assert_eq!(
        store.transition(RESOURCE, renew).await.expect("answered"),
        TransitionOutcome::Renewed
    );

    let mut revoked = pin!(revoke(&store, RESOURCE, "operator", None));
    let mut context = Context::from_waker(Waker::noop());
    assert!(
        revoked.as_mut().poll(&mut context).is_pending(),
        "ownership cannot change now"
    );
    assert!(store.snapshot(RESOURCE).await.expect("read").held);
    resume.send(()).expect("it waits");
    assert_eq!(writer.join().expect("no panic"), Ok(()));
    revoked.await.expect("revoked after the closure");
    log.lock().expect("not poisoned").push("the next owner");
    assert_eq!(
        *log.lock().expect("not poisoned"),
        ["a's write", "the next owner"]
    );
    assert!(store.mutate_fenced(&fence, "a", || ()).is_err());
}

/// Runs `inside` within a closure of each of the fences' resources at once.
fn within(store: &MemorySerializer, fences: &[Fence], inside: &mut dyn FnMut()) {
    match fences {
        [] => inside(),
        [first, others @ ..] => store
            .mutate_fenced(first, "a", || within(store, others, inside))
            .expect("nobody is inside"),
    }
}

/// So many closures at once that each lock of the store has several, on one thread and on another.
#[tokio::test]
async fn many_closures_at_once_are_each_alone_with_their_own_resource() {
    let store = MemorySerializer::new();
    let mut fences = Vec::new();
    for number in 0..600 {
        fences.push(acquire_named(&store, &format!("many/{number}"), "a").await);
    }
    let (mine, others) = fences.split_at(300);
    let revoke = |fence: &Fence| {
        let op = LeaseOp::Revoke {
            operator: principal("operator"),
            epoch: fence.epoch,
            hold_off: None,
        };
        let (store, resource) = (store.clone(), fence.resource.clone());
        Box::pin(async move { store.transition(&resource, op).await })
    };
    let mut revokes: Vec<_> = fences.iter().map(revoke).collect();
    let mut context = Context::from_waker(Waker::noop());
    let mut ran = 0;
    within(&store, mine, &mut || {
        thread::scope(|scope| {
            scope.spawn(|| {
                within(&store, others, &mut || {
                    for fence in &fences {
                        let refused = store.mutate_fenced(fence, "a", || ());
                        assert_eq!(refused, Err(FenceRejection::Reentrant));
                    }
                    ran += 1;
                });
            });
            // From a thread that is inside nothing.
            scope.spawn(|| {
                for fence in mine {
                    let mut revoked = revoke(fence);
                    let mut context = Context::from_waker(Waker::noop());
                    assert!(revoked.as_mut().poll(&mut context).is_pending());
                }
            });
        });
        ran += 1;
    });
    assert_eq!(ran, 2);
    for (fence, revoked) in fences.iter().zip(&mut revokes) {
        assert_eq!(store.mutate_fenced(fence, "a", || 1), Ok(1), "open again");
        assert!(revoked.as_mut().poll(&mut context).is_ready());
        assert!(store.mutate_fenced(fence, "a", || 1).is_err());
    }
}

/// Threads that wait for a closure are woken by its end, however many closures run beside it.
#[tokio::test]
async fn those_who_wait_for_one_of_many_closures_are_woken() {
    let store = MemorySerializer::new();
    let mut fences = Vec::new();
    for number in 0..600 {
        fences.push(acquire_named(&store, &format!("many/{number}"), "a").await);
    }
    let (entered_tx, entered) = mpsc::channel();
    thread::scope(|scope| {
        within(&store, &fences, &mut || {
            for fence in fences.iter().step_by(20) {
                let (entered_tx, store) = (entered_tx.clone(), &store);
                scope.spawn(move || {
                    let waits = store.mutate_fenced(fence, "a", || 1);
                    entered_tx.send(waits).expect("the test counts");
                });
            }
            assert!(entered.try_recv().is_err(), "nobody is in while we are");
        });
        for _ in fences.iter().step_by(20) {
            assert_eq!(entered.recv().expect("woken"), Ok(1));
        }
    });
}

/// A zombie in a loop is refused without waiting for what the owner holds, so it cannot slow it.
#[tokio::test]
async fn a_stale_writer_is_refused_while_the_owner_is_inside() {
    let (store, stale) = held_by_a().await;
    revoke(&store, RESOURCE, "operator", None)
        .await
        .expect("revoked");
    let TransitionOutcome::Granted(fresh) = acquire_raw(&store, "b", 2).await else {
        panic!("free")
    };
    // On this one thread: if a refusal waited for the closure, it would never come.
    let inside = store.mutate_fenced(&fresh, "b", || {
        for _ in 0..1_000 {
            let refused = store.mutate_fenced(&stale, "a", || ());
            assert!(
                matches!(refused, Err(FenceRejection::StaleEpoch { .. })),
                "{refused:?}"
            );
        }
    });
    assert_eq!(inside, Ok(()));
}

/// The control: the same interleaving with a check *before* the lock lets the stale write through.
#[tokio::test]
async fn control_a_check_before_the_lock_loses_the_next_owners_write() {
    let (store, fence) = held_by_a().await;
    let mut catalog = "v0";
    let checked = store.mutate_fenced(&fence, "a", || ()).is_ok(); // A checks …
    revoke(&store, RESOURCE, "operator", None)
        .await
        .expect("revoked");
    let next = granted(&Arc::new(store.clone()), "b").await; // … B takes over and writes …
    let next = next.fence().expect("held");
    store
        .mutate_fenced(&next, "b", || catalog = "b's v2")
        .expect("b owns it");
    if checked {
        catalog = "a's stale v1"; // … and A writes on the strength of its old check.
    }
    assert_eq!(
        catalog, "a's stale v1",
        "without the check in the same step, b's write is lost"
    );
    // With it, the same late write is rejected.
    let late = store.mutate_fenced(&fence, "a", || ());
    assert_eq!(
        late,
        Err(FenceRejection::StaleEpoch {
            carried: 1,
            current: 3
        })
    );
}

/// Protected closures of one resource exclude each other.
#[tokio::test]
async fn closures_of_one_resource_run_one_after_the_other() {
    let (store, fence) = held_by_a().await;
    let inside = Arc::new(Mutex::new(()));
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..2_000 {
                    let alone = store.mutate_fenced(&fence, "a", || {
                        let guard = inside.try_lock();
                        thread::yield_now();
                        guard.is_ok()
                    });
                    assert_eq!(alone, Ok(true));
                }
            });
        }
    });
}

#[test]
fn a_writer_is_text_but_not_the_fences_own_holder() {
    fn accepts<W: aster_lease::Writer + ?Sized>(_: &W) {}
    accepts("node");
    accepts(&String::from("node"));
    // `accepts(&fence.holder)` does not compile: see the compile_fail test at `Writer`.
}

/// Counts what is logged at the level of errors.
#[derive(Clone, Default)]
struct Errors(Arc<AtomicUsize>);

impl tracing::Subscriber for Errors {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        *metadata.level() == tracing::Level::ERROR
    }

    fn event(&self, _event: &tracing::Event<'_>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    fn new_span(&self, _span: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }

    fn record(&self, _span: &tracing::span::Id, _values: &tracing::span::Record<'_>) {}
    fn record_follows_from(&self, _span: &tracing::span::Id, _from: &tracing::span::Id) {}
    fn enter(&self, _span: &tracing::span::Id) {}
    fn exit(&self, _span: &tracing::span::Id) {}
}

/// A forger in a loop is counted, and told of once a second.
#[tokio::test]
async fn fences_from_the_future_are_counted_and_do_not_flood_the_log() {
    let clock = Arc::new(DrivenClock::default());
    let store = store_at(&clock);
    let TransitionOutcome::Granted(fence) = acquire_raw(&store, "a", 1).await else {
        panic!("free")
    };
    let errors = Errors::default();
    tracing::subscriber::with_default(errors.clone(), || {
        for second in 1..=2 {
            for epoch in 2..1_002 {
                let forged = Fence {
                    epoch,
                    ..fence.clone()
                };
                assert!(store.mutate_fenced(&forged, "a", || ()).is_err());
            }
            assert_eq!(errors.0.load(Ordering::Relaxed), second);
            clock.advance(Duration::from_secs(1));
        }
        assert!(store.mutate_fenced(&fence, "b", || ()).is_err());
    });
    assert_eq!(store.future_epoch_rejections(), 2_000);
    assert_eq!(
        errors.0.load(Ordering::Relaxed),
        2,
        "the others are routine"
    );
}
