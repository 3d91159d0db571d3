//! The audit trail: written in the same transaction as what it tells of.

use aster_core::{LeaseOp, Principal, ResourceName, TransitionOutcome};
use aster_lease::{AuditEvent, AuditQuery, AuditRecord, SerializerError};
use rusqlite::{Connection, params};

use crate::error::{damaged_row, storage};
use crate::rejections::Report;
use crate::rows::StoredRow;
use crate::schema::{signed, unsigned};

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
    let records_max = records_max as u64;
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

type Read = (String, Option<String>, Option<String>, AuditRecord);

fn read(row: &rusqlite::Row<'_>) -> rusqlite::Result<Read> {
    let record = AuditRecord {
        id: unsigned(row.get(0)?),
        at_unix_ms: unsigned(row.get(1)?),
        event: AuditEvent::Rejected,
        resource: None,
        epoch_carried: row.get::<_, Option<i64>>(4)?.map(unsigned),
        epoch_current: unsigned(row.get(5)?),
        holder: None,
        actor: row.get(7)?,
        detail: row.get(8)?,
        count: unsigned(row.get(9)?),
    };
    Ok((row.get(2)?, row.get(3)?, row.get(6)?, record))
}
