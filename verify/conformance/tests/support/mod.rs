//! What the harnesses of the stores share.
#![allow(
    dead_code,
    unreachable_pub,
    reason = "each test file uses its own part of this"
)]

pub mod memory;
pub mod sqlite;
pub mod sqlite_file;

use std::sync::{Mutex, mpsc};
use std::time::Duration;

use aster_conformance::{PausedWrite, Written};
use aster_lease::{Clock, Moment};

/// A clock that moves by hand, with a wall clock of its own.
#[derive(Default)]
pub struct HandClock {
    now: Mutex<Duration>,
    wall_ahead_s: Mutex<i64>,
}

impl HandClock {
    pub fn advance(&self, by: Duration) {
        *self.now.lock().unwrap() += by;
    }

    pub fn jump_wall(&self, by_s: i64) {
        *self.wall_ahead_s.lock().unwrap() += by_s;
    }
}

impl Clock for HandClock {
    fn now(&self) -> Moment {
        let now = *self.now.lock().unwrap();
        Moment {
            monotonic: now,
            boot: now,
        }
    }

    fn unix_ms(&self) -> u64 {
        let ahead_ms = self.wall_ahead_s.lock().unwrap().saturating_mul(1_000);
        aster_lease::clock::wall_unix_ms().saturating_add_signed(ahead_ms)
    }
}

/// Runs `write` on a thread of its own and returns once it says that it is inside its protected
/// step, or has ended. It goes on when the second channel says so.
pub fn on_a_thread(
    write: impl FnOnce(mpsc::Sender<()>, mpsc::Receiver<()>) -> Written + Send + 'static,
) -> PausedWrite {
    let (inside, is_inside) = mpsc::channel();
    let (go_on, may_go_on) = mpsc::channel();
    let (ended, has_ended) = tokio::sync::oneshot::channel();
    std::thread::Builder::new()
        .name("paused writer".to_owned())
        .spawn(move || {
            let _ = ended.send(write(inside, may_go_on));
        })
        .unwrap();
    // An error means that the write was refused before it came inside.
    let _ = is_inside.recv();
    PausedWrite {
        resume: Box::new(move || {
            let _ = go_on.send(());
        }),
        outcome: Box::pin(async move { has_ended.await.unwrap() }),
    }
}
