//! Runs with the check, runs without it or with it in the wrong place, the forgeries, and the evidence of
//! it all.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use aster_evidence::{Deadline, Evidence};

use crate::check::{Broken, Checked, Rule, Updates, check, check_without_revisions};
use crate::conductor::{Ran, RunError, Settings, run};
use crate::forge::FORGERIES;
use crate::history::History;
use crate::orders::Orders;
use crate::storage::Check;

/// How long it goes on if nobody says otherwise, in seconds.
pub const SECONDS: u64 = 45;
/// A run is not shorter than this, in seconds: some takeovers have to happen in it.
const RUN_SECONDS_MIN: u64 = 15;
/// A run is not longer than this, in seconds; then the next ones begin, with other seeds.
const RUN_SECONDS_MAX: u64 = 60;
/// About how long a run takes to end, in seconds.
const ENDING_SECONDS: u64 = 5;
/// How many runs with the check there are at any time; one of each wrong kind goes on beside them.
const FENCED_AT_ONCE: usize = 3;

/// What takes the check's place in the runs that have to go wrong.
const WRONG: [(Check, &str, &str); 2] = [
    (
        Check::Never,
        "without the check",
        "the same workload with the check switched off",
    ),
    (
        Check::Before,
        "with a check before the write",
        "the same workload with the row checked before the write instead of in it",
    ),
];
/// The rules that such runs have to break.
const WRONG_BREAKS: [Rule; 4] = [
    Rule::NoLostUpdate,
    Rule::NoWriteAfterItsEpoch,
    Rule::EpochsGrow,
    Rule::Linearizable,
];

/// What the runs show besides what the histories tell.
const LIVELY: &str =
    "once the faults are over every process ends when told, and every resource is granted";
/// A ttl that outlasts a run: whoever is killed then leaves a resource that nobody gets.
const OUTLASTING_TTL_MS: u64 = 600_000;

/// What is to be proven, and how long it may take.
#[derive(Debug, Clone)]
pub struct Order {
    /// The seed of the first run; each further run has the next one.
    pub seed: u64,
    /// How long all of it takes, about, in seconds.
    pub seconds: u64,
    /// Only the runs that have to go wrong.
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
    let deadline = Deadline::after_s(order.seconds);
    let place = Place::make(order.keep.clone())?;
    let mut proof = Proof::new(order);
    let mut seed = order.seed;
    let mut control = (!order.unfenced_only).then(|| Settings {
        seconds: RUN_SECONDS_MIN,
        ttl_ms: OUTLASTING_TTL_MS,
        ..Settings::new(seed)
    });
    loop {
        let seconds = deadline
            .left()
            .as_secs()
            .saturating_sub(ENDING_SECONDS)
            .clamp(RUN_SECONDS_MIN, RUN_SECONDS_MAX);
        let fenced = match order.unfenced_only {
            true => 0,
            false => FENCED_AT_ONCE,
        };
        let checks = std::iter::repeat_n(Check::Within, fenced)
            .chain(WRONG.into_iter().map(|(check, _, _)| check));
        let round: Vec<_> = (0..)
            .zip(checks)
            .map(|(number, check)| Settings {
                seconds,
                check,
                ..Settings::new(seed.wrapping_add(number))
            })
            .chain(control.take())
            .collect();
        for (settings, ran) in round.iter().zip(run_together(&round, program, &place)?) {
            let directory = place.of(settings);
            let history = History::read(&Orders::histories(&directory))?;
            proof.judge(settings, &ran, &history);
        }
        seed = seed.wrapping_add(round.len() as u64);
        let left_s = deadline.left().as_secs();
        if left_s < RUN_SECONDS_MIN + ENDING_SECONDS || proof.is_broken() {
            return Ok(proof.conclude(place));
        }
    }
}

