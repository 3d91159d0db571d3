//! The lease is lost: the command's process group is gone before anyone else is granted.
#![allow(
    clippy::unwrap_used,
    reason = "a failure here is a failure of the test"
)]

mod support;

use std::path::PathBuf;
use std::time::Duration;

use aster::sqlite::rusqlite::{Connection, TransactionBehavior};
use rustix::process::Signal;
use support::{CATALOG, Running, Sandbox, eventually, lives, signal_process, state_of, tell_pid};

/// A child and a grandchild that do not listen to TERM, and work for as long as they live.
fn stubborn() -> String {
    format!(
        r#"trap '' TERM
           sh -c '{}; while :; do sleep 0.05; done' & {}; while :; do sleep 0.05; done"#,
        tell_pid("grandchild"),
        tell_pid("child"),
    )
}

/// Asks as worker B until it is granted. What B's command sees of A's processes at that moment comes back:
/// the names of those that still live.
fn take_over(sandbox: &Sandbox, watched: &[&str], then: &str) -> String {
    let pids: Vec<_> = watched
        .iter()
        .map(|name| format!("{name}:{}", sandbox.wait_for_pid(name)))
        .collect();
    let script = format!(
        r#"for pair in {}; do
             state=$(sed 's/.*) //' /proc/${{pair#*:}}/stat 2>/dev/null | cut -c1)
             case "$state" in ""|Z|X) ;; *) echo "${{pair%:*}}";; esac
           done; {then}"#,
        pids.join(" ")
    );
    let mut seen = String::new();
    eventually("B is granted", || {
        let finished = sandbox.run_script("b", "30s", &script).finish();
        match finished.code {
            Some(0) => {
                seen = finished.stdout;
                true
            }
            Some(75) => false,
            _ => panic!("{finished:?}"),
        }
    });
    seen
}

/// A process that nobody guards: what [`take_over`] sees if it is not ended.
fn start_unguarded(sandbox: &Sandbox) -> Running {
    let mut command = std::process::Command::new("sh");
    command
        .args(["-c", &format!("{}; exec sleep 600", tell_pid("control"))])
        .env("DIR", sandbox.path(""));
    let control = support::start(command);
    sandbox.wait_for("control");
    control
}

fn start_stubborn(sandbox: &Sandbox, ttl: &str) -> Running {
    let run = sandbox.run_script("a", ttl, &stubborn());
    sandbox.wait_for("child");
    sandbox.wait_for("grandchild");
    run
}

#[test]
fn revoked_the_command_is_told_to_end_then_killed_and_the_exit_code_is_76() {
    let sandbox = Sandbox::new();
    // The guard, which kills before the end of the ttl, is far away: the run itself has to do it.
    let run = start_stubborn(&sandbox, "1h");
    let revoked = sandbox
        .aster_as("b", &["revoke", "--json", CATALOG])
        .exits(0)
        .json();
    assert_eq!(
        (&revoked["outcome"], &revoked["epoch"]),
        (&"revoked".into(), &1.into())
    );
    let finished = run.finish().exits(76);
    assert!(finished.stderr.contains("revoked"), "{finished:?}");
    assert!(finished.stderr.contains("killed"), "{finished:?}");
    assert!(!lives(sandbox.wait_for_pid("child")));
    assert!(!lives(sandbox.wait_for_pid("grandchild")));
    assert_eq!(sandbox.row()["epoch"], 2);
}

/// A process that stands still hears nothing until it goes on.
#[test]
fn a_stopped_command_is_told_to_end_too() {
    let sandbox = Sandbox::new();
    let script = format!(
        r#"trap 'echo > "$DIR/told"; exit 0' TERM; {}; while :; do sleep 0.05; done"#,
        tell_pid("pid")
    );
    let run = sandbox.run_script("a", "1h", &script);
    signal_process(sandbox.wait_for_pid("pid"), Signal::STOP);
    sandbox.aster_as("b", &["revoke", CATALOG]).exits(0);
    let finished = run.finish().exits(76);
    assert!(sandbox.exists("told"), "{finished:?}");
}

/// Ends the lease as a revoke does, without the side file, which belongs to the renewals.
fn end_the_lease(sandbox: &Sandbox) {
    let main = Connection::open(sandbox.database()).unwrap();
    main.busy_timeout(Duration::from_secs(30)).unwrap();
    let ended = "UPDATE aster_rows SET epoch = epoch + 1, revision = revision + 1,
                 holder = NULL, ttl_ms = NULL";
    assert_eq!(main.execute(ended, []).unwrap(), 1);
}

#[test]
fn a_write_of_a_revoked_run_is_rejected_whatever_it_believes() {
    let sandbox = Sandbox::new();
    // The command does not know yet: it tries at once, and again when it is told to end.
    let script = format!(
        r#"trap 'aster put too-late; echo "$?"; echo > "$DIR/told"; exit 0' TERM
           aster put v1; {}; while ! test -e "$DIR/revoked"; do sleep 0.01; done
           (trap '' TERM; aster put zombie; echo "$?"); while :; do sleep 0.05; done"#,
        tell_pid("pid")
    );
    let run = sandbox.run_script("a", "1h", &script);
    sandbox.wait_for("pid");
    // While the renewals stand still, only the rejection can end the work.
    let mut side = Connection::open(sandbox.path("leases.db-aster")).unwrap();
    side.busy_timeout(Duration::from_secs(30)).unwrap();
    let renewals_stand_still = side
        .transaction_with_behavior(TransactionBehavior::Immediate)
        .unwrap();
    end_the_lease(&sandbox);
    sandbox.touch("revoked");
    sandbox.wait_for("told");
    drop(renewals_stand_still);
    let finished = run.finish().exits(76);
    assert_eq!(finished.stdout, "76\n76\n", "{finished:?}");
    assert!(finished.stderr.contains("stale fence"), "{finished:?}");
    assert!(
        finished.stderr.contains("told to end and did"),
        "{finished:?}"
    );
    assert_eq!(sandbox.value(), "v1");

    // The rejected write is in the trail, the second never left the run.
    let trail = sandbox.aster(&["audit", "--json", CATALOG]).exits(0).json();
    let events: Vec<_> = trail["records"].as_array().unwrap().iter().collect();
    let rejected: Vec<_> = events
        .iter()
        .filter(|event| event["event"] == "rejected")
        .collect();
    assert_eq!(rejected.len(), 1, "{trail}");
    assert_eq!(
        (&rejected[0]["epoch_carried"], &rejected[0]["epoch_current"]),
        (&1.into(), &2.into())
    );
}

#[test]
fn a_run_that_is_killed_takes_its_child_and_grandchild_along() {
    let sandbox = Sandbox::new();
    let run = start_stubborn(&sandbox, "3s");
    assert_eq!(sandbox.private_directories().len(), 1);
    run.signal(Signal::KILL);
    assert_eq!(run.wait(), None, "killed by a signal");
    let (child, grandchild) = (
        sandbox.wait_for_pid("child"),
        sandbox.wait_for_pid("grandchild"),
    );
    eventually("the child is gone", || !lives(child));
    eventually("the grandchild is gone", || !lives(grandchild));
    eventually("the socket's directory is gone", || {
        sandbox.private_directories().is_empty()
    });
    // Nobody released it: the next owner waits for the ttl.
    take_over(&sandbox, &[], "aster put v2");
    assert_eq!(sandbox.value(), "v2");
}

#[test]
fn the_command_dies_with_its_run_even_without_the_guard() {
    let sandbox = Sandbox::new();
    let run = start_stubborn(&sandbox, "30s");
    // Stopped, so that it cannot start another guard.
    run.signal(Signal::STOP);
    signal_any(guard_of(run.id()), Signal::KILL);
    run.signal(Signal::KILL);
    let child = sandbox.wait_for_pid("child");
    eventually("the child is gone", || !lives(child));
    // Here is how far it goes: without the guard nobody tells the grandchild.
    signal_any(sandbox.wait_for_pid("grandchild"), Signal::KILL);
}

#[test]
fn a_guard_that_is_killed_is_replaced() {
    let sandbox = Sandbox::new();
    let run = start_stubborn(&sandbox, "30s");
    let first = guard_of(run.id());
    signal_any(first, Signal::KILL);
    eventually("another guard", || {
        find_guard_of(run.id()).is_some_and(|guard| guard != first)
    });
    // The run answers after it has told the new one whom to guard.
    let mut ask = sandbox.command();
    let socket = sandbox.private_directories()[0].join("socket");
    ask.env("ASTER_SOCKET", socket).arg("fence");
    support::start(ask).finish().exits(0);
    run.signal(Signal::KILL);
    let grandchild = sandbox.wait_for_pid("grandchild");
    eventually("the grandchild is gone", || !lives(grandchild));
    eventually("the socket's directory is gone", || {
        sandbox.private_directories().is_empty()
    });
}

#[test]
fn a_run_that_is_stopped_past_its_ttl_loses_and_nothing_of_it_is_left_when_another_is_granted() {
    let sandbox = Sandbox::new();
    let run = start_stubborn(&sandbox, "2s");
    stop_outside_a_transaction(&sandbox, run.id());
    // The run stands still, its children do not: the guard ends them in time. The control shows that a
    // process which nobody ended would be seen.
    let _control = start_unguarded(&sandbox);
    let seen = take_over(
        &sandbox,
        &["child", "grandchild", "control"],
        "aster put v2",
    );
    assert_eq!(
        seen, "control\n",
        "processes of A that live while B owns the resource"
    );
    run.signal(Signal::CONT);
    let finished = run.finish().exits(76);
    assert!(finished.stderr.contains("lost"), "{finished:?}");
    assert_eq!(sandbox.value(), "v2");
}

/// The file of the renewals, beside the store's.
fn renewals_of(sandbox: &Sandbox) -> PathBuf {
    let mut renewals = sandbox.database().into_os_string();
    renewals.push("-aster");
    renewals.into()
}

/// Keeps every process from renewing (and from taking over) by holding the lock of the renewals' file.
fn hold_renewals(sandbox: &Sandbox, for_how_long: impl FnOnce()) {
    let mut connection = Connection::open(renewals_of(sandbox)).unwrap();
    connection.busy_timeout(Duration::from_secs(10)).unwrap();
    let transaction = connection
        .transaction_with_behavior(TransactionBehavior::Immediate)
        .unwrap();
    for_how_long();
    transaction.rollback().unwrap();
}

/// A process that is stopped inside a transaction keeps everybody out of the file: that is SQLite's, and
/// documented. Here it is stopped between two.
fn stop_outside_a_transaction(sandbox: &Sandbox, pid: i32) {
    let is_unlocked = |path: PathBuf| {
        let mut connection = Connection::open(path).unwrap();
        connection.busy_timeout(Duration::ZERO).unwrap();
        let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate);
        transaction.is_ok_and(|transaction| transaction.rollback().is_ok())
    };
    eventually("stopped outside a transaction", || {
        stop(pid);
        eventually("stopped", || state_of(pid) == 'T');
        let is_outside = is_unlocked(sandbox.database()) && is_unlocked(renewals_of(sandbox));
        if !is_outside {
            continue_process(pid);
        }
        is_outside
    });
}

