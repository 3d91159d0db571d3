//! What the program accepts, refuses and prints, and with which exit code.
#![allow(
    clippy::unwrap_used,
    reason = "a failure here is a failure of the test"
)]

mod support;

use support::{CATALOG, Sandbox};

#[test]
fn ttls_are_exact_or_refused() {
    let sandbox = Sandbox::new();
    for (ttl, ttl_ms) in [
        ("1.5s", 1_500),
        ("30s", 30_000),
        ("2m", 120_000),
        ("24h", 86_400_000),
    ] {
        let finished = sandbox
            .aster(&[
                "run", "--ttl", ttl, CATALOG, "--", "aster", "inspect", CATALOG, "--json",
            ])
            .exits(0);
        assert_eq!(finished.json()["ttl_ms"], ttl_ms, "{ttl}");
    }
    // The shortest is accepted; a busy machine may lose such a lease before the command has started.
    let shortest = sandbox.aster(&["run", "--ttl", "100ms", CATALOG, "--", "true"]);
    assert!(matches!(shortest.code, Some(0 | 76)), "{shortest:?}");
    for (ttl, why) in [
        ("0s", "it is zero"),
        ("0", "unit is missing"),
        ("1ns", "not a decimal number"),
        ("0.5ms", "finer than a millisecond"),
        ("1.0005s", "finer than a millisecond"),
        ("-1s", "negative"),
        ("NaN", "unit"),
        ("inf", "unit"),
        ("30", "unit is missing"),
        ("", "unit is missing"),
        ("99999999999999999999999s", "too large"),
        ("18446744073709551615ms", "too large"),
        ("99ms", "too short"),
        ("24.001h", "too large"),
    ] {
        let argument = format!("--ttl={ttl}");
        let finished = sandbox
            .aster(&["run", &argument, CATALOG, "--", "touch", "ran"])
            .exits(64);
        assert!(finished.stderr.contains(why), "{ttl}: {finished:?}");
        let accepted = "write a number with a unit, such as 500ms, 1.5s, 30s, 2m or 1h; \
                        whole milliseconds, 100ms to 24h";
        assert!(finished.stderr.contains(accepted), "{ttl}: {finished:?}");
    }
    let help = sandbox.aster(&["run", "--help"]).exits(0).stdout;
    assert!(help.contains("100ms to 24h"), "{help}");
    assert!(!sandbox.exists("ran"));
    let finished = sandbox
        .aster(&[
            "run", "--ttl", "2s", "--grace", "1.5s", CATALOG, "--", "touch", "ran",
        ])
        .exits(64);
    assert!(finished.stderr.contains("half the ttl"), "{finished:?}");
}

#[test]
fn names_are_refused_before_anything_happens_or_kept_apart() {
    let sandbox = Sandbox::new();
    let too_long = "x".repeat(513);
    for name in [
        "",
        "a\nb",
        "a\u{7f}",
        "a\u{85}b",
        "\u{1b}[31m",
        too_long.as_str(),
    ] {
        for command in [
            &["run", name, "--", "touch", "ran"][..],
            &["get", name],
            &["inspect", name],
            &["revoke", name],
            &["audit", name],
        ] {
            let finished = sandbox.aster(command).exits(64);
            assert!(finished.stderr.contains("resource name"), "{finished:?}");
        }
    }
    assert!(!sandbox.exists("ran"));
    assert!(!sandbox.database().exists(), "nothing was created");

    let longest = "é".repeat(256);
    let names = [
        "a/b",
        "a%2Fb",
        "../a",
        "A",
        "a",
        "a ",
        "ä",
        "a\u{308}",
        longest.as_str(),
    ];
    for name in names {
        sandbox
            .aster(&["run", name, "--", "aster", "put", name])
            .exits(0);
    }
    for name in names {
        assert_eq!(sandbox.aster(&["get", name]).exits(0).stdout, name);
    }
    let list = sandbox.aster(&["list", "--json"]).exits(0).json();
    assert_eq!(list["resources"].as_array().unwrap().len(), names.len());
}

