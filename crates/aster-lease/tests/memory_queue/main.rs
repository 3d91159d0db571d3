//! The memory store's queue: who is granted when, and what a dead or impatient waiter leaves behind.

#![allow(clippy::expect_used, reason = "helpers of tests may panic")]

#[path = "../support/mod.rs"]
mod support;

mod gone;
mod order;
mod race;

use std::future::Future;
use std::pin::Pin;
use std::sync::mpsc;
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::Duration;

use aster_lease::{
    AuditEvent, AuditLog, AuditQuery, CLAIM_TIME, DenyReason, ErrorKind, Fence, FenceRejection,
    GrantId, LeaseOp, LeaseSerializer, MemoryOptions, MemorySerializer, SerializerError,
    TransitionOutcome, Ttl, WaitOutcome, WaitRequest, revoke, revoke_with_hold_off,
};
use support::{RESOURCE, TTL, acquire_raw, principal, settle};
use tokio::runtime::Handle;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

const LONG: Duration = Duration::from_secs(3_600);
const MOMENT: Duration = Duration::from_millis(2);

type Answer = Result<WaitOutcome, SerializerError>;

fn id(number: u64) -> GrantId {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&number.to_le_bytes());
    bytes[15] = 1;
    GrantId::from_bytes(bytes)
}

fn wish(candidate: &str, number: u64, wait: Duration) -> WaitRequest {
    WaitRequest {
        candidate: principal(candidate),
        ttl: Ttl::new(TTL).expect("whole milliseconds"),
        grant_id: id(number),
        wait,
    }
}

/// A caller that waits in a task of its own.
fn waiter(store: &MemorySerializer, candidate: &str, number: u64) -> JoinHandle<Answer> {
    let (store, request) = (store.clone(), wish(candidate, number, LONG));
    Handle::current().spawn(async move { store.acquire_wait(RESOURCE, request).await })
}

/// Waiters in this order.
async fn waiters(store: &MemorySerializer, candidates: &[&str]) -> Vec<JoinHandle<Answer>> {
    let mut waiting = Vec::new();
    for (number, candidate) in (100..).zip(candidates) {
        waiting.push(waiter(store, candidate, number));
        settle().await;
    }
    waiting
}

/// A future that this test polls by hand, or does not.
fn by_hand<'a>(
    store: &'a MemorySerializer,
    candidate: &str,
    number: u64,
) -> Pin<Box<dyn Future<Output = Answer> + Send + 'a>> {
    store.acquire_wait(RESOURCE, wish(candidate, number, LONG))
}

fn poll(future: &mut Pin<Box<dyn Future<Output = Answer> + Send + '_>>) -> Poll<Answer> {
    future
        .as_mut()
        .poll(&mut Context::from_waker(Waker::noop()))
}

async fn held(store: &MemorySerializer, holder: &str, grant: u8) -> Fence {
    match acquire_raw(store, holder, grant).await {
        TransitionOutcome::Granted(fence) => fence,
        other => panic!("{holder}: {other:?}"),
    }
}

fn claimed(answer: Answer) -> (Fence, Duration) {
    match answer {
        Ok(WaitOutcome::Granted {
            fence,
            claim: Some(claim),
        }) => (fence, claim),
        other => panic!("{other:?}"),
    }
}

async fn release(store: &MemorySerializer, fence: &Fence) -> TransitionOutcome {
    let op = LeaseOp::Release {
        holder: fence.holder.clone(),
        epoch: fence.epoch,
    };
    store.transition(RESOURCE, op).await.expect("answered")
}

async fn renew(store: &MemorySerializer, fence: &Fence) -> TransitionOutcome {
    let op = LeaseOp::Renew {
        holder: fence.holder.clone(),
        epoch: fence.epoch,
    };
    store.transition(RESOURCE, op).await.expect("answered")
}

#[allow(
    clippy::disallowed_methods,
    reason = "the paused clock of the test's runtime"
)]
fn now() -> Instant {
    Instant::now()
}

async fn queue_of(store: &MemorySerializer) -> Vec<String> {
    let queue = store.queue(RESOURCE).await.expect("listed");
    assert!(queue.iter().enumerate().all(|(at, it)| it.position == at));
    queue.iter().map(|it| it.candidate.to_string()).collect()
}

async fn holder_of(store: &MemorySerializer) -> Option<String> {
    let snapshot = store.snapshot(RESOURCE).await.expect("read");
    snapshot.holder.map(|holder| holder.to_string())
}
