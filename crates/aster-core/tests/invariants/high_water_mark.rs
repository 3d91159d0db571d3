//! Rule: a resource that cannot see the row keeps a high-water mark. It never goes back; once a
//! higher epoch was announced a lower one is refused; an epoch has one holder; an announced end
//! refuses the old fence; another store's fence is refused until an operator adopts it.

use std::collections::BTreeMap;

use aster_core::{Fence, HighWaterMark, HighWaterRejection, Principal, ResourceName};

use crate::harness::{Announced, Event, MarkAsk, Rules, Trace, Verdict, authority, catches, holds};

/// What was announced at the highest epoch: its holder, or nobody once it ended.
type Known = (u64, Option<Principal>);

fn check(trace: &Trace) -> Verdict {
    let mut seen = 0;
    let mut known: BTreeMap<ResourceName, Known> = BTreeMap::new();
    for event in trace {
        let Event::Announced(announced) = event else {
            continue;
        };
        let mark = known.entry(announced.resource.clone()).or_default();
        if announced.epoch_after < announced.epoch_before {
            return Err(format!("the mark went back: {announced:?}"));
        }
        let may_pass = may_pass(announced, mark);
        if announced.verdict.is_ok() != may_pass {
            return Err(format!("at {mark:?}: {announced:?}"));
        }
        if may_pass {
            learn(announced, mark);
        }
        if announced.epoch_after != mark.0 {
            return Err(format!("the mark should be at {mark:?}: {announced:?}"));
        }
        seen += 1;
    }
    Ok(seen)
}

fn may_pass(announced: &Announced, (epoch, holder): &Known) -> bool {
    let fence = &announced.fence;
    if fence.authority != authority() {
        return false;
    }
    if let MarkAsk::End { epoch: end } = announced.ask {
        return i64::try_from(end).is_ok() && end >= (*epoch).max(1);
    }
    let is_mine = fence.resource == announced.resource
        && fence.holder == announced.writer
        && fence.epoch >= 1
        && i64::try_from(fence.epoch).is_ok();
    let is_announced = fence.epoch == *epoch && holder.as_ref() == Some(&fence.holder);
    let is_newer = announced.ask == MarkAsk::Announce && fence.epoch > *epoch;
    is_mine && (is_announced || is_newer)
}

fn learn(announced: &Announced, mark: &mut Known) {
    match announced.ask {
        MarkAsk::Announce => *mark = (announced.fence.epoch, Some(announced.fence.holder.clone())),
        MarkAsk::End { epoch } if epoch > mark.0 => *mark = (epoch, None),
        MarkAsk::End { .. } | MarkAsk::Check => {}
    }
}

#[test]
fn a_mark_only_rises_and_lets_only_the_announced_holder_write() {
    holds(check);
}

struct AnyHolderAtTheEpoch;

impl Rules for AnyHolderAtTheEpoch {
    fn check_mark(
        &self,
        mark: &HighWaterMark,
        fence: &Fence,
        writer: &str,
    ) -> Result<(), HighWaterRejection> {
        match mark.check(fence, writer) {
            Err(HighWaterRejection::NotHolder) => Ok(()),
            other => other,
        }
    }
}

#[test]
fn another_holder_at_the_same_epoch_is_caught() {
    catches(check, &AnyHolderAtTheEpoch);
}

#[test]
fn a_mark_that_takes_lower_epochs_is_caught() {
    struct TakesLower;
    impl Rules for TakesLower {
        fn check_mark(
            &self,
            mark: &HighWaterMark,
            fence: &Fence,
            writer: &str,
        ) -> Result<(), HighWaterRejection> {
            match mark.check(fence, writer) {
                Err(HighWaterRejection::StaleEpoch { .. }) => Ok(()),
                other => other,
            }
        }
    }
    catches(check, &TakesLower);
}

#[test]
fn adopting_another_store_unasked_is_caught() {
    struct Adopts;
    impl Rules for Adopts {
        fn announce(
            &self,
            mark: &mut HighWaterMark,
            fence: &Fence,
            writer: &str,
        ) -> Result<(), HighWaterRejection> {
            mark.adopt(fence.authority);
            mark.announce(fence, writer)
        }
    }
    catches(check, &Adopts);
}

#[test]
fn forgetting_an_announced_end_is_caught() {
    struct ForgetsTheEnd;
    impl Rules for ForgetsTheEnd {
        fn announce_end(
            &self,
            mark: &mut HighWaterMark,
            epoch: u64,
            fence: &Fence,
        ) -> Result<(), HighWaterRejection> {
            mark.clone().announce_end(fence.authority, epoch)
        }
    }
    catches(check, &ForgetsTheEnd);
}
