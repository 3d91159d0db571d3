//! Whether concurrent operations can be put into an order in which a sequential object would have
//! answered as it did, and in which whatever ended before another began comes before it.
//!
//! The search is Wing and Gong's with Lowe's memory of where it has been: it places one operation after
//! the other and goes back when nothing fits. An operation without an answer may be placed anywhere
//! after it began, or nowhere.

use std::collections::HashSet;
use std::hash::Hash;

/// How many operations the search places before it gives up, those that it takes back included.
pub const PLACINGS_MAX: u64 = 2_000_000;

/// A sequential object.
pub trait Model {
    /// What it remembers.
    type State: Clone + Eq + Hash;
    /// One operation together with its answer, as far as it is known.
    type Step;

    /// What it remembers in the beginning.
    fn first(&self) -> Self::State;

    /// What it remembers after `step`; `None` if it would not have answered so.
    fn after(&self, state: &Self::State, step: &Self::Step) -> Option<Self::State>;
}

/// An operation and the time within which it took effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Interval<S> {
    /// It took effect after this.
    pub began_ns: u64,
    /// And before this; `None`: there was no answer.
    pub ended_ns: Option<u64>,
    /// The operation.
    pub step: S,
}

/// What the search found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Search {
    /// There is such an order.
    Linearizable,
    /// There is none. The longest beginning of one holds `placed` operations, and none of `stuck`
    /// (indices into what was given) fits behind it.
    Impossible {
        /// How many could be placed.
        placed: usize,
        /// What would have to come next.
        stuck: Vec<usize>,
    },
    /// More than [`PLACINGS_MAX`] were placed without an end.
    GaveUp,
}

/// Searches for an order of `operations`.
pub fn search<M: Model>(model: &M, operations: &[Interval<M::Step>]) -> Search {
    Searching::new(model, operations).run()
}

struct Searching<'a, M: Model> {
    model: &'a M,
    operations: &'a [Interval<M::Step>],
    /// Those with an answer, in the order of their ends: (index, began, ended).
    answered: Vec<(usize, u64, u64)>,
    /// For each place in `answered`: the earliest beginning from there on.
    earliest_from: Vec<u64>,
    /// Those without an answer, in the order of their beginnings.
    open: Vec<usize>,
    is_placed: Vec<bool>,
    /// How many at the front of `answered` are placed without a gap.
    front: usize,
    placed: usize,
    seen: HashSet<Place<M::State>>,
}

/// Where the search has been: which operations are placed, and what the object remembers.
#[derive(PartialEq, Eq, Hash)]
struct Place<S> {
    front: usize,
    beyond: Vec<usize>,
    open: Vec<usize>,
    state: S,
}

struct Frame<S> {
    state: S,
    /// What may come next, the most urgent first.
    next: std::vec::IntoIter<usize>,
    /// What was placed to come here, and the front before that.
    came_by: Option<(usize, usize)>,
}

impl<'a, M: Model> Searching<'a, M> {
    fn new(model: &'a M, operations: &'a [Interval<M::Step>]) -> Self {
        let mut answered = Vec::new();
        let mut open = Vec::new();
        for (index, operation) in operations.iter().enumerate() {
            match operation.ended_ns {
                Some(ended_ns) => answered.push((index, operation.began_ns, ended_ns)),
                None => open.push(index),
            }
        }
        answered.sort_by_key(|(index, _, ended_ns)| (*ended_ns, *index));
        open.sort_by_key(|index| operations.get(*index).map(|operation| operation.began_ns));
        let mut earliest = u64::MAX;
        let mut earliest_from: Vec<_> = answered
            .iter()
            .rev()
            .map(|(_, began_ns, _)| {
                earliest = earliest.min(*began_ns);
                earliest
            })
            .collect();
        earliest_from.reverse();
        Self {
            model,
            operations,
            answered,
            earliest_from,
            open,
            is_placed: vec![false; operations.len()],
            front: 0,
            placed: 0,
            seen: HashSet::new(),
        }
    }

