//! How one execution chooses who runs next. A plan's text repeats the execution.

use std::fmt;
use std::str::FromStr;

/// How one execution chooses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Plan {
    /// Anyone who can run, each as likely as the others; but so many times in a hundred whoever runs goes
    /// on: `random:SEED:STAY`.
    Random {
        /// What the choices come from.
        seed: u64,
        /// How often in a hundred times whoever runs goes on.
        stay: u8,
    },
    /// The highest of random priorities, which fall at a few random points: `pct:SEED:CHANGES:STEPS`
    /// (probabilistic concurrency testing).
    Pct {
        /// What the choices come from.
        seed: u64,
        /// How often a priority falls.
        changes: usize,
        /// Among how many choices.
        steps: u64,
    },
    /// The plain order but for these departures: `bounded:NUMBER.CHOICE,…`. Each names the number of a
    /// choice that has more than one outcome, and the outcome.
    Bounded {
        /// In their order.
        deviations: Vec<(usize, usize)>,
    },
}

impl Plan {
    /// The plain order.
    pub const PLAIN: Plan = Plan::Bounded {
        deviations: Vec::new(),
    };
}

impl fmt::Display for Plan {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Plan::Random { seed, stay } => write!(formatter, "random:{seed}:{stay}"),
            Plan::Pct {
                seed,
                changes,
                steps,
            } => write!(formatter, "pct:{seed}:{changes}:{steps}"),
            Plan::Bounded { deviations } => {
                let parts = deviations.iter();
                let parts: Vec<_> = parts.map(|(at, choice)| format!("{at}.{choice}")).collect();
                write!(formatter, "bounded:{}", parts.join(","))
            }
        }
    }
}

/// A text that is no plan.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no plan: random:SEED:STAY, pct:SEED:CHANGES:STEPS or bounded:NUMBER.CHOICE,…")]
pub struct PlanError(String);

impl FromStr for Plan {
    type Err = PlanError;

    fn from_str(text: &str) -> Result<Self, PlanError> {
        parse(text).ok_or_else(|| PlanError(text.to_owned()))
    }
}

fn parse(text: &str) -> Option<Plan> {
    let (kind, rest) = text.split_once(':')?;
    match kind {
        "random" => {
            let (seed, stay) = rest.split_once(':')?;
            Some(Plan::Random {
                seed: seed.parse().ok()?,
                stay: stay.parse().ok()?,
            })
        }
        "pct" => {
            let mut parts = rest.split(':');
            let plan = Plan::Pct {
                seed: parts.next()?.parse().ok()?,
                changes: parts.next()?.parse().ok()?,
                steps: parts.next()?.parse().ok()?,
            };
            parts.next().is_none().then_some(plan)
        }
        "bounded" => {
            let parts = rest.split(',').filter(|part| !part.is_empty());
            let deviation = |part: &str| {
                let (at, choice) = part.split_once('.')?;
                Some((at.parse().ok()?, choice.parse().ok()?))
            };
            let deviations = parts.map(deviation).collect::<Option<_>>()?;
            Some(Plan::Bounded { deviations })
        }
        _ => None,
    }
}

/// A stream of numbers from a seed (splitmix64).
#[derive(Debug, Clone)]
pub struct Numbers(u64);

impl Numbers {
    /// The stream of `seed`.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next one.
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// One of `0..below`; 0 if that is empty.
    pub fn below(&mut self, below: usize) -> usize {
        let below = u64::try_from(below).unwrap_or(u64::MAX).max(1);
        usize::try_from(self.next_u64() % below).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_is_read_as_it_is_written() {
        for text in [
            "random:17:85",
            "pct:18446744073709551615:3:420",
            "bounded:",
            "bounded:4.1,17.2",
        ] {
            let plan: Plan = text.parse().unwrap();
            assert_eq!(plan.to_string(), text);
        }
        for text in [
            "",
            "random",
            "random:7",
            "pct:1:2",
            "pct:1:2:3:4",
            "bounded:1",
        ] {
            assert!(text.parse::<Plan>().is_err(), "{text}");
        }
    }
}
