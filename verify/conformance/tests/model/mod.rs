//! A small store over the core's rules whose harness can do everything, and which can be broken in one
//! place at a time.

pub(crate) mod planted;
mod queue;
mod registers;
mod serializer;

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, mpsc};
use std::time::Duration;

use aster_conformance::{Harness, PausedWrite, Possible, Written};
use aster_lease::{
    Authority, Fence, FenceRejection, HoldOffs, Judged, LeaseSerializer, Principal, RegisterState,
    RegisterValue, Registers, ResourceName, RowState, RowView, WatchSender, check_fence,
};
use async_trait::async_trait;
use queue::{CLAIM, WAITERS, Waiting};

use crate::support::on_a_thread;

/// The one thing that is wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    Nothing,
    // The serializer
    DeniesTheFree,
    ReleaseKeepsEpoch,
    TakeoverKeepsEpoch,
    RetryIsHeldByOther,
    RetryMintsAnEpoch,
    RetryDoesNotRenew,
    GrantsTheIdAgain,
    SameHolderGetsIn,
    DenialSpendsAnEpoch,
    HolderBeforeEpoch,
    ReleaseGoesByName,
    RevokeIgnoresTheEpoch,
    ExpiryFrees,
    RenewsTheExpired,
    NeverExpires,
    ExpiresEarly,
    RenewalDoesNotRearm,
    ClampsTheTtl,
    ForgetsTheHoldOff,
    KeepsOneHoldOff,
    RestartEndsHoldOffs,
    HoldOffKeepsAllOut,
    RestartForgetsRows,
    FoldsCase,
    AcceptsControlCharacters,
    RevisionStandsStill,
    BatchStopsAtAFailure,
    ListIgnoresThePrefix,
    ConstantAuthority,
    DropsRowsWithoutAFloor,
    DropsRowsThatKeepSomeoneOut,
    JudgesByWallClock,
    // The queue
    ServesTheLastFirst,
    NeverHandsOver,
    HandsOverAtExpiryOnly,
    DoesNotHandOverAtExpiry,
    PlainAcquireOvertakes,
    RetryLosesItsPlace,
    LeaverStays,
    ShortWaitStays,
    ShortWaitIsHeldByOther,
    QueuesTheImpatient,
    HeldOffBlocksTheQueue,
    ClaimsDoNotLapse,
    ClaimsLapseThoughRenewed,
    ClaimShortensTheNextGrant,
    HandsOverForTheWholeTtl,
    QueueIsUnbounded,
    QueueShowsTheLastFirst,
    RestartGrantsThoseItForgot,
    WatchMissesRevokes,
    WatchMissesHandOvers,
    // The resource
    ChecksNothing,
    ChecksBeforeItsLock,
    ChecksOutsideItsFileLock,
    ChecksASnapshotInItsFileLock,
    KeepsAllInOnePlace,
    IgnoresTheWriter,
    IgnoresTheFencesHolder,
    AcceptsHigherEpochs,
    IgnoresTheAuthority,
    RejectsTheExpired,
    WritesBeforeItChecks,
    // The registers
    RegisterChecksNothing,
    RegisterIgnoresTheWriter,
    RegisterRetryWritesAgain,
    RegisterIgnoresTheRevision,
    RegisterStartsOver,
    RegisterCutsTheValue,
    RegisterIsLostAtRestart,
    RegisterGoesWithItsIdleRow,
    ReleaseWithValueKeepsTheLease,
    ReleaseWithValueLosesTheValue,
    ConflictReleasesAnyway,
    WrittenValueIsNotReleasedWith,
    ReleaseWithValueIsNotRecognized,
    ReleaseWithValueDoesNotHandOver,
}

/// A harness for a model with the given fault.
pub(crate) struct Model(pub(crate) Fault);

#[derive(Clone)]
pub(crate) struct Store {
    fault: Fault,
    authority: Authority,
    state: Arc<Mutex<State>>,
    /// The lock of the resource alone, as of a file that it is kept in.
    file: Arc<Mutex<()>>,
}

#[derive(Default)]
struct State {
    now: Duration,
    rows: BTreeMap<ResourceName, Slot>,
    floor: u64,
    registers: BTreeMap<ResourceName, (RegisterState, RegisterValue)>,
    /// What the leases protect.
    catalog: BTreeMap<String, String>,
    writes: u64,
    /// What the wall clock shows beyond `now`.
    wall_jump_s: i64,
    queues: BTreeMap<ResourceName, VecDeque<Waiting>>,
    tickets: u64,
    watches: BTreeMap<ResourceName, Vec<WatchSender>>,
}

#[derive(Clone)]
struct Slot {
    row: RowState,
    since: Duration,
    /// What the wall clock showed beyond `now` at that moment.
    wall_jump_s: i64,
    /// The present grant was waited for and not renewed yet.
    is_claim: bool,
    /// By the epoch that names the hold-off.
    hold_offs_since: BTreeMap<u64, Duration>,
}

