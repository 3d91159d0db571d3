//! Carrying out a wait, and telling the oracle who stays and who leaves.

use aster_core::{GrantId, ResourceName};
use aster_lease::{LeaseSerializer, SerializerError, WaitOutcome, WaitRequest};

use super::Service;
use crate::bug::Bug;
use crate::history::Event;

impl Service {
    pub(super) async fn wait(
        &self,
        resource: &ResourceName,
        request: WaitRequest,
    ) -> Result<WaitOutcome, SerializerError> {
        let grant = request.grant_id;
        // A wait of no time takes no place, and leaves one that the wish has already.
        let what = match request.wait.is_zero() {
            true => "ask",
            false => "wait",
        };
        let call = self.begin(resource, what, Some(grant));
        let mut place = Place {
            service: self,
            call,
            resource,
            grant,
            is_settled: false,
        };
        let ttl_ms = request.ttl.as_millis();
        let answer = if self.has(Bug::WaiterForgotten) {
            std::future::pending().await
        } else if self.has(Bug::QueueWithoutOrder) {
            self.wait_in_disorder(resource, &request).await
        } else {
            self.store().acquire_wait(resource, request).await
        };
        match &answer {
            Ok(WaitOutcome::Granted { fence, claim }) => {
                place.is_settled = true;
                self.renew_the_dead(fence, ttl_ms);
                self.record(self.granted(call, fence, grant, ttl_ms, claim.is_some()));
            }
            Ok(WaitOutcome::Denied(reason, snapshot)) => {
                self.record(self.denied(call, what, *reason, snapshot));
            }
            Ok(other) => self.record(self.failed(call, resource, what, format!("{other:?}"))),
            Err(error) => self.record(self.failed(call, resource, what, error.to_string())),
        }
        answer
    }
}

/// Tells the oracle that a waiter has left without a grant, also when it is dropped.
struct Place<'a> {
    service: &'a Service,
    call: u64,
    resource: &'a ResourceName,
    grant: GrantId,
    is_settled: bool,
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        if !self.is_settled {
            self.service.record(Event::Left {
                call: self.call,
                resource: self.resource.clone(),
                grant: self.grant,
            });
        }
    }
}
