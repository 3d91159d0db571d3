//! What is broken on purpose: the checks must notice each of these, under the rule that it breaks.

use std::path::Path;

use crate::bend::Bend;
use crate::cuts::{Cut, Syncs, check, cut_again, leave, pick};
use crate::disk::{Fault, VolatileDisk};
use crate::lives::{Recorded, Shape, record};
use crate::rounds::{Tally, faults_in, kill, live_with_faults};
use crate::rules::{Broken, Rule};
use crate::store::STORE;
use crate::volume::{Damage, Loss, Volume};
use aster_evidence::Random;

/// How many lives and kills a control may take until it is noticed.
const TRIES: u64 = 20;
/// How many cuts of a life.
const CUTS: usize = 60;

/// Something broken on purpose.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Planted {
    /// The disk ignores syncs, or some of them.
    Syncs(Syncs),
    /// The disk damages what was synced.
    Disk(Damage),
    /// The disk damages what was synced when the recovery is cut.
    DiskInRecovery(Damage),
    /// A process is broken.
    Bend(Bend),
    /// A process is broken and is killed.
    KilledAndBent(Bend),
    /// A sync fails and does not say so: what a store does that goes on as if nothing had happened.
    FaultsUnsaid,
}

impl Planted {
    /// All of them.
    pub const ALL: [Planted; 16] = [
        Planted::Syncs(Syncs::Ignored),
        Planted::Syncs(Syncs::IgnoredOfLog),
        Planted::Syncs(Syncs::IgnoredOfNames),
        Planted::Bend(Bend::TellsTooEarly),
        Planted::Bend(Bend::FloorAfterDrop),
        Planted::Bend(Bend::AuditLater),
        Planted::Bend(Bend::RevisionLater),
        Planted::Bend(Bend::TablesApart),
        Planted::Bend(Bend::ReleaseLater),
        Planted::Disk(Damage::Swapped),
        Planted::Disk(Damage::Torn),
        Planted::Disk(Damage::Headless),
        Planted::DiskInRecovery(Damage::Headless),
        Planted::KilledAndBent(Bend::TellsTooEarly),
        Planted::KilledAndBent(Bend::RemovesLog),
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
            Planted::Disk(Damage::Swapped) => "two synced pages change places",
            Planted::Disk(Damage::Torn) => "half of a synced page is gone",
            Planted::Disk(Damage::Headless) => "the first page is gone, so the store does not open",
            Planted::DiskInRecovery(_) => "a page is gone when the recovery is cut",
            Planted::Bend(bend) => bend.what(),
            Planted::KilledAndBent(Bend::TellsTooEarly) => {
                "a write is acknowledged before it is committed, and its process killed"
            }
            Planted::KilledAndBent(Bend::RemovesLog) => {
                "whoever comes after a killed process removes the log that it left"
            }
            Planted::KilledAndBent(bend) => bend.what(),
            Planted::FaultsUnsaid => "a failed sync is taken for a good one",
        }
    }

    /// The rule that it breaks.
    #[must_use]
    pub fn rule(self) -> Rule {
        match self {
            Planted::Syncs(_) | Planted::Bend(Bend::TellsTooEarly | Bend::RemovesLog) => {
                Rule::Durable
            }
            Planted::Bend(Bend::FloorAfterDrop) => Rule::Epochs,
            Planted::Bend(
                Bend::AuditLater | Bend::RevisionLater | Bend::TablesApart | Bend::ReleaseLater,
            ) => Rule::Whole,
            Planted::Disk(_) | Planted::DiskInRecovery(_) => Rule::Sound,
            Planted::KilledAndBent(_) => Rule::Killed,
            Planted::FaultsUnsaid => Rule::Faults,
        }
    }

    /// Tries until it is noticed under its rule: how, or `None`.
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
            Planted::Syncs(_) | Planted::Disk(_) | Planted::DiskInRecovery(_) => {
                record(program, seed, Shape::of(seed), None)?
            }
            Planted::Bend(bend) => record(program, seed, Shape::of(seed), Some(bend))?,
            Planted::KilledAndBent(bend) => {
                let mut tally = Tally::default();
                let killed = kill(program, seed, 0, None, Some(bend), &mut random, &mut tally);
                let broken = killed.err().filter(|broken| broken.rule == Rule::Killed);
                return Ok(broken.map(|broken| broken.what));
            }
            Planted::FaultsUnsaid => {
                let disk = VolatileDisk::recording(Volume::default());
                for number in 1..40 {
                    let seed = random.bits();
                    disk.fail_at(number * 20, Fault::Unsaid { seed });
                }
                live_with_faults(program, seed, &disk)?
            }
        };
        Ok(self.first_broken(program, &life, &mut random))
    }

    /// The first cut of a life after which its rule is seen broken.
    fn first_broken(self, program: &Path, life: &Recorded, random: &mut Random) -> Option<String> {
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
        let syncs = match self {
            Planted::Syncs(syncs) => syncs,
            _ => Syncs::Obeyed,
        };
        // In a life with faults nothing acknowledged may be lost, and that is seen as everywhere else.
        let rule = match self.rule() {
            Rule::Faults => Rule::Durable,
            rule => rule,
        };
        let mut seen = None;
        leave(life, cuts, syncs, |mut left| {
            let cut = left.cut;
            if let Planted::Disk(damage) = self {
                left.volume.damage(STORE.as_ref(), damage, cut.seed);
            }
            let judged = check(program, left.volume, left.expected, 1).and_then(|second| {
                let Planted::DiskInRecovery(damage) = self else {
                    return Ok(());
                };
                cut_again(program, &second, 1, Some(damage), random)
            });
            seen = judged
                .err()
                .filter(|broken| broken.rule == rule)
                .map(|Broken { what, .. }| format!("{:?} lost at {}: {what}", cut.loss, cut.at));
            seen.is_none()
        });
        seen
    }
}
