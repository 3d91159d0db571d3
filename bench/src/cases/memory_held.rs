//! What it costs to hold many leases: processor time of a process that does nothing else.

use std::sync::Arc;
use std::time::Duration;

use aster_lease::{AcquireOutcome, LeaseHandle, LeaseOptions, LeaseStatus, MemorySerializer};

use crate::leases::name;
use crate::measure::{Failure, Scale, Spread, now, processor_time};
use crate::table::{Goal, Line};

const TTL: Duration = Duration::from_secs(30);
/// How long the leases are held before anything is measured: until renewals have spread out.
const SETTLE: Duration = Duration::from_secs(35);
const WINDOW: Duration = Duration::from_secs(20);
/// Percent of one core.
const SHARE_MAX: f64 = 5.0;

pub(super) fn run(scale: Scale) -> Result<Vec<Line>, Failure> {
    let runtime = tokio::runtime::Runtime::new()?;
    runtime.block_on(hold(scale))
}

async fn hold(scale: Scale) -> Result<Vec<Line>, Failure> {
    let count = scale.pick(100_000, 1_000);
    let ttl = scale.pick(TTL, Duration::from_secs(1));
    let store = Arc::new(MemorySerializer::new());
    let mut handles = Vec::with_capacity(count);
    for index in 0..count {
        let options = LeaseOptions::with_ttl(ttl);
        let acquired =
            LeaseHandle::acquire(store.clone(), &name(index), "worker-a", options).await?;
        match acquired {
            AcquireOutcome::Granted(handle) => handles.push(handle),
            AcquireOutcome::Denied(reason, _) => return Err(format!("denied: {reason}").into()),
        }
    }
    tokio::time::sleep(scale.pick(SETTLE, Duration::from_millis(100))).await;
    let window = scale.pick(WINDOW, Duration::from_millis(500));
    let mut shares = Vec::new();
    for _ in 0..scale.pick(5, 1) {
        let (started, used) = (now(), processor_time());
        tokio::time::sleep(window).await;
        let used = processor_time().saturating_sub(used);
        shares.push(100.0 * used.as_secs_f64() / started.elapsed().as_secs_f64());
    }
    let lost = handles
        .iter()
        .filter(|handle| handle.status() != LeaseStatus::Held)
        .count();
    if lost > 0 {
        return Err(format!("{lost} of {count} leases were lost").into());
    }
    let what =
        format!("{count} held leases, ttl {ttl:?}: processor time, in windows of {window:?}");
    let spread = Spread::of(shares);
    let goal = Goal::AtMost(SHARE_MAX);
    Ok(vec![Line::alone(
        "memory-held",
        what,
        "% of a core",
        spread,
        goal,
    )])
}
