//! A disk in use: it counts its steps, keeps a log of them, and fails, stops or loses its power when it is
//! told to.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard};

use fuser::{Errno, FileAttr, FileType, INodeNo, ReplyEmpty, ReplyWrite};

use crate::mount::attributes;
use crate::volume::{Event, Loss, Volume};

/// The directory.
pub(crate) const ROOT_INODE: u64 = 1;
/// The file to which programs write what they asked and were told: one line a write.
pub(crate) const TOLD_INODE: u64 = 2;
/// Its name. It is there from the beginning, and no part of what is lost or kept.
pub const TOLD: &str = "told";
/// What the disk itself tells when a write or a sync fails.
pub const FAULT: &str = "fault";

/// The disk. Clones are the same disk; mount one of them, keep another to control it.
#[derive(Clone, Default)]
pub struct VolatileDisk {
    state: Arc<Mutex<State>>,
}

/// How a write or a sync fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// An I/O error. Of a sync: some of the pages are lost for good, as `seed` picks, and the next sync
    /// knows nothing of them.
    Io {
        /// Picks the pages.
        seed: u64,
    },
    /// The disk is full.
    Full,
    /// Half of a write is done, without an error; a sync is done.
    Short,
    /// A sync that fails and says that it did not: only for controls.
    Unsaid {
        /// Picks the pages.
        seed: u64,
    },
}

/// What becomes of a write or a sync in which a process was stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Held {
    /// It is done.
    Done,
    /// It is not done.
    Undone,
    /// Half of a write is done; a sync is not.
    Half,
}

#[derive(Default)]
struct State {
    volume: Volume,
    log: Option<Vec<Event>>,
    /// Writes, truncations, syncs, creations and removals so far.
    steps: u64,
    cut_at: Option<Cut>,
    off: bool,
    faults: Vec<(u64, Fault)>,
    dies_at: Option<u64>,
    hold: Option<Hold>,
    held: Option<Waiting>,
}

#[derive(Clone, Copy)]
struct Cut {
    step: u64,
    loss: Loss,
    seed: u64,
}

/// In which write or sync a process is to be stopped.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Moment {
    /// In this one from now.
    Step(u64),
    /// In this sync from now of the file of that name.
    SyncOf(String, u64),
}

/// Which write or sync is to be held.
struct Hold {
    process: u32,
    moment: Moment,
    tell: Sender<()>,
    /// Threads, and the processes that they belong to.
    processes: HashMap<u32, u32>,
}

enum Waiting {
    Write(Event, ReplyWrite),
    Sync(Event, ReplyEmpty),
}

/// What became of a write.
pub(crate) enum Written {
    Now(Result<u32, Errno>, ReplyWrite),
    Later,
}

/// What became of a sync.
pub(crate) enum Synced {
    Now(Result<(), Errno>, ReplyEmpty),
    Later,
}

impl VolatileDisk {
    /// An empty disk.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// A disk on which `volume` is, and which keeps a log.
    #[must_use]
    pub fn recording(volume: Volume) -> Self {
        let disk = Self::default();
        {
            let mut state = disk.lock();
            state.volume = volume;
            state.log = Some(Vec::new());
        }
        disk
    }

    /// How many steps (writes, syncs, changes of names) the disk has seen.
    #[must_use]
    pub fn steps(&self) -> u64 {
        self.lock().steps
    }

    /// Everything that has happened since the recording began.
    #[must_use]
    pub fn log(&self) -> Vec<Event> {
        self.lock().log.clone().unwrap_or_default()
    }

    /// How long the log is.
    #[must_use]
    pub fn log_length(&self) -> usize {
        self.lock().log.as_ref().map_or(0, Vec::len)
    }

    /// Notes in the log what somebody asked or was told.
    pub fn tell(&self, line: String) {
        self.lock().happen(Event::Told(line));
    }

