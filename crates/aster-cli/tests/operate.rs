//! What an operator does: revoke with its options, adopt a copied store, read the trail.
#![allow(
    clippy::unwrap_used,
    reason = "a failure here is a failure of the test"
)]

mod support;

use std::fs;

use support::{CATALOG, Sandbox, tell_pid};

fn holding() -> String {
    format!("{}; sleep 600", tell_pid("pid"))
}

#[test]
fn a_revoke_of_an_ended_epoch_leaves_its_successor_alone() {
    let sandbox = Sandbox::new();
    sandbox.aster(&["run", CATALOG, "--", "true"]).exits(0);
    let run = sandbox.run_script("a", "3s", &holding());
    sandbox.wait_for("pid");
    let epoch = sandbox.row()["epoch"].as_u64().unwrap();
    assert_eq!(epoch, 3);
    let stale = sandbox
        .aster(&["revoke", "--json", CATALOG, "--epoch", "1"])
        .exits(0)
        .json();
    assert_eq!(stale["outcome"], "already_ended");
    assert_eq!(sandbox.row()["held"], true);
    let revoked = sandbox.aster(&["revoke", CATALOG, "--epoch", "3"]).exits(0);
    assert!(revoked.stdout.contains("revoked"), "{revoked:?}");
    run.finish().exits(76);
}

#[test]
fn a_hold_off_keeps_the_revoked_holder_out_and_nobody_else() {
    let sandbox = Sandbox::new();
    let run = sandbox.run_script("a", "3s", &holding());
    sandbox.wait_for("pid");
    sandbox
        .aster_as("operator", &["revoke", CATALOG, "--hold-off", "10m"])
        .exits(0);
    run.finish().exits(76);
    let kept_out = sandbox
        .aster_as("a", &["run", CATALOG, "--", "touch", "ran"])
        .exits(77);
    let why = "an operator revoked it and keeps this holder out for a while; \
               `aster audit catalog/current` tells when";
    assert!(kept_out.stderr.contains(why), "{kept_out:?}");
    let trail = sandbox.aster(&["audit", CATALOG]).exits(0).stdout;
    let revoke = trail.lines().find(|line| line.contains("revoked")).unwrap();
    assert!(revoke.contains("held off for 600s"), "{trail}");
    let trail = sandbox.aster(&["--json", "audit", CATALOG]).exits(0);
    assert!(trail.stdout.contains("held off for 600s"), "{trail:?}");
    assert!(!sandbox.exists("ran"));
    sandbox
        .aster_as("b", &["run", CATALOG, "--", "true"])
        .exits(0);
    sandbox
        .aster_as("a", &["run", CATALOG, "--", "true"])
        .exits(77);
    for hold_off in ["0s", "-1s", "25h", "1.0001s"] {
        let argument = format!("--hold-off={hold_off}");
        let finished = sandbox.aster(&["revoke", CATALOG, &argument]).exits(64);
        assert!(
            finished.stderr.contains("1ms to 24h"),
            "{hold_off}: {finished:?}"
        );
    }
}

#[test]
fn a_copied_store_is_refused_until_it_is_adopted() {
    let sandbox = Sandbox::new();
    sandbox
        .aster(&["run", CATALOG, "--", "aster", "put", "v1"])
        .exits(0);
    let script = r#"aster fence --json"#;
    let fence = sandbox
        .run_script("a", "30s", script)
        .finish()
        .exits(0)
        .json();
    fs::copy(sandbox.database(), sandbox.path("copy.db")).unwrap();
    let copy = format!("sqlite:{}", sandbox.path("copy.db").display());
    let on_copy = |arguments: &[&str]| {
        let mut all = vec!["--store", copy.as_str()];
        all.extend(arguments);
        sandbox.aster(&all)
    };

    let refused = on_copy(&["run", CATALOG, "--", "touch", "ran"]).exits(78);
    assert!(refused.stderr.contains("aster store adopt"), "{refused:?}");
    assert_eq!(
        on_copy(&["--json", "get", CATALOG]).exits(78).json_error()["kind"],
        "store_refused"
    );
    assert!(!sandbox.exists("ran"));
    on_copy(&["store", "adopt"]).exits(64);
    on_copy(&["get", CATALOG]).exits(78);

    let adopted = on_copy(&["store", "adopt", "--yes", "--json"])
        .exits(0)
        .json();
    assert_ne!(adopted["authority"], fence["authority"]);
    assert_eq!(on_copy(&["get", CATALOG]).exits(0).stdout, "v1");
    let fence_of_copy = on_copy(&["run", CATALOG, "--", "aster", "fence", "--json"])
        .exits(0)
        .json();
    assert_eq!(fence_of_copy["authority"], adopted["authority"]);
    let trail = on_copy(&["audit", "--json"]).exits(0).json();
    let events = trail["records"].as_array().unwrap();
    assert!(
        events.iter().any(|event| event["event"] == "adopted"),
        "{trail}"
    );
    // The original goes on as it was.
    let script = "aster fence --json";
    let original = sandbox
        .run_script("a", "30s", script)
        .finish()
        .exits(0)
        .json();
    assert_eq!(original["authority"], fence["authority"]);
}

