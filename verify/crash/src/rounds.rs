//! One seed's worth of each kind of death.

use std::path::Path;
use std::sync::mpsc::RecvTimeoutError;
use std::time::Duration;

use crate::bend::Bend;
use crate::cuts::{Cut, Syncs, check, cut_again, index, leave, pick};
use crate::disk::{FAULT, Fault, Held, Moment, VolatileDisk};
use crate::lives::{Mounted, Recorded, Shape, Worker, record, said};
use crate::rules::{Broken, Rule};
use crate::store::STORE;
use crate::volume::{Event, Loss, Volume};
use crate::words::Word;
use crate::work::Plan;
use aster_evidence::Random;

/// One seed kills so many processes, or lives so many lives with faults.
const EACH: u64 = 8;
/// Every so many cuts the life after it is cut, too.
const CUT_AGAIN_EVERY: u64 = 3;
/// The steps of a life are about so many; a kill or a fault comes before that.
const STEPS: u64 = 700;
/// The commits of a process that is to be killed are about so many.
const COMMITS: u64 = 30;
/// What follows a kill or a fault is cut more often than the rest.
const AFTERMATH: usize = 60;
const KILL_WAIT: Duration = Duration::from_millis(20);

/// How much was tried.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tally {
    /// Lives that were recorded.
    pub lives: u64,
    /// Steps of a disk in them.
    pub steps: u64,
    /// Power cuts whose remains were judged.
    pub cuts: u64,
    /// Those that left the same as an earlier one.
    pub repeated: u64,
    /// Second cuts, in the life after a cut.
    pub second_cuts: u64,
    /// Acknowledgements that had to be found again, over all cuts.
    pub acknowledged: u64,
    /// Processes that were killed in a write or a sync.
    pub kills: u64,
    /// Of those, with another process at work that went on.
    pub survived: u64,
    /// Writes and syncs that failed.
    pub faults: u64,
    /// Requests that were told of a failure.
    pub failures: u64,
}

impl Tally {
    /// Both together.
    pub fn add(&mut self, other: &Self) {
        self.lives += other.lives;
        self.steps += other.steps;
        self.cuts += other.cuts;
        self.repeated += other.repeated;
        self.second_cuts += other.second_cuts;
        self.acknowledged += other.acknowledged;
        self.kills += other.kills;
        self.survived += other.survived;
        self.faults += other.faults;
        self.failures += other.failures;
    }
}

/// What a round tries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A whole life, cut anywhere.
    Power,
    /// A process is killed in a write or a sync; others go on and a new one comes; the power is cut later.
    Kill,
    /// Writes and syncs fail; the process goes on; the power is cut later.
    Fault,
}

impl Kind {
    /// What a seed tries.
    #[must_use]
    pub fn of(seed: u64) -> Self {
        match seed % 4 {
            0 | 1 => Kind::Power,
            2 => Kind::Kill,
            _ => Kind::Fault,
        }
    }
}

/// Runs what `seed` picks, with about so many cuts. With `only` there is one cut, before that event of the log,
/// in every way.
///
/// # Errors
///
/// The rule that is broken, and what was seen.
pub fn run(
    program: &Path,
    seed: u64,
    cuts: usize,
    only: Option<usize>,
    tally: &mut Tally,
) -> Result<(), Broken> {
    let mut random = Random::new(seed);
    match Kind::of(seed) {
        Kind::Power => {
            let life = record(program, seed, Shape::of(seed), None).map_err(text)?;
            judge_cuts(program, &life, cuts, &[], only, &mut random, tally)
        }
        Kind::Kill => {
            for number in 0..EACH {
                let seed = seed.wrapping_add(number << 32);
                let cuts = cuts.div_ceil(EACH as usize);
                kill(program, seed, cuts, only, None, &mut random, tally)?;
            }
            Ok(())
        }
        Kind::Fault => {
            for number in 0..EACH {
                let seed = seed.wrapping_add(number << 32);
                let cuts = cuts.div_ceil(EACH as usize);
                fault(program, seed, cuts, only, &mut random, tally)?;
            }
            Ok(())
        }
    }
}