#[test]
fn values_over_a_mebibyte_are_refused_and_the_largest_is_kept() {
    let sandbox = Sandbox::new();
    let script = r#"
        head -c 1048576 /dev/zero | tr '\0' x > "$DIR/largest"
        aster put --file "$DIR/largest" && aster get | cmp - "$DIR/largest" && echo kept
        (cat "$DIR/largest"; echo) | aster put -; echo "$?"
        aster put --file "$DIR/no-such-file"; echo "$?"
        aster put --file /dev/zero; echo "$?"
        aster get | cmp - "$DIR/largest" && echo unchanged"#;
    let finished = sandbox.run_script("a", "30s", script).finish().exits(0);
    assert_eq!(finished.stdout, "kept\n64\n74\n64\nunchanged\n");
    assert!(
        finished
            .stderr
            .contains("1048577 bytes, the bound is 1048576"),
        "{finished:?}"
    );
}

#[test]
fn exit_codes_and_error_kinds_are_those_of_the_table() {
    let sandbox = Sandbox::new();
    // A store that is there, without the resource: who only looks makes none.
    sandbox.aster(&["run", "other", "--", "true"]).exits(0);
    for (arguments, code, kind) in [
        (&["get", CATALOG][..], 1, "nothing_written"),
        (&["revoke", CATALOG], 1, "not_held"),
        (&["no-such-command"], 64, "usage"),
        (&["run", CATALOG], 64, "usage"),
        (&["run", CATALOG, "--ttl", "0s", "--", "true"], 64, "usage"),
        (&["audit", "--limit", "0"], 64, "usage"),
        (&["revoke", CATALOG, "--epoch", "0"], 64, "usage"),
        (&["get"], 64, "usage"),
        (&["put", "x"], 64, "no_run"),
        (&["fence"], 64, "no_run"),
        (&["list", "--store", "leases.db"], 64, "invalid_input"),
        (&["list", "--store", "memory:x"], 64, "invalid_input"),
        (&["list", "--store", "grantor:ticket"], 64, "invalid_input"),
        (&["run", "--ttl", "1ms", CATALOG, "--", "true"], 64, "usage"),
        (
            &[
                "run", "--ttl", "2s", "--grace", "1.5s", CATALOG, "--", "true",
            ],
            64,
            "invalid_input",
        ),
        (
            &["list", "--store", "sqlite:missing/leases.db"],
            69,
            "unreachable",
        ),
        (&["store", "adopt", "--yes", "memory:"], 64, "invalid_input"),
        (
            &["store", "adopt", "--yes", "sqlite:missing.db"],
            69,
            "unreachable",
        ),
        (&["store", "adopt"], 64, "usage"),
    ] {
        let mut with_json = arguments.to_vec();
        with_json.insert(0, "--json");
        let error = sandbox.aster(&with_json).exits(code).json_error();
        assert_eq!(error["kind"], kind, "{arguments:?}: {error}");
        let message = error["message"].as_str().unwrap();
        assert!(
            !message.is_empty() && !message.contains('\u{1b}'),
            "{arguments:?}: {error}"
        );
        let plain = sandbox.aster(arguments).exits(code);
        assert_eq!(plain.stdout, "", "{arguments:?}");
        assert!(
            plain.stderr.contains(message.lines().next().unwrap()),
            "{plain:?}"
        );
    }
    let unsupported = sandbox
        .aster(&["list", "--store", "postgres://h/d"])
        .exits(64);
    assert!(
        unsupported.stderr.contains("not in this build"),
        "{unsupported:?}"
    );
}

#[test]
fn a_full_disk_is_an_error_of_storage() {
    let sandbox = Sandbox::new();
    // A write to /dev/full fails as on a full disk.
    sandbox
        .aster(&["run", CATALOG, "--", "aster", "put", "v1"])
        .exits(0);
    let mut command = sandbox.command();
    command.args(["get", CATALOG]);
    let full = std::fs::OpenOptions::new()
        .write(true)
        .open("/dev/full")
        .unwrap();
    command.stdout(full).stderr(std::process::Stdio::piped());
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(74), "{output:?}");
}

