//! What was tried and what became of it.

use aster_evidence::Evidence;

use super::accepted::Accepted;
use super::tool::{Mutant, Verdict};
use super::wish::Wish;
use super::{ACCEPTED, TARGETS};

pub(crate) struct Report<'a> {
    all: &'a [Mutant],
    accepted: &'a Accepted,
    evidence: Evidence,
    tried: usize,
    counts: Counts,
}

#[derive(Default)]
struct Counts {
    failed: u64,
    timed_out: u64,
    unviable: u64,
    accepted: u64,
    unexplained: u64,
}

impl<'a> Report<'a> {
    pub(crate) fn new(wish: &Wish, all: &'a [Mutant], accepted: &'a Accepted) -> Self {
        let mut evidence = Evidence::new(
            "mutants",
            "the rules and the engine changed a bit at a time, under their own tests",
            &wish.command(),
        );
        if wish.seconds.is_some() {
            evidence.seed(format!("--seed {}", wish.seed));
        }
        for (entry, count) in accepted.stale(all) {
            evidence.broken(match count {
                0 => format!(
                    "{ACCEPTED} accepts a change that does not exist any more: {}",
                    entry.name()
                ),
                _ => format!(
                    "{ACCEPTED} means {count} changes with one entry: {}",
                    entry.name()
                ),
            });
        }
        Self {
            all,
            accepted,
            evidence,
            tried: 0,
            counts: Counts::default(),
        }
    }

    pub(crate) fn control(&mut self, verdict: Verdict) {
        self.evidence.control(
            "a change that no test notices is reported",
            "the rule of the fence always says yes, and only the tests of names are run",
            verdict == Verdict::Survived,
            match verdict {
                Verdict::Survived => "reported",
                _ => "not reported",
            },
        );
    }

    pub(crate) fn progress(&self) -> String {
        format!(
            "{} of {} mutants tried, {} survived without a reason",
            self.tried,
            self.all.len(),
            self.counts.unexplained
        )
    }

    /// What became of the mutant called `name`.
    pub(crate) fn add(&mut self, name: &str, verdict: Verdict) -> Result<(), String> {
        let mutant = self.all.iter().find(|mutant| mutant.name() == name);
        let mutant = mutant.ok_or(format!("`{name}` was not listed"))?;
        self.tried += 1;
        let accepted = self.accepted.find(mutant);
        match (verdict, accepted) {
            (Verdict::Failed, Some(entry)) => {
                self.counts.failed += 1;
                self.evidence.broken(format!(
                    "a test notices what {ACCEPTED} says that none can: {}",
                    entry.name()
                ));
            }
            (Verdict::Failed, None) => self.counts.failed += 1,
            (Verdict::TimedOut, _) => self.counts.timed_out += 1,
            (Verdict::Unviable, _) => self.counts.unviable += 1,
            (Verdict::Survived, Some(_)) => self.counts.accepted += 1,
            (Verdict::Survived, None) => {
                self.counts.unexplained += 1;
                self.evidence.broken(format!(
                    "no test notices `{}`; see it again with `cargo xtask mutants {}`",
                    mutant.name(),
                    mutant.file
                ));
            }
        }
        Ok(())
    }

    pub(crate) fn evidence(mut self) -> Evidence {
        let (counts, count) = (self.counts, self.all.len());
        let evidence = &mut self.evidence;
        for (what, times) in [
            (format!("of {} mutants", count), self.tried as u64),
            ("noticed by a failing test".to_owned(), counts.failed),
            (
                "noticed because the tests came to no end".to_owned(),
                counts.timed_out,
            ),
            ("that do not compile".to_owned(), counts.unviable),
            (
                "that no test can notice, with the reason written down".to_owned(),
                counts.accepted,
            ),
            (
                "that no test notices, without a reason".to_owned(),
                counts.unexplained,
            ),
        ] {
            evidence.tried(&what, times);
        }
        let what = TARGETS
            .map(|target| format!("{} ({})", target.what, target.package))
            .join(" and ");
        if counts.unexplained == 0 {
            evidence.held(&format!(
                "every change that was tried on {what} is noticed, or has its reason in {ACCEPTED}"
            ));
        }
        if self.tried < count {
            evidence.not_covered(&format!(
                "{} of the {} mutants were not tried in this run",
                count - self.tried,
                count
            ));
        }
        evidence.not_covered("changes that cargo-mutants does not make: constants, the order of statements, what stands in macros");
        evidence.not_covered("mutants of the SQLite store, of the command line, and of what is checked by the simulation alone");
        self.evidence
    }
}
