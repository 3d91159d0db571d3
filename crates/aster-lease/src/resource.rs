//! Who enforces ownership: the protected resource.

use aster_core::{Fence, FenceRejection, ResourceName, RowView, check_fence};
use async_trait::async_trait;

/// A resource that checks the fence and the authenticated writer in the same atomic step as the
/// write (specification, "Enforce at the write boundary").
///
/// Implement [`GuardedResource`] instead where you can: there the check cannot be forgotten, and
/// nothing can be awaited between it and the write. Implement this one directly when the step itself
/// is asynchronous.
#[async_trait]
pub trait FencedResource: Send + Sync {
    /// What is asked for.
    type Op: Send;
    /// What comes back.
    type Output: Send;
    /// What can go wrong, a rejected fence among it.
    type Error: From<FenceRejection> + Send;

    /// Does `op` if `fence` and `writer` pass the fence rule, both in one atomic step.
    ///
    /// `writer` comes from the authenticated boundary, never from the fence.
    ///
    /// # Errors
    ///
    /// The rejection, and then nothing has changed; or whatever the operation itself can fail with.
    async fn mutate(
        &self,
        fence: &Fence,
        writer: &str,
        op: Self::Op,
    ) -> Result<Self::Output, Self::Error>;
}

/// The way to write a [`FencedResource`] in which the check cannot be forgotten.
///
/// You say how to lock (or begin a transaction) and load the row, in [`with_row`](Self::with_row),
/// and what a write does, in [`apply`](Self::apply). The provided [`FencedResource::mutate`] puts the
/// check between the two. `apply` is synchronous, so nothing can be awaited after the check.
///
/// ```
/// use std::sync::Mutex;
/// use aster_lease::{
///     Authority, Fence, FenceRejection, FencedResource, GuardedResource, ResourceName, RowState,
///     RowView,
/// };
///
/// /// A catalog whose lease row lives behind the same lock.
/// struct Catalog {
///     authority: Authority,
///     inner: Mutex<(Option<RowState>, String)>,
/// }
///
/// impl GuardedResource for Catalog {
///     type Op = String;
///     type Output = ();
///     type Error = FenceRejection;
///     type State = String;
///
///     fn with_row(
///         &self,
///         resource: &ResourceName,
///         step: &mut dyn FnMut(&RowView<'_>, &mut String) -> Result<(), FenceRejection>,
///     ) -> Result<(), FenceRejection> {
///         let mut inner = self.inner.lock().unwrap_or_else(|poison| poison.into_inner());
///         let (row, text) = &mut *inner;
///         let view = RowView { authority: self.authority, resource, floor: 0, row: row.as_ref() };
///         step(&view, text)
///     }
///
///     fn apply(&self, text: &mut String, op: String) -> Result<(), FenceRejection> {
///         *text = op;
///         Ok(())
///     }
/// }
/// ```
pub trait GuardedResource: Send + Sync {
    /// What is asked for.
    type Op: Send;
    /// What comes back.
    type Output: Send;
    /// What can go wrong, a rejected fence among it.
    type Error: From<FenceRejection> + Send;
    /// What a write may touch: the locked value, the transaction.
    type State: ?Sized;

    /// Takes the lock (or begins the transaction), loads the row of `resource`, calls `step` exactly
    /// once, and keeps what it did only if it returned `Ok`.
    ///
    /// # Errors
    ///
    /// What `step` returned, or a failure to lock, load or commit.
    #[allow(
        clippy::type_complexity,
        reason = "a named alias would hide the one signature to read"
    )]
    fn with_row(
        &self,
        resource: &ResourceName,
        step: &mut dyn FnMut(&RowView<'_>, &mut Self::State) -> Result<Self::Output, Self::Error>,
    ) -> Result<Self::Output, Self::Error>;

    /// The write itself. Called only after the fence rule passed, under the same lock.
    ///
    /// # Errors
    ///
    /// Whatever the operation can fail with; [`with_row`](Self::with_row) then keeps nothing of it.
    fn apply(&self, state: &mut Self::State, op: Self::Op) -> Result<Self::Output, Self::Error>;
}

#[async_trait]
impl<T: GuardedResource> FencedResource for T {
    type Op = <T as GuardedResource>::Op;
    type Output = <T as GuardedResource>::Output;
    type Error = <T as GuardedResource>::Error;

    async fn mutate(
        &self,
        fence: &Fence,
        writer: &str,
        op: Self::Op,
    ) -> Result<Self::Output, Self::Error> {
        let mut op = Some(op);
        self.with_row(&fence.resource, &mut |view, state| {
            check_fence(view, fence, writer)?;
            match op.take() {
                Some(op) => self.apply(state, op),
                // `with_row` called the step twice: the second call must not write.
                None => Err(FenceRejection::Reentrant.into()),
            }
        })
    }
}
