//! Every case runs. How fast is not asked: the machine may be busy.
#![allow(
    clippy::print_stderr,
    clippy::unwrap_used,
    reason = "what the cases said belongs to a failure"
)]

use std::process::Command;

fn bench(arguments: &[&str]) -> (bool, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_aster-bench"))
        .args(arguments)
        .output()
        .unwrap();
    eprintln!("{}", String::from_utf8_lossy(&output.stderr));
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    (output.status.success(), said)
}

#[test]
fn every_case_runs_and_has_its_lines() {
    let (_, list) = bench(&["--list"]);
    let (succeeded, table) = bench(&["--quick"]);
    assert!(succeeded);
    for case in list.lines() {
        let name = case.split(' ').next().unwrap();
        assert!(table.contains(&format!("| {name} |")), "{name}: {table}");
    }
}

#[test]
fn a_case_that_does_not_exist_is_not_run() {
    let (succeeded, table) = bench(&["--quick", "no-such-case"]);
    assert!(!succeeded);
    assert_eq!(table, "");
}
