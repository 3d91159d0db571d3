//! Each planted bug is found by the invariant that it breaks, within a few seeds: the rules bite.

use aster_sim::{Bug, FOUND_WITHIN, Kind, RULES};

fn find(bug: Bug, store: Kind) {
    let found = match aster_sim::find(bug, store) {
        Ok(found) => found.and_then(|run| run.violation),
        Err(error) => panic!("{error}"),
    };
    let Some(violation) = found else {
        panic!("{bug:?} was not found in {FOUND_WITHIN} seeds");
    };
    assert_eq!(violation.invariant, bug.breaks(), "{}", violation.what);
}

macro_rules! controls {
    ($($name:ident: $bug:ident),* $(,)?) => {
        $(
            #[test]
            fn $name() {
                find(Bug::$bug, Kind::Memory);
            }
        )*

        #[test]
        fn every_bug_has_its_control() {
            let controls = [$(Bug::$bug),*];
            assert!(Bug::ALL.iter().all(|bug| controls.contains(bug)));
        }

        #[test]
        fn every_rule_has_its_bug() {
            for (rule, _) in RULES {
                assert!(Bug::ALL.iter().any(|bug| bug.breaks() == rule), "{rule}");
            }
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
    control_a_hold_off_that_is_forgotten: HoldOffForgotten,
    control_a_wait_that_ends_with_its_lapsed_turn: LapseEndsWait,
    control_an_end_that_takes_no_epoch: EndKeepsEpoch,
}

#[test]
fn control_bugs_beside_the_sqlite_store() {
    for bug in [Bug::UnfencedWrites, Bug::ReleaseForgotten] {
        find(bug, Kind::Sqlite);
    }
}
