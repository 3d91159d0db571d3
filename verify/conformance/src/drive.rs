//! Asking a store and judging what it answers: the verbs that the cases are written in.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::Poll;
use std::time::Duration;

use aster_lease::{
    DenyReason, ErrorKind, Fence, GrantId, LeaseOp, LeaseSerializer, LeaseSnapshot, Principal,
    RESOURCE_BYTES_MAX, ResourceName, SerializerError, TransitionOutcome, Ttl,
};

use crate::harness::{Harness, Possible, Written};

/// The end of a case.
pub(crate) type Checked<T = ()> = Result<T, Stop>;

pub(crate) enum Stop {
    /// The rule is broken; what was seen.
    Broken(String),
    /// The harness cannot do this.
    NotPossible(&'static str),
}

/// Stops the case unless `holds`.
pub(crate) fn ensure(holds: bool, seen: impl FnOnce() -> String) -> Checked {
    if holds { Ok(()) } else { broken(seen()) }
}

pub(crate) fn broken<T>(seen: impl Into<String>) -> Checked<T> {
    Err(Stop::Broken(seen.into()))
}

pub(crate) const RESOURCE: &str = "catalog/current";
pub(crate) const A: &str = "worker-a";
pub(crate) const B: &str = "worker-b";
pub(crate) const C: &str = "worker-c";
pub(crate) const D: &str = "worker-d";
/// Long enough that nothing expires unless the case moves the clock.
pub(crate) const TTL: Duration = Duration::from_secs(60);

/// Short enough to be waited for, and longer than a case takes that must not see it pass.
pub(crate) const SHORT_TTL: Duration = Duration::from_secs(2);

/// Longer than any store remembers a free row: longer than any retry, and than the longest hold-off.
pub(crate) const LONG_IDLE: Duration = Duration::from_secs(48 * 60 * 60);

/// Two clocks of one machine do not tick at once.
const CLOCK_GRAIN: Duration = Duration::from_millis(50);

/// How often a store that answers "try again" is asked again.
const RETRIES_MAX: u32 = 500;
const RETRY_PAUSE: Duration = Duration::from_millis(10);

/// One case at one fresh store.
pub(crate) struct Drive<'h, H: Harness> {
    pub(crate) harness: &'h H,
    pub(crate) store: H::Store,
    prefix: String,
}

impl<'h, H: Harness> Drive<'h, H> {
    pub(crate) async fn fresh(harness: &'h H) -> Self {
        let store = harness.fresh().await;
        Self {
            harness,
            prefix: harness.prefix(&store).to_owned(),
            store,
        }
    }

    /// The case's `name` as this store knows it. The verbs below do this by themselves.
    pub(crate) fn name(&self, name: &str) -> String {
        format!("{}{name}", self.prefix)
    }

