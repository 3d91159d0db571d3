//! One place in the serializer's queue, kept for as long as the caller waits.
//!
//! A request can get lost on its way, and so can its answer. So the place is asked for again from time
//! to time under the same grant id, which keeps it. The request before it lives on beside the new one,
//! because dropping it first would leave the queue.

use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use aster_core::ErrorKind;

use super::attempt::{LOOK_AGAIN, STOOD_STILL};
use super::wish::Wish;
use crate::clock::Moment;
use crate::error::SerializerError;
use crate::waiting::{WaitOutcome, WaitRequest};

/// A place is asked for again after this part of the wait …
const WAIT_SLICES: u32 = 3;
/// … but not more often than this …
const WAIT_SLICE_MIN: Duration = Duration::from_secs(1);
/// … and at least this often.
const WAIT_SLICE_MAX: Duration = Duration::from_secs(30);
/// What is asked for lasts this many slices, so that the place is still ours when it is asked for
/// again, and is nobody's soon after we are gone.
const SLICES_ASKED: u32 = 2;

/// How a stay in the queue ended.
pub(super) struct Heard {
    pub(super) answer: Answer,
    /// When the request was sent that this answers.
    pub(super) sent: Moment,
    /// It was asked to wait for all the time that the caller gives.
    pub(super) was_whole: bool,
    /// The clock went on without us meanwhile: we were stopped, or the machine slept.
    pub(super) stood_still: bool,
    /// Another request for the same place is left without an answer, and may be carried out.
    pub(super) is_loose: bool,
}

type Answer = Result<WaitOutcome, SerializerError>;

impl Wish {
    /// Waits in the queue for `wait`, and a little longer for the answer.
    ///
    /// Cancel safe: dropping it drops its requests, which leaves the queue.
    pub(super) async fn queue(&self, wait: Duration) -> Heard {
        let clock = &*self.parts.clock;
        let slice = (wait / WAIT_SLICES).clamp(WAIT_SLICE_MIN, WAIT_SLICE_MAX);
        let started = clock.now();
        let answer_max = self.attempt_max();
        let mut place = Place {
            newest: self.ask(wait, slice),
            older: None,
            asked: started,
            is_loose: false,
            stood_still: false,
        };
        let mut looked = started;
        loop {
            let now = clock.now();
            place.stood_still |= now.since(looked) > STOOD_STILL;
            looked = now;
            let (waited, since_asked) = (now.since(started), now.since(place.asked));
            let Some(until_given_up) = (wait + answer_max)
                .checked_sub(waited)
                .filter(|left| !left.is_zero())
            else {
                return place.gave_up(waited);
            };
            let left = wait.saturating_sub(waited);
            if since_asked >= slice && !left.is_zero() {
                place.ask_again(self.ask(left, slice), now);
                continue;
            }
            let until_asked = match left {
                Duration::ZERO => until_given_up,
                _ => slice.saturating_sub(since_asked),
            };
            let pause = until_given_up.min(until_asked).min(LOOK_AGAIN);
            if let Ok(heard) = tokio::time::timeout(pause, place.heard()).await {
                return heard;
            }
        }
    }

    fn ask(&self, left: Duration, slice: Duration) -> Request<'_> {
        let wait = left.min(slice * SLICES_ASKED);
        let request = WaitRequest {
            candidate: self.candidate.clone(),
            ttl: self.timing.ttl,
            grant_id: self.grant_id,
            wait,
        };
        Request {
            sent: self.parts.clock.now(),
            is_whole: wait == left,
            answer: self.parts.serializer.acquire_wait(&self.resource, request),
        }
    }
}

struct Request<'a> {
    sent: Moment,
    is_whole: bool,
    answer: Pin<Box<dyn Future<Output = Answer> + Send + 'a>>,
}

/// The place, as one or two requests hold it.
struct Place<'a> {
    newest: Request<'a>,
    older: Option<Request<'a>>,
    /// When it was asked for last.
    asked: Moment,
    is_loose: bool,
    stood_still: bool,
}

impl<'a> Place<'a> {
    fn ask_again(&mut self, request: Request<'a>, now: Moment) {
        let before = std::mem::replace(&mut self.newest, request);
        self.is_loose |= self.older.replace(before).is_some();
        self.asked = now;
    }

    /// Cancel safe.
    async fn heard(&mut self) -> Heard {
        poll_fn(|context| self.poll_heard(context)).await
    }

    /// The newest request speaks for the place. Of the one before only a grant counts, and that it
    /// still keeps the place when the newest one has failed.
    fn poll_heard(&mut self, context: &mut Context<'_>) -> Poll<Heard> {
        let mut newest = self.newest.answer.as_mut().poll(context);
        if let Some(older) = &mut self.older
            && let Poll::Ready(answer) = older.answer.as_mut().poll(context)
        {
            let is_granted = matches!(answer, Ok(WaitOutcome::Granted { .. }));
            let older = self.older.take();
            if let (true, Some(older)) = (is_granted && !is_grant(&newest), older) {
                self.is_loose = true;
                self.newest = older;
                newest = Poll::Ready(answer);
            }
        }
        let answer = std::task::ready!(newest);
        let failed = answer
            .as_ref()
            .is_err_and(|error| error.kind() == ErrorKind::Retry);
        if failed && let Some(older) = self.older.take() {
            // Asked for again, but not at once: `asked` stays.
            self.newest = older;
            self.is_loose = true;
            return Poll::Pending;
        }
        Poll::Ready(self.ended(answer))
    }

    fn gave_up(&mut self, after: Duration) -> Heard {
        self.is_loose = true;
        self.ended(Err(SerializerError::Timeout { after }))
    }

    fn ended(&self, answer: Answer) -> Heard {
        Heard {
            answer,
            sent: self.newest.sent,
            was_whole: self.newest.is_whole,
            stood_still: self.stood_still,
            is_loose: self.is_loose || self.older.is_some(),
        }
    }
}

fn is_grant(answer: &Poll<Answer>) -> bool {
    matches!(answer, Poll::Ready(Ok(WaitOutcome::Granted { .. })))
}