#[test]
fn json_documents_have_their_fields() {
    let sandbox = Sandbox::new();
    // A store that is there, without the resource: who only looks makes none.
    sandbox.aster(&["run", "other", "--", "true"]).exits(0);
    let fields = |value: &serde_json::Value| -> Vec<String> {
        value.as_object().unwrap().keys().cloned().collect()
    };
    let absent = sandbox
        .aster(&["inspect", "--json", CATALOG])
        .exits(0)
        .json();
    let row = [
        "epoch",
        "held",
        "holder",
        "remaining_ms",
        "resource",
        "row_revision",
        "ttl_ms",
    ];
    let inspected: Vec<_> = row.into_iter().chain(["waiting"]).collect();
    assert_eq!(fields(&absent), inspected);
    assert_eq!(
        (&absent["held"], &absent["epoch"]),
        (&false.into(), &0.into())
    );

    let script = "aster put v1 && aster inspect --json catalog/current && aster list --json --held";
    let finished = sandbox.run_script("a", "30s", script).finish().exits(0);
    let mut lines = finished.stdout.lines();
    let held: serde_json::Value = serde_json::from_str(lines.next().unwrap()).unwrap();
    assert_eq!(fields(&held), inspected);
    assert_eq!(
        (&held["held"], &held["ttl_ms"]),
        (&true.into(), &30_000.into())
    );
    assert!(held["remaining_ms"].as_u64().unwrap() <= 30_000);
    let list: serde_json::Value = serde_json::from_str(lines.next().unwrap()).unwrap();
    assert_eq!(fields(&list), ["resources"]);
    assert_eq!(fields(&list["resources"][0]), row);
    assert_eq!(
        sandbox.aster(&["list", "--held", "--json"]).exits(0).stdout,
        "{\"resources\":[]}\n"
    );
    assert_eq!(
        sandbox
            .aster(&["list", "--prefix", "absent/", "--json"])
            .exits(0)
            .stdout,
        "{\"resources\":[]}\n"
    );

    let get = sandbox.aster(&["get", "--json", CATALOG]).exits(0).json();
    assert_eq!(
        fields(&get),
        ["epoch", "resource", "value", "value_revision"]
    );
    let id = sandbox.aster(&["id", "--json"]).exits(0).json();
    assert_eq!(fields(&id), ["id", "path"]);
    let audit = sandbox.aster(&["audit", CATALOG, "--json"]).exits(0).json();
    let records = audit["records"].as_array().unwrap();
    let events: Vec<_> = records
        .iter()
        .map(|record| record["event"].as_str().unwrap())
        .collect();
    assert_eq!(events, ["granted", "released"]);
    assert_eq!(
        fields(&records[0]),
        [
            "actor",
            "at_unix_ms",
            "count",
            "detail",
            "epoch_carried",
            "epoch_current",
            "event",
            "holder",
            "id",
            "resource"
        ]
    );
}

#[test]
fn colour_is_for_terminals_or_for_who_asks() {
    let sandbox = Sandbox::new();
    sandbox.aster(&["run", CATALOG, "--", "true"]).exits(0);
    let escape = '\u{1b}';
    let has_colour = |arguments: &[&str]| sandbox.aster(arguments).exits(0).stdout.contains(escape);
    assert!(!has_colour(&["inspect", CATALOG]));
    assert!(!has_colour(&["--color", "never", "inspect", CATALOG]));
    assert!(has_colour(&["--color", "always", "inspect", CATALOG]));
    assert!(!has_colour(&[
        "--color", "always", "--json", "inspect", CATALOG
    ]));
    sandbox.aster(&["--color", "sometimes", "id"]).exits(64);
}

#[test]
fn help_has_the_exit_codes_and_examples_for_each_command() {
    let sandbox = Sandbox::new();
    let help = sandbox.aster(&["--help"]).exits(0).stdout;
    for code in [
        "  0  ", "  1  ", " 64  ", " 69  ", " 70  ", " 74  ", " 75  ", " 76  ", " 77  ", " 78  ",
    ] {
        assert!(help.contains(code), "{code}: {help}");
    }
    assert!(!help.contains("__"), "hidden commands stay hidden: {help}");
    for command in [
        &["run"][..],
        &["put"],
        &["get"],
        &["fence"],
        &["inspect"],
        &["list"],
        &["revoke"],
        &["audit"],
        &["watch"],
        &["queue"],
        &["verify"],
        &["id"],
        &["demo"],
        &["store"],
        &["store", "backup"],
        &["store", "restore"],
        &["store", "adopt"],
        &["completions"],
    ] {
        let mut arguments = command.to_vec();
        arguments.push("--help");
        let help = sandbox.aster(&arguments).exits(0).stdout;
        assert!(help.contains("Examples"), "{command:?}: {help}");
        assert_eq!(ragged(&help), None, "{command:?}: {help}");
    }
    let version = sandbox.aster(&["--version"]).exits(0).stdout;
    assert_eq!(version, format!("aster {}\n", env!("CARGO_PKG_VERSION")));
    // Nobody asked for anything: that is usage, not success.
    sandbox.aster::<&str>(&[]).exits(64);
}

