//! The actions, and the properties that must hold in every state.

use std::sync::Arc;

use aster_core::FenceRejection;
use stateright::{Model, Property};

use crate::bounds::{Bounds, Bug};
use crate::holder::{Holder, Phase};
use crate::network::{HolderId, Message, Network, Request, WishId};
use crate::seen::{Ingredient, Seen};
use crate::store::{Step, Store};
use crate::truth::{Broken, Truth};

/// The model: how far it goes, and which bug it has, if any.
#[derive(Debug, Clone)]
pub struct LeaseModel {
    /// How far it goes.
    pub bounds: Bounds,
    /// A planted mistake.
    pub bug: Option<Bug>,
    seen: Arc<Seen>,
}

/// Everything at one moment.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct World {
    now: u8,
    store: Store,
    holders: Vec<Holder>,
    network: Network,
    truth: Truth,
    used: Used,
}

/// What has been spent of the bounds.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
struct Used {
    wishes: u8,
    renewals: u8,
    writes: u8,
    duplicates: u8,
    lags: u8,
    restarts: u8,
    revokes: u8,
    drops: u8,
    restores: u8,
}

/// What can happen next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Time goes on, for this holder's clock not, if one is named.
    Tick(Option<u8>),
    /// A holder asks for the resource.
    Ask(u8),
    /// It asks again under the same grant id.
    AskAgain(u8),
    /// It stops asking.
    GiveUp(u8),
    /// It renews.
    Renew(u8),
    /// It gives the lease up.
    Release(u8),
    /// It writes under the fence that it has.
    Write(u8),
    /// It writes under the owner's fence, which it has seen.
    WriteUnderTheOwnersFence(u8),
    /// A message arrives.
    Deliver(Message),
    /// It arrives, and once more later.
    DeliverAndKeep(Message),
    /// The store looks whether the head of the queue can be granted.
    Advance,
    /// The serializer restarts.
    Restart,
    /// An operator takes the lease away.
    Revoke,
    /// A free row is dropped.
    DropRow,
    /// The floor rises, too late.
    RaiseFloor,
    /// A backup is made.
    BackUp,
    /// It is put back.
    Restore,
    /// An operator adopts what was put back.
    Adopt,
    /// Somebody sets the wall clock.
    WallJump,
}

/// The names of the properties, in the order in which they are checked.
pub const PROPERTIES: [&str; 7] = [
    "only the owner writes",
    "epochs are unique and grow",
    "every end takes a new epoch",
    "a grant id is granted once",
    "no lease is held shorter than its ttl",
    "only the owner has a fence",
    "what nobody owns can be acquired",
];

impl LeaseModel {
    /// A model that goes so far, with a planted mistake or without.
    #[must_use]
    pub fn new(bounds: Bounds, bug: Option<Bug>) -> Self {
        Self {
            bounds,
            bug,
            seen: Arc::default(),
        }
    }

    /// What has happened in the steps that were explored so far, of this model and its clones.
    #[must_use]
    pub fn seen(&self) -> Arc<Seen> {
        self.seen.clone()
    }

    fn saw(&self, ingredient: Ingredient) {
        self.seen.saw(ingredient);
    }

    fn wish(&self, world: &World, holder: HolderId) -> Request {
        let wish: WishId = match world.holders[usize::from(holder)].phase {
            Phase::Wishing { wish } => wish,
            _ => world.used.wishes,
        };
        match self.bounds.queue {
            true => Request::AcquireWait { wish },
            false => Request::Acquire { wish },
        }
    }

    fn holder_actions(&self, world: &World, id: HolderId, actions: &mut Vec<Action>) {
        let (bounds, used) = (&self.bounds, &world.used);
        let holder = &world.holders[usize::from(id)];
        match holder.phase {
            Phase::Idle if used.wishes < bounds.wishes => actions.push(Action::Ask(id)),
            Phase::Wishing { .. } => {
                actions.push(Action::GiveUp(id));
                if used.duplicates < bounds.duplicates {
                    actions.push(Action::AskAgain(id));
                }
            }
            Phase::Holding { .. } => actions.push(Action::Release(id)),
            _ => {}
        }
        if used.renewals < bounds.renewals && holder.renewable(world.now).is_some() {
            actions.push(Action::Renew(id));
        }
        if used.writes < bounds.writes {
            if holder.usable(world.now).is_some() {
                actions.push(Action::Write(id));
            }
            if world.truth.owner.is_some_and(|owner| owner.holder != id) {
                actions.push(Action::WriteUnderTheOwnersFence(id));
            }
        }
    }

