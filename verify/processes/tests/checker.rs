//! The checker on histories by hand: it accepts what may happen, and names the rule of what may not.
#![allow(clippy::unwrap_used, reason = "test code outside a #[test] function")]

mod support;

use std::collections::BTreeSet;

use aster_lease::AuditEvent;
use aster_processes::check::{Rule, check_without_revisions};
use aster_processes::history::{Answer, CONDUCTOR, Call, Recorder};
use aster_processes::{History, check};
use support::{RESOURCE, Story, append, mark, told, value, write};

/// The rules that `story` breaks.
fn rules(story: Story) -> BTreeSet<Rule> {
    let history = story.history();
    let checked = check(&history);
    checked.broken.iter().map(|broken| broken.rule).collect()
}

fn accepts(story: Story) {
    let history = story.history();
    assert_eq!(check(&history).broken, []);
    assert_eq!(check_without_revisions(&history), []);
}

fn breaks(story: Story, expected: &[Rule]) {
    assert_eq!(rules(story), expected.iter().copied().collect());
}

/// Process 1 owns and writes twice; then process 2 has taken over and has written once.
fn takeover() -> Story {
    Story::default()
        .acquire(1, 1)
        .read_nothing(1)
        .write(1, value(mark(1, 1), None, 1), 1)
        .append(1, 1, mark(1, 2))
        .acquire(2, 2)
        .read(2, value(mark(1, 1), None, 1), 1, 1)
        .write(2, value(mark(2, 1), Some(mark(1, 1)), 2), 2)
}

/// The last look, at what `takeover` has left.
fn end_of_takeover(story: Story) -> Story {
    story
        .read(CONDUCTOR, value(mark(2, 1), Some(mark(1, 1)), 2), 2, 2)
        .list(&[(mark(1, 2), 1)])
}

#[test]
fn a_takeover_with_a_late_write_that_is_rejected_is_fine() {
    let late = takeover().then(
        1,
        write(1, value(mark(1, 3), Some(mark(1, 1)), 2)),
        Answer::Stale {
            carried: 1,
            current: 2,
        },
    );
    let history = end_of_takeover(late.release(2, 2).acquire(3, 4)).history();
    let checked = check(&history);
    assert_eq!(checked.broken, []);
    let figures = checked.figures;
    assert_eq!((figures.grants, figures.takeovers, figures.late), (3, 1, 1));
    assert_eq!((figures.accepted, checked.updates.acknowledged), (3, 3));
}

#[test]
fn a_late_write_that_is_accepted_is_found_by_every_rule_that_it_breaks() {
    let late = value(mark(1, 3), Some(mark(1, 1)), 2);
    let story = takeover().write(1, late, 3);
    breaks(
        story.read(CONDUCTOR, late, 3, 1).list(&[(mark(1, 2), 1)]),
        &[
            Rule::Linearizable,
            Rule::NoWriteAfterItsEpoch,
            Rule::EpochsGrow,
            Rule::NoLostUpdate,
        ],
    );
}

/// Nobody wrote under the new epoch yet, so neither the order of writes nor the data show it.
#[test]
fn a_late_write_that_harms_nobody_yet_is_found_too() {
    let first = value(mark(1, 1), None, 1);
    let story = Story::default()
        .acquire(1, 1)
        .acquire(2, 2)
        .write(1, first, 1);
    breaks(
        story.read(CONDUCTOR, first, 1, 1).list(&[]),
        &[Rule::Linearizable, Rule::NoWriteAfterItsEpoch],
    );
}

#[test]
fn a_write_beside_the_takeover_may_still_be_accepted() {
    let first = value(mark(1, 1), None, 1);
    let story = Story::default()
        .acquire(1, 1)
        .acquire(2, 2)
        .write(1, first, 1)
        .beside(1);
    accepts(story.read(CONDUCTOR, first, 1, 1).list(&[]));
}

