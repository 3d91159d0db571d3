//! The audit trail: written in the same transaction as what it tells of.

use aster_core::{LeaseOp, Principal, ResourceName, TransitionOutcome};
use aster_lease::{AuditEvent, AuditQuery, AuditRecord, SerializerError};
use rusqlite::{Connection, params};

use crate::error::{damaged_row, storage};
use crate::rejections::Report;
use crate::rows::StoredRow;
use crate::schema::{count, signed, unsigned};

/// Old records go away in steps of this many.
const PRUNE_STEP: u64 = 256;

/// A record that has no id yet.
#[derive(Debug, Clone)]
pub(crate) struct NewRecord<'a> {
    pub(crate) at_unix_ms: u64,
    pub(crate) event: AuditEvent,
    pub(crate) resource: Option<&'a str>,
    pub(crate) epoch_carried: Option<u64>,
    pub(crate) epoch_current: u64,
    pub(crate) holder: Option<&'a str>,
    pub(crate) actor: Option<&'a str>,
    pub(crate) detail: Option<&'a str>,
    pub(crate) count: u64,
}

pub(crate) fn insert(
    connection: &Connection,
    record: &NewRecord<'_>,
    records_max: usize,
) -> Result<(), SerializerError> {
    connection
        .prepare_cached(
            "INSERT INTO main.aster_audit
             (at_unix_ms, event, resource, epoch_carried, epoch_current, holder, actor, detail, count)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)",
        )
        .and_then(|mut insert| {
            insert.execute(params![
                signed(record.at_unix_ms),
                record.event.name(),
                record.resource,
                record.epoch_carried.map(signed),
                signed(record.epoch_current),
                record.holder,
                record.actor,
                record.detail,
                signed(record.count),
            ])
        })
        .map_err(storage)?;
    // The newest stays in any case: by it others notice that there were changes.
    let records_max = records_max.max(1) as u64;
    let id = unsigned(connection.last_insert_rowid());
    if id.is_multiple_of(PRUNE_STEP) && id > records_max {
        connection
            .prepare_cached("DELETE FROM main.aster_audit WHERE id <= ?1")
            .and_then(|mut delete| delete.execute([signed(id - records_max)]))
            .map_err(storage)?;
    }
    Ok(())
}

/// The record of an ownership change. `before` is the row that it changed.
pub(crate) fn of_transition<'a>(
    resource: &'a ResourceName,
    op: &'a LeaseOp,
    outcome: &TransitionOutcome,
    before: Option<&'a StoredRow>,
    epoch_current: u64,
    at_unix_ms: u64,
    detail: Option<&'a str>,
) -> Option<NewRecord<'a>> {
    let ended = before.filter(|row| row.state.held.is_some());
    let event = match (outcome, ended) {
        (TransitionOutcome::Granted(_), None) => AuditEvent::Granted,
        (TransitionOutcome::Granted(_), Some(_)) => AuditEvent::TakenOver,
        (TransitionOutcome::Released, _) => AuditEvent::Released,
        (TransitionOutcome::Revoked, _) => AuditEvent::Revoked,
        (TransitionOutcome::Cancelled, _) => AuditEvent::Cancelled,
        _ => return None,
    };
    let holder = match op {
        LeaseOp::Acquire { candidate, .. } => Some(candidate.as_str()),
        _ => ended.and_then(|row| row.state.holder().map(Principal::as_str)),
    };
    Some(NewRecord {
        at_unix_ms,
        event,
        resource: Some(resource.as_str()),
        epoch_carried: ended.map(|row| row.state.epoch),
        epoch_current,
        holder,
        actor: Some(op.actor()),
        detail,
        count: 1,
    })
}

pub(crate) fn of_rejection(report: &Report, at_unix_ms: u64) -> NewRecord<'_> {
    let rejected = report.rejected.as_ref();
    NewRecord {
        at_unix_ms,
        event: AuditEvent::Rejected,
        resource: rejected.map(|rejected| rejected.resource.as_str()),
        epoch_carried: rejected.map(|rejected| rejected.carried),
        epoch_current: report.current,
        holder: report.holder.as_ref().map(Principal::as_str),
        actor: rejected.map(|rejected| rejected.writer.as_str()),
        detail: Some(rejected.map_or("too many kinds to tell apart", |rejected| rejected.reason)),
        count: report.count,
    }
}

