//! cargo-mutants: what it can change, and what became of each change.
//!
//! It works in a copy of the repository under `target/`, which stays there with what was built, so that
//! each mutant costs a few seconds and nobody's files are touched.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};

use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::{TARGETS, Target};
use crate::repository::Repository;

const VERSION: &str = "27.1.0";
/// The copy, below the repository.
const TREE: &str = "target/mutants/tree";
const OUTPUT: &str = "target/mutants/output";

/// One change.
pub(crate) struct Mutant {
    pub(crate) target: &'static Target,
    /// As cargo-mutants names it, with line and column.
    name: String,
    pub(crate) file: String,
    /// The name without the place, which moves with every edit above it.
    pub(crate) change: String,
    /// The line that is changed.
    pub(crate) line_text: String,
    /// That line from the change on.
    pub(crate) rest_of_line: String,
}

impl Mutant {
    /// `column` is where the change begins in `line`, counted from 1.
    pub(crate) fn new(
        target: &'static Target,
        file: String,
        name: String,
        change: String,
        line: &str,
        column: usize,
    ) -> Self {
        let rest_of_line: String = line.chars().skip(column.saturating_sub(1)).collect();
        Self {
            target,
            name,
            file,
            change,
            line_text: line.trim().to_owned(),
            rest_of_line: rest_of_line.trim().to_owned(),
        }
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }
}

/// What became of a mutant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// A test failed.
    Failed,
    /// The tests came to no end.
    TimedOut,
    /// It does not compile.
    Unviable,
    /// No test noticed.
    Survived,
}

pub(crate) struct Tool {
    tree: PathBuf,
    output: PathBuf,
}

#[derive(Deserialize)]
struct Listed {
    name: String,
    package: String,
    file: String,
    span: Span,
}

#[derive(Deserialize)]
struct Span {
    start: Place,
}

#[derive(Deserialize)]
struct Place {
    line: usize,
    column: usize,
}

#[derive(Deserialize)]
struct Outcomes {
    outcomes: Vec<Outcome>,
}

#[derive(Deserialize)]
struct Outcome {
    scenario: Scenario,
    summary: String,
}

#[derive(Deserialize)]
enum Scenario {
    Baseline,
    Mutant(Listed),
}

impl Tool {
    /// Checks that cargo-mutants is there and brings the copy up to date.
    pub(crate) fn prepare(repository: &Repository) -> Result<Self, String> {
        let version = Command::new("cargo")
            .args(["mutants", "--version"])
            .output();
        let is_right = version.is_ok_and(|output| {
            String::from_utf8_lossy(&output.stdout).trim() == format!("cargo-mutants {VERSION}")
        });
        if !is_right {
            return Err(format!(
                "this needs cargo-mutants {VERSION}: cargo install --locked cargo-mutants --version {VERSION}"
            ));
        }
        let tree = repository.root().join(TREE);
        copy(repository, &tree).map_err(|error| format!("{}: {error}", tree.display()))?;
        Ok(Self {
            tree,
            output: repository.root().join(OUTPUT),
        })
    }

    /// Every mutant of the targets, in the order of the sources.
    pub(crate) fn list(&self) -> Result<Vec<Mutant>, String> {
        let mut mutants = Vec::new();
        for target in &TARGETS {
            let output = self
                .cargo()
                .args(["mutants", "--list", "--json", "--package", target.package])
                .output()
                .map_err(|error| format!("cargo mutants --list: {error}"))?;
            if !output.status.success() {
                let said = String::from_utf8_lossy(&output.stderr);
                return Err(format!("cargo mutants --list: {}", said.trim()));
            }
            let listed: Vec<Listed> = serde_json::from_slice(&output.stdout)
                .map_err(|error| format!("cargo mutants --list: {error}"))?;
            for listed in listed {
                if listed.package != target.package {
                    return Err(format!("{} belongs to {}", listed.name, listed.package));
                }
                mutants.push(self.mutant(target, listed)?);
            }
        }
        Ok(mutants)
    }

    fn mutant(&self, target: &'static Target, listed: Listed) -> Result<Mutant, String> {
        let text = fs::read_to_string(self.tree.join(&listed.file))
            .map_err(|error| format!("{}: {error}", listed.file))?;
        let Place { line, column } = listed.span.start;
        let line_text = text.lines().nth(line.saturating_sub(1)).unwrap_or_default();
        let place = format!("{}:{line}:{column}: ", listed.file);
        let change = listed
            .name
            .strip_prefix(&place)
            .ok_or(format!("`{}` does not start with `{place}`", listed.name))?
            .to_owned();
        Ok(Mutant::new(
            target,
            listed.file,
            listed.name,
            change,
            line_text,
            column,
        ))
    }

