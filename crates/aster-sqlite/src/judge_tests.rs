use std::time::Duration;

use aster_core::{GrantId, HoldOff, Principal, RowState, Tenure, Ttl};

use super::{Evidence, Renewal, Seen, effective, judge};
use crate::rows::{Stamp, StoredRow};
use crate::schema::Id;

const OURS: Id = [1; 16];
const THEIRS: Id = [2; 16];
const MS: u64 = 1_000_000;

fn held(era: Id, since_ns: u64) -> StoredRow {
    StoredRow {
        state: RowState {
            epoch: 7,
            revision: 3,
            grant_id: GrantId::from_bytes([9; 16]),
            held: Some(Tenure {
                holder: Principal::new("worker-a").unwrap(),
                ttl: Ttl::from_millis(1_000).unwrap(),
            }),
            hold_off: None,
        },
        stamp: Stamp { era, since_ns },
        hold_off: None,
    }
}

fn expired(row: &StoredRow, evidence: &Evidence, now_ns: u64) -> bool {
    judge(row, evidence, OURS, now_ns).judged.expired
}

#[test]
fn our_own_instants_give_exact_deadlines() {
    let row = held(OURS, 500 * MS);
    assert!(!expired(&row, &Evidence::default(), 1_500 * MS - 1));
    assert!(expired(&row, &Evidence::default(), 1_500 * MS));
}

#[test]
fn an_instant_in_the_future_is_just_armed() {
    assert!(!expired(&held(OURS, 9_000 * MS), &Evidence::default(), MS));
}

#[test]
fn another_clock_is_watched_for_a_whole_ttl() {
    // On their clock it looks long expired.
    let row = held(THEIRS, 0);
    let first = judge(&row, &Evidence::default(), OURS, 90_000 * MS);
    assert!(!first.judged.expired);
    let seen = first.watch.unwrap();
    let watched = Evidence {
        seen: Some(seen),
        ..Evidence::default()
    };
    assert!(!expired(&row, &watched, 91_000 * MS - 1));
    assert!(expired(&row, &watched, 91_000 * MS));
}

#[test]
fn a_renewal_on_another_clock_starts_the_watch_again() {
    let row = held(THEIRS, 0);
    let seen = Seen {
        epoch: 7,
        revision: 2,
        since_ns: 0,
    };
    let evidence = Evidence {
        seen: Some(seen),
        ..Evidence::default()
    };
    let verdict = judge(&row, &evidence, OURS, 5_000 * MS);
    assert!(!verdict.judged.expired);
    assert_eq!(verdict.watch.unwrap().revision, 3);
}

#[test]
fn the_newest_renewal_counts_and_only_at_its_epoch() {
    let renewal = Renewal {
        epoch: 7,
        revision: 4,
        era: OURS,
        since_ns: 800 * MS,
        expired: false,
    };
    let row = effective(&held(OURS, 0), Some(&renewal));
    assert_eq!((row.state.revision, row.stamp.since_ns), (4, 800 * MS));
    // Revisions of main rows jump when renewals may have been lost; those that are there still count.
    let mut jumped = held(OURS, 0);
    jumped.state.revision = 1_000;
    let row = effective(&jumped, Some(&renewal));
    assert_eq!((row.state.revision, row.stamp.since_ns), (1_000, 800 * MS));
    let old = Renewal {
        epoch: 6,
        ..renewal
    };
    assert_eq!(effective(&held(OURS, 0), Some(&old)), held(OURS, 0));
}

#[test]
fn a_takeover_marks_the_epoch_as_expired_for_every_clock() {
    let mark = Renewal {
        epoch: 7,
        revision: 3,
        era: OURS,
        since_ns: 0,
        expired: true,
    };
    let evidence = Evidence {
        renewal: Some(mark),
        ..Evidence::default()
    };
    assert!(expired(&held(OURS, 0), &evidence, 1));
    let later = Evidence {
        renewal: Some(Renewal { epoch: 6, ..mark }),
        ..Evidence::default()
    };
    assert!(!expired(&held(OURS, 0), &later, 1));
}

#[test]
fn a_hold_off_has_an_instant_of_its_own() {
    let mut row = held(OURS, 0);
    row.state.hold_off = Some(Box::new(HoldOff {
        holder: Principal::new("worker-b").unwrap(),
        duration: Duration::from_secs(10),
    }));
    let stamp = |era| Stamp {
        era,
        since_ns: 2_000 * MS,
    };
    row.hold_off = Some((stamp(OURS), 5));
    let over = |row: &StoredRow, now_ms: u64| {
        judge(row, &Evidence::default(), OURS, now_ms * MS)
            .judged
            .hold_off_over
    };
    assert!(!over(&row, 11_999));
    assert!(over(&row, 12_000));
    row.hold_off = Some((stamp(THEIRS), 5));
    assert!(
        !over(&row, 99_000),
        "another clock's hold-off is watched first"
    );
}
