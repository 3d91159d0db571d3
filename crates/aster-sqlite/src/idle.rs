//! Rows that have long been free go away, so that a million names stay bounded. The epoch floor rises
//! in the same transaction, so that a name that comes back starts above every epoch it ever had.

use aster_core::{EPOCH_MAX, ResourceName, floor_behind};
use aster_lease::SerializerError;
use rusqlite::{Connection, params};

use crate::error::storage;
use crate::judge::judge;
use crate::rows::{self, Stamp};
use crate::schema::{Id, count, signed};
use crate::side::{End, SideError, SideFile};
use crate::writer::{Writer, begin};

/// A sweep follows this many ownership changes…
const SWEEP_EVERY: u64 = 256;
/// …and drops at most this many rows: more than can become free in between.
const SWEEP_ROWS_MAX: u64 = 512;

/// A row above this epoch stays: dropping it would raise the floor so far that every new name would
/// soon have used up its epochs.
const DROPPED_EPOCH_MAX: u64 = EPOCH_MAX / 2;

/// When to sweep. A process that makes a few changes and ends has its share too: by the store's own
/// count of commits, one in [`SWEEP_EVERY`] falls to whoever makes it, and more to whoever puts many
/// changes into one commit.
#[derive(Debug, Default)]
pub(crate) struct Sweeps {
    /// Of this process since its last sweep.
    changes: u64,
    is_due: bool,
}

impl Sweeps {
    /// The store's commit of this number was ours, with so many ownership changes.
    pub(crate) fn committed(&mut self, sequence: u64, changes: u64) {
        self.changes += changes;
        let is_our_share = sequence % SWEEP_EVERY < changes.max(1);
        self.is_due |= is_our_share || self.changes >= SWEEP_EVERY;
    }

    pub(crate) fn is_due(&self) -> bool {
        self.is_due
    }
}

/// Drops what is idle, in one bounded step.
pub(crate) fn sweep(writer: &mut Writer) -> Result<(), SideError> {
    writer.sweeps = Sweeps::default();
    let shared = writer.shared.clone();
    let mut begun = begin(&shared, &writer.main, writer.patience)?;
    let side = shared.side(&mut writer.side, &begun.store)?;
    let now = Stamp {
        era: side.era,
        since_ns: shared.now_ns(),
    };
    restamp_foreign(&begun.transaction, now)?;
    end_foreign_hold_offs(&begun.transaction, side, now)?;
    let idle_ns = u64::try_from(shared.options.idle_retention.as_nanos()).unwrap_or(u64::MAX);
    let mut dropped = match now.since_ns.checked_sub(idle_ns) {
        Some(until_ns) => drop_free(&begun.transaction, now, until_ns, SWEEP_ROWS_MAX)?,
        None => Vec::new(),
    };
    let excess =
        count_free(&begun.transaction)?.saturating_sub(shared.options.idle_rows_max as u64);
    let room = SWEEP_ROWS_MAX.saturating_sub(dropped.len() as u64);
    if excess > 0 && room > 0 {
        dropped.extend(drop_free(
            &begun.transaction,
            now,
            u64::MAX,
            excess.min(room),
        )?);
    }
    let Some(highest) = dropped.iter().map(|(_, epoch)| *epoch).max() else {
        begun.transaction.commit().map_err(storage)?;
        return Ok(());
    };
    begun.store.floor = floor_behind(begun.store.floor, highest);
    let store = begun.commit(&shared)?;
    shared.side(&mut writer.side, &store)?.write(|side| {
        for (resource, _) in &dropped {
            side.forget(resource)?;
        }
        Ok(((), End::Commit))
    })?;
    writer.afterwards.saw(&store);
    Ok(())
}

/// When a row of another clock became free is not known on ours: count from now.
fn restamp_foreign(connection: &Connection, now: Stamp) -> Result<(), SerializerError> {
    for side in ["era < ?1", "era > ?1"] {
        let sql = format!(
            "UPDATE main.aster_rows SET era = ?1, since_ns = ?2 WHERE resource IN
             (SELECT resource FROM main.aster_rows WHERE holder IS NULL AND {side} LIMIT ?3)"
        );
        connection
            .prepare_cached(&sql)
            .and_then(|mut update| {
                update.execute(params![
                    now.era,
                    signed(now.since_ns),
                    signed(SWEEP_ROWS_MAX)
                ])
            })
            .map_err(storage)?;
    }
    Ok(())
}

