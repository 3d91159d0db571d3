//! `run --wait`, `queue` and `watch`.
#![allow(
    clippy::unwrap_used,
    reason = "a failure here is a failure of the test"
)]

mod support;

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::process::Stdio;
use std::time::Duration;

use rustix::process::Signal;
use serde_json::Value;
use support::{CATALOG, Running, Sandbox, eventually, start, tell_pid};

/// Holds the resource until the file `end` is there.
fn hold(sandbox: &Sandbox) -> Running {
    let script = format!(
        r#"{}; while ! test -e "$DIR/end"; do sleep 0.01; done"#,
        tell_pid("pid")
    );
    let run = sandbox.run_script("a", "30s", &script);
    sandbox.wait_for("pid");
    run
}

/// A run of `worker` that waits and then writes its name behind those before it.
fn wait_in_line(sandbox: &Sandbox, worker: &str, wait: &str) -> Running {
    let script = format!(r#"echo {worker} >> "$DIR/served""#);
    let said = File::create(sandbox.path(&format!("said-{worker}"))).unwrap();
    let mut command = sandbox.command_as(worker);
    command
        .args(["run", "--wait", wait, CATALOG, "--", "sh", "-c", &script])
        .stdout(Stdio::piped())
        .stderr(said);
    Running::spawn(command)
}

fn id_of(sandbox: &Sandbox, worker: &str) -> String {
    let id = sandbox.aster_as(worker, &["id"]).exits(0).stdout;
    id.trim().to_owned()
}

/// The candidates, the next one first.
fn queue(sandbox: &Sandbox) -> Vec<String> {
    let queue = sandbox.aster(&["queue", "--json", CATALOG]).exits(0).json();
    assert_eq!(queue["resource"], CATALOG);
    let waiting = queue["waiting"].as_array().unwrap();
    for (place, waiter) in (1_u64..).zip(waiting) {
        assert_eq!(waiter["place"], place, "{queue}");
    }
    let candidate = |waiter: &Value| waiter["candidate"].as_str().unwrap().to_owned();
    waiting.iter().map(candidate).collect()
}

#[test]
fn runs_that_wait_are_served_in_order_and_say_behind_whom() {
    let sandbox = Sandbox::new();
    let holder = hold(&sandbox);
    let mut ids = Vec::new();
    let mut runs = Vec::new();
    for worker in ["d", "b", "c"] {
        ids.push(id_of(&sandbox, worker));
        runs.push(wait_in_line(&sandbox, worker, "10m"));
        eventually("it waits", || queue(&sandbox) == ids);
        eventually("it says so", || {
            sandbox
                .wait_for(&format!("said-{worker}"))
                .contains("waiting for")
        });
    }
    let shown = sandbox.aster(&["queue", CATALOG]).exits(0).stdout;
    for (place, (line, id)) in (1..).zip(shown.lines().zip(&ids)) {
        assert!(
            line.trim_start().starts_with(&format!("{place}  {id}"))
                && line.contains("waiting for"),
            "{shown}"
        );
    }
    assert_eq!(sandbox.row()["waiting"], 3);
    let inspected = sandbox.aster(&["inspect", CATALOG]).exits(0).stdout;
    assert!(inspected.contains("waiting   3"), "{inspected}");
    sandbox.touch("end");
    holder.finish().exits(0);
    let holder_id = id_of(&sandbox, "a");
    for (place, run) in runs.into_iter().enumerate() {
        run.finish().exits(0);
        let said = sandbox.wait_for(&format!("said-{}", ["d", "b", "c"][place]));
        let says = [
            format!("waiting for {CATALOG}, at most 10m 00s: held by {holder_id} at epoch 1"),
            ["", "; 1 other comes first", "; 2 others come first"][place].to_owned(),
        ];
        for says in says {
            assert!(said.contains(&says), "{says}: {said}");
        }
    }
    assert_eq!(sandbox.wait_for("served"), "d\nb\nc");
    assert_eq!(queue(&sandbox), Vec::<String>::new());
    assert_eq!(sandbox.row()["held"], false);
    let shown = sandbox.aster(&["queue", CATALOG]).exits(0).stdout;
    assert_eq!(shown, format!("nobody waits for {CATALOG}\n"));
}

#[test]
fn a_wait_that_runs_out_is_75_with_its_own_kind_and_leaves_the_queue() {
    let sandbox = Sandbox::new();
    let holder = hold(&sandbox);
    for wait in ["0s", "300ms"] {
        let arguments = [
            "--json", "run", "--wait", wait, CATALOG, "--", "touch", "ran",
        ];
        let error = sandbox.aster_as("b", &arguments).exits(75).json_error();
        assert_eq!(error["kind"], "wait_ran_out");
        let message = error["message"].as_str().unwrap();
        assert!(message.contains("ran out; it is held by"), "{message}");
        assert_eq!(queue(&sandbox), Vec::<String>::new());
    }
    sandbox.touch("end");
    holder.finish().exits(0);
    assert!(!sandbox.exists("ran"));
    assert_eq!(sandbox.row()["held"], false);
    // What is free needs no waiting.
    let arguments = ["run", "--wait", "0s", CATALOG, "--", "true"];
    let finished = sandbox.aster_as("b", &arguments).exits(0);
    assert_eq!(finished.stderr, "");
}

#[test]
fn a_signal_ends_the_wait_and_leaves_no_ghost() {
    for (signal, code) in [
        (Signal::HUP, 129),
        (Signal::INT, 130),
        (Signal::QUIT, 131),
        (Signal::TERM, 143),
    ] {
        let sandbox = Sandbox::new();
        let holder = hold(&sandbox);
        let waits = wait_in_line(&sandbox, "b", "1h");
        let b = id_of(&sandbox, "b");
        eventually("it waits", || queue(&sandbox) == [b.as_str()]);
        let behind = wait_in_line(&sandbox, "c", "1h");
        let c = id_of(&sandbox, "c");
        eventually("both wait", || queue(&sandbox) == [b.as_str(), c.as_str()]);
        waits.signal(Signal::USR1);
        waits.signal(signal);
        waits.finish().exits(code);
        assert_eq!(queue(&sandbox), [c.as_str()]);
        sandbox.touch("end");
        holder.finish().exits(0);
        behind.finish().exits(0);
        assert_eq!(sandbox.wait_for("served"), "c");
        assert_eq!(sandbox.row()["held"], false);
    }
}

/// A waiter that is killed at the head of the queue costs the next one the claim time, not a ttl.
#[test]
fn a_waiter_that_is_killed_does_not_keep_the_next_one_waiting_for_a_ttl() {
    let sandbox = Sandbox::new();
    let holder = hold(&sandbox);
    let arguments = [
        "run", "--ttl", "1h", "--wait", "1h", CATALOG, "--", "touch", "ran",
    ];
    // Not through `env`: KILL has to meet the run itself.
    let killed = sandbox.start_as("b", &arguments);
    let b = id_of(&sandbox, "b");
    eventually("it waits", || queue(&sandbox) == [b.as_str()]);
    let next = wait_in_line(&sandbox, "c", "1h");
    eventually("both wait", || queue(&sandbox).len() == 2);
    killed.signal(Signal::KILL);
    drop(killed);
    sandbox.touch("end");
    holder.finish().exits(0);
    next.finish().exits(0);
    assert!(!sandbox.exists("ran"));
}

/// However long it was stopped: the store was there, so that is an ordinary end of a wait.
#[test]
fn a_run_that_was_stopped_beyond_its_wait_ran_out() {
    let sandbox = Sandbox::new();
    let holder = hold(&sandbox);
    let mut command = sandbox.command_as("b");
    command.args(["--json", "run", "--wait", "500ms", CATALOG, "--", "true"]);
    let stopped = start(command);
    eventually("it waits", || queue(&sandbox).len() == 1);
    stopped.signal(Signal::STOP);
    // More than the wait and the time for an answer.
    std::thread::sleep(Duration::from_secs(6));
    stopped.signal(Signal::CONT);
    let error = stopped.finish().exits(75).json_error();
    assert_eq!(error["kind"], "wait_ran_out");
    assert_eq!(queue(&sandbox), Vec::<String>::new());
    sandbox.touch("end");
    holder.finish().exits(0);
}

/// The lines of a watch as they come.
struct Watching {
    run: Running,
    lines: BufReader<std::process::ChildStdout>,
}

impl Watching {
    fn start(sandbox: &Sandbox) -> Self {
        let mut command = sandbox.command();
        command.args(["watch", "--json", CATALOG]);
        let mut run = start(command);
        let lines = BufReader::new(run.stdout());
        Self { run, lines }
    }

    fn next(&mut self) -> Value {
        let mut line = String::new();
        self.lines.read_line(&mut line).unwrap();
        serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line}"))
    }
}

