//! What the queues have to tell once a batch is durable, and what has to be done before that is told.

use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::Duration;

use aster_core::{Fence, GrantId, ResourceName};
use aster_lease::WaitOutcome;
use aster_lease::metrics::HandOver;

use crate::calls::{Answer, Ending};
use crate::judge::Claim;
use crate::plans::after;
use crate::schema::StoreRow;
use crate::shared::Shared;
use crate::side::{End, SideFile};
use crate::waiters::ProcessId;
use crate::waiting::Waiting;
use crate::wake::{self, Peer};

/// What a commit takes matters to a claim from this part of the claim time on.
const NOTICEABLE_DIVISOR: u32 = 8;
/// The next commit is not expected to take longer than this, however long the last one took.
const COMMIT_EXPECTED_MAX: Duration = Duration::from_secs(60);

/// Who waits, for those who hand over to it.
#[derive(Debug)]
pub(crate) enum Whose {
    Ours,
    /// Of another process, which can be woken if it was reached.
    Theirs(Option<Peer>),
}

/// A grant that somebody waited for.
#[derive(Debug)]
pub(crate) struct HandedOver {
    pub(crate) ticket: i64,
    pub(crate) grant_id: GrantId,
    pub(crate) fence: Fence,
    pub(crate) claim: Claim,
    pub(crate) whose: Whose,
    pub(crate) cause: HandOver,
}

/// What the queue has to tell after a commit.
#[derive(Debug, Default)]
pub(crate) struct News {
    pub(crate) handed_over: Vec<HandedOver>,
    /// Of ours who were first in a queue and were refused.
    pub(crate) refused: Vec<(ResourceName, GrantId, Answer)>,
    /// Tickets of those who were refused because of a change that is not durable yet.
    pub(crate) refused_tickets: Vec<i64>,
    /// Others who have to look.
    pub(crate) wakes: Vec<(ResourceName, Peer)>,
    /// Where somebody else is first now.
    pub(crate) changed: Vec<ResourceName>,
    /// Processes that were found dead.
    pub(crate) dead: Vec<ProcessId>,
    /// Grants that went to somebody else because nobody claimed them.
    pub(crate) claims_lapsed: usize,
    /// Waits of ours that end with this batch, or go on without it.
    pub(crate) endings: Vec<Ending>,
}

impl News {
    /// Whether `grant_id` was handed its row in this batch.
    pub(crate) fn has_granted(&self, resource: &ResourceName, grant_id: GrantId) -> bool {
        self.handed_over
            .iter()
            .any(|handed| handed.grant_id == grant_id && handed.fence.resource == *resource)
    }

    /// The tickets of those who were granted. They are dropped in time.
    pub(crate) fn granted_tickets(&self) -> impl Iterator<Item = i64> {
        self.handed_over.iter().map(|handed| handed.ticket)
    }

    /// The tickets to drop before those who had them look.
    pub(crate) fn refused_tickets(&self) -> &[i64] {
        &self.refused_tickets
    }

    /// The claims that do not begin about now.
    fn misjudged(&self, now_ns: u64) -> Vec<&HandedOver> {
        let is_misjudged = |handed: &&HandedOver| {
            let Claim {
                since_ns, duration, ..
            } = handed.claim;
            Duration::from_nanos(now_ns.abs_diff(since_ns)) >= duration / NOTICEABLE_DIVISOR
        };
        self.handed_over.iter().filter(is_misjudged).collect()
    }

    /// A grant went to somebody else because nobody claimed it.
    pub(crate) fn claim_lapsed(&mut self) {
        self.claims_lapsed += 1;
    }

    /// Tells those whom it concerns, and counts. What it tells of is durable.
    pub(crate) fn tell(self, main: &Path, waiting: &Waiting) {
        for _ in 0..self.claims_lapsed {
            waiting.metrics.claim_lapsed();
        }
        for handed in self.handed_over {
            waiting.metrics.handed_over(handed.cause);
            let resource = handed.fence.resource.clone();
            match handed.whose {
                Whose::Theirs(Some(peer)) => peer.wake(&resource),
                // It looks by itself.
                Whose::Theirs(None) => {}
                Whose::Ours => {
                    let granted = WaitOutcome::Granted {
                        fence: handed.fence,
                        claim: Some(handed.claim.duration),
                    };
                    waiting.answer_grant(&resource, handed.grant_id, Ok(granted));
                }
            }
        }
        for (resource, grant_id, answer) in self.refused {
            waiting.answer_grant(&resource, grant_id, answer);
        }
        for (resource, peer) in self.wakes {
            peer.wake(&resource);
        }
        waiting.changed(&self.changed);
        for process in self.dead {
            wake::bury(main, process);
        }
    }
}

/// When a claim of that length is to begin whose grant is decided now. Nobody can claim it before its commit
/// is durable: if the last one took long, so may this one.
pub(crate) fn durable_at_ns(shared: &Shared, duration: Duration) -> u64 {
    let took = Duration::from_nanos(shared.commit_took_ns.load(Ordering::Relaxed));
    match took >= duration / NOTICEABLE_DIVISOR {
        true => after(shared.now_ns(), took.min(COMMIT_EXPECTED_MAX)),
        false => shared.now_ns(),
    }
}

/// Lets claims begin now that the commit of their grants is durable, as far as that did not come at about
/// the time that was expected. On a slow disk every hand-over would lapse otherwise before anybody hears of it.
///
/// Whoever took the row since has ended the claim with it, so this touches no other grant.
pub(crate) fn restart_claims(
    shared: &Shared,
    side: &mut Option<SideFile>,
    store: &StoreRow,
    news: &News,
) {
    let misjudged = news.misjudged(shared.now_ns());
    if misjudged.is_empty() {
        return;
    }
    let restarted = shared.side(side, store).and_then(|side| {
        side.write(|side| {
            let now_ns = shared.now_ns();
            for handed in &misjudged {
                side.restart_claim(&handed.fence.resource, &handed.claim, now_ns)?;
            }
            Ok(((), End::Commit))
        })
    });
    if let Err(error) = restarted {
        // It lapses, and whoever waits for it asks again.
        tracing::debug!(
            ?error,
            "claims do not begin with the durability of their grants"
        );
    }
}

/// Drops places whose owners were refused by what is durable now.
pub(crate) fn drop_tickets(
    shared: &Shared,
    side: &mut Option<SideFile>,
    store: &StoreRow,
    tickets: &[i64],
) {
    let dropped = shared.side(side, store).and_then(|side| {
        side.write(|side| {
            for ticket in tickets {
                side.drop_ticket(*ticket)?;
            }
            Ok(((), End::Commit))
        })
    });
    if let Err(error) = dropped {
        // They are refused once more when somebody looks at them.
        tracing::debug!(?error, "places in a queue are left behind");
    }
}
