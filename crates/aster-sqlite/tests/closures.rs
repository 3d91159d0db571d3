//! Protected closures: what they may do, what they may not, and that nothing is ever half done.

#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "a test that cannot go on fails, and it owns its threads"
)]

mod support;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc;

use aster_core::{DenyReason, ErrorKind, FenceRejection, TransitionOutcome};
use aster_lease::{FencedError, LeaseSerializer, SerializerError};
use aster_sqlite::SqliteSerializer;
use rusqlite::Transaction;
use support::*;

type Fenced = Result<(), FencedError<rusqlite::Error>>;

/// A store with one held lease and the user's own table `items(name UNIQUE)` with one row `first`.
async fn prepared(place: &Place) -> (SqliteSerializer, aster_core::Fence) {
    let store = place.open();
    let fence = acquire(&store, "catalog", "worker-a").await;
    store
        .mutate_fenced(&fence, "worker-a", |tx| {
            tx.execute_batch(
                "CREATE TABLE items (name TEXT UNIQUE); INSERT INTO items VALUES ('first');",
            )
        })
        .unwrap();
    (store, fence)
}

fn items(place: &Place) -> Vec<String> {
    let connection = rusqlite::Connection::open(&place.path).unwrap();
    let mut select = connection
        .prepare("SELECT name FROM items ORDER BY rowid")
        .unwrap();
    let rows = select.query_map([], |row| row.get(0)).unwrap();
    rows.collect::<Result<_, _>>().unwrap()
}

#[tokio::test]
async fn transaction_control_and_our_tables_are_out_of_reach() {
    let place = Place::new();
    let (store, fence) = prepared(&place).await;
    let forbidden = [
        "COMMIT",
        "END",
        "ROLLBACK",
        "BEGIN",
        "BEGIN IMMEDIATE",
        "ATTACH ':memory:' AS other",
        "DETACH main",
        "PRAGMA synchronous = OFF",
        "PRAGMA journal_mode = DELETE",
        "PRAGMA user_version",
        "PRAGMA writable_schema = ON",
        "SELECT * FROM pragma_table_info('aster_rows')",
        "VACUUM",
        "VACUUM INTO '/dev/null'",
        "SELECT * FROM aster_rows",
        "SELECT * FROM main.ASTER_ROWS",
        "SELECT count(*) FROM Aster_Store",
        "UPDATE \"aster_rows\" SET epoch = 99",
        "UPDATE items SET name = (SELECT holder FROM aster_rows)",
        "INSERT INTO aster_audit (at_unix_ms, event, epoch_current, count) VALUES (0, 'x', 0, 1)",
        "DELETE FROM AsTeR_rOwS",
        "DROP TABLE aster_rows",
        "DROP INDEX aster_rows_free",
        "ALTER TABLE aster_rows RENAME TO mine",
        "ALTER TABLE aster_store ADD COLUMN more",
        "CREATE TABLE aster_mine (x)",
        "CREATE TEMP TABLE aster_rows (x)",
        "CREATE TEMP VIEW aster_store AS SELECT 1",
        "CREATE VIEW aster_view AS SELECT 1",
        "CREATE INDEX mine ON aster_rows (holder)",
        "CREATE TRIGGER mine AFTER UPDATE ON aster_rows BEGIN SELECT 1; END",
        "CREATE TEMP TRIGGER mine AFTER UPDATE ON main.aster_rows BEGIN SELECT 1; END",
        "CREATE TABLE copied AS SELECT * FROM aster_rows",
        "WITH hidden AS (SELECT * FROM aster_registers) SELECT * FROM hidden",
        "REINDEX aster_rows_free",
        "ANALYZE aster_rows",
    ];
    for sql in forbidden {
        // Alone, and in the middle of work that must not stay.
        let alone = store.mutate_fenced(&fence, "worker-a", |tx| {
            tx.execute("INSERT INTO items VALUES ('half')", [])?;
            tx.execute_batch(sql)
        });
        assert!(
            matches!(alone, Err(FencedError::Operation(_))),
            "{sql}: {alone:?}"
        );
        assert_eq!(items(&place), ["first"], "{sql}");
        let row = store.snapshot("catalog").await.unwrap();
        assert!(row.held && row.epoch == 1, "{sql}");
        assert_renewed(renew(&store, &fence).await);
    }
}

