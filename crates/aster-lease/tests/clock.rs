//! The clocks that come in from the system, and which of two is believed.
#![allow(
    clippy::disallowed_methods,
    reason = "the system's own clocks, to compare with"
)]

use std::time::{Duration, UNIX_EPOCH};

use aster_lease::clock::{boot_time, wall_unix_ms};
use aster_lease::{Clock, Moment, SystemClock};

const HOUR: Duration = Duration::from_secs(3_600);

/// The audit trail of a store on the system's clock shows when things happened.
#[test]
fn the_wall_clock_of_the_audit_is_the_systems() {
    let system = UNIX_EPOCH.elapsed().unwrap();
    for shown_ms in [wall_unix_ms(), SystemClock::new().unix_ms()] {
        let shown = Duration::from_millis(shown_ms);
        assert!(shown.abs_diff(system) < HOUR, "{shown:?} for {system:?}");
    }
}

/// The machine was up for so long, suspensions included.
#[test]
#[cfg(target_os = "linux")]
fn the_boot_time_is_the_machines() {
    let uptime = || {
        let text = std::fs::read_to_string("/proc/uptime").unwrap();
        let seconds: f64 = text.split(' ').next().unwrap().parse().unwrap();
        Duration::from_secs_f64(seconds)
    };
    let tick = Duration::from_millis(20);
    for read in [boot_time, || SystemClock::new().now().boot] {
        let before = uptime();
        let shown = read();
        assert!(
            shown + tick >= before && shown <= uptime() + tick,
            "{shown:?} at {before:?}"
        );
    }
}

/// A machine that slept must not believe the clock that stood still.
#[test]
fn of_two_clocks_the_one_that_went_on_is_believed() {
    let at = |monotonic_s, boot_s| Moment {
        monotonic: Duration::from_secs(monotonic_s),
        boot: Duration::from_secs(boot_s),
    };
    for (now, earlier, passed_s) in [
        (at(7, 7), at(5, 5), 2),
        (at(5, 60), at(5, 5), 55),
        (at(60, 5), at(5, 5), 55),
        (at(5, 5), at(7, 7), 0),
    ] {
        assert_eq!(now.since(earlier), Duration::from_secs(passed_s));
    }
}
