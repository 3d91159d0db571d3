//! `verify`: the conformance suites at a store in use.

use std::io::{self, IsTerminal, Write};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use aster::conformance::{Case, Live, Outcome, Progress, Report};
use aster::lease::{Store, SystemEntropy, connect_existing};
use serde::Serialize;
use tokio::time::timeout;

use super::follow::EndSignals;
use crate::arguments::VerifyArguments;
use crate::context::Context;
use crate::failure::{Failure, FailureKind};
use crate::output::{Output, Style, print};

/// How long giving back what was taken may take, after the suites or instead of them.
const CLEAN_UP_TIME_MAX: Duration = Duration::from_secs(30);

#[derive(Debug, Serialize)]
struct Verified {
    store: String,
    prefix: String,
    passed: usize,
    failed: usize,
    not_checked: usize,
    cases: Vec<VerifiedCase>,
}

#[derive(Debug, Serialize)]
struct VerifiedCase {
    suite: &'static str,
    name: &'static str,
    rule: &'static str,
    /// `passed`, `failed` or `not_checked`.
    outcome: &'static str,
    /// What was seen where the rule is broken, or what the case needs.
    detail: Option<String>,
}

impl VerifiedCase {
    fn new(suite: &'static str, case: &Case) -> Self {
        let (outcome, detail) = match &case.outcome {
            Outcome::Passed => ("passed", None),
            Outcome::Failed(seen) => ("failed", Some(seen.clone())),
            Outcome::NotChecked(needs) => ("not_checked", Some(needs.clone())),
        };
        Self {
            suite,
            name: case.name,
            rule: case.rule.text(),
            outcome,
            detail,
        }
    }
}

/// Answers the exit code: 0, or 128 + the signal that ended it.
pub(crate) async fn verify(context: &Context, arguments: &VerifyArguments) -> Result<u8, Failure> {
    let mut end = EndSignals::listen()?;
    let url = match &arguments.url {
        Some(url) => url.clone(),
        None => context.store_url()?,
    };
    let store = connect_existing(&url).await?;
    let printer = Arc::new(Printer::new(context.output));
    let live = live(&store, Arc::clone(&printer))?;
    printer.begins(&url, live.prefix())?;
    let reports = tokio::select! {
        reports = live.run() => reports,
        signal = end.next() => {
            printer.interrupted();
            give_back(context, &live).await;
            return Ok(u8::try_from(128 + signal.as_raw()).unwrap_or(u8::MAX));
        }
    };
    give_back(context, &live).await;
    conclude(context, url, &live, &reports)
}

fn live(store: &Store, printer: Arc<Printer>) -> Result<Live, Failure> {
    // A store without registers has its other suites checked.
    let live = Live::new(store.serializer(), store.registers().ok(), &SystemEntropy);
    let live = live.map_err(|error| Failure::new(FailureKind::Internal, error.to_string()))?;
    Ok(live.on_progress(move |progress| printer.show(progress)))
}

async fn give_back(context: &Context, live: &Live) {
    match timeout(CLEAN_UP_TIME_MAX, live.clean_up()).await {
        Ok(0) => {}
        Ok(_) | Err(_) => context.output.remark(&format!(
            "some scratch leases under {} could not be released: they expire by themselves within two minutes",
            live.prefix()
        )),
    }
}

fn conclude(
    context: &Context,
    store: String,
    live: &Live,
    reports: &[Report],
) -> Result<u8, Failure> {
    let cases = reports.iter().flat_map(|report| {
        let cases = report.cases().iter();
        cases.map(|case| VerifiedCase::new(report.suite(), case))
    });
    let cases: Vec<_> = cases.collect();
    let count = |outcome| cases.iter().filter(|case| case.outcome == outcome).count();
    let verified = Verified {
        store,
        prefix: live.prefix().to_owned(),
        passed: count("passed"),
        failed: count("failed"),
        not_checked: count("not_checked"),
        cases,
    };
    context.output.answer(&verified, |output| {
        let text = format!(
            "{} passed, {} failed, {} not checked",
            verified.passed, verified.failed, verified.not_checked
        );
        let text = match verified.failed {
            0 => output.paint(Style::Good, &text),
            _ => output.paint(Style::Bad, &text),
        };
        format!("{text}\n{}", left_behind(&verified.prefix))
    })?;
    if verified.failed == 0 {
        return Ok(0);
    }
    let message = format!(
        "{} breaks {} of the rules that were checked: do not rely on it",
        verified.store, verified.failed
    );
    Err(Failure::new(FailureKind::RuleBroken, message))
}

/// What a verification leaves, in a line.
fn left_behind(prefix: &str) -> String {
    format!(
        "what stays under {prefix}: free rows for about an hour, those with a register for good, and audit records"
    )
}

/// Prints each case as it ends, for people, and on a terminal the one that runs.
struct Printer {
    output: Output,
    /// Something is shown on stderr that goes away with the next line.
    is_running_shown: bool,
    suite: Mutex<Option<&'static str>>,
}

impl Printer {
    fn new(output: Output) -> Self {
        Self {
            output,
            is_running_shown: !output.json && io::stderr().is_terminal(),
            suite: Mutex::new(None),
        }
    }

    fn begins(&self, store: &str, prefix: &str) -> Result<(), Failure> {
        if self.output.json {
            return Ok(());
        }
        print(format!("verifying {store} under {prefix}\n").as_bytes())
    }

    fn show(&self, progress: Progress<'_>) {
        match progress {
            Progress::Began { name, .. } if self.is_running_shown => {
                self.on_stderr(&format!("  …            {}", words(name)));
            }
            Progress::Ended { suite, case } if !self.output.json => {
                self.clear();
                self.case(suite, case);
            }
            _ => {}
        }
    }

    fn case(&self, suite: &'static str, case: &Case) {
        let mut text = String::new();
        let mut last = self.suite.lock().unwrap_or_else(PoisonError::into_inner);
        if last.replace(suite) != Some(suite) {
            text.push_str(&format!("{}\n", self.output.paint(Style::Bold, suite)));
        }
        let name = words(case.name);
        let paint = |style, text| self.output.paint(style, text);
        text.push_str(&match &case.outcome {
            Outcome::Passed => format!("  {}       {name}\n", paint(Style::Good, "passed")),
            Outcome::NotChecked(needs) => format!(
                "  {}  {name}: needs {needs}\n",
                paint(Style::Dim, "not checked")
            ),
            Outcome::Failed(seen) => format!(
                "  {}       {name}\n               rule: {}\n               seen: {seen}\n",
                paint(Style::Bad, "FAILED"),
                case.rule
            ),
        });
        // The summary says what is lost with a reader.
        let _ = print(text.as_bytes());
    }

    fn interrupted(&self) {
        self.clear();
        self.output
            .remark("interrupted: releasing the scratch leases");
    }

    fn clear(&self) {
        if self.is_running_shown {
            self.on_stderr("");
        }
    }

    /// In place of what was shown there.
    fn on_stderr(&self, text: &str) {
        let mut stderr = io::stderr().lock();
        let _ = write!(stderr, "\r\x1b[2K{text}");
        let _ = stderr.flush();
    }
}

/// A case's name as a sentence.
fn words(name: &str) -> String {
    name.replace('_', " ")
}