/// Each run has a thread of its own for as long as it lasts: its processes end with that thread.
fn run_together(round: &[Settings], program: &Path, place: &Place) -> Result<Vec<Ran>, RunError> {
    std::thread::scope(|scope| {
        let running: Vec<_> = round
            .iter()
            .map(|settings| {
                let directory = place.of(settings);
                scope.spawn(move || {
                    fs::create_dir(&directory)?;
                    run(settings, program, &directory)
                })
            })
            .collect();
        let ended = running.into_iter().map(|one| one.join());
        ended
            .map(|ended| ended.unwrap_or(Err(RunError::Panicked)))
            .collect()
    })
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

/// Something broken on purpose: in how many histories it could be tried, and in how many of them it
/// was noticed.
#[derive(Debug, Clone, Default)]
struct Control {
    tried: u64,
    caught: u64,
    seen: Option<String>,
}

impl Control {
    fn note(&mut self, found: Option<&Broken>) {
        self.tried += 1;
        if let Some(broken) = found {
            self.caught += 1;
            let first = broken.what.lines().next().unwrap_or_default();
            self.seen.get_or_insert_with(|| first.to_owned());
        }
    }

    /// `needed` says in how many histories it has to be noticed.
    fn conclude(&self, evidence: &mut Evidence, rule: Rule, planted: &str, needed: u64) {
        let Self {
            tried,
            caught,
            seen,
        } = self;
        let seen = seen.as_deref().unwrap_or("never");
        let seen = format!("noticed in {caught} of {tried} histories, such as {seen}");
        let is_caught = *caught > 0 && *caught >= needed;
        evidence.control(&rule.to_string(), planted, is_caught, &seen);
    }
}

/// What has been seen so far.
struct Proof {
    evidence: Evidence,
    has_fenced: bool,
    has_failures: bool,
    shown: Shown,
    broken: BTreeSet<Rule>,
    forgeries: [Control; FORGERIES.len()],
    wrong: [([Control; WRONG_BREAKS.len()], Updates); WRONG.len()],
    /// What was noticed of leases that outlast their run.
    unending: Option<String>,
}

/// What has to happen, or the runs show nothing.
#[derive(Debug, Clone, Copy, Default)]
struct Shown {
    takeovers: u64,
    late: u64,
    stops: u64,
    kills: u64,
    revokes: u64,
    long_uses: u64,
}

impl Proof {
    fn new(order: &Order) -> Self {
        Self {
            evidence: Evidence::new(
                "processes",
                "real processes on one SQLite file, stopped for 5 s and killed while they take over",
                &order.command(),
            ),
            has_fenced: !order.unfenced_only,
            has_failures: false,
            shown: Shown::default(),
            broken: BTreeSet::new(),
            forgeries: Default::default(),
            wrong: Default::default(),
            unending: None,
        }
    }

    fn is_broken(&self) -> bool {
        !self.evidence.broken.is_empty()
    }

    fn judge(&mut self, settings: &Settings, ran: &Ran, history: &History) {
        if settings.ttl_ms == OUTLASTING_TTL_MS {
            self.unending = ran.failures.first().cloned();
            return;
        }
        self.evidence.seed(settings.seed);
        let name = Place::name(settings);
        for failure in &ran.failures {
            self.evidence.broken(format!("{name}: {failure}"));
            self.has_failures = true;
        }
        match WRONG
            .iter()
            .position(|(check, _, _)| *check == settings.check)
        {
            None => self.judge_fenced(settings, ran, history),
            Some(kind) => self.judge_wrong(kind, history),
        }
    }

    fn judge_fenced(&mut self, settings: &Settings, ran: &Ran, history: &History) {
        let name = Place::name(settings);
        let checked = check(history);
        let figures = checked.figures;
        for (what, times) in [
            ("operations answered", figures.answered),
            ("runs with the check", 1),
            ("operations whose end nobody knows", figures.unknown),
            ("processes started", ran.started),
            ("times that a process was stopped for 5 s", ran.stops),
            (
                "… with its fence in hand and a write to send",
                ran.stops_before_a_write,
            ),
            ("… while it sent a write", ran.stops_in_a_write),
            ("processes killed", ran.kills),
            ("… in the middle of a write", ran.kills_in_a_write),
            ("leases granted", figures.grants),
            ("… by taking over from a silent owner", figures.takeovers),
            (
                "… written under for longer than their ttl",
                checked.long_uses(settings.ttl_ms),
            ),
            ("leases revoked", figures.revokes),
            ("protected writes accepted", figures.accepted),
            (
                "… that released in the same step",
                figures.releases_with_a_value,
            ),
            ("late writes rejected", figures.late),
            ("reads", figures.reads),
            (
                "updates acknowledged with the check",
                checked.updates.acknowledged,
            ),
            ("… of which were lost", checked.updates.lost),
        ] {
            self.evidence.tried(what, times);
        }
        self.shown.takeovers += figures.takeovers;
        self.shown.late += figures.late;
        self.shown.stops += ran.stops;
        self.shown.kills += ran.kills;
        self.shown.long_uses += checked.long_uses(settings.ttl_ms);
        self.shown.revokes += figures.revokes;
        for broken in &checked.broken {
            self.broken.insert(broken.rule);
            self.evidence.broken(format!("{name}: {broken}"));
        }
        for broken in check_without_revisions(history) {
            self.broken.insert(broken.rule);
            self.evidence
                .broken(format!("{name}: judged without revisions: {broken}"));
        }
        for (forgery, control) in FORGERIES.iter().zip(&mut self.forgeries) {
            if let Some(forged) = forgery.of(history) {
                let checked = check(&forged);
                control.note(checked.first(forgery.rule));
            }
        }
    }

    fn judge_wrong(&mut self, kind: usize, history: &History) {
        let (Some((_, name, _)), Some((controls, sum))) =
            (WRONG.get(kind), self.wrong.get_mut(kind))
        else {
            return;
        };
        let checked = check(history);
        let Updates { acknowledged, lost } = checked.updates;
        for (what, times) in [
            (format!("runs {name}"), 1),
            (format!("updates acknowledged {name}"), acknowledged),
            (format!("… of which were lost {name}"), lost),
        ] {
            self.evidence.tried(&what, times);
        }
        sum.add(checked.updates);
        for (rule, control) in WRONG_BREAKS.into_iter().zip(controls) {
            control.note(checked.first(rule));
        }
    }

    fn conclude(mut self, place: Place) -> Evidence {
        let evidence = &mut self.evidence;
        if self.has_fenced {
            for (what, times) in [
                ("no owner was taken over from", self.shown.takeovers),
                ("no late write was rejected", self.shown.late),
                ("nobody was stopped", self.shown.stops),
                ("nobody was killed", self.shown.kills),
                ("nothing was revoked", self.shown.revokes),
                ("no lease had to be renewed", self.shown.long_uses),
            ] {
                if times == 0 {
                    evidence.broken(format!("the runs show nothing: {what}"));
                }
            }
            for rule in Rule::ALL {
                if !self.broken.contains(&rule) {
                    evidence.held(&rule.to_string());
                }
            }
            if !self.has_failures {
                evidence.held(LIVELY);
            }
            let seen = self.unending.as_deref().unwrap_or("never");
            let planted = "leases that outlast the run, whose holders are killed";
            evidence.control(LIVELY, planted, self.unending.is_some(), seen);
            for (forgery, control) in FORGERIES.iter().zip(&self.forgeries) {
                let planted = format!("in the recorded histories: {}", forgery.what);
                control.conclude(evidence, forgery.rule, &planted, control.tried);
            }
        }
        for ((_, _, planted), (controls, updates)) in WRONG.iter().zip(&self.wrong) {
            let Updates { acknowledged, lost } = updates;
            let planted = format!("{planted}: {lost} of {acknowledged} updates lost");
            for (rule, control) in WRONG_BREAKS.into_iter().zip(controls) {
                // What such a run breaks is up to the schedule.
                control.conclude(evidence, rule, &planted, 1);
            }
        }
        for what in [
            "how the kernel schedules the processes: a seed repeats the plan of the faults, not the schedule",
            "loss of power and of what was not synced (verify/crash does that)",
            "file systems other than the temporary directory's",
        ] {
            evidence.not_covered(what);
        }
        if !evidence.is_sound() {
            let kept = place.keep();
            evidence.broken(format!(
                "the histories are kept; judge one again with: cargo run -p aster-processes -- check {}/RUN",
                kept.display()
            ));
        }
        self.evidence
    }
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

    /// A run's name, and that of its directory.
    fn name(settings: &Settings) -> String {
        let kind = match settings.check {
            Check::Within if settings.ttl_ms == OUTLASTING_TTL_MS => "outlasting",
            Check::Within => "fenced",
            Check::Before => "checked-before",
            Check::Never => "unfenced",
        };
        format!("{kind}-{}", settings.seed)
    }

    fn of(&self, settings: &Settings) -> PathBuf {
        let name = Self::name(settings);
        match self {
            Place::Kept(path) => path.join(name),
            Place::Temporary(directory) => directory.path().join(name),
        }
    }

    fn keep(self) -> PathBuf {
        match self {
            Place::Kept(path) => path,
            Place::Temporary(directory) => directory.keep(),
        }
    }
}
