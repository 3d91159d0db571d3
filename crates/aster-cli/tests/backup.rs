//! `store backup` and `store restore`.
#![allow(
    clippy::unwrap_used,
    reason = "a failure here is a failure of the test"
)]

mod support;

use support::{CATALOG, Running, Sandbox, tell_pid};

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
