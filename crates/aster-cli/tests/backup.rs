//! `store backup` and `store restore`.
#![allow(
    clippy::unwrap_used,
    reason = "a failure here is a failure of the test"
)]

mod support;

use std::fs;
use std::path::PathBuf;

use aster::sqlite::rusqlite;
use rustix::process::Signal;
use support::{CATALOG, Running, Sandbox, eventually, state_of, tell_pid};

/// A copy that is caught at work less often than once in so many attempts is none.
const ATTEMPTS_MAX: u32 = 100;

/// A run that has published and holds on until the file `end` is there.
fn publishing(sandbox: &Sandbox) -> Running {
    let script = format!(
        r#"aster put catalog-v1; {}; while ! test -e "$DIR/end"; do sleep 0.01; done; aster put late"#,
        tell_pid("pid")
    );
    let run = sandbox.run_script("a", "30s", &script);
    sandbox.wait_for("pid");
    run
}

#[test]
fn a_store_in_use_is_backed_up_and_restored_with_a_new_authority() {
    let sandbox = Sandbox::new();
    let run = publishing(&sandbox);
    let backup = ["store", "backup", "--json", "copy.db"];
    let backed_up = sandbox.aster(&backup).exits(0).json();
    assert_eq!(backed_up["file"], sandbox.path("copy.db").to_str().unwrap());
    let bytes = std::fs::metadata(sandbox.path("copy.db")).unwrap().len();
    assert_eq!(backed_up["bytes"], bytes);
    // The store went on meanwhile.
    sandbox.touch("end");
    run.finish().exits(0);
    assert_eq!(sandbox.value(), "late");

    let url = format!("sqlite:{}", sandbox.path("restored.db").display());
    let restore = ["store", "restore", "--yes", "--json", "copy.db", &url];
    let restored = sandbox.aster_as("operator", &restore).exits(0).json();
    assert_eq!(restored["store"], url);
    assert_ne!(restored["authority"], backed_up["authority"]);
    let in_restored = |arguments: &[&str]| {
        let mut all = vec!["--store", &url];
        all.extend(arguments);
        sandbox.aster_as("b", &all).exits(0)
    };
    // What the backup held is free, at a higher epoch; the value is the one of its moment.
    let row = in_restored(&["inspect", "--json", CATALOG]).json();
    assert_eq!(row["held"], false);
    assert!(row["epoch"].as_u64().unwrap() > 1, "{row}");
    assert_eq!(in_restored(&["get", CATALOG]).stdout, "catalog-v1");
    let script = "aster fence --json";
    let fence = in_restored(&["run", CATALOG, "--", "sh", "-c", script]).json();
    assert_eq!(fence["authority"], restored["authority"]);
}

#[test]
fn a_backup_takes_the_place_of_another_only_when_told_to() {
    let sandbox = Sandbox::new();
    let script = "aster put one";
    sandbox.run_script("a", "30s", script).finish().exits(0);
    sandbox.aster(&["store", "backup", "copy.db"]).exits(0);
    let first = std::fs::read(sandbox.path("copy.db")).unwrap();
    let script = "aster put two";
    sandbox.run_script("a", "30s", script).finish().exits(0);
    let refused = sandbox.aster(&["store", "backup", "copy.db"]).exits(64);
    assert!(refused.stderr.contains("--replace"), "{refused:?}");
    assert_eq!(std::fs::read(sandbox.path("copy.db")).unwrap(), first);
    let replaced = sandbox
        .aster(&["store", "backup", "--replace", "copy.db"])
        .exits(0);
    assert!(
        replaced.stdout.starts_with("backed up sqlite:"),
        "{replaced:?}"
    );
    assert_ne!(std::fs::read(sandbox.path("copy.db")).unwrap(), first);
}

#[test]
fn a_restore_asks_first_and_never_overwrites_a_store() {
    let sandbox = Sandbox::new();
    sandbox
        .run_script("a", "30s", "aster put one")
        .finish()
        .exits(0);
    sandbox.aster(&["store", "backup", "copy.db"]).exits(0);
    let url = format!("sqlite:{}", sandbox.path("restored.db").display());
    let unasked = sandbox
        .aster(&["--json", "store", "restore", "copy.db", &url])
        .exits(64)
        .json_error();
    assert_eq!(unasked["kind"], "usage");
    assert!(!sandbox.exists("restored.db"));
    // The store in use stays as it is.
    sandbox
        .aster(&["store", "restore", "--yes", "copy.db"])
        .exits(64);
    assert_eq!(sandbox.value(), "one");
    assert_eq!(sandbox.row()["epoch"], 2);
    // A backup is no store.
    let backup = format!("sqlite:{}", sandbox.path("copy.db").display());
    sandbox.aster(&["--store", &backup, "list"]).exits(78);
    sandbox
        .aster(&["store", "restore", "--yes", "nothing.db", &url])
        .exits(69);
    assert!(!sandbox.exists("restored.db") && !sandbox.exists("nothing.db"));
}

