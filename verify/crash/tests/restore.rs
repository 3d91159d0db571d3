//! Power is lost at any step of a backup and of a restore. Whatever stands under the name that was
//! asked for afterwards is whole, and nothing does unless it is.

#![cfg(target_os = "linux")]
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "helpers of tests may panic"
)]

mod support;

use std::path::Path;

use aster_crash::{Loss, VolatileDisk};
use aster_lease::{
    ExpectedRevision, Fence, GrantId, LeaseOp, LeaseSerializer, Principal, Registers,
    TransitionOutcome, Ttl,
};
use aster_sqlite::{ExistingBackup, SqliteOptions, SqliteSerializer};
use support::{in_child, mount, role};
use tempfile::TempDir;

/// More than one page.
const VALUE: &[u8] = &[7; 20_000];

/// Every so many steps there is a cut; at every one with `ASTER_CRASH_STRIDE=1`.
const STRIDE: u64 = 3;

fn operator() -> Principal {
    Principal::new("operator").unwrap()
}

fn block_on<F: Future>(future: F) -> F::Output {
    tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap()
        .block_on(future)
}

/// A store with a held lease and a value, on a disk that loses nothing.
fn original() -> (TempDir, SqliteSerializer, Fence) {
    let directory = tempfile::tempdir().unwrap();
    let store = SqliteSerializer::open(directory.path().join("leases.db")).unwrap();
    let op = LeaseOp::Acquire {
        candidate: Principal::new("worker").unwrap(),
        ttl: Ttl::from_millis(60_000).unwrap(),
        grant_id: GrantId::from_bytes([1; 16]),
    };
    let fence = match block_on(store.transition("catalog", op)).unwrap() {
        TransitionOutcome::Granted(fence) => fence,
        other => panic!("{other:?}"),
    };
    let any = ExpectedRevision::Any;
    block_on(store.compare_and_set(&fence, "worker", any, VALUE.to_vec())).unwrap();
    (directory, store, fence)
}

/// Runs the role `attempt` once for each step at which the power is cut, and `check` on what is left, if
/// something is. Each takes `source` and then the path on the disk. Answers how often something was left
/// without an acknowledgement.
fn cut_at_steps(attempt: &str, check: &str, source: &Path, fence: &Fence) -> Option<usize> {
    let stride = std::env::var("ASTER_CRASH_STRIDE").ok();
    let stride = stride.and_then(|text| text.parse().ok()).unwrap_or(STRIDE);
    let (mut unacknowledged, mut step) = (0, 0_u64);
    loop {
        let directory = tempfile::tempdir().unwrap();
        let target = directory.path().join("copy.db");
        let (epoch, authority) = (fence.epoch.to_string(), fence.authority.to_string());
        let run = |role| {
            let words = [role, source.to_str().unwrap(), target.to_str().unwrap()];
            in_child(&[&words[..], &[epoch.as_str(), authority.as_str()]].concat())
        };
        let disk = VolatileDisk::new();
        let seed = 0x9e37_79b9_7f4a_7c15_u64 ^ (step + 1).wrapping_mul(0x2545_f491_4f6c_dd1d);
        let acknowledged = {
            let _session = mount(&disk, directory.path())?;
            disk.cut_after(step, Loss::Pages, seed);
            run(attempt).is_ok()
        };
        let is_over = disk.steps() < step;
        disk.power_cycle(Loss::Pages, seed);
        let _session = mount(&disk, directory.path())?;
        if target.exists() {
            run(check).unwrap_or_else(|what| panic!("cut {step}: {what}"));
            unacknowledged += usize::from(!acknowledged);
        } else {
            assert!(!acknowledged, "cut {step}: it was acknowledged and is gone");
        }
        if is_over {
            assert!(acknowledged, "without a cut it succeeds");
            println!("{step} steps, {unacknowledged} times whole without an acknowledgement");
            return Some(unacknowledged);
        }
        step += stride;
    }
}

#[test]
fn role_of_a_child() {
    let Some(words) = role() else { return };
    let [role, source, target, epoch, authority] = words.as_slice() else {
        panic!("{words:?}");
    };
    match role.as_str() {
        "restore" => drop(SqliteSerializer::restore(source, target, &operator()).unwrap()),
        "backup" => {
            let store = SqliteSerializer::open(source).unwrap();
            drop(store.backup(target, ExistingBackup::Keep).unwrap());
        }
        "check a restored store" => {
            let options = SqliteOptions {
                create: false,
                ..SqliteOptions::default()
            };
            let store = SqliteSerializer::open_with(target, options).unwrap();
            assert_whole(&store, epoch.parse().unwrap(), authority);
        }
        "check a backup" => {
            let elsewhere = tempfile::tempdir().unwrap();
            let to = elsewhere.path().join("restored.db");
            SqliteSerializer::restore(target, &to, &operator()).unwrap();
            let store = SqliteSerializer::open(&to).unwrap();
            assert_whole(&store, epoch.parse().unwrap(), authority);
        }
        other => panic!("no role {other}"),
    }
}

fn assert_whole(store: &SqliteSerializer, epoch: u64, authority: &str) {
    assert_ne!(store.store_authority().to_string(), authority);
    let row = block_on(store.snapshot("catalog")).unwrap();
    assert!(!row.held && row.epoch > epoch, "{row:?}");
    let value = block_on(Registers::read(store, "catalog"))
        .unwrap()
        .unwrap();
    assert_eq!(value.value, VALUE);
}

#[test]
fn a_restore_that_is_cut_off_leaves_no_store_or_a_whole_one() {
    let (directory, store, fence) = original();
    let backup = directory.path().join("backup.db");
    store.backup(&backup, ExistingBackup::Keep).unwrap();
    cut_at_steps("restore", "check a restored store", &backup, &fence);
}

#[test]
fn a_backup_that_is_cut_off_leaves_no_file_or_a_whole_one() {
    let (_directory, store, fence) = original();
    cut_at_steps("backup", "check a backup", store.path(), &fence);
}
