//! Who orders ownership changes.

use std::sync::Arc;

use aster_core::{Authority, LeaseOp, LeaseSnapshot, ResourceName, TransitionOutcome};
use async_trait::async_trait;

use crate::error::SerializerError;

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

    async fn list(&self, query: ListQuery) -> Result<Vec<LeaseSnapshot>, SerializerError> {
        (**self).list(query).await
    }

    async fn authority(&self) -> Result<Authority, SerializerError> {
        (**self).authority().await
    }
}
