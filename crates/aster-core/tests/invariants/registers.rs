//! Rule: a register write compares the revision, counts it up by one, and is recognized by its write
//! id when it is the last one come again. `value_revision` never goes back, whoever writes; a value
//! over the bound is refused before anything else.

use std::collections::BTreeMap;

use aster_core::{ExpectedRevision, InvalidInput, RegisterDecision, RegisterState, RegisterWrite};
use aster_core::{ResourceName, RuleError, WriteId, write_register};

use crate::harness::{Event, RegisterWritten, Rules, Trace, Verdict, catches, holds};

fn check(trace: &Trace) -> Verdict {
    let mut seen = 0;
    let mut last: BTreeMap<ResourceName, (u64, WriteId)> = BTreeMap::new();
    for event in trace {
        let Event::RegisterWritten(written) = event else {
            continue;
        };
        let known = last.get(&written.resource).copied();
        let expected = expected(written, known);
        if written.outcome != expected {
            return Err(format!(
                "{:?} at {known:?}: {:?}, expected {expected:?}",
                written.write, written.outcome
            ));
        }
        if let Ok(RegisterDecision::Write(state)) = &written.outcome {
            last.insert(
                written.resource.clone(),
                (state.value_revision, state.write_id),
            );
        }
        seen += 1;
    }
    Ok(seen)
}

fn expected(
    written: &RegisterWritten,
    known: Option<(u64, WriteId)>,
) -> Result<RegisterDecision, RuleError> {
    let RegisterWrite {
        expected,
        value,
        write_id,
    } = &written.write;
    if value.len() > 64 {
        return Err(InvalidInput::ValueTooLarge {
            bytes: value.len(),
            bytes_max: 64,
        }
        .into());
    }
    if let Some((value_revision, last_id)) = known
        && last_id == *write_id
    {
        return Ok(RegisterDecision::AlreadyWritten { value_revision });
    }
    let current = known.map(|(revision, _)| revision);
    let is_expected = match expected {
        ExpectedRevision::Any => true,
        ExpectedRevision::Absent => current.is_none(),
        ExpectedRevision::Exactly(revision) => current == Some(*revision),
    };
    if !is_expected {
        return Ok(RegisterDecision::Conflict { current });
    }
    Ok(RegisterDecision::Write(RegisterState {
        value_revision: current.unwrap_or(0) + 1,
        write_id: *write_id,
    }))
}

#[test]
fn register_writes_are_counted_compared_and_recognized() {
    holds(check);
}

/// Changes what the rule is shown before the write.
struct Broken(fn(&mut Option<RegisterState>, &mut RegisterWrite));

impl Rules for Broken {
    fn write_register(
        &self,
        current: Option<&RegisterState>,
        write: &RegisterWrite,
        bytes_max: usize,
    ) -> Result<RegisterDecision, RuleError> {
        let (mut current, mut write) = (current.copied(), write.clone());
        (self.0)(&mut current, &mut write);
        write_register(current.as_ref(), &write, bytes_max)
    }
}

#[test]
fn a_retry_that_writes_again_is_caught() {
    catches(
        check,
        &Broken(|current, _| {
            if let Some(state) = current {
                state.write_id = WriteId::from_bytes([0; 16]);
            }
        }),
    );
}

#[test]
fn a_write_that_ignores_the_expected_revision_is_caught() {
    catches(
        check,
        &Broken(|_, write| write.expected = ExpectedRevision::Any),
    );
}

#[test]
fn a_revision_that_starts_over_is_caught() {
    catches(check, &Broken(|current, _| *current = None));
}
