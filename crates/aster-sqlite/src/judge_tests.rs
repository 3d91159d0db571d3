use std::time::Duration;

use aster_core::{GrantId, HoldOff, HoldOffs, Principal, RowState, Tenure, Ttl};

use super::{Claim, Evidence, Renewal, Seen, Verdict, Watched, effective};
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
            hold_offs: HoldOffs::default(),
        },
        stamp: Stamp { era, since_ns },
        hold_offs_since: Vec::new(),
    }
}

/// Judges a copy on our clock.
fn judge(row: &StoredRow, evidence: &Evidence, now_ns: u64) -> Verdict {
    super::judge(&mut row.clone(), evidence, OURS, now_ns)
}

fn expired(row: &StoredRow, evidence: &Evidence, now_ns: u64) -> bool {
    judge(row, evidence, now_ns).judged.expired
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
    let first = judge(&row, &Evidence::default(), 90_000 * MS);
    assert!(!first.judged.expired);
    let [(Watched::Tenure, seen)] = first.watches[..] else {
        panic!("{first:?}")
    };
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
    let verdict = judge(&row, &evidence, 5_000 * MS);
    assert!(!verdict.judged.expired);
    assert_eq!(verdict.watches[0].1.revision, 3);
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

/// A grant that was waited for at 0, with a claim time of 200 ms and a ttl of 1 s.
#[test]
fn a_claim_limits_its_own_grant_until_the_first_renewal_and_nothing_else() {
    let claim = Claim {
        grant_id: GrantId::from_bytes([9; 16]),
        era: OURS,
        since_ns: 0,
        duration: Duration::from_millis(200),
    };
    let renewal = Renewal {
        epoch: 7,
        revision: 4,
        era: OURS,
        since_ns: 0,
        expired: false,
    };
    let other = GrantId::from_bytes([8; 16]);
    let longer = Duration::from_secs(5);
    for (what, claim, renewal, expires_ms) in [
        ("the claim", claim, None, 200),
        (
            "a grant id that is not the row's",
            Claim {
                grant_id: other,
                ..claim
            },
            None,
            1_000,
        ),
        (
            "a claim of another clock",
            Claim {
                era: THEIRS,
                ..claim
            },
            None,
            1_000,
        ),
        (
            "a claim longer than the ttl",
            Claim {
                duration: longer,
                ..claim
            },
            None,
            1_000,
        ),
        ("renewed", claim, Some(renewal), 1_000),
        (
            "a renewal of an earlier epoch",
            claim,
            Some(Renewal {
                epoch: 6,
                ..renewal
            }),
            200,
        ),
    ] {
        let evidence = Evidence {
            claim: Some(claim),
            renewal,
            ..Evidence::default()
        };
        let row = effective(&held(OURS, 0), renewal.as_ref());
        assert!(!expired(&row, &evidence, expires_ms * MS - 1), "{what}");
        assert!(expired(&row, &evidence, expires_ms * MS), "{what}");
    }
    // A row of another clock is watched for its whole ttl, whatever a claim says.
    let evidence = Evidence {
        claim: Some(claim),
        ..Evidence::default()
    };
    let row = held(THEIRS, 0);
    assert!(!expired(
        &row,
        &Evidence {
            claim: Some(Claim {
                era: THEIRS,
                ..claim
            }),
            ..evidence
        },
        900 * MS
    ));
}

/// A row with hold-offs of "a" and "b", 10 s and 4 s long, that began on these clocks at 2 s and 5 s.
fn held_off(era_of_a: Id, era_of_b: Id) -> StoredRow {
    let hold_off = |holder: &str, seconds, epoch| HoldOff {
        holder: Principal::new(holder).unwrap(),
        duration: Duration::from_secs(seconds),
        epoch,
    };
    let stamp = |era, since_ms| Stamp {
        era,
        since_ns: since_ms * MS,
    };
    let mut row = held(OURS, 0);
    row.state.hold_offs = HoldOffs::from_iter([hold_off("a", 10, 3), hold_off("b", 4, 5)]);
    row.hold_offs_since = vec![(3, stamp(era_of_a, 2_000)), (5, stamp(era_of_b, 5_000))];
    row
}

/// Whom the row keeps out at that time on our clock, and what is to be watched.
fn kept_out(row: &StoredRow, evidence: &Evidence, now_ms: u64) -> (String, Vec<(Watched, Seen)>) {
    let mut row = row.clone();
    let verdict = super::judge(&mut row, evidence, OURS, now_ms * MS);
    let hold_offs = row.state.hold_offs.iter();
    assert_eq!(hold_offs.count(), row.hold_offs_since.len(), "{row:?}");
    let hold_offs = row.state.hold_offs.iter();
    (
        hold_offs.map(|hold_off| hold_off.holder.as_str()).collect(),
        verdict.watches,
    )
}

#[test]
fn every_hold_off_has_an_instant_of_its_own() {
    let row = held_off(OURS, OURS);
    for (now_ms, expected) in [
        (8_999, "ab"),
        (9_000, "a"),
        (11_999, "a"),
        (12_000, ""),
        // In the future of our clock: just begun.
        (0, "ab"),
    ] {
        let (kept, watches) = kept_out(&row, &Evidence::default(), now_ms);
        assert_eq!((&*kept, watches.len()), (expected, 0), "at {now_ms}");
    }
}

#[test]
fn a_hold_off_of_another_clock_is_watched_for_its_whole_time_and_ours_is_exact() {
    let row = held_off(THEIRS, OURS);
    let (kept, watches) = kept_out(&row, &Evidence::default(), 99_000);
    assert_eq!(kept, "a", "it may have begun just now");
    let [(Watched::HoldOff { epoch: 3 }, seen)] = watches[..] else {
        panic!("{watches:?}")
    };
    let watched = Evidence {
        seen_hold_offs: vec![seen],
        ..Evidence::default()
    };
    assert_eq!(kept_out(&row, &watched, 108_999), ("a".to_owned(), vec![]));
    assert_eq!(kept_out(&row, &watched, 109_000), (String::new(), vec![]));
}

#[test]
fn hold_offs_of_another_clock_are_watched_one_by_one() {
    let row = held_off(THEIRS, THEIRS);
    let seen = |epoch, since_ms| Seen {
        epoch,
        revision: 0,
        since_ns: since_ms * MS,
    };
    let watched = Evidence {
        seen_hold_offs: vec![seen(5, 0), seen(3, 1_000)],
        ..Evidence::default()
    };
    for (now_ms, expected) in [(3_999, "ab"), (4_000, "a"), (10_999, "a"), (11_000, "")] {
        assert_eq!(kept_out(&row, &watched, now_ms).0, expected, "at {now_ms}");
    }
}
