//! The rules behind a seam, so that a control can break exactly one of them.

use aster_core::{
    Decision, DenyReason, Fence, FenceRejection, HighWaterMark, HighWaterRejection, Judged,
    LeaseOp, LeaseSnapshot, RegisterDecision, RegisterState, RegisterWrite, RowView, RuleError,
    TtlBounds, check_fence, retry_outcome, transition, write_register,
};

/// Everything that the model store asks the core. The default bodies are the real thing.
pub(crate) trait Rules: Sync {
    fn transition(
        &self,
        view: &RowView<'_>,
        judged: &Judged,
        bounds: &TtlBounds,
        op: &LeaseOp,
    ) -> Result<Decision, RuleError> {
        transition(view, judged, bounds, op)
    }

    fn check_fence(
        &self,
        view: &RowView<'_>,
        fence: &Fence,
        writer: &str,
    ) -> Result<(), FenceRejection> {
        check_fence(view, fence, writer)
    }

    fn already_ended(&self, op: &LeaseOp, reason: DenyReason, snapshot: &LeaseSnapshot) -> bool {
        retry_outcome(op, reason, snapshot)
    }

    fn write_register(
        &self,
        current: Option<&RegisterState>,
        write: &RegisterWrite,
        bytes_max: usize,
    ) -> Result<RegisterDecision, RuleError> {
        write_register(current, write, bytes_max)
    }

    /// Whether the floor rises in the same step that drops a row, or only after the next operation.
    fn floor_rises_with_drop(&self) -> bool {
        true
    }

    /// Whether the store drops the hold-offs that it judges over before it asks.
    fn hold_offs_end(&self) -> bool {
        true
    }

    fn announce(
        &self,
        mark: &mut HighWaterMark,
        fence: &Fence,
        writer: &str,
    ) -> Result<(), HighWaterRejection> {
        mark.announce(fence, writer)
    }

    fn check_mark(
        &self,
        mark: &HighWaterMark,
        fence: &Fence,
        writer: &str,
    ) -> Result<(), HighWaterRejection> {
        mark.check(fence, writer)
    }

    fn announce_end(
        &self,
        mark: &mut HighWaterMark,
        epoch: u64,
        fence: &Fence,
    ) -> Result<(), HighWaterRejection> {
        mark.announce_end(fence.authority, epoch)
    }
}

pub(crate) struct RealRules;

impl Rules for RealRules {}
