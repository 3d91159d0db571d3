//! Who runs next, by a plan; and which plan comes next.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use shuttle::scheduler::{Schedule, Scheduler, Task, TaskId};
use stand_in::world::{self, DRIVER};

use crate::plan::{Numbers, Plan};

/// How often in a hundred times whoever runs goes on, in every other of the random executions.
const STAY_PERCENT: u8 = 85;
/// How far time may go ahead of those who could run, in one execution, in timers.
const HURRIES_MAX: usize = 48;

/// Which executions are tried.
#[derive(Debug, Clone)]
pub enum Way {
    /// By turns at random and by random priorities, from this seed.
    Chance {
        /// What the plans come from.
        seed: u64,
    },
    /// Every execution that departs once from the plain order, then every one that does so twice, and so
    /// on. In the plain order whoever runs goes on for as long as it can, and then the next one does.
    Bounded {
        /// How many departures at most.
        departures: usize,
    },
    /// This one only.
    Replay(Plan),
}

/// How long a search goes on.
#[derive(Debug, Clone, Copy)]
pub struct Budget {
    /// How many executions at most.
    pub executions: u64,
    started: Instant,
    limit: Duration,
}

/// How far a search has come. Outlives a failing execution.
#[derive(Debug, Clone, Default)]
pub struct Progress {
    /// How many executions have begun.
    pub executions: u64,
    /// The present one's plan.
    pub plan: Option<Plan>,
    /// Every execution with so many departures was tried.
    pub complete_up_to: Option<usize>,
}

/// Gives the executions their plans, and chooses by them.
#[derive(Debug)]
pub(crate) struct Explorer {
    way: Way,
    budget: Budget,
    progress: Arc<Mutex<Progress>>,
    chooser: Chooser,
    /// What is left to try of `Bounded`, within this many departures.
    nodes: Vec<Node>,
    bound: usize,
    choices: u64,
    /// The most choices of an execution so far.
    choices_max: u64,
    hurries: usize,
}

/// A choice that had more than one outcome.
#[derive(Debug, Clone, Copy)]
struct Node {
    outcomes: usize,
    chosen: usize,
    /// How many departures came before it.
    departures: usize,
}

#[derive(Debug)]
enum Chooser {
    Random {
        numbers: Numbers,
        stay: usize,
    },
    Pct {
        numbers: Numbers,
        priorities: BTreeMap<usize, u64>,
        change_at: Vec<u64>,
        lowest: u64,
    },
    Bounded {
        deviations: Vec<(usize, usize)>,
        met: Vec<Node>,
    },
}

impl Explorer {
    pub(crate) fn new(way: Way, budget: Budget) -> (Self, Arc<Mutex<Progress>>) {
        let progress = Arc::new(Mutex::new(Progress::default()));
        let explorer = Self {
            way,
            budget,
            progress: progress.clone(),
            chooser: Chooser::Random {
                numbers: Numbers::new(0),
                stay: 0,
            },
            nodes: Vec::new(),
            bound: 0,
            choices: 0,
            choices_max: 0,
            hurries: 0,
        };
        (explorer, progress)
    }

    fn progress(&self) -> MutexGuard<'_, Progress> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The next execution's plan; `None` when there is nothing left to try.
    fn next_plan(&mut self, executions: u64) -> Option<Plan> {
        match &self.way {
            Way::Replay(plan) => (executions == 0).then(|| plan.clone()),
            Way::Chance { seed } => {
                let seed = Numbers::new(seed.wrapping_add(executions)).next_u64();
                Some(match executions % 4 {
                    0 => Plan::Random { seed, stay: 0 },
                    2 => Plan::Random {
                        seed,
                        stay: STAY_PERCENT,
                    },
                    turn => Plan::Pct {
                        seed,
                        changes: if turn == 1 { 2 } else { 4 },
                        steps: self.choices_max.max(1),
                    },
                })
            }
            Way::Bounded { departures } => {
                let departures = *departures;
                if executions > 0 {
                    self.turn_back(departures)?;
                }
                let nodes = self.nodes.iter().enumerate();
                Some(Plan::Bounded {
                    deviations: nodes
                        .filter(|(_, node)| node.chosen > 0)
                        .map(|(at, node)| (at, node.chosen))
                        .collect(),
                })
            }
        }
    }

    /// To the last choice that has an outcome left within the bound, or on to the next bound. `None` when
    /// there is none.
    fn turn_back(&mut self, departures_max: usize) -> Option<()> {
        if let Chooser::Bounded { met, .. } = &mut self.chooser {
            self.nodes = std::mem::take(met);
        }
        while let Some(mut node) = self.nodes.pop() {
            if node.chosen + 1 < node.outcomes && node.departures < self.bound {
                node.chosen += 1;
                self.nodes.push(node);
                return Some(());
            }
        }
        self.progress().complete_up_to = Some(self.bound);
        self.bound += 1;
        (self.bound <= departures_max).then_some(())
    }
}

