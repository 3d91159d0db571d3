//! Histories by hand. Time is a number of nanoseconds; each operation takes from one to the next.

use aster_lease::AuditEvent;
use aster_processes::History;
use aster_processes::history::{
    Answer, CONDUCTOR, Call, Entry, Found, Mark, Operation, Told, Value,
};

pub(crate) const RESOURCE: &str = "catalog/current";
/// Whose grants nobody heard of.
const UNHEARD: u32 = 99;

pub(crate) fn mark(process: u32, number: u32) -> Mark {
    Mark { process, number }
}

pub(crate) fn value(mark: Mark, parent: Option<Mark>, count: u64) -> Value {
    Value {
        mark,
        parent,
        count,
    }
}

/// A history that is told operation by operation.
#[derive(Debug, Clone, Default)]
pub(crate) struct Story {
    history: History,
    now_ns: u64,
}

impl Story {
    /// An operation that began and ended before the next one begins.
    pub(crate) fn then(self, process: u32, call: Call, answer: Answer) -> Self {
        self.tell(process, call, Some(answer))
    }

    /// An operation that began before the next one and was never answered.
    pub(crate) fn open(self, process: u32, call: Call) -> Self {
        self.tell(process, call, None)
    }

    fn tell(mut self, process: u32, call: Call, answer: Option<Answer>) -> Self {
        self.now_ns += 10;
        let began_ns = self.now_ns;
        self.history.operations.push(Operation {
            process,
            resource: RESOURCE.to_owned(),
            began_ns,
            ended_ns: answer.is_some().then_some(began_ns + 1),
            call,
            answer,
        });
        self
    }

    /// Makes the last operation begin earlier, beside the `count` before it.
    pub(crate) fn beside(mut self, count: u64) -> Self {
        let last = self.history.operations.last_mut().unwrap();
        last.began_ns -= 10 * count + 1;
        self
    }

    pub(crate) fn acquire(self, process: u32, epoch: u64) -> Self {
        self.then(
            process,
            Call::Acquire { wait_ms: None },
            Answer::Granted { epoch },
        )
    }

    pub(crate) fn release(self, process: u32, epoch: u64) -> Self {
        self.then(process, Call::Release { epoch }, Answer::Released)
    }

    pub(crate) fn revoke(self, process: u32, epoch: u64) -> Self {
        self.then(process, Call::Revoke, Answer::Revoked { epoch })
    }

    pub(crate) fn write(self, epoch: u64, value: Value, revision: u64) -> Self {
        self.then(
            value.mark.process,
            write(epoch, value),
            Answer::Written { revision },
        )
    }

    pub(crate) fn append(self, epoch: u64, position: u64, mark: Mark) -> Self {
        self.then(
            mark.process,
            append(epoch, position, mark),
            Answer::Appended {
                before: position - 1,
            },
        )
    }

    pub(crate) fn read(self, process: u32, value: Value, revision: u64, epoch: u64) -> Self {
        let found = Found {
            value,
            revision,
            epoch,
        };
        self.then(process, Call::Read, Answer::Read(Some(found)))
    }

    pub(crate) fn read_nothing(self, process: u32) -> Self {
        self.then(process, Call::Read, Answer::Read(None))
    }

    /// The conductor's last look at the list: the marks in it, and the epochs under which they came.
    pub(crate) fn list(self, entries: &[(Mark, u64)]) -> Self {
        let entries = (1..)
            .zip(entries)
            .map(|(position, (mark, epoch))| Entry {
                position,
                mark: *mark,
                epoch: *epoch,
            })
            .collect();
        self.then(CONDUCTOR, Call::List, Answer::Listed(entries))
    }

    /// With the audit trail of a store that tells of what the processes heard, if none was given.
    pub(crate) fn history(mut self) -> History {
        self.history.sort();
        let is_trail = |operation: &Operation| operation.call == Call::Trail;
        if self.history.operations.iter().any(is_trail) {
            return self.history;
        }
        let mut trail = Trail::default();
        for operation in &self.history.operations {
            trail.tell(operation);
        }
        let told = Answer::Trail(trail.told);
        self.then(CONDUCTOR, Call::Trail, told).history
    }
}

/// Who owned the resource.
#[derive(Default)]
struct Trail {
    told: Vec<Told>,
    owner: Option<(u64, u32)>,
}

impl Trail {
    fn tell(&mut self, operation: &Operation) {
        match (&operation.call, &operation.answer) {
            (_, Some(Answer::Granted { epoch })) => self.begin(*epoch, operation.process),
            (_, Some(Answer::Revoked { epoch })) => {
                if self.owner.is_none_or(|(owned, _)| owned < *epoch) {
                    self.begin(*epoch, UNHEARD);
                }
                self.end(AuditEvent::Revoked);
            }
            (Call::Release { .. }, Some(Answer::Released))
            | (Call::Write { releases: true, .. }, Some(Answer::Written { .. })) => {
                self.end(AuditEvent::Released);
            }
            _ => {}
        }
    }

    fn begin(&mut self, epoch: u64, process: u32) {
        let event = match self.owner {
            None => AuditEvent::Granted,
            Some(_) => AuditEvent::TakenOver,
        };
        self.owner = Some((epoch, process));
        self.told.push(told(event, epoch, process));
    }

    fn end(&mut self, event: AuditEvent) {
        if let Some((epoch, process)) = self.owner.take() {
            self.told.push(told(event, epoch, process));
        }
    }
}

pub(crate) fn told(event: AuditEvent, epoch: u64, process: u32) -> Told {
    Told {
        event,
        epoch,
        process: Some(process),
    }
}

pub(crate) fn write(epoch: u64, value: Value) -> Call {
    Call::Write {
        epoch,
        value,
        releases: false,
    }
}

pub(crate) fn append(epoch: u64, position: u64, mark: Mark) -> Call {
    Call::Append {
        epoch,
        position,
        mark,
    }
}
