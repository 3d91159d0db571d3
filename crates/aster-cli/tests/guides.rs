//! The script that the guide to cron jobs quotes does what the guide says.

#![allow(clippy::unwrap_used, reason = "this crate is all tests")]

mod support;

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::{Command, Stdio};

use support::{ASTER, Running, Sandbox, eventually, start};

const RESOURCE: &str = "report/nightly";

/// Says that it has started, then waits until it is let go.
const MAKE_REPORT: &str = "#!/bin/sh\n\
    echo started >> \"$HOME/started\"\n\
    while ! [ -e \"$HOME/go\" ]; do sleep 0.02; done\n\
    echo 'all is well'\n";

/// A home directory whose `bin` has `aster` and `make-report`.
fn home() -> Sandbox {
    let home = Sandbox::new();
    fs::create_dir(home.path("bin")).unwrap();
    symlink(ASTER, home.path("bin/aster")).unwrap();
    fs::write(home.path("bin/make-report"), MAKE_REPORT).unwrap();
    let executable = fs::Permissions::from_mode(0o755);
    fs::set_permissions(home.path("bin/make-report"), executable).unwrap();
    home
}

/// As cron starts it: with a short path and without a terminal.
fn start_job(home: &Sandbox) -> Running {
    let script =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/cron-job/nightly-report.sh");
    let surroundings = home.command();
    let given = surroundings
        .get_envs()
        .filter_map(|(name, value)| Some((name, value?)));
    let mut shell = Command::new("/bin/sh");
    shell
        .arg(script)
        .env_clear()
        .env("PATH", "/usr/bin:/bin")
        .envs(given)
        .current_dir(home.path(""))
        .stdin(Stdio::null());
    start(shell)
}

fn jobs_at_work(home: &Sandbox) -> usize {
    fs::read_to_string(home.path("started")).map_or(0, |text| text.lines().count())
}

#[test]
fn the_cron_job_does_not_run_beside_itself_and_publishes() {
    let home = home();
    let first = start_job(&home);
    eventually("the first job is at work", || jobs_at_work(&home) == 1);

    let second = start_job(&home).finish().exits(0);
    assert!(second.stderr.contains("is held by"), "{second:?}");
    assert_eq!(
        jobs_at_work(&home),
        1,
        "the second must not have done any work"
    );

    home.touch("go");
    first.finish().exits(0);
    let published = home.aster(&["get", RESOURCE]).exits(0).stdout;
    assert_eq!(published, "all is well\n");
}

#[test]
fn a_cron_job_that_an_operator_ends_publishes_nothing() {
    let home = home();
    let job = start_job(&home);
    eventually("the job is at work", || jobs_at_work(&home) == 1);

    home.aster(&["revoke", RESOURCE]).exits(0);
    home.touch("go");

    job.finish().exits(76);
    home.aster(&["get", RESOURCE]).exits(1);
}
