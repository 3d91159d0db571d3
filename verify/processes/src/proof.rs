//! A run with the check, one without, the forgeries, and the evidence of it all.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use aster_evidence::Evidence;

use crate::check::{Checked, Rule, check, check_without_revisions};
use crate::conductor::{Ran, RunError, Settings, run};
use crate::forge::FORGERIES;
use crate::history::History;
use crate::member::Orders;

/// How long both runs go on together if nobody says otherwise, in seconds.
pub const SECONDS: u64 = 60;
/// A run is not shorter than this, in seconds: some takeovers have to happen in it.
const SECONDS_MIN: u64 = 12;
/// The run without the check goes on for this part of the whole, and not longer than this.
const UNFENCED_PART: u64 = 4;
const UNFENCED_SECONDS_MAX: u64 = 60;
/// About how long a run takes to end, in seconds.
const ENDING_SECONDS: u64 = 4;

const UNFENCED: &str = "the same workload with the check switched off";

/// What is to be proven, and how long it may take.
#[derive(Debug, Clone)]
pub struct Order {
    /// The seed of the plans.
    pub seed: u64,
    /// How long all of it takes, about, in seconds.
    pub seconds: u64,
    /// Only the run without the check.
    pub unfenced_only: bool,
    /// Where the histories are kept; an empty directory, or one to be made.
    pub keep: Option<PathBuf>,
}

impl Order {
    /// The command that repeats it.
    #[must_use]
    pub fn command(&self) -> String {
        let unfenced = match self.unfenced_only {
            true => " --unfenced",
            false => "",
        };
        format!(
            "cargo run --release -p aster-processes -- --seconds {} --seed {}{unfenced}",
            self.seconds, self.seed
        )
    }
}

/// Runs it, with `program` as every process. What was broken is in the evidence, and then the histories
/// are kept: the evidence says where.
///
/// # Errors
///
/// [`RunError`] when a run cannot go on or its histories cannot be read.
pub fn prove(order: &Order, program: &Path) -> Result<Evidence, RunError> {
    let mut evidence = Evidence::new(
        "processes",
        "real processes on one SQLite file, stopped for 5 s and killed while they take over",
        &order.command(),
    );
    evidence.seed(order.seed);
    let place = Place::make(order.keep.clone())?;
    let unfenced_s = (order.seconds / UNFENCED_PART)
        .saturating_sub(ENDING_SECONDS)
        .clamp(SECONDS_MIN, UNFENCED_SECONDS_MAX);
    if !order.unfenced_only {
        let settings = Settings {
            seconds: order
                .seconds
                .saturating_sub(unfenced_s + 2 * ENDING_SECONDS)
                .max(SECONDS_MIN),
            ..Settings::new(order.seed)
        };
        let directory = place.part("fenced")?;
        let ran = run(&settings, program, &directory)?;
        let history = History::read(&Orders::histories(&directory))?;
        judge_fenced(&mut evidence, &ran, &history);
    }
    let settings = Settings {
        seconds: match order.unfenced_only {
            true => order.seconds.saturating_sub(ENDING_SECONDS).max(SECONDS_MIN),
            false => unfenced_s,
        },
        is_fenced: false,
        ..Settings::new(order.seed)
    };
    let directory = place.part("unfenced")?;
    let ran = run(&settings, program, &directory)?;
    let history = History::read(&Orders::histories(&directory))?;
    judge_unfenced(&mut evidence, &ran, &history);
    for what in [
        "the order in which the kernel runs the processes: a seed repeats the plan of the faults, not the schedule",
        "loss of power and of what was not synced (verify/crash does that)",
        "other file systems than that of the temporary directory, and processes on different kernels",
    ] {
        evidence.not_covered(what);
    }
    if !evidence.is_sound() {
        evidence.broken(format!(
            "the histories are kept: cargo run -p aster-processes -- check {}",
            place.keep().display()
        ));
    }
    Ok(evidence)
}

/// Judges a history that was kept in `directory`, with what its run had.
///
/// # Errors
///
/// [`RunError`] when there is none, or when it cannot be read.
pub fn check_again(directory: &Path) -> Result<(Settings, Checked), RunError> {
    let settings = Settings::read(directory)?;
    let history = History::read(&Orders::histories(directory))?;
    Ok((settings, check(&history)))
}

