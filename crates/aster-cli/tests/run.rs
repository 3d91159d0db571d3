//! `aster run`: the lease lasts as long as the command, and the command works through the run.
#![allow(
    clippy::unwrap_used,
    reason = "a failure here is a failure of the test"
)]

mod support;

use std::collections::BTreeSet;
use std::fs;

use aster::sqlite::rusqlite::{Connection, TransactionBehavior};
use support::{CATALOG, Sandbox, eventually, lives, tell_pid};

#[test]
fn a_command_publishes_through_its_run() {
    let sandbox = Sandbox::new();
    sandbox
        .aster(&["run", CATALOG, "--", "aster", "put", "catalog-v1"])
        .exits(0);
    assert_eq!(sandbox.value(), "catalog-v1");

    let row = sandbox.row();
    assert_eq!(row["held"], false, "the lease was released: {row}");
    assert_eq!(row["epoch"], 2, "release advances the epoch: {row}");

    // The next owner builds on it.
    let script = r#"old=$(aster get) && aster put "$old+1" && aster get"#;
    let again = sandbox.run_script("b", "30s", script).finish().exits(0);
    assert_eq!(again.stdout, "catalog-v1+1");
    assert_eq!(
        again.stderr, "",
        "a run that goes well says nothing of its own"
    );
}

#[test]
fn the_command_finds_its_run_and_the_same_store_and_identity() {
    let sandbox = Sandbox::new();
    let script = r#"
        echo "$ASTER_RESOURCE"; test -S "$ASTER_SOCKET" && stat -c %a "$(dirname "$ASTER_SOCKET")"
        cd / && aster id && aster inspect --json catalog/current && aster fence --json"#;
    // A relative store and a relative identity, and no `aster` in the PATH.
    let mut command = sandbox.command();
    command
        .env_remove("ASTER_STORE")
        .env_remove("ASTER_IDENTITY")
        .env("PATH", "/usr/bin:/bin")
        .args([
            "--store",
            "sqlite:leases.db",
            "--identity",
            "identity-a",
            "run",
            CATALOG,
        ])
        .args(["--", "sh", "-c", script]);
    let finished = support::start(command).finish().exits(0);
    let lines: Vec<_> = finished.stdout.lines().collect();
    let id = sandbox.aster(&["id"]).exits(0).stdout.trim().to_owned();
    assert_eq!(lines[..3], [CATALOG, "700", id.as_str()]);
    let row: serde_json::Value = serde_json::from_str(lines[3]).unwrap();
    let fence: serde_json::Value = serde_json::from_str(lines[4]).unwrap();
    assert_eq!(
        (&row["held"], &row["holder"]),
        (&true.into(), &id.as_str().into())
    );
    assert_eq!(fence["epoch"], row["epoch"]);
    assert_eq!(fence["holder"], row["holder"]);
    assert_eq!(fence["resource"], CATALOG);
    assert_eq!(fence["authority"].as_str().unwrap().len(), 32);
    assert!(
        sandbox.private_directories().is_empty(),
        "the socket's directory is removed"
    );
}

#[test]
fn put_compares_revisions_when_asked_to() {
    let sandbox = Sandbox::new();
    let script = r#"
        aster put --expect none v1 && aster put --expect 1 --json v2
        aster put --expect 1 v3; echo "conflict $?"
        aster put --expect none v3; echo "conflict $?"
        printf 'from stdin' | aster put - && aster get && echo
        printf '\377\000' > "$DIR/binary" && aster put --file "$DIR/binary" && aster get --json
        aster put -- --dashes && aster get && aster put '' && aster get --json"#;
    let finished = sandbox.run_script("a", "30s", script).finish().exits(0);
    let lines: Vec<_> = finished.stdout.lines().collect();
    assert_eq!(
        lines[0],
        r#"{"resource":"catalog/current","value_revision":2,"epoch":1}"#
    );
    assert_eq!(lines[1..4], ["conflict 1", "conflict 1", "from stdin"]);
    assert_eq!(
        lines[4],
        r#"{"resource":"catalog/current","value_base64":"/wA=","value_revision":4,"epoch":1}"#
    );
    assert_eq!(
        lines[5],
        r#"--dashes{"resource":"catalog/current","value":"","value_revision":6,"epoch":1}"#
    );
}