#[test]
fn without_renewals_the_group_is_gone_before_the_ttl_is_over() {
    const TTL: Duration = Duration::from_secs(4);
    let sandbox = Sandbox::new();
    // The last sign of life, on the clock that counts the ttl: seconds since the machine started.
    let sign_of_life = r#"read -r up _ < /proc/uptime; echo "$up" > "$DIR/$NAME.new"; mv "$DIR/$NAME.new" "$DIR/$NAME""#;
    let script = format!(
        r#"trap '' TERM
           NAME=grandchild sh -c 'while :; do {sign_of_life}; done' &
           NAME=child; while :; do {sign_of_life}; done"#
    );
    let run = sandbox.run_script("a", "4s", &script);
    sandbox.wait_for("child");
    sandbox.wait_for("grandchild");
    let mut finished = None;
    let mut cut_off = Duration::ZERO;
    hold_renewals(&sandbox, || {
        cut_off = aster::lease::clock::boot_time();
        finished = Some(run.finish());
    });
    let finished = finished.unwrap().exits(76);
    assert!(
        finished.stderr.contains("no renewal succeeded"),
        "{finished:?}"
    );
    assert!(finished.stderr.contains("killed"), "{finished:?}");
    // Every renewal that succeeded was sent before the cut.
    for name in ["child", "grandchild"] {
        let last: f64 = sandbox.wait_for(name).parse().unwrap();
        let last = Duration::from_secs_f64(last);
        assert!(
            last < cut_off + TTL,
            "{name} lived at {last:?}, cut off at {cut_off:?}"
        );
        assert!(last > cut_off, "{name} worked on while the lease lasted");
    }
}

