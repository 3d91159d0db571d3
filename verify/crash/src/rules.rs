//! The rules that a death must not break, and how it is told that one is.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Rule {
    /// What was acknowledged is there after a power loss.
    Durable,
    /// No epoch is used again.
    Epochs,
    /// A change is there whole or not at all.
    Whole,
    /// The store goes on.
    Sound,
    /// Killed processes.
    Killed,
    /// Failed writes and syncs.
    Faults,
}

impl Rule {
    /// All of them.
    pub const ALL: [Rule; 6] = [
        Rule::Durable,
        Rule::Epochs,
        Rule::Whole,
        Rule::Sound,
        Rule::Killed,
        Rule::Faults,
    ];

    /// In words.
    #[must_use]
    pub fn text(self) -> &'static str {
        match self {
            Rule::Durable => "what was acknowledged survives a power loss at any step",
            Rule::Epochs => "no epoch that was told or seen is granted again",
            Rule::Whole => "a change is there whole or not at all, with its audit record",
            Rule::Sound => {
                "the file is sound afterwards and the store works on, also when its recovery is cut"
            }
            Rule::Killed => {
                "a process killed in a write or a sync takes nothing along, and others go on without \
                 opening again"
            }
            Rule::Faults => {
                "after a failed write or sync nothing acknowledged is lost, then or in a later power loss"
            }
        }
    }

    /// This rule is broken, as was seen.
    pub fn broken(self, what: impl fmt::Display) -> Broken {
        Broken {
            rule: self,
            what: what.to_string(),
        }
    }
}

/// A broken rule, and what was seen.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Broken {
    /// Which.
    pub rule: Rule,
    /// What was seen.
    pub what: String,
}

impl Broken {
    /// The same with a word about when it was seen.
    #[must_use]
    pub fn seen(self, when: impl fmt::Display) -> Self {
        Self {
            rule: self.rule,
            what: format!("{when}: {}", self.what),
        }
    }
}

impl fmt::Display for Broken {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} (broken: {})", self.what, self.rule.text())
    }
}

impl std::error::Error for Broken {}

impl From<Broken> for String {
    fn from(broken: Broken) -> Self {
        broken.to_string()
    }
}