impl Store {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    /// The fence rule, with the model's fault in it.
    fn check(&self, state: &State, fence: &Fence, writer: &str) -> Result<(), FenceRejection> {
        let slot = state.rows.get(&fence.resource);
        let view = self.view(state, &fence.resource, slot);
        let (mut fence, mut writer) = (fence.clone(), writer.to_owned());
        match self.fault {
            Fault::ChecksNothing => return Ok(()),
            Fault::IgnoresTheWriter => writer = fence.holder.to_string(),
            Fault::IgnoresTheFencesHolder => {
                fence.holder = Principal::new(&writer).unwrap();
            }
            Fault::AcceptsHigherEpochs => fence.epoch = fence.epoch.min(view.epoch()),
            Fault::IgnoresTheAuthority => fence.authority = self.authority,
            Fault::RejectsTheExpired
                if slot.is_some_and(|slot| self.judge(state, slot).expired) =>
            {
                return Err(FenceRejection::NotHeld);
            }
            _ => {}
        }
        check_fence(&view, &fence, &writer)
    }

    fn view<'a>(
        &self,
        state: &State,
        resource: &'a ResourceName,
        slot: Option<&'a Slot>,
    ) -> RowView<'a> {
        RowView {
            authority: self.authority,
            resource,
            floor: state.floor,
            row: slot.map(|slot| &slot.row),
        }
    }

    fn judge(&self, state: &State, slot: &Slot) -> Judged {
        let passed = |term: Duration, since: Duration| match self.fault {
            Fault::JudgesByWallClock => {
                let jump_s = state.wall_jump_s - slot.wall_jump_s;
                let passed_s = state.now.as_secs_f64() - since.as_secs_f64() + jump_s as f64;
                passed_s >= term.as_secs_f64()
            }
            _ => state.now.saturating_sub(since) >= term,
        };
        let ttl = slot.row.ttl().map(|ttl| match self.fault {
            Fault::ExpiresEarly => ttl.duration() / 2,
            Fault::NeverExpires => Duration::MAX,
            Fault::ClaimsDoNotLapse => ttl.duration(),
            _ if slot.is_claim => ttl.duration().min(CLAIM),
            _ => ttl.duration(),
        });
        Judged {
            expired: ttl.is_some_and(|ttl| passed(ttl, slot.since)),
            remaining: None,
        }
    }

    /// Lets go of hold-offs that have had their time.
    fn end_hold_offs(state: &mut State, resource: &ResourceName) {
        let now = state.now;
        if let Some(slot) = state.rows.get_mut(resource) {
            let since = &slot.hold_offs_since;
            slot.row.hold_offs.retain(|hold_off| {
                let since = since.get(&hold_off.epoch).copied().unwrap_or(now);
                now.saturating_sub(since) < hold_off.duration
            });
        }
    }

    /// Drops rows that are free for long, behind the floor.
    fn drop_idle(&self, state: &mut State) {
        const IDLE: Duration = Duration::from_secs(60 * 60);
        for name in state.rows.keys().cloned().collect::<Vec<_>>() {
            Self::end_hold_offs(state, &name);
        }
        let is_idle = |name: &ResourceName, slot: &Slot| {
            let keeps_out = !slot.row.hold_offs.is_empty();
            slot.row.held.is_none()
                && state.now.saturating_sub(slot.since) >= IDLE
                && (!state.registers.contains_key(name)
                    || self.fault == Fault::RegisterGoesWithItsIdleRow)
                && (!keeps_out || self.fault == Fault::DropsRowsThatKeepSomeoneOut)
        };
        let idle: Vec<_> = state
            .rows
            .iter()
            .filter(|(name, slot)| is_idle(name, slot))
            .map(|(name, _)| name.clone())
            .collect();
        for name in idle {
            let dropped = state.rows.remove(&name).map_or(0, |slot| slot.row.epoch);
            if self.fault != Fault::DropsRowsWithoutAFloor {
                state.floor = state.floor.max(dropped);
            }
            if self.fault == Fault::RegisterGoesWithItsIdleRow {
                state.registers.remove(&name);
            }
        }
    }

    fn put(&self, state: &mut State, fence: &Fence, value: &str) {
        let place = self.place(&fence.resource).to_owned();
        state.catalog.insert(place, value.to_owned());
    }

    fn place<'a>(&self, resource: &'a str) -> &'a str {
        match self.fault {
            Fault::KeepsAllInOnePlace => "everything",
            _ => resource,
        }
    }

    /// A write that calls `stand` once it has been checked.
    fn guarded_write(
        &self,
        fence: &Fence,
        writer: &str,
        value: &str,
        stand: impl FnOnce(),
    ) -> Result<(), FenceRejection> {
        let mut state;
        let mut _file = None;
        match self.fault {
            Fault::ChecksBeforeItsLock => {
                self.check(&self.lock(), fence, writer)?;
                stand();
                state = self.lock();
            }
            Fault::ChecksOutsideItsFileLock => {
                self.check(&self.lock(), fence, writer)?;
                _file = Some(self.file.lock().unwrap());
                stand();
                state = self.lock();
            }
            Fault::ChecksASnapshotInItsFileLock => {
                _file = Some(self.file.lock().unwrap());
                self.check(&self.lock(), fence, writer)?;
                stand();
                state = self.lock();
            }
            _ => {
                state = self.lock();
                if self.fault == Fault::WritesBeforeItChecks {
                    self.put(&mut state, fence, value);
                }
                self.check(&state, fence, writer)?;
                stand();
            }
        }
        self.put(&mut state, fence, value);
        Ok(())
    }
}