#[tokio::test]
async fn a_refused_statement_can_be_passed_over_and_the_rest_commits_under_the_fence() {
    let place = Place::new();
    let (store, fence) = prepared(&place).await;
    let done: Fenced = store.mutate_fenced(&fence, "worker-a", |tx| {
        tx.execute("INSERT INTO items VALUES ('second')", [])?;
        for sql in [
            "COMMIT",
            "ROLLBACK",
            "DELETE FROM aster_rows",
            "PRAGMA synchronous = OFF",
        ] {
            assert!(tx.execute_batch(sql).is_err(), "{sql}");
        }
        tx.execute("INSERT INTO items VALUES ('third')", [])
            .map(|_| ())
    });
    done.unwrap();
    assert_eq!(items(&place), ["first", "second", "third"]);
}

#[tokio::test]
async fn triggers_and_views_do_not_lead_into_our_tables() {
    let place = Place::new();
    let (store, fence) = prepared(&place).await;
    // Made by somebody with the file in hand; a closure must not act through them.
    let outside = rusqlite::Connection::open(&place.path).unwrap();
    outside
        .execute_batch(
            "CREATE TRIGGER sneaky AFTER INSERT ON items BEGIN UPDATE aster_rows SET epoch = 99; END;
             CREATE VIEW window AS SELECT holder FROM aster_rows;",
        )
        .unwrap();
    for sql in [
        "INSERT INTO items VALUES ('second')",
        "SELECT * FROM window",
    ] {
        let refused: Fenced = store.mutate_fenced(&fence, "worker-a", |tx| tx.execute_batch(sql));
        assert!(
            matches!(refused, Err(FencedError::Operation(_))),
            "{sql}: {refused:?}"
        );
    }
    assert_eq!(store.snapshot("catalog").await.unwrap().epoch, 1);
}

#[tokio::test]
async fn sql_that_ends_the_transaction_leaves_nothing_behind() {
    let place = Place::new();
    let (store, fence) = prepared(&place).await;
    store
        .mutate_fenced(&fence, "worker-a", |tx| {
            tx.execute_batch(
                "CREATE TABLE trap (x);
                 CREATE TRIGGER snap BEFORE INSERT ON trap BEGIN SELECT RAISE(ROLLBACK, 'x'); END;",
            )
        })
        .unwrap();
    for ending in [
        "INSERT OR ROLLBACK INTO items VALUES ('first')",
        "INSERT INTO trap VALUES (1)",
    ] {
        // The closure does not look at the error and goes on: its later statements must not commit
        // one by one, without a fence.
        let ended: Fenced = store.mutate_fenced(&fence, "worker-a", |tx| {
            tx.execute("INSERT INTO items VALUES ('before')", [])?;
            assert!(tx.execute_batch(ending).is_err());
            assert!(
                tx.is_autocommit(),
                "{ending} should have ended the transaction"
            );
            assert!(
                tx.execute("INSERT INTO items VALUES ('after')", [])
                    .is_err()
            );
            assert!(
                tx.execute_batch("BEGIN; INSERT INTO items VALUES ('x'); COMMIT")
                    .is_err()
            );
            assert!(tx.execute_batch("CREATE TABLE after (x)").is_err());
            Ok(())
        });
        let Err(FencedError::Store(error)) = ended else {
            panic!("{ending}: {ended:?}")
        };
        assert_eq!(error.kind(), ErrorKind::FixCall, "{error}");
        assert!(
            error.to_string().contains("nothing of it was kept"),
            "{error}"
        );
        assert_eq!(items(&place), ["first"], "{ending}");
        // And the store goes on.
        store
            .mutate_fenced(&fence, "worker-a", |tx| publish(tx, ending))
            .unwrap();
    }
    assert_eq!(published(&place.path).len(), 2);
}