/// Judges cuts of a life: half of them soon after one of `moments`, if there are any.
///
/// # Errors
///
/// The rule that is broken, and what was seen.
pub fn judge_cuts(
    program: &Path,
    life: &Recorded,
    count: usize,
    moments: &[usize],
    only: Option<usize>,
    random: &mut Random,
    tally: &mut Tally,
) -> Result<(), Broken> {
    let steps = life.steps();
    tally.lives += 1;
    tally.steps += steps.len() as u64;
    let cuts = match only {
        Some(at) => {
            let seed = random.bits();
            Loss::ALL.map(|loss| Cut { at, loss, seed }).to_vec()
        }
        None => {
            let mut cuts = pick(&steps, count, random);
            for cut in cuts.iter_mut().step_by(2) {
                if !moments.is_empty() {
                    let moment = moments[index(random, moments.len())];
                    cut.at = (moment + index(random, AFTERMATH)).min(life.log.len());
                }
            }
            cuts
        }
    };
    let mut result = Ok(());
    let repeated = leave(life, cuts, Syncs::Obeyed, |left| {
        let cut = left.cut;
        tally.cuts += 1;
        tally.acknowledged += left.expected.acknowledged();
        result = check(program, left.volume, left.expected, 1).and_then(|second| {
            if tally.cuts.is_multiple_of(CUT_AGAIN_EVERY) {
                tally.second_cuts += 1;
                cut_again(program, &second, 1, None, random)?;
            }
            Ok(())
        });
        if let Err(what) = &result {
            result = Err(what
                .clone()
                .seen(format!("--cut {} ({:?})", cut.at, cut.loss)));
        }
        result.is_ok()
    });
    tally.repeated += repeated;
    result
}

/// A process is killed in a write or a sync, while another one works or alone; then its successor comes at
/// once. Nobody hears of a failure, and nothing is lost.
///
/// # Errors
///
/// The rule that is broken, and what was seen.
pub fn kill(
    program: &Path,
    seed: u64,
    cuts: usize,
    only: Option<usize>,
    bend: Option<Bend>,
    random: &mut Random,
    tally: &mut Tally,
) -> Result<(), Broken> {
    let shape = Shape {
        processes: 2,
        callers: 3,
        turns: 10,
    };
    let disk = VolatileDisk::recording(Volume::default());
    let mounted = Mounted::new(disk.clone()).map_err(text)?;
    let start = |process, life, turns| {
        let plan = Plan {
            bend,
            turns,
            ..shape.plan(seed, process, life)
        };
        Worker::start(program, mounted.path(), &plan).map_err(text)
    };
    let survivor = match random.chance(1, 2) {
        true => Some(start(1, 0, shape.turns * 3)?),
        false => None,
    };
    let mut victim = start(0, 0, shape.turns)?;
    // Half of them while a commit is on its way to the disk.
    let moment = match random.chance(1, 2) {
        true => Moment::Step(random.below(STEPS)),
        false => Moment::SyncOf(format!("{STORE}-wal"), random.below(COMMITS)),
    };
    let held = disk.hold(victim.id(), moment);
    let is_killed = loop {
        match held.recv_timeout(KILL_WAIT) {
            Ok(()) => break true,
            Err(RecvTimeoutError::Timeout) if !victim.has_ended() => {}
            Err(_) => break false,
        }
    };
    victim.kill();
    let outcome = [Held::Done, Held::Undone, Held::Half][index(random, 3)];
    disk.release(outcome);
    victim.wait().map_err(text)?;
    let killed_at = disk.log_length();
    tally.kills += u64::from(is_killed);
    tally.survived += u64::from(is_killed && survivor.is_some());
    start(0, 1, 4)?.finish().map_err(text)?;
    if let Some(survivor) = survivor {
        survivor.finish().map_err(text)?;
    }
    drop(mounted);
    let life = Recorded {
        start: Volume::default(),
        log: disk.log(),
    };
    let failed = life
        .words()
        .find(|line| matches!(line.word, Word::Failed(_) | Word::NotOpened(_)));
    if let Some(line) = failed {
        return Err(Rule::Killed.broken(format!("it made others fail: {line:?}")));
    }
    // All processes are dead now, and the page cache is as they left it.
    let end = Cut {
        at: life.log.len(),
        loss: Loss::Nothing,
        seed: 0,
    };
    let mut result = Ok(());
    leave(&life, vec![end], Syncs::Obeyed, |left| {
        tally.acknowledged += left.expected.acknowledged();
        result = check(program, left.volume, left.expected, 0).map(|_| ());
        false
    });
    result.map_err(|broken| Rule::Killed.broken(broken).seen("after a kill"))?;
    judge_cuts(program, &life, cuts, &[killed_at], only, random, tally)
}