    fn run(mut self) -> Search {
        let state = self.model.first();
        let next = self.candidates().into_iter();
        let mut path = vec![Frame {
            state,
            next,
            came_by: None,
        }];
        let mut longest = (0, self.candidates());
        let mut placings = 0_u64;
        while let Some(frame) = path.last_mut() {
            if self.front == self.answered.len() {
                return Search::Linearizable;
            }
            let Some(index) = frame.next.next() else {
                let came_by = frame.came_by;
                path.pop();
                self.take_back(came_by);
                continue;
            };
            let step = self.operations.get(index).map(|operation| &operation.step);
            let Some(state) = step.and_then(|step| self.model.after(&frame.state, step)) else {
                continue;
            };
            placings += 1;
            if placings > PLACINGS_MAX {
                return Search::GaveUp;
            }
            let came_by = Some((index, self.front));
            self.place(index);
            if !self.seen.insert(self.here(state.clone())) {
                self.take_back(came_by);
                continue;
            }
            let candidates = self.candidates();
            if self.placed > longest.0 {
                longest = (self.placed, candidates.clone());
            }
            path.push(Frame {
                state,
                next: candidates.into_iter(),
                came_by,
            });
        }
        Search::Impossible {
            placed: longest.0,
            stuck: longest.1,
        }
    }

    /// What may come next: whatever began before the first end of what is not placed yet.
    fn candidates(&self) -> Vec<usize> {
        let Some((_, _, horizon_ns)) = self.answered.get(self.front) else {
            return Vec::new();
        };
        let rest = self.answered.iter().zip(&self.earliest_from);
        let answered = rest
            .skip(self.front)
            .take_while(|(_, earliest_ns)| *earliest_ns <= horizon_ns)
            .filter(|((index, began_ns, _), _)| began_ns <= horizon_ns && !self.has_placed(*index))
            .map(|((index, _, _), _)| *index);
        let open = self.open.iter().copied().take_while(|index| {
            let operation = self.operations.get(*index);
            operation.is_some_and(|operation| operation.began_ns <= *horizon_ns)
        });
        answered
            .chain(open.filter(|index| !self.has_placed(*index)))
            .collect()
    }

    fn has_placed(&self, index: usize) -> bool {
        self.is_placed.get(index).copied().unwrap_or(true)
    }

    fn place(&mut self, index: usize) {
        self.set(index, true);
        self.placed += 1;
        while let Some((index, _, _)) = self.answered.get(self.front)
            && self.has_placed(*index)
        {
            self.front += 1;
        }
    }

    fn take_back(&mut self, came_by: Option<(usize, usize)>) {
        if let Some((index, front)) = came_by {
            self.set(index, false);
            self.placed -= 1;
            self.front = front;
        }
    }

    fn set(&mut self, index: usize, is_placed: bool) {
        if let Some(place) = self.is_placed.get_mut(index) {
            *place = is_placed;
        }
    }

