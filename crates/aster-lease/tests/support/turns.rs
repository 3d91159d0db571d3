//! A serializer whose queue does what the test says.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use aster_lease::{
    DenyReason, LeaseOp, LeaseSerializer, LeaseSnapshot, MemorySerializer, SerializerError,
    TransitionOutcome, WaitOutcome, WaitRequest,
};
use async_trait::async_trait;

use super::{Fault, Faulty};

/// What becomes of one request to wait.
#[derive(Debug, Clone)]
pub enum Turn {
    /// Granted when the request came.
    AtOnce,
    /// Granted after a while, for the claim time.
    Waited(Duration, Duration),
    /// The same, and the grant lapses (an operator's revoke stands for it) before it is answered.
    Lapsed(Duration),
    /// Granted, but the answer gets lost.
    AnswerLost,
    /// Nobody answers.
    Silent,
    /// In the queue until the time asked for has run out.
    RanOut,
    /// A denial.
    Denied(DenyReason),
    /// The queue is full; another time, after this.
    Full(Duration),
    /// The queue was forgotten.
    Unavailable,
    /// The store was closed.
    Closed,
    /// There is no queue.
    Unsupported,
}

/// Requests to wait meet the script; everything else goes through to `network`.
pub struct Turns {
    pub network: Arc<Faulty>,
    script: Mutex<VecDeque<Turn>>,
    always: Mutex<Turn>,
    asked: Mutex<Vec<WaitRequest>>,
    waiting: AtomicUsize,
    yields: usize,
}

impl Turns {
    pub fn new(always: Turn) -> Arc<Self> {
        Self::with_yields(always, 0)
    }

    pub fn with_yields(always: Turn, yields: usize) -> Arc<Self> {
        Self::through(Faulty::with_yields(yields), always, yields)
    }

    /// Another way to the same rows.
    pub fn over(store: MemorySerializer, always: Turn) -> Arc<Self> {
        Self::through(Faulty::over(store), always, 0)
    }

    fn through(network: Arc<Faulty>, always: Turn, yields: usize) -> Arc<Self> {
        Arc::new(Self {
            network,
            script: Mutex::default(),
            always: Mutex::new(always),
            asked: Mutex::default(),
            waiting: AtomicUsize::new(0),
            yields,
        })
    }

    pub fn script(&self, turns: impl IntoIterator<Item = Turn>) {
        self.script.lock().unwrap().extend(turns);
    }

    pub fn always(&self, turn: Turn) {
        *self.always.lock().unwrap() = turn;
    }

    pub fn asked(&self) -> Vec<WaitRequest> {
        self.asked.lock().unwrap().clone()
    }

    /// How many requests stand in the queue now.
    pub fn waiting(&self) -> usize {
        self.waiting.load(Ordering::SeqCst)
    }

    async fn grant(
        &self,
        resource: &str,
        request: &WaitRequest,
        claim: Option<Duration>,
    ) -> Result<WaitOutcome, SerializerError> {
        let outcome = self
            .network
            .store
            .transition(resource, request.acquire())
            .await?;
        Ok(match outcome {
            TransitionOutcome::Granted(fence) => WaitOutcome::Granted { fence, claim },
            TransitionOutcome::Denied(reason, snapshot) => WaitOutcome::Denied(reason, snapshot),
            other => panic!("{other:?}"),
        })
    }
}

/// Counts down when a request ends, in whatever way.
struct Standing<'a>(&'a AtomicUsize);

impl Drop for Standing<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

#[async_trait]
impl LeaseSerializer for Turns {
    async fn transition(
        &self,
        resource: &str,
        op: LeaseOp,
    ) -> Result<TransitionOutcome, SerializerError> {
        self.network.transition(resource, op).await
    }

    async fn snapshot(&self, resource: &str) -> Result<LeaseSnapshot, SerializerError> {
        self.network.snapshot(resource).await
    }

    async fn acquire_wait(
        &self,
        resource: &str,
        request: WaitRequest,
    ) -> Result<WaitOutcome, SerializerError> {
        self.asked.lock().unwrap().push(request.clone());
        self.waiting.fetch_add(1, Ordering::SeqCst);
        let _standing = Standing(&self.waiting);
        let turn = self.script.lock().unwrap().pop_front();
        let turn = turn.unwrap_or_else(|| self.always.lock().unwrap().clone());
        for _ in 0..self.yields {
            tokio::task::yield_now().await;
        }
        let answer = match turn {
            Turn::AtOnce => self.grant(resource, &request, None).await,
            Turn::Waited(after, claim) => {
                tokio::time::sleep(after).await;
                self.grant(resource, &request, Some(claim)).await
            }
            Turn::Lapsed(after) => {
                tokio::time::sleep(after).await;
                let claim = Duration::from_secs(1);
                let granted = self.grant(resource, &request, Some(claim)).await;
                let store = &self.network.store;
                aster_lease::revoke(store, resource, "operator", None)
                    .await
                    .unwrap();
                granted
            }
            Turn::AnswerLost => {
                let _lost = self.grant(resource, &request, None).await;
                std::future::pending().await
            }
            Turn::Silent => std::future::pending().await,
            Turn::RanOut => {
                tokio::time::sleep(request.wait).await;
                let snapshot = self.network.store.snapshot(resource).await?;
                Ok(WaitOutcome::Denied(DenyReason::WaitRanOut, snapshot))
            }
            Turn::Denied(reason) => {
                let snapshot = self.network.store.snapshot(resource).await?;
                Ok(WaitOutcome::Denied(reason, snapshot))
            }
            Turn::Full(retry_after) => Err(SerializerError::Overloaded { retry_after }),
            Turn::Unavailable => Err(SerializerError::Unavailable {
                message: "restarted".to_owned(),
                source: None,
            }),
            Turn::Closed => Err(SerializerError::Closed),
            Turn::Unsupported => Err(SerializerError::Unsupported {
                operation: "acquire_wait",
            }),
        };
        for _ in 0..self.yields {
            tokio::task::yield_now().await;
        }
        answer
    }
}

/// A network on which only requests to wait get through.
pub fn cut(turns: &Turns) {
    turns.network.always(Fault::RequestLost);
}