#[test]
fn a_short_outage_loses_nothing() {
    let sandbox = Sandbox::new();
    let script = format!(
        r#"{}; while ! test -e "$DIR/end"; do sleep 0.01; done; aster put v1"#,
        tell_pid("pid")
    );
    let arguments = [
        "run", "--ttl", "10s", "--grace", "100ms", CATALOG, "--", "sh", "-c", &script,
    ];
    let run = sandbox.start(&arguments);
    sandbox.wait_for("pid");
    hold_renewals(&sandbox, || std::thread::sleep(Duration::from_secs(4)));
    sandbox.touch("end");
    run.finish().exits(0);
    assert_eq!(sandbox.value(), "v1");
    assert_eq!(sandbox.row()["epoch"], 2, "one grant, one release");
}

#[test]
fn a_write_loop_that_stands_still_for_three_ttls_writes_nothing_afterwards() {
    let sandbox = Sandbox::new();
    let script = format!(
        r#"trap '' TERM; {}; i=0
           while i=$((i+1)); do aster put "a-$i" || echo "$?" >> "$DIR/refused"; done"#,
        tell_pid("child")
    );
    let run = sandbox.run_script("a", "1s", &script);
    let child = sandbox.wait_for_pid("child");
    eventually("A writes", || {
        sandbox.aster(&["get", CATALOG]).stdout.starts_with("a-")
    });
    // Everything of A stands still, its guard too: nobody is left to end the loop in time.
    let guard = guard_of(run.id());
    stop(guard);
    stop_outside_a_transaction(&sandbox, run.id());
    stop(-child);
    std::thread::sleep(Duration::from_secs(3));
    take_over(&sandbox, &[], "aster put b");
    // The loop goes on before its run does, so that writes are waiting for the run.
    continue_process(-child);
    std::thread::sleep(Duration::from_millis(100));
    assert_eq!(sandbox.value(), "b");
    continue_process(run.id());
    continue_process(guard);
    let finished = run.finish().exits(76);
    assert_eq!(
        finished.stderr.matches(" was lost: ").count(),
        1,
        "{finished:?}"
    );
    assert_eq!(sandbox.value(), "b", "no write of A lands after B's");
    assert!(!lives(child));
}

