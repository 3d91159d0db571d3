//! How far the model goes, and the bugs that can be planted.

/// How often each thing may happen in one history. The instants are ticks of 100 ms; a lease lasts three of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    /// Workers that want the resource.
    pub holders: u8,
    /// How far time goes.
    pub ticks: u8,
    /// Wishes to acquire, each with a grant id of its own.
    pub wishes: u8,
    /// Renewals that are sent.
    pub renewals: u8,
    /// Protected writes that are sent.
    pub writes: u8,
    /// Messages that are delivered a second time.
    pub duplicates: u8,
    /// Ticks that a holder's clock misses. One is what the margin allows for.
    pub lags: u8,
    /// Restarts of the serializer, which forgets its instants and its queue.
    pub restarts: u8,
    /// Leases that an operator takes away.
    pub revokes: u8,
    /// Free rows that are dropped behind the floor.
    pub drops: u8,
    /// Backups that are taken and put back.
    pub restores: u8,
    /// Whether wishes may wait in the queue.
    pub queue: bool,
}

impl Bounds {
    /// Small enough for every test run, with everything in it at least once.
    pub const SMALL: Bounds = Bounds {
        holders: 2,
        ticks: 5,
        wishes: 2,
        renewals: 1,
        writes: 1,
        duplicates: 1,
        lags: 1,
        restarts: 0,
        revokes: 0,
        drops: 0,
        restores: 0,
        queue: false,
    };
}

/// A mistake that somebody could make. The checker has to find each.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Bug {
    /// The resource checks the fence, and writes later.
    CheckBeforeTheTransaction,
    /// A release frees the row and leaves its epoch as it was.
    ReleaseKeepsTheEpoch,
    /// The same wish again, while its grant is current, gets a second grant.
    RetryMintsASecondGrant,
    /// Expiry is judged on a wall clock that somebody may set.
    TakeoverTrustsAWallClock,
    /// A free row is dropped first, and the floor rises in a step of its own.
    FloorRaisedAfterTheDrop,
    /// A restored backup is used under the authority that it had.
    RestoreKeepsTheAuthority,
    /// A restored store serves whoever still speaks to the one that it was before.
    AuthorityIsNotAsked,
    /// A holder uses a grant that it waited for without renewing it first.
    ClaimIsUsedUnrenewed,
    /// The claim time goes on to count after the renewal.
    ClaimOutlivesItsRenewal,
    /// A grant that nobody claims stays.
    UnclaimedGrantNeverLapses,
    /// A holder counts from the arrival of the answer and not from the sending of its request.
    AnchorAtTheAnswer,
    /// The resource believes the holder in the fence and does not ask who writes.
    WriterIsNotAsked,
    /// A release is carried out for whatever epoch the row is at.
    ReleaseIgnoresTheEpoch,
}