    fn here(&self, state: M::State) -> Place<M::State> {
        let horizon_ns = self.answered.get(self.front).map(|(_, _, ended)| *ended);
        let beyond = self.answered.iter().zip(&self.earliest_from);
        let beyond = beyond
            .skip(self.front)
            .take_while(|(_, earliest_ns)| Some(**earliest_ns) <= horizon_ns)
            .filter(|((index, _, _), _)| self.has_placed(*index))
            .map(|((index, _, _), _)| *index);
        let open = self.open.iter().copied();
        Place {
            front: self.front,
            beyond: beyond.collect(),
            open: open.filter(|index| self.has_placed(*index)).collect(),
            state,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Interval, Model, Search, search};

    /// A plain register of numbers, 0 in the beginning.
    struct Register;

    #[derive(Debug, Clone, Copy)]
    enum Step {
        Write(u8),
        Read(u8),
    }

    impl Model for Register {
        type State = u8;
        type Step = Step;

        fn first(&self) -> u8 {
            0
        }

        fn after(&self, state: &u8, step: &Step) -> Option<u8> {
            match *step {
                Step::Write(value) => Some(value),
                Step::Read(value) => (value == *state).then_some(*state),
            }
        }
    }

    fn judge(operations: &[(u64, u64, Step)]) -> Search {
        let intervals: Vec<_> = operations
            .iter()
            .map(|(began_ns, ended_ns, step)| Interval {
                began_ns: *began_ns,
                ended_ns: (*ended_ns != OPEN).then_some(*ended_ns),
                step: *step,
            })
            .collect();
        search(&Register, &intervals)
    }

    const OPEN: u64 = 0;
    use Step::{Read, Write};

    #[test]
    fn one_after_the_other() {
        let fine = [
            (1, 2, Write(1)),
            (3, 4, Read(1)),
            (5, 6, Write(2)),
            (7, 8, Read(2)),
        ];
        assert_eq!(judge(&fine), Search::Linearizable);
        assert_eq!(judge(&[]), Search::Linearizable);
    }

    #[test]
    fn a_stale_read_is_found() {
        let stale = [(1, 2, Write(1)), (3, 4, Write(2)), (5, 6, Read(1))];
        let Search::Impossible { placed, stuck } = judge(&stale) else {
            panic!("a stale read passed");
        };
        assert_eq!((placed, stuck), (2, vec![2]));
    }

    #[test]
    fn concurrent_operations_may_take_effect_in_any_order() {
        let either = |value| judge(&[(1, 9, Write(1)), (2, 8, Write(2)), (10, 11, Read(value))]);
        assert_eq!(either(1), Search::Linearizable);
        assert_eq!(either(2), Search::Linearizable);
        assert!(matches!(either(0), Search::Impossible { .. }));
    }

    #[test]
    fn two_reads_must_agree_on_the_order_of_concurrent_writes() {
        let reads = |first, second| {
            judge(&[
                (1, 9, Write(1)),
                (1, 9, Write(2)),
                (2, 3, Read(first)),
                (4, 5, Read(second)),
                (10, 11, Read(first)),
            ])
        };
        assert!(matches!(reads(1, 2), Search::Impossible { .. }));
        assert_eq!(reads(2, 2), Search::Linearizable);
    }

    #[test]
    fn what_has_no_answer_may_have_happened_late_or_never() {
        let read = |value| {
            judge(&[
                (1, OPEN, Write(7)),
                (2, 3, Write(1)),
                (4, 5, Read(1)),
                (6, 7, Read(value)),
            ])
        };
        assert_eq!(read(1), Search::Linearizable);
        assert_eq!(read(7), Search::Linearizable);
        // But it cannot have happened before it began, nor be undone.
        let early = [(1, 2, Read(7)), (3, OPEN, Write(7)), (4, 5, Read(0))];
        assert!(matches!(judge(&early), Search::Impossible { .. }));
        let undone = [(1, OPEN, Write(7)), (2, 3, Read(7)), (4, 5, Read(0))];
        assert!(matches!(judge(&undone), Search::Impossible { .. }));
    }

    /// Every history of a few operations, against trying every order.
    #[test]
    fn the_search_agrees_with_trying_every_order() {
        let mut random = aster_evidence::Random::stream(1, 1);
        let (mut fine, mut not) = (0, 0);
        for _ in 0..4_000 {
            let count = random.between(2, 6);
            let operations: Vec<_> = (0..count)
                .map(|_| {
                    let began = random.between(1, 8);
                    let ended = match random.chance(15, 100) {
                        true => OPEN,
                        false => began + random.between(0, 5),
                    };
                    let value = u8::try_from(random.between(0, 2)).unwrap();
                    let step = match random.chance(50, 100) {
                        true => Write(value),
                        false => Read(value),
                    };
                    (began, ended, step)
                })
                .collect();
            let expected = try_every_order(&operations, &mut Vec::new(), 0);
            match expected {
                true => fine += 1,
                false => not += 1,
            }
            let found = judge(&operations) == Search::Linearizable;
            assert_eq!(found, expected, "{operations:?}");
        }
        assert!(fine > 500 && not > 500, "{fine} linearizable, {not} not");
    }

    fn try_every_order(
        operations: &[(u64, u64, Step)],
        placed: &mut Vec<usize>,
        state: u8,
    ) -> bool {
        let is_open = |index: usize| operations[index].1 == OPEN;
        let rest: Vec<_> = (0..operations.len())
            .filter(|index| !placed.contains(index))
            .collect();
        if rest.iter().all(|index| is_open(*index)) {
            return true;
        }
        rest.iter().any(|index| {
            let (began, _, step) = operations[*index];
            let comes_too_early = rest
                .iter()
                .any(|other| !is_open(*other) && operations[*other].1 < began);
            let Some(after) = Register.after(&state, &step) else {
                return false;
            };
            if comes_too_early {
                return false;
            }
            placed.push(*index);
            let found = try_every_order(operations, placed, after);
            placed.pop();
            found
        })
    }
}