#[test]
fn a_resource_that_is_held_denies_and_the_command_does_not_run() {
    let sandbox = Sandbox::new();
    let holder = sandbox.run_script("a", "30s", &format!("{}; sleep 600", tell_pid("pid")));
    sandbox.wait_for("pid");
    let id = sandbox
        .aster_as("a", &["id"])
        .exits(0)
        .stdout
        .trim()
        .to_owned();
    // Another identity, and the same one again: the grant is the lock, not the name.
    for worker in ["a", "b"] {
        let denied = sandbox
            .run_script(worker, "30s", "touch $DIR/ran")
            .finish()
            .exits(75);
        assert!(denied.stderr.contains("held by"), "{denied:?}");
        assert!(denied.stderr.contains(&id), "{denied:?}");
    }
    assert!(!sandbox.exists("ran"));
    let denied = sandbox
        .aster(&["--json", "run", CATALOG, "--", "true"])
        .exits(75);
    assert_eq!(denied.json_error()["kind"], "denied");
    drop(holder);
}

#[test]
fn the_exit_code_is_the_commands_own() {
    let sandbox = Sandbox::new();
    for (script, code) in [("exit 0", 0), ("exit 7", 7), ("exit 255", 255)] {
        sandbox.run_script("a", "30s", script).finish().exits(code);
    }
    for (signal, code) in [("TERM", 143), ("KILL", 137), ("INT", 130)] {
        let script = format!("kill -{signal} $$; sleep 600");
        sandbox.run_script("a", "30s", &script).finish().exits(code);
    }
    let missing = sandbox
        .aster(&["run", CATALOG, "--", "no-such-command"])
        .exits(127);
    assert!(missing.stderr.contains("no-such-command"), "{missing:?}");
    sandbox.touch("not-executable");
    sandbox
        .aster(&["run", CATALOG, "--", "./not-executable"])
        .exits(126);
    assert_eq!(sandbox.row()["held"], false, "released each time");
}

#[test]
fn whoever_is_left_in_the_group_is_killed_before_the_release() {
    let sandbox = Sandbox::new();
    let script = r#"
        sh -c 'trap "" TERM HUP; echo $$ > "$DIR/left.new"; mv "$DIR/left.new" "$DIR/left"; while :; do sleep 600; done' &
        while ! test -e "$DIR/left"; do sleep 0.01; done; exit 5"#;
    // Nobody reads the pipes to their end here: a member that lived on would hold them open. The ttl is
    // so long that the guard's deadline cannot be what ends it.
    let code = sandbox.run_script("a", "1h", script).wait();
    assert_eq!(code, Some(5));
    assert!(!lives(sandbox.wait_for_pid("left")));
    assert_eq!(sandbox.row()["held"], false);
}

#[test]
fn a_daemon_of_the_command_has_none_of_our_descriptors() {
    let sandbox = Sandbox::new();
    // Leaves the session and the group, closes nothing, and tells what it has.
    let script = r#"setsid sh -c 'ls -l /proc/self/fd > "$DIR/$NAME.new"; mv "$DIR/$NAME.new" "$DIR/$NAME"; sleep 1' &
        while ! test -e "$DIR/$NAME"; do sleep 0.01; done"#;
    let mut plain = std::process::Command::new("sh");
    plain
        .args(["-c", script])
        .env("NAME", "plain")
        .env("DIR", sandbox.path(""))
        .stdin(std::process::Stdio::null());
    assert_eq!(support::start(plain).wait(), Some(0));
    let mut run = sandbox.command();
    run.env("NAME", "run")
        .args(["run", CATALOG, "--", "sh", "-c", script]);
    assert_eq!(support::start(run).wait(), Some(0));

    let descriptors = |name: &str| -> BTreeSet<String> {
        let listing = sandbox.wait_for(name);
        let names = listing.lines().filter_map(|line| line.split(" -> ").next());
        names
            .filter_map(|line| line.split_whitespace().last().map(str::to_owned))
            .filter(|name| name.parse::<u32>().is_ok())
            .collect()
    };
    assert_eq!(descriptors("run"), descriptors("plain"));
    let listing = sandbox.wait_for("run");
    for ours in ["leases.db", "socket:", "anon_inode"] {
        assert!(!listing.contains(ours), "{ours}: {listing}");
    }
}

