//! Real processes, stopped and killed, with the check and without it.
#![allow(clippy::unwrap_used, reason = "test code outside a #[test] function")]

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use aster_evidence::{Deadline, Evidence};
use aster_lease::{Entropy as _, SystemEntropy};
use aster_processes::proof::{Order, check_again, prove};
use aster_processes::storage::Check;

const PROGRAM: &str = env!("CARGO_BIN_EXE_aster-processes");
/// How long the processes work in a test, in seconds.
const SECONDS: u64 = 45;
/// How long a process that was killed, or whose parent was, may take to be gone, in seconds.
const GONE_WITHIN_S: u64 = 30;

fn fresh_seed() -> u64 {
    let mut bytes = [0; 2];
    SystemEntropy.fill(&mut bytes).unwrap();
    u64::from(u16::from_le_bytes(bytes))
}

#[test]
fn with_the_check_no_update_is_lost_and_without_it_some_are() {
    let directory = tempfile::tempdir().unwrap();
    let order = Order {
        seed: fresh_seed(),
        seconds: SECONDS,
        unfenced_only: false,
        keep: Some(directory.path().to_owned()),
    };
    let evidence = prove(&order, Path::new(PROGRAM)).unwrap();
    println!("{evidence}\nrepeat it with: {}", order.command());
    if !evidence.is_sound() {
        println!("the histories: {}", directory.keep().display());
        panic!("not everything held: {:?}", evidence.broken);
    }
    let tried = |what: &str| {
        let found = evidence.tried.iter().find(|(known, _)| known == what);
        found.map_or(0, |(_, times)| *times)
    };
    assert!(tried("late writes rejected") > 0);
    assert!(tried("… by taking over from a silent owner") > 0);
    assert!(tried("… of which were lost without the check") > 0);
    assert_eq!(tried("… of which were lost"), 0);

    // What was kept can be judged again, with the same result.
    let (settings, checked) =
        check_again(&directory.path().join(format!("fenced-{}", order.seed))).unwrap();
    assert_eq!(settings.check, Check::Within);
    assert_eq!(checked.broken, []);
    assert!(tried("… of which were lost with a check before the write") > 0);
    let unfenced = format!("unfenced-{}", order.seed + 3);
    let kept = directory.path().join(unfenced);
    assert!(check_again(&kept).unwrap().1.updates.lost > 0);
    let output = Command::new(PROGRAM).arg("check").arg(&kept).output();
    let output = output.unwrap();
    assert_eq!(output.status.code(), Some(1));
    let told = String::from_utf8(output.stdout).unwrap();
    assert!(told.contains("BROKEN no acknowledged update is lost"));
}

/// Whatever happens to the conductor: a process that stands still goes with it too.
#[test]
fn no_process_outlives_the_conductor() {
    let directory = tempfile::tempdir().unwrap();
    let mut conductor = Command::new(PROGRAM)
        .args(["--seconds", "60", "--unfenced", "--seed", "1", "--keep"])
        .arg(directory.path())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut first_line = String::new();
    BufReader::new(conductor.stdout.take().unwrap())
        .read_line(&mut first_line)
        .unwrap();
    assert!(first_line.starts_with("seed 1,"), "{first_line}");
    let children = |state: Option<char>| processes_of(conductor.id(), state);
    let mut seen = Vec::new();
    wait_until("a process that stands still among seven others", || {
        seen = children(None);
        !children(Some('T')).is_empty() && seen.len() >= 7
    });
    conductor.kill().unwrap();
    conductor.wait().unwrap();
    wait_until("all processes to be gone", || {
        seen.iter().all(|(id, started)| {
            // What is dead and not yet collected by its new parent is gone too.
            stat(*id).is_none_or(|found| found.started != *started || found.state == 'Z')
        })
    });
}

#[test]
fn wrong_use_is_told_with_its_own_exit_code() {
    for words in [
        &["--seconds", "soon"][..],
        &["--seed"],
        &["--fast"],
        &["check"],
        &["__work", "nonsense"],
    ] {
        let output = Command::new(PROGRAM).args(words).output().unwrap();
        assert_eq!(output.status.code(), Some(64), "{words:?}");
        let told = String::from_utf8(output.stderr).unwrap();
        assert!(told.contains("usage: aster-processes"), "{told}");
    }
    let output = Command::new(PROGRAM).args(["check", "/nowhere"]).output();
    assert_eq!(output.unwrap().status.code(), Some(1));
}

struct Stat {
    parent: u32,
    state: char,
    /// Together with the id this names a process for good.
    started: u64,
}

fn stat(id: u32) -> Option<Stat> {
    let text = std::fs::read_to_string(format!("/proc/{id}/stat")).ok()?;
    // The name in parentheses may contain anything.
    let mut fields = text.rsplit_once(')')?.1.split_whitespace();
    Some(Stat {
        state: fields.next()?.chars().next()?,
        parent: fields.next()?.parse().ok()?,
        started: fields.nth(17)?.parse().ok()?,
    })
}

/// The children of `parent`, all or those in a state: their ids and when they started.
fn processes_of(parent: u32, state: Option<char>) -> Vec<(u32, u64)> {
    let entries = std::fs::read_dir("/proc").unwrap();
    let ids = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    ids.filter_map(|id: u32| stat(id).map(|found| (id, found)))
        .filter(|(_, found)| found.parent == parent)
        .filter(|(_, found)| state.is_none_or(|state| state == found.state))
        .map(|(id, found)| (id, found.started))
        .collect()
}

fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Deadline::after_s(GONE_WITHIN_S);
    while !is_so() {
        assert!(!deadline.is_over(), "waited in vain for {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// The page is made of it.
#[test]
fn the_evidence_is_written_where_it_is_wanted() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("processes.json");
    let output = Command::new(PROGRAM)
        .args(["--seconds", "20", "--unfenced", "--evidence"])
        .arg(&path)
        .output()
        .unwrap();
    let evidence = Evidence::read(&path).unwrap();
    assert_eq!(evidence.part, "processes");
    assert_eq!(output.status.success(), evidence.is_sound(), "{evidence}");
    assert!(!evidence.seeds.is_empty() && evidence.seconds >= 15);
}