    /// Cuts the power at the `steps_ahead`-th step from now; that step does not happen any more, and from
    /// then on everything fails.
    pub fn cut_after(&self, steps_ahead: u64, loss: Loss, seed: u64) {
        let mut state = self.lock();
        state.cut_at = Some(Cut {
            step: state.steps + steps_ahead,
            loss,
            seed,
        });
    }

    /// Cuts the power now, unless that has happened, and gives it back. Mount it anew afterwards.
    pub fn power_cycle(&self, loss: Loss, seed: u64) {
        let mut state = self.lock();
        if !state.off {
            state.volume = state.volume.after_cut(loss, seed);
        }
        state.off = false;
        state.cut_at = None;
    }

    /// Lets the first write or sync from the `step`-th step on fail.
    pub fn fail_at(&self, step: u64, fault: Fault) {
        self.lock().faults.push((step, fault));
    }

    /// Lets every write and sync from the `step`-th step on fail. Reading goes on.
    pub fn die_at(&self, step: u64) {
        self.lock().dies_at = Some(step);
    }

    /// Stops the process of this id at `moment`. The receiver hears of it; then
    /// [`release`](Self::release) says what becomes of that write or sync.
    #[must_use]
    pub fn hold(&self, process: u32, moment: Moment) -> Receiver<()> {
        let (tell, receiver) = channel();
        self.lock().hold = Some(Hold {
            process,
            moment,
            tell,
            processes: HashMap::new(),
        });
        receiver
    }

    /// Lets nobody be stopped any more, and what is held go on.
    pub fn release(&self, outcome: Held) {
        let mut state = self.lock();
        state.hold = None;
        match state.held.take() {
            Some(Waiting::Write(event, reply)) => match (state.write_of(event, outcome), outcome) {
                (Ok(written), Held::Done) => reply.written(written),
                _ => reply.error(Errno::EIO),
            },
            Some(Waiting::Sync(event, reply)) if outcome == Held::Done => {
                match state.sync_of(event) {
                    Ok(()) => reply.ok(),
                    Err(error) => reply.error(error),
                }
            }
            Some(Waiting::Sync(_, reply)) => reply.error(Errno::EIO),
            None => {}
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }
}

/// What the mounted file system asks for.
impl VolatileDisk {
    pub(crate) fn find(&self, name: &OsStr) -> Result<FileAttr, Errno> {
        let state = self.lock();
        let found = match name == TOLD {
            true => Some(TOLD_INODE),
            false => state.volume.find(name),
        };
        state.attributes(found.ok_or(Errno::ENOENT)?)
    }

    pub(crate) fn attributes(&self, inode: INodeNo) -> Result<FileAttr, Errno> {
        self.lock().attributes(inode.into())
    }

    pub(crate) fn resize(&self, inode: INodeNo, size: u64) -> Result<(), Errno> {
        let mut state = self.lock();
        if u64::from(inode) == TOLD_INODE {
            return Ok(());
        }
        state.step()?;
        let size = usize::try_from(size).map_err(|_| Errno::EFBIG)?;
        let inode = state.existing(inode)?;
        state.happen(Event::Resize { inode, size });
        Ok(())
    }

    pub(crate) fn create(&self, name: &OsStr) -> Result<FileAttr, Errno> {
        let mut state = self.lock();
        state.step()?;
        let inode = state.volume.next_inode();
        let name = name.to_owned();
        state.happen(Event::Create { name, inode });
        state.attributes(inode)
    }

    pub(crate) fn remove(&self, name: &OsStr) -> Result<(), Errno> {
        let mut state = self.lock();
        state.step()?;
        state.happen(Event::Remove {
            name: name.to_owned(),
        });
        Ok(())
    }

    pub(crate) fn rename(&self, from: &OsStr, to: &OsStr) -> Result<(), Errno> {
        let mut state = self.lock();
        state.step()?;
        state.volume.find(from).ok_or(Errno::ENOENT)?;
        state.happen(Event::Rename {
            from: from.to_owned(),
            to: to.to_owned(),
        });
        Ok(())
    }

