//! The SQLite store loses power at every write and every sync of its life, one after the other, on a
//! disk that forgets what was not synced. Whatever it had acknowledged must be there afterwards, and
//! no epoch may be used twice. Several callers work at once, so that most commits carry several of them.

#![cfg(target_os = "linux")]
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::disallowed_methods,
    reason = "helpers of tests may panic"
)]

mod support;

use std::collections::HashMap;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use aster_crash::VolatileDisk;
use aster_lease::{
    ExpectedRevision, GrantId, LeaseOp, LeaseSerializer, Principal, Registers, TransitionOutcome,
    Ttl, WriteId,
};
use aster_sqlite::{ClockDomain, ExistingBackup, SqliteOptions, SqliteSerializer, StoreTime};
use support::mount;

const ROLE: &str = "ASTER_CRASH_ROLE";
const STORE: &str = "ASTER_CRASH_STORE";
const LIFE: &str = "ASTER_CRASH_LIFE";
/// A store that hangs on a dead disk ends its process here, and the test fails for what is missing.
const LIFE_MAX: Duration = Duration::from_secs(60);
/// Each has a caller of its own.
const RESOURCES: [&str; 5] = ["shard/0", "shard/1", "shard/2", "shard/3", "shard/4"];
/// Every `STRIDE`-th step of the store's life is a cut; all of them with `ASTER_CRASH_STRIDE=1`.
const STRIDE: u64 = 7;

/// What a process was told, in the order in which it was told.
#[derive(Debug, Clone, PartialEq)]
enum Told {
    /// How many commits a whole life took.
    Commits(u64),
    Granted {
        resource: String,
        epoch: u64,
    },
    Wrote {
        resource: String,
        epoch: u64,
        value_revision: u64,
    },
    /// Released or revoked.
    Ended {
        resource: String,
        epoch: u64,
    },
    Row {
        resource: String,
        epoch: u64,
        held: bool,
    },
    Value {
        resource: String,
        value_revision: u64,
        value: String,
    },
}

#[test]
fn what_was_acknowledged_survives_a_power_loss_at_every_step() {
    let whole_life = {
        let directory = tempfile::tempdir().unwrap();
        let disk = VolatileDisk::new();
        let Some(_session) = mount(&disk, directory.path()) else {
            return;
        };
        let told = run("work", directory.path(), 0);
        assert!(
            told.len() > 20,
            "a control: without a power loss all of it is done: {told:?}"
        );
        let changes = told.iter().filter(|line| !matches!(line, Told::Commits(_)));
        let (changes, commits) = (changes.count() as u64, commits_of(&told));
        println!("{changes} changes in {commits} commits");
        assert!(
            0 < commits && commits < changes * 3 / 4,
            "{commits} commits carried {changes} changes: too few of them together"
        );
        disk.steps()
    };
    let stride = std::env::var("ASTER_CRASH_STRIDE").ok();
    let stride = stride.and_then(|text| text.parse().ok()).unwrap_or(STRIDE);
    let (mut cuts, mut acknowledged) = (0, 0);
    for step in (0..whole_life).step_by(usize::try_from(stride).unwrap()) {
        acknowledged += lose_power_at(step);
        cuts += 1;
    }
    println!("{cuts} power cuts in {whole_life} steps, {acknowledged} acknowledgements checked");
    assert!(
        acknowledged > cuts,
        "most cuts must come after something was acknowledged"
    );
}

/// One life that ends at `step`, the next one, and what it must find. Answers how much had been
/// acknowledged.
fn lose_power_at(step: u64) -> usize {
    let directory = tempfile::tempdir().unwrap();
    let disk = VolatileDisk::new();
    let seed = 0x9e37_79b9_7f4a_7c15 ^ step.wrapping_mul(0x2545_f491_4f6c_dd1d);
    let first_life = {
        let _session = mount(&disk, directory.path()).unwrap();
        disk.cut_after(step, seed);
        run("work", directory.path(), 0)
    };
    disk.power_cycle(seed);
    let _session = mount(&disk, directory.path()).unwrap();
    let found = run("look", directory.path(), 1);
    check_found(step, &first_life, &found);
    let second_life = run("work", directory.path(), 1);
    check_epochs(step, &first_life, &found, &second_life);
    first_life.len()
}

fn commits_of(told: &[Told]) -> u64 {
    let mut told = told.iter();
    told.find_map(|line| match line {
        Told::Commits(commits) => Some(*commits),
        _ => None,
    })
    .unwrap()
}

