//! A worker's connection to its serializer, which a test can cut.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use aster::lease::{LeaseOp, LeaseSerializer, LeaseSnapshot, SerializerError, TransitionOutcome};

pub(crate) struct Link<S> {
    serializer: Arc<S>,
    is_cut: AtomicBool,
}

impl<S> Link<S> {
    pub(crate) fn to(serializer: Arc<S>) -> Self {
        Self {
            serializer,
            is_cut: AtomicBool::new(false),
        }
    }

    pub(crate) fn cut(&self) {
        self.is_cut.store(true, Ordering::SeqCst);
    }

    fn pass(&self) -> Result<(), SerializerError> {
        if self.is_cut.load(Ordering::SeqCst) {
            return Err(SerializerError::Unavailable {
                message: "the link is cut".to_owned(),
                source: None,
            });
        }
        Ok(())
    }
}

#[async_trait::async_trait]
impl<S: LeaseSerializer> LeaseSerializer for Link<S> {
    async fn transition(
        &self,
        resource: &str,
        op: LeaseOp,
    ) -> Result<TransitionOutcome, SerializerError> {
        self.pass()?;
        self.serializer.transition(resource, op).await
    }

    async fn snapshot(&self, resource: &str) -> Result<LeaseSnapshot, SerializerError> {
        self.pass()?;
        self.serializer.snapshot(resource).await
    }
}