#[test]
fn a_store_that_fails_while_acquiring_keeps_the_work_from_running() {
    let sandbox = Sandbox::new();
    fs::write(
        sandbox.path("garbage.db"),
        "this is no database at all, not even nearly".repeat(100),
    )
    .unwrap();
    fs::create_dir(sandbox.path("directory.db")).unwrap();
    for (url, code) in [
        (
            format!("sqlite:{}", sandbox.path("garbage.db").display()),
            74,
        ),
        (
            format!("sqlite:{}", sandbox.path("directory.db").display()),
            64,
        ),
        (
            format!("sqlite:{}", sandbox.path("missing/leases.db").display()),
            69,
        ),
        ("sqlite:".to_owned(), 64),
        ("etcd://localhost".to_owned(), 64),
    ] {
        let finished = sandbox
            .aster(&["--store", &url, "run", CATALOG, "--", "touch", "ran"])
            .exits(code);
        assert!(finished.stderr.starts_with("aster: "), "{finished:?}");
        assert!(!sandbox.exists("ran"), "{url}");
    }
}

#[test]
fn a_store_that_others_keep_busy_is_unreachable_and_the_work_does_not_run() {
    let sandbox = Sandbox::new();
    sandbox.aster(&["run", CATALOG, "--", "true"]).exits(0);
    let mut connection = Connection::open(sandbox.database()).unwrap();
    let lock = connection
        .transaction_with_behavior(TransactionBehavior::Immediate)
        .unwrap();
    let script = "touch $DIR/ran";
    let finished = sandbox.run_script("a", "1s", script).finish().exits(69);
    assert!(finished.stderr.contains("again"), "{finished:?}");
    lock.rollback().unwrap();
    assert!(!sandbox.exists("ran"));
    sandbox.run_script("b", "1s", script).finish().exits(0);
}

#[test]
fn a_put_for_which_the_store_was_too_busy_is_tried_again_and_counts_once() {
    let sandbox = Sandbox::new();
    let script =
        r#"touch "$DIR/started"; while ! test -e "$DIR/go"; do sleep 0.01; done; aster put v1"#;
    let run = sandbox.run_script("a", "60s", script);
    sandbox.wait_for("started");
    let mut connection = Connection::open(sandbox.database()).unwrap();
    let lock = connection
        .transaction_with_behavior(TransactionBehavior::Immediate)
        .unwrap();
    sandbox.touch("go");
    // Longer than one attempt waits.
    std::thread::sleep(std::time::Duration::from_secs(6));
    lock.rollback().unwrap();
    run.finish().exits(0);
    let register = sandbox.aster(&["get", "--json", CATALOG]).exits(0).json();
    assert_eq!(
        (&register["value"], &register["value_revision"]),
        (&"v1".into(), &1.into())
    );
}