#[test]
fn a_write_after_a_release_a_revoke_or_a_release_with_a_value_is_found() {
    let first = value(mark(1, 1), None, 1);
    let second = value(mark(1, 2), Some(mark(1, 1)), 2);
    let owned = || Story::default().acquire(1, 1);
    let with_value = Call::Write {
        epoch: 1,
        value: first,
        releases: true,
    };
    for ended in [
        owned().write(1, first, 1).release(1, 1),
        owned().write(1, first, 1).revoke(9, 1),
        owned().then(1, with_value, Answer::Written { revision: 1 }),
        owned()
            .write(1, first, 1)
            .then(1, Call::Release { epoch: 1 }, Answer::AlreadyEnded),
    ] {
        let end = |story: Story| story.read(CONDUCTOR, second, 2, 1).list(&[]);
        breaks(
            end(ended.clone().write(1, second, 2)),
            &[Rule::Linearizable, Rule::NoWriteAfterItsEpoch],
        );
        accepts(ended.read(CONDUCTOR, first, 1, 1).list(&[]));
    }
}

/// No other rule looks at when a read was made.
#[test]
fn a_stale_read_is_found_by_the_search_alone_with_revisions_and_without() {
    let stale = takeover().read(3, value(mark(1, 1), None, 1), 1, 1);
    let story = end_of_takeover(stale);
    let found = check_without_revisions(&story.clone().history());
    assert_eq!(found.len(), 1, "{found:?}");
    breaks(story, &[Rule::Linearizable]);
}

#[test]
fn a_counter_that_is_read_stale_is_found() {
    let count = |count, mark| Answer::Counted { count, mark };
    let story = |read| end_of_takeover(takeover().then(3, Call::Count, read));
    accepts(story(count(1, Some(mark(1, 2)))));
    breaks(story(count(0, None)), &[Rule::Linearizable]);
}

/// Written under its own epoch, but without having seen the write before it.
#[test]
fn an_update_that_overwrites_another_is_a_lost_update() {
    let second = value(mark(2, 1), None, 1);
    let story = Story::default()
        .acquire(1, 1)
        .write(1, value(mark(1, 1), None, 1), 1)
        .acquire(2, 2)
        .write(2, second, 2)
        .read(CONDUCTOR, second, 2, 2)
        .list(&[]);
    let checked = check(&story.clone().history());
    assert_eq!((checked.updates.acknowledged, checked.updates.lost), (2, 1));
    breaks(story, &[Rule::NoLostUpdate]);
}

#[test]
fn an_entry_that_overwrites_another_is_a_lost_update() {
    let overwriting = Answer::Appended { before: 1 };
    let story = Story::default()
        .acquire(1, 1)
        .append(1, 1, mark(1, 1))
        .acquire(2, 2)
        .then(2, append(2, 1, mark(2, 1)), overwriting)
        .read_nothing(CONDUCTOR)
        .list(&[(mark(2, 1), 2)]);
    let checked = check(&story.clone().history());
    assert_eq!((checked.updates.acknowledged, checked.updates.lost), (2, 1));
    breaks(story, &[Rule::NoLostUpdate]);
}

#[test]
fn what_was_rejected_must_not_be_there() {
    let stale = Answer::Stale {
        carried: 1,
        current: 2,
    };
    let story = takeover()
        .then(1, append(1, 2, mark(1, 3)), stale)
        .read(CONDUCTOR, value(mark(2, 1), Some(mark(1, 1)), 2), 2, 2)
        .list(&[(mark(1, 2), 1), (mark(1, 3), 1)]);
    breaks(story, &[Rule::Linearizable, Rule::NoLostUpdate]);
}

