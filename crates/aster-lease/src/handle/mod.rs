//! The holder's engine (specification, "Handle lease loss").
//!
//! | file | what lives there |
//! |---|---|
//! | `mod.rs` | [`LeaseHandle`] |
//! | `options.rs` | ttl, renew interval, margin, and their check |
//! | `acquire.rs` | the builder; acquire with retries |
//! | `wait.rs` | acquire when one's turn comes |
//! | `queue.rs` | one place in the queue, kept against lost requests and answers |
//! | `wish.rs` | one wish to own a resource; what is undone when the caller goes away |
//! | `schedule/` | renewing in the background, all leases of a serializer together |
//! | `guard.rs` | work that ends with its lease, and how a release waits for it |
//! | `leader.rs` | work that runs while its lease lasts, over and over |
//! | `release.rs` | release with retries, in bounded time, also with a value |
//! | `state.rs` | the self-limit, the end and its reason: one value behind one lock |
//! | `attempt.rs` | one request with its time limit, pauses between retries |

mod acquire;
mod attempt;
mod guard;
mod leader;
mod options;
mod queue;
mod release;
mod schedule;
mod state;
mod wait;
mod wish;

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use aster_core::{ExpectedRevision, Fence, Principal, ResourceName};
use tokio::runtime::Handle;
use tokio::sync::watch;
use tracing::Instrument;

pub use acquire::{AcquireOutcome, LeaseBuilder};
pub use guard::LeaseEnded;
pub use leader::run_while_leader;
pub use options::LeaseOptions;
pub use release::ReleaseOutcome;
pub use state::{EndedReason, LeaseStatus};

use crate::error::LeaseError;
use crate::registers::Registers;
use crate::serializer::LeaseSerializer;
use crate::writer::Writer;
use schedule::Slot;
use state::Shared;

pub(crate) use attempt::within;

/// A lease that is held and renewed in the background.
///
/// [`fence`](Self::fence) hands out the fence only while it may be used: it looks at the clock, so a
/// process that was stopped or a machine that was suspended gets `None` at once, even if no task has
/// run. That is the holder's own caution; what makes a write safe is the check at the resource.
///
/// A lease that has ended stays ended. Drop stops the renewal and does **not** release: the resource
/// is free once the ttl has passed. Call [`release`](Self::release) when the work is done.
///
/// See [`MemorySerializer`](crate::MemorySerializer) for a runnable example.
pub struct LeaseHandle {
    shared: Arc<Shared>,
    /// Its place in the schedule.
    slot: Slot,
}

impl LeaseHandle {
    /// Asks `serializer` for `resource` on behalf of `holder`, once, without waiting for its present
    /// owner.
    ///
    /// Lost replies and passing failures are retried under one grant id for as long as a grant would
    /// be usable (between 3 s and 60 s). Cancel safe: if the future is dropped, whatever was granted is given
    /// back in the background, and at the latest one ttl later it is free.
    ///
    /// Needs a tokio runtime with its timer on; the lease is renewed there.
    ///
    /// # Errors
    ///
    /// [`LeaseError::Invalid`] when a name or an option is not acceptable, before anything is sent;
    /// [`LeaseError::Serializer`] when there was no answer. A denial is an `Ok`.
    pub async fn acquire<S>(
        serializer: Arc<S>,
        resource: &str,
        holder: &str,
        options: LeaseOptions,
    ) -> Result<AcquireOutcome, LeaseError>
    where
        S: LeaseSerializer + ?Sized,
    {
        Self::builder(serializer, resource, holder)
            .options(options)
            .acquire()
            .await
    }

    /// Acquires `resource`, waiting for its turn in the serializer's queue for `wait` at most (up to
    /// [`WAIT_MAX`](crate::WAIT_MAX)): first come, first served within one life of the serializer. A
    /// wait of zero asks once.
    ///
    /// A wait that ran out is answered with
    /// [`DenyReason::WaitRanOut`](aster_core::DenyReason::WaitRanOut). Who is kept out or not authorized
    /// is denied at once. A grant that was waited for is renewed once before it is handed out, so that
    /// its fence counts from a moment that this holder knows; a turn that lapsed before it was heard of
    /// is waited for again.
    ///
    /// Lost answers, restarts of the serializer and other passing failures are retried for as long as
    /// the wait lasts (at least 3 s), keeping the place where the serializer still knows it. Cancel
    /// safe: dropping the future leaves the queue, and a grant that was made is given back in the
    /// background.
    ///
    /// # Errors
    ///
    /// As [`acquire`](Self::acquire), and
    /// [`SerializerError::Unsupported`](crate::SerializerError::Unsupported) from a store that cannot
    /// queue: ask it from time to time, or use [`run_while_leader`].
    pub async fn acquire_wait<S>(
        serializer: Arc<S>,
        resource: &str,
        holder: &str,
        options: LeaseOptions,
        wait: Duration,
    ) -> Result<AcquireOutcome, LeaseError>
    where
        S: LeaseSerializer + ?Sized,
    {
        Self::builder(serializer, resource, holder)
            .options(options)
            .acquire_wait(wait)
            .await
    }

    /// The same with a choice of clock, randomness and grant id.
    pub fn builder<S>(serializer: Arc<S>, resource: &str, holder: &str) -> LeaseBuilder
    where
        S: LeaseSerializer + ?Sized,
    {
        LeaseBuilder::new(serializer, resource, holder)
    }

    fn start(shared: Arc<Shared>, runtime: &Handle) -> Self {
        let slot = shared.parts.schedule.join(&shared, runtime);
        Self { shared, slot }
    }

