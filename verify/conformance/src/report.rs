//! What a suite found.

use std::fmt;
use std::time::Duration;

use crate::drive::{Checked, Stop};
use crate::harness::Harness;
use crate::rule::Rule;

/// A case that has not ended after this time has failed: the store does not answer.
const CASE_TIME_MAX: Duration = Duration::from_secs(120);

/// The cases of one run of a suite, in order.
#[derive(Debug, Clone)]
pub struct Report {
    suite: &'static str,
    cases: Vec<Case>,
}

/// One case and what became of it.
#[derive(Debug, Clone)]
pub struct Case {
    /// Its name, the same in every run.
    pub name: &'static str,
    /// The rule that it checks.
    pub rule: Rule,
    /// What became of it.
    pub outcome: Outcome,
}

/// What became of a case.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// The rule held.
    Passed,
    /// The rule is broken; what was seen.
    Failed(String),
    /// The harness or the store cannot do what the case needs; what that is.
    NotChecked(String),
}

impl Report {
    pub(crate) fn new(suite: &'static str) -> Self {
        Self {
            suite,
            cases: Vec::new(),
        }
    }

    pub(crate) async fn case<H: Harness>(
        &mut self,
        harness: &H,
        name: &'static str,
        rule: Rule,
        run: impl Future<Output = Checked>,
    ) {
        harness.began(self.suite, name);
        let outcome = match tokio::time::timeout(CASE_TIME_MAX, run).await {
            Ok(Ok(())) => Outcome::Passed,
            Ok(Err(Stop::Broken(message))) => Outcome::Failed(message),
            Ok(Err(Stop::NotPossible(what))) => Outcome::NotChecked(what.to_owned()),
            Err(_) => Outcome::Failed(format!("no end after {CASE_TIME_MAX:?}")),
        };
        let case = Case {
            name,
            rule,
            outcome,
        };
        harness.ended(self.suite, &case);
        self.cases.push(case);
    }

    /// Which suite it was.
    #[must_use]
    pub fn suite(&self) -> &'static str {
        self.suite
    }

    /// Every case.
    #[must_use]
    pub fn cases(&self) -> &[Case] {
        &self.cases
    }

    /// The cases whose rule is broken.
    pub fn failed(&self) -> impl Iterator<Item = &Case> {
        self.cases
            .iter()
            .filter(|case| matches!(case.outcome, Outcome::Failed(_)))
    }

    /// The cases that could not be checked.
    pub fn not_checked(&self) -> impl Iterator<Item = &Case> {
        self.cases
            .iter()
            .filter(|case| matches!(case.outcome, Outcome::NotChecked(_)))
    }

    /// For a test: nothing failed, and something was checked.
    ///
    /// # Panics
    ///
    /// With the report, when a case failed or none could be checked.
    pub fn assert_passed(&self) {
        let passed = self
            .cases
            .iter()
            .any(|case| case.outcome == Outcome::Passed);
        assert!(passed && self.failed().next().is_none(), "{self}");
    }

    /// For a test of a store whose harness can do everything: every case passed.
    ///
    /// # Panics
    ///
    /// With the report, when a case failed or was not checked.
    pub fn assert_all_checked(&self) {
        self.assert_all_checked_but(&[]);
    }

    /// For a test of a store whose harness can do nearly everything: every case passed, but for the
    /// named ones, which were not checked.
    ///
    /// # Panics
    ///
    /// With the report, when a case failed, another one was not checked, or a named one was.
    pub fn assert_all_checked_but(&self, names: &[&str]) {
        self.assert_passed();
        let not_checked: Vec<_> = self.not_checked().map(|case| case.name).collect();
        assert_eq!(not_checked, names, "{self}");
    }
}

/// A line for each case; broken rules and what was seen beneath.
impl fmt::Display for Report {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = |wanted: fn(&Outcome) -> bool| {
            self.cases
                .iter()
                .filter(|case| wanted(&case.outcome))
                .count()
        };
        writeln!(
            formatter,
            "{} suite: {} passed, {} failed, {} not checked",
            self.suite,
            count(|outcome| *outcome == Outcome::Passed),
            count(|outcome| matches!(outcome, Outcome::Failed(_))),
            count(|outcome| matches!(outcome, Outcome::NotChecked(_))),
        )?;
        for Case {
            name,
            rule,
            outcome,
        } in &self.cases
        {
            match outcome {
                Outcome::Passed => writeln!(formatter, "  passed       {name}")?,
                Outcome::NotChecked(what) => {
                    writeln!(formatter, "  not checked  {name}: needs {what}")?;
                }
                Outcome::Failed(message) => {
                    writeln!(formatter, "  FAILED       {name}")?;
                    writeln!(formatter, "               rule: {rule}")?;
                    writeln!(formatter, "               seen: {message}")?;
                }
            }
        }
        Ok(())
    }
}