/// A line that was broken by hand in a text that is wrapped to the terminal anyway: its next word had room.
fn ragged(help: &str) -> Option<&str> {
    const WIDTH: usize = 100; // clap's, where there is no terminal
    let footer: Vec<_> = help
        .lines()
        .skip_while(|line| !line.starts_with("Examples"))
        .collect();
    let is_prose = |line: &str| !line.is_empty() && !line.starts_with([' ', 'E']);
    footer.windows(2).find_map(|pair| {
        let word = pair[1].split(' ').next()?;
        let had_room = pair[0].chars().count() + 1 + word.chars().count() <= WIDTH;
        (is_prose(pair[0]) && is_prose(pair[1]) && had_room).then_some(pair[0])
    })
}

#[test]
fn nonsense_in_the_log_variable_is_usage() {
    let sandbox = Sandbox::new();
    for (level, code) in [
        ("", 0),
        ("debug", 0),
        ("WARN", 0),
        ("loud", 64),
        ("aster=debug", 64),
    ] {
        let mut command = sandbox.command();
        command.env("ASTER_LOG", level).args(["id", "--json"]);
        let finished = support::start(command).finish().exits(code);
        if code != 0 {
            let error = finished.json_error();
            assert_eq!(error["kind"], "usage");
            assert!(
                error["message"]
                    .as_str()
                    .unwrap()
                    .contains("info, debug or trace")
            );
        }
    }
}

#[test]
fn completions_are_scripts_that_the_shell_takes() {
    let sandbox = Sandbox::new();
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = sandbox.aster(&["completions", shell]).exits(0).stdout;
        assert!(
            script.contains("inspect") && script.contains("revoke"),
            "{shell}"
        );
        assert!(
            !script.contains("__launch"),
            "{shell}: hidden commands stay hidden"
        );
        if shell == "bash" {
            std::fs::write(sandbox.path("completion.bash"), script).unwrap();
            let bash = std::process::Command::new("bash")
                .args(["-n", "completion.bash"])
                .current_dir(sandbox.path(""))
                .status();
            assert!(bash.unwrap().success());
        }
    }
    sandbox.aster(&["completions", "tcsh"]).exits(64);
}

#[test]
fn wrong_usage_says_what_works() {
    let sandbox = Sandbox::new();
    for (arguments, tip) in [
        (
            &["run", "nc", "true"][..],
            "put -- before the command: aster run nc -- true\n",
        ),
        (&["run", "true", "true"], "aster run true -- true\n"),
        (
            &["run", "--ttl", "5s", "-v", "nc", "sh", "-c", "exit 1"],
            "put -- before the command: aster run --ttl 5s -v nc -- sh -c 'exit 1'\n",
        ),
        (&["run", "-x", "--", "true"], "aster run -- -x -- true\n"),
        (
            &["run", "-xyz", "--", "true"],
            "aster run -- -xyz -- true\n",
        ),
        (&["run", "--", "-x", "true"], "aster run -- -x -- true\n"),
        (&["run", "--", "-x"], "aster run -- -x -- CMD\n"),
        (&["run", "--", "true"], "the resource stands before the --"),
        (&["run", "--tll", "5s", "nc", "--", "true"], "'--ttl'"),
        (&["get", "-x"], "use '-- -x'"),
        (&["get", "run", "-x", "--", "y"], "use '-- -x'"),
        (&["revoke", "nc", "--epoch", "-1"], "not a number above 0"),
        (&["revoke", "nc", "--epoch", "0"], "not a number above 0"),
        (&["revoke", "nc", "--epoch", "x"], "not a number above 0"),
        (&["audit", "--limit", "-1"], "not a number from 1 to 1000"),
        (&["put", "v", "--expect", "-1"], "write a revision from"),
    ] {
        let finished = sandbox.aster(arguments).exits(64);
        assert!(finished.stderr.contains(tip), "{arguments:?}: {finished:?}");
        // The environment sets both: neither is what is missing.
        for option in ["--store", "--identity"] {
            assert!(
                !finished.stderr.contains(option),
                "{arguments:?}: {finished:?}"
            );
        }
    }
    assert!(!sandbox.database().exists(), "nothing was created");
}

