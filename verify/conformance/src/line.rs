//! Those who wait in a store's queue while a case goes on.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::task::{Context, Poll};
use std::time::Duration;

use aster_lease::{
    DenyReason, ErrorKind, Fence, GrantId, SerializerError, TransitionOutcome, WaitOutcome,
    WaitRequest,
};

use crate::drive::{Checked, Drive, RESOURCE, Stop, TTL, broken, ensure, principal, renew, whole};
use crate::harness::Harness;

/// Longer than any case waits, on whatever clock.
pub(crate) const LONG_WAIT: Duration = Duration::from_secs(60 * 60);
const PAUSE: Duration = Duration::from_millis(5);
/// How long a case watches that something does not happen, or less where everything happens sooner.
const A_WHILE: Duration = Duration::from_millis(60);

pub(crate) type Answer = Result<WaitOutcome, SerializerError>;

/// The waiters of a case. They go on only while the case waits [`beside`](Self::beside) them.
pub(crate) struct Line<'d, H: Harness> {
    drive: &'d Drive<'d, H>,
    waiters: Vec<Waiting<'d>>,
}

struct Waiting<'d> {
    future: Option<Pin<Box<dyn Future<Output = Answer> + Send + 'd>>>,
    answer: Option<Answer>,
}

impl Waiting<'_> {
    fn poll(&mut self, context: &mut Context<'_>) {
        if let Some(future) = &mut self.future
            && let Poll::Ready(answer) = future.as_mut().poll(context)
        {
            self.answer = Some(answer);
            self.future = None;
        }
    }
}

/// The `grant`-th wish of `candidate`.
pub(crate) fn wish(candidate: &str, grant: u8, wait: Duration) -> WaitRequest {
    WaitRequest {
        candidate: principal(candidate),
        ttl: whole(TTL),
        grant_id: GrantId::from_bytes([grant; 16]),
        wait,
    }
}

impl<'d, H: Harness> Line<'d, H> {
    pub(crate) fn new(drive: &'d Drive<'d, H>) -> Self {
        Self {
            drive,
            waiters: Vec::new(),
        }
    }

    /// Asks for [`RESOURCE`]; answers the waiter's number. Nothing is sent before the case waits.
    pub(crate) fn ask(&mut self, request: WaitRequest) -> usize {
        let serializer = self.drive.serializer();
        let resource = self.drive.name(RESOURCE);
        let future = async move { serializer.acquire_wait(&resource, request).await };
        self.waiters.push(Waiting {
            future: Some(Box::pin(future)),
            answer: None,
        });
        self.waiters.len() - 1
    }

    /// Joins the queue behind those who wait already, `before`.
    pub(crate) async fn join(
        &mut self,
        candidate: &str,
        grant: u8,
        before: &[&str],
    ) -> Checked<usize> {
        let waiter = self.ask(wish(candidate, grant, LONG_WAIT));
        let mut expected = before.to_vec();
        expected.push(candidate);
        self.queued(&expected).await?;
        Ok(waiter)
    }

    /// Goes on until the queue shows these candidates, in this order.
    pub(crate) async fn queued(&mut self, candidates: &[&str]) -> Checked {
        let resource = self.drive.name(RESOURCE);
        let mut seen = Vec::new();
        for _ in 0..self.looks() {
            self.beside(tokio::time::sleep(PAUSE)).await;
            self.is_possible()?;
            let serializer = self.drive.serializer();
            seen = match self.beside(serializer.queue(&resource)).await {
                Ok(queue) => queue,
                Err(SerializerError::Unsupported { .. }) => {
                    return Err(Stop::NotPossible("a store that lists its queue"));
                }
                Err(error) => return broken(format!("the queue failed: {error}")),
            };
            if seen
                .iter()
                .map(|waiter| &*waiter.candidate)
                .eq(candidates.iter().copied())
            {
                return Ok(());
            }
        }
        broken(format!(
            "waiting should be {candidates:?}, the queue is {seen:?}"
        ))
    }

    /// Goes on until the waiter was answered.
    pub(crate) async fn settled(&mut self, waiter: usize) -> Checked<Answer> {
        for _ in 0..self.looks() {
            self.beside(tokio::time::sleep(PAUSE)).await;
            self.is_possible()?;
            if let Some(answer) = self.waiters[waiter].answer.take() {
                return Ok(answer);
            }
        }
        broken(format!("waiter {} is not answered", waiter + 1))
    }

