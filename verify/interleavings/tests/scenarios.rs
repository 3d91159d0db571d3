//! x
use aster_interleavings::{
    SCENARIOS,
    controls::CONTROLS,
    explore::explore,
    scheduler::{Budget, Way},
};
use std::time::Duration;
#[test]
fn all() {
    let only = std::env::var("ONLY").unwrap_or_default();
    if std::env::var("CONTROLS").is_err() {
        for s in SCENARIOS {
            if !only.split(",").any(|o| s.name.contains(o)) {
                continue;
            }
            for way in [Way::Bounded { departures: 3 }, Way::Chance { seed: 1 }] {
                let t = std::time::Instant::now();
                let f = explore(
                    *s,
                    None,
                    way.clone(),
                    Budget::new(20_000, Duration::from_secs(3)),
                );
                println!(
                    "{} {} {:?} {:?} {:?}",
                    s.name,
                    f.executions,
                    f.complete_up_to,
                    f.failure,
                    t.elapsed()
                );
            }
        }
    }
    for c in CONTROLS {
        if !only.split(",").any(|o| c.scenario.contains(o)) {
            continue;
        }
        let s = c.scenario().unwrap();
        for way in [Way::Bounded { departures: 3 }, Way::Chance { seed: 1 }] {
            let t = std::time::Instant::now();
            let f = explore(
                s,
                Some(c.bug),
                way.clone(),
                Budget::new(20_000, Duration::from_secs(3)),
            );
            println!(
                "CONTROL {} {} {:?} {:?} {:?}",
                c.bug,
                f.executions,
                f.complete_up_to,
                f.failure,
                t.elapsed()
            );
        }
    }
}