    pub(crate) fn open(&self, inode: INodeNo) -> Result<(), Errno> {
        let state = self.lock();
        if u64::from(inode) == TOLD_INODE {
            return Ok(());
        }
        state.existing(inode).map(|_| ())
    }

    pub(crate) fn read(&self, inode: INodeNo, offset: u64, size: u32) -> Result<Vec<u8>, Errno> {
        let state = self.lock();
        if u64::from(inode) == TOLD_INODE {
            return Ok(Vec::new());
        }
        let inode = state.existing(inode)?;
        let content = state.volume.content(inode).ok_or(Errno::ENOENT)?;
        let length = content.len();
        let start = usize::try_from(offset).unwrap_or(length).min(length);
        let end = start.saturating_add(size as usize).min(length);
        Ok(content[start..end].to_vec())
    }

    pub(crate) fn write(
        &self,
        thread: u32,
        inode: INodeNo,
        offset: u64,
        data: &[u8],
        reply: ReplyWrite,
    ) -> Written {
        let mut state = self.lock();
        if u64::from(inode) == TOLD_INODE {
            let line = String::from_utf8_lossy(data).trim_end().to_owned();
            state.happen(Event::Told(line));
            return Written::Now(u32::try_from(data.len()).map_err(|_| Errno::EFBIG), reply);
        }
        let Ok(offset) = usize::try_from(offset) else {
            return Written::Now(Err(Errno::EFBIG), reply);
        };
        let event = Event::Write {
            inode: inode.into(),
            offset,
            data: data.into(),
        };
        if state.is_to_be_held(thread, &event) {
            state.held = Some(Waiting::Write(event, reply));
            return Written::Later;
        }
        Written::Now(state.write_of(event, Held::Done), reply)
    }

    pub(crate) fn sync(&self, thread: u32, inode: Option<INodeNo>, reply: ReplyEmpty) -> Synced {
        let mut state = self.lock();
        let event = match inode {
            Some(inode) if u64::from(inode) == TOLD_INODE => return Synced::Now(Ok(()), reply),
            Some(inode) => Event::Sync {
                inode: inode.into(),
            },
            None => Event::SyncNames,
        };
        if state.is_to_be_held(thread, &event) {
            state.held = Some(Waiting::Sync(event, reply));
            return Synced::Later;
        }
        Synced::Now(state.sync_of(event), reply)
    }

    pub(crate) fn names(&self) -> Vec<(OsString, u64)> {
        let state = self.lock();
        let names = state.volume.names();
        names.map(|(name, inode)| (name.clone(), inode)).collect()
    }
}

impl State {
    /// Counts a step; an error when there is no power for it.
    fn step(&mut self) -> Result<(), Errno> {
        if let Some(cut) = self.cut_at
            && !self.off
            && self.steps >= cut.step
        {
            self.volume = self.volume.after_cut(cut.loss, cut.seed);
            self.off = true;
        }
        if self.off {
            return Err(Errno::EIO);
        }
        self.steps += 1;
        Ok(())
    }

    /// The fault whose time has come, if there is one.
    fn fault(&mut self) -> Option<Fault> {
        if self.dies_at.is_some_and(|step| self.steps > step) {
            return Some(Fault::Io { seed: self.steps });
        }
        let due = |(step, _): &(u64, Fault)| self.steps > *step;
        let index = self.faults.iter().position(due)?;
        let (_, fault) = self.faults.remove(index);
        self.happen(Event::Told(FAULT.to_owned()));
        Some(fault)
    }

    fn happen(&mut self, event: Event) {
        self.volume.apply(&event);
        if let Some(log) = &mut self.log {
            log.push(event);
        }
    }