/// Writes and syncs fail, once or for good; the processes go on as they can.
fn fault(
    program: &Path,
    seed: u64,
    cuts: usize,
    only: Option<usize>,
    random: &mut Random,
    tally: &mut Tally,
) -> Result<(), Broken> {
    let is_for_good = random.chance(1, 6);
    let disk = VolatileDisk::recording(Volume::default());
    if is_for_good {
        disk.die_at(random.below(STEPS));
    }
    for _ in 0..=random.below(4) {
        let fault = match random.below(5) {
            0 => Fault::Full,
            1 => Fault::Short,
            _ => Fault::Io {
                seed: random.bits(),
            },
        };
        disk.fail_at(random.below(STEPS), fault);
    }
    let life = live_with_faults(program, seed, &disk)?;
    let moments: Vec<_> = faults_in(&life.log).collect();
    tally.faults += moments.len() as u64;
    let words = said(&life.log);
    tally.failures += words
        .filter(|line| matches!(line.word, Word::Failed(_)))
        .count() as u64;
    judge_cuts(program, &life, cuts, &moments, only, random, tally)?;
    if is_for_good || moments.is_empty() {
        return Ok(());
    }
    goes_on_after_faults(&life)
}

/// A life on a disk whose faults are set.
///
/// # Errors
///
/// If a process does not end.
pub fn live_with_faults(
    program: &Path,
    seed: u64,
    disk: &VolatileDisk,
) -> Result<Recorded, Broken> {
    let shape = Shape::of(seed.wrapping_add((seed >> 32) * 4));
    let mounted = Mounted::new(disk.clone()).map_err(text)?;
    let mut workers = Vec::new();
    for process in 0..shape.processes {
        let plan = shape.plan(seed, process, 0);
        workers.push(Worker::start(program, mounted.path(), &plan).map_err(text)?);
    }
    for worker in workers {
        worker.finish().map_err(text)?;
    }
    drop(mounted);
    Ok(Recorded {
        start: Volume::default(),
        log: disk.log(),
    })
}

/// Where in a log a write or a sync failed.
pub fn faults_in(log: &[Event]) -> impl Iterator<Item = usize> {
    let events = log.iter().enumerate();
    events
        .filter(|(_, event)| matches!(event, Event::Told(text) if text == FAULT))
        .map(|(index, _)| index)
}

/// A fault that has passed is over: who had opened the store gets answers again, without opening it again.
fn goes_on_after_faults(life: &Recorded) -> Result<(), Broken> {
    let is_opened = life
        .words()
        .all(|line| !matches!(line.word, Word::NotOpened(_)));
    let last = faults_in(&life.log).last().unwrap_or(0);
    let after: Vec<_> = said(&life.log[last..]).collect();
    let failures = after
        .iter()
        .filter(|line| matches!(line.word, Word::Failed(_)));
    let asked = after
        .iter()
        .filter(|line| matches!(line.word, Word::Asks(_)));
    let (failures, asked) = (failures.count(), asked.count());
    if is_opened && asked > 40 && failures * 2 > asked {
        return Err(Rule::Faults.broken(format!(
            "after the last fault {failures} of {asked} requests failed"
        )));
    }
    Ok(())
}

/// Without any fault of the disk everybody works and ends.
fn text(error: impl std::fmt::Display) -> Broken {
    Rule::Sound.broken(error)
}
