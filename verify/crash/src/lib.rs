//! A disk that forgets what was not synced.
//!
//! [`VolatileDisk`] is one directory of files, mounted through FUSE. It keeps for every file what the
//! programs see and what a power loss would leave: `fsync` of a file makes its content durable,
//! `fsync` of the directory makes its names durable, as strictly as POSIX allows. A power cut can be
//! set to come at the n-th write or sync; from then on everything fails, as it does for a program
//! whose machine has lost power.
//!
//! After the cut each page that was written but not synced is either there or not, by the given
//! seed: a disk may write in any order.

#![cfg(target_os = "linux")]
#![allow(
    clippy::missing_panics_doc,
    clippy::unwrap_used,
    reason = "a test tool: its own broken lock is a failed test"
)]

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ffi::{OsStr, OsString};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, UNIX_EPOCH};

use fuser::{
    BsdFileFlags, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation,
    INodeNo, LockOwner, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory,
    ReplyEmpty, ReplyEntry, ReplyOpen, ReplyStatfs, ReplyWrite, Request, TimeOrNow, WriteFlags,
};

const PAGE: usize = 4096;
/// Nothing is cached by the kernel, so that a cut is seen at once.
const NO_CACHE: Duration = Duration::ZERO;

/// The disk. Clones are the same disk; mount one of them, keep another to cut the power.
#[derive(Clone, Default)]
pub struct VolatileDisk {
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    names: BTreeMap<OsString, u64>,
    durable_names: BTreeMap<OsString, u64>,
    files: HashMap<u64, File>,
    last_inode: u64,
    /// Writes, truncations, syncs, creations and removals so far.
    steps: u64,
    cut_at: Option<Cut>,
    off: bool,
}

#[derive(Clone, Copy)]
struct Cut {
    step: u64,
    seed: u64,
}

#[derive(Default)]
struct File {
    content: Vec<u8>,
    durable: Vec<u8>,
    dirty_pages: BTreeSet<usize>,
}

impl VolatileDisk {
    /// An empty disk.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// How many steps (writes, syncs, changes of names) the disk has seen.
    #[must_use]
    pub fn steps(&self) -> u64 {
        self.lock().steps
    }

    /// Cuts the power at the `steps_ahead`-th step from now; that step does not happen any more.
    pub fn cut_after(&self, steps_ahead: u64, seed: u64) {
        let mut state = self.lock();
        state.cut_at = Some(Cut {
            step: state.steps + steps_ahead,
            seed,
        });
    }

    /// Cuts the power now, unless that has happened, and gives it back: what is left is what was
    /// durable, plus those unsynced pages that `seed` picks. Mount it anew afterwards.
    pub fn power_cycle(&self, seed: u64) {
        let mut state = self.lock();
        if !state.off {
            state.lose_unsynced(seed);
        }
        state.off = false;
        state.cut_at = None;
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }
}

impl std::fmt::Debug for VolatileDisk {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("VolatileDisk")
            .field("steps", &self.steps())
            .finish_non_exhaustive()
    }
}

impl State {
    /// Counts a step; an error when there is no power for it.
    fn step(&mut self) -> Result<(), Errno> {
        if let Some(cut) = self.cut_at
            && !self.off
            && self.steps >= cut.step
        {
            self.lose_unsynced(cut.seed);
            self.off = true;
        }
        if self.off {
            return Err(Errno::EIO);
        }
        self.steps += 1;
        Ok(())
    }

    fn lose_unsynced(&mut self, seed: u64) {
        let mut random = seed | 1;
        for file in self.files.values_mut() {
            file.lose_unsynced(&mut random);
        }
        self.names = self.durable_names.clone();
    }

    fn file(&mut self, inode: INodeNo) -> Result<&mut File, Errno> {
        if self.off {
            return Err(Errno::EIO);
        }
        self.files.get_mut(&u64::from(inode)).ok_or(Errno::ENOENT)
    }