#[test]
fn the_trail_tells_the_story_to_people() {
    let sandbox = Sandbox::new();
    let run = sandbox.run_script("a", "3s", &holding());
    sandbox.wait_for("pid");
    sandbox.aster_as("operator", &["revoke", CATALOG]).exits(0);
    run.finish().exits(76);
    sandbox
        .aster_as("b", &["run", CATALOG, "--", "true"])
        .exits(0);
    sandbox.aster(&["run", "other", "--", "true"]).exits(0);
    let operator = sandbox.aster_as("operator", &["id"]).exits(0).stdout;
    let trail = sandbox.aster(&["audit", CATALOG]).exits(0).stdout;
    let lines: Vec<_> = trail.lines().collect();
    assert_eq!(lines.len(), 4, "{trail}");
    for (line, event) in lines
        .iter()
        .zip(["granted", "revoked", "granted", "released"])
    {
        assert!(line.contains(event) && line.contains(CATALOG), "{trail}");
    }
    assert!(
        lines[1].contains(&format!("by {}", operator.trim())),
        "{trail}"
    );
    let newest = sandbox
        .aster(&["audit", "--limit", "1", "--json"])
        .exits(0)
        .json();
    assert_eq!(newest["records"][0]["resource"], "other");
    assert_eq!(newest["records"].as_array().unwrap().len(), 1);
}

#[test]
fn values_and_ids_of_grants_and_writes_are_in_no_log() {
    let sandbox = Sandbox::new();
    let script = format!(
        r#"aster put "$SECRET"; aster put --expect 77 "$SECRET"; aster --json put --expect none "$SECRET"
           {}; while ! test -e "$DIR/revoked"; do sleep 0.01; done; aster put "$SECRET"; exit 0"#,
        tell_pid("pid")
    );
    let secret = "correct-horse-battery-staple";
    let mut command = sandbox.command();
    command
        .env("ASTER_LOG", "trace")
        .env("SECRET", secret)
        .args(["run", CATALOG, "--", "sh", "-c", &script]);
    let run = support::start(command);
    sandbox.wait_for("pid");
    let everything = [
        sandbox.aster_as("b", &["revoke", CATALOG]).exits(0),
        sandbox.aster(&["inspect", CATALOG]),
        sandbox.aster(&["list"]),
    ];
    sandbox.touch("revoked");
    let run = run.finish();
    assert!(
        run.stderr.contains("DEBUG") && run.stderr.contains("stale fence"),
        "{run:?}"
    );
    let trail = sandbox.aster(&["audit", "--json"]).exits(0);
    for finished in everything.iter().chain([&run, &trail]) {
        assert!(!finished.stdout.contains(secret), "{finished:?}");
        assert!(!finished.stderr.contains(secret), "{finished:?}");
    }
    // Whoever knew the id of a grant could ask for it again.
    let database = aster::sqlite::rusqlite::Connection::open(sandbox.database()).unwrap();
    let ids: Vec<Vec<u8>> = database
        .prepare("SELECT grant_id FROM aster_rows UNION ALL SELECT write_id FROM aster_registers")
        .unwrap()
        .query_map([], |row| row.get(0))
        .unwrap()
        .collect::<Result<_, _>>()
        .unwrap();
    assert_eq!(ids.len(), 2);
    for id in ids {
        let id: String = id.iter().map(|byte| format!("{byte:02x}")).collect();
        for finished in everything.iter().chain([&run, &trail]) {
            assert!(
                !finished.stdout.contains(&id) && !finished.stderr.contains(&id),
                "{finished:?}"
            );
        }
    }
}

/// A mistyped path must not look like an empty store, and who only looks makes nothing.
#[test]
fn looking_at_a_store_that_is_not_there_makes_none() {
    let sandbox = Sandbox::new();
    let looks: [&[&str]; 9] = [
        &["get", CATALOG],
        &["list"],
        &["inspect", CATALOG],
        &["audit"],
        &["revoke", CATALOG],
        &["watch", CATALOG],
        &["queue", CATALOG],
        &["verify"],
        &["store", "backup", "copy.db"],
    ];
    for look in looks {
        let finished = sandbox.aster(look).exits(69);
        assert!(
            finished.stderr.contains("there is no store at"),
            "{finished:?}"
        );
        assert!(!sandbox.exists("leases.db"), "{look:?}");
    }
}
