//! Register revisions only grow, each belongs to one write, and what was acknowledged is read afterwards
//! (design, "Stores").

use std::collections::BTreeMap;

use aster_core::{ResourceName, WriteId};

use super::Invariant;
use crate::history::{Entry, Event};

#[derive(Default)]
pub(crate) struct Registers {
    registers: BTreeMap<ResourceName, Register>,
}

#[derive(Default)]
struct Register {
    writes: BTreeMap<u64, WriteId>,
    revision: u64,
    value: u64,
    epoch: u64,
}

impl Invariant for Registers {
    fn name(&self) -> &'static str {
        "registers"
    }

    fn see(&mut self, entry: &Entry) -> Result<(), String> {
        match &entry.event {
            Event::Set {
                resource,
                epoch,
                write,
                revision,
                value,
                ..
            } => {
                let register = self.registers.entry(resource.clone()).or_default();
                match register.writes.insert(*revision, *write) {
                    // A retry, answered again.
                    Some(known) if known == *write => return Ok(()),
                    Some(_) => {
                        return Err(format!(
                            "two writes of {resource} were acknowledged at revision {revision}"
                        ));
                    }
                    None if *revision != register.revision + 1 => {
                        return Err(format!(
                            "revision {revision} of {resource} came after {}",
                            register.revision
                        ));
                    }
                    None if *epoch < register.epoch => {
                        return Err(format!(
                            "{resource} was written under epoch {epoch} after {}",
                            register.epoch
                        ));
                    }
                    None => {}
                }
                register.revision = *revision;
                register.value = *value;
                register.epoch = *epoch;
            }
            Event::Read {
                resource,
                revision,
                value,
                ..
            } => {
                let register = self.registers.entry(resource.clone()).or_default();
                let (found, value) = (revision.unwrap_or(0), *value);
                if found != register.revision || (found > 0 && value != register.value) {
                    return Err(format!(
                        "{resource} read as {value} at revision {found}, but {} at {} was acknowledged",
                        register.value, register.revision
                    ));
                }
            }
            _ => {}
        }
        Ok(())
    }
}
