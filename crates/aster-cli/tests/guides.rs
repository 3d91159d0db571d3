//! The script that the guide to cron jobs quotes does what the guide says.

#![allow(clippy::unwrap_used, reason = "this crate is all tests")]

mod support;

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::process::{Pid, Signal, kill_process_group};
use support::{ASTER, Running, Sandbox, eventually, start};

const RESOURCE: &str = "report/nightly";
const STORE: &str = "export ASTER_STORE=sqlite:/var/lib/nightly-report/leases.db";

/// Says that it has started, and by which shell, then waits until it is let go.
const MAKE_REPORT: &str = "#!/bin/sh\n\
    echo $PPID >> \"$HOME/started\"\n\
    while ! [ -e \"$HOME/go\" ]; do sleep 0.02; done\n\
    echo 'all is well'\n";

/// A home directory with the script, and with `aster` and `make-report` in its `bin`.
fn home() -> Sandbox {
    let home = Sandbox::new();
    fs::create_dir(home.path("bin")).unwrap();
    symlink(ASTER, home.path("bin/aster")).unwrap();
    fs::write(home.path("bin/make-report"), MAKE_REPORT).unwrap();
    let executable = fs::Permissions::from_mode(0o755);
    fs::set_permissions(home.path("bin/make-report"), executable).unwrap();
    write_script(&home);
    home
}

/// Writes the script to the sandbox as it stands, but for the directory of its store.
fn write_script(home: &Sandbox) {
    let original =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/cron-job/nightly-report.sh");
    let text = fs::read_to_string(original).unwrap();
    let store = format!("export ASTER_STORE=sqlite:{}", home.database().display());
    let adapted = text.replace(STORE, &store);
    assert_ne!(adapted, text, "the script must name its store");
    fs::write(home.path("nightly-report.sh"), adapted).unwrap();
}

/// As cron starts it: with a short path and without a terminal.
fn start_job(home: &Sandbox) -> Running {
    start_job_in(home, &[])
}

/// The same, in an environment that differs in these variables.
fn start_job_in(home: &Sandbox, changed: &[(&str, PathBuf)]) -> Running {
    let surroundings = home.command();
    let given = surroundings
        .get_envs()
        .filter_map(|(name, value)| Some((name, value?)));
    let mut shell = Command::new("/bin/sh");
    shell
        .arg(home.path("nightly-report.sh"))
        .env_clear()
        .env("PATH", "/usr/bin:/bin")
        .envs(given)
        .env_remove("ASTER_STORE")
        .envs(changed.iter().map(|(name, value)| (name, value)))
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
fn the_cron_job_does_not_run_beside_itself_in_another_environment() {
    let home = home();
    let first = start_job(&home);
    eventually("the first job is at work", || jobs_at_work(&home) == 1);

    // What another user, sudo or a login shell may change; each moves the default store.
    let elsewhere = [
        ("XDG_DATA_HOME", home.path("other-data")),
        ("XDG_CONFIG_HOME", home.path("other-config")),
        ("ASTER_IDENTITY", home.path("identity-b")),
        ("ASTER_STORE", PathBuf::from("sqlite:other.db")),
    ];
    start_job_in(&home, &elsewhere).finish().exits(0);
    assert_eq!(jobs_at_work(&home), 1, "two jobs worked beside each other");

    home.touch("go");
    first.finish().exits(0);
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

/// What a lost lease does to the command, but with all the time that the shell needs.
#[test]
fn a_cron_job_that_is_told_to_end_leaves_no_temporary_file() {
    let home = home();
    let job = start_job(&home);
    eventually("the job is at work", || jobs_at_work(&home) == 1);
    let temporary = || home.private_directories();
    assert!(temporary().iter().any(|path| path.is_file()));

    // The shell leads the process group of the run.
    let shell = fs::read_to_string(home.path("started")).unwrap();
    let group = Pid::from_raw(shell.trim().parse().unwrap()).unwrap();
    kill_process_group(group, Signal::TERM).unwrap();

    job.finish().exits(143);
    assert!(temporary().is_empty(), "stays: {:?}", temporary());
}