    fn store_actions(&self, world: &World, actions: &mut Vec<Action>) {
        let (bounds, used, store) = (&self.bounds, &world.used, &world.store);
        if used.restarts < bounds.restarts {
            actions.push(Action::Restart);
        }
        if used.revokes < bounds.revokes && store.is_held() && !store.refused {
            actions.push(Action::Revoke);
        }
        let is_free = store.durable.row.is_some() && !store.is_held();
        if used.drops < bounds.drops && is_free && store.queue.is_empty() {
            actions.push(Action::DropRow);
        }
        if store.floor_due > 0 {
            actions.push(Action::RaiseFloor);
        }
        if used.restores < bounds.restores && !store.refused {
            actions.push(match store.backup {
                None => Action::BackUp,
                Some(_) => Action::Restore,
            });
        }
        if store.refused {
            actions.push(Action::Adopt);
        }
        if !store.queue.is_empty() && !store.refused && store.can_be_taken(world.now) {
            actions.push(Action::Advance);
        }
        if self.bug == Some(Bug::TakeoverTrustsAWallClock) && !store.wall_jumped {
            actions.push(Action::WallJump);
        }
    }

    fn act(&self, world: &mut World, action: Action) {
        match action {
            Action::Tick(lagging) => {
                world.now += 1;
                if let Some(holder) = lagging {
                    let holder = &mut world.holders[usize::from(holder)];
                    holder.lag += 1;
                    world.used.lags += 1;
                    if matches!(holder.phase, Phase::Holding { .. }) {
                        self.saw(Ingredient::SlowClock);
                    }
                }
                for holder in &mut world.holders {
                    if holder.look_at_the_clock(world.now) {
                        self.saw(Ingredient::Paused);
                    }
                }
            }
            Action::Ask(id) => {
                let request = self.wish(world, id);
                world.holders[usize::from(id)].phase = Phase::Wishing {
                    wish: world.used.wishes,
                };
                world.used.wishes += 1;
                world.send(id, request);
            }
            Action::AskAgain(id) => {
                world.used.duplicates += 1;
                let request = self.wish(world, id);
                world.send(id, request);
            }
            Action::GiveUp(id) => {
                if let Phase::Wishing { wish } = world.holders[usize::from(id)].phase {
                    world.holders[usize::from(id)].phase = Phase::Idle;
                    world.send(id, Request::Cancel { wish });
                }
            }
            Action::Renew(id) => {
                if let Some((authority, epoch)) =
                    world.holders[usize::from(id)].renewable(world.now)
                {
                    world.used.renewals += 1;
                    world.send(id, Request::Renew { authority, epoch });
                }
            }
            Action::Release(id) => {
                if let Phase::Holding {
                    authority, epoch, ..
                } = world.holders[usize::from(id)].phase
                {
                    world.holders[usize::from(id)].phase = Phase::Idle;
                    world.send(id, Request::Release { authority, epoch });
                }
            }
            Action::Write(id) => {
                if let Some((authority, epoch)) = world.holders[usize::from(id)].usable(world.now) {
                    world.used.writes += 1;
                    world.network.insert(Message::Write {
                        writer: id,
                        claimed: id,
                        authority,
                        epoch,
                    });
                }
            }
            Action::WriteUnderTheOwnersFence(id) => {
                if let Some(owner) = world.truth.owner {
                    world.used.writes += 1;
                    world.network.insert(Message::Write {
                        writer: id,
                        claimed: owner.holder,
                        authority: owner.authority,
                        epoch: owner.epoch,
                    });
                }
            }
            Action::Deliver(message) => {
                world.network.remove(&message);
                self.deliver(world, &message);
            }
            Action::DeliverAndKeep(message) => {
                world.used.duplicates += 1;
                self.saw(Ingredient::Doubled);
                self.deliver(world, &message);
            }
            Action::Advance => self.with_store(world, |store, step| {
                let mut replies = Vec::new();
                store.advance(step, &mut replies);
                replies
            }),
            Action::Restart => {
                world.used.restarts += 1;
                if world.store.is_held() {
                    self.saw(Ingredient::RestartWhileHeld);
                }
                if !world.store.queue.is_empty() {
                    self.saw(Ingredient::RestartWithWaiters);
                }
                world.store.restart(world.now);
                world.truth.rearmed(world.now);
            }
            Action::Revoke => {
                world.used.revokes += 1;
                self.with_store(world, Store::revoke);
            }
            Action::DropRow => {
                world.used.drops += 1;
                self.saw(Ingredient::Dropped);
                world.store.drop_row();
                world.truth.dropped();
            }
            Action::RaiseFloor => world.store.raise_floor(),
            Action::BackUp => world.store.backup = Some(world.store.durable.clone()),
            Action::Restore => {
                world.used.restores += 1;
                world.store.restore(world.now);
                world.truth.rearmed(world.now);
            }
            Action::Adopt => {
                world.store.adopt(
                    &self.seen,
                    world
                        .truth
                        .highest_authority()
                        .max(world.store.durable.authority),
                );
                world.truth.adopted();
            }
            Action::WallJump => world.store.wall_jumped = true,
        }
    }

