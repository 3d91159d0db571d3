//! Who orders ownership changes.

use std::sync::Arc;

use aster_core::{Authority, LeaseOp, LeaseSnapshot, ResourceName, TransitionOutcome};
use async_trait::async_trait;

use crate::error::SerializerError;
use crate::metrics::Metrics;
use crate::waiting::{WaitOutcome, WaitRequest, Waiter};
use crate::watching::LeaseWatch;

/// The most rows that one call of [`LeaseSerializer::list`] answers.
pub const LIST_PAGE_MAX: usize = 1_000;

/// The component that orders grant, renew, release, revoke and cancel (specification, "Connect the
/// grant to enforcement").
///
/// An implementation loads the row, calls [`transition`](fn@aster_core::transition) and stores the
/// effect in one lock or transaction. It judges expiry on its own monotonic clock; it answers an
/// ownership change only after it is as durable as the store promises.
///
/// Every method is cancel safe in this sense: a dropped future leaves the request either carried out
/// or not, never half, and a retry of the same request is recognized.
#[async_trait]
pub trait LeaseSerializer: Send + Sync + 'static {
    /// Applies one operation to `resource`. A denial is an `Ok`.
    ///
    /// # Errors
    ///
    /// [`SerializerError`] when there is no answer or the input is not acceptable. After an error of
    /// kind [`Retry`](aster_core::ErrorKind::Retry) the request may have been carried out.
    async fn transition(
        &self,
        resource: &str,
        op: LeaseOp,
    ) -> Result<TransitionOutcome, SerializerError>;

    /// What the row looks like. A hint.
    ///
    /// # Errors
    ///
    /// [`SerializerError`] when the store cannot be read or the name is not acceptable.
    async fn snapshot(&self, resource: &str) -> Result<LeaseSnapshot, SerializerError>;

    /// How many requests one [`transition_many`](Self::transition_many) should carry; 1, the default,
    /// says that there is nothing to gain. A holder's engine sends renewals one by one then, so that a
    /// slow one delays no other.
    ///
    /// A store that says more promises that no item of a batch makes the others wait: an item that it
    /// cannot answer at once is answered with an error of kind [`Retry`](aster_core::ErrorKind::Retry).
    fn batch_max(&self) -> usize {
        1
    }

    /// Applies many operations; the answers stand in the order of the requests, and one that fails
    /// fails alone. The default sends them one after the other; a store may carry them out in any
    /// order, so what has to come first is sent, and answered, first.
    async fn transition_many(
        &self,
        requests: Vec<(ResourceName, LeaseOp)>,
    ) -> Vec<Result<TransitionOutcome, SerializerError>> {
        let mut outcomes = Vec::with_capacity(requests.len());
        for (resource, op) in requests {
            outcomes.push(self.transition(&resource, op).await);
        }
        outcomes
    }

    /// Acquires `resource`, waiting for it in a queue if others have it: first come, first served
    /// within one life of the serializer. Whoever is first is granted directly at a release, a revoke,
    /// a cancel or an expiry; nobody else is woken for that, and a plain Acquire does not overtake.
    ///
    /// A grant that was waited for lasts for the short *claim time* only, until its first renewal, so
    /// that a dead waiter costs the others little: see [`WaitOutcome::Granted`]. A waiter that was
    /// passed over in this way hears [`DenyReason::Expired`](aster_core::DenyReason::Expired) and may
    /// queue again under a new grant id.
    ///
    /// Dropping the future leaves the queue; a grant made at that moment is given back, or lapses after
    /// the claim time.
    ///
    /// # Errors
    ///
    /// [`SerializerError::Unsupported`] unless the store implements it;
    /// [`Overloaded`](SerializerError::Overloaded) when the queue is full; an error of kind
    /// [`Retry`](aster_core::ErrorKind::Retry) when the serializer restarted and forgot its queue: ask
    /// again under the same grant id.
    async fn acquire_wait(
        &self,
        resource: &str,
        request: WaitRequest,
    ) -> Result<WaitOutcome, SerializerError> {
        let _ = (resource, request);
        Err(SerializerError::Unsupported {
            operation: "acquire_wait",
        })
    }

    /// Who waits for `resource`, the next one first. A hint.
    ///
    /// # Errors
    ///
    /// [`SerializerError::Unsupported`] unless the store implements it.
    async fn queue(&self, resource: &str) -> Result<Vec<Waiter>, SerializerError> {
        let _ = resource;
        Err(SerializerError::Unsupported { operation: "queue" })
    }

    /// Follows who owns `resource`. A hint: never gate a protected write on it.
    ///
    /// # Errors
    ///
    /// [`SerializerError::Unsupported`] unless the store implements it.
    async fn watch(&self, resource: &str) -> Result<LeaseWatch, SerializerError> {
        let _ = resource;
        Err(SerializerError::Unsupported { operation: "watch" })
    }

    /// The rows, in byte order of their names. A hint.
    ///
    /// # Errors
    ///
    /// [`SerializerError::Unsupported`] unless the store implements it.
    async fn list(&self, query: ListQuery) -> Result<Vec<LeaseSnapshot>, SerializerError> {
        let _ = query;
        Err(SerializerError::Unsupported { operation: "list" })
    }

    /// The id of the store, carried in every fence that it issues.
    ///
    /// # Errors
    ///
    /// [`SerializerError::Unsupported`] unless the store implements it.
    async fn authority(&self) -> Result<Authority, SerializerError> {
        Err(SerializerError::Unsupported {
            operation: "authority",
        })
    }

    /// Where handles of this serializer count their leases and renewals unless they are
    /// given another place; nowhere by default. A store answers what it
    /// counts in itself.
    fn metrics(&self) -> Metrics {
        Metrics::default()
    }
}