/// The newest matching records, oldest first.
pub(crate) fn query(
    connection: &Connection,
    query: &AuditQuery,
) -> Result<Vec<AuditRecord>, SerializerError> {
    const COLUMNS: &str = "id, at_unix_ms, event, resource, epoch_carried, epoch_current, holder,
         actor, detail, count";
    let after = signed(query.after.unwrap_or(0));
    let limit = signed(query.page() as u64);
    let filter = match query.resource {
        Some(_) => "resource = ?3 AND",
        None => "?3 IS NULL AND",
    };
    let sql = format!(
        "SELECT {COLUMNS} FROM main.aster_audit WHERE {filter} id > ?1 ORDER BY id DESC LIMIT ?2"
    );
    let mut select = connection.prepare_cached(&sql).map_err(storage)?;
    let resource = query.resource.as_ref().map(ResourceName::as_str);
    let mut rows = select
        .query(params![after, limit, resource])
        .map_err(storage)?;
    let mut records = Vec::new();
    while let Some(row) = rows.next().map_err(storage)? {
        let (event, resource, holder, record) = read(row).map_err(storage)?;
        // A later version may know more events; this one passes over them.
        let Some(event) = AuditEvent::from_name(&event) else {
            continue;
        };
        records.push(AuditRecord {
            event,
            resource: resource
                .map(ResourceName::new)
                .transpose()
                .map_err(damaged_row)?,
            holder: holder
                .map(Principal::new)
                .transpose()
                .map_err(damaged_row)?,
            ..record
        });
    }
    records.reverse();
    Ok(records)
}

/// Which resources have a record after some id.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Changed {
    /// These, up to the newest id.
    These(Vec<ResourceName>, u64),
    /// Too many to list, or some of their records are gone.
    Many(u64),
}

/// Every change of ownership writes a record, so this finds all rows that have changed.
pub(crate) fn changed_since(
    connection: &Connection,
    after: u64,
    changes_max: usize,
) -> Result<Changed, SerializerError> {
    let mut select = connection
        .prepare_cached(
            "SELECT id, resource FROM main.aster_audit WHERE id > ?1 ORDER BY id DESC LIMIT ?2",
        )
        .map_err(storage)?;
    let limit = signed(changes_max as u64).saturating_add(1);
    let mut rows = select
        .query(params![signed(after), limit])
        .map_err(storage)?;
    let mut changed = Vec::new();
    let (mut newest, mut oldest, mut records) = (after, None, 0);
    while let Some(row) = rows.next().map_err(storage)? {
        let id = count(row, 0).map_err(storage)?;
        newest = newest.max(id);
        oldest = Some(id);
        records += 1;
        let resource: Option<String> = row.get(1).map_err(storage)?;
        changed.extend(resource.map(ResourceName::new).transpose().ok().flatten());
    }
    // Old records go away, and with them what they tell.
    let has_gap = oldest.is_some_and(|oldest| oldest != after + 1);
    Ok(match has_gap || records > changes_max {
        true => Changed::Many(newest),
        false => Changed::These(changed, newest),
    })
}

type Read = (String, Option<String>, Option<String>, AuditRecord);

fn read(row: &rusqlite::Row<'_>) -> rusqlite::Result<Read> {
    let record = AuditRecord {
        id: count(row, 0)?,
        at_unix_ms: count(row, 1)?,
        event: AuditEvent::Rejected,
        resource: None,
        epoch_carried: row
            .get::<_, Option<i64>>(4)?
            .map(|_| count(row, 4))
            .transpose()?,
        epoch_current: count(row, 5)?,
        holder: None,
        actor: row.get(7)?,
        detail: row.get(8)?,
        count: count(row, 9)?,
    };
    Ok((row.get(2)?, row.get(3)?, row.get(6)?, record))
}

#[cfg(test)]
mod tests {
    use super::{Changed, changed_since};

    #[test]
    fn what_changed_is_told_by_its_records_and_a_gap_or_a_flood_is_everything() {
        let connection = rusqlite::Connection::open_in_memory().unwrap();
        connection
            .execute_batch(
                "CREATE TABLE aster_audit (id INTEGER PRIMARY KEY, resource TEXT);
                 INSERT INTO aster_audit VALUES (5, 'a'), (6, NULL), (7, 'b'), (8, 'a');",
            )
            .unwrap();
        let since = |after, max| match changed_since(&connection, after, max).unwrap() {
            Changed::These(names, newest) => {
                let names: Vec<_> = names.iter().map(|name| name.as_str().to_owned()).collect();
                format!("{} until {newest}", names.concat())
            }
            Changed::Many(newest) => format!("many until {newest}"),
        };
        assert_eq!(since(4, 4), "aba until 8");
        assert_eq!(since(6, 4), "ab until 8");
        assert_eq!(since(8, 4), " until 8");
        assert_eq!(since(4, 3), "many until 8");
        assert_eq!(since(3, 9), "many until 8");
    }
}