fn check_found(step: u64, told: &[Told], found: &[Told]) {
    let row = |name: &str| {
        found.iter().find_map(|line| match line {
            Told::Row {
                resource,
                epoch,
                held,
            } if resource == name => Some((*epoch, *held)),
            _ => None,
        })
    };
    let value = |name: &str| {
        found.iter().find_map(|line| match line {
            Told::Value {
                resource,
                value_revision,
                value,
            } if resource == name => Some((*value_revision, value.clone())),
            _ => None,
        })
    };
    for line in told {
        match line {
            Told::Granted { resource, epoch } => {
                let (now, held) = row(resource).unwrap();
                assert!(
                    now > *epoch || (now == *epoch && held),
                    "cut {step}: lost {line:?}: {found:?}"
                );
            }
            Told::Ended { resource, epoch } => {
                let (now, _) = row(resource).unwrap();
                assert!(now > *epoch, "cut {step}: lost {line:?}: {found:?}");
            }
            Told::Wrote {
                resource,
                epoch,
                value_revision,
            } => {
                let (revision, text) = value(resource).unwrap();
                let same = revision == *value_revision && text == format!("{resource}@{epoch}");
                assert!(
                    revision > *value_revision || same,
                    "cut {step}: lost {line:?}: {found:?}"
                );
            }
            Told::Row { .. } | Told::Value { .. } | Told::Commits(_) => {}
        }
    }
}

/// Grants of the second life are above everything that the first one was told or left behind.
fn check_epochs(step: u64, first: &[Told], found: &[Told], second: &[Told]) {
    let mut highest = HashMap::<&str, u64>::new();
    for line in first.iter().chain(found) {
        if let Told::Granted { resource, epoch }
        | Told::Row {
            resource, epoch, ..
        } = line
        {
            let known = highest.entry(resource).or_default();
            *known = (*known).max(*epoch);
        }
    }
    let mut granted = 0;
    for line in second {
        if let Told::Granted { resource, epoch } = line {
            let known = highest.entry(resource).or_default();
            assert!(
                *epoch > *known,
                "cut {step}: epoch used again: {line:?} after {known}"
            );
            *known = *epoch;
            granted += 1;
        }
    }
    assert!(granted > 0, "cut {step}: the store works again: {second:?}");
}

/// Runs a role of this test in a process of its own and reads what it was told.
fn run(role: &str, directory: &Path, life: u8) -> Vec<Told> {
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["role", "--exact", "--nocapture", "--test-threads=1"])
        .env(ROLE, role)
        .env(STORE, directory.join("leases.db"))
        .env(LIFE, life.to_string())
        .stderr(Stdio::piped())
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    if std::env::var_os("ASTER_CRASH_VERBOSE").is_some() {
        println!("{text}");
    }
    if role == "look" {
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(
            output.status.success(),
            "the store does not open again: {errors}"
        );
    }
    text.lines().filter_map(parse).collect()
}

fn parse(line: &str) -> Option<Told> {
    // The first line follows the test runner's own words.
    let mut words = line.split_once("told ")?.1.split(' ');
    let (kind, resource) = (words.next()?, words.next()?.to_owned());
    let mut number = || words.next().and_then(|word| word.parse::<u64>().ok());
    Some(match kind {
        "commits" => Told::Commits(number()?),
        "granted" => Told::Granted {
            resource,
            epoch: number()?,
        },
        "ended" => Told::Ended {
            resource,
            epoch: number()?,
        },
        "wrote" => Told::Wrote {
            resource,
            epoch: number()?,
            value_revision: number()?,
        },
        "row" => Told::Row {
            resource,
            epoch: number()?,
            held: number()? == 1,
        },
        "value" => {
            let value_revision = number()?;
            Told::Value {
                resource,
                value_revision,
                value: words.next()?.to_owned(),
            }
        }
        _ => return None,
    })
}