#[test]
fn a_watch_prints_a_line_for_each_owner_until_it_is_interrupted() {
    let sandbox = Sandbox::new();
    sandbox.aster(&["run", "other", "--", "true"]).exits(0);
    let mut watch = Watching::start(&sandbox);
    let first = watch.next();
    assert_eq!(first["held"], false, "{first}");
    assert!(first["at_unix_ms"].as_u64().unwrap() > 1_700_000_000_000);
    let run = hold(&sandbox);
    let held = watch.next();
    assert_eq!(
        (&held["held"], &held["epoch"], &held["resource"]),
        (&true.into(), &1.into(), &CATALOG.into())
    );
    assert_eq!(held["holder"], id_of(&sandbox, "a"));
    sandbox.aster_as("b", &["revoke", CATALOG]).exits(0);
    let free = watch.next();
    assert_eq!((&free["held"], &free["epoch"]), (&false.into(), &2.into()));
    run.finish().exits(76);
    // The same holder under a new epoch is a change.
    let script = r#"while ! test -e "$DIR/over"; do sleep 0.01; done"#;
    let again = sandbox.run_script("a", "30s", script);
    assert_eq!(watch.next()["epoch"], 3);
    sandbox.touch("over");
    again.finish().exits(0);
    assert_eq!(watch.next()["epoch"], 4);
    watch.run.signal(Signal::INT);
    assert_eq!(watch.run.wait(), Some(0));
}

#[test]
fn a_watch_ends_with_its_reader() {
    let sandbox = Sandbox::new();
    sandbox.aster(&["run", CATALOG, "--", "true"]).exits(0);
    let mut command = sandbox.command();
    command
        .args(["watch", CATALOG])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut run = Running::spawn(command);
    let mut lines = BufReader::new(run.stdout());
    let mut line = String::new();
    lines.read_line(&mut line).unwrap();
    assert!(line.contains("epoch 2") && line.contains("free"), "{line}");
    drop(lines);
    sandbox.aster(&["run", CATALOG, "--", "true"]).exits(0);
    assert_eq!(run.wait(), Some(0));
}

#[test]
fn a_watch_of_a_store_that_was_removed_says_so() {
    let sandbox = Sandbox::new();
    sandbox.aster(&["run", CATALOG, "--", "true"]).exits(0);
    let mut watch = Watching::start(&sandbox);
    watch.next();
    std::fs::rename(sandbox.path("leases.db"), sandbox.path("aside.db")).unwrap();
    let finished = watch.run.finish().exits(78);
    assert!(
        finished
            .stderr
            .contains("was replaced or removed while it was open"),
        "{finished:?}"
    );
}
