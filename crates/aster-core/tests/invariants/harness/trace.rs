//! What was asked of the rules and what they answered, each with the truth at that moment.

use aster_core::{
    Authority, Effect, Fence, FenceRejection, HighWaterRejection, Judged, LeaseOp, Principal,
    RegisterDecision, RegisterWrite, ResourceName, RowState, RowView, RuleError, TransitionOutcome,
};

use super::truth::Truth;

pub(crate) type Trace = Vec<Event>;

#[derive(Debug)]
pub(crate) enum Event {
    Asked(Box<Asked>),
    FenceChecked(Box<FenceChecked>),
    RegisterWritten(RegisterWritten),
    Announced(Announced),
    /// An idle row was dropped; the floor is what it is now.
    Dropped {
        resource: ResourceName,
        epoch: u64,
        floor: u64,
    },
    Restarted,
}

/// One operation at the serializer.
#[derive(Debug)]
pub(crate) struct Asked {
    pub(crate) at_ms: u64,
    pub(crate) resource: ResourceName,
    pub(crate) op: LeaseOp,
    pub(crate) floor: u64,
    pub(crate) judged: Judged,
    /// Whose hold-offs the store judged over just before.
    pub(crate) over: Vec<Principal>,
    /// The row that came in.
    pub(crate) before: Option<RowState>,
    pub(crate) answer: Result<TransitionOutcome, RuleError>,
    pub(crate) effect: Effect,
    pub(crate) after: Option<RowState>,
    /// What a denial means to the caller of a release, revoke or cancel.
    pub(crate) already_ended: bool,
    /// The truth before the operation.
    pub(crate) truth: Truth,
}

impl Asked {
    pub(crate) fn view(&self) -> RowView<'_> {
        view_of(&self.resource, self.floor, self.before.as_ref())
    }
}

/// One protected write.
#[derive(Debug)]
pub(crate) struct FenceChecked {
    pub(crate) resource: ResourceName,
    pub(crate) fence: Fence,
    pub(crate) writer: Principal,
    pub(crate) floor: u64,
    pub(crate) row: Option<RowState>,
    pub(crate) verdict: Result<(), FenceRejection>,
    pub(crate) at_ms: u64,
    pub(crate) truth: Truth,
}

#[derive(Debug)]
pub(crate) struct RegisterWritten {
    pub(crate) resource: ResourceName,
    pub(crate) write: RegisterWrite,
    pub(crate) outcome: Result<RegisterDecision, RuleError>,
}

/// One call to a high-water mark.
#[derive(Debug)]
pub(crate) struct Announced {
    pub(crate) ask: MarkAsk,
    pub(crate) resource: ResourceName,
    pub(crate) fence: Fence,
    pub(crate) writer: Principal,
    pub(crate) epoch_before: u64,
    pub(crate) verdict: Result<(), HighWaterRejection>,
    pub(crate) epoch_after: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MarkAsk {
    Announce,
    Check,
    /// The row's new epoch after a release or revoke.
    End {
        epoch: u64,
    },
}

/// The operations at the serializer.
pub(crate) fn asked(trace: &Trace) -> impl Iterator<Item = &Asked> {
    trace.iter().filter_map(|event| match event {
        Event::Asked(asked) => Some(&**asked),
        _ => None,
    })
}

/// The protected writes.
pub(crate) fn fence_checks(trace: &Trace) -> impl Iterator<Item = &FenceChecked> {
    trace.iter().filter_map(|event| match event {
        Event::FenceChecked(checked) => Some(&**checked),
        _ => None,
    })
}

pub(crate) fn authority() -> Authority {
    Authority::from_bytes([7; 16])
}

pub(super) fn view_of<'a>(
    resource: &'a ResourceName,
    floor: u64,
    row: Option<&'a RowState>,
) -> RowView<'a> {
    RowView {
        authority: authority(),
        resource,
        floor,
        row,
    }
}
