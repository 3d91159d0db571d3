//! `cargo xtask verify`: reads only. Every step runs, also after one has failed.

use std::process::{Command, ExitCode, Stdio};

use crate::checks::{length, links, manifests, names, quotes, words};
use crate::repository::Repository;
use crate::step::{Action, Step, now};

const DENY_VERSION: &str = "0.20.2";

/// The steps in the order in which they run: the quick ones first.
fn steps() -> Vec<Step> {
    vec![
        Step {
            name: "words",
            what: "no merge markers, no paths of a build machine, no tracker numbers",
            remedy: "edit the lines named above",
            actions: vec![Action::Files(words::check)],
        },
        Step {
            name: "length",
            what: "no source file of 600 lines or more",
            remedy: "split the file where its parts are already visible; long tests go to tests/",
            actions: vec![Action::Files(length::check)],
        },
        Step {
            name: "manifests",
            what: "every crate has its metadata and the workspace's lints",
            remedy: "add the line named above to that Cargo.toml",
            actions: vec![Action::Files(manifests::check)],
        },
        Step {
            name: "links",
            what: "every relative link in a page leads to a file and a heading",
            remedy: "correct the link named above",
            actions: vec![Action::Files(links::check)],
        },
        Step {
            name: "names",
            what: "source files and functions named in a page exist",
            remedy: "correct the name in the page",
            actions: vec![Action::Files(names::check)],
        },
        Step {
            name: "quotes",
            what: "code quoted in a page equals the file that it is quoted from",
            remedy: "cargo xtask fix",
            actions: vec![Action::Files(quotes::check)],
        },
        Step {
            name: "format",
            what: "rustfmt",
            remedy: "cargo xtask fix",
            actions: vec![cargo(&["cargo", "fmt", "--all", "--check"])],
        },
        Step {
            name: "deny",
            what: "dependencies: licences, doubles, sources (advisories need a network database)",
            remedy: "choose another dependency, or allow it in deny.toml with the reason",
            actions: vec![
                cargo(&[
                    "cargo",
                    "deny",
                    "--locked",
                    "--log-level",
                    "error",
                    "check",
                    "--hide-inclusion-graph",
                    "bans",
                    "licenses",
                    "sources",
                ]),
                // No user's build has these, so doubles among them cost nobody anything.
                cargo(&[
                    "cargo",
                    "deny",
                    "--manifest-path",
                    "verify/interleavings/Cargo.toml",
                    "--config",
                    "deny.toml",
                    "--locked",
                    "--log-level",
                    "error",
                    "check",
                    "--hide-inclusion-graph",
                    "licenses",
                    "sources",
                ]),
            ],
        },
        Step {
            name: "clippy",
            what: "clippy on all targets, warnings are errors",
            remedy: "cargo xtask fix, then edit what it could not repair",
            actions: vec![cargo(&[
                "cargo",
                "clippy",
                "--quiet",
                "--locked",
                "--workspace",
                "--all-targets",
                "--",
                "-D",
                "warnings",
            ])],
        },
        Step {
            name: "minimum",
            what: "the crate aster without its default features",
            remedy: "put the new code behind its feature",
            actions: vec![cargo(&[
                "cargo",
                "clippy",
                "--quiet",
                "--locked",
                "--package",
                "aster",
                "--lib",
                "--no-default-features",
                "--",
                "-D",
                "warnings",
            ])],
        },
        Step {
            name: "metrics",
            what: "clippy and the tests of what is counted, with the feature metrics",
            remedy: "count what the test names, and describe it in docs/metrics.md",
            actions: vec![
                cargo(&[
                    "cargo",
                    "clippy",
                    "--quiet",
                    "--locked",
                    "--package",
                    "aster-lease",
                    "--package",
                    "aster-sqlite",
                    "--package",
                    "aster",
                    "--all-targets",
                    "--features",
                    "aster-lease/metrics,aster-sqlite/metrics,aster/metrics",
                    "--",
                    "-D",
                    "warnings",
                ]),
                cargo(&[
                    "cargo",
                    "test",
                    "--quiet",
                    "--locked",
                    "--package",
                    "aster-lease",
                    "--package",
                    "aster-sqlite",
                    "--features",
                    "aster-lease/metrics,aster-sqlite/metrics",
                    "--test",
                    "metrics",
                ]),
            ],
        },
        Step {
            name: "no_std",
            what: "the core links without std, and the proof would notice if it did not",
            remedy: "keep std out of aster-core and its dependencies; after a change of its \
                     dependencies run cargo xtask fix",
            actions: vec![
                cargo(&[
                    "cargo",
                    "build",
                    "--quiet",
                    "--locked",
                    "--manifest-path",
                    "verify/no_std/Cargo.toml",
                    "--target-dir",
                    "target/no_std",
                ]),
                Action::MustFail {
                    words: &[
                        "cargo",
                        "build",
                        "--quiet",
                        "--locked",
                        "--manifest-path",
                        "verify/no_std/Cargo.toml",
                        "--target-dir",
                        "target/no_std",
                        "--features",
                        "control-with-std",
                    ],
                    saying: "panic_impl",
                },
            ],
        },
        Step {
            name: "interleavings",
            what: "orders of the engine's own steps: format, clippy, scenarios and controls",
            remedy: "cargo xtask interleavings; what no longer fits the engine's sources is named with its \
                     file in verify/interleavings/exchange/src; after a change of its dependencies run \
                     cargo xtask fix",
            actions: vec![
                cargo(&[
                    "cargo",
                    "fmt",
                    "--all",
                    "--check",
                    "--manifest-path",
                    "verify/interleavings/Cargo.toml",
                ]),
                cargo(&[
                    "cargo",
                    "clippy",
                    "--quiet",
                    "--locked",
                    "--package",
                    "aster-interleavings",
                    "--package",
                    "aster-exchange",
                    "--package",
                    "stand_in",
                    "--all-targets",
                    "--no-deps",
                    "--manifest-path",
                    "verify/interleavings/Cargo.toml",
                    "--target-dir",
                    "target/interleavings",
                    "--",
                    "-D",
                    "warnings",
                ]),
                cargo(&[
                    "cargo",
                    "test",
                    "--quiet",
                    "--locked",
                    "--manifest-path",
                    "verify/interleavings/Cargo.toml",
                    "--target-dir",
                    "target/interleavings",
                ]),
            ],
        },
        Step {
            name: "doc",
            what: "rustdoc, warnings are errors",
            remedy: "edit the documentation comments named above",
            actions: vec![Action::Program {
                words: &[
                    "cargo",
                    "doc",
                    "--quiet",
                    "--locked",
                    "--workspace",
                    "--no-deps",
                ],
                environment: &[("RUSTDOCFLAGS", "-D warnings")],
            }],
        },
    ]
}

