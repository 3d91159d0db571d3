//! Grants and ids for the cases.

use std::sync::atomic::{AtomicU64, Ordering};

use aster_lease::{
    Fence, GrantId, LeaseOp, LeaseSerializer, Principal, ResourceName, TransitionOutcome, Ttl,
};

use crate::measure::Failure;

/// Long enough that nothing expires while it is measured.
pub(crate) const TTL_LONG_MS: u64 = 60 * 60 * 1_000;

static GRANTS: AtomicU64 = AtomicU64::new(1);

/// A new grant id; counted, because drawing one is not what is measured.
pub(crate) fn grant_id() -> GrantId {
    let count = u128::from(GRANTS.fetch_add(1, Ordering::Relaxed));
    GrantId::from_bytes(count.to_be_bytes())
}

/// A name of 20 bytes.
pub(crate) fn name(index: usize) -> String {
    format!("resource-{index:011}")
}

/// One grant of `resource` to `holder`.
pub(crate) async fn grant(
    serializer: &dyn LeaseSerializer,
    resource: &str,
    holder: &str,
    ttl_ms: u64,
) -> Result<Fence, Failure> {
    let acquire = LeaseOp::Acquire {
        candidate: Principal::new(holder)?,
        ttl: Ttl::from_millis(ttl_ms)?,
        grant_id: grant_id(),
    };
    match serializer.transition(resource, acquire).await? {
        TransitionOutcome::Granted(fence) => Ok(fence),
        other => Err(format!("{other:?} to an acquire of {resource}").into()),
    }
}

/// The same fence in memory of its own, as a writer has it that did not just make the grant.
pub(crate) fn copy(fence: &Fence) -> Result<Fence, Failure> {
    Ok(Fence {
        authority: fence.authority,
        resource: ResourceName::new(fence.resource.as_str())?,
        epoch: fence.epoch,
        holder: Principal::new(fence.holder.as_str())?,
    })
}

/// The numbers below `count` in an order without a pattern, the same in every run.
pub(crate) fn shuffled(count: usize) -> Vec<usize> {
    let mut numbers: Vec<usize> = (0..count).collect();
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    for last in (1..count).rev() {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        let other = usize::try_from(state % (last as u64 + 1)).unwrap_or(0);
        numbers.swap(last, other);
    }
    numbers
}
