//! Ended is final: no late reply revives a handle, guarded work never runs again, and `lost()` resolves
//! exactly once (design, "The holder's engine").

use std::collections::BTreeMap;

use super::Invariant;
use crate::history::{Entry, Event};

#[derive(Default)]
pub(crate) struct EndedIsFinal {
    leases: BTreeMap<u64, Lease>,
}

struct Lease {
    host: usize,
    ended: Option<&'static str>,
    was_told: bool,
}

impl EndedIsFinal {
    fn lease(&mut self, lease: u64, host: usize) -> &mut Lease {
        self.leases.entry(lease).or_insert(Lease {
            host,
            ended: None,
            was_told: false,
        })
    }
}

impl Invariant for EndedIsFinal {
    fn name(&self) -> &'static str {
        "ended_is_final"
    }

    fn see(&mut self, entry: &Entry) -> Result<(), String> {
        match &entry.event {
            Event::Holds { lease, .. } => {
                self.lease(*lease, entry.host);
            }
            Event::Unusable { lease } => {
                let state = self.lease(*lease, entry.host);
                state.ended.get_or_insert("it had no fence");
            }
            Event::GivesUp { lease } => {
                let state = self.lease(*lease, entry.host);
                state.ended.get_or_insert("it was released");
            }
            Event::Lost { lease, reason } => {
                let state = self.lease(*lease, entry.host);
                state.ended.get_or_insert("it was lost");
                if std::mem::replace(&mut state.was_told, true) {
                    return Err(format!("lease {lease} was lost twice, now {reason}"));
                }
            }
            Event::Usable { lease, epoch, .. } => {
                let state = self.lease(*lease, entry.host);
                if let Some(why) = state.ended {
                    return Err(format!(
                        "lease {lease} (epoch {epoch}) had a fence after its end: {why}"
                    ));
                }
            }
            Event::Worked { lease } => {
                let state = self.lease(*lease, entry.host);
                if let Some(why) = state.ended {
                    return Err(format!(
                        "guarded work of lease {lease} ran after its end: {why}"
                    ));
                }
            }
            Event::Killed { machine } => {
                self.leases.retain(|_, lease| lease.host != *machine);
            }
            Event::Settled => {
                let untold = self
                    .leases
                    .iter()
                    .find(|(_, lease)| lease.ended.is_some() && !lease.was_told);
                if let Some((lease, _)) = untold {
                    return Err(format!("nobody was told of the end of lease {lease}"));
                }
            }
            _ => {}
        }
        Ok(())
    }
}