#[test]
fn epochs_that_go_back_are_found_in_the_register_and_in_the_list() {
    // The times say nothing here: both writes are beside everything.
    let first = value(mark(2, 1), None, 1);
    let second = value(mark(1, 1), Some(mark(2, 1)), 2);
    let story = Story::default()
        .acquire(1, 1)
        .acquire(2, 2)
        .write(2, first, 1)
        .write(1, second, 2)
        .beside(2)
        .read(CONDUCTOR, second, 2, 1)
        .list(&[]);
    breaks(story, &[Rule::Linearizable, Rule::EpochsGrow]);

    let story = Story::default()
        .acquire(1, 1)
        .acquire(2, 2)
        .append(2, 1, mark(2, 1))
        .append(1, 2, mark(1, 1))
        .beside(2)
        .read_nothing(CONDUCTOR)
        .list(&[(mark(2, 1), 2), (mark(1, 1), 1)]);
    breaks(story, &[Rule::Linearizable, Rule::EpochsGrow]);
}

#[test]
fn a_revision_that_is_made_twice_is_found() {
    let second = value(mark(1, 2), Some(mark(1, 1)), 2);
    let story = Story::default()
        .acquire(1, 1)
        .write(1, value(mark(1, 1), None, 1), 1)
        .write(1, second, 1)
        .read(CONDUCTOR, second, 1, 1)
        .list(&[]);
    breaks(story, &[Rule::Linearizable, Rule::EpochsGrow]);
}

#[test]
fn an_epoch_that_is_granted_twice_is_found() {
    let story = takeover().acquire(3, 2);
    breaks(
        end_of_takeover(story),
        &[
            Rule::Linearizable,
            Rule::OneHolderOfAnEpoch,
            Rule::TheTrailAgrees,
        ],
    );
}

#[test]
fn a_write_by_another_process_than_the_holder_is_found() {
    let by_another = value(mark(3, 1), Some(mark(2, 1)), 3);
    let story = takeover()
        .write(2, by_another, 3)
        .read(CONDUCTOR, by_another, 3, 2)
        .list(&[(mark(1, 2), 1)]);
    breaks(story, &[Rule::Linearizable, Rule::TheWriterIsTheHolder]);
}

#[test]
fn a_write_without_an_answer_may_have_happened_or_not_but_not_both() {
    let unknown = value(mark(2, 2), Some(mark(2, 1)), 3);
    let seen = |story: Story| story.read(3, unknown, 3, 2);
    let unseen = |story: Story| story.read(3, value(mark(2, 1), Some(mark(1, 1)), 2), 2, 2);
    let killed = || takeover().open(2, write(2, unknown)).acquire(3, 3);
    let end_seen = |story: Story| {
        story
            .read(CONDUCTOR, unknown, 3, 2)
            .list(&[(mark(1, 2), 1)])
    };
    accepts(end_of_takeover(unseen(killed())));
    // Not after the takeover, which ended its epoch.
    breaks(end_seen(seen(unseen(killed()))), &[Rule::Linearizable]);
    accepts(end_seen(seen(seen(killed()))));
    breaks(end_of_takeover(seen(killed())), &[Rule::Linearizable]);
}

/// Its acquire was carried out, and it was killed before it heard so.
#[test]
fn a_grant_that_nobody_heard_of_can_be_revoked_and_nobody_writes_under_it() {
    let acquire = Call::Acquire { wait_ms: None };
    let revoked = || takeover().open(3, acquire.clone()).revoke(9, 3);
    accepts(end_of_takeover(revoked()));
    let late = revoked().then(2, append(2, 2, mark(2, 2)), Answer::Appended { before: 1 });
    let end = late
        .read(CONDUCTOR, value(mark(2, 1), Some(mark(1, 1)), 2), 2, 2)
        .list(&[(mark(1, 2), 1), (mark(2, 2), 2)]);
    breaks(end, &[Rule::Linearizable, Rule::NoWriteAfterItsEpoch]);
}

