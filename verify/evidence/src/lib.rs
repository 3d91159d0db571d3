//! What a proving program tried and saw, in a form that a page can be made of.
//!
//! Every program of `verify/` that goes on for a given time understands `--seconds N` and
//! `--evidence FILE` ([`Options`]), and writes one [`Evidence`] there. `cargo xtask proof` runs them all and
//! makes one page of what they wrote, so that no figure on the page comes from anywhere else.

mod machine;
mod options;
mod random;

use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};

pub use machine::machine;
pub use options::{Deadline, OptionError, Options};
pub use random::Random;

/// What one program tried and saw.
///
/// ```
/// use aster_evidence::Evidence;
///
/// let mut evidence = Evidence::new("model", "every order of events up to a bound", "cargo run -p aster-model");
/// evidence.tried("states", 1_200_000);
/// evidence.held("epochs are unique and grow");
/// evidence.caught("epochs are unique and grow", "a floor raised after the drop", "after 13 steps");
/// evidence.not_covered("more than three holders");
/// assert!(evidence.is_sound());
///
/// evidence.missed("a lease is never held shorter than its ttl", "a takeover by wall clock", "not found");
/// assert!(!evidence.is_sound());
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Evidence {
    /// The part's name: one word, the same in every run.
    pub part: String,
    /// What it does, in a few words.
    pub what: String,
    /// The command that repeats it.
    pub command: String,
    /// How long it took, in seconds; 0 until [`Evidence::write`].
    pub seconds: u64,
    /// What was tried, and how often, in the order in which a reader wants it.
    pub tried: Vec<(String, u64)>,
    /// The seeds of the run, as text that the command understands.
    pub seeds: Vec<String>,
    /// The rules that were checked and held.
    pub held: Vec<String>,
    /// The rules that did not hold: what was seen, and the command that repeats it.
    pub broken: Vec<String>,
    /// What was broken on purpose, and whether it was noticed.
    pub controls: Vec<Control>,
    /// What this program does not show.
    pub not_covered: Vec<String>,
}

/// Something broken on purpose.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Control {
    /// The rule that it breaks.
    pub rule: String,
    /// What was broken.
    pub planted: String,
    /// Whether the check of that rule noticed.
    pub is_caught: bool,
    /// How it was noticed, or what was seen instead.
    pub seen: String,
}

impl Evidence {
    /// Nothing tried yet. `part` is one word, `what` says it in a few, and `command` repeats it.
    #[must_use]
    pub fn new(part: &str, what: &str, command: &str) -> Self {
        Self {
            part: part.to_owned(),
            what: what.to_owned(),
            command: command.to_owned(),
            seconds: 0,
            tried: Vec::new(),
            seeds: Vec::new(),
            held: Vec::new(),
            broken: Vec::new(),
            controls: Vec::new(),
            not_covered: Vec::new(),
        }
    }

    /// `what` was tried `times` more.
    pub fn tried(&mut self, what: &str, times: u64) {
        match self.tried.iter_mut().find(|(known, _)| known == what) {
            Some((_, count)) => *count = count.saturating_add(times),
            None => self.tried.push((what.to_owned(), times)),
        }
    }

    /// `seed` was run.
    pub fn seed(&mut self, seed: impl fmt::Display) {
        self.seeds.push(seed.to_string());
    }

    /// `rule` was checked, and held.
    pub fn held(&mut self, rule: &str) {
        if !self.held.iter().any(|known| known == rule) {
            self.held.push(rule.to_owned());
        }
    }

    /// A rule did not hold. `what` says which, what was seen, and how to repeat it.
    pub fn broken(&mut self, what: impl Into<String>) {
        self.broken.push(what.into());
    }

    /// `planted` broke `rule` on purpose, and its check noticed: `seen` says how.
    pub fn caught(&mut self, rule: &str, planted: &str, seen: &str) {
        self.control(rule, planted, true, seen);
    }

    /// `planted` broke `rule` on purpose, and nothing noticed.
    pub fn missed(&mut self, rule: &str, planted: &str, seen: &str) {
        self.control(rule, planted, false, seen);
    }