/// On a small file system of its own; not checked where this user may not mount one.
#[test]
fn on_a_full_disk_nothing_is_lost_and_the_exit_code_is_74() {
    let sandbox = Sandbox::new();
    let script = r#"
        mkdir "$DIR/small" && mount -t tmpfs -o size=2m tmpfs "$DIR/small" || { echo not checked; exit 0; }
        export ASTER_STORE="sqlite:$DIR/small/leases.db"
        "$0" run catalog/current -- "$0" put v1 || exit 1
        head -c 100000 /dev/zero > "$DIR/large"
        cat > "$DIR/in-a-run" <<'END'
            cat /dev/zero > "$DIR/small/filler" 2> /dev/null
            "$0" put --file "$DIR/large"; echo "put $?"; "$0" get; echo
            rm "$DIR/small/filler"
            "$0" put --file "$DIR/large"; echo "put $?"; "$0" put v2; echo "put $?"
END
        "$0" run catalog/current -- sh -c "$(cat "$DIR/in-a-run")" "$0"; echo "run $?"
        cat /dev/zero > "$DIR/small/filler" 2> /dev/null
        for i in $(seq 300); do "$0" run "r/$i" -- touch "$DIR/ran-$i"; echo "acquire $?"; done | sort | uniq -c >&2
        rm "$DIR/small/filler"
        "$0" get catalog/current; echo
        "$0" list --held; "$0" run catalog/current -- true; echo "run $?""#;
    let mut small = std::process::Command::new("unshare");
    for (name, value) in sandbox.command().get_envs() {
        match value {
            Some(value) => small.env(name, value),
            None => small.env_remove(name),
        };
    }
    small
        .args(["--mount", "sh", "-c", script, support::ASTER])
        .stdin(std::process::Stdio::null());
    let finished = support::start(small).finish();
    if finished.stdout.starts_with("not checked") || finished.stderr.starts_with("unshare:") {
        return; // this user may not mount a file system
    }
    assert!(finished.stderr.contains("300 acquire 74"), "{finished:?}");
    assert!(finished.stderr.contains("disk is full"), "{finished:?}");
    assert_eq!(
        finished.stdout, "put 74\nv1\nput 0\nput 0\nrun 0\nv2\nrun 0\n",
        "{finished:?}"
    );
}

#[test]
fn a_run_inside_a_run_holds_both() {
    let sandbox = Sandbox::new();
    let script = r#"aster run other -- sh -c 'aster put inner && aster list --held --json' && aster put outer"#;
    let finished = sandbox.run_script("a", "30s", script).finish().exits(0);
    let resources = &finished.json()["resources"];
    assert_eq!(resources[0]["resource"], CATALOG);
    assert_eq!(resources[1]["resource"], "other");
    assert_eq!(sandbox.value(), "outer");
    assert_eq!(sandbox.aster(&["get", "other"]).exits(0).stdout, "inner");
}

#[test]
fn a_long_temporary_directory_is_no_obstacle() {
    let sandbox = Sandbox::new();
    let long = sandbox.path(&"t".repeat(120));
    fs::create_dir(&long).unwrap();
    let mut command = sandbox.command();
    command
        .env("TMPDIR", long)
        .args(["run", CATALOG, "--", "aster", "put", "v1"]);
    support::start(command).finish().exits(0);
    assert_eq!(sandbox.value(), "v1");
}

#[test]
fn a_memory_store_lives_as_long_as_the_run() {
    let sandbox = Sandbox::new();
    let script = "aster put hello && aster get";
    let finished = sandbox
        .aster(&[
            "--store", "memory:", "run", CATALOG, "--", "sh", "-c", script,
        ])
        .exits(0);
    assert_eq!(finished.stdout, "hello");
}

#[test]
fn verbose_says_what_happens_and_the_default_store_is_private() {
    let sandbox = Sandbox::new();
    let mut command = sandbox.command();
    command
        .env_remove("ASTER_STORE")
        .env_remove("ASTER_IDENTITY")
        .env_remove("XDG_DATA_HOME")
        .env_remove("XDG_CONFIG_HOME")
        .args(["run", "--verbose", CATALOG, "--", "true"]);
    let finished = support::start(command).finish().exits(0);
    assert!(
        finished
            .stderr
            .contains("holding catalog/current at epoch 1"),
        "{finished:?}"
    );
    assert!(
        finished.stderr.contains("released catalog/current"),
        "{finished:?}"
    );
    for (name, mode) in [
        (".local/share/aster", 0o700),
        (".config/aster", 0o700),
        (".config/aster/identity", 0o600),
    ] {
        assert_eq!(support::mode_of(&sandbox.path(name)), mode, "{name}");
    }
    assert!(sandbox.exists(".local/share/aster/leases.db"));
    eventually("the guard has gone", || {
        sandbox.private_directories().is_empty()
    });
}
