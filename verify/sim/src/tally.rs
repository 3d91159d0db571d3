//! How often each kind of thing happened, to see that a run was no walk in the park.

use std::collections::BTreeMap;
use std::fmt;

use crate::history::Event;

/// Kinds of things that happened, and how often.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Tally {
    counts: BTreeMap<String, u64>,
}

impl Tally {
    /// How often `kind` happened.
    #[must_use]
    pub fn count(&self, kind: &str) -> u64 {
        self.counts.get(kind).copied().unwrap_or(0)
    }

    /// Adds another run.
    pub fn add(&mut self, other: &Tally) {
        for (kind, count) in &other.counts {
            *self.counts.entry(kind.clone()).or_default() += count;
        }
    }

    pub(crate) fn count_up(&mut self, kind: &str, times: u64) {
        if times > 0 {
            *self.counts.entry(kind.to_owned()).or_default() += times;
        }
    }

    /// Every kind that happened, and how often.
    pub fn iter(&self) -> impl Iterator<Item = (&str, u64)> {
        self.counts
            .iter()
            .map(|(kind, count)| (kind.as_str(), *count))
    }

    pub(crate) fn see(&mut self, event: &Event) {
        if let Some(kind) = kind(event) {
            *self.counts.entry(kind).or_default() += 1;
        }
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.counts
            .iter()
            .try_for_each(|(kind, count)| writeln!(formatter, "{count:>9} {kind}"))
    }
}

fn kind(event: &Event) -> Option<String> {
    let kind = match event {
        Event::Granted { is_claim: true, .. } => "granted after a wait".to_owned(),
        Event::Granted { .. } => "granted".to_owned(),
        Event::Renewed { .. } => "renewed".to_owned(),
        Event::Together { renewals: 0..=9 } => "renewals together: up to 9".to_owned(),
        Event::Together { .. } => "renewals together: 10 or more".to_owned(),
        Event::Ended { how, .. } => format!("ended by {how}"),
        Event::Denied { what, reason, .. } => format!("denied {what}: {reason:?}"),
        Event::Failed { what, error, .. } => {
            let words: Vec<&str> = error.split_whitespace().take(8).collect();
            format!("failed {what}: {}", words.join(" "))
        }
        Event::Left { .. } => "left the queue".to_owned(),
        Event::Wrote { .. } => "wrote".to_owned(),
        Event::Rejected { why, .. } => format!("rejected: {}", why.name()),
        Event::Set { releases: true, .. } => "register written and released".to_owned(),
        Event::Set { .. } => "register written".to_owned(),
        Event::Read { .. } => "register read".to_owned(),
        Event::Restarted { .. } => "serializer restarted".to_owned(),
        Event::Usable { .. } => "fence seen".to_owned(),
        Event::Unusable { .. } => "no fence seen".to_owned(),
        Event::Worked { .. } => "guarded work ran".to_owned(),
        Event::Lost { reason, .. } => format!("lost: {reason:?}"),
        Event::Heard { what, answer } => format!("{what}: {answer}"),
        Event::Shown { .. } => "shown to a watcher".to_owned(),
        Event::RowsDropped { rows: 1.. } => "runs in which rows were dropped".to_owned(),
        Event::Fault { kind, .. } => format!("fault: {kind}"),
        Event::Befell { what } => format!("fault: {what}"),
        _ => return None,
    };
    Some(kind)
}
