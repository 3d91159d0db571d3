//! Explores further than the tests do: `cargo run --release -p aster-model --example explore -- 120`
//! looks at each world for 120 seconds, breadth first, and says how far it got.
#![allow(
    clippy::print_stdout,
    reason = "what was explored is what a reader wants to know"
)]

use std::error::Error;
use std::time::{Duration, Instant};

use aster_model::{Bounds, LeaseModel};
use stateright::{Checker, Model};

/// How long each world is explored when nothing is said.
const SECONDS: u64 = 60;

#[allow(clippy::disallowed_methods, reason = "how long it took is real time")]
fn main() -> Result<(), Box<dyn Error>> {
    let seconds = std::env::args().nth(1).map(|text| text.parse());
    let limit = Duration::from_secs(seconds.transpose()?.unwrap_or(SECONDS));
    let wide = Bounds {
        ticks: 7,
        wishes: 3,
        renewals: 2,
        writes: 2,
        ..Bounds::SMALL
    };
    let worlds = [
        ("leases", wide),
        ("three holders", Bounds { holders: 3, ..wide }),
        (
            "queue",
            Bounds {
                queue: true,
                ..wide
            },
        ),
        (
            "queue, restarts",
            Bounds {
                queue: true,
                restarts: 2,
                ..wide
            },
        ),
        ("revokes", Bounds { revokes: 2, ..wide }),
        ("dropped rows", Bounds { drops: 2, ..wide }),
        (
            "restored backups",
            Bounds {
                restores: 2,
                ..wide
            },
        ),
        (
            "everything",
            Bounds {
                queue: true,
                restarts: 1,
                revokes: 1,
                drops: 1,
                restores: 1,
                ..wide
            },
        ),
    ];
    for (name, bounds) in worlds {
        let model = LeaseModel { bounds, bug: None };
        let started = Instant::now();
        let checker = model.checker().threads(2).timeout(limit).spawn_bfs().join();
        let is_complete = started.elapsed() < limit;
        println!(
            "{name}: {} states, {} of them distinct, {} steps deep, {}",
            checker.state_count(),
            checker.unique_state_count(),
            checker.max_depth(),
            if is_complete {
                "complete"
            } else {
                "stopped by the time limit"
            },
        );
        checker.assert_properties();
    }
    Ok(())
}
