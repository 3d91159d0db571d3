//! What a process does with the store until it is done or dies: several callers at once, each with a
//! resource of its own, names that are used once, and one resource for which all of them queue.
//!
//! Everything that can be acknowledged is in it: grants, renewals, releases, releases with a value,
//! revokes with and without a hold-off, cancels, register writes, the user's own writes, hand-overs in the
//! queue, and so many names used once that idle rows are dropped behind the floor.

use std::path::{Path, PathBuf};
use std::time::Duration;

use aster_lease::{
    ExpectedRevision, Fence, FencedError, GrantId, LeaseOp, LeaseSerializer, RegisterError,
    Registers, TransitionOutcome, WaitOutcome, WaitRequest, WriteId,
};
use aster_sqlite::SqliteSerializer;

use crate::bend::{self, Bend};
use crate::store::{self, QUEUE, acquire, id_of, principal, write_number, write_number_apart};
use crate::teller::Teller;
use crate::words::{Value, Wish, Word};
use aster_evidence::Random;

/// How long a caller waits in the queue, at most.
const WAIT: Duration = Duration::from_secs(4);
/// How long a hold-off lasts; longer than a life takes.
const HOLD_OFF: Duration = Duration::from_secs(3_600);
/// Now and then a value is larger than a page.
const PADDING_MAX: u64 = 6_000;

/// One process's share of a life.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    /// Picks everything.
    pub seed: u64,
    /// Which process it is: the next one of the same number finds what it left.
    pub process: u64,
    /// Which life of that process.
    pub life: u64,
    /// How many reboots there have been.
    pub boot: u64,
    /// How many callers work at once.
    pub callers: u64,
    /// How many turns each takes.
    pub turns: u64,
    /// What is broken on purpose.
    pub bend: Option<Bend>,
}