#[test]
fn a_memory_store_has_nothing_to_back_up() {
    let sandbox = Sandbox::new();
    for arguments in [
        &["--store", "memory:", "store", "backup", "copy.db"][..],
        &["store", "restore", "--yes", "copy.db", "memory:"],
    ] {
        let refused = sandbox.aster(arguments).exits(64);
        assert!(
            refused.stderr.contains("not a durable store"),
            "{refused:?}"
        );
    }
    assert!(!sandbox.exists("copy.db"));
}

#[test]
fn replace_destroys_nothing_but_an_earlier_backup() {
    let sandbox = Sandbox::new();
    let run = publishing(&sandbox);
    fs::write(sandbox.path("notes.txt"), "precious").unwrap();
    let other = format!("sqlite:{}", sandbox.path("other.db").display());
    sandbox
        .aster(&["--store", &other, "run", CATALOG, "--", "true"])
        .exits(0);
    let own = ["", "-wal", "-shm", "-aster", "-aster-wal", "-aster-shm"];
    let own = own.map(|suffix| format!("leases.db{suffix}"));
    let precious = ["notes.txt", "other.db"].map(str::to_owned);
    for file in own.iter().chain(&precious) {
        let refused = sandbox.aster(&["store", "backup", "--replace", file]);
        let refused = refused.exits(64);
        assert!(refused.stderr.contains(file), "{refused:?}");
        assert!(refused.stderr.contains("give another path"), "{refused:?}");
        assert!(!refused.stderr.contains("--replace"), "{refused:?}");
    }
    assert_eq!(fs::read(sandbox.path("notes.txt")).unwrap(), b"precious");
    sandbox.aster(&["--store", &other, "list"]).exits(0);
    sandbox.touch("end");
    run.finish().exits(0);
    assert_eq!(sandbox.value(), "late");
}

#[test]
fn a_backup_opened_by_mistake_can_still_be_replaced_and_restored() {
    let sandbox = Sandbox::new();
    let script = "aster put one";
    sandbox.run_script("a", "30s", script).finish().exits(0);
    sandbox.aster(&["store", "backup", "copy.db"]).exits(0);
    let before = fs::read(sandbox.path("copy.db")).unwrap();
    let backup = format!("sqlite:{}", sandbox.path("copy.db").display());
    sandbox.aster(&["--store", &backup, "list"]).exits(78);
    sandbox
        .aster(&["--store", &backup, "run", CATALOG, "--", "true"])
        .exits(78);
    assert!(fs::read(sandbox.path("copy.db")).unwrap() == before);
    let url = format!("sqlite:{}", sandbox.path("restored.db").display());
    sandbox
        .aster(&["store", "restore", "--yes", "copy.db", &url])
        .exits(0);
    assert!(!sandbox.exists("copy.db-wal") && !sandbox.exists("copy.db-shm"));
    sandbox
        .aster(&["store", "backup", "--replace", "copy.db"])
        .exits(0);
}

#[test]
fn what_is_no_backup_is_restored_only_when_told_to() {
    let sandbox = Sandbox::new();
    let script = "aster put one";
    sandbox.run_script("a", "30s", script).finish().exits(0);
    fs::copy(sandbox.database(), sandbox.path("copy.db")).unwrap();
    let url = format!("sqlite:{}", sandbox.path("restored.db").display());
    let refused = sandbox
        .aster(&["store", "restore", "--yes", "copy.db", &url])
        .exits(64);
    assert!(refused.stderr.contains("--not-a-backup"), "{refused:?}");
    assert!(!sandbox.exists("restored.db"));
    let told = [
        "store",
        "restore",
        "--yes",
        "--not-a-backup",
        "copy.db",
        &url,
    ];
    sandbox.aster(&told).exits(0);
    let value = sandbox.aster(&["--store", &url, "get", CATALOG]).exits(0);
    assert_eq!(value.stdout, "one");

    fs::remove_file(sandbox.path("copy.db")).unwrap();
    fs::write(sandbox.path("copy.db"), "no database").unwrap();
    let elsewhere = format!("sqlite:{}", sandbox.path("elsewhere.db").display());
    let restore = |file| sandbox.aster(&["store", "restore", "--yes", file, &elsewhere]);
    let damaged = restore("copy.db").exits(74);
    assert!(
        damaged.stderr.contains("take another backup"),
        "{damaged:?}"
    );
    let directory = restore("tmp").exits(64);
    assert!(
        directory.stderr.contains("not a regular file"),
        "{directory:?}"
    );
}

