//! How fast register writes are beside bare SQLite on the same disk, measured in turns. Numbers, not
//! verdicts: `cargo test --release -p aster-sqlite --test speed -- --ignored --nocapture`.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::disallowed_methods,
    reason = "a measurement reads the clock and prints"
)]

mod support;

use std::time::{Duration, Instant};

use aster_core::{ExpectedRevision, Fence};
use aster_lease::Registers;
use aster_sqlite::SqliteSerializer;
use rusqlite::{Connection, TransactionBehavior, params};
use support::*;

const ROUNDS: usize = 9;
const SINGLE_WRITES: u32 = 1_000;
const CALLERS: usize = 64;
const WRITES_OF_EACH: u32 = 200;
const VALUE: &[u8] = &[7; 100];

/// So many values are there; the callers' are spread among them, so that each is on a page of its own.
const VALUES: usize = 6_400;
const APART: usize = VALUES / CALLERS;

/// A table of rows with values of 100 bytes, in WAL mode with every commit synced.
fn bare(place: &Place) -> Connection {
    let connection = Connection::open(place.directory.path().join("bare.db")).unwrap();
    connection
        .execute_batch(
            "PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL;
             CREATE TABLE pairs (key INTEGER PRIMARY KEY, count INTEGER, value BLOB);
             BEGIN",
        )
        .unwrap();
    for key in 0..VALUES {
        connection
            .execute(
                "INSERT INTO pairs VALUES (?1, 0, ?2)",
                params![key as i64, VALUE],
            )
            .unwrap();
    }
    connection.execute_batch("COMMIT").unwrap();
    connection
}

/// `commits` transactions that update `rows` rows each.
fn commit_bare(connection: &mut Connection, commits: u32, rows: usize) -> Duration {
    let start = Instant::now();
    for _ in 0..commits {
        let transaction = connection
            .transaction_with_behavior(TransactionBehavior::Immediate)
            .unwrap();
        for key in (0..rows).map(|row| row * APART) {
            transaction
                .prepare_cached("UPDATE pairs SET count = count + 1, value = ?2 WHERE key = ?1")
                .unwrap()
                .execute(params![key as i64, VALUE])
                .unwrap();
        }
        transaction.commit().unwrap();
    }
    start.elapsed()
}

async fn write_times(store: &SqliteSerializer, fence: &Fence, writes: u32) -> Duration {
    let start = Instant::now();
    for _ in 0..writes {
        store
            .compare_and_set(fence, "worker", ExpectedRevision::Any, VALUE.to_vec())
            .await
            .unwrap();
    }
    start.elapsed()
}

fn median(mut values: Vec<f64>) -> (f64, f64, f64) {
    values.sort_by(f64::total_cmp);
    (
        values[0],
        values[values.len() / 2],
        values[values.len() - 1],
    )
}

fn print(what: &str, unit: &str, values: Vec<f64>) {
    let (least, middle, most) = median(values);
    println!("{what}: {middle:.2} {unit} ({least:.2} to {most:.2})");
}

#[test]
#[ignore = "a measurement"]
fn one_write_at_a_time() {
    let place = Place::new();
    let mut connection = bare(&place);
    let store = place.open();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap();
    let fence = runtime.block_on(acquire(&store, "catalog", "worker"));
    let (mut bare_us, mut ours_us, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..=ROUNDS {
        let bare = commit_bare(&mut connection, SINGLE_WRITES, 1).as_secs_f64();
        let ours = runtime
            .block_on(write_times(&store, &fence, SINGLE_WRITES))
            .as_secs_f64();
        if round > 0 {
            bare_us.push(bare * 1e6 / f64::from(SINGLE_WRITES));
            ours_us.push(ours * 1e6 / f64::from(SINGLE_WRITES));
            ratios.push(ours / bare);
        }
    }
    print("bare commit of one row", "us", bare_us);
    print("fenced register write", "us", ours_us);
    print("ratio, goal at most 1.3", "", ratios);
}

#[test]
#[ignore = "a measurement"]
fn sixty_four_callers_at_once() {
    let place = Place::new();
    let mut connection = bare(&place);
    let store = place.open();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_time()
        .build()
        .unwrap();
    let fences: Vec<Fence> = runtime.block_on(async {
        let mut fences = Vec::new();
        for number in 0..VALUES {
            let store = store.clone();
            fences.push(tokio::spawn(async move {
                let fence = acquire(&store, &format!("job/{number:06}"), "worker").await;
                write_times(&store, &fence, 1).await;
                fence
            }));
            // Not more at once than the store's queue takes.
            if fences.len() % 1_000 == 0 {
                for task in &mut fences[number - 999..] {
                    while !task.is_finished() {
                        tokio::time::sleep(Duration::from_millis(1)).await;
                    }
                }
            }
        }
        let mut chosen = Vec::new();
        for (number, task) in fences.into_iter().enumerate() {
            let fence = task.await.unwrap();
            if number % APART == 0 {
                chosen.push(fence);
            }
        }
        chosen
    });
    let total = (CALLERS as f64) * f64::from(WRITES_OF_EACH);
    let (mut bare_rate, mut ours_rate, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..=ROUNDS {
        let bare = commit_bare(&mut connection, WRITES_OF_EACH, CALLERS).as_secs_f64();
        let start = Instant::now();
        runtime.block_on(async {
            let callers: Vec<_> = fences
                .iter()
                .map(|fence| {
                    let (store, fence) = (store.clone(), fence.clone());
                    tokio::spawn(async move { write_times(&store, &fence, WRITES_OF_EACH).await })
                })
                .collect();
            for caller in callers {
                caller.await.unwrap();
            }
        });
        let ours = start.elapsed().as_secs_f64();
        if round > 0 {
            bare_rate.push(total / bare / 1e3);
            ours_rate.push(total / ours / 1e3);
            ratios.push(bare / ours);
        }
    }
    print("bare transactions of 64 rows", "k rows/s", bare_rate);
    print("64 callers at once", "k writes/s", ours_rate);
    print("ratio, goal at least 0.5", "", ratios);
}
