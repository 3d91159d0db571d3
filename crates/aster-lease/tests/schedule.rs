//! Many leases of one holder on one schedule.

mod support;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use aster_lease::{
    AcquireOutcome, EndedReason, GrantId, LeaseError, LeaseHandle, LeaseOp, LeaseOptions,
    LeaseSerializer, LeaseStatus, MemorySerializer, SystemEntropy, TransitionOutcome, Ttl,
};
use support::batching::{Bad, Batching, Call};
use support::{SuspendedClock, principal, settle};
use tokio::time::sleep;

const TTL: Duration = Duration::from_secs(10);
const BATCH_MAX: usize = 512;

#[tokio::test(start_paused = true)]
async fn twenty_thousand_leases_are_kept_by_few_calls_that_are_spread_out() {
    const LEASES: usize = 20_000;
    let network = Batching::new(BATCH_MAX);
    let leases = hold(&network, LEASES).await;
    let interval = options().renew_interval;
    sleep(interval).await;
    let first = network.take_calls();
    let first_count: usize = first.iter().map(|call| call.resources.len()).sum();
    assert!(
        first_count >= LEASES,
        "all were renewed within an interval, some twice"
    );
    assert!(
        busiest(&first) <= LEASES / 16,
        "taken at one instant, renewed at many: {}",
        busiest(&first)
    );
    for _ in 0..6 {
        sleep(interval).await;
        let calls = network.take_calls();
        let renewals: usize = calls.iter().map(|call| call.resources.len()).sum();
        assert!(
            (LEASES..LEASES * 3 / 2).contains(&renewals),
            "{renewals} renewals"
        );
        assert!(calls.len() <= 200, "{} calls for {renewals}", calls.len());
        assert!(
            calls.iter().all(|call| call.resources.len() <= BATCH_MAX),
            "no call is larger than the store takes"
        );
        assert!(busiest(&calls) <= LEASES / 16, "{}", busiest(&calls));
        assert_all_held(&leases);
    }
}

/// Every renewal comes within its interval, so that two thirds of the ttl are left for trouble.
#[tokio::test(start_paused = true)]
async fn no_lease_of_many_is_renewed_late() {
    let network = Batching::new(BATCH_MAX);
    let leases = hold(&network, 3_000).await;
    let interval = options().renew_interval;
    let mut renewed_at = BTreeMap::new();
    let start = network.now();
    sleep(TTL * 3).await;
    let late = interval + Duration::from_millis(2);
    for call in network.take_calls() {
        for resource in call.resources {
            let before = renewed_at.insert(resource, call.at).unwrap_or(start);
            let after = call.at - before;
            assert!(after <= late, "renewed after {after:?}");
        }
    }
    assert_eq!(renewed_at.len(), leases.len());
}

/// Leases of different lengths do not travel together where one could keep the other waiting.
#[tokio::test(start_paused = true)]
async fn a_long_lease_never_holds_up_a_short_one() {
    let network = Batching::new(BATCH_MAX);
    let mut long = Vec::new();
    for number in 0..64 {
        let options = LeaseOptions::with_ttl(Duration::from_secs(60));
        long.push(acquire(&network, &format!("long/{number}"), options).await);
    }
    for lease in &long {
        network.spoil(lease.resource(), Bad::Hangs);
    }
    let short = LeaseOptions::with_ttl(Duration::from_millis(200));
    let mut shorts = Vec::new();
    for number in 0..64 {
        shorts.push(acquire(&network, &format!("short/{number}"), short).await);
    }
    // The long ones are due after less than 20 s, and all their calls hang.
    sleep(Duration::from_secs(30)).await;
    assert_all_held(&shorts);
    let hung = network.take_calls();
    assert!(
        hung.iter()
            .any(|call| call.resources.iter().any(|name| name.starts_with("long"))),
        "a control: they were sent"
    );
}

/// A store that takes no batches: each lease has its own request on its way.
#[tokio::test(start_paused = true)]
async fn a_request_that_hangs_delays_no_other() {
    let network = Batching::new(1);
    let leases = hold(&network, 2_000).await;
    for number in 0..1_000 {
        network.spoil(&name(number), Bad::Hangs);
    }
    let lost: Vec<_> = leases.iter().map(LeaseHandle::lost).collect();
    sleep(TTL * 2).await;
    assert_all_held(&leases[1_000..]);
    for (lease, lost) in leases[..1_000].iter().zip(lost) {
        assert_eq!(lease.status(), LeaseStatus::Lost);
        assert_eq!(lost.await, EndedReason::Unreachable);
    }
    assert!(
        network
            .take_calls()
            .iter()
            .all(|call| call.resources.len() == 1)
    );
}