    /// The resource went from one owner to another, and what the first had sent has not arrived.
    fn look_for_lost_messages(&self, before: &World, after: &World) {
        let (Some(owner), Some(next)) = (before.truth.owner, after.truth.owner) else {
            return;
        };
        let is_under_way = |message: &Message| {
            matches!(
                message,
                Message::Request { request: Request::Renew { epoch, .. } | Request::Release { epoch, .. }, .. }
                    if *epoch == owner.epoch
            )
        };
        if owner.epoch != next.epoch && after.network.iter().any(is_under_way) {
            self.saw(Ingredient::Lost);
        }
    }

    fn deliver(&self, world: &mut World, message: &Message) {
        match message {
            Message::Request {
                from,
                request,
                sent,
            } => {
                let overtakes = |other: &Message| matches!(other, Message::Request { from: of, sent: before, .. } if of == from && before < sent);
                if world.network.iter().any(overtakes) {
                    self.saw(Ingredient::Reordered);
                }
                let now = world.now;
                let mut step = Step {
                    now,
                    truth: &mut world.truth,
                    seen: &self.seen,
                };
                let replies = world.store.request(&mut step, *from, request);
                for (to, answer) in replies {
                    // Whoever waited has asked long ago: nobody may count from it.
                    let sent = if to == *from { *sent } else { 0 };
                    world.network.insert(Message::Answer { to, answer, sent });
                }
            }
            Message::Answer { to, answer, sent } => {
                let holder = &mut world.holders[usize::from(*to)];
                if let Some(sent) = holder.hears(*to, world.now, answer, *sent, self.bug) {
                    self.saw(Ingredient::LateGrant);
                    world.network.insert(sent);
                }
            }
            &Message::Write {
                writer,
                claimed,
                authority,
                epoch,
            } => {
                match world.store.check(writer, claimed, authority, epoch) {
                    Some(Ok(())) => self.saw(Ingredient::Write),
                    Some(Err(rejection)) => {
                        self.saw(match rejection {
                            FenceRejection::WrongAuthority => Ingredient::WriteOfAnEarlierAuthority,
                            FenceRejection::NotHolder => Ingredient::ForgedWrite,
                            _ => Ingredient::LateWrite,
                        });
                        return;
                    }
                    None => return,
                }
                if self.bug == Some(Bug::CheckBeforeTheTransaction) {
                    world.network.insert(Message::Checked {
                        writer,
                        authority,
                        epoch,
                    });
                } else {
                    world.truth.wrote(writer, authority, epoch);
                }
            }
            &Message::Checked {
                writer,
                authority,
                epoch,
            } => {
                world.truth.wrote(writer, authority, epoch);
            }
        }
    }

