//! The disk as a file system, through FUSE.

use std::ffi::OsStr;
use std::io;
use std::path::Path;
use std::time::{Duration, UNIX_EPOCH};

use fuser::{
    BackgroundSession, BsdFileFlags, Config, FileAttr, FileHandle, FileType, Filesystem,
    FopenFlags, Generation, INodeNo, LockOwner, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate,
    ReplyData, ReplyDirectory, ReplyEmpty, ReplyEntry, ReplyOpen, ReplyStatfs, ReplyWrite, Request,
    TimeOrNow, WriteFlags,
};

use crate::disk::{Synced, TOLD_INODE, VolatileDisk, Written};

/// Nothing is cached by the kernel, so that a cut is seen at once.
const NO_CACHE: Duration = Duration::ZERO;

/// Mounts the disk at a directory, for as long as the session lives.
///
/// # Errors
///
/// Where FUSE is not permitted: it takes root and `/dev/fuse`.
pub fn mount(disk: &VolatileDisk, at: &Path, config: &Config) -> io::Result<BackgroundSession> {
    fuser::spawn_mount(disk.clone(), at, config)
}

pub(crate) fn attributes(inode: u64, size: usize, kind: FileType) -> FileAttr {
    FileAttr {
        ino: INodeNo(inode),
        size: size as u64,
        blocks: (size as u64).div_ceil(512),
        atime: UNIX_EPOCH,
        mtime: UNIX_EPOCH,
        ctime: UNIX_EPOCH,
        crtime: UNIX_EPOCH,
        kind,
        perm: match kind {
            FileType::Directory => 0o755,
            _ => 0o600,
        },
        nlink: 1,
        uid: 0,
        gid: 0,
        rdev: 0,
        blksize: 4096,
        flags: 0,
    }
}

impl Filesystem for VolatileDisk {
    fn lookup(&self, _: &Request, _parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        match self.find(name) {
            Ok(attributes) => reply.entry(&NO_CACHE, &attributes, Generation(0)),
            Err(error) => reply.error(error),
        }
    }

    fn getattr(&self, _: &Request, inode: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        match VolatileDisk::attributes(self, inode) {
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
        let resized = match size {
            Some(size) => self.resize(inode, size),
            None => Ok(()),
        };
        match resized.and_then(|()| VolatileDisk::attributes(self, inode)) {
            Ok(attributes) => reply.attr(&NO_CACHE, &attributes),
            Err(error) => reply.error(error),
        }
    }

    fn unlink(&self, _: &Request, _parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        match self.remove(name) {
            Ok(()) => reply.ok(),
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
        match VolatileDisk::rename(self, name, new_name) {
            Ok(()) => reply.ok(),
            Err(error) => reply.error(error),
        }
    }

    fn open(&self, _: &Request, inode: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        match VolatileDisk::open(self, inode) {
            // What is told comes in one piece then, and not page by page.
            Ok(()) if u64::from(inode) == TOLD_INODE => {
                reply.opened(FileHandle(0), FopenFlags::FOPEN_DIRECT_IO);
            }
            Ok(()) => reply.opened(FileHandle(0), FopenFlags::empty()),
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
        match VolatileDisk::create(self, name) {
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
        match VolatileDisk::read(self, inode, offset, size) {
            Ok(data) => reply.data(&data),
            Err(error) => reply.error(error),
        }
    }

    fn write(
        &self,
        request: &Request,
        inode: INodeNo,
        _fh: FileHandle,
        offset: u64,
        data: &[u8],
        _write_flags: WriteFlags,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        match VolatileDisk::write(self, request.pid(), inode, offset, data, reply) {
            Written::Now(Ok(written), reply) => reply.written(written),
            Written::Now(Err(error), reply) => reply.error(error),
            Written::Later => {}
        }
    }

    fn flush(&self, _: &Request, _: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        // Called at close; it makes nothing durable.
        reply.ok();
    }

    fn fsync(&self, request: &Request, inode: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        answer(self.sync(request.pid(), Some(inode), reply));
    }

    fn fsyncdir(&self, request: &Request, _: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        answer(self.sync(request.pid(), None, reply));
    }

    fn readdir(
        &self,
        _: &Request,
        _inode: INodeNo,
        _fh: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        let skip = usize::try_from(offset).unwrap_or(usize::MAX);
        for (index, (name, inode)) in self.names().into_iter().enumerate().skip(skip) {
            let next_offset = index as u64 + 1;
            if reply.add(INodeNo(inode), next_offset, FileType::RegularFile, name) {
                break;
            }
        }
        reply.ok();
    }

    fn statfs(&self, _: &Request, _: INodeNo, reply: ReplyStatfs) {
        reply.statfs(1 << 20, 1 << 20, 1 << 20, 1 << 20, 1 << 20, 4096, 255, 4096);
    }
}

fn answer(synced: Synced) {
    match synced {
        Synced::Now(Ok(()), reply) => reply.ok(),
        Synced::Now(Err(error), reply) => reply.error(error),
        Synced::Later => {}
    }
}