    /// Of a name that the store told: the case's own part of it.
    pub(crate) fn plain<'n>(&self, name: &'n str) -> &'n str {
        name.strip_prefix(&self.prefix).unwrap_or(name)
    }

    /// The case is alone in its store; what it leaves there bothers nobody.
    pub(crate) fn is_alone(&self) -> bool {
        self.prefix.is_empty()
    }

    /// The longest name that the cases can use.
    pub(crate) fn name_bytes_max(&self) -> usize {
        RESOURCE_BYTES_MAX.saturating_sub(self.prefix.len())
    }

    /// Another store than this one, where the harness can make one.
    pub(crate) async fn another(&self) -> Checked<Self> {
        if self.is_alone() {
            Ok(Self::fresh(self.harness).await)
        } else {
            Err(Stop::NotPossible("a second store"))
        }
    }

    pub(crate) fn serializer(&self) -> &dyn LeaseSerializer {
        self.harness.serializer(&self.store)
    }

    /// The store's answer, whatever it is, asked again while the store says so.
    pub(crate) async fn answer(
        &self,
        resource: &str,
        op: LeaseOp,
    ) -> Result<TransitionOutcome, SerializerError> {
        let resource = self.name(resource);
        let mut retries = 0;
        loop {
            match self.serializer().transition(&resource, op.clone()).await {
                Err(error) if error.kind() == ErrorKind::Retry && retries < RETRIES_MAX => {
                    retries += 1;
                    tokio::time::sleep(RETRY_PAUSE).await;
                }
                answer => return answer,
            }
        }
    }

    pub(crate) async fn ask(&self, resource: &str, op: LeaseOp) -> Checked<TransitionOutcome> {
        let asked = format!("{op:?} of {resource}");
        match self.answer(resource, op).await {
            Ok(outcome) => Ok(outcome),
            Err(error) => broken(format!("{asked} failed: {error}")),
        }
    }

    pub(crate) async fn granted(&self, resource: &str, op: LeaseOp) -> Checked<Fence> {
        match self.ask(resource, op.clone()).await? {
            TransitionOutcome::Granted(fence) => Ok(fence),
            other => broken(format!("{op:?} of {resource} was answered {other:?}")),
        }
    }

    /// A grant of [`RESOURCE`] to `candidate` under the `grant`-th wish.
    pub(crate) async fn acquired(&self, candidate: &str, grant: u8) -> Checked<Fence> {
        self.granted(RESOURCE, acquire(candidate, TTL, grant)).await
    }

    pub(crate) async fn answered(&self, op: LeaseOp, expected: TransitionOutcome) -> Checked {
        let outcome = self.ask(RESOURCE, op.clone()).await?;
        ensure(outcome == expected, || {
            format!("{op:?} was answered {outcome:?}, expected {expected:?}")
        })
    }

    pub(crate) async fn denied(&self, op: LeaseOp, expected: DenyReason) -> Checked<LeaseSnapshot> {
        match self.ask(RESOURCE, op.clone()).await? {
            TransitionOutcome::Denied(reason, snapshot) if reason == expected => Ok(snapshot),
            other => broken(format!(
                "{op:?} was answered {other:?}, expected a denial: {expected:?}"
            )),
        }
    }

    pub(crate) async fn snapshot(&self, resource: &str) -> Checked<LeaseSnapshot> {
        match self.serializer().snapshot(&self.name(resource)).await {
            Ok(snapshot) => Ok(snapshot),
            Err(error) => broken(format!("the snapshot of {resource} failed: {error}")),
        }
    }

    /// The row without its estimate of the remaining time, which moves by itself.
    pub(crate) async fn row(&self) -> Checked<LeaseSnapshot> {
        let snapshot = self.snapshot(RESOURCE).await?;
        Ok(LeaseSnapshot {
            remaining: None,
            ..snapshot
        })
    }

    pub(crate) async fn advance(&self, by: Duration) -> Checked {
        match self.harness.advance(&self.store, by).await {
            Possible::Yes => Ok(()),
            Possible::No => Err(Stop::NotPossible("a clock that can be moved")),
        }
    }

    pub(crate) async fn restart(&mut self) -> Checked {
        match self.harness.restart(&mut self.store).await {
            Possible::Yes => Ok(()),
            Possible::No => Err(Stop::NotPossible("a restart")),
        }
    }

    /// Lets `time` pass on the store's clock: by moving it or, where it runs by itself, by waiting.
    pub(crate) async fn pass(&self, time: Duration) -> Checked {
        match self.advance(time).await {
            Err(Stop::NotPossible(_)) if self.harness.clock_runs() => {
                tokio::time::sleep(time + CLOCK_GRAIN).await;
                Ok(())
            }
            answer => answer,
        }
    }

    /// Lets `time` pass and other resources change hands, so that a store which drops idle rows does.
    pub(crate) async fn idle_for(&self, time: Duration) -> Checked {
        self.advance(time).await?;
        for index in 0..self.harness.grants_until_idle_rows_go() {
            let name = format!("churn/{index}");
            let fence = self.granted(&name, acquire(B, TTL, 1)).await?;
            self.ask(&name, release(B, fence.epoch)).await?;
        }
        Ok(())
    }

    /// Sends a request and gives up on it after one look: it may have been carried out or not.
    pub(crate) async fn abandoned(&self, op: LeaseOp) {
        let resource = self.name(RESOURCE);
        let mut request = self.serializer().transition(&resource, op);
        poll_fn(|context| {
            let _ = request.as_mut().poll(context);
            Poll::Ready(())
        })
        .await;
    }

    pub(crate) async fn write(&self, fence: &Fence, writer: &str, value: &str) -> Checked<Written> {
        match self.harness.write(&self.store, fence, writer, value).await {
            Written::NotPossible => Err(Stop::NotPossible("a protected write")),
            written => Ok(written),
        }
    }

    pub(crate) async fn effect(&self, resource: &str) -> Option<String> {
        self.harness.read(&self.store, &self.name(resource)).await
    }
}

pub(crate) fn acquire(candidate: &str, ttl: Duration, grant: u8) -> LeaseOp {
    LeaseOp::Acquire {
        candidate: principal(candidate),
        ttl: whole(ttl),
        grant_id: GrantId::from_bytes([grant; 16]),
    }
}

pub(crate) fn renew(holder: &str, epoch: u64) -> LeaseOp {
    LeaseOp::Renew {
        holder: principal(holder),
        epoch,
    }
}

pub(crate) fn release(holder: &str, epoch: u64) -> LeaseOp {
    LeaseOp::Release {
        holder: principal(holder),
        epoch,
    }
}

pub(crate) fn revoke(epoch: u64, hold_off: Option<Duration>) -> LeaseOp {
    LeaseOp::Revoke {
        operator: principal("operator"),
        epoch,
        hold_off,
    }
}

pub(crate) fn cancel(candidate: &str, grant: u8) -> LeaseOp {
    LeaseOp::Cancel {
        candidate: principal(candidate),
        grant_id: GrantId::from_bytes([grant; 16]),
    }
}

#[allow(clippy::expect_used, reason = "the suites' own constants are valid")]
pub(crate) fn principal(name: &str) -> Principal {
    Principal::new(name).expect("a valid principal")
}

#[allow(clippy::expect_used, reason = "the suites' own constants are valid")]
pub(crate) fn resource_name(name: &str) -> ResourceName {
    ResourceName::new(name).expect("a valid resource name")
}

#[allow(clippy::expect_used, reason = "the suites' own constants are valid")]
pub(crate) fn whole(ttl: Duration) -> Ttl {
    Ttl::new(ttl).expect("a ttl in whole milliseconds")
}

/// Runs many futures at once on the caller's task.
pub(crate) async fn all_at_once<'f, T>(
    futures: impl IntoIterator<Item = Pin<Box<dyn Future<Output = T> + Send + 'f>>>,
) -> Vec<T> {
    let mut waiting: Vec<_> = futures.into_iter().map(Some).collect();
    let mut done = Vec::with_capacity(waiting.len());
    poll_fn(|context| {
        for slot in &mut waiting {
            if let Some(future) = slot
                && let Poll::Ready(result) = future.as_mut().poll(context)
            {
                done.push(result);
                *slot = None;
            }
        }
        if waiting.iter().all(Option::is_none) {
            Poll::Ready(())
        } else {
            Poll::Pending
        }
    })
    .await;
    done
}