#[tokio::test]
async fn the_users_own_tables_are_all_theirs() {
    let place = Place::new();
    let (store, fence) = prepared(&place).await;
    let done: Fenced = store.mutate_fenced(&fence, "worker-a", |tx| {
        tx.execute_batch(
            "CREATE TABLE asterisk (x); ALTER TABLE asterisk RENAME TO asters; DROP TABLE asters;
             SAVEPOINT one; INSERT INTO items VALUES ('undone'); ROLLBACK TO one; RELEASE one;
             CREATE INDEX items_name ON items (name); REINDEX items_name;
             CREATE TEMP TABLE scratch (x); INSERT INTO scratch VALUES (1);
             CREATE VIRTUAL TABLE texts USING fts5(body);
             INSERT INTO texts VALUES ('a fenced lease');",
        )?;
        tx.execute("INSERT OR IGNORE INTO items VALUES ('first')", [])?;
        tx.execute("INSERT INTO items VALUES ('second')", [])
            .map(|_| ())
    });
    done.unwrap();
    let found: i64 = store
        .mutate_fenced(&fence, "worker-a", |tx| {
            tx.query_row(
                "SELECT count(*) FROM texts WHERE texts MATCH 'lease'",
                [],
                |row| row.get(0),
            )
        })
        .unwrap();
    assert_eq!(found, 1);
    assert_eq!(items(&place), ["first", "second"]);
}

#[tokio::test]
async fn a_deferred_constraint_that_does_not_hold_is_the_callers_fault() {
    let place = Place::new();
    let (store, fence) = prepared(&place).await;
    let violated: Fenced = store.mutate_fenced(&fence, "worker-a", |tx| {
        tx.execute_batch(
            "CREATE TABLE parts (
                 item TEXT REFERENCES items (name) DEFERRABLE INITIALLY DEFERRED
             );
             INSERT INTO parts VALUES ('no such item');
             INSERT INTO items VALUES ('half');",
        )
    });
    let Err(FencedError::Store(error)) = violated else {
        panic!("{violated:?}")
    };
    assert_eq!(error.kind(), ErrorKind::FixCall, "{error}");
    assert_eq!(items(&place), ["first"]);
    store
        .mutate_fenced(&fence, "worker-a", |tx| publish(tx, "v1"))
        .unwrap();
}

#[tokio::test]
async fn an_error_or_a_panic_leaves_nothing_and_the_store_goes_on() {
    let place = Place::new();
    let (store, fence) = prepared(&place).await;
    let failed = store.mutate_fenced(&fence, "worker-a", |tx| -> Result<(), String> {
        tx.execute("INSERT INTO items VALUES ('half')", []).unwrap();
        Err("the user's own reason".to_owned())
    });
    assert!(matches!(failed, Err(FencedError::Operation(reason)) if reason.contains("own reason")));
    let panicked = catch_unwind(AssertUnwindSafe(|| {
        store.mutate_fenced(&fence, "worker-a", |tx| -> rusqlite::Result<()> {
            tx.execute("INSERT INTO items VALUES ('half')", [])?;
            panic!("the user's own panic")
        })
    }));
    let payload = panicked.unwrap_err();
    assert_eq!(
        *payload.downcast_ref::<&str>().unwrap(),
        "the user's own panic"
    );
    assert_eq!(items(&place), ["first"]);
    store
        .mutate_fenced(&fence, "worker-a", |tx| publish(tx, "v1"))
        .unwrap();
    release(&store, &fence).await.unwrap();
    acquire(&store, "catalog", "worker-b").await;
}

