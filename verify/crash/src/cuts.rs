//! The power is cut at a step of a life, and again while the store recovers from that.

use std::collections::HashSet;
use std::path::Path;

use crate::disk::VolatileDisk;
use crate::expected::Expected;
use crate::judge::judge;
use crate::lives::{Mounted, Recorded};
use crate::rules::{Broken, Rule};
use crate::store::STORE;
use crate::volume::{Damage, Event, Loss, Volume};
use crate::words::Word;
use aster_evidence::Random;

/// Which syncs the disk obeys. All but the first are there to be noticed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Syncs {
    /// All of them.
    Obeyed,
    /// None.
    Ignored,
    /// All but those of the store's log.
    IgnoredOfLog,
    /// All but those of names.
    IgnoredOfNames,
}

/// Where and how the power is cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cut {
    /// Before this event of the log.
    pub at: usize,
    /// What happens to that which was not synced.
    pub loss: Loss,
    /// Picks what is lost.
    pub seed: u64,
}

/// A cut, what it left, and what must be found there.
#[derive(Debug)]
pub struct Left {
    /// The cut.
    pub cut: Cut,
    /// What it left.
    pub volume: Volume,
    /// What must be found there.
    pub expected: Expected,
}

/// The life after a cut.
#[derive(Debug)]
pub struct Second {
    /// What happened in it.
    pub recorded: Recorded,
    /// What was expected in the beginning…
    pub expected: Expected,
    /// …and what has to stay since all of it was looked at.
    pub settled: Expected,
}

/// What the given cuts of a life leave, in the order of the log. What was there before, with the same told, is
/// left out.
pub fn leave(
    recorded: &Recorded,
    mut cuts: Vec<Cut>,
    syncs: Syncs,
    mut each: impl FnMut(Left) -> bool,
) -> u64 {
    cuts.sort_by_key(|cut| cut.at);
    let mut volume = recorded.start.clone();
    let mut expected = Expected::default();
    let mut at = 0;
    let mut told = 0_u64;
    let mut known = HashSet::new();
    let mut repeated = 0;
    for cut in cuts {
        for event in &recorded.log[at..cut.at.min(recorded.log.len())] {
            if is_obeyed(event, &volume, syncs) {
                volume.apply(event);
            }
            told += u64::from(!event.is_step());
            expected.hear(event);
        }
        at = cut.at.min(recorded.log.len());
        let left = volume.after_cut(cut.loss, cut.seed);
        if !known.insert((left.fingerprint(), told)) {
            repeated += 1;
            continue;
        }
        let left = Left {
            cut,
            volume: left,
            expected: expected.clone(),
        };
        if !each(left) {
            break;
        }
    }
    repeated
}

fn is_obeyed(event: &Event, volume: &Volume, syncs: Syncs) -> bool {
    match (syncs, event) {
        (Syncs::Ignored, Event::Sync { .. } | Event::SyncNames)
        | (Syncs::IgnoredOfNames, Event::SyncNames) => false,
        (Syncs::IgnoredOfLog, Event::Sync { inode }) => {
            volume.find(format!("{STORE}-wal").as_ref()) != Some(*inode)
        }
        _ => true,
    }
}

/// A process of its own opens the store on what a death has left, compares it with what must be there, and
/// works on.
///
/// # Errors
///
/// The rule that is broken, and what was seen.
pub fn check(
    program: &Path,
    volume: Volume,
    expected: Expected,
    boot: u64,
) -> Result<Second, Broken> {
    let disk = VolatileDisk::recording(volume.clone());
    let mounted = Mounted::new(disk.clone()).map_err(|error| Rule::Sound.broken(error))?;
    let settled = judge(program, mounted.path(), &expected, boot)?;
    drop(mounted);
    Ok(Second {
        recorded: Recorded {
            start: volume,
            log: disk.log(),
        },
        expected,
        settled,
    })
}

/// The power is cut once more, in the life after a cut: mostly while the store is being opened. A control
/// damages the store's file then.
///
/// # Errors
///
/// The rule that is broken, and what was seen.
pub fn cut_again(
    program: &Path,
    second: &Second,
    boot: u64,
    damage: Option<Damage>,
    random: &mut Random,
) -> Result<(), Broken> {
    let steps = second.recorded.steps();
    let opened_at = second.recorded.position(&Word::Opened);
    let looked_at = second.recorded.position(&Word::Looked);
    let until = match random.chance(2, 3) {
        true => steps.partition_point(|step| *step <= opened_at).max(1),
        false => steps.len(),
    };
    let at = steps[index(random, until)];
    let cut = Cut {
        at,
        loss: Loss::ALL[index(random, Loss::ALL.len())],
        seed: random.bits(),
    };
    let mut result = Ok(());
    leave(&second.recorded, vec![cut], Syncs::Obeyed, |mut left| {
        if let Some(damage) = damage {
            left.volume.damage(STORE.as_ref(), damage, cut.seed);
        }
        // Told in this life, on top of what was told in the one before.
        let known = match at <= looked_at {
            true => &second.expected,
            false => &second.settled,
        };
        let mut expected = known.clone();
        for event in &second.recorded.log[..at] {
            expected.hear(event);
        }
        result = check(program, left.volume, expected, boot + 1)
            .map(|_| ())
            .map_err(|broken| broken.seen(format!("after a second cut ({cut:?})")));
        false
    });
    result
}

/// So many cuts, everywhere in a log.
pub fn pick(steps: &[usize], count: usize, random: &mut Random) -> Vec<Cut> {
    let mut cuts = Vec::with_capacity(count);
    for _ in 0..count {
        cuts.push(Cut {
            at: steps[index(random, steps.len())],
            loss: Loss::ALL[index(random, Loss::ALL.len())],
            seed: random.bits(),
        });
    }
    cuts
}

/// Any index below `length`.
pub fn index(random: &mut Random, length: usize) -> usize {
    usize::try_from(random.below(length as u64)).unwrap_or(0)
}
