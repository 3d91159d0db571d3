//! What the queue asks of the writer: to join it, to leave it, to end a wait, to look at its first.

use std::sync::Arc;

use aster_core::ResourceName;
use aster_lease::{SerializerError, WaitRequest};

use crate::batch::Batch;
use crate::calls::{Answer, Left, Mine, Place};
use crate::side::SideError;
use crate::waiting::Waiting;

/// A wish to wait on its way into the queue.
#[derive(Debug)]
pub(crate) struct Join {
    waiting: Arc<Waiting>,
    id: u64,
    pub(crate) resource: ResourceName,
    pub(crate) request: WaitRequest,
    pub(crate) until_ns: u64,
    done: Option<Step>,
    is_told: bool,
}

/// What the first step of a wait came to.
#[derive(Debug)]
pub(crate) enum Step {
    Decided(Answer),
    Queued(Place),
    /// It was handed the row in this batch and hears of that, or nobody waits any more.
    Elsewhere,
}

/// Somebody gave up: a place in the queue, or a grant that was made and not seen.
#[derive(Debug)]
pub(crate) struct Leave {
    waiting: Arc<Waiting>,
    left: Left,
}

/// A wait is over. In the same step it is judged not granted, or it has its grant.
#[derive(Debug)]
pub(crate) struct RanOut {
    waiting: Arc<Waiting>,
    mine: Mine,
    done: Option<Step>,
    /// Begun, and not told yet.
    is_open: bool,
}

/// A row may have expired, and somebody waits for it.
#[derive(Debug)]
pub(crate) struct Advance {
    resource: ResourceName,
}

impl Join {
    pub(crate) fn new(
        waiting: Arc<Waiting>,
        id: u64,
        resource: ResourceName,
        request: WaitRequest,
        until_ns: u64,
    ) -> Self {
        Self {
            waiting,
            id,
            resource,
            request,
            until_ns,
            done: None,
            is_told: false,
        }
    }

    pub(crate) fn carry_out(&mut self, batch: &mut Batch<'_>) -> Result<(), SideError> {
        self.done = Some(match self.waiting.wants(self.id) {
            true => batch.join(self)?,
            false => Step::Elsewhere,
        });
        Ok(())
    }

    pub(crate) fn tell(mut self) {
        self.is_told = true;
        match self.done.take() {
            Some(Step::Decided(answer)) => self.waiting.answer(self.id, answer),
            Some(Step::Queued(place)) => self.waiting.queued(self.id, place),
            Some(Step::Elsewhere) | None => {}
        }
    }

    pub(crate) fn fail(mut self, error: SerializerError) {
        self.is_told = true;
        self.waiting.fail(self.id, error);
    }
}

impl Drop for Join {
    fn drop(&mut self) {
        if !self.is_told {
            self.waiting.fail(self.id, dropped());
        }
    }
}

impl Leave {
    pub(crate) fn new(waiting: Arc<Waiting>, left: Left) -> Self {
        Self { waiting, left }
    }

    pub(crate) fn carry_out(&mut self, batch: &mut Batch<'_>) -> Result<(), SideError> {
        let Left {
            resource, grant_id, ..
        } = &self.left;
        // A later call under the same grant id has the place now.
        if self.waiting.expects(resource, *grant_id) {
            return Ok(());
        }
        batch.leave(&self.left)
    }

    /// It is tried again.
    pub(crate) fn fail(self) {
        self.waiting.put_back(self.left);
    }
}

impl RanOut {
    pub(crate) fn new(waiting: Arc<Waiting>, mine: Mine) -> Self {
        Self {
            waiting,
            mine,
            done: None,
            is_open: false,
        }
    }

    pub(crate) fn carry_out(&mut self, batch: &mut Batch<'_>) -> Result<(), SideError> {
        self.is_open = true;
        if self.waiting.wants(self.mine.id) {
            self.done = Some(batch.run_out(&self.mine.wish)?);
        }
        Ok(())
    }

    pub(crate) fn tell(mut self) {
        self.is_open = false;
        if let Some(Step::Decided(answer)) = self.done.take() {
            self.waiting.answer(self.mine.id, answer);
        }
    }

    pub(crate) fn fail(mut self, error: SerializerError) {
        self.is_open = false;
        self.waiting.fail(self.mine.id, error);
    }
}

impl Drop for RanOut {
    fn drop(&mut self) {
        if self.is_open {
            self.waiting.fail(self.mine.id, dropped());
        }
    }
}

impl Advance {
    pub(crate) fn new(resource: ResourceName) -> Self {
        Self { resource }
    }

    pub(crate) fn carry_out(&mut self, batch: &mut Batch<'_>) -> Result<(), SideError> {
        batch.advance(&self.resource, None)
    }
}

/// What a caller hears whose request was lost.
fn dropped() -> SerializerError {
    SerializerError::Unexpected {
        message: "the request was dropped by a panic in the store".to_owned(),
    }
}