#[tokio::test(start_paused = true)]
async fn a_renewal_that_fails_in_a_batch_fails_alone() {
    let network = Batching::new(BATCH_MAX);
    let leases = hold(&network, 500).await;
    network.spoil(&name(7), Bad::Fails);
    sleep(TTL * 2).await;
    for (number, lease) in leases.iter().enumerate() {
        assert_eq!(lease.fence().is_some(), number != 7, "{number}");
    }
    assert_eq!(leases[7].ended_reason(), Some(EndedReason::Unreachable));
    let calls = network.take_calls();
    let alone = calls.iter().filter(|call| call.resources.len() == 1);
    assert!(alone.count() <= 40, "the others still travel together");
}

/// A call that does not come back is split; only what makes it hang is lost. Afterwards the others
/// travel together again.
#[tokio::test(start_paused = true)]
async fn a_batch_that_hangs_costs_only_the_lease_that_makes_it_hang() {
    for bad in [Bad::Hangs, Bad::Shortens] {
        let network = Batching::new(BATCH_MAX);
        let leases = hold(&network, 500).await;
        network.spoil(&name(7), bad);
        sleep(TTL).await;
        let alone = network.take_calls();
        let alone = alone.iter().filter(|call| call.resources.len() == 1);
        assert!(alone.count() > 3, "a control: a batch was split ({bad:?})");
        sleep(TTL * 2).await;
        network.take_calls();
        for (number, lease) in leases.iter().enumerate() {
            // An answer to one request alone cannot be too short.
            let expected = number != 7 || bad == Bad::Shortens;
            assert_eq!(lease.fence().is_some(), expected, "{bad:?} {number}");
        }
        network.mend();
        sleep(TTL).await;
        let calls = network.take_calls();
        let renewals: usize = calls.iter().map(|call| call.resources.len()).sum();
        assert!(
            calls.len() * 3 < renewals,
            "{} calls for {renewals} renewals",
            calls.len()
        );
    }
}

/// Every batch has some in it that make it hang, and there are many more batches than may be on their
/// way at once: those that hang do not keep the others from their turn.
#[tokio::test(start_paused = true)]
async fn batches_that_hang_everywhere_cost_only_the_leases_that_make_them_hang() {
    const LEASES: usize = 4_000;
    let network = Batching::new(32);
    let leases = hold(&network, LEASES).await;
    let is_bad = |number: &usize| number % 20 == 7;
    for number in (0..LEASES).filter(is_bad) {
        network.spoil(&name(number), Bad::Hangs);
    }
    // Everything is due at once, with a third of the ttl gone.
    network.clock.suspend(options().renew_interval);
    sleep(TTL * 2).await;
    for (number, lease) in leases.iter().enumerate() {
        assert_eq!(lease.fence().is_some(), !is_bad(&number), "{number}");
    }
}

