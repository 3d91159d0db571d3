//! The workspace's tests as evidence: how many passed, and which of them are controls.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use aster_evidence::{Deadline, Evidence};

/// A test whose name begins so breaks a rule on purpose and passes only if that is noticed.
const CONTROL: &str = "control_";

/// Runs `command` and reads what it prints.
pub(crate) fn run(mut command: Command, words: &str) -> Result<Evidence, String> {
    let started = Deadline::after_s(0);
    let problem = |error: std::io::Error| format!("`{words}`: {error}");
    let mut child = command.stdout(Stdio::piped()).spawn().map_err(problem)?;
    let output = child.stdout.take().ok_or("no output")?;
    let mut evidence = Evidence::new("tests", "every test of the workspace", words);
    for line in BufReader::new(output).lines() {
        read(&mut evidence, &line.map_err(problem)?);
    }
    let status = child.wait().map_err(problem)?;
    if !status.success() && evidence.is_sound() {
        evidence.broken(format!("`{words}`: {status}"));
    }
    evidence.seconds = started.elapsed().as_secs();
    Ok(evidence)
}

/// One line: `test NAME ... ok`, `FAILED`, or `ignored`.
fn read(evidence: &mut Evidence, line: &str) {
    let Some((name, outcome)) = line
        .strip_prefix("test ")
        .and_then(|rest| rest.rsplit_once(" ... "))
    else {
        return;
    };
    let last = name.rsplit("::").next().unwrap_or(name);
    let control = last
        .strip_prefix(CONTROL)
        .map(|rest| rest.replace('_', " "));
    match (outcome.split(',').next().unwrap_or(outcome), control) {
        ("ok", Some(planted)) => {
            evidence.tried("tests that passed", 1);
            evidence.caught(
                "the rule that its name is about",
                &planted,
                "as the test demands",
            );
        }
        ("ok", None) => evidence.tried("tests that passed", 1),
        ("ignored", _) => evidence.tried("tests that were not run", 1),
        ("FAILED", Some(planted)) => {
            evidence.missed(
                "the rule that its name is about",
                &planted,
                "the test failed",
            );
        }
        ("FAILED", None) => evidence.broken(format!("the test {name} failed")),
        _ => {}
    }
}

#[cfg(test)]
mod lines {
    use super::read;
    use aster_evidence::Evidence;

    #[test]
    fn what_the_tests_print_is_counted() {
        let mut evidence = Evidence::new("tests", "", "");
        for line in [
            "running 5 tests",
            "test row::tests::epochs_grow ... ok",
            "test control_a_check_before_the_lock ... ok",
            "test crates/aster/src/lib.rs - open (line 12) - compile ... ok",
            "test heavy ... ignored, needs an hour",
            "test result: ok. 3 passed; 0 failed; 1 ignored",
        ] {
            read(&mut evidence, line);
        }
        let expected = [("tests that passed", 3), ("tests that were not run", 1)]
            .map(|(what, times)| (what.to_owned(), times));
        assert_eq!(evidence.tried, expected);
        assert_eq!(evidence.controls[0].planted, "a check before the lock");
        assert!(evidence.is_sound());
        read(
            &mut evidence,
            "test control_a_check_before_the_lock ... FAILED",
        );
        assert!(!evidence.is_sound(), "a control that fails was missed");
        read(&mut evidence, "test row::tests::epochs_grow ... FAILED");
        assert_eq!(evidence.broken.len(), 1);
    }
}
