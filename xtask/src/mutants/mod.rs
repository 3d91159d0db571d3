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
/// About how many mutants are tried between two looks at the clock.
const SHARD: usize = 8;

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
const CONTROL: (&str, &str, &str) = (
    "crates/aster-core/src/fence.rs",
    r"replace check_fence .* with Ok\(\(\)\)",
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
    report.control(control(&tool)?);
    let mut shards: Vec<Shard> = TARGETS
        .iter()
        .flat_map(|target| shards(target, wish, &all))
        .collect();
    if shards.is_empty() {
        return Err("name source files of aster-core or aster-lease".to_owned());
    }
    if wish.seconds.is_some() {
        wish.shuffle(&mut shards);
    }
    let mut has_baseline = Vec::new();
    for shard in shards {
        if started.is_over() {
            break;
        }
        let target = shard.target;
        let is_first = !has_baseline.contains(&target.package);
        has_baseline.push(target.package);
        for (name, verdict) in tool.try_out(target, target.cargo, &shard.choice, is_first)? {
            report.add(&name, verdict)?;
        }
        eprintln!(
            "{} after {} s",
            report.progress(),
            started.elapsed().as_secs()
        );
    }
    let mut evidence = report.evidence();
    evidence
        .write(wish.evidence.as_deref(), started.elapsed())
        .map_err(|error| error.to_string())?;
    Ok(evidence)
}

/// A part of the mutants of one crate.
struct Shard {
    target: &'static Target,
    /// What makes cargo-mutants take it. Not by name: it takes some kinds of changes whatever they are called.
    choice: Vec<String>,
}

/// All wanted mutants of `target`, a few at a time.
fn shards(target: &'static Target, wish: &Wish, all: &[Mutant]) -> Vec<Shard> {
    let wanted: Vec<&Mutant> = all
        .iter()
        .filter(|mutant| mutant.target.package == target.package && wish.is_wanted(mutant))
        .collect();
    let mut files: Vec<String> = wanted
        .iter()
        .map(|mutant| format!("--file={}", mutant.file))
        .collect();
    files.dedup();
    let count = wanted.len().div_ceil(SHARD);
    // Neighbours are built faster; of a part, as much as possible should be seen.
    let sharding = match wish.seconds {
        Some(_) => "--sharding=round-robin",
        None => "--sharding=slice",
    };
    (0..count)
        .map(|number| Shard {
            target,
            choice: [format!("--shard={number}/{count}"), sharding.to_owned()]
                .into_iter()
                .chain(files.iter().cloned())
                .collect(),
        })
        .collect()
}

fn control(tool: &Tool) -> Result<Verdict, String> {
    let (file, change, tests) = CONTROL;
    let choice = [format!("--file={file}"), format!("--re={change}")];
    let tried = tool.try_out(&TARGETS[0], &[tests], &choice, false)?;
    match tried[..] {
        [(_, verdict)] => Ok(verdict),
        _ => Err(format!(
            "the control `{change}` in {file} is not one mutant: choose another one"
        )),
    }
}