fn guard_of(run: i32) -> i32 {
    find_guard_of(run).unwrap()
}

fn find_guard_of(run: i32) -> Option<i32> {
    let children = std::fs::read_to_string(format!("/proc/{run}/task/{run}/children")).unwrap();
    let mut pids = children
        .split_whitespace()
        .map(|pid| pid.parse::<i32>().unwrap());
    pids.find(|pid| {
        // A zombie, or a process that is just being started, has another command line or none.
        let command = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&command).contains("__guard")
    })
}

/// Stops a process, or with a negative id a whole group.
fn stop(pid: i32) {
    signal_any(pid, Signal::STOP);
}

fn continue_process(pid: i32) {
    signal_any(pid, Signal::CONT);
}

fn signal_any(pid: i32, signal: Signal) {
    use rustix::process::{Pid, kill_process, kill_process_group};
    let id = Pid::from_raw(pid.abs()).unwrap();
    match pid < 0 {
        true => kill_process_group(id, signal).unwrap(),
        false => kill_process(id, signal).unwrap(),
    }
}

#[test]
fn a_put_outside_a_run_has_no_fence_to_use() {
    let sandbox = Sandbox::new();
    for command in [&["put", "x"][..], &["fence"]] {
        let finished = sandbox.aster(command).exits(64);
        assert!(finished.stderr.contains("inside a run"), "{finished:?}");
    }
    // A command that outlived its run, and still has the variable.
    let mut command = sandbox.command();
    command
        .env("ASTER_SOCKET", sandbox.path("gone"))
        .args(["put", "x"]);
    let finished = support::start(command).finish().exits(76);
    assert!(
        finished.stderr.contains("has ended, and so has its lease"),
        "{finished:?}"
    );
}

/// A command that ends before its run has heard of the revoke did not end under the lease.
#[test]
fn a_command_that_ends_after_its_lease_was_revoked_is_no_success() {
    let sandbox = Sandbox::new();
    let script = format!("aster revoke {CATALOG} && exit 0");
    let finished = sandbox.run_script("a", "10m", &script).finish().exits(76);
    assert!(
        finished.stderr.contains("had ended before the command did"),
        "{finished:?}"
    );
    assert!(!finished.stderr.contains("released"), "{finished:?}");
}

/// However long the ttl is, a revoke ends the command soon.
#[test]
fn a_revoke_is_heard_of_long_before_a_third_of_a_long_ttl() {
    let sandbox = Sandbox::new();
    let script = format!("{}; exec sleep 600", tell_pid("pid"));
    let run = sandbox.run_script("a", "1h", &script);
    sandbox.wait_for("pid");
    sandbox.aster_as("operator", &["revoke", CATALOG]).exits(0);
    // It would be twenty minutes; the test waits for one.
    run.finish().exits(76);
}
