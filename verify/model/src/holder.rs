//! What a holder knows and does.

use crate::bounds::Bug;
use crate::network::{Answer, HolderId, Message, Request, WishId};
use crate::store::TTL;

/// How many ticks before the serializer may give it away a holder stops: what its clock may miss.
const MARGIN: u8 = 1;

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Holder {
    /// How many ticks its clock has missed.
    pub(crate) lag: u8,
    pub(crate) phase: Phase,
}

/// Instants are of the holder's own clock.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Phase {
    Idle,
    Wishing {
        wish: WishId,
    },
    /// Granted after a wait: nothing may be done before a renewal.
    Claiming {
        wish: WishId,
        authority: u8,
        epoch: u64,
    },
    Holding {
        authority: u8,
        epoch: u64,
        anchor: u8,
    },
}

impl Holder {
    pub(crate) fn new() -> Self {
        Self {
            lag: 0,
            phase: Phase::Idle,
        }
    }

    pub(crate) fn clock(&self, now: u8) -> u8 {
        now.saturating_sub(self.lag)
    }

    /// The fence that it would hand out now.
    pub(crate) fn usable(&self, now: u8) -> Option<(u8, u64)> {
        match self.phase {
            Phase::Holding {
                authority,
                epoch,
                anchor,
            } if self.within_limit(now, anchor) => Some((authority, epoch)),
            _ => None,
        }
    }

    fn within_limit(&self, now: u8, anchor: u8) -> bool {
        self.clock(now).saturating_sub(anchor) < TTL - MARGIN
    }

    /// Past its limit a lease has ended for good; whether that is so now.
    pub(crate) fn look_at_the_clock(&mut self, now: u8) -> bool {
        let is_over = matches!(self.phase, Phase::Holding { .. }) && self.usable(now).is_none();
        if is_over {
            self.phase = Phase::Idle;
        }
        is_over
    }

    /// What it would renew now.
    pub(crate) fn renewable(&self, now: u8) -> Option<(u8, u64)> {
        match self.phase {
            Phase::Claiming {
                authority, epoch, ..
            } => Some((authority, epoch)),
            _ => self.usable(now),
        }
    }

    /// Whether it would do anything with the answer.
    pub(crate) fn waits_for(&self, answer: &Answer) -> bool {
        match (answer, &self.phase) {
            (Answer::Granted { wish, .. }, Phase::Wishing { wish: mine }) => wish == mine,
            (
                Answer::Denied {
                    wish: Some(wish), ..
                },
                Phase::Wishing { wish: mine },
            ) => wish == mine,
            (
                Answer::Renewed { epoch, .. }
                | Answer::Denied {
                    epoch: Some(epoch), ..
                },
                Phase::Claiming { epoch: mine, .. } | Phase::Holding { epoch: mine, .. },
            ) => epoch == mine,
            _ => false,
        }
    }

    /// An answer to a request that it sent at `sent`. What it sends because of it comes back.
    pub(crate) fn hears(
        &mut self,
        me: HolderId,
        now: u8,
        answer: &Answer,
        sent: u8,
        bug: Option<Bug>,
    ) -> Option<Message> {
        match (answer, &self.phase) {
            (
                &Answer::Granted {
                    wish,
                    authority,
                    epoch,
                    claim,
                },
                &Phase::Wishing { wish: mine },
            ) if wish == mine => {
                let anchor = match bug {
                    Some(Bug::AnchorAtTheAnswer) => self.clock(now),
                    Some(Bug::ClaimIsUsedUnrenewed) if claim => self.clock(now),
                    _ => sent,
                };
                if claim && bug != Some(Bug::ClaimIsUsedUnrenewed) {
                    self.phase = Phase::Claiming {
                        wish,
                        authority,
                        epoch,
                    };
                } else if self.within_limit(now, anchor) {
                    self.phase = Phase::Holding {
                        authority,
                        epoch,
                        anchor,
                    };
                } else {
                    // It came too late to rely on: given back.
                    self.phase = Phase::Idle;
                    let request = Request::Cancel { wish };
                    return Some(Message::Request {
                        from: me,
                        request,
                        sent: self.clock(now),
                    });
                }
            }
            (
                &Answer::Renewed { authority, epoch },
                &Phase::Claiming {
                    authority: of,
                    epoch: mine,
                    ..
                },
            ) if (authority, epoch) == (of, mine) => {
                self.phase = Phase::Holding {
                    authority,
                    epoch,
                    anchor: sent,
                };
                self.look_at_the_clock(now);
            }
            (
                &Answer::Renewed { authority, epoch },
                &Phase::Holding {
                    authority: of,
                    epoch: mine,
                    anchor,
                },
            ) if (authority, epoch) == (of, mine) => {
                let anchor = match bug {
                    Some(Bug::AnchorAtTheAnswer) => self.clock(now),
                    _ => anchor.max(sent),
                };
                self.phase = Phase::Holding {
                    authority,
                    epoch,
                    anchor,
                };
            }
            (
                &Answer::Denied {
                    wish: Some(wish), ..
                },
                &Phase::Wishing { wish: mine },
            ) if wish == mine => {
                self.phase = Phase::Idle;
            }
            (
                &Answer::Denied {
                    epoch: Some(epoch), ..
                },
                &(Phase::Claiming { epoch: mine, .. } | Phase::Holding { epoch: mine, .. }),
            ) if epoch == mine => self.phase = Phase::Idle,
            _ => {}
        }
        None
    }
}