fn judge_fenced(evidence: &mut Evidence, ran: &Ran, history: &History) {
    let checked = check(history);
    let figures = checked.figures;
    for (what, times) in [
        ("operations answered", figures.answered),
        ("operations that nobody knows the end of", figures.unknown),
        ("processes started", ran.started),
        ("times a process was stopped for 5 s", ran.stops),
        ("… with a write on its way", ran.stops_before_a_write),
        ("processes killed", ran.kills),
        ("… that had a write on its way", ran.kills_before_a_write),
        ("leases granted", figures.grants),
        ("… by taking over from an owner that was silent", figures.takeovers),
        ("leases revoked", figures.revokes),
        ("protected writes accepted", figures.accepted),
        ("… that released in the same step", figures.releases_with_a_value),
        ("late writes rejected", figures.late),
        ("reads", figures.reads),
        ("updates acknowledged with the check", checked.updates.acknowledged),
    ] {
        evidence.tried(what, times);
    }
    for failure in &ran.failures {
        evidence.broken(failure.clone());
    }
    for broken in &checked.broken {
        evidence.broken(broken.to_string());
    }
    for broken in check_without_revisions(history) {
        evidence.broken(format!("judged without revisions: {broken}"));
    }
    for (what, times) in [
        ("no owner was taken over from", figures.takeovers),
        ("no late write was rejected", figures.late),
        ("nobody was killed", ran.kills),
        ("nothing was revoked", figures.revokes),
    ] {
        if times == 0 {
            evidence.broken(format!("the run shows nothing: {what}"));
        }
    }
    for rule in Rule::ALL {
        if !checked.breaks(rule) {
            evidence.held(&rule.to_string());
        }
    }
    if ran.failures.is_empty() {
        evidence.held("every resource is granted within 10 s once the faults are over");
    }
    for forgery in FORGERIES {
        let planted = format!("in the recorded history: {}", forgery.what);
        let (is_caught, seen) = match forgery.of(history) {
            None => (false, "nothing in the history can be forged so".to_owned()),
            Some(forged) => {
                let found = check(&forged);
                match found.broken.iter().find(|one| one.rule == forgery.rule) {
                    Some(broken) => (true, first_line(&broken.what)),
                    None => (false, "the history was accepted".to_owned()),
                }
            }
        };
        evidence.control(&forgery.rule.to_string(), &planted, is_caught, &seen);
    }
}

fn judge_unfenced(evidence: &mut Evidence, ran: &Ran, history: &History) {
    let checked = check(history);
    let updates = checked.updates;
    evidence.tried(
        "updates acknowledged without the check",
        updates.acknowledged,
    );
    evidence.tried("… of which were lost", updates.lost);
    for failure in &ran.failures {
        evidence.broken(format!("without the check: {failure}"));
    }
    let lost = format!("{} of {} updates lost", updates.lost, updates.acknowledged);
    evidence.control(
        &Rule::NoLostUpdate.to_string(),
        UNFENCED,
        updates.lost > 0 && checked.breaks(Rule::NoLostUpdate),
        &lost,
    );
    for rule in [
        Rule::Linearizable,
        Rule::NoWriteAfterItsEpoch,
        Rule::EpochsGrow,
    ] {
        let found = checked.broken.iter().find(|broken| broken.rule == rule);
        let seen = found.map_or("the history was accepted".to_owned(), |broken| {
            first_line(&broken.what)
        });
        evidence.control(&rule.to_string(), UNFENCED, found.is_some(), &seen);
    }
}

fn first_line(text: &str) -> String {
    text.lines().next().unwrap_or_default().to_owned()
}

/// Where the runs are.
enum Place {
    Kept(PathBuf),
    Temporary(tempfile::TempDir),
}

impl Place {
    fn make(keep: Option<PathBuf>) -> io::Result<Self> {
        match keep {
            Some(path) => {
                fs::create_dir_all(&path)?;
                Ok(Self::Kept(path))
            }
            None => tempfile::tempdir().map(Self::Temporary),
        }
    }

    fn part(&self, name: &str) -> io::Result<PathBuf> {
        let path = match self {
            Place::Kept(path) => path.join(name),
            Place::Temporary(directory) => directory.path().join(name),
        };
        fs::create_dir(&path)?;
        Ok(path)
    }

    fn keep(self) -> PathBuf {
        match self {
            Place::Kept(path) => path,
            Place::Temporary(directory) => directory.keep(),
        }
    }
}
