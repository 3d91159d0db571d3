//! What must hold, one rule a file. An invariant sees every event in the world's order and keeps what it
//! needs of the true history itself; it never asks the code under test.

mod accepted_writes;
mod ended_is_final;
mod epochs_grow;
mod first_come_first_served;
mod grant_id_once;
mod held_for_its_ttl;
mod kept_out;
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

/// The rules, as their files name them, and in words.
pub const RULES: [(&str, &str); 15] = [
    ("accepted_writes", "no write by an ended owner is accepted"),
    (
        "epochs_grow",
        "epochs are unique and grow, and each end of an ownership takes one",
    ),
    (
        "one_usable_fence",
        "no fence is usable once another was granted, revokes excepted",
    ),
    (
        "grant_id_once",
        "a grant id that the row remembers is granted once",
    ),
    ("released_is_free", "released means free, and over for good"),
    (
        "ended_is_final",
        "no lease comes back, guarded work stays ended, a loss is told once",
    ),
    (
        "first_come_first_served",
        "those who stay are served in the order of coming",
    ),
    (
        "registers",
        "revisions grow by one, and what was acknowledged is read",
    ),
    (
        "nothing_left_behind",
        "whoever goes away blocks others for a ttl at most",
    ),
    (
        "held_for_its_ttl",
        "no lease is taken before its ttl has passed",
    ),
    (
        "loss_is_told",
        "a running holder hears of its loss within a second",
    ),
    (
        "watchers_see_the_present",
        "watches never go back and end at the present",
    ),
    (
        "waits_are_kept",
        "a wait ends with a turn, with its time, or because it is kept out",
    ),
    (
        "kept_out",
        "a hold-off keeps the revoked holder out for its whole time",
    ),
    (
        "progress",
        "everyone is served after the faults, and nothing panics",
    ),
];

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
        Box::<kept_out::KeptOut>::default(),
        Box::<progress::Progress>::default(),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_rule_is_named_by_its_file() {
        let rules = all(Duration::ZERO, false);
        let names: Vec<_> = rules.iter().map(|rule| rule.name()).collect();
        assert_eq!(names, RULES.map(|(name, _)| name));
    }
}
