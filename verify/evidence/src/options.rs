//! The two options that all proving programs share, and the time that they are given.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// `--seconds N` and `--evidence FILE`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Options {
    /// How long the program goes on, in seconds. None: as its tests do.
    pub seconds: Option<u64>,
    /// Where its evidence goes.
    pub evidence: Option<PathBuf>,
}

impl Options {
    /// Takes the two options out of `words` and leaves the others, in their order.
    ///
    /// ```
    /// use aster_evidence::Options;
    ///
    /// let words = ["--seed", "7", "--seconds", "60", "--evidence", "sim.json"].map(String::from);
    /// let (options, others) = Options::take(words)?;
    /// assert_eq!(options.seconds, Some(60));
    /// assert_eq!(others, ["--seed", "7"]);
    /// # Ok::<(), aster_evidence::OptionError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`OptionError`] if one of them has no value, or `--seconds` no number.
    pub fn take(
        words: impl IntoIterator<Item = String>,
    ) -> Result<(Self, Vec<String>), OptionError> {
        let mut options = Self::default();
        let mut others = Vec::new();
        let mut words = words.into_iter();
        while let Some(word) = words.next() {
            match word.as_str() {
                "--seconds" => {
                    let text = words.next().ok_or(OptionError::NoValue("--seconds"))?;
                    let seconds = text.parse().map_err(|_| OptionError::NoNumber(text))?;
                    options.seconds = Some(seconds);
                }
                "--evidence" => {
                    let path = words.next().ok_or(OptionError::NoValue("--evidence"))?;
                    options.evidence = Some(path.into());
                }
                _ => others.push(word),
            }
        }
        Ok((options, others))
    }

    /// Where the evidence goes, for [`Evidence::write`](crate::Evidence::write).
    #[must_use]
    pub fn evidence(&self) -> Option<&Path> {
        self.evidence.as_deref()
    }
}

/// Options that cannot be understood.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum OptionError {
    /// The option stands last.
    #[error("{0} needs a value")]
    NoValue(&'static str),
    /// `--seconds` got this.
    #[error("--seconds needs a whole number, not {0}")]
    NoNumber(String),
}

/// The time that a program is given, measured from its start.
#[derive(Debug, Clone, Copy)]
pub struct Deadline {
    started: Instant,
    limit: Duration,
}

impl Deadline {
    /// Starts now and ends after `seconds`.
    #[must_use]
    #[allow(
        clippy::disallowed_methods,
        reason = "how long a proof may go on is real time"
    )]
    pub fn after_s(seconds: u64) -> Self {
        Self {
            started: Instant::now(),
            limit: Duration::from_secs(seconds),
        }
    }

    /// Whether the time is over.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.elapsed() >= self.limit
    }

    /// How much is left.
    #[must_use]
    pub fn left(&self) -> Duration {
        self.limit.saturating_sub(self.elapsed())
    }

    /// How long it has been.
    #[must_use]
    pub fn elapsed(&self) -> Duration {
        self.started.elapsed()
    }
}
