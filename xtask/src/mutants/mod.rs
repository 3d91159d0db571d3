//! `cargo xtask mutants`: changes the rules and the engine a bit at a time, and demands that their own
//! tests notice each change. What no test can notice is written down with its reason.

mod accepted;
mod report;
#[cfg(test)]
mod tests;
mod tool;
mod wish;

use std::process::ExitCode;

use aster_evidence::{Deadline, Evidence};

use crate::repository::Repository;
use accepted::Accepted;
use report::Report;
use tool::{Mutant, Tool, Verdict};
use wish::Wish;

const ACCEPTED: &str = "verify/mutants/accepted.txt";
/// How many mutants are tried between two looks at the clock.
const BATCH: usize = 8;

/// A crate under mutation, and how its tests are run.
pub(crate) struct Target {
    package: &'static str,
    what: &'static str,
    /// For every build and test.
    cargo: &'static [&'static str],
    /// For the tests themselves.
    tests: &'static [&'static str],
    /// A test run of a mutant that goes on longer than this does not end. The whole run takes a tenth.
    timeout_s: u32,
}

const TARGETS: [Target; 2] = [
    Target {
        package: "aster-core",
        what: "the rules",
        cargo: &["--tests"],
        tests: &[],
        timeout_s: 120,
    },
    Target {
        package: "aster-lease",
        what: "the engine and the memory store",
        cargo: &["--tests", "--features=metrics"],
        // Long, and what they notice others notice too.
        tests: &[
            "--skip=whatever_they_do_epochs_grow",
            "--skip=a_million_distinct_names",
        ],
        timeout_s: 300,
    },
];

/// The rule of the fence taken out, and the tests of something else: somebody has to say that nothing
/// noticed.
const CONTROL: (&str, &str) = (
    "replace check_fence -> Result<(), FenceRejection> with Ok(())",
    "--test=names",
);

/// Tries the mutants that `arguments` ask for.
pub(crate) fn run(repository: &Repository, arguments: &[String]) -> ExitCode {
    let wish = match Wish::parse(arguments) {
        Ok(wish) => wish,
        Err(message) => {
            eprintln!("xtask mutants: {message}");
            return ExitCode::from(64);
        }
    };
    match prove(repository, &wish) {
        Ok(evidence) => {
            print!("{evidence}");
            match evidence.is_sound() {
                true => ExitCode::SUCCESS,
                false => ExitCode::FAILURE,
            }
        }
        Err(message) => {
            eprintln!("xtask mutants: {message}");
            ExitCode::FAILURE
        }
    }
}

fn prove(repository: &Repository, wish: &Wish) -> Result<Evidence, String> {
    let started = Deadline::after_s(wish.seconds.unwrap_or(u64::MAX));
    let accepted = Accepted::parse(&repository.read(ACCEPTED)?)
        .map_err(|message| format!("{ACCEPTED}: {message}"))?;
    let tool = Tool::prepare(repository)?;
    let all = tool.list()?;
    let mut report = Report::new(wish, &all, &accepted);
    report.control(&control(&tool, &all)?);
    let mut wanted: Vec<&Mutant> = all.iter().filter(|mutant| wish.is_wanted(mutant)).collect();
    if wanted.is_empty() {
        return Err(
            "nothing to change there: name a source file of aster-core or aster-lease".to_owned(),
        );
    }
    if wish.seconds.is_some() {
        wish.shuffle(&mut wanted);
    }
    let mut batches = batches(&wanted);
    if wish.seconds.is_some() {
        wish.shuffle(&mut batches);
    }
    let mut has_baseline = Vec::new();
    for batch in batches {
        if started.is_over() {
            break;
        }
        let target = batch[0].target;
        let is_first = !has_baseline.contains(&target.package);
        has_baseline.push(target.package);
        for (mutant, verdict) in tool.try_out(target, target.cargo, &batch, is_first)? {
            report.add(mutant, verdict);
        }
        eprintln!(
            "{} of {} after {} s",
            report.tried(),
            wanted.len(),
            started.elapsed().as_secs()
        );
    }
    let mut evidence = report.evidence();
    evidence
        .write(wish.evidence.as_deref(), started.elapsed())
        .map_err(|error| error.to_string())?;
    Ok(evidence)
}

fn control(tool: &Tool, all: &[Mutant]) -> Result<Verdict, String> {
    let (change, tests) = CONTROL;
    let mutant = all.iter().find(|mutant| mutant.change.starts_with(change));
    let mutant = mutant.ok_or(format!(
        "the control `{change}` is gone: choose another one"
    ))?;
    let tried = tool.try_out(mutant.target, &[tests], &[mutant], false)?;
    tried
        .first()
        .map(|(_, verdict)| *verdict)
        .ok_or_else(|| "the control was not tried".to_owned())
}

/// A few at a time, each time of one crate.
fn batches<'a>(wanted: &[&'a Mutant]) -> Vec<Vec<&'a Mutant>> {
    let mut batches = Vec::new();
    for target in &TARGETS {
        let same = wanted
            .iter()
            .filter(|mutant| mutant.target.package == target.package);
        let same: Vec<&Mutant> = same.copied().collect();
        batches.extend(same.chunks(BATCH).map(<[_]>::to_vec));
    }
    batches
}