    /// A step of the store that nobody asked for by a message.
    fn with_store(
        &self,
        world: &mut World,
        step: impl FnOnce(&mut Store, &mut Step<'_>) -> Vec<(HolderId, crate::network::Answer)>,
    ) {
        let now = world.now;
        let mut context = Step {
            now,
            truth: &mut world.truth,
            seen: &self.seen,
        };
        for (to, answer) in step(&mut world.store, &mut context) {
            // Whoever waited has asked long ago: nobody may count from it.
            world.network.insert(Message::Answer {
                to,
                answer,
                sent: 0,
            });
        }
    }
}

impl World {
    fn send(&mut self, from: HolderId, request: Request) {
        let sent = self.holders[usize::from(from)].clock(self.now);
        self.network.insert(Message::Request {
            from,
            request,
            sent,
        });
    }

    /// An answer that its holder does not wait for is never heard, now or later: a wish and an epoch are
    /// waited for once. Without it there are fewer states to look at.
    fn forget_what_nobody_waits_for(&mut self) {
        let holders = &self.holders;
        self.network.retain(|message| match message {
            Message::Answer { to, answer, .. } => holders[usize::from(*to)].waits_for(answer),
            _ => true,
        });
    }

    /// Whoever would hand out a fence is the owner. Excepted are those who cannot know yet: an operator
    /// has ended the epoch, or has given a restored store another authority.
    fn only_the_owner_has_a_fence(&self) -> bool {
        self.holders.iter().zip(0..).all(|(holder, id)| {
            let Some((authority, epoch)) = holder.usable(self.now) else {
                return true;
            };
            let owns = self.truth.owner.is_some_and(|owner| {
                (owner.holder, owner.authority, owner.epoch) == (id, authority, epoch)
            });
            owns || authority != self.store.durable.authority || self.truth.was_revoked(epoch)
        })
    }

    fn can_be_acquired(&self) -> bool {
        let is_ownerless = self.truth.owner.is_none_or(|owner| owner.is_due(self.now));
        self.store.refused || !is_ownerless || self.store.can_be_taken(self.now)
    }
}

impl Model for LeaseModel {
    type State = World;
    type Action = Action;

    fn init_states(&self) -> Vec<World> {
        vec![World {
            now: 0,
            store: Store::new(self.bug),
            holders: (0..self.bounds.holders).map(|_| Holder::new()).collect(),
            network: Network::new(),
            truth: Truth::default(),
            used: Used::default(),
        }]
    }

    fn actions(&self, world: &World, actions: &mut Vec<Action>) {
        if world.truth.broken.is_some() {
            return;
        }
        if world.now < self.bounds.ticks {
            actions.push(Action::Tick(None));
            if world.used.lags < self.bounds.lags {
                let holding = |id: &HolderId| world.holders[usize::from(*id)].phase != Phase::Idle;
                let ids = (0..self.bounds.holders).filter(holding);
                actions.extend(ids.map(|id| Action::Tick(Some(id))));
            }
        }
        for id in 0..self.bounds.holders {
            self.holder_actions(world, id, actions);
        }
        self.store_actions(world, actions);
        for message in &world.network {
            actions.push(Action::Deliver(message.clone()));
            if world.used.duplicates < self.bounds.duplicates {
                actions.push(Action::DeliverAndKeep(message.clone()));
            }
        }
    }

    fn next_state(&self, world: &World, action: Action) -> Option<World> {
        let mut next = world.clone();
        self.act(&mut next, action);
        self.look_for_lost_messages(world, &next);
        next.forget_what_nobody_waits_for();
        (next != *world).then_some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        fn keeps(world: &World, broken: Broken) -> bool {
            world.truth.broken != Some(broken)
        }
        let [
            written,
            unique,
            new_epoch,
            once,
            ttl,
            one_usable,
            acquirable,
        ] = PROPERTIES;
        vec![
            Property::always(written, |_, world: &World| {
                keeps(world, Broken::WriteByAnEndedOwner)
            }),
            Property::always(unique, |_, world: &World| keeps(world, Broken::EpochReused)),
            Property::always(new_epoch, |_, world: &World| {
                keeps(world, Broken::EndWithoutANewEpoch)
            }),
            Property::always(once, |_, world: &World| {
                keeps(world, Broken::GrantIdGrantedTwice)
            }),
            Property::always(ttl, |_, world: &World| {
                keeps(world, Broken::HeldShorterThanItsTtl)
            }),
            Property::always(one_usable, |_, world: &World| {
                world.only_the_owner_has_a_fence()
            }),
            Property::always(acquirable, |_, world: &World| world.can_be_acquired()),
        ]
    }
}
