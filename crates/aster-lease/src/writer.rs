//! The authenticated identity that asks for a protected write.

/// Something that names an authenticated writer: `&str`, `&String`, and the peer identities of a
/// transport.
///
/// It comes from the connection, the database role or the local identity file. A fence's own
/// `holder` does not implement it, because checking a fence against itself checks nothing:
///
/// ```compile_fail,E0277
/// # use aster_lease::{Fence, MemorySerializer};
/// # fn demo(serializer: MemorySerializer, fence: Fence) {
/// serializer.mutate_fenced(&fence, &fence.holder, || ());
/// # }
/// ```
///
/// ```
/// # use aster_lease::{Fence, MemorySerializer};
/// # fn demo(serializer: MemorySerializer, fence: Fence, node_id: String) {
/// serializer.mutate_fenced(&fence, &node_id, || ());
/// serializer.mutate_fenced(&fence, "worker-a", || ());
/// # }
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not an authenticated writer",
    label = "give the identity that the connection, role or identity file proved",
    note = "a fence must not be checked against its own holder"
)]
pub trait Writer {
    /// The identity as text.
    fn writer(&self) -> &str;
}

impl Writer for str {
    fn writer(&self) -> &str {
        self
    }
}

impl Writer for String {
    fn writer(&self) -> &str {
        self
    }
}
