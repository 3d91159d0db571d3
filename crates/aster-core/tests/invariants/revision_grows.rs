//! Rule: a row's revision grows with every change, renewals included, so that a candidate without
//! the store's clock can see that nothing moved. A dropped row starts anew, so epoch and revision are
//! compared together: the pair only grows, also across dropped rows.

use std::collections::BTreeMap;

use aster_core::transition;
use aster_core::{Decision, Effect, Judged, LeaseOp, ResourceName, RowView, RuleError, TtlBounds};

use crate::harness::{Rules, Trace, Verdict, asked, catches, holds};

fn check(trace: &Trace) -> Verdict {
    let mut seen = 0;
    let mut last: BTreeMap<ResourceName, (u64, u64)> = BTreeMap::new();
    for asked in asked(trace) {
        let (Effect::Rearm(row) | Effect::Replace(row)) = &asked.effect else {
            continue;
        };
        if asked
            .before
            .as_ref()
            .is_some_and(|before| row.revision <= before.revision)
        {
            return Err(format!(
                "{:?} left the revision at {}",
                asked.op, row.revision
            ));
        }
        let now = (row.epoch, row.revision);
        if let Some(earlier) = last.insert(asked.resource.clone(), now)
            && now <= earlier
        {
            return Err(format!("{:?}: from {earlier:?} back to {now:?}", asked.op));
        }
        seen += 1;
    }
    Ok(seen)
}

#[test]
fn the_revision_grows_with_every_change() {
    holds(check);
}

/// Keeps the old revision in one kind of effect.
struct KeepsRevision(fn(&Effect) -> bool);

impl Rules for KeepsRevision {
    fn transition(
        &self,
        view: &RowView<'_>,
        judged: &Judged,
        bounds: &TtlBounds,
        op: &LeaseOp,
    ) -> Result<Decision, RuleError> {
        let mut decision = transition(view, judged, bounds, op)?;
        if (self.0)(&decision.effect)
            && let Effect::Rearm(row) | Effect::Replace(row) = &mut decision.effect
        {
            row.revision = view.row.map_or(0, |row| row.revision);
        }
        Ok(decision)
    }
}

#[test]
fn a_renewal_without_a_revision_is_caught() {
    catches(
        check,
        &KeepsRevision(|effect| matches!(effect, Effect::Rearm(_))),
    );
}

#[test]
fn an_ownership_change_without_a_revision_is_caught() {
    catches(
        check,
        &KeepsRevision(|effect| matches!(effect, Effect::Replace(_))),
    );
}