    fn attributes(&self, inode: u64) -> Result<FileAttr, Errno> {
        // What the disk will hold next time must not be seen by those who have lost their power.
        if self.off && inode != 1 {
            return Err(Errno::EIO);
        }
        let (size, kind, perm) = match (inode, self.files.get(&inode)) {
            (1, _) => (0, FileType::Directory, 0o755),
            (_, Some(file)) => (file.content.len() as u64, FileType::RegularFile, 0o600),
            (_, None) => return Err(Errno::ENOENT),
        };
        Ok(FileAttr {
            ino: INodeNo(inode),
            size,
            blocks: size.div_ceil(512),
            atime: UNIX_EPOCH,
            mtime: UNIX_EPOCH,
            ctime: UNIX_EPOCH,
            crtime: UNIX_EPOCH,
            kind,
            perm,
            nlink: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
            blksize: 4096,
            flags: 0,
        })
    }

    fn create(&mut self, name: &OsStr) -> Result<u64, Errno> {
        self.step()?;
        // Inode 1 is the directory.
        self.last_inode = self.last_inode.max(1) + 1;
        let inode = self.last_inode;
        self.files.insert(inode, File::default());
        self.names.insert(name.to_owned(), inode);
        Ok(inode)
    }

    fn write(&mut self, inode: INodeNo, offset: u64, data: &[u8]) -> Result<u32, Errno> {
        self.step()?;
        let start = usize::try_from(offset).map_err(|_| Errno::EFBIG)?;
        let file = self.file(inode)?;
        if file.content.len() < start + data.len() {
            file.resize(start + data.len());
        }
        file.content[start..start + data.len()].copy_from_slice(data);
        file.touch(start, data.len());
        u32::try_from(data.len()).map_err(|_| Errno::EFBIG)
    }
}

impl File {
    fn resize(&mut self, size: usize) {
        let old = self.content.len();
        self.content.resize(size, 0);
        let (low, high) = (old.min(size), old.max(size));
        self.touch(low, high - low);
    }

    fn touch(&mut self, start: usize, bytes: usize) {
        self.dirty_pages
            .extend(start / PAGE..(start + bytes).div_ceil(PAGE));
    }

    fn sync(&mut self) {
        self.durable.resize(self.content.len(), 0);
        for page in std::mem::take(&mut self.dirty_pages) {
            copy_page(page, &self.content, &mut self.durable);
        }
    }

    fn lose_unsynced(&mut self, random: &mut u64) {
        let mut left = std::mem::take(&mut self.durable);
        if next(random).is_multiple_of(2) && self.content.len() > left.len() {
            left.resize(self.content.len(), 0);
        }
        for page in std::mem::take(&mut self.dirty_pages) {
            if next(random).is_multiple_of(2) {
                copy_page(page, &self.content, &mut left);
            }
        }
        self.content.clone_from(&left);
        self.durable = left;
    }
}

/// Copies as much of a page as both have.
fn copy_page(page: usize, from: &[u8], to: &mut [u8]) {
    let start = page * PAGE;
    let end = (start + PAGE).min(from.len()).min(to.len());
    if start < end {
        to[start..end].copy_from_slice(&from[start..end]);
    }
}

/// xorshift64: repeatable, and good enough to pick pages.
fn next(random: &mut u64) -> u64 {
    *random ^= *random << 13;
    *random ^= *random >> 7;
    *random ^= *random << 17;
    *random >> 16
}

impl Filesystem for VolatileDisk {
    fn lookup(&self, _: &Request, _parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let state = self.lock();
        let found = state.names.get(name).copied().ok_or(Errno::ENOENT);
        match found.and_then(|inode| state.attributes(inode)) {
            Ok(attributes) => reply.entry(&NO_CACHE, &attributes, Generation(0)),
            Err(error) => reply.error(error),
        }
    }

    fn getattr(&self, _: &Request, inode: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        match self.lock().attributes(inode.into()) {
            Ok(attributes) => reply.attr(&NO_CACHE, &attributes),
            Err(error) => reply.error(error),
        }
    }