/// A store with a large table of the user's own.
fn large() -> Sandbox {
    let sandbox = Sandbox::new();
    let script = "aster put one";
    sandbox.run_script("a", "30s", script).finish().exits(0);
    let user = rusqlite::Connection::open(sandbox.database()).unwrap();
    user.execute_batch("CREATE TABLE pad (x); INSERT INTO pad VALUES (zeroblob(48000000))")
        .unwrap();
    sandbox
}

fn drafts(sandbox: &Sandbox) -> Vec<PathBuf> {
    fs::read_dir(sandbox.path(""))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.to_string_lossy().contains(".draft-"))
        .collect()
}

/// Starts the command and stops it (as `kill -STOP` does) while its copy is less than half done.
fn caught_at_work(sandbox: &Sandbox, arguments: &[&str], made: &str) -> Running {
    for _ in 0..ATTEMPTS_MAX {
        let running = sandbox.start(arguments);
        // A draft that is still empty is not locked yet: the next copy would take it for left behind, and
        // its process would begin another.
        let size = || {
            let size = drafts(sandbox).first()?.metadata().ok()?.len();
            (size > 0).then_some(size)
        };
        let is_copying = || size().is_some();
        while !is_copying() && !matches!(state_of(running.id()), 'Z' | 'X') {
            std::thread::yield_now();
        }
        running.signal(Signal::STOP);
        eventually("it stands still", || {
            matches!(state_of(running.id()), 'T' | 'Z' | 'X')
        });
        if size().is_some_and(|size| size < 24_000_000) {
            return running;
        }
        running.signal(Signal::CONT);
        running.finish();
        let _ = fs::remove_file(sandbox.path(made));
    }
    panic!("never caught at work");
}

#[test]
fn a_copy_that_is_signalled_leaves_nothing() {
    let sandbox = large();
    sandbox.aster(&["store", "backup", "whole.db"]).exits(0);
    let url = format!("sqlite:{}", sandbox.path("restored.db").display());
    let backup = &["store", "backup", "copy.db"][..];
    let restore = &["store", "restore", "--yes", "whole.db", &url][..];
    let commands = [
        (backup, "copy.db", Signal::TERM),
        (backup, "copy.db", Signal::INT),
        (restore, "restored.db", Signal::HUP),
    ];
    for (arguments, made, signal) in commands {
        // It may be done before it hears the signal; then it has done what it was asked for.
        let was_stopped = (0..ATTEMPTS_MAX).any(|_| {
            let running = caught_at_work(&sandbox, arguments, made);
            running.signal(signal);
            running.signal(Signal::CONT);
            let finished = running.finish();
            assert_eq!(drafts(&sandbox), [""; 0].map(PathBuf::from), "{finished:?}");
            let is_done = finished.code == Some(0);
            assert_eq!(sandbox.exists(made), is_done, "{finished:?}");
            if is_done {
                fs::remove_file(sandbox.path(made)).unwrap();
                return false;
            }
            let finished = finished.exits(128 + signal.as_raw());
            assert!(finished.stderr.contains("stopped"), "{finished:?}");
            true
        });
        assert!(was_stopped, "{arguments:?}");
    }
}

#[test]
fn what_a_killed_copy_has_left_is_removed_by_the_next() {
    let sandbox = large();
    let backup = ["store", "backup", "copy.db"];
    let running = caught_at_work(&sandbox, &backup, "copy.db");
    let left = drafts(&sandbox);
    assert_eq!(left.len(), 1);
    // It is at work, though it stands still.
    sandbox.aster(&backup).exits(0);
    assert_eq!(drafts(&sandbox), left);
    running.signal(Signal::KILL);
    running.finish();
    assert_eq!(drafts(&sandbox), left, "nobody could remove it");
    sandbox
        .aster(&["store", "backup", "--replace", "copy.db"])
        .exits(0);
    assert!(drafts(&sandbox).is_empty());
}
