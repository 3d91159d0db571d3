//! Whoever waits hears that it has its turn, that its time ran out, or that it is kept out; a turn that it
//! did not hear of in time is waited for again (design, "Time").

use super::Invariant;
use crate::history::{Entry, Event};

/// Denials that end a wait.
const ENDS: [&str; 4] = ["granted", "WaitRanOut", "HeldOff", "Unauthorized"];

#[derive(Default)]
pub(crate) struct WaitsAreKept;

impl Invariant for WaitsAreKept {
    fn name(&self) -> &'static str {
        "waits_are_kept"
    }

    fn see(&mut self, entry: &Entry) -> Result<(), String> {
        match &entry.event {
            Event::Heard {
                what: "acquire_wait",
                answer,
            } if !answer.starts_with("Serializer") && !ENDS.contains(&answer.as_str()) => {
                Err(format!("a wait was answered with {answer}"))
            }
            _ => Ok(()),
        }
    }
}