#[tokio::test]
async fn every_wrong_fence_has_its_named_rejection_and_runs_nothing() {
    let place = Place::new();
    let (store, fence) = prepared(&place).await;
    let elsewhere = Place::new();
    let (_other_store, foreign) = prepared(&elsewhere).await;
    acquire(&store, "other", "worker-a").await;
    let with = |change: &dyn Fn(&mut aster_core::Fence)| {
        let mut fence = fence.clone();
        change(&mut fence);
        fence
    };
    let stale = |carried| FenceRejection::StaleEpoch {
        carried,
        current: 1,
    };
    let future = |carried| FenceRejection::FutureEpoch {
        carried,
        current: 1,
    };
    let future_of_absent = FenceRejection::FutureEpoch {
        carried: 1,
        current: 0,
    };
    let cases = [
        (foreign, "worker-a", FenceRejection::WrongAuthority),
        (with(&|fence| fence.epoch = 0), "worker-a", stale(0)),
        (with(&|fence| fence.epoch = 2), "worker-a", future(2)),
        (
            with(&|fence| fence.epoch = u64::MAX),
            "worker-a",
            future(u64::MAX),
        ),
        (
            with(&|fence| fence.resource = "absent".try_into().unwrap()),
            "worker-a",
            future_of_absent,
        ),
        (fence.clone(), "worker-b", FenceRejection::NotHolder),
        (
            with(&|fence| fence.holder = principal("worker-b")),
            "worker-b",
            FenceRejection::NotHolder,
        ),
        (
            with(&|fence| fence.holder = principal("worker-b")),
            "worker-a",
            FenceRejection::NotHolder,
        ),
    ];
    for (fence, writer, expected) in cases {
        let mut ran = false;
        let refused: Fenced = store.mutate_fenced(&fence, writer, |_| {
            ran = true;
            Ok(())
        });
        let Err(FencedError::Rejected(rejection)) = refused else {
            panic!("{refused:?}")
        };
        assert_eq!(rejection, expected);
        assert!(!ran, "{expected:?}");
    }
    assert_eq!(store.future_epoch_rejections(), 3);
    release(&store, &fence).await.unwrap();
    let refused: Fenced =
        store.mutate_fenced(&with(&|fence| fence.epoch = 2), "worker-a", |_| Ok(()));
    assert!(
        matches!(refused, Err(FencedError::Rejected(FenceRejection::NotHeld))),
        "{refused:?}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_closure_that_calls_its_own_store_is_refused_and_does_not_hang() {
    let place = Place::new();
    let (store, fence) = prepared(&place).await;
    let same_file = SqliteSerializer::open(&place.path).unwrap();
    let runtime = tokio::runtime::Handle::current();
    let (inner_store, inner_fence) = (store.clone(), fence.clone());
    let done = tokio::task::spawn_blocking(move || {
        let (store, fence) = (inner_store, inner_fence);
        store.mutate_fenced(&fence, "worker-a", |tx| -> rusqlite::Result<()> {
            for again in [&store, &same_file] {
                let nested: Fenced = again.mutate_fenced(&fence, "worker-a", |_| Ok(()));
                let Err(FencedError::Store(error)) = nested else {
                    panic!("{nested:?}")
                };
                assert!(matches!(error, SerializerError::Reentrant), "{error}");
                let release = runtime.block_on(release(again, &fence));
                assert!(
                    matches!(release, Err(SerializerError::Reentrant)),
                    "{release:?}"
                );
                // Renewals and reads need no lock that the closure holds.
                assert_renewed(runtime.block_on(renew(again, &fence)));
                assert!(runtime.block_on(again.snapshot("catalog")).unwrap().held);
            }
            publish(tx, "v1")
        })
    });
    done.await.unwrap().unwrap();
    assert_eq!(published(&place.path), ["v1"]);
}

/// The clock is moved by three ttl while the closure runs; renewals go on in between.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn renewals_go_on_while_a_closure_takes_three_ttl() {
    let place = Place::new();
    let time = TestTime::new("boot");
    let store = place.open_at(&time);
    let own = acquire(&store, "catalog", "worker-a").await;
    let other = acquire(&store, "other", "worker-b").await;
    let (inside, is_inside) = mpsc::channel();
    let (go_on, may_go_on) = mpsc::channel::<()>();
    let (closing_store, fence) = (store.clone(), own.clone());
    let closure = std::thread::spawn(move || {
        closing_store.mutate_fenced(&fence, "worker-a", |tx| {
            inside.send(()).unwrap();
            may_go_on.recv().unwrap();
            publish(tx, "slow")
        })
    });
    is_inside.recv().unwrap();
    for _ in 0..6 {
        time.advance_ms(TTL_MS / 2);
        assert_renewed(renew(&store, &own).await);
        assert_renewed(renew(&store, &other).await);
        let (reason, _) = denied(try_acquire(&store, "other", "worker-c").await);
        assert_eq!(reason, DenyReason::HeldByOther);
    }
    go_on.send(()).unwrap();
    closure.join().unwrap().unwrap();
    assert_eq!(published(&place.path), ["slow"]);
}

