//! Full disks, read-only files, power loss. The faults are real: a small file system of its own, a
//! limit on file sizes, a read-only mount. Where these are not permitted the test says so.

#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "a test that cannot go on fails, and it owns its threads"
)]

mod support;

use std::collections::HashMap;
use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::process::Command;

use aster_core::{DenyReason, ErrorKind, ExpectedRevision, Fence, TransitionOutcome};
use aster_lease::{FencedError, LeaseSerializer, Registers};
use aster_sqlite::{OpenError, SqliteSerializer};
use support::process::{Other, hear, is_permitted, prefixed, role, store_path, tell};
use support::*;

const MANY: u64 = 100_000;
const A_DAY_MS: u64 = 24 * 60 * 60 * 1_000;

/// Mounts a file system of 3 MiB over the directory of the store, in a namespace of its own.
const SMALL_DISK: [&str; 6] = [
    "unshare",
    "--mount",
    "sh",
    "-c",
    "mount -t tmpfs -o size=3m small \"$(dirname \"$ASTER_TEST_STORE\")\" && exec \"$@\"",
    "sh",
];
/// Lets no file grow over 1 MiB (2048 blocks of 512 bytes); the hard limit stays, so it can be lifted.
const SMALL_FILES: [&str; 4] = [
    "sh",
    "-c",
    "trap '' XFSZ && ulimit -S -f 2048 && exec \"$@\"",
    "sh",
];

#[test]
fn process_with_a_fault() {
    let Some(role) = role() else { return };
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let path = store_path();
    match role.as_str() {
        "full disk" => runtime.block_on(full(&path, &fill, &empty)),
        "full files" => runtime.block_on(full(&path, &|_| Vec::new(), &lift_limit)),
        "read only" => runtime.block_on(read_only(&path)),
        "power loss" => runtime.block_on(until_killed(&path)),
        "traced" => runtime.block_on(traced(&path)),
        other => panic!("no role {other}"),
    }
}

/// Takes all that is left of the disk.
fn fill(path: &Path) -> Vec<std::path::PathBuf> {
    let ballast = path.with_file_name("ballast");
    let mut file = File::create(&ballast).unwrap();
    for size in [4_096, 512, 1] {
        let block = vec![0; size];
        while file.write_all(&block).is_ok() {}
    }
    vec![ballast]
}

fn empty(ballast: &[std::path::PathBuf]) {
    for file in ballast {
        std::fs::remove_file(file).unwrap();
    }
}

fn lift_limit(_: &[std::path::PathBuf]) {
    let id = std::process::id().to_string();
    let lifted = Command::new("prlimit")
        .args(["--pid", &id, "--fsize=unlimited"])
        .status();
    assert!(lifted.unwrap().success());
}

/// Many at once, while the last room is used up: each is told what became of its own request.
async fn together(store: &SqliteSerializer) -> HashMap<String, Fence> {
    const CALLERS: u64 = 64;
    const EACH: u64 = 40;
    let callers = (0..CALLERS).map(|caller| {
        let store = store.clone();
        tokio::spawn(async move {
            let mut told = Vec::new();
            for number in 0..EACH {
                let name = format!("batch/{caller}/{number}");
                let outcome = try_acquire(&store, &name, "worker-a").await;
                told.push((name, outcome));
            }
            told
        })
    });
    let mut grants = HashMap::new();
    let mut failed = 0;
    for caller in callers.collect::<Vec<_>>() {
        for (name, outcome) in caller.await.unwrap() {
            let row = store.snapshot(&name).await.unwrap();
            match outcome {
                Ok(TransitionOutcome::Granted(fence)) => {
                    assert_eq!((row.held, row.epoch), (true, fence.epoch), "{name}");
                    grants.insert(name, fence);
                }
                Ok(other) => panic!("{other:?}"),
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::Report, "{error}");
                    assert!(error.to_string().contains("disk"), "{error}");
                    assert_eq!(row.epoch, 0, "{name} spent an epoch and was told {error}");
                    failed += 1;
                }
            }
        }
    }
    assert!(failed > 0, "a control: the disk was full");
    grants
}