    fn existing(&self, inode: INodeNo) -> Result<u64, Errno> {
        if self.off {
            return Err(Errno::EIO);
        }
        let inode = u64::from(inode);
        self.volume.content(inode).ok_or(Errno::ENOENT)?;
        Ok(inode)
    }

    fn attributes(&self, inode: u64) -> Result<FileAttr, Errno> {
        match inode {
            ROOT_INODE => Ok(attributes(inode, 0, FileType::Directory)),
            TOLD_INODE => Ok(attributes(inode, 0, FileType::RegularFile)),
            // What the disk will hold next time must not be seen by those who have lost their power.
            _ if self.off => Err(Errno::EIO),
            _ => {
                let content = self.volume.content(inode).ok_or(Errno::ENOENT)?;
                Ok(attributes(inode, content.len(), FileType::RegularFile))
            }
        }
    }

    fn write_of(&mut self, event: Event, outcome: Held) -> Result<u32, Errno> {
        self.step()?;
        let Event::Write {
            inode,
            offset,
            data,
        } = event
        else {
            return Err(Errno::EINVAL);
        };
        self.existing(INodeNo(inode))?;
        let length = match (self.fault(), outcome) {
            (Some(Fault::Io { .. }), _) => return Err(Errno::EIO),
            (Some(Fault::Full), _) => return Err(Errno::ENOSPC),
            (_, Held::Undone) => return Err(Errno::EIO),
            (Some(Fault::Short), _) | (_, Held::Half) => data.len().div_ceil(2),
            _ => data.len(),
        };
        self.happen(Event::Write {
            inode,
            offset,
            data: data[..length].into(),
        });
        u32::try_from(length).map_err(|_| Errno::EFBIG)
    }

    fn sync_of(&mut self, event: Event) -> Result<(), Errno> {
        self.step()?;
        let inode = match event {
            Event::Sync { inode } => Some(self.existing(INodeNo(inode))?),
            _ => None,
        };
        match self.fault() {
            Some(Fault::Io { seed }) => {
                self.lose_for_good(inode, seed);
                Err(Errno::EIO)
            }
            Some(Fault::Full) => {
                self.lose_for_good(inode, self.steps);
                Err(Errno::ENOSPC)
            }
            Some(Fault::Unsaid { seed }) => {
                self.lose_for_good(inode, seed);
                Ok(())
            }
            Some(Fault::Short) | None => {
                self.happen(event);
                Ok(())
            }
        }
    }

    /// What a failed sync leaves.
    fn lose_for_good(&mut self, inode: Option<u64>, seed: u64) {
        if let Some(inode) = inode {
            self.happen(Event::SyncFailed { inode, seed });
        }
    }

    /// Whether this write or sync is the one in which its process is to be stopped.
    fn is_to_be_held(&mut self, thread: u32, event: &Event) -> bool {
        let Some(hold) = &mut self.hold else {
            return false;
        };
        let process = hold
            .processes
            .entry(thread)
            .or_insert_with(|| process_of(thread));
        if *process != hold.process || self.held.is_some() {
            return false;
        }
        let left = match &mut hold.moment {
            Moment::Step(left) => left,
            Moment::SyncOf(name, left) => match event {
                Event::Sync { inode } if self.volume.find(OsStr::new(name)) == Some(*inode) => left,
                _ => return false,
            },
        };
        if *left > 0 {
            *left -= 1;
            return false;
        }
        // Whoever asked for it has given up when nobody hears this.
        hold.tell.send(()).is_ok()
    }
}

/// The process that a thread belongs to; 0 when it is gone.
fn process_of(thread: u32) -> u32 {
    std::fs::read_to_string(format!("/proc/{thread}/status"))
        .unwrap_or_default()
        .lines()
        .find_map(|line| line.strip_prefix("Tgid:")?.trim().parse().ok())
        .unwrap_or(0)
}

impl std::fmt::Debug for VolatileDisk {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("VolatileDisk")
            .field("steps", &self.steps())
            .finish_non_exhaustive()
    }
}
