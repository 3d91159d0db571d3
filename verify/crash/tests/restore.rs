//! Power is lost at every step of a backup and of a restore. Whatever stands under the name that was
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
use aster_sqlite::{ExistingBackup, OpenError, SqliteOptions, SqliteSerializer};
use support::mount;
use tempfile::TempDir;

/// More than one page.
const VALUE: &[u8] = &[7; 20_000];

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

/// Runs `attempt` once for every step at which the power can be cut, and `check` on what is left, with
/// whether the attempt had been acknowledged. Answers how often something was left without that.
fn cut_at_every_step(
    attempt: &dyn Fn(&Path) -> Result<(), OpenError>,
    check: &dyn Fn(&Path),
) -> Option<usize> {
    let (mut unacknowledged, mut step) = (0, 0_u64);
    loop {
        let directory = tempfile::tempdir().unwrap();
        let target = directory.path().join("copy.db");
        let disk = VolatileDisk::new();
        let seed = 0x9e37_79b9_7f4a_7c15_u64 ^ (step + 1).wrapping_mul(0x2545_f491_4f6c_dd1d);
        let acknowledged = {
            let _session = mount(&disk, directory.path())?;
            disk.cut_after(step, Loss::Pages, seed);
            attempt(&target).is_ok()
        };
        let is_over = disk.steps() < step;
        disk.power_cycle(Loss::Pages, seed);
        let _session = mount(&disk, directory.path())?;
        if target.exists() {
            check(&target);
            unacknowledged += usize::from(!acknowledged);
        } else {
            assert!(!acknowledged, "cut {step}: it was acknowledged and is gone");
        }
        if is_over {
            assert!(acknowledged, "without a cut it succeeds");
            println!("{step} steps, {unacknowledged} times whole without an acknowledgement");
            return Some(unacknowledged);
        }
        step += 1;
    }
}

fn assert_whole(store: &SqliteSerializer, fence: &Fence) {
    assert_ne!(store.store_authority(), fence.authority);
    let row = block_on(store.snapshot("catalog")).unwrap();
    assert!(!row.held && row.epoch > fence.epoch, "{row:?}");
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
    let restore = |to: &Path| SqliteSerializer::restore(&backup, to, &operator()).map(|_| ());
    cut_at_every_step(&restore, &|found| {
        let options = SqliteOptions {
            create: false,
            ..SqliteOptions::default()
        };
        assert_whole(
            &SqliteSerializer::open_with(found, options).unwrap(),
            &fence,
        );
    });
}

#[test]
fn a_backup_that_is_cut_off_leaves_no_file_or_a_whole_one() {
    let (_directory, store, fence) = original();
    let backup = |to: &Path| store.backup(to, ExistingBackup::Keep).map(|_| ());
    cut_at_every_step(&backup, &|found| {
        let elsewhere = tempfile::tempdir().unwrap();
        let to = elsewhere.path().join("restored.db");
        SqliteSerializer::restore(found, &to, &operator()).unwrap();
        assert_whole(&SqliteSerializer::open(&to).unwrap(), &fence);
    });
}