    /// The waiter is granted; its fence and its claim.
    pub(crate) async fn granted(&mut self, waiter: usize) -> Checked<(Fence, Option<Duration>)> {
        match self.settled(waiter).await? {
            Ok(WaitOutcome::Granted { fence, claim }) => Ok((fence, claim)),
            other => broken(format!(
                "waiter {} should be granted and was answered {other:?}",
                waiter + 1
            )),
        }
    }

    /// The waiter is granted and makes the grant its own.
    pub(crate) async fn claimed(&mut self, waiter: usize) -> Checked<Fence> {
        let (fence, claim) = self.granted(waiter).await?;
        if claim.is_none() {
            return Ok(fence);
        }
        let renewal = renew(&fence.holder, fence.epoch);
        let answer = self.beside(self.drive.ask(RESOURCE, renewal)).await?;
        ensure(answer == TransitionOutcome::Renewed, || {
            format!("the first renewal of {fence} within {claim:?} was answered {answer:?}")
        })?;
        Ok(fence)
    }

    pub(crate) async fn denied(&mut self, waiter: usize, expected: DenyReason) -> Checked {
        match self.settled(waiter).await? {
            Ok(WaitOutcome::Denied(reason, _)) if reason == expected => Ok(()),
            other => broken(format!(
                "waiter {} was answered {other:?}, expected a denial: {expected:?}",
                waiter + 1
            )),
        }
    }

    /// After a while the waiter still waits.
    pub(crate) async fn still_waits(&mut self, waiter: usize) -> Checked {
        self.still_waits_or(waiter, |_| false).await
    }

    pub(crate) fn is_answered(&self, waiter: usize) -> bool {
        self.waiters[waiter].answer.is_some()
    }

    /// After a while the waiter still waits, or was answered what `is_right` accepts.
    pub(crate) async fn still_waits_or(
        &mut self,
        waiter: usize,
        is_right: impl FnOnce(&Answer) -> bool,
    ) -> Checked {
        let a_while = A_WHILE.min(self.drive.harness.settles_within() / 5);
        self.beside(tokio::time::sleep(a_while)).await;
        match &self.waiters[waiter].answer {
            None => Ok(()),
            Some(answer) if is_right(answer) => Ok(()),
            Some(answer) => broken(format!("waiter {} was answered {answer:?}", waiter + 1)),
        }
    }

    /// What the waiter was answered, if it was.
    pub(crate) fn answer(&mut self, waiter: usize) -> Option<Answer> {
        self.waiters[waiter].answer.take()
    }

    /// The waiter stops waiting.
    pub(crate) fn leave(&mut self, waiter: usize) {
        self.waiters[waiter].future = None;
    }

    /// The waiter stops without a word, as one does whose process was killed.
    pub(crate) fn die(&mut self, waiter: usize) {
        if let Some(future) = self.waiters[waiter].future.take() {
            std::mem::forget(future);
        }
    }

    /// Does `other` while everybody waits.
    pub(crate) async fn beside<T>(&mut self, other: impl Future<Output = T>) -> T {
        let mut other = pin!(other);
        poll_fn(|context| {
            for waiter in &mut self.waiters {
                waiter.poll(context);
            }
            other.as_mut().poll(context)
        })
        .await
    }

    fn is_possible(&self) -> Checked {
        let is_unsupported = |waiter: &Waiting<'_>| {
            matches!(
                waiter.answer,
                Some(Err(SerializerError::Unsupported { .. }))
            )
        };
        if self.waiters.iter().any(is_unsupported) {
            return Err(Stop::NotPossible("a store with a queue"));
        }
        Ok(())
    }

    fn looks(&self) -> u128 {
        self.drive.harness.settles_within().as_millis() / PAUSE.as_millis()
    }
}

pub(crate) fn is_granted(answer: &Answer) -> bool {
    matches!(answer, Ok(WaitOutcome::Granted { .. }))
}

pub(crate) fn is_denied(answer: &Answer, reason: DenyReason) -> bool {
    matches!(answer, Ok(WaitOutcome::Denied(denied, _)) if *denied == reason)
}

/// An error after which the same wish may be asked for again.
pub(crate) fn is_for_a_retry(answer: &Answer) -> bool {
    matches!(answer, Err(error) if error.kind() == ErrorKind::Retry)
}