/// The gap in the revisions shows that it has happened; the entry of a killed append may stand there.
#[test]
fn what_nobody_answered_fills_a_gap() {
    let unknown = value(mark(2, 2), Some(mark(2, 1)), 3);
    let last = value(mark(3, 1), Some(mark(2, 2)), 4);
    let story = takeover()
        .open(2, write(2, unknown))
        .open(2, append(2, 2, mark(2, 3)))
        .acquire(3, 3)
        .write(3, last, 4);
    let end = |story: Story, entries: &[_]| story.read(CONDUCTOR, last, 4, 3).list(entries);
    accepts(end(story.clone(), &[(mark(1, 2), 1)]));
    accepts(end(story, &[(mark(1, 2), 1), (mark(2, 3), 2)]));
    // Without it nothing explains the gap.
    let unexplained = takeover().acquire(3, 3).write(3, last, 4);
    breaks(
        end(unexplained, &[(mark(1, 2), 1)]),
        &[Rule::Linearizable, Rule::NoLostUpdate],
    );
}

#[test]
fn what_was_heard_and_is_not_in_the_audit_trail_is_found() {
    use AuditEvent::{Granted, Released, Revoked, TakenOver};
    let end = |story: Story, trail: &[_]| {
        end_of_takeover(story).then(CONDUCTOR, Call::Trail, Answer::Trail(trail.to_vec()))
    };
    let (first, second) = (told(Granted, 1, 1), told(TakenOver, 2, 2));
    accepts(end(takeover(), &[first, second]));
    // Whatever else the store tells of.
    accepts(end(
        takeover(),
        &[first, second, told(Revoked, 2, 2), told(Granted, 4, 8)],
    ));
    for trail in [
        &[second][..],
        &[first],
        &[second, first],
        &[first, told(TakenOver, 2, 3)],
        &[first, told(Granted, 2, 2)],
        &[first, told(Released, 2, 1), second],
    ] {
        breaks(end(takeover(), trail), &[Rule::TheTrailAgrees]);
    }
    for ended in [takeover().release(2, 2), takeover().revoke(9, 2)] {
        breaks(end(ended, &[first, second]), &[Rule::TheTrailAgrees]);
    }
}

#[test]
fn callers_hear_no_raw_error_and_no_fence_from_the_future() {
    let hears = |answer| end_of_takeover(takeover().then(9, Call::Revoke, answer));
    let message = "database is locked".to_owned();
    breaks(
        hears(Answer::Unexpected {
            message: message.clone(),
        }),
        &[Rule::Answers],
    );
    accepts(hears(Answer::Unknown { message }));
    breaks(
        hears(Answer::Denied {
            reason: "unauthorized".to_owned(),
        }),
        &[Rule::Answers],
    );
    let future = Answer::Stale {
        carried: 2,
        current: 1,
    };
    let lost = takeover().then(2, append(2, 2, mark(2, 2)), future);
    breaks(end_of_takeover(lost), &[Rule::Answers]);
}

#[test]
fn a_history_without_a_last_look_proves_nothing() {
    breaks(takeover(), &[Rule::NoLostUpdate]);
}

/// What a killed process leaves: the request without its answer, and a line that is cut off.
#[test]
fn a_history_is_read_up_to_the_line_that_was_cut_off() {
    let directory = tempfile::tempdir().unwrap();
    let mut recorder = Recorder::create(directory.path(), 7).unwrap();
    let first = recorder.begin(RESOURCE, Call::Read).unwrap();
    recorder.end(first, Answer::Read(None)).unwrap();
    let second = recorder.begin(RESOURCE, Call::Count).unwrap();
    recorder.end(second, Answer::NotHeld).unwrap();
    let path = directory.path().join("00007.jsonl");
    let text = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, &text[..text.len() - 5]).unwrap();

    let history = History::read(directory.path()).unwrap();
    let [first, second] = &history.operations[..] else {
        panic!("{history:?}");
    };
    assert_eq!(
        (first.process, &first.answer),
        (7, &Some(Answer::Read(None)))
    );
    assert!(first.ended_ns >= Some(first.began_ns));
    assert_eq!((&second.call, &second.answer), (&Call::Count, &None));
    assert_eq!(second.ended_ns, None);

    let line_end = text.find('\n').unwrap();
    std::fs::write(&path, &text.as_bytes()[line_end / 2..]).unwrap();
    let error = History::read(directory.path()).unwrap_err();
    assert!(error.to_string().contains("00007.jsonl:1"), "{error}");
}