    /// Ends the lease for its holder: no fence and no further renewal from here on.
    fn end(&self, reason: EndedReason) {
        // Past the self-limit it was lost before, whether or not anybody looked.
        self.shared.remaining();
        self.shared.end(reason);
        self.shared.parts.schedule.leave(self.slot, &self.shared);
    }

    /// The fence, while it may be used; `None` from the moment at which the holder has to doubt its
    /// ownership. Fetch it immediately before each protected action.
    #[must_use]
    pub fn fence(&self) -> Option<Fence> {
        self.shared.remaining().map(|_| self.shared.fence.clone())
    }

    /// The granted epoch, also after the end.
    #[must_use]
    pub fn epoch(&self) -> u64 {
        self.shared.fence.epoch
    }

    /// The resource.
    #[must_use]
    pub fn resource(&self) -> &ResourceName {
        &self.shared.fence.resource
    }

    /// The identity that the lease was granted to.
    #[must_use]
    pub fn holder(&self) -> &Principal {
        &self.shared.fence.holder
    }

    /// Where the lease stands now.
    #[must_use]
    pub fn status(&self) -> LeaseStatus {
        self.shared.status()
    }

    /// How long the fence may still be used if no renewal succeeds; `None` once the lease has ended.
    #[must_use]
    pub fn remaining(&self) -> Option<Duration> {
        self.shared.remaining()
    }

    /// Why the lease ended; `None` while it is held.
    #[must_use]
    pub fn ended_reason(&self) -> Option<EndedReason> {
        self.shared.ended()
    }

    /// Follows the status. The receiver sees one change, from `Held` to where the lease ended.
    #[must_use]
    pub fn watch(&self) -> watch::Receiver<LeaseStatus> {
        self.shared.subscribe()
    }

    /// Resolves once the lease has ended, with the reason. Independent of the handle's lifetime.
    pub fn lost(&self) -> impl Future<Output = EndedReason> + Send + Sync + 'static {
        let shared = self.shared.clone();
        let mut status = shared.subscribe();
        async move {
            loop {
                if let Some(reason) = shared.ended() {
                    return reason;
                }
                // `shared` owns the sender, so this cannot fail while we hold it; if it did, the
                // reason would be looked up again.
                let _ = status.changed().await;
            }
        }
    }

    /// Gives the lease up and frees the resource. The fence and the renewal stop at this call, before
    /// the future is first polled; the future may be dropped and still nothing is renewed.
    ///
    /// Work that runs under a [`guard`](Self::guard) is dropped first. Takes at most the ttl, but
    /// between 1 s and 10 s. Can be repeated, also after a failure.
    ///
    /// Release advances the epoch, so that writes still in flight under the old fence are rejected
    /// (specification, "Handle lease loss").
    ///
    /// # Errors
    ///
    /// [`LeaseError`] when the serializer did not confirm it in time, and
    /// [`LeaseError::StillWorking`] when guarded work blocks its thread for half of that time: nothing
    /// was sent then. The resource is free at the latest one ttl after the last renewal.
    pub fn release(
        &self,
    ) -> impl Future<Output = Result<ReleaseOutcome, LeaseError>> + Send + 'static {
        self.end(EndedReason::Released);
        let span = tracing::debug_span!("release", fence = %self.shared.fence);
        release::run(self.shared.clone()).instrument(span)
    }

    /// Writes `value` to the resource's register and gives the lease up, both or neither: the next
    /// owner finds the value, and no other write of this epoch comes after it. Answers the new
    /// revision.
    ///
    /// Like [`release`](Self::release) it ends the fence and the renewal at this call, waits for guarded
    /// work, and takes at most the ttl, but between 1 s and 10 s. `registers` is the store that issued
    /// the lease, `writer` the authenticated identity that asks for the write (specification, "Enforce
    /// at the write boundary").
    ///
    /// Lost answers are retried under one write id, and so is the same call again: whoever repeats it
    /// with the same value after a failure learns the revision that the first one made.
    ///
    /// # Errors
    ///
    /// Neither half has happened after [`LeaseError::Register`] (the fence was refused, or another value
    /// is there than expected), [`LeaseError::Ended`] (the lease was lost or dropped before) and
    /// [`LeaseError::StillWorking`]. After an error of kind [`Retry`](aster_core::ErrorKind::Retry) from
    /// the store both may have happened; call again. [`LeaseError::Unsettled`] says that it can no longer
    /// be told: an attempt had no answer, and ownership has moved on since. After any failure a plain
    /// release still gives the lease up.
    pub fn release_with_value<R, W>(
        &self,
        registers: Arc<R>,
        writer: &W,
        expected: ExpectedRevision,
        value: Vec<u8>,
    ) -> impl Future<Output = Result<u64, LeaseError>> + Send + 'static + use<R, W>
    where
        R: Registers + ?Sized,
        W: Writer + ?Sized,
    {
        self.end(EndedReason::Released);
        let writer = writer.writer().to_owned();
        let span = tracing::debug_span!("release_with_value", fence = %self.shared.fence);
        release::run_with_value(self.shared.clone(), registers, writer, expected, value)
            .instrument(span)
    }
}

impl Drop for LeaseHandle {
    fn drop(&mut self) {
        self.end(EndedReason::Dropped);
    }
}

impl fmt::Debug for LeaseHandle {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("LeaseHandle")
            .field("fence", &self.shared.fence)
            .field("status", &self.status())
            .finish_non_exhaustive()
    }
}