/// Which rows to list.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ListQuery {
    /// Only names that start with these bytes; empty for all.
    pub prefix: String,
    /// Only names after this one, for the next page.
    pub after: Option<ResourceName>,
    /// At most this many; 0 and anything above [`LIST_PAGE_MAX`] mean [`LIST_PAGE_MAX`].
    pub limit: usize,
    /// Only rows that are held.
    pub held_only: bool,
}

impl ListQuery {
    /// The limit to use.
    #[must_use]
    pub fn page(&self) -> usize {
        match self.limit {
            0 => LIST_PAGE_MAX,
            limit => limit.min(LIST_PAGE_MAX),
        }
    }
}

#[async_trait]
impl<T: LeaseSerializer + ?Sized> LeaseSerializer for Arc<T> {
    async fn transition(
        &self,
        resource: &str,
        op: LeaseOp,
    ) -> Result<TransitionOutcome, SerializerError> {
        (**self).transition(resource, op).await
    }

    async fn snapshot(&self, resource: &str) -> Result<LeaseSnapshot, SerializerError> {
        (**self).snapshot(resource).await
    }

    async fn transition_many(
        &self,
        requests: Vec<(ResourceName, LeaseOp)>,
    ) -> Vec<Result<TransitionOutcome, SerializerError>> {
        (**self).transition_many(requests).await
    }

    fn batch_max(&self) -> usize {
        (**self).batch_max()
    }

    async fn acquire_wait(
        &self,
        resource: &str,
        request: WaitRequest,
    ) -> Result<WaitOutcome, SerializerError> {
        (**self).acquire_wait(resource, request).await
    }

    async fn queue(&self, resource: &str) -> Result<Vec<Waiter>, SerializerError> {
        (**self).queue(resource).await
    }

    async fn watch(&self, resource: &str) -> Result<LeaseWatch, SerializerError> {
        (**self).watch(resource).await
    }

    async fn list(&self, query: ListQuery) -> Result<Vec<LeaseSnapshot>, SerializerError> {
        (**self).list(query).await
    }

    async fn authority(&self) -> Result<Authority, SerializerError> {
        (**self).authority().await
    }

    fn metrics(&self) -> Metrics {
        (**self).metrics()
    }
}