    fn setattr(
        &self,
        _: &Request,
        inode: INodeNo,
        _mode: Option<u32>,
        _uid: Option<u32>,
        _gid: Option<u32>,
        size: Option<u64>,
        _atime: Option<TimeOrNow>,
        _mtime: Option<TimeOrNow>,
        _ctime: Option<std::time::SystemTime>,
        _fh: Option<FileHandle>,
        _crtime: Option<std::time::SystemTime>,
        _chgtime: Option<std::time::SystemTime>,
        _bkuptime: Option<std::time::SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let mut state = self.lock();
        let resized = match size {
            Some(size) => state.step().and_then(|()| {
                let size = usize::try_from(size).map_err(|_| Errno::EFBIG)?;
                state.file(inode).map(|file| file.resize(size))
            }),
            None => Ok(()),
        };
        match resized.and_then(|()| state.attributes(inode.into())) {
            Ok(attributes) => reply.attr(&NO_CACHE, &attributes),
            Err(error) => reply.error(error),
        }
    }

    fn unlink(&self, _: &Request, _parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let mut state = self.lock();
        match state.step() {
            Ok(()) => {
                // The file stays for those who have it open.
                state.names.remove(name);
                reply.ok();
            }
            Err(error) => reply.error(error),
        }
    }

    fn rename(
        &self,
        _: &Request,
        _parent: INodeNo,
        name: &OsStr,
        _new_parent: INodeNo,
        new_name: &OsStr,
        _flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let mut state = self.lock();
        let moved = state
            .step()
            .and_then(|()| state.names.remove(name).ok_or(Errno::ENOENT));
        match moved {
            Ok(inode) => {
                state.names.insert(new_name.to_owned(), inode);
                reply.ok();
            }
            Err(error) => reply.error(error),
        }
    }

    fn open(&self, _: &Request, inode: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        match self.lock().file(inode) {
            Ok(_) => reply.opened(FileHandle(0), FopenFlags::empty()),
            Err(error) => reply.error(error),
        }
    }

    fn create(
        &self,
        _: &Request,
        _parent: INodeNo,
        name: &OsStr,
        _mode: u32,
        _umask: u32,
        _flags: i32,
        reply: ReplyCreate,
    ) {
        let mut state = self.lock();
        match state.create(name).and_then(|inode| state.attributes(inode)) {
            Ok(attributes) => reply.created(
                &NO_CACHE,
                &attributes,
                Generation(0),
                FileHandle(0),
                FopenFlags::empty(),
            ),
            Err(error) => reply.error(error),
        }
    }

    fn read(
        &self,
        _: &Request,
        inode: INodeNo,
        _fh: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        match self.lock().file(inode) {
            Ok(file) => {
                let length = file.content.len();
                let start = usize::try_from(offset).unwrap_or(length).min(length);
                let end = start.saturating_add(size as usize).min(length);
                reply.data(&file.content[start..end]);
            }
            Err(error) => reply.error(error),
        }
    }

    fn write(
        &self,
        _: &Request,
        inode: INodeNo,
        _fh: FileHandle,
        offset: u64,
        data: &[u8],
        _write_flags: WriteFlags,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        match self.lock().write(inode, offset, data) {
            Ok(written) => reply.written(written),
            Err(error) => reply.error(error),
        }
    }

    fn flush(&self, _: &Request, _: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        // Called at close; it makes nothing durable.
        reply.ok();
    }

    fn fsync(&self, _: &Request, inode: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        let mut state = self.lock();
        match state
            .step()
            .and_then(|()| state.file(inode).map(File::sync))
        {
            Ok(()) => reply.ok(),
            Err(error) => reply.error(error),
        }
    }

    fn fsyncdir(&self, _: &Request, _: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        let mut state = self.lock();
        match state.step() {
            Ok(()) => {
                state.durable_names = state.names.clone();
                reply.ok();
            }
            Err(error) => reply.error(error),
        }
    }

    fn readdir(
        &self,
        _: &Request,
        _inode: INodeNo,
        _fh: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        let state = self.lock();
        let skip = usize::try_from(offset).unwrap_or(usize::MAX);
        for (index, (name, inode)) in state.names.iter().enumerate().skip(skip) {
            let next_offset = index as u64 + 1;
            if reply.add(INodeNo(*inode), next_offset, FileType::RegularFile, name) {
                break;
            }
        }
        reply.ok();
    }

    fn statfs(&self, _: &Request, _: INodeNo, reply: ReplyStatfs) {
        reply.statfs(1 << 20, 1 << 20, 1 << 20, 1 << 20, 1 << 20, 4096, 255, 4096);
    }
}
