//! What is broken on purpose: the checks must notice each of these.

use std::path::Path;

use crate::bend::Bend;
use crate::cuts::{Cut, Syncs, check, leave, pick};
use crate::disk::{Fault, VolatileDisk};
use crate::lives::{Recorded, Shape, record};
use crate::random::Random;
use crate::rounds::{Tally, faults_in, kill, live_with_faults};
use crate::volume::{Loss, Volume};

/// How many lives and kills a control may take until it is noticed.
const TRIES: u64 = 20;
/// How many cuts of a life.
const CUTS: usize = 60;

/// Something broken on purpose.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Planted {
    /// The disk ignores syncs, or some of them.
    Syncs(Syncs),
    /// A process is broken.
    Bend(Bend),
    /// A process is broken and is killed.
    KilledAndBent(Bend),
    /// A sync fails and does not say so: what a store does that goes on as if nothing had happened.
    FaultsUnsaid,
}

impl Planted {
    /// All of them.
    pub const ALL: [Planted; 7] = [
        Planted::Syncs(Syncs::Ignored),
        Planted::Syncs(Syncs::IgnoredOfLog),
        Planted::Syncs(Syncs::IgnoredOfNames),
        Planted::Bend(Bend::TellsTooEarly),
        Planted::Bend(Bend::FloorAfterDrop),
        Planted::KilledAndBent(Bend::TellsTooEarly),
        Planted::FaultsUnsaid,
    ];

    /// What is broken, in words.
    #[must_use]
    pub fn what(self) -> &'static str {
        match self {
            Planted::Syncs(Syncs::Obeyed) => "nothing",
            Planted::Syncs(Syncs::Ignored) => "no sync at all (synchronous=OFF)",
            Planted::Syncs(Syncs::IgnoredOfLog) => {
                "the log is not synced at a commit (synchronous=NORMAL)"
            }
            Planted::Syncs(Syncs::IgnoredOfNames) => "the directory is not synced",
            Planted::Bend(Bend::TellsTooEarly) => "a write is acknowledged before it is committed",
            Planted::Bend(Bend::FloorAfterDrop) => {
                "the epoch floor rises in a commit after the drop"
            }
            Planted::KilledAndBent(_) => {
                "a write is acknowledged before it is committed, and its process killed"
            }
            Planted::FaultsUnsaid => "a failed sync is taken for a good one",
        }
    }

    /// The rule that it breaks.
    #[must_use]
    pub fn rule(self) -> &'static str {
        match self {
            Planted::Syncs(_) => RULE_DURABLE,
            Planted::Bend(Bend::TellsTooEarly) => RULE_DURABLE,
            Planted::Bend(Bend::FloorAfterDrop) => RULE_EPOCHS,
            Planted::KilledAndBent(_) => RULE_KILLED,
            Planted::FaultsUnsaid => RULE_FAULTS,
        }
    }

    /// Tries until it is noticed: how, or `None`.
    ///
    /// # Errors
    ///
    /// If there is no life to try it on.
    pub fn find(self, program: &Path, seed: u64) -> Result<Option<String>, String> {
        for number in 0..TRIES {
            // The long lives: only these drop idle rows.
            let seed = seed.wrapping_add(number).wrapping_mul(16);
            let seen = self.try_once(program, seed)?;
            if seen.is_some() {
                return Ok(seen);
            }
        }
        Ok(None)
    }

    fn try_once(self, program: &Path, seed: u64) -> Result<Option<String>, String> {
        let mut random = Random::new(seed);
        let life = match self {
            Planted::Syncs(_) => record(program, seed, Shape::of(seed), None)?,
            Planted::Bend(bend) => record(program, seed, Shape::of(seed), Some(bend))?,
            Planted::KilledAndBent(bend) => {
                let mut tally = Tally::default();
                let killed = kill(program, seed, 0, None, Some(bend), &mut random, &mut tally);
                return Ok(killed.err());
            }
            Planted::FaultsUnsaid => {
                let disk = VolatileDisk::recording(Volume::default());
                for number in 1..40 {
                    let seed = random.number();
                    disk.fail_at(number * 20, Fault::Unsaid { seed });
                }
                live_with_faults(program, seed, &disk)?
            }
        };
        let syncs = match self {
            Planted::Syncs(syncs) => syncs,
            _ => Syncs::Obeyed,
        };
        Ok(first_broken(program, &life, syncs, &mut random))
    }
}

/// What was acknowledged is there after a power loss.
pub const RULE_DURABLE: &str = "what was acknowledged survives a power loss at any step";
/// No epoch is used again.
pub const RULE_EPOCHS: &str = "no epoch that was told or seen is granted again";
/// A change is there whole or not at all.
pub const RULE_WHOLE: &str = "a change is there whole or not at all, with its audit record";
/// The store goes on.
pub const RULE_SOUND: &str =
    "the file is sound afterwards and the store works on, also when its recovery is cut";
/// Killed processes.
pub const RULE_KILLED: &str = "a process killed in a write or a sync takes nothing along, and others go on without opening again";
/// Failed writes and syncs.
pub const RULE_FAULTS: &str =
    "after a failed write or sync nothing acknowledged is lost, then or in a later power loss";

fn first_broken(
    program: &Path,
    life: &Recorded,
    syncs: Syncs,
    random: &mut Random,
) -> Option<String> {
    let mut cuts = pick(&life.steps(), CUTS, random);
    // Faults and unsynced files show best when all is lost, and at the end.
    for (index, cut) in cuts.iter_mut().enumerate() {
        if index % 2 == 0 {
            cut.loss = Loss::Everything;
        }
    }
    let after_fault = faults_in(&life.log).last().unwrap_or(0);
    cuts.push(Cut {
        at: after_fault.max(life.log.len() / 2),
        loss: Loss::Everything,
        seed: 1,
    });
    let mut seen = None;
    leave(life, cuts, syncs, |left| {
        let cut = left.cut;
        let judged = check(program, left.volume, left.expected, 1);
        seen = judged
            .err()
            .map(|what| format!("{:?} lost at {}: {what}", cut.loss, cut.at));
        seen.is_none()
    });
    seen
}