    /// Builds and tests what `choice` takes of `target`; answers by name. `with_baseline` first makes sure
    /// that the tests pass when nothing is changed.
    pub(crate) fn try_out(
        &self,
        target: &Target,
        cargo: &[&str],
        choice: &[String],
        with_baseline: bool,
    ) -> Result<Vec<(String, Verdict)>, String> {
        let mut command = self.cargo();
        command.args(["mutants", "--in-place", "--no-times", "--colors=never"]);
        command.args(["--package", target.package]).args(choice);
        command.arg("--output").arg(&self.output);
        command.arg(format!("--timeout={}", target.timeout_s));
        command.arg(match with_baseline {
            true => "--baseline=run",
            false => "--baseline=skip",
        });
        command.args(cargo.iter().map(|word| format!("--cargo-arg={word}")));
        if !target.tests.is_empty() {
            command.args(["--", "--"]).args(target.tests);
        }
        fs::create_dir_all(&self.output).map_err(|error| format!("{OUTPUT}: {error}"))?;
        let status = command
            .stdout(Stdio::null())
            .stderr(Stdio::inherit())
            .status()
            .map_err(|error| format!("cargo mutants: {error}"))?;
        let outcomes: Outcomes = self.result("outcomes.json", status)?;
        let chosen: Vec<Listed> = self.result("mutants.json", status)?;
        let mut verdicts = Vec::new();
        for outcome in outcomes.outcomes {
            match outcome.scenario {
                Scenario::Baseline if outcome.summary == "Success" => {}
                Scenario::Baseline => {
                    return Err(format!(
                        "the tests of {} fail although nothing is changed: see {OUTPUT}/mutants.out/log",
                        target.package
                    ));
                }
                Scenario::Mutant(tried) => verdicts.push((tried.name, verdict(&outcome.summary)?)),
            }
        }
        match verdicts.len() == chosen.len() {
            true => Ok(verdicts),
            false => Err(format!(
                "cargo mutants ({status}) tried {} of {} mutants: see {OUTPUT}/mutants.out/log",
                verdicts.len(),
                chosen.len()
            )),
        }
    }

    fn result<T: DeserializeOwned>(&self, name: &str, status: ExitStatus) -> Result<T, String> {
        let path = self.output.join("mutants.out").join(name);
        fs::read(&path)
            .map_err(|error| error.to_string())
            .and_then(|text| serde_json::from_slice(&text).map_err(|error| error.to_string()))
            .map_err(|error| format!("cargo mutants ({status}): {}: {error}", path.display()))
    }

    fn cargo(&self) -> Command {
        let mut command = Command::new("cargo");
        command
            .current_dir(&self.tree)
            .stdin(Stdio::null())
            // Only the mutated crate is built again, and nobody reads its backtraces.
            .env("CARGO_INCREMENTAL", "1")
            .env("CARGO_PROFILE_DEV_DEBUG", "false")
            .env("CARGO_PROFILE_TEST_DEBUG", "false")
            .env_remove("CARGO_TARGET_DIR");
        command
    }
}

fn verdict(summary: &str) -> Result<Verdict, String> {
    match summary {
        "CaughtMutant" => Ok(Verdict::Failed),
        "Timeout" => Ok(Verdict::TimedOut),
        "Unviable" => Ok(Verdict::Unviable),
        "MissedMutant" => Ok(Verdict::Survived),
        other => Err(format!(
            "cargo mutants said `{other}`, which is not understood"
        )),
    }
}

/// Makes `tree` equal to the repository. What is equal already keeps its time, so that it is not built
/// again; what is gone there goes here.
fn copy(repository: &Repository, tree: &Path) -> io::Result<()> {
    let wanted: Vec<PathBuf> = repository.files().iter().map(PathBuf::from).collect();
    for path in &wanted {
        let (from, to) = (repository.root().join(path), tree.join(path));
        let bytes = fs::read(from)?;
        if fs::read(&to).is_ok_and(|present| present == bytes) {
            continue;
        }
        if let Some(directory) = to.parent() {
            fs::create_dir_all(directory)?;
        }
        fs::write(to, bytes)?;
    }
    remove_others(tree, Path::new(""), &wanted)
}

fn remove_others(tree: &Path, below: &Path, wanted: &[PathBuf]) -> io::Result<()> {
    for entry in fs::read_dir(tree.join(below))? {
        let entry = entry?;
        let path = below.join(entry.file_name());
        if path == Path::new("target") {
            continue;
        }
        if entry.file_type()?.is_dir() {
            remove_others(tree, &path, wanted)?;
        } else if !wanted.contains(&path) {
            fs::remove_file(tree.join(path))?;
        }
    }
    Ok(())
}
