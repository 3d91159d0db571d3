//! Once the faults are over, everybody who still wants the resource gets it within a stated time; and no
//! code of ours panics, ever.

use super::Invariant;
use crate::history::{Entry, Event};

#[derive(Default)]
pub(crate) struct Progress;

impl Invariant for Progress {
    fn name(&self) -> &'static str {
        "progress"
    }

    fn see(&mut self, entry: &Entry) -> Result<(), String> {
        match &entry.event {
            Event::Starved { workers, after_ms } => Err(format!(
                "{after_ms} ms after the last fault nobody had served {}",
                workers.join(", ")
            )),
            Event::Panicked { worker } => Err(format!("the code of {worker} panicked")),
            _ => Ok(()),
        }
    }
}