async fn full(
    path: &Path,
    fill: &dyn Fn(&Path) -> Vec<std::path::PathBuf>,
    relieve: &dyn Fn(&[std::path::PathBuf]),
) {
    let store = SqliteSerializer::open(path).unwrap();
    let kept = store
        .transition("kept", acquire_op("worker-a", A_DAY_MS, grant_id(1)))
        .await;
    let kept = granted(kept);
    let any = ExpectedRevision::Any;
    store
        .compare_and_set(&kept, "worker-a", any, b"v1".to_vec())
        .await
        .unwrap();
    let ballast = fill(path);

    // What the file can still take is granted and must be found again; the rest fails with a reason
    // and spends no epoch. First together: a batch that does not fit is tried one by one.
    let mut grants = together(&store).await;
    let mut failed = 0;
    for number in 0..MANY {
        let name = format!("job/{number}");
        match try_acquire(&store, &name, "worker-a").await {
            Ok(TransitionOutcome::Granted(fence)) => {
                grants.insert(name, fence);
            }
            Ok(other) => panic!("{other:?}"),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Report, "{error}");
                assert!(error.to_string().contains("disk"), "{error}");
                failed += 1;
            }
        }
    }
    assert!(
        failed > MANY / 2,
        "the disk was not full: {failed} of {MANY} failed"
    );
    for number in 0..MANY {
        let name = format!("job/{number}");
        let row = store.snapshot(&name).await.unwrap();
        assert_eq!(
            row.epoch,
            grants.get(&name).map_or(0, |fence| fence.epoch),
            "{name}"
        );
    }
    // Everything else fails in the same way or is done; nothing is half done.
    let write = store.mutate_fenced(&kept, "worker-a", |tx| {
        tx.execute_batch("CREATE TABLE big (x); INSERT INTO big VALUES (zeroblob(4000000))")
    });
    assert!(
        matches!(
            write,
            Err(FencedError::Operation(_) | FencedError::Store(_))
        ),
        "{write:?}"
    );
    let value = vec![7; 1_000_000];
    let write = store
        .compare_and_set(&kept, "worker-a", any, value)
        .await
        .unwrap_err();
    assert_eq!(write.kind(), ErrorKind::Report, "{write}");
    let read = Registers::read(&store, "kept").await.unwrap().unwrap();
    assert_eq!((&*read.value, read.value_revision), (&b"v1"[..], 1));
    drop(store);

    relieve(&ballast);
    let store = SqliteSerializer::open(path).unwrap();
    for fence in grants.values() {
        let row = store.snapshot(&fence.resource).await.unwrap();
        assert!(
            row.held && row.epoch == fence.epoch,
            "a grant was lost: {fence} {row:?}"
        );
    }
    assert_renewed(renew(&store, &kept).await);
    assert_eq!(acquire(&store, "after", "worker-a").await.epoch, 1);
    store
        .mutate_fenced(&kept, "worker-a", |tx| publish(tx, "after"))
        .unwrap();
    assert_eq!(published(path), ["after"]);
}

#[test]
fn a_full_disk_spends_no_epoch_and_loses_nothing() {
    let place = Place::new();
    if !is_permitted(&SMALL_DISK, &place.path) {
        return;
    }
    let command = prefixed(
        &SMALL_DISK,
        "process_with_a_fault",
        "full disk",
        &place.path,
    );
    Other::spawn(command).finish();
}

#[test]
fn a_file_that_may_not_grow_spends_no_epoch_and_loses_nothing() {
    let place = Place::new();
    if !is_permitted(&SMALL_FILES, &place.path) {
        return;
    }
    let command = prefixed(
        &SMALL_FILES,
        "process_with_a_fault",
        "full files",
        &place.path,
    );
    Other::spawn(command).finish();
}

async fn read_only(path: &Path) {
    {
        let store = SqliteSerializer::open(path).unwrap();
        acquire(&store, "catalog", "worker-a").await;
    }
    let directory = path.parent().unwrap();
    let remount = |how: &str| {
        let done = Command::new("mount")
            .args(["-o", how])
            .arg(directory)
            .status();
        assert!(done.unwrap().success());
    };
    remount("remount,ro");
    let error = SqliteSerializer::open(path).unwrap_err();
    assert!(matches!(error, OpenError::ReadOnly { .. }), "{error}");
    assert!(error.to_string().contains("write permission"), "{error}");
    let new = SqliteSerializer::open(directory.join("new.db")).unwrap_err();
    assert!(matches!(new, OpenError::ReadOnly { .. }), "{new}");
    let adopt = SqliteSerializer::adopt(path, &principal("operator")).unwrap_err();
    assert!(matches!(adopt, OpenError::ReadOnly { .. }), "{adopt}");
    remount("remount,rw");
    let store = SqliteSerializer::open(path).unwrap();
    let (reason, _) = denied(try_acquire(&store, "catalog", "worker-b").await);
    assert_eq!(reason, DenyReason::HeldByOther);
}

#[test]
fn a_read_only_file_is_refused_with_what_to_do() {
    let place = Place::new();
    if !is_permitted(&SMALL_DISK, &place.path) {
        return;
    }
    let command = prefixed(
        &SMALL_DISK,
        "process_with_a_fault",
        "read only",
        &place.path,
    );
    Other::spawn(command).finish();
}

