//! Runs the suites on the stores and on every planted fault, and writes what was seen:
//! `cargo run --release -p aster-conformance --example evidence -- --evidence FILE`.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "it shares the harnesses of the tests, and talks to the person who runs it"
)]

#[path = "../tests/model/mod.rs"]
mod model;
#[path = "../tests/support/mod.rs"]
mod support;

use std::process::ExitCode;

use aster_conformance::{
    Harness, Outcome, Report, Rule, fenced_resource_suite, registers_suite, serializer_suite,
};
use aster_evidence::{Deadline, Evidence, Options};
use model::planted::each_planted_fault;
use model::{Fault, Model};
use support::memory::Memory;
use support::sqlite_file::Sqlite;

const COMMAND: &str = "cargo run --release -p aster-conformance --example evidence";

#[tokio::main]
async fn main() -> ExitCode {
    // The suites take the time that they take: `--seconds` is understood and changes nothing.
    let options = match Options::take(std::env::args().skip(1)) {
        Ok((options, others)) if others.is_empty() => options,
        Ok((_, others)) => return misused(&format!("{} is not understood", others.join(" "))),
        Err(error) => return misused(&error.to_string()),
    };
    let started = Deadline::after_s(0);
    let what = "one suite of cases for every store, and the same suite on stores that are broken on purpose";
    let mut evidence = Evidence::new("conformance", what, COMMAND);
    on_a_store(&mut evidence, "the memory store", &Memory).await;
    let named = Sqlite {
        is_clock_named: true,
    };
    on_a_store(&mut evidence, "the SQLite store", &named).await;
    let watching = Sqlite {
        is_clock_named: false,
    };
    let name = "the SQLite store that judges by watching";
    on_a_store(&mut evidence, name, &watching).await;
    let whole = Model(Fault::Nothing);
    on_a_store(&mut evidence, "the model, before it is broken", &whole).await;
    on_planted_faults(&mut evidence).await;
    evidence.not_covered(
        "the suite spread over two processes, which `cargo test -p aster-conformance` runs",
    );
    let written = evidence.write(options.evidence(), started.elapsed());
    print!("{evidence}");
    match written {
        Ok(()) if evidence.is_sound() => ExitCode::SUCCESS,
        Ok(()) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("evidence: {error}");
            ExitCode::FAILURE
        }
    }
}

fn misused(message: &str) -> ExitCode {
    eprintln!("evidence: {message}\nusage: {COMMAND} [-- --evidence FILE]");
    ExitCode::from(64)
}

async fn on_a_store<H: Harness>(evidence: &mut Evidence, store: &str, harness: &H) {
    for report in [
        serializer_suite(harness).await,
        fenced_resource_suite(harness).await,
        registers_suite(harness).await,
    ] {
        for case in report.cases() {
            match &case.outcome {
                Outcome::Passed => {
                    evidence.tried(&format!("cases passed by {store}"), 1);
                    evidence.held(case.rule.text());
                }
                Outcome::Failed(seen) => {
                    evidence.broken(format!("{store}, {}: {}: {seen}", case.name, case.rule));
                }
                Outcome::NotChecked(needs) => {
                    evidence.not_covered(&format!("{store}: {} needs {needs}", case.name));
                }
            }
        }
    }
}

async fn on_planted_faults(evidence: &mut Evidence) {
    macro_rules! tried {
        ($suite:ident: $($control:ident: $fault:ident breaks $rule:ident,)*) => {
            $({
                let report = $suite(&Model(Fault::$fault)).await;
                judge(evidence, stringify!($control), Rule::$rule, &report);
            })*
        };
    }
    each_planted_fault!(tried);
}

/// The fault is caught if a case of the rule that it breaks has failed.
fn judge(evidence: &mut Evidence, control: &str, rule: Rule, report: &Report) {
    let planted = control.replace('_', " ");
    match report.failed().find(|case| case.rule == rule) {
        Some(case) => evidence.caught(rule.text(), &planted, case.name),
        None => evidence.missed(rule.text(), &planted, "no case of this rule failed"),
    }
}
