//! A closure whose SQL has ended its transaction cannot begin another one: what that one wrote would
//! commit without its fence having been checked.

#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "a test that cannot go on fails, and it owns its threads"
)]

mod support;

use aster_core::ErrorKind;
use aster_lease::{FencedError, LeaseSerializer};
use aster_sqlite::SqliteSerializer;
use rusqlite::Transaction;
use support::process::{Other, hear, role, store_path, tell};
use support::*;

type Fenced = Result<(), FencedError<rusqlite::Error>>;

/// Two ways to end a transaction that no authorizer sees.
const ENDINGS: [&str; 2] = [
    "INSERT OR ROLLBACK INTO items VALUES ('first')",
    "INSERT INTO trap VALUES (1)",
];

async fn prepared(place: &Place) -> (SqliteSerializer, aster_core::Fence) {
    let store = place.open();
    let fence = acquire(&store, "catalog", "worker-a").await;
    store
        .mutate_fenced(&fence, "worker-a", |tx| {
            tx.execute_batch(
                "CREATE TABLE items (name TEXT UNIQUE); INSERT INTO items VALUES ('first');
                 CREATE TABLE trap (x);
                 CREATE TRIGGER snap BEFORE INSERT ON trap BEGIN SELECT RAISE(ROLLBACK, 'x'); END;",
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

fn assert_ended(ended: Fenced, place: &Place) {
    let Err(FencedError::Store(error)) = ended else {
        panic!("{ended:?}; the table holds {:?}", items(place))
    };
    assert_eq!(error.kind(), ErrorKind::FixCall, "{error}");
    assert!(
        error.to_string().contains("nothing of it was kept"),
        "{error}"
    );
    assert_eq!(items(place), ["first"]);
}

/// Work item by item, each under a savepoint, and an item that fails is passed over.
#[tokio::test]
async fn a_savepoint_begins_no_new_transaction() {
    for ending in ENDINGS {
        let place = Place::new();
        let (store, fence) = prepared(&place).await;
        let item = |tx: &Transaction<'_>, sql: &str| {
            let _ = tx.execute_batch("SAVEPOINT item");
            if tx.execute_batch(sql).is_err() {
                let _ = tx.execute_batch("ROLLBACK TO item");
            }
        };
        let ended: Fenced = store.mutate_fenced(&fence, "worker-a", |tx| {
            item(tx, "INSERT INTO items VALUES ('before')");
            item(tx, ending);
            item(tx, "INSERT INTO items VALUES ('after')");
            Ok(())
        });
        assert_ended(ended, &place);
        store
            .mutate_fenced(&fence, "worker-a", |tx| publish(tx, "v1"))
            .unwrap();
    }
}

/// Statements that were compiled while the transaction lived are not compiled, and not seen, again.
#[tokio::test]
async fn statements_compiled_before_the_end_do_not_help() {
    for ending in ENDINGS {
        let place = Place::new();
        let (store, fence) = prepared(&place).await;
        let ended: Fenced = store.mutate_fenced(&fence, "worker-a", |tx| {
            let mut savepoint = tx.prepare("SAVEPOINT again")?;
            let mut insert = tx.prepare("INSERT INTO items VALUES (?1)")?;
            tx.execute_batch(ending).unwrap_err();
            let _ = insert.execute(["alone"]);
            let _ = savepoint.execute([]);
            let _ = insert.execute(["after"]);
            Ok(())
        });
        assert_ended(ended, &place);
        store
            .mutate_fenced(&fence, "worker-a", |tx| publish(tx, "v1"))
            .unwrap();
    }
}

/// What the other process does: it takes the lease away and for itself.
#[test]
fn other_process() {
    if role().is_none() {
        return;
    }
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap();
    let store = SqliteSerializer::open(store_path()).unwrap();
    tell("ready");
    hear();
    let taken = runtime.block_on(async {
        let revoke = revoke_op(1, None);
        store.transition("catalog", revoke).await.unwrap();
        acquire(&store, "catalog", "worker-b").await
    });
    tell(&format!("granted {}", taken.epoch));
}

/// The damage that is kept away: between the end and the savepoint another process became the owner.
#[tokio::test]
async fn what_follows_a_takeover_is_not_written() {
    for ending in ENDINGS {
        let place = Place::new();
        let (store, fence) = prepared(&place).await;
        let mut other = Other::start("other_process", "owner", &place.path);
        other.expect("ready");
        let ended: Fenced = store.mutate_fenced(&fence, "worker-a", |tx| {
            tx.execute_batch(ending).unwrap_err();
            // The file's lock went with the transaction.
            assert_eq!(other.ask("take it"), "granted 3");
            let _ = tx.execute_batch("SAVEPOINT again");
            let _ = tx.execute_batch("INSERT INTO items VALUES ('stale')");
            Ok(())
        });
        other.finish();
        assert_ended(ended, &place);
    }
}
