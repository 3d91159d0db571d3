//! Who waits is served in the order of coming, within one life of the serializer, as long as it stays; a
//! plain acquire does not overtake (design, "The holder's engine").

use std::collections::BTreeMap;

use aster_core::{GrantId, ResourceName};

use super::Invariant;
use crate::history::{Entry, Event};

#[derive(Default)]
pub(crate) struct FirstComeFirstServed {
    rows: BTreeMap<ResourceName, Row>,
    /// When each plain acquire came.
    came: BTreeMap<u64, u64>,
    now: u64,
}

#[derive(Default)]
struct Row {
    waiting: BTreeMap<GrantId, Place>,
    highest: u64,
}

struct Place {
    came: u64,
    /// The call that holds the place: the newest one of the wish.
    call: u64,
    /// The lowest epoch that somebody got who had come later.
    passed_by: Option<u64>,
}

impl Invariant for FirstComeFirstServed {
    fn name(&self) -> &'static str {
        "first_come_first_served"
    }

    fn see(&mut self, entry: &Entry) -> Result<(), String> {
        self.now += 1;
        match &entry.event {
            Event::Began {
                call,
                resource,
                what: "wait",
                grant: Some(grant),
            } => {
                let row = self.rows.entry(resource.clone()).or_default();
                let came = Place {
                    came: self.now,
                    call: *call,
                    passed_by: None,
                };
                row.waiting.entry(*grant).or_insert(came).call = *call;
            }
            Event::Began {
                call,
                what: "acquire" | "ask",
                ..
            } => {
                self.came.insert(*call, self.now);
            }
            Event::Granted {
                call,
                resource,
                epoch,
                grant,
                ..
            } => {
                let row = self.rows.entry(resource.clone()).or_default();
                let place = row.waiting.remove(grant);
                let came = match &place {
                    Some(place) => place.came,
                    None => self.came.remove(call).unwrap_or(self.now),
                };
                if let Some(passed_by) = place.and_then(|place| place.passed_by)
                    && passed_by < *epoch
                {
                    return Err(format!(
                        "who got epoch {passed_by} of {resource} had come after who got {epoch}"
                    ));
                }
                if *epoch > row.highest {
                    row.highest = *epoch;
                    for other in row.waiting.values_mut() {
                        if other.came < came {
                            other.passed_by.get_or_insert(*epoch);
                        }
                    }
                }
            }
            Event::Left {
                call,
                resource,
                grant,
            } => {
                let row = self.rows.entry(resource.clone()).or_default();
                if row
                    .waiting
                    .get(grant)
                    .is_some_and(|place| place.call == *call)
                {
                    row.waiting.remove(grant);
                }
            }
            Event::Denied { call, .. } | Event::Failed { call, .. } => {
                self.came.remove(call);
            }
            Event::Restarted { .. } => {
                for row in self.rows.values_mut() {
                    row.waiting.clear();
                }
            }
            _ => {}
        }
        Ok(())
    }
}