/// Not a test of its own: what a child process of the test above does.
#[test]
fn role() {
    let Ok(role) = std::env::var(ROLE) else {
        return;
    };
    std::thread::Builder::new()
        .spawn(|| {
            std::thread::sleep(LIFE_MAX);
            std::process::exit(9);
        })
        .unwrap();
    let path = std::env::var(STORE).unwrap();
    let life: u8 = std::env::var(LIFE).unwrap().parse().unwrap();
    let options = SqliteOptions {
        time: Arc::new(Boot(life)),
        ..SqliteOptions::default()
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .unwrap();
    if role == "look" {
        let store = SqliteSerializer::open_with(&path, options).unwrap();
        runtime.block_on(look(&store));
        return;
    }
    // A store that cannot be opened or used any more ends this life; what was told stays told.
    let worked = SqliteSerializer::open_with(&path, options)
        .map_err(|error| format!("open: {error}"))
        .and_then(|store| runtime.block_on(work(&store, life)));
    if let Err(error) = worked {
        println!("\nended by: {error}");
    }
}

/// The machine's clock after the given number of reboots: a power loss is one.
struct Boot(u8);

impl StoreTime for Boot {
    fn domain(&self) -> Option<ClockDomain> {
        Some(ClockDomain::new(format!("boot {}", self.0)))
    }

    fn now_ns(&self) -> u64 {
        u64::try_from(aster_lease::clock::boot_time().as_nanos()).unwrap()
    }

    fn wall_unix_ms(&self) -> u64 {
        0
    }
}

fn tell(line: &str) {
    let mut out = std::io::stdout().lock();
    writeln!(out, "told {line}").unwrap();
    out.flush().unwrap();
}

async fn look(store: &SqliteSerializer) {
    for resource in RESOURCES {
        let row = store.snapshot(resource).await.unwrap();
        tell(&format!(
            "row {resource} {} {}",
            row.epoch,
            u8::from(row.held)
        ));
        if let Some(register) = store.read(resource).await.unwrap() {
            let value = String::from_utf8(register.value).unwrap();
            tell(&format!(
                "value {resource} {} {value}",
                register.value_revision
            ));
        }
    }
}

/// Grants, writes and ends, of all resources at once, until something fails.
async fn work(store: &SqliteSerializer, life: u8) -> Result<(), String> {
    let before = commits(store)?;
    let mut callers = Vec::new();
    for (index, resource) in (0_u8..).zip(RESOURCES) {
        callers.push(tokio::spawn(work_on(store.clone(), resource, life, index)));
    }
    for caller in callers {
        caller.await.map_err(text)??;
    }
    tell(&format!("commits of {}", commits(store)? - before));
    Ok(())
}

/// How many commits the store has made, by the copy of it that a backup is.
fn commits(store: &SqliteSerializer) -> Result<u64, String> {
    let elsewhere = tempfile::tempdir().map_err(text)?;
    let copy = elsewhere.path().join("copy.db");
    let backup = store.backup(copy, ExistingBackup::Keep).map_err(text)?;
    Ok(backup.sequence)
}

async fn work_on(
    store: SqliteSerializer,
    resource: &str,
    life: u8,
    index: u8,
) -> Result<(), String> {
    let worker = Principal::new("worker").unwrap();
    for turn in 0..4_u8 {
        let left = store.snapshot(resource).await.map_err(text)?;
        if left.held {
            end(&store, resource, left.epoch, true).await?;
        }
        let op = LeaseOp::Acquire {
            candidate: worker.clone(),
            ttl: Ttl::from_millis(60_000).unwrap(),
            grant_id: GrantId::from_bytes([life * 64 + turn * 8 + index + 1; 16]),
        };
        let fence = match store.transition(resource, op).await.map_err(text)? {
            TransitionOutcome::Granted(fence) => fence,
            other => return Err(format!("{other:?}")),
        };
        let epoch = fence.epoch;
        tell(&format!("granted {resource} {epoch}"));
        let renew = LeaseOp::Renew {
            holder: worker.clone(),
            epoch,
        };
        store.transition(resource, renew).await.map_err(text)?;
        let value = format!("{resource}@{epoch}").into_bytes();
        let any = ExpectedRevision::Any;
        // In one of the turns the last write ends the lease.
        let is_last = turn == 2;
        let written = if is_last {
            let write_id = WriteId::from_bytes([life * 64 + turn * 8 + index + 1; 16]);
            store
                .release_with_value(&fence, "worker", any, value, write_id)
                .await
        } else {
            store.compare_and_set(&fence, "worker", any, value).await
        };
        let value_revision = written.map_err(text)?;
        tell(&format!("wrote {resource} {epoch} {value_revision}"));
        if is_last {
            tell(&format!("ended {resource} {epoch}"));
        } else if turn < 3 {
            // The last turn leaves its leases held.
            end(&store, resource, epoch, turn == 1).await?;
        }
    }
    Ok(())
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

async fn end(
    store: &SqliteSerializer,
    resource: &str,
    epoch: u64,
    revoke: bool,
) -> Result<(), String> {
    let op = if revoke {
        let operator = Principal::new("operator").unwrap();
        LeaseOp::Revoke {
            operator,
            epoch,
            hold_off: None,
        }
    } else {
        LeaseOp::Release {
            holder: Principal::new("worker").unwrap(),
            epoch,
        }
    };
    match store.transition(resource, op).await.map_err(text)? {
        TransitionOutcome::Released | TransitionOutcome::Revoked => {
            tell(&format!("ended {resource} {epoch}"));
            Ok(())
        }
        other => Err(format!("{other:?}")),
    }
}