/// A bug in a store of the user's own, set off by one resource.
#[tokio::test(start_paused = true)]
async fn a_panic_in_a_batch_ends_only_the_lease_that_sets_it_off() {
    let network = Batching::new(BATCH_MAX);
    let leases = hold(&network, 500).await;
    let (lost, mut status) = (leases[7].lost(), leases[7].watch());
    network.spoil(&name(7), Bad::Panics);
    assert_eq!(lost.await, EndedReason::RuntimeStopped);
    assert_eq!(*status.borrow_and_update(), LeaseStatus::Lost);
    sleep(TTL * 2).await;
    assert!(!status.has_changed().unwrap(), "one event");
    for (number, lease) in leases.iter().enumerate() {
        assert_eq!(lease.fence().is_some(), number != 7, "{number}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_outage_of_less_than_the_self_limit_loses_none_of_many() {
    let network = Batching::new(64);
    let leases = hold(&network, 3_000).await;
    // It begins before the first renewal and swallows all that is sent.
    network.close_gate();
    sleep(TTL.mul_f64(0.4)).await;
    assert!(!network.take_calls().is_empty(), "a control: it was felt");
    network.open_gate();
    for _ in 0..30 {
        sleep(TTL / 10).await;
        assert_all_held(&leases);
    }
}

/// The network is cut for all of them: each stops before anybody else can be granted, and says so
/// once.
#[tokio::test(start_paused = true)]
async fn every_holder_of_many_stops_before_anyone_else_can_be_granted() {
    let network = Batching::new(16);
    let leases = hold(&network, 200).await;
    let mut watches: Vec<_> = leases.iter().map(LeaseHandle::watch).collect();
    let gate = network.close_gate();
    let mut taken = vec![false; leases.len()];
    for step in 0_u8..150 {
        sleep(TTL / 100).await;
        for (number, lease) in leases.iter().enumerate() {
            let fence_before = lease.fence();
            let op = LeaseOp::Acquire {
                candidate: principal("other"),
                ttl: Ttl::new(TTL).unwrap(),
                grant_id: GrantId::from_bytes([step + 1; 16]),
            };
            let outcome = network.store.transition(&name(number), op).await.unwrap();
            if let TransitionOutcome::Granted(_) = outcome {
                assert!(fence_before.is_none(), "two usable fences at once");
                taken[number] = true;
            }
        }
    }
    assert!(
        taken.iter().all(|taken| *taken),
        "a control: all were given away"
    );
    for status in &mut watches {
        assert!(status.has_changed().unwrap(), "told without being asked");
        assert_eq!(*status.borrow_and_update(), LeaseStatus::Lost);
    }
    // What was on its way arrives now, under fences that have ended: nothing comes back to life.
    gate.add_permits(10_000);
    network.open_gate();
    sleep(TTL).await;
    assert!(leases.iter().all(|lease| lease.fence().is_none()));
    assert!(
        watches
            .iter()
            .all(|status| !status.has_changed().unwrap_or(false))
    );
}

/// A batch whose answer comes after the self-limit of its leases, at which nobody looked.
#[tokio::test(start_paused = true)]
async fn a_late_answer_to_a_batch_revives_nothing() {
    let network = Batching::new(BATCH_MAX);
    let leases = hold(&network, 100).await;
    let gate = network.close_gate();
    // The last of them is on its way, and none has reached its limit.
    let mut sent = 0;
    while sent < leases.len() {
        sleep(Duration::from_millis(10)).await;
        sent += renewals(&network.take_calls());
    }
    network.clock.suspend(TTL);
    gate.add_permits(10_000);
    settle().await;
    for lease in &leases {
        assert!(lease.fence().is_none());
        assert_eq!(lease.ended_reason(), Some(EndedReason::Unreachable));
    }
}

/// Nothing ran for a while, and everything is overdue: it goes out at once, together, and spreads out
/// again.
#[tokio::test(start_paused = true)]
async fn after_a_busy_while_everything_overdue_goes_out_at_once() {
    const LEASES: usize = 5_000;
    let network = Batching::new(BATCH_MAX);
    let leases = hold(&network, LEASES).await;
    sleep(TTL * 2).await;
    network.take_calls();
    network.clock.suspend(TTL / 2);
    sleep(Duration::from_millis(1_010)).await;
    let calls = network.take_calls();
    assert!(renewals(&calls) >= LEASES, "{}", renewals(&calls));
    assert!(busiest(&calls) >= LEASES * 9 / 10, "{}", busiest(&calls));
    assert!(calls.len() < 2 * LEASES / BATCH_MAX + 64, "{}", calls.len());
    assert_all_held(&leases);
    sleep(options().renew_interval).await;
    let calls = network.take_calls();
    assert!(busiest(&calls) <= LEASES / 12, "{}", busiest(&calls));
    assert_all_held(&leases);
}

/// More is due than may be on its way: whoever has the least time left goes first.
#[tokio::test(start_paused = true)]
async fn who_has_the_least_time_left_goes_first() {
    const LEASES: usize = 200;
    let network = Batching::new(2);
    let mut leases = Vec::new();
    for number in 0..LEASES {
        // Taken in an order that is not that of their names.
        let resource = name(number * 37 % LEASES);
        leases.push(acquire(&network, &resource, options()).await);
        sleep(Duration::from_millis(2)).await;
    }
    settle().await;
    network.take_calls();
    let gate = network.close_gate();
    network.clock.suspend(TTL / 2);
    let left = leases.iter().map(|lease| {
        let left = lease.remaining().expect("held");
        (lease.resource().clone(), left)
    });
    let left: BTreeMap<_, _> = left.collect();
    let mut calls = network.take_calls();
    while calls.is_empty() {
        sleep(Duration::from_millis(1)).await;
        calls = network.take_calls();
    }
    assert!(
        renewals(&calls) < LEASES / 2,
        "a control: most have to wait"
    );
    gate.add_permits(10_000);
    settle().await;
    calls.extend(network.take_calls());
    let sent = calls.iter().flat_map(|call| &call.resources);
    let sent: Vec<_> = sent.take(LEASES).map(|resource| left[resource]).collect();
    assert_eq!(sent.len(), LEASES);
    assert!(sent.is_sorted(), "{sent:?}");
    assert_all_held(&leases);
}

/// Whoever has left is renewed no more and leaves nothing, however long the lease was for.
#[tokio::test(start_paused = true)]
async fn released_and_dropped_leases_leave_at_once() {
    let store = Arc::new(MemorySerializer::new());
    let entropy = Arc::new(SystemEntropy);
    let day = LeaseOptions::with_ttl(Duration::from_secs(24 * 60 * 60));
    let stays = LeaseHandle::acquire(store.clone(), "stays", "a", day).await;
    let stays = granted(stays);
    for number in 0..50_000 {
        let outcome = LeaseHandle::builder(store.clone(), &name(number), "a")
            .options(day)
            .entropy(entropy.clone())
            .acquire()
            .await;
        let lease = granted(outcome);
        if number % 2 == 0 {
            lease.release().await.unwrap();
        }
    }
    // Each lease keeps the source of randomness that it was given.
    assert_eq!(Arc::strong_count(&entropy), 1);
    drop(stays);
    settle().await;
    assert_eq!(Arc::strong_count(&store), 1, "and the schedule is gone");
}

/// Leases come and go on several threads, so that the schedule starts and ends all the time: whoever
/// joins is renewed.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_lease_that_joins_while_the_last_one_leaves_is_renewed() {
    let network = Batching::new(BATCH_MAX);
    let often = LeaseOptions {
        renew_interval: Duration::from_millis(1),
        ..LeaseOptions::with_ttl(Duration::from_secs(600))
    };
    let mut tasks = tokio::task::JoinSet::new();
    for task in 0..4 {
        let network = network.clone();
        tasks.spawn(async move {
            for round in 0..300 {
                let resource = format!("resource/{task}/{round}");
                let lease = LeaseHandle::acquire(network.clone(), &resource, "a", often).await;
                let lease = granted(lease);
                let granted_for = network.store.snapshot(&resource).await.unwrap().revision;
                while network.store.snapshot(&resource).await.unwrap().revision == granted_for {
                    tokio::task::yield_now().await;
                }
                assert_eq!(lease.ended_reason(), None);
                lease.release().await.unwrap();
            }
        });
    }
    let all = tokio::time::timeout(Duration::from_secs(120), tasks.join_all());
    all.await.expect("one of them is never renewed");
    while Arc::strong_count(&network) > 1 {
        tokio::task::yield_now().await;
    }
}

/// A runtime that stops takes its own leases along, and no others.
#[test]
fn leases_of_two_runtimes_do_not_depend_on_each_other() {
    let network = Batching::new(BATCH_MAX);
    let (first, second) = (paused_runtime(), paused_runtime());
    let ones = first.block_on(hold(&network, 10));
    let others = second.block_on(async {
        let mut others = Vec::new();
        for number in 10..20 {
            others.push(acquire(&network, &name(number), options()).await);
        }
        others
    });
    let lost: Vec<_> = ones.iter().map(LeaseHandle::lost).collect();
    drop(first);
    for (lease, lost) in ones.iter().zip(lost) {
        assert!(lease.fence().is_none());
        assert_eq!(second.block_on(lost), EndedReason::RuntimeStopped);
    }
    second.block_on(async {
        sleep(TTL * 3).await;
        assert_all_held(&others);
        // A lost one can be released on another runtime, and be taken there again.
        ones[0].release().await.unwrap();
        let again = acquire(&network, &name(0), options()).await;
        sleep(TTL * 3).await;
        assert!(again.fence().is_some());
    });
}

/// One of two clocks leaps; the leases on the other one do not notice.
#[tokio::test(start_paused = true)]
async fn leases_on_different_clocks_do_not_depend_on_each_other() {
    let network = Batching::new(BATCH_MAX);
    let clock = SuspendedClock::new();
    let steady = hold(&network, 10).await;
    let mut leaping = Vec::new();
    for number in 10..20 {
        leaping.push(acquire_at(&network, &name(number), options(), &clock).await);
    }
    let lost: Vec<_> = leaping.iter().map(LeaseHandle::lost).collect();
    clock.suspend(TTL);
    for lost in lost {
        assert_eq!(lost.await, EndedReason::Unreachable);
    }
    sleep(TTL * 2).await;
    assert_all_held(&steady);
    for call in network.take_calls() {
        let clocks = call.resources.iter().map(|resource| {
            let is_ours = |lease: &LeaseHandle| lease.resource() == resource;
            leaping.iter().any(is_ours)
        });
        let clocks: Vec<_> = clocks.collect();
        assert!(
            clocks.iter().all(|clock| *clock == clocks[0]),
            "they do not travel together"
        );
    }
}

/// Nobody has to name a clock for that.
#[tokio::test(start_paused = true)]
async fn leases_with_the_default_clock_travel_together() {
    let network = Batching::new(BATCH_MAX);
    let mut leases = Vec::new();
    for number in 0..300 {
        let options = LeaseOptions::with_ttl(TTL * 10);
        let outcome = LeaseHandle::acquire(network.clone(), &name(number), "a", options).await;
        leases.push(granted(outcome));
    }
    sleep(TTL * 10).await;
    let calls = network.take_calls();
    assert!(renewals(&calls) >= 2 * leases.len());
    assert!(calls.len() < renewals(&calls) / 3, "{} calls", calls.len());
    assert_all_held(&leases);
}

/// The same store through two `Arc`s of the same thing, and another one that took its place in memory.
#[tokio::test(start_paused = true)]
async fn a_store_that_takes_the_place_of_another_is_not_mistaken_for_it() {
    for _ in 0..100 {
        let store = Arc::new(MemorySerializer::new());
        let lease = LeaseHandle::acquire(store.clone(), "stays", "a", options()).await;
        let lease = granted(lease);
        let shared: Arc<dyn LeaseSerializer> = store.clone();
        let outcome = LeaseHandle::acquire(shared, "other", "a", options()).await;
        drop(granted(outcome));
        assert_eq!(
            lease.fence().unwrap().authority,
            store.authority().await.unwrap()
        );
        sleep(TTL).await;
        assert!(lease.fence().is_some());
    }
}

fn options() -> LeaseOptions {
    LeaseOptions::with_ttl(TTL)
}

fn name(number: usize) -> String {
    format!("resource/{number}")
}

async fn hold(network: &Arc<Batching>, leases: usize) -> Vec<LeaseHandle> {
    let mut held = Vec::with_capacity(leases);
    for number in 0..leases {
        held.push(acquire(network, &name(number), options()).await);
    }
    held
}

async fn acquire(network: &Arc<Batching>, resource: &str, options: LeaseOptions) -> LeaseHandle {
    acquire_at(network, resource, options, &network.clock).await
}

async fn acquire_at(
    network: &Arc<Batching>,
    resource: &str,
    options: LeaseOptions,
    clock: &Arc<SuspendedClock>,
) -> LeaseHandle {
    let builder = LeaseHandle::builder(network.clone(), resource, "a");
    let outcome = builder
        .options(options)
        .clock(clock.clone())
        .acquire()
        .await;
    granted(outcome)
}

fn granted(outcome: Result<AcquireOutcome, LeaseError>) -> LeaseHandle {
    match outcome {
        Ok(AcquireOutcome::Granted(lease)) => lease,
        other => panic!("not granted: {other:?}"),
    }
}

fn assert_all_held(leases: &[LeaseHandle]) {
    for lease in leases {
        assert!(lease.fence().is_some(), "{lease:?}");
    }
}

fn renewals(calls: &[Call]) -> usize {
    calls.iter().map(|call| call.resources.len()).sum()
}

/// The most renewals within a tenth of a second.
fn busiest(calls: &[Call]) -> usize {
    let mut counts = BTreeMap::<_, usize>::new();
    for call in calls {
        *counts.entry(call.at.as_millis() / 100).or_default() += call.resources.len();
    }
    counts.into_values().max().unwrap_or(0)
}

#[allow(clippy::unwrap_used, reason = "test code outside a #[test] function")]
fn paused_runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .unwrap()
}
