//! Who follows a resource may miss steps on the way, never goes back, and ends at the present state
//! (design, "The holder's engine", and the cases about watching).

use std::collections::BTreeMap;

use aster_core::ResourceName;

use super::Invariant;
use crate::history::{Entry, Event};

#[derive(Default)]
pub(crate) struct WatchersSeeThePresent {
    shown: BTreeMap<ResourceName, u64>,
}

impl Invariant for WatchersSeeThePresent {
    fn name(&self) -> &'static str {
        "watchers_see_the_present"
    }

    fn see(&mut self, entry: &Entry) -> Result<(), String> {
        match &entry.event {
            Event::Shown { resource, epoch } => {
                let before = self.shown.insert(resource.clone(), *epoch);
                if before.is_some_and(|before| before > *epoch) {
                    return Err(format!(
                        "a watcher of {resource} was shown epoch {epoch} after {before:?}"
                    ));
                }
            }
            Event::Row { resource, epoch } => {
                let shown = self.shown.get(resource);
                if shown != Some(epoch) {
                    return Err(format!(
                        "a watcher of {resource} saw {shown:?} last, and the row is at {epoch}"
                    ));
                }
            }
            _ => {}
        }
        Ok(())
    }
}