/// Does what is planned, with the store below `directory`.
///
/// # Errors
///
/// If there is no place to say what happens.
pub fn work(directory: &Path, plan: &Plan) -> std::io::Result<()> {
    let teller = Teller::new(
        directory,
        format!("life {} process {}", plan.life, plan.process),
    )?;
    if let Some(bend) = plan.bend {
        bend.before_opening(directory, plan.life);
    }
    let store = match store::open(directory, plan.boot) {
        Ok(store) => store,
        Err(error) => {
            teller.say(Word::NotOpened(error.to_string()));
            return Ok(());
        }
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()?;
    let local = tokio::task::LocalSet::new();
    for number in 0..plan.callers {
        let caller = Caller {
            directory: directory.to_owned(),
            store: store.clone(),
            teller: teller.of(format!(
                "life {} process {} caller {number}",
                plan.life, plan.process
            )),
            random: Random::new(plan.seed ^ id_number(plan.life, plan.process, number)),
            number,
            plan: plan.clone(),
        };
        local.spawn_local(caller.take_turns());
    }
    if let Some(step) = plan.bend.and_then(|bend| bend.beside(directory)) {
        local.spawn_local(bend::go_on_beside(directory.to_owned(), step, plan.turns));
    }
    runtime.block_on(local);
    drop(store);
    teller.say(Word::Done);
    Ok(())
}

fn id_number(life: u64, process: u64, caller: u64) -> u64 {
    (life << 40 | process << 20 | (caller + 1)).wrapping_mul(0x2545_f491_4f6c_dd1d)
}

struct Caller {
    directory: PathBuf,
    store: SqliteSerializer,
    teller: Teller,
    random: Random,
    number: u64,
    plan: Plan,
}

/// A grant that this caller has.
struct Owned {
    resource: String,
    fence: Fence,
    holder: String,
}

impl Caller {
    async fn take_turns(mut self) {
        self.ask_again().await;
        for turn in 0..self.plan.turns {
            match self.random.below(8) {
                0..3 => self.use_once(turn).await,
                3..6 => {
                    let own = self.own();
                    self.use_and_end(&own, turn).await;
                }
                6 => self.queue_up(turn).await,
                _ => self.look_around().await,
            }
            // Whoever shares the thread has a turn, too.
            tokio::task::yield_now().await;
        }
    }

    fn own(&self) -> String {
        format!("own/{}/{}", self.plan.process, self.number)
    }

    fn words(&self, turn: u64, what: &str) -> String {
        let Plan {
            seed,
            process,
            life,
            ..
        } = &self.plan;
        format!("{seed} {life} {process} {} {turn} {what}", self.number)
    }

    /// What an earlier life, or a failure, left behind: it is seen, and ended.
    async fn ask_again(&mut self) {
        let own = self.own();
        for resource in [own.as_str(), QUEUE] {
            self.see(resource).await;
            if let Ok(row) = self.store.snapshot(resource).await
                && row.holder.is_some_and(|holder| self.has_forgotten(&holder))
            {
                self.end(resource, row.epoch, End::Revoke).await;
            }
        }
    }

    /// Whether this caller, or its process in an earlier life, got a lease under that name. Nobody else
    /// gives it back.
    fn has_forgotten(&self, holder: &str) -> bool {
        let Plan { process, life, .. } = self.plan;
        let words: Vec<_> = holder.split(' ').collect();
        let number = |index: usize| words.get(index).and_then(|word| word.parse::<u64>().ok());
        number(2) == Some(process)
            && (number(1).is_some_and(|earlier| earlier < life) || number(3) == Some(self.number))
    }

    /// A name that nobody uses again: its row is idle afterwards.
    async fn use_once(&mut self, turn: u64) {
        let Plan { process, life, .. } = self.plan;
        let name = format!("once/{life}/{process}/{}/{turn}", self.number);
        let Some(owned) = self.acquire(&name, turn).await else {
            return;
        };
        self.end(&name, owned.fence.epoch, End::Release(owned.holder))
            .await;
    }

    async fn use_and_end(&mut self, resource: &str, turn: u64) {
        if let Some(owned) = self.acquire(resource, turn).await {
            self.use_it(owned, turn).await;
        } else if self.plan.turns > 0 {
            // After a failure it may be held by an earlier wish of ours.
            self.ask_again().await;
        }
    }

    async fn use_it(&mut self, owned: Owned, turn: u64) {
        for write in 0..self.random.below(3) {
            match self.random.below(3) {
                0 => self.renew(&owned).await,
                1 => self.mutate(&owned, turn * 4 + write).await,
                _ => self.write(&owned, turn, write, false).await,
            }
        }
        let Owned {
            resource,
            fence,
            holder,
        } = &owned;
        let end = match self.random.below(8) {
            0 | 1 => End::Release(holder.clone()),
            2 | 3 => return self.write(&owned, turn, 9, true).await,
            4 => End::Revoke,
            5 if resource != QUEUE => End::HoldOff(holder.clone()),
            6 if resource != QUEUE => End::Cancel(holder.clone(), self.words(turn, resource)),
            _ => End::Revoke,
        };
        self.end(resource, fence.epoch, end).await;
    }

    async fn queue_up(&mut self, turn: u64) {
        self.ask_again().await;
        let holder = self.words(turn, "holder");
        let request = WaitRequest {
            candidate: principal(&holder),
            ttl: store::ttl(),
            grant_id: GrantId::from_bytes(id_of(&self.words(turn, QUEUE))),
            wait: WAIT,
        };
        self.say(Word::Asks(Wish::Acquire {
            resource: QUEUE.to_owned(),
        }));
        match self.store.acquire_wait(QUEUE, request).await {
            Ok(WaitOutcome::Granted { fence, claim }) => {
                self.say(Word::Granted {
                    resource: QUEUE.to_owned(),
                    epoch: fence.epoch,
                    holder: holder.clone(),
                });
                let owned = Owned {
                    resource: QUEUE.to_owned(),
                    fence,
                    holder,
                };
                if claim.is_some() {
                    self.renew(&owned).await;
                }
                self.use_it(owned, turn).await;
            }
            Ok(_) => self.say(Word::Denied),
            Err(error) => self.fail(&error),
        }
    }

    /// Somebody else's resource, as far as one sees it.
    async fn look_around(&mut self) {
        let process = self.random.below(self.plan.process + 1);
        let caller = self.random.below(self.plan.callers);
        let name = match self.random.chance(1, 4) {
            true => QUEUE.to_owned(),
            false => format!("own/{process}/{caller}"),
        };
        self.see(&name).await;
    }

    async fn see(&self, resource: &str) {
        if let Ok(row) = self.store.snapshot(resource).await {
            self.say(Word::Saw {
                resource: resource.to_owned(),
                epoch: row.epoch,
                held: row.held,
            });
        }
        if let Ok(Some(value)) = self.store.read(resource).await {
            self.say(Word::SawValue {
                resource: resource.to_owned(),
                value_revision: value.value_revision,
            });
        }
    }

    async fn acquire(&mut self, resource: &str, turn: u64) -> Option<Owned> {
        let holder = self.words(turn, "holder");
        self.say(Word::Asks(Wish::Acquire {
            resource: resource.to_owned(),
        }));
        let op = acquire(&holder, &self.words(turn, resource));
        match self.store.transition(resource, op).await {
            Ok(TransitionOutcome::Granted(fence)) => {
                self.say(Word::Granted {
                    resource: resource.to_owned(),
                    epoch: fence.epoch,
                    holder: holder.clone(),
                });
                Some(Owned {
                    resource: resource.to_owned(),
                    fence,
                    holder,
                })
            }
            Ok(_) => {
                self.say(Word::Denied);
                None
            }
            Err(error) => {
                self.fail(&error);
                None
            }
        }
    }

    /// A renewal is not durable, and nothing is told of it; but nobody may lose a lease by it.
    async fn renew(&self, owned: &Owned) {
        let op = LeaseOp::Renew {
            holder: principal(&owned.holder),
            epoch: owned.fence.epoch,
        };
        let _ = self.store.transition(&owned.resource, op).await;
    }

    async fn mutate(&mut self, owned: &Owned, number: u64) {
        let Plan { process, life, .. } = self.plan;
        let number = ((life * 16 + process) * 16 + self.number) << 20 | number;
        let (resource, epoch) = (owned.resource.clone(), owned.fence.epoch);
        self.say(Word::Asks(Wish::Mutate {
            resource: resource.clone(),
            number,
        }));
        let write = match self.plan.bend {
            Some(Bend::TablesApart) => write_number_apart,
            _ => write_number,
        };
        match write(&self.store, &owned.fence, &owned.holder, number) {
            Ok(()) => self.say(Word::Mutated {
                resource,
                epoch,
                number,
            }),
            Err(FencedError::Rejected(_)) => self.say(Word::Denied),
            Err(error) => self.fail(&error),
        }
    }

    async fn write(&mut self, owned: &Owned, turn: u64, number: u64, ends: bool) {
        let Owned {
            resource,
            fence,
            holder,
        } = owned;
        let padding = match self.random.chance(1, 4) {
            true => usize::try_from(self.random.below(PADDING_MAX)).unwrap_or(0),
            false => 0,
        };
        let value = Value {
            name: self.words(turn, &format!("{resource}@{} {number}", fence.epoch)),
            padding,
        };
        let epoch = fence.epoch;
        let wish = match ends {
            true => Wish::WriteAndEnd {
                resource: resource.clone(),
                epoch,
                value: value.clone(),
            },
            false => Wish::Write {
                resource: resource.clone(),
                value: value.clone(),
            },
        };
        self.say(Word::Asks(wish));
        let known = self.store.read(resource).await.ok().flatten();
        let told = |value_revision| match ends {
            true => Word::WroteAndEnded {
                resource: resource.clone(),
                epoch,
                value_revision,
                value: value.clone(),
            },
            false => Word::Wrote {
                resource: resource.clone(),
                epoch,
                value_revision,
                value: value.clone(),
            },
        };
        if self.plan.bend == Some(Bend::TellsTooEarly) {
            self.say(told(
                known.as_ref().map_or(0, |value| value.value_revision) + 1,
            ));
        }
        let (any, bytes) = (ExpectedRevision::Any, value.bytes());
        if self.plan.bend == Some(Bend::RevisionLater) && known.is_some() && !ends {
            match bend::write_badly(&self.directory, resource, &bytes) {
                Ok(value_revision) => self.say(told(value_revision)),
                Err(error) => self.fail(&error),
            }
            return;
        }
        let write_id = WriteId::from_bytes(id_of(&value.name));
        let written = match ends {
            true if self.plan.bend == Some(Bend::ReleaseLater) => {
                let store = &self.store;
                let written = store
                    .compare_and_set_with_id(fence, holder, any, bytes, write_id)
                    .await;
                let release = LeaseOp::Release {
                    holder: principal(holder),
                    epoch,
                };
                // Nobody else ends it here.
                let _ = store.transition(resource, release).await;
                written
            }
            true => {
                let store = &self.store;
                store
                    .release_with_value(fence, holder, any, bytes, write_id)
                    .await
            }
            false => {
                let store = &self.store;
                store
                    .compare_and_set_with_id(fence, holder, any, bytes, write_id)
                    .await
            }
        };
        match written {
            Ok(_) if self.plan.bend == Some(Bend::TellsTooEarly) => {}
            Ok(value_revision) => self.say(told(value_revision)),
            Err(RegisterError::Rejected(_) | RegisterError::Conflict { .. }) => {
                self.say(Word::Denied);
            }
            Err(error) => self.fail(&error),
        }
    }

    async fn end(&self, resource: &str, epoch: u64, end: End) {
        self.say(Word::Asks(Wish::End {
            resource: resource.to_owned(),
        }));
        let revoke = |hold_off| LeaseOp::Revoke {
            operator: principal("operator"),
            epoch,
            hold_off,
        };
        let op = match &end {
            End::Release(holder) => LeaseOp::Release {
                holder: principal(holder),
                epoch,
            },
            End::Revoke => revoke(None),
            End::HoldOff(_) => revoke(Some(HOLD_OFF)),
            End::Cancel(candidate, words) => LeaseOp::Cancel {
                candidate: principal(candidate),
                grant_id: GrantId::from_bytes(id_of(words)),
            },
        };
        match self.store.transition(resource, op).await {
            Ok(TransitionOutcome::Denied(..)) => self.say(Word::Denied),
            Ok(_) => self.say(match end {
                End::HoldOff(holder) => Word::HeldOff {
                    resource: resource.to_owned(),
                    epoch,
                    holder,
                },
                _ => Word::Ended {
                    resource: resource.to_owned(),
                    epoch,
                },
            }),
            Err(error) => self.fail(&error),
        }
    }

    fn say(&self, word: Word) {
        self.teller.say(word);
    }

    fn fail(&self, error: &dyn std::fmt::Display) {
        self.say(Word::Failed(error.to_string()));
    }
}

/// How a lease is ended.
enum End {
    Release(String),
    Revoke,
    HoldOff(String),
    /// By the candidate, and the words of the grant's id.
    Cancel(String, String),
}
