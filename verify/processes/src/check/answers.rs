//! That callers hear only what they may hear, whatever is done to them and to those beside them.

use super::Rule;
use crate::history::{Answer, Operation};

/// Why an acquire may be denied here. *Expired* and *not held* say that a turn in the queue lapsed before
/// its owner, who stood still, heard of it.
const DENIALS: [&str; 5] = [
    "held_by_other",
    "wait_ran_out",
    "held_off",
    "expired",
    "not_held",
];

pub(super) fn check(operations: &[&Operation], broken: &mut impl FnMut(Rule, String)) {
    for operation in operations {
        let is_fine = match &operation.answer {
            Some(Answer::Unexpected { .. }) => false,
            Some(Answer::Denied { reason }) => DENIALS.contains(&reason.as_str()),
            Some(Answer::Stale { carried, current }) => {
                carried < current && operation.written_epoch() == Some(*carried)
            }
            _ => true,
        };
        if !is_fine {
            broken(Rule::Answers, operation.to_string());
        }
    }
}
