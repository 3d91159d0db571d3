//! What is under way. A message stays until it is delivered, for as long as it takes.

use std::collections::BTreeSet;

/// Who a holder is: its place among the holders.
pub(crate) type HolderId = u8;
/// A wish to acquire; its grant id is made from it.
pub(crate) type WishId = u8;

/// A message under way.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Message {
    /// To the serializer.
    Request {
        /// Who asks, as the connection says.
        from: HolderId,
        /// For what.
        request: Request,
        /// When, on its own clock.
        sent: u8,
    },
    /// From the serializer.
    Answer {
        /// To whom.
        to: HolderId,
        /// What.
        answer: Answer,
        /// When the request was sent that it answers.
        sent: u8,
    },
    /// A protected write under a fence.
    Write {
        /// Who sent it, as the connection says.
        writer: HolderId,
        /// Whom the fence names.
        claimed: HolderId,
        /// The fence's authority.
        authority: u8,
        /// The fence's epoch.
        epoch: u64,
    },
    /// Only with [`Bug::CheckBeforeTheTransaction`](crate::Bug): checked, not yet written.
    Checked {
        /// Who sent it.
        writer: HolderId,
        /// The fence's authority.
        authority: u8,
        /// The fence's epoch.
        epoch: u64,
    },
}

/// What a holder asks of the serializer.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Request {
    /// Granted or denied at once.
    Acquire {
        /// Which wish.
        wish: WishId,
    },
    /// Waits its turn.
    AcquireWait {
        /// Which wish.
        wish: WishId,
    },
    /// Restarts the expiry.
    Renew {
        /// Of which store.
        authority: u8,
        /// Of which epoch.
        epoch: u64,
    },
    /// Gives up an ownership.
    Release {
        /// Of which store.
        authority: u8,
        /// Of which epoch.
        epoch: u64,
    },
    /// Gives up a wish.
    Cancel {
        /// Which wish.
        wish: WishId,
    },
}

/// What the serializer answers.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Answer {
    /// The wish came true.
    Granted {
        /// Which wish.
        wish: WishId,
        /// Under which authority.
        authority: u8,
        /// At which epoch.
        epoch: u64,
        /// It was waited for, and has to be renewed first.
        claim: bool,
    },
    /// The lease lasts another ttl.
    Renewed {
        /// Of which store.
        authority: u8,
        /// Of which epoch.
        epoch: u64,
    },
    /// No, or not any more.
    Denied {
        /// To which wish.
        wish: Option<WishId>,
        /// Or to which epoch.
        epoch: Option<u64>,
    },
}

/// The messages under way. Equal ones are one: delivering one and keeping it is what doubles it.
pub(crate) type Network = BTreeSet<Message>;
