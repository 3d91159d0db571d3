//! One step of a chore: a name, what it does, and what to do when it fails.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::checks::Finding;
use crate::repository::Repository;

/// What a step runs.
pub(crate) enum Action {
    /// A program that must exit with 0.
    Program {
        words: &'static [&'static str],
        environment: &'static [(&'static str, &'static str)],
    },
    /// A program that must fail and say this: the control of another step.
    MustFail {
        words: &'static [&'static str],
        saying: &'static str,
    },
    /// A look at the repository's files that must find nothing.
    Files(fn(&Repository) -> Vec<Finding>),
}

pub(crate) struct Step {
    pub(crate) name: &'static str,
    pub(crate) what: &'static str,
    /// What a person does about a failure.
    pub(crate) remedy: &'static str,
    pub(crate) actions: Vec<Action>,
}

impl Step {
    /// Runs every action and says how long it took.
    pub(crate) fn run(&self, repository: &Repository) -> (Result<(), String>, Duration) {
        let started = now();
        let outcome = self
            .actions
            .iter()
            .try_for_each(|action| action.run(repository));
        (outcome, now().saturating_duration_since(started))
    }
}

impl Action {
    fn run(&self, repository: &Repository) -> Result<(), String> {
        match self {
            Action::Program { words, environment } => {
                let status = command(words, repository)?
                    .envs(environment.iter().copied())
                    .status()
                    .map_err(|error| format!("{}: {error}", words[0]))?;
                if status.success() {
                    return Ok(());
                }
                Err(format!("`{}` failed ({status})", words.join(" ")))
            }
            Action::MustFail { words, saying } => {
                let output = command(words, repository)?
                    .output()
                    .map_err(|error| format!("{}: {error}", words[0]))?;
                let said = String::from_utf8_lossy(&output.stderr);
                if !output.status.success() && said.contains(saying) {
                    return Ok(());
                }
                Err(format!(
                    "the control `{}` should have failed with \"{saying}\", but it {}: {said}",
                    words.join(" "),
                    if output.status.success() {
                        "passed"
                    } else {
                        "failed otherwise"
                    },
                ))
            }
            Action::Files(look) => {
                let findings = look(repository);
                if findings.is_empty() {
                    return Ok(());
                }
                let lines: Vec<String> = findings.iter().map(Finding::to_string).collect();
                Err(lines.join("\n"))
            }
        }
    }
}

fn command(words: &[&str], repository: &Repository) -> Result<Command, String> {
    let (program, arguments) = words.split_first().ok_or("an empty command")?;
    let mut command = Command::new(program);
    command
        .args(arguments)
        .current_dir(repository.root())
        .stdin(Stdio::null());
    Ok(command)
}

#[allow(
    clippy::disallowed_methods,
    reason = "tells a person how long a step took"
)]
pub(crate) fn now() -> Instant {
    Instant::now()
}