/// Tells each thing that was acknowledged, and is killed then.
async fn until_killed(path: &Path) {
    let store = SqliteSerializer::open(path).unwrap();
    let fence = acquire(&store, "catalog", "worker-a").await;
    let any = ExpectedRevision::Any;
    store
        .compare_and_set(&fence, "worker-a", any, b"v1".to_vec())
        .await
        .unwrap();
    store
        .mutate_fenced(&fence, "worker-a", |tx| publish(tx, "v1"))
        .unwrap();
    let released = acquire(&store, "released", "worker-a").await;
    release(&store, &released).await.unwrap();
    let revoked = acquire(&store, "revoked", "worker-a").await;
    store
        .transition("revoked", revoke_op(revoked.epoch, None))
        .await
        .unwrap();
    tell("acknowledged");
    hear();
}

/// What is not synced is lost: the side file, the shared index.
#[tokio::test]
async fn what_was_acknowledged_survives_a_kill_and_the_loss_of_all_that_was_not_synced() {
    let place = Place::new();
    let mut other = Other::start("process_with_a_fault", "power loss", &place.path);
    other.expect("acknowledged");
    other.kill();
    for suffix in ["-shm", "-aster", "-aster-wal", "-aster-shm"] {
        let _ = std::fs::remove_file(format!("{}{suffix}", place.path.display()));
    }
    let store = place.open();
    let row = async |name: &str| {
        let row = store.snapshot(name).await.unwrap();
        (row.epoch, row.held)
    };
    assert_eq!(row("catalog").await, (1, true));
    assert_eq!(row("released").await, (2, false));
    assert_eq!(row("revoked").await, (2, false));
    let value = Registers::read(&store, "catalog").await.unwrap().unwrap();
    assert_eq!(value.value, b"v1");
    assert_eq!(published(&place.path), ["v1"]);
}

/// Says before and after each step what it does.
async fn traced(path: &Path) {
    let store = SqliteSerializer::open(path).unwrap();
    tell("begin acquire");
    let fence = acquire(&store, "catalog", "worker-a").await;
    tell("end acquire");
    tell("begin renew");
    for _ in 0..20 {
        assert_renewed(renew(&store, &fence).await);
    }
    tell("end renew");
    tell("begin register");
    let any = ExpectedRevision::Any;
    store
        .compare_and_set(&fence, "worker-a", any, b"v1".to_vec())
        .await
        .unwrap();
    tell("end register");
    tell("begin mutate");
    store
        .mutate_fenced(&fence, "worker-a", |tx| publish(tx, "v1"))
        .unwrap();
    tell("end mutate");
    tell("begin deny");
    for _ in 0..20 {
        denied(try_acquire(&store, "catalog", "worker-b").await);
        write_late(&store, &fence);
    }
    tell("end deny");
    tell("begin release");
    release(&store, &fence).await.unwrap();
    tell("end release");
    let again = acquire(&store, "catalog", "worker-a").await;
    tell("begin revoke");
    store
        .transition("catalog", revoke_op(again.epoch, None))
        .await
        .unwrap();
    tell("end revoke");
}

/// A write that is refused: by somebody who is not the holder.
fn write_late(store: &SqliteSerializer, fence: &aster_core::Fence) {
    let own = aster_core::Fence {
        authority: aster_core::Authority::from_bytes([0; 16]),
        ..fence.clone()
    };
    let late = store.mutate_fenced(&own, "worker-a", |tx| publish(tx, "late"));
    assert!(matches!(late, Err(FencedError::Rejected(_))), "{late:?}");
}

/// Looks at the system calls: each durable answer comes after its log was synced, and neither a
/// renewal nor a denial syncs anything.
#[test]
fn the_log_is_synced_before_each_durable_answer_and_never_for_a_renewal() {
    let place = Place::new();
    let trace = place.directory.path().join("trace");
    let strace = [
        "strace",
        "-f",
        "-y",
        "-e",
        "trace=fdatasync,fsync,write",
        "-o",
    ];
    let mut prefix = strace.to_vec();
    prefix.push(trace.to_str().unwrap());
    if !is_permitted(&prefix, &place.path) {
        return;
    }
    let command = prefixed(&prefix, "process_with_a_fault", "traced", &place.path);
    Other::spawn(command).finish();
    let calls = std::fs::read_to_string(&trace).unwrap();
    let syncs_in = |step: &str, file: &str| {
        let from = calls.find(&format!("@@ begin {step}")).unwrap();
        let to = calls.find(&format!("@@ end {step}")).unwrap();
        let syncs = calls[from..to]
            .lines()
            .filter(|line| line.contains("sync("));
        syncs.filter(|line| line.contains(file)).count()
    };
    for step in ["acquire", "register", "mutate", "release", "revoke"] {
        assert!(
            syncs_in(step, "leases.db-wal>") > 0,
            "{step} was answered before it was synced"
        );
    }
    assert_eq!(syncs_in("renew", ""), 0, "a renewal syncs nothing");
    assert_eq!(
        syncs_in("deny", "aster"),
        0,
        "the side file is never synced"
    );
}
