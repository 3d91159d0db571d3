//! The holder's engine on the store, and what is seen of its requests on their way.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use shuttle::future::block_on;
use stand_in::tokio::{self, sync::Notify};
use stand_in::world;

use super::super::lease::{
    AcquireOutcome, Clock, LeaseBuilder, LeaseError, LeaseHandle, LeaseOp, LeaseOptions,
    LeaseSerializer, LeaseSnapshot, ResourceName, SerializerError, TransitionOutcome, WaitOutcome,
    WaitRequest,
};
use super::{Counting, Place, RESOURCE, WorldClock};

/// The ttl of most leases here: renewed every second.
pub(super) const LEASE_TTL: Duration = Duration::from_secs(3);

/// The options of most leases here.
pub(super) fn renewed_every_second() -> LeaseOptions {
    LeaseOptions::with_ttl(LEASE_TTL)
}

/// How far off the store is.
#[derive(Debug, Clone, Copy)]
pub(super) enum Link {
    /// Requests and answers take no time and cannot be given up on their way.
    Near,
    /// They take no time, but can be given up.
    Far,
    /// Each takes this long, and so many renewals of the recorded resource are answered, no more.
    Slow(Duration, usize),
}

/// The store, seen from outside.
#[derive(Debug)]
struct Seen {
    place: Place,
    link: Link,
    /// Rung when a renewal of the resource comes, before the store hears of it.
    renewal: Notify,
    renewals: Mutex<Vec<Duration>>,
}

impl Seen {
    async fn renewal_of(&self, resource: &str, op: &LeaseOp) {
        if resource != RESOURCE || !matches!(op, LeaseOp::Renew { .. }) {
            return;
        }
        let renewals = {
            let renewals = self.renewals.lock();
            let mut renewals = renewals.unwrap_or_else(PoisonError::into_inner);
            renewals.push(world::now());
            renewals.len()
        };
        self.renewal.notify_one();
        if let Link::Slow(_, answered) = self.link
            && renewals > answered
        {
            std::future::pending().await
        }
    }

    async fn on_its_way(&self) {
        match self.link {
            Link::Near => {}
            Link::Far => tokio::task::yield_now().await,
            Link::Slow(time, _) => tokio::time::sleep(time).await,
        }
    }
}

#[async_trait]
impl LeaseSerializer for Seen {
    async fn transition(
        &self,
        resource: &str,
        op: LeaseOp,
    ) -> Result<TransitionOutcome, SerializerError> {
        self.renewal_of(resource, &op).await;
        self.on_its_way().await;
        let answer = self.place.store.transition(resource, op).await;
        self.on_its_way().await;
        answer
    }

    async fn snapshot(&self, resource: &str) -> Result<LeaseSnapshot, SerializerError> {
        self.place.store.snapshot(resource).await
    }

    fn batch_max(&self) -> usize {
        2
    }

    async fn transition_many(
        &self,
        requests: Vec<(ResourceName, LeaseOp)>,
    ) -> Vec<Result<TransitionOutcome, SerializerError>> {
        for (resource, op) in &requests {
            self.renewal_of(resource, op).await;
        }
        self.on_its_way().await;
        let answers = self.place.store.transition_many(requests).await;
        self.on_its_way().await;
        answers
    }

    async fn acquire_wait(
        &self,
        resource: &str,
        request: WaitRequest,
    ) -> Result<WaitOutcome, SerializerError> {
        self.on_its_way().await;
        let answer = self.place.store.acquire_wait(resource, request).await;
        self.on_its_way().await;
        answer
    }
}

/// The engine of one process on one store.
#[derive(Clone)]
pub(super) struct Engine {
    pub(super) place: Place,
    seen: Arc<Seen>,
    clock: Arc<dyn Clock>,
    entropy: Arc<Counting>,
}

impl Engine {
    pub(super) fn near() -> Self {
        Self::with(Link::Near)
    }

    pub(super) fn with(link: Link) -> Self {
        let place = Place::new();
        let seen = Seen {
            place: place.clone(),
            link,
            renewal: Notify::new(),
            renewals: Mutex::default(),
        };
        Self {
            place,
            seen: Arc::new(seen),
            clock: Arc::new(WorldClock),
            entropy: Arc::default(),
        }
    }

    fn builder(&self, resource: &str, holder: &str, options: LeaseOptions) -> LeaseBuilder {
        LeaseHandle::builder(self.seen.clone(), resource, holder)
            .clock(self.clock.clone())
            .entropy(self.entropy.clone())
            .options(options)
    }

    /// A lease of a resource, which has to be free.
    pub(super) fn lease(&self, resource: &str, options: LeaseOptions) -> LeaseHandle {
        match block_on(self.builder(resource, "a", options).acquire()) {
            Ok(AcquireOutcome::Granted(lease)) => lease,
            other => panic!("BROKEN a free resource can be acquired: {other:?}"),
        }
    }

    /// The lease of the resource whose history is recorded.
    pub(super) fn recorded(&self) -> LeaseHandle {
        let ended_up_to = self.place.record.ended_up_to();
        let lease = self.lease(RESOURCE, renewed_every_second());
        self.place.record.granted(lease.epoch(), ended_up_to);
        lease
    }

    /// Waits for a turn at the recorded resource.
    pub(super) async fn turn(
        &self,
        holder: &str,
        wait: Duration,
    ) -> Result<LeaseHandle, Result<AcquireOutcome, LeaseError>> {
        let ended_up_to = self.place.record.ended_up_to();
        let builder = self.builder(RESOURCE, holder, renewed_every_second());
        match builder.acquire_wait(wait).await {
            Ok(AcquireOutcome::Granted(lease)) => {
                self.place.record.granted(lease.epoch(), ended_up_to);
                Ok(lease)
            }
            other => Err(other),
        }
    }

    /// Releases the lease of the recorded resource.
    pub(super) fn release(&self, lease: &LeaseHandle) {
        let released = lease.release();
        assert!(
            lease.fence().is_none(),
            "BROKEN no fence once a release was called"
        );
        match block_on(released) {
            Ok(_) => self.place.record.ended(lease.epoch()),
            Err(error) => panic!("BROKEN a release is confirmed: {error}"),
        }
    }

    /// Until a renewal of the recorded resource is on its way.
    pub(super) fn until_renewal(&self) {
        block_on(self.seen.renewal.notified());
    }

    /// No renewal of the recorded resource was sent after `since`.
    pub(super) fn no_renewal_after(&self, since: Duration) {
        let renewals = self.seen.renewals.lock();
        let renewals = renewals.unwrap_or_else(PoisonError::into_inner);
        let late = renewals.iter().find(|at| **at > since);
        assert_eq!(
            late, None,
            "BROKEN a lease that was given up is renewed no more"
        );
    }
}