/// The closure of a stale-to-be writer has passed its check and is paused. A takeover has to wait for
/// it, so its write still belongs to its own epoch; afterwards the same fence is refused.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_takeover_cannot_come_between_the_check_and_the_write() {
    let place = Place::new();
    let time = TestTime::new("boot");
    let store = place.open_at(&time);
    let old = acquire(&store, "catalog", "worker-a").await;
    time.advance_ms(TTL_MS);
    let (inside, is_inside) = mpsc::channel();
    let (go_on, may_go_on) = mpsc::channel::<()>();
    let (closing_store, fence) = (store.clone(), old.clone());
    let closure = std::thread::spawn(move || {
        closing_store.mutate_fenced(&fence, "worker-a", |tx| {
            inside.send(()).unwrap();
            may_go_on.recv().unwrap();
            publish(tx, "v1 by a")
        })
    });
    is_inside.recv().unwrap();
    let takeover_store = store.clone();
    let takeover = tokio::spawn(async move {
        let new = acquire(&takeover_store, "catalog", "worker-b").await;
        takeover_store
            .mutate_fenced(&new, "worker-b", |tx| publish(tx, "v2 by b"))
            .unwrap();
        new
    });
    // The takeover is queued and cannot be granted while the closure holds the transaction.
    assert_eq!(store.snapshot("catalog").await.unwrap().epoch, old.epoch);
    assert!(!takeover.is_finished());
    go_on.send(()).unwrap();
    closure.join().unwrap().unwrap();
    let new = takeover.await.unwrap();
    assert_eq!(new.epoch, old.epoch + 1);
    let late: Fenced = store.mutate_fenced(&old, "worker-a", |tx| publish(tx, "late by a"));
    assert!(matches!(
        late,
        Err(FencedError::Rejected(FenceRejection::StaleEpoch { .. }))
    ));
    assert_eq!(published(&place.path), ["v1 by a", "v2 by b"]);
}

/// The control for the test above: with the check outside the transaction the stale write gets in.
#[tokio::test]
async fn control_a_check_outside_the_transaction_lets_the_stale_write_through() {
    let place = Place::new();
    let time = TestTime::new("boot");
    let store = place.open_at(&time);
    let old = acquire(&store, "catalog", "worker-a").await;
    time.advance_ms(TTL_MS);
    let seen = store.snapshot("catalog").await.unwrap();
    let is_owner = seen.held && seen.epoch == old.epoch && seen.holder == Some(old.holder);
    assert!(is_owner, "the unfenced worker believes that it may write");

    let new = acquire(&store, "catalog", "worker-b").await;
    store
        .mutate_fenced(&new, "worker-b", |tx| publish(tx, "v2 by b"))
        .unwrap();

    let mut unfenced = rusqlite::Connection::open(&place.path).unwrap();
    let transaction: Transaction<'_> = unfenced.transaction().unwrap();
    publish(&transaction, "late by a").unwrap();
    transaction.commit().unwrap();
    assert_eq!(
        published(&place.path),
        ["v2 by b", "late by a"],
        "the damage"
    );
}

#[tokio::test]
async fn a_dropped_future_leaves_the_request_carried_out_or_not_and_a_retry_is_recognized() {
    let place = Place::new();
    let store = place.open();
    let wish = || acquire_op("worker-a", TTL_MS, grant_id(1));
    for polls in 0..8 {
        let _dropped = after_polls(polls, store.transition("catalog", wish())).await;
    }
    let fence = granted(store.transition("catalog", wish()).await);
    assert_eq!(fence.epoch, 1);
    let released = store.transition("catalog", release_op("worker-a", 1)).await;
    assert!(matches!(released, Ok(TransitionOutcome::Released)));
}
