//! What must hold, one rule a file. An invariant sees every event in the world's order and keeps what it
//! needs of the true history itself; it never asks the code under test.

mod accepted_writes;
mod ended_is_final;
mod epochs_grow;
mod first_come_first_served;
mod grant_id_once;
mod held_for_its_ttl;
mod loss_is_told;
mod nothing_left_behind;
mod one_usable_fence;
mod progress;
mod registers;
mod released_is_free;
mod waits_are_kept;
mod watchers_see_the_present;

use std::time::Duration;

use crate::history::Entry;

/// One rule.
pub(crate) trait Invariant {
    /// Its name, that of its file.
    fn name(&self) -> &'static str;

    /// Looks at what happened next; an error is a broken rule.
    fn see(&mut self, entry: &Entry) -> Result<(), String>;
}

/// A broken rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    /// Which invariant: the name of its file.
    pub invariant: &'static str,
    /// When, in milliseconds of the world's time.
    pub at_ms: u64,
    /// What happened.
    pub what: String,
}

/// All of them.
pub(crate) fn all(idle_retention: Duration, drops_early: bool) -> Vec<Box<dyn Invariant>> {
    vec![
        Box::<accepted_writes::AcceptedWrites>::default(),
        Box::<epochs_grow::EpochsGrow>::default(),
        Box::<one_usable_fence::OneUsableFence>::default(),
        Box::new(grant_id_once::GrantIdOnce::new(idle_retention, drops_early)),
        Box::<released_is_free::ReleasedIsFree>::default(),
        Box::<ended_is_final::EndedIsFinal>::default(),
        Box::<first_come_first_served::FirstComeFirstServed>::default(),
        Box::<registers::Registers>::default(),
        Box::<nothing_left_behind::NothingLeftBehind>::default(),
        Box::<held_for_its_ttl::HeldForItsTtl>::default(),
        Box::<loss_is_told::LossIsTold>::default(),
        Box::<watchers_see_the_present::WatchersSeeThePresent>::default(),
        Box::<waits_are_kept::WaitsAreKept>::default(),
        Box::<progress::Progress>::default(),
    ]
}