#[test]
fn a_resource_that_begins_with_a_hyphen_can_be_named_everywhere() {
    let sandbox = Sandbox::new();
    for name in ["-x", "--verbose", "--"] {
        // The command's own -- stays with the command.
        let script = r#"aster put -- "$ASTER_RESOURCE $1 $2""#;
        sandbox
            .aster(&[
                "run", "--ttl", "20s", "--", name, "--", "sh", "-c", script, "sh", "--", "-v",
            ])
            .exits(0);
        let value = sandbox.aster(&["get", "--", name]).exits(0).stdout;
        assert_eq!(value, format!("{name} -- -v"));
        sandbox.aster(&["inspect", "--", name]).exits(0);
        sandbox.aster(&["audit", "--", name]).exits(0);
        sandbox.aster(&["revoke", "--", name]).exits(1);
    }
    // A -- after a resource belongs to the command.
    let finished = sandbox
        .aster(&["run", "nc", "--", "echo", "--", "x"])
        .exits(0);
    assert_eq!(finished.stdout, "-- x\n");
}

#[test]
fn an_empty_store_variable_is_refused_and_an_empty_identity_is_not_set() {
    let sandbox = Sandbox::new();
    // The default store instead would silently be another lock than the one that was meant.
    let mut command = sandbox.command();
    command
        .env("ASTER_STORE", "")
        .args(["run", CATALOG, "--", "touch", "ran"]);
    let refused = support::start(command).finish().exits(64);
    assert!(
        refused.stderr.contains("ASTER_STORE is set and empty"),
        "{refused:?}"
    );
    assert!(!sandbox.exists("ran"));
    let mut command = sandbox.command();
    command
        .env_remove("ASTER_STORE")
        .env("ASTER_IDENTITY", "")
        .env_remove("XDG_DATA_HOME")
        .env_remove("XDG_CONFIG_HOME")
        .args(["run", CATALOG, "--", "true"]);
    support::start(command).finish().exits(0);
    assert!(sandbox.exists(".local/share/aster/leases.db"));
    assert!(sandbox.exists(".config/aster/identity"));
    let help = sandbox.aster(&["get", "--help"]).exits(0).stdout;
    assert!(
        help.contains("ASTER_STORE") && help.contains("ASTER_IDENTITY"),
        "{help}"
    );
}

#[test]
fn names_that_turn_the_reading_direction_are_escaped_for_people_only() {
    let sandbox = Sandbox::new();
    let name = "pay/\u{202e}drowssap\u{200b}";
    let shown = r"pay/\u{202e}drowssap\u{200b}";
    let script = "aster fence && aster inspect -- \"$ASTER_RESOURCE\" && aster list && \
                  aster run \"$ASTER_RESOURCE\" -- true; aster revoke -- \"$ASTER_RESOURCE\"; exit 0";
    let run = sandbox.aster(&["run", "-v", name, "--", "sh", "-c", script]);
    let audit = sandbox.aster(&["audit", name]).exits(0);
    let again = sandbox.aster(&["revoke", name]).exits(1);
    let get = sandbox.aster(&["get", name]).exits(1);
    for text in [
        &run.stdout,
        &run.stderr,
        &audit.stdout,
        &again.stderr,
        &get.stderr,
    ] {
        assert!(text.contains(shown), "{text}");
        assert!(!text.contains(['\u{202e}', '\u{200b}']), "{text}");
    }
    let counted = run.stdout.matches(shown).count();
    assert_eq!(counted, 4, "fence, inspect, list, revoke: {run:?}");
    let row = sandbox.aster(&["inspect", "--json", name]).exits(0).json();
    assert_eq!(row["resource"], name);
}
