//! The audit trail of the SQLite store stays bounded. That repeated rejections are counted in one
//! record is shown in `stale_writers.rs`.

#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "a test that cannot go on fails, and it owns its threads"
)]

mod support;

use aster_lease::{AuditLog, AuditQuery};
use aster_sqlite::{SqliteOptions, SqliteSerializer};
use rusqlite::Connection;
use support::{Place, TestTime, acquire, options_at, release};

const RECORDS_MAX: usize = 300;
/// Old records go in steps; so many may stand over.
const SLACK: usize = 256;

#[tokio::test]
async fn the_newest_records_stay_and_old_ones_go() {
    let place = Place::new();
    let time = TestTime::new("boot");
    let options = SqliteOptions {
        audit_records_max: RECORDS_MAX,
        ..options_at(&time)
    };
    let store = SqliteSerializer::open_with(&place.path, options).unwrap();
    let mut last = 0;
    for _ in 0..(RECORDS_MAX + 2 * SLACK) / 2 {
        let fence = acquire(&store, "catalog", "worker-a").await;
        release(&store, &fence).await.unwrap();
        last = fence.epoch + 1;
    }
    let newest = store.audit(AuditQuery::default()).await.unwrap();
    assert_eq!(newest.last().unwrap().epoch_current, last);
    drop(store);
    let kept: i64 = Connection::open(&place.path)
        .unwrap()
        .query_row("SELECT count(*) FROM aster_audit", [], |row| row.get(0))
        .unwrap();
    let kept = usize::try_from(kept).unwrap();
    assert!(
        (RECORDS_MAX..=RECORDS_MAX + SLACK).contains(&kept),
        "{kept} records"
    );
}