    /// `planted` broke `rule` on purpose; `is_caught` says whether its check noticed.
    pub fn control(&mut self, rule: &str, planted: &str, is_caught: bool, seen: &str) {
        self.controls.push(Control {
            rule: rule.to_owned(),
            planted: planted.to_owned(),
            is_caught,
            seen: seen.to_owned(),
        });
    }

    /// Says what this program does not show.
    pub fn not_covered(&mut self, what: &str) {
        self.not_covered.push(what.to_owned());
    }

    /// Whether every rule held and every control was caught.
    #[must_use]
    pub fn is_sound(&self) -> bool {
        self.broken.is_empty() && self.controls.iter().all(|control| control.is_caught)
    }

    /// The rules that held, and that nothing planted was caught under in this run: whether their check would
    /// notice anything, it does not show.
    ///
    /// ```
    /// # use aster_evidence::Evidence;
    /// let mut evidence = Evidence::new("model", "every order of events", "cargo run -p aster-model");
    /// evidence.held("epochs grow");
    /// evidence.held("a grant id is granted once");
    /// evidence.caught("epochs grow", "a floor raised after the drop", "after 13 steps");
    /// evidence.missed("a grant id is granted once", "a retry that mints another", "not found");
    /// assert_eq!(evidence.rules_without_a_control(), ["a grant id is granted once"]);
    /// ```
    #[must_use]
    pub fn rules_without_a_control(&self) -> Vec<&str> {
        let has_control = |rule: &&str| {
            let mut controls = self.controls.iter();
            controls.any(|control| control.is_caught && control.rule == *rule)
        };
        let held = self.held.iter().map(String::as_str);
        held.filter(|rule| !has_control(rule)).collect()
    }

    /// Notes how long it took and writes it to `path`, if there is one.
    ///
    /// # Errors
    ///
    /// [`EvidenceError`] if the file cannot be written.
    pub fn write(&mut self, path: Option<&Path>, took: Duration) -> Result<(), EvidenceError> {
        self.seconds = took.as_secs();
        let Some(path) = path else {
            return Ok(());
        };
        let text = serde_json::to_vec_pretty(self).map_err(|error| EvidenceError::Form {
            path: path.to_owned(),
            source: error,
        })?;
        fs::write(path, text).map_err(|error| EvidenceError::File {
            path: path.to_owned(),
            source: error,
        })
    }

    /// What a program wrote to `path`.
    ///
    /// # Errors
    ///
    /// [`EvidenceError`] if the file cannot be read or is no evidence.
    pub fn read(path: &Path) -> Result<Self, EvidenceError> {
        let text = fs::read(path).map_err(|error| EvidenceError::File {
            path: path.to_owned(),
            source: error,
        })?;
        serde_json::from_slice(&text).map_err(|error| EvidenceError::Form {
            path: path.to_owned(),
            source: error,
        })
    }
}

/// For the person at the terminal.
impl fmt::Display for Evidence {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(formatter, "{}: {}", self.part, self.what)?;
        for (what, times) in &self.tried {
            writeln!(formatter, "{times:>12} {what}")?;
        }
        for rule in &self.held {
            writeln!(formatter, "        held {rule}")?;
        }
        for control in &self.controls {
            let verdict = if control.is_caught {
                "caught"
            } else {
                "MISSED"
            };
            writeln!(
                formatter,
                "      {verdict} {}: {} ({})",
                control.planted, control.rule, control.seen
            )?;
        }
        for what in &self.broken {
            writeln!(formatter, "      BROKEN {what}")?;
        }
        Ok(())
    }
}

/// Evidence that cannot be written or read.
#[derive(Debug, thiserror::Error)]
pub enum EvidenceError {
    /// The file system said no.
    #[error("{}: {source}", path.display())]
    File {
        /// Which file.
        path: PathBuf,
        /// What it said.
        source: io::Error,
    },
    /// The file holds something else.
    #[error("{}: no evidence: {source}", path.display())]
    Form {
        /// Which file.
        path: PathBuf,
        /// What is wrong with it.
        source: serde_json::Error,
    },
}
