//! HUP, INT, QUIT and TERM to a run.
#![allow(
    clippy::unwrap_used,
    reason = "a failure here is a failure of the test"
)]

mod support;

use aster::sqlite::rusqlite::{Connection, TransactionBehavior};
use rustix::process::Signal;
use support::{Sandbox, eventually, lives, tell_pid};

const SIGNALS: [(Signal, &str); 4] = [
    (Signal::HUP, "HUP"),
    (Signal::INT, "INT"),
    (Signal::QUIT, "QUIT"),
    (Signal::TERM, "TERM"),
];

#[test]
fn the_lease_is_released_only_when_the_command_is_gone() {
    for (signal, name) in SIGNALS {
        let sandbox = Sandbox::new();
        // Takes its time to end, as long as the test wants.
        let script = format!(
            r#"trap 'touch "$DIR/told"; while ! test -e "$DIR/end"; do sleep 0.01; done; exit 3' {name}
               {}; while :; do sleep 0.05; done"#,
            tell_pid("pid")
        );
        let run = sandbox.run_script("a", "30s", &script);
        let pid = sandbox.wait_for_pid("pid");
        run.signal(signal);
        sandbox.wait_for("told");
        let row = sandbox.row();
        assert_eq!(
            (&row["held"], &row["epoch"]),
            (&true.into(), &1.into()),
            "{name}"
        );
        sandbox.run_script("b", "30s", "true").finish().exits(75);
        assert!(lives(pid), "{name}");

        sandbox.touch("end");
        run.finish().exits(3);
        assert!(!lives(pid), "{name}");
        assert_eq!(sandbox.row()["held"], false, "{name}");
        sandbox.run_script("b", "30s", "true").finish().exits(0);
    }
}

#[test]
fn a_command_that_the_signal_ends_gives_128_and_the_signal() {
    for (signal, name) in SIGNALS {
        let sandbox = Sandbox::new();
        // A plain program: it has no handler, so the signal's default ends it.
        let script = format!("{}; exec sleep 600", tell_pid("pid"));
        let run = sandbox.run_script("a", "30s", &script);
        sandbox.wait_for("pid");
        run.signal(signal);
        run.finish().exits(128 + signal.as_raw());
        assert_eq!(sandbox.row()["held"], false, "{name}");
    }
}

#[test]
fn the_whole_group_hears_the_signal() {
    let sandbox = Sandbox::new();
    let script = format!(
        r#"sh -c '{}; while :; do sleep 0.05; done' & {}; wait"#,
        tell_pid("grandchild"),
        tell_pid("child")
    );
    let run = sandbox.run_script("a", "30s", &script);
    let (child, grandchild) = (
        sandbox.wait_for_pid("child"),
        sandbox.wait_for_pid("grandchild"),
    );
    run.signal(Signal::TERM);
    assert_eq!(run.wait(), Some(143));
    assert!(!lives(child) && !lives(grandchild));
}

#[test]
fn a_run_that_is_told_to_end_while_it_acquires_runs_nothing_and_leaves_nothing() {
    let sandbox = Sandbox::new();
    sandbox.run_script("b", "30s", "true").finish().exits(0);
    let mut connection = Connection::open(sandbox.database()).unwrap();
    let lock = connection
        .transaction_with_behavior(TransactionBehavior::Immediate)
        .unwrap();
    let run = sandbox.run_script("a", "30s", "touch $DIR/ran");
    eventually("the run listens to TERM", || {
        catches(run.id(), Signal::TERM)
    });
    run.signal(Signal::TERM);
    lock.rollback().unwrap();
    run.finish().exits(143);
    assert!(!sandbox.exists("ran"));
    assert_eq!(sandbox.row()["held"], false);
}

/// Whether a process has a handler for the signal: `SigCgt` of its status.
fn catches(pid: i32, signal: Signal) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let mask = status
        .lines()
        .find_map(|line| line.strip_prefix("SigCgt:"))
        .unwrap();
    let mask = u64::from_str_radix(mask.trim(), 16).unwrap();
    mask & (1 << (signal.as_raw() - 1)) != 0
}

#[test]
fn a_signal_that_was_ignored_at_the_start_stays_ignored() {
    let sandbox = Sandbox::new();
    let script = format!(
        r#"{}; while ! test -e "$DIR/end"; do sleep 0.01; done"#,
        tell_pid("pid")
    );
    let configured = sandbox.command();
    let mut shell = std::process::Command::new("sh");
    for (name, value) in configured.get_envs() {
        match value {
            Some(value) => shell.env(name, value),
            None => shell.env_remove(name),
        };
    }
    shell
        .args([
            "-c",
            r#"trap '' HUP; exec "$0" run catalog/current -- sh -c "$1""#,
        ])
        .args([support::ASTER, &script])
        .stdin(std::process::Stdio::null());
    let run = support::start(shell);
    let pid = sandbox.wait_for_pid("pid");
    run.signal(Signal::HUP);
    support::signal_process(pid, Signal::HUP);
    // Both have had the signal by the time that another command has come and gone.
    assert_eq!(sandbox.row()["held"], true);
    assert!(lives(pid));
    sandbox.touch("end");
    run.finish().exits(0);
}