fn cargo(words: &'static [&'static str]) -> Action {
    Action::Program {
        words,
        environment: &[],
    }
}

pub(crate) fn list(_repository: &Repository) {
    for step in steps() {
        println!("{:<10} {}", step.name, step.what);
    }
}

pub(crate) fn run(repository: &Repository, names: &[String]) -> ExitCode {
    let steps = steps();
    if let Some(unknown) = names
        .iter()
        .find(|name| !steps.iter().any(|step| step.name == **name))
    {
        eprintln!("xtask: no step `{unknown}`; cargo xtask verify --list names them");
        return ExitCode::from(64);
    }
    let started = now();
    let mut failed = Vec::new();
    for step in &steps {
        if !names.is_empty() && !names.iter().any(|name| name == step.name) {
            continue;
        }
        let (outcome, took) = match missing_tool(step) {
            Some(message) => (Err(message), std::time::Duration::ZERO),
            None => step.run(repository),
        };
        let verdict = if outcome.is_ok() { "ok    " } else { "FAILED" };
        println!(
            "{verdict} {:<10} {:>6.1} s  {}",
            step.name,
            took.as_secs_f64(),
            step.what
        );
        if let Err(message) = outcome {
            println!("{message}\n       to repair: {}\n", step.remedy);
            failed.push(step.name);
        }
    }
    let seconds = now().saturating_duration_since(started).as_secs_f64();
    if failed.is_empty() {
        println!("verified in {seconds:.1} s");
        return ExitCode::SUCCESS;
    }
    println!("failed in {seconds:.1} s: {}", failed.join(", "));
    ExitCode::FAILURE
}

fn missing_tool(step: &Step) -> Option<String> {
    let present = step.name != "deny"
        || Command::new("cargo")
            .args(["deny", "--version"])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()
            .is_ok_and(|status| status.success());
    (!present).then(|| {
        format!(
            "cargo-deny is not installed: cargo install --locked cargo-deny --version {DENY_VERSION}"
        )
    })
}
