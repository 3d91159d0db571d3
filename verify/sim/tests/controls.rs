//! Each planted bug is found by the invariant that it breaks, within a few seeds: the rules bite.

use aster_sim::{Bug, Settings, run};

/// Within so many seeds a planted bug is found.
const SEEDS_MAX: u64 = 10;

fn find(bug: Bug) {
    let mut found = None;
    for seed in 1..=SEEDS_MAX {
        let settings = Settings {
            seed,
            bug: Some(bug),
            trace_lines_max: 0,
        };
        match run(settings) {
            Ok(run) => found = found.or(run.violation),
            Err(error) => panic!("seed {seed}: {error}"),
        }
        if found.is_some() {
            break;
        }
    }
    let Some(violation) = found else {
        panic!("{bug:?} was not found in {SEEDS_MAX} seeds");
    };
    assert_eq!(violation.invariant, bug.breaks(), "{}", violation.what);
}

macro_rules! controls {
    ($($name:ident: $bug:ident),* $(,)?) => {
        $(
            #[test]
            fn $name() {
                find(Bug::$bug);
            }
        )*

        #[test]
        fn every_bug_has_its_control() {
            let controls = [$(Bug::$bug),*];
            assert!(Bug::ALL.iter().all(|bug| controls.contains(bug)));
        }
    };
}

controls! {
    control_a_resource_without_a_check: UnfencedWrites,
    control_a_holder_that_keeps_its_fence: FenceKept,
    control_rows_that_are_forgotten_at_a_restart: RowsForgottenAtRestart,
    control_a_queue_without_order: QueueWithoutOrder,
    control_a_renewal_that_revives: RenewalRevives,
    control_a_release_that_is_forgotten: ReleaseForgotten,
    control_a_write_that_is_forgotten: WriteForgotten,
    control_a_retry_that_mints_another_grant: RetryMintsAgain,
    control_dead_leases_that_are_renewed: DeadLeasesRenewed,
    control_expiry_by_the_wall_clock: WallClockExpiry,
    control_waiters_that_are_forgotten: WaiterForgotten,
    control_a_loss_that_nobody_is_told_of: LossUntold,
    control_a_watch_that_misses_the_end: WatchStops,
    control_a_wait_that_ends_with_its_lapsed_turn: LapseEndsWait,
}