fn written(result: Result<(), FenceRejection>) -> Written {
    match result {
        Ok(()) => Written::Accepted,
        Err(rejection) => Written::Rejected(Some(rejection)),
    }
}

#[async_trait]
impl Harness for Model {
    type Store = Store;

    async fn fresh(&self) -> Store {
        static STORES: Mutex<u8> = Mutex::new(0);
        let mut stores = STORES.lock().unwrap();
        *stores = stores.wrapping_add(1).max(1);
        let id = if self.0 == Fault::ConstantAuthority {
            255
        } else {
            *stores
        };
        Store {
            fault: self.0,
            authority: Authority::from_bytes([id; 16]),
            state: Arc::default(),
            file: Arc::default(),
        }
    }

    fn serializer<'a>(&self, store: &'a Store) -> &'a dyn LeaseSerializer {
        store
    }

    fn registers<'a>(&self, store: &'a Store) -> Option<&'a dyn Registers> {
        Some(store)
    }

    async fn write(&self, store: &Store, fence: &Fence, writer: &str, value: &str) -> Written {
        written(store.guarded_write(fence, writer, value, || ()))
    }

    async fn read(&self, store: &Store, resource: &str) -> Option<String> {
        store.lock().catalog.get(store.place(resource)).cloned()
    }

    async fn start_write(
        &self,
        store: &Store,
        fence: &Fence,
        writer: &str,
        value: &str,
    ) -> Option<PausedWrite> {
        let store = store.clone();
        let (fence, writer, value) = (fence.clone(), writer.to_owned(), value.to_owned());
        Some(on_a_thread(
            move |inside: mpsc::Sender<()>, go_on: mpsc::Receiver<()>| {
                written(store.guarded_write(&fence, &writer, &value, || {
                    inside.send(()).unwrap();
                    go_on.recv().unwrap();
                }))
            },
        ))
    }

    /// A broken store lets the takeover pass at once; only a correct one makes the suite wait.
    fn patience(&self) -> Duration {
        match self.0 {
            Fault::ChecksBeforeItsLock => Duration::from_secs(60),
            // The next owner's write queues behind the paused one, once.
            Fault::ChecksOutsideItsFileLock | Fault::ChecksASnapshotInItsFileLock => {
                Duration::from_secs(2)
            }
            _ => Duration::from_millis(20),
        }
    }

    /// The model does at once what it does at all.
    fn settles_within(&self) -> Duration {
        match self.0 {
            Fault::Nothing => Duration::from_secs(20),
            _ => Duration::from_millis(50),
        }
    }

    async fn advance(&self, store: &Store, by: Duration) -> Possible {
        let mut state = store.lock();
        state.now += by;
        store.tend(&mut state);
        Possible::Yes
    }

    async fn jump_wall_clock(&self, store: &Store, by_s: i64) -> Possible {
        store.lock().wall_jump_s += by_s;
        Possible::Yes
    }

    fn claim_time(&self) -> Duration {
        CLAIM
    }

    fn waiters_max(&self) -> Option<usize> {
        Some(WAITERS)
    }

    async fn restart(&self, store: &mut Store) -> Possible {
        self.restart_beneath(store).await
    }

    async fn restart_beneath(&self, store: &Store) -> Possible {
        let mut state = store.lock();
        let now = state.now;
        match store.fault {
            Fault::RestartForgetsRows => state.rows.clear(),
            Fault::RegisterIsLostAtRestart => state.registers.clear(),
            _ => {}
        }
        store.forget_the_queues(&mut state);
        for slot in state.rows.values_mut() {
            slot.since = now;
            slot.is_claim = false;
            match store.fault {
                Fault::RestartEndsHoldOffs => slot.row.hold_offs = HoldOffs::default(),
                _ => slot
                    .hold_offs_since
                    .values_mut()
                    .for_each(|since| *since = now),
            }
        }
        Possible::Yes
    }
}
