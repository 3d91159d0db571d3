//! `verify` at a store in use.
#![allow(
    clippy::unwrap_used,
    reason = "a failure here is a failure of the test"
)]

mod support;

use std::io::{BufRead, BufReader};

use aster::sqlite::rusqlite::Connection;
use rustix::process::Signal;
use serde_json::Value;
use support::{CATALOG, Sandbox, start, tell_pid};

fn held(sandbox: &Sandbox) -> Vec<Value> {
    let list = ["list", "--held", "--all", "--json"];
    let rows = sandbox.aster(&list).exits(0).json();
    rows["resources"].as_array().unwrap().clone()
}

fn outcomes<'a>(document: &'a Value, outcome: &str) -> Vec<&'a Value> {
    let cases = document["cases"].as_array().unwrap().iter();
    cases.filter(|case| case["outcome"] == outcome).collect()
}

#[test]
fn a_store_in_use_keeps_the_rules_and_is_left_as_it_was() {
    let sandbox = Sandbox::new();
    let script = format!(
        r#"aster put precious; {}; while ! test -e "$DIR/end"; do sleep 0.05; done"#,
        tell_pid("pid")
    );
    let run = sandbox.run_script("a", "30s", &script);
    sandbox.wait_for("pid");
    let document = sandbox.aster_as("b", &["verify", "--json"]).exits(0).json();
    let prefix = document["prefix"].as_str().unwrap();
    assert!(prefix.starts_with("aster-verify/"), "{prefix}");
    assert_eq!(document["failed"], 0, "{document}");
    let passed = outcomes(&document, "passed");
    assert_eq!(document["passed"], passed.len());
    assert!(passed.len() > 80, "{document}");
    for name in [
        "a_delayed_write_after_a_takeover_is_rejected",
        "an_expired_lease_can_be_taken_by_a_higher_epoch",
        "waiters_are_served_in_the_order_in_which_they_came",
        "a_watch_shows_a_hand_over",
        "a_release_with_a_value_does_both",
    ] {
        assert!(passed.iter().any(|case| case["name"] == name), "{name}");
    }
    // What could not be checked says why.
    let not_checked = outcomes(&document, "not_checked");
    assert_eq!(document["not_checked"], not_checked.len());
    for case in not_checked {
        assert!(case["detail"].is_string(), "{case}");
    }
    leaves_little(&sandbox, prefix);
    let held = held(&sandbox);
    assert_eq!(held.len(), 1, "{held:?}");
    assert_eq!(held[0]["resource"], CATALOG);
    assert_eq!(held[0]["epoch"], 1);
    assert_eq!(sandbox.value(), "precious");
    sandbox.touch("end");
    run.finish().exits(0);
}

/// What stays is little, keeps nobody out for long, and is out of sight.
fn leaves_little(sandbox: &Sandbox, prefix: &str) {
    let shown = |arguments: &[&str], field: &str| {
        let document = sandbox.aster(arguments).exits(0).json();
        let rows = document[field].as_array().unwrap();
        let names = rows.iter().map(|row| row["resource"].as_str().unwrap());
        let names = names.partition::<Vec<_>, _>(|name| name.starts_with(prefix));
        (names.0.len(), names.1.len())
    };
    assert_eq!(shown(&["list", "--json"], "resources"), (0, 1));
    let (rows, _) = shown(&["list", "--json", "--all"], "resources");
    assert!((1..=150).contains(&rows), "{rows} rows");
    let of_prefix = shown(&["list", "--json", "--prefix", prefix], "resources");
    assert_eq!(of_prefix, (rows, 0));
    // The grant of the run is older than all of them.
    assert_eq!(shown(&["audit", "--json"], "records"), (0, 1));
    let (records, others) = shown(&["audit", "--json", "--all"], "records");
    assert_eq!((records, others), (100, 0));
    let registers: u32 = Connection::open(sandbox.database())
        .unwrap()
        .query_row(
            "SELECT count(*) FROM aster_registers WHERE resource LIKE 'aster-verify/%'",
            [],
            |row| row.get(0),
        )
        .unwrap();
    assert!(registers <= 20, "{registers} registers");
}

#[test]
fn a_verify_that_is_killed_leaves_one_cases_leases_for_a_minute() {
    let sandbox = Sandbox::new();
    sandbox.aster(&["run", CATALOG, "--", "true"]).exits(0);
    let mut command = sandbox.command();
    command.arg("verify");
    let mut verify = start(command);
    let mut lines = BufReader::new(verify.stdout()).lines();
    let is_late = |line: &String| line.contains("an expired lease can be taken by a higher epoch");
    assert!(
        lines
            .by_ref()
            .map_while(Result::ok)
            .any(|line| is_late(&line))
    );
    verify.signal(Signal::KILL);
    assert_eq!(verify.wait(), None);
    let held = sandbox
        .aster(&["list", "--held", "--all", "--json"])
        .exits(0)
        .json();
    let held = held["resources"].as_array().unwrap();
    assert!(held.len() <= 2, "{held:?}");
    for row in held {
        assert!(row["ttl_ms"].as_u64().unwrap() <= 60_000, "{row}");
    }
    drop(lines);
}

/// A store whose file a trigger spoils: what is written to a register is not what is kept.
#[test]
fn a_store_that_breaks_a_rule_is_named_with_the_rule() {
    let sandbox = Sandbox::new();
    sandbox.aster(&["run", CATALOG, "--", "true"]).exits(0);
    Connection::open(sandbox.database())
        .unwrap()
        .execute_batch(
            "CREATE TRIGGER spoils AFTER INSERT ON aster_registers BEGIN
                 UPDATE aster_registers SET value = x'00' WHERE resource = NEW.resource;
             END",
        )
        .unwrap();
    let verified = sandbox.aster(&["verify"]).exits(1);
    let url = format!("sqlite:{}", sandbox.database().display());
    for says in [
        "FAILED",
        "rule: a register gives back exactly what was written",
        "  passed       a free resource is granted",
        "  not checked  a restart keeps rows epochs and grants: needs a restart",
        "what stays under aster-verify/",
    ] {
        assert!(verified.stdout.contains(says), "{says}: {verified:?}");
    }
    assert!(
        verified.stderr.starts_with(&format!("aster: {url} breaks")),
        "{verified:?}"
    );
    assert!(held(&sandbox).is_empty());
}

#[test]
fn an_interrupted_verify_gives_back_what_it_holds() {
    let sandbox = Sandbox::new();
    sandbox.aster(&["run", CATALOG, "--", "true"]).exits(0);
    let mut command = sandbox.command();
    command.arg("verify");
    let mut verify = start(command);
    let mut lines = BufReader::new(verify.stdout()).lines();
    // Its case has ended without giving the lease back.
    let is_ttl = |line: &String| line.contains("a free resource is granted");
    assert!(
        lines
            .by_ref()
            .map_while(Result::ok)
            .any(|line| is_ttl(&line))
    );
    verify.signal(Signal::TERM);
    assert_eq!(verify.wait(), Some(143));
    assert!(held(&sandbox).is_empty());
    drop(lines);
}

#[test]
fn a_store_that_is_not_there_is_not_made() {
    let sandbox = Sandbox::new();
    let url = format!("sqlite:{}", sandbox.path("elsewhere.db").display());
    sandbox.aster(&["verify", &url]).exits(69);
    assert!(!sandbox.exists("elsewhere.db"));
    let finished = sandbox.aster(&["verify", "nonsense:x"]).exits(64);
    assert_eq!(finished.stdout, "");
}