/// Hold-offs of another clock end by what was watched of them on ours.
fn end_foreign_hold_offs(
    connection: &Connection,
    side: &mut SideFile,
    now: Stamp,
) -> Result<(), SideError> {
    let resources: Vec<String> = connection
        .prepare_cached(
            "SELECT DISTINCT resource FROM main.aster_hold_offs JOIN main.aster_rows USING (resource)
             WHERE aster_hold_offs.era <> ?1 AND aster_rows.holder IS NULL LIMIT ?2",
        )
        .and_then(|mut select| {
            select
                .query_map(params![now.era, signed(SWEEP_ROWS_MAX)], |row| row.get(0))?
                .collect()
        })
        .map_err(storage)?;
    if resources.is_empty() {
        return Ok(());
    }
    let resources = resources.into_iter().flat_map(ResourceName::new);
    let resources: Vec<_> = resources.collect();
    side.write(|side| {
        let mut end = End::Rollback;
        for resource in &resources {
            // A damaged row is reported to whoever asks for it; the others do not wait for that.
            let Ok(Some(before)) = rows::load(connection, resource) else {
                continue;
            };
            let evidence = side.evidence(resource, Some(&before))?;
            let mut row = before.clone();
            for (watched, seen) in judge(&mut row, &evidence, now.era, now.since_ns).watches {
                side.watch(resource, watched, seen)?;
                end = End::Commit;
            }
            if row != before {
                rows::store(connection, resource, &row, Some(&before))?;
                for epoch in rows::ended_hold_offs(&row, Some(&before)) {
                    side.forget_hold_off(resource, epoch)?;
                }
                end = End::Commit;
            }
        }
        Ok(((), end))
    })
}

/// Drops free rows without a register that keep nobody out any more, the longest free first.
fn drop_free(
    connection: &Connection,
    now: Stamp,
    until_ns: u64,
    limit: u64,
) -> Result<Vec<(ResourceName, u64)>, SerializerError> {
    let mut delete = connection
        .prepare_cached(
            "DELETE FROM main.aster_rows WHERE resource IN (
                 SELECT resource FROM main.aster_rows AS free
                 WHERE holder IS NULL AND era = ?1 AND since_ns BETWEEN 0 AND ?2
                   AND epoch BETWEEN 1 AND ?5
                   AND (hold_offs = 0 OR NOT EXISTS (
                        SELECT 1 FROM main.aster_hold_offs AS hold_off
                        WHERE hold_off.resource = free.resource AND NOT (hold_off.era = ?1
                          AND hold_off.since_ns + hold_off.duration_ms * 1000000 <= ?3)))
                   AND NOT EXISTS (SELECT 1 FROM main.aster_registers AS register
                                   WHERE register.resource = free.resource)
                 ORDER BY era, since_ns LIMIT ?4)
             RETURNING resource, epoch, hold_offs",
        )
        .map_err(storage)?;
    let era: Id = now.era;
    let values = params![
        era,
        signed(until_ns),
        signed(now.since_ns),
        signed(limit),
        signed(DROPPED_EPOCH_MAX)
    ];
    let mut rows = delete.query(values).map_err(storage)?;
    let mut dropped = Vec::new();
    while let Some(row) = rows.next().map_err(storage)? {
        let resource: String = row.get(0).map_err(storage)?;
        let epoch = count(row, 1).map_err(storage)?;
        let hold_offs: i64 = row.get(2).map_err(storage)?;
        if hold_offs > 0 {
            connection
                .prepare_cached("DELETE FROM main.aster_hold_offs WHERE resource = ?1")
                .and_then(|mut delete| delete.execute([&resource]))
                .map_err(storage)?;
        }
        // A name that we would never have written is dropped all the same.
        if let Ok(resource) = ResourceName::new(resource) {
            dropped.push((resource, epoch));
        }
    }
    Ok(dropped)
}

fn count_free(connection: &Connection) -> Result<u64, SerializerError> {
    connection
        .prepare_cached("SELECT count(*) FROM main.aster_rows WHERE holder IS NULL")
        .and_then(|mut select| select.query_row([], |row| count(row, 0)))
        .map_err(storage)
}

#[cfg(test)]
mod tests {
    use super::{SWEEP_EVERY, SWEEP_ROWS_MAX, Sweeps};

    /// However the changes are spread over commits, and the commits over processes: what is dropped
    /// keeps up with what can become free.
    #[test]
    fn sweeps_keep_up_with_changes_whoever_makes_them() {
        for changes_each in [1, 2, 7, 100, 256] {
            for commits_each in [1, 2, 3, 1_000] {
                let (mut process, mut sweeps, mut changes) = (Sweeps::default(), 0, 0);
                for sequence in 0..100 * SWEEP_EVERY {
                    if sequence % commits_each == 0 {
                        process = Sweeps::default();
                    }
                    process.committed(sequence, changes_each);
                    changes += changes_each;
                    if process.is_due() {
                        sweeps += 1;
                        process = Sweeps::default();
                    }
                }
                let room = sweeps * SWEEP_ROWS_MAX;
                assert!(
                    room >= changes,
                    "{changes_each} {commits_each}: {room} {changes}"
                );
                assert!(
                    sweeps <= 3 * changes / SWEEP_EVERY,
                    "{changes_each} {commits_each}"
                );
            }
        }
    }
}
