//! Damage to the files of a store: values of any type in any column, and bytes.

use std::path::Path;

use rusqlite::Connection;
use rusqlite::types::Value;

use crate::targets::draw::{Draw, RESOURCES};

/// The tables of the main file and of the side file, with their columns.
const TABLES: [(bool, &str, &[&str]); 12] = [
    (
        true,
        "aster_store",
        &[
            "schema_version",
            "authority",
            "floor",
            "sequence",
            "inode",
            "birth_ns",
            "side_id",
        ],
    ),
    (
        true,
        "aster_rows",
        &[
            "epoch",
            "revision",
            "grant_id",
            "holder",
            "ttl_ms",
            "era",
            "since_ns",
            "hold_offs",
            "resource",
        ],
    ),
    (
        true,
        "aster_hold_offs",
        &[
            "epoch",
            "holder",
            "duration_ms",
            "era",
            "since_ns",
            "resource",
        ],
    ),
    (
        true,
        "aster_registers",
        &[
            "value_revision",
            "epoch",
            "writer",
            "write_id",
            "value",
            "resource",
        ],
    ),
    (
        true,
        "aster_audit",
        &[
            "at_unix_ms",
            "event",
            "resource",
            "epoch_carried",
            "epoch_current",
            "holder",
            "actor",
            "detail",
            "count",
            "id",
        ],
    ),
    (true, "aster_backup", &["authority", "sequence"]),
    (false, "side", &["id", "authority", "sequence"]),
    (false, "eras", &["domain", "era", "armed", "made"]),
    (
        false,
        "renewals",
        &[
            "epoch", "revision", "era", "since_ns", "expired", "resource",
        ],
    ),
    (
        false,
        "watches",
        &[
            "era", "hold_off", "epoch", "revision", "since_ns", "resource",
        ],
    ),
    (
        false,
        "waiters",
        &[
            "candidate",
            "ttl_ms",
            "grant_id",
            "process",
            "era",
            "since_ns",
            "until_ns",
            "ticket",
            "resource",
        ],
    ),
    (
        false,
        "claims",
        &["grant_id", "era", "since_ns", "duration_ns", "resource"],
    ),
];

/// How many changes one input makes at most.
const CHANGES_MAX: usize = 4;
/// The longest text or blob that is put into a column.
const VALUE_BYTES_MAX: usize = 600;

/// Changes values in the tables of the main file at `main` and of the side file at `side`.
pub(crate) fn change_values(draw: &mut Draw<'_>, main: &Path, side: Option<&Path>) {
    for _ in 0..=draw.below(CHANGES_MAX) {
        let (is_main, table, columns) = draw.one_of(&TABLES);
        let path = match (is_main, side) {
            (true, _) => main,
            (false, Some(side)) => side,
            (false, None) => continue,
        };
        let connection = Connection::open(path).unwrap();
        // What a schema still forbids stays as it is.
        let _ = connection.pragma_update(None, "ignore_check_constraints", true);
        let _ = match draw.below(8) {
            0 => connection.execute(&format!("DELETE FROM {table}"), []),
            1 => connection.execute(
                &format!("DELETE FROM {table} WHERE resource = ?1"),
                [draw.one_of(&RESOURCES)],
            ),
            2 => {
                let others: Vec<&str> = columns
                    .iter()
                    .copied()
                    .filter(|column| !matches!(*column, "resource" | "id" | "ticket" | "made"))
                    .collect();
                let others = others.join(", ");
                connection.execute(
                    &format!(
                        "INSERT INTO {table} (resource, {others}) SELECT ?1, {others} FROM {table} LIMIT 1"
                    ),
                    [value(draw)],
                )
            }
            3 => connection.execute(
                &format!(
                    "UPDATE {table} SET {} = ?1 WHERE resource = ?2",
                    draw.one_of(columns)
                ),
                (value(draw), draw.one_of(&RESOURCES)),
            ),
            _ => connection.execute(
                &format!("UPDATE {table} SET {} = ?1", draw.one_of(columns)),
                [value(draw)],
            ),
        };
    }
}

fn value(draw: &mut Draw<'_>) -> Value {
    match draw.below(8) {
        0 => Value::Null,
        1..=3 => Value::Integer(draw.near(3).cast_signed()),
        4 => Value::Real(f64::from_bits(draw.number())),
        5 => Value::Text(String::from_utf8_lossy(draw.bytes(VALUE_BYTES_MAX)).into_owned()),
        6 => Value::Blob(draw.bytes(VALUE_BYTES_MAX).to_vec()),
        _ => Value::Blob(vec![
            draw.below(256) as u8;
            draw.one_of(&[0, 8, 15, 16, 17])
        ]),
    }
}

/// Makes text of every blob in a column, whatever its bytes: SQLite does not look.
pub(crate) fn blobs_to_text(draw: &mut Draw<'_>, main: &Path) {
    let (_, table, columns) = draw.one_of(&TABLES[..5]);
    let column = draw.one_of(columns);
    let connection = Connection::open(main).unwrap();
    let sql = format!("UPDATE {table} SET {column} = CAST(?1 AS TEXT)");
    let _ = connection.execute(&sql, [Value::Blob(draw.bytes(16).to_vec())]);
}

/// Changes bytes of one of these files.
pub(crate) fn change_bytes(draw: &mut Draw<'_>, contents: &mut [Option<Vec<u8>>]) {
    for _ in 0..=draw.below(2 * CHANGES_MAX) {
        let which = draw.below(contents.len());
        let Some(Some(bytes)) = contents.get_mut(which) else {
            continue;
        };
        let at = draw.below(bytes.len());
        let end = (at + 1 + draw.below(64)).min(bytes.len());
        match draw.below(8) {
            0 | 1 if at < bytes.len() => bytes[at] ^= 1 << draw.below(8),
            2 if at < bytes.len() => bytes[at] = draw.below(256) as u8,
            3 => {
                let number = draw.near(0).to_be_bytes();
                let width = draw.one_of(&[1, 2, 4, 8]);
                let end = (at + width).min(bytes.len());
                bytes.splice(at..end, number[8 - width..].iter().copied());
            }
            4 => bytes[at..end].fill(draw.one_of(&[0, 0xff])),
            5 => bytes.truncate(at),
            6 => bytes.extend(draw.bytes(64)),
            _ => {
                let page = 512;
                let (from, to) = (at / page * page, draw.below(bytes.len()) / page * page);
                if from + page <= bytes.len() && to + page <= bytes.len() {
                    bytes.copy_within(from..from + page, to);
                }
            }
        }
    }
}