impl Scheduler for Explorer {
    fn new_execution(&mut self) -> Option<Schedule> {
        let executions = self.progress().executions;
        if executions >= self.budget.executions || self.budget.time_left().is_zero() {
            return None;
        }
        self.choices_max = self.choices_max.max(self.choices);
        let plan = self.next_plan(executions)?;
        self.chooser = Chooser::of(&plan);
        (self.choices, self.hurries) = (0, 0);
        let mut progress = self.progress();
        progress.executions += 1;
        progress.plan = Some(plan);
        Some(Schedule::new(0))
    }

    fn next_task(
        &mut self,
        runnable: &[&Task],
        current: Option<TaskId>,
        is_yielding: bool,
    ) -> Option<TaskId> {
        let mut able: Vec<usize> = runnable.iter().map(|task| task.id().into()).collect();
        let may_hurry = world::is_hurried() && self.hurries < HURRIES_MAX;
        if able.len() > 1 && !may_hurry {
            able.retain(|task| *task != DRIVER);
        }
        let current = current.map(usize::from);
        let chosen = match able.as_slice() {
            [only] => *only,
            _ => {
                self.choices += 1;
                self.chooser
                    .choose(&mut able, current, is_yielding, self.choices)
            }
        };
        if chosen == DRIVER && able.len() > 1 {
            self.hurries += 1;
        }
        Some(TaskId::from(chosen))
    }

    fn next_u64(&mut self) -> u64 {
        // Nothing here asks the scheduler for randomness.
        0
    }
}

impl Chooser {
    fn of(plan: &Plan) -> Self {
        match plan {
            Plan::Random { seed, stay } => Chooser::Random {
                numbers: Numbers::new(*seed),
                stay: usize::from(*stay),
            },
            Plan::Pct {
                seed,
                changes,
                steps,
            } => {
                let mut numbers = Numbers::new(*seed);
                let steps = usize::try_from(*steps).unwrap_or(usize::MAX);
                Chooser::Pct {
                    change_at: (0..*changes)
                        .map(|_| numbers.below(steps) as u64 + 1)
                        .collect(),
                    numbers,
                    priorities: BTreeMap::new(),
                    lowest: u64::MAX / 2,
                }
            }
            Plan::Bounded { deviations } => Chooser::Bounded {
                deviations: deviations.clone(),
                met: Vec::new(),
            },
        }
    }

    /// One of `able`, of whom there are several. This is choice number `number`.
    fn choose(
        &mut self,
        able: &mut [usize],
        current: Option<usize>,
        is_yielding: bool,
        number: u64,
    ) -> usize {
        match self {
            Chooser::Random { numbers, stay } => {
                let goes_on = numbers.below(100) < *stay && !is_yielding;
                match able.iter().find(|task| goes_on && Some(**task) == current) {
                    Some(task) => *task,
                    None => able[numbers.below(able.len())],
                }
            }
            Chooser::Pct {
                numbers,
                priorities,
                change_at,
                lowest,
            } => {
                for task in able.iter() {
                    // Above all that have fallen.
                    priorities
                        .entry(*task)
                        .or_insert_with(|| numbers.next_u64() | (1 << 63));
                }
                if let Some(current) = current
                    && (is_yielding || change_at.contains(&number))
                {
                    *lowest -= 1;
                    priorities.insert(current, *lowest);
                }
                let highest = able.iter().max_by_key(|task| priorities.get(*task));
                *highest.unwrap_or(&able[0])
            }
            Chooser::Bounded { deviations, met } => {
                // Whoever runs goes on; after one who cannot, or gives way, comes the next one.
                let goes_on = |task: usize| !is_yielding && Some(task) == current;
                able.sort_by_key(|task| {
                    let comes_later = current.is_some_and(|current| *task <= current);
                    (!goes_on(*task), *task == DRIVER, comes_later, *task)
                });
                let here = met.len();
                let deviation = deviations.iter().find(|(at, _)| *at == here);
                let chosen = deviation.map_or(0, |(_, chosen)| *chosen);
                let chosen = chosen.min(able.len() - 1);
                let before = met.last();
                let departures =
                    before.map_or(0, |node| node.departures + usize::from(node.chosen > 0));
                met.push(Node {
                    outcomes: able.len(),
                    chosen,
                    departures,
                });
                able[chosen]
            }
        }
    }
}

impl Budget {
    /// So many executions, within so much time from now on.
    #[must_use]
    #[allow(
        clippy::disallowed_methods,
        reason = "how long a search may go on is real time"
    )]
    pub fn new(executions: u64, limit: Duration) -> Self {
        Self {
            executions,
            started: Instant::now(),
            limit,
        }
    }

    /// What is left of the time.
    #[must_use]
    pub fn time_left(&self) -> Duration {
        self.limit.saturating_sub(self.started.elapsed())
    }
}
