//! Whoever goes away without a word blocks others for one ttl at most, and leaves no place in a queue
//! and no task (design, "The holder's engine").

use std::collections::BTreeMap;

use aster_core::{DenyReason, ResourceName};

use super::Invariant;
use crate::history::{Entry, Event};

#[derive(Default)]
pub(crate) struct NothingLeftBehind {
    /// When each lease was last granted, renewed or seen for the first time, on the serializer's clock.
    armed_us: BTreeMap<(ResourceName, u64), u64>,
}

impl Invariant for NothingLeftBehind {
    fn name(&self) -> &'static str {
        "nothing_left_behind"
    }

    fn see(&mut self, entry: &Entry) -> Result<(), String> {
        match &entry.event {
            Event::Granted {
                resource,
                epoch,
                monotonic_us,
                ..
            }
            | Event::Renewed {
                resource,
                epoch,
                monotonic_us,
            } => {
                self.armed_us
                    .insert((resource.clone(), *epoch), *monotonic_us);
            }
            Event::Restarted { monotonic_us } => {
                for armed_us in self.armed_us.values_mut() {
                    *armed_us = *monotonic_us;
                }
            }
            Event::Denied {
                resource,
                what: "acquire",
                reason: DenyReason::HeldByOther,
                epoch,
                held: true,
                ttl_ms,
                monotonic_us,
                ..
            } => {
                // A lease that nobody heard of counts from when it was seen first.
                let armed_us = self
                    .armed_us
                    .entry((resource.clone(), *epoch))
                    .or_insert(*monotonic_us);
                let age_us = monotonic_us - *armed_us;
                if age_us > ttl_ms * 1_000 {
                    return Err(format!(
                        "epoch {epoch} of {resource} still blocks others {} ms after its last renewal, its ttl is {ttl_ms} ms",
                        age_us / 1_000
                    ));
                }
            }
            Event::LeftOver { what } => return Err(what.clone()),
            _ => {}
        }
        Ok(())
    }
}
