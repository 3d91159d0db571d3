//! A process is killed while its commit is on the way to the disk: in the log, and not yet durable. Whoever
//! opens the store after it finds that commit, and must not tell anybody of it before it is durable: at a
//! power loss the epoch would be granted again.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "helpers of tests may panic")]

mod support;

use std::path::Path;
use std::time::Duration;

use aster_crash::expected::Expected;
use aster_crash::judge::judge;
use aster_crash::lives::{Mounted, Recorded, Worker, said};
use aster_crash::words::Word;
use aster_crash::work::Plan;
use aster_crash::{Held, Loss, Moment, VolatileDisk, Volume};
use support::is_permitted;

#[test]
fn what_was_not_durable_when_its_process_was_killed_is_durable_before_anybody_sees_it() {
    if !is_permitted() {
        return;
    }
    let program = Path::new(env!("CARGO_BIN_EXE_aster-crash"));
    let disk = VolatileDisk::recording(Volume::default());
    let mounted = Mounted::new(disk.clone()).unwrap();
    let plan = |life, turns| Plan {
        seed: 5,
        process: 0,
        life,
        boot: 0,
        callers: 1,
        turns,
        bend: None,
    };
    let mut seen_in_vain = 0;
    for commit in 0..6 {
        let mut victim = Worker::start(program, mounted.path(), &plan(commit, 20)).unwrap();
        let held = disk.hold(
            victim.id(),
            Moment::SyncOf("leases.db-wal".to_owned(), commit),
        );
        held.recv_timeout(Duration::from_secs(30)).unwrap();
        victim.kill();
        disk.release(Held::Undone);
        victim.wait().unwrap();
        let killed_at = disk.log_length();
        // It looks at what its predecessor left, and is told.
        Worker::start(program, mounted.path(), &plan(commit + 1, 0))
            .unwrap()
            .finish()
            .unwrap();
        let log = disk.log();
        let seen_at = |event: &aster_crash::Event| {
            let seen = said(std::slice::from_ref(event)).next();
            seen.is_some_and(|line| matches!(line.word, Word::Saw { epoch, .. } if epoch > 0))
        };
        let Some(seen_at) = log[killed_at..].iter().position(seen_at) else {
            continue;
        };
        let life = Recorded {
            start: Volume::default(),
            log: log[..=killed_at + seen_at].to_vec(),
        };
        let mut volume = life.start.clone();
        life.log.iter().for_each(|event| volume.apply(event));
        let left = Mounted::new(VolatileDisk::recording(
            volume.after_cut(Loss::Everything, 1),
        ))
        .unwrap();
        let judged = judge(program, left.path(), &Expected::of(&life.log), 1);
        judged.unwrap_or_else(|what| panic!("killed in sync {commit}: {what}"));
        seen_in_vain += 1;
    }
    assert!(seen_in_vain > 2, "too little was seen: {seen_in_vain}");
}
