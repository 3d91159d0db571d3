//! How one process tells another that its turn has come: a datagram to a socket beside the store's
//! file. It names a resource and decides nothing; whoever hears it looks. Whoever is not reached looks
//! by itself a little later.
//!
//! It also tells whether a process lives: the socket of a dead one refuses.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};

use aster_core::{RESOURCE_BYTES_MAX, ResourceName};

use crate::identity::{FileId, facts, still_names};
use crate::side::make_alike;
use crate::waiters::ProcessId;

/// A socket's address has room for this many bytes, and a final zero.
const ADDRESS_BYTES_MAX: usize = 107;
/// How many names of a directory are looked at for sockets of the dead.
const NAMES_MAX: usize = 4_096;
/// How many datagrams are heard before one looks.
const HEARD_MAX: usize = 256;

/// The socket of this process, in place until this is dropped. A child process does not inherit it.
#[derive(Debug)]
pub(crate) struct Mailbox {
    socket: UnixDatagram,
    path: PathBuf,
    file: FileId,
}

impl Mailbox {
    /// Binds the socket of `process` beside the main file.
    pub(crate) fn bind(main: &Path, process: ProcessId) -> io::Result<Self> {
        let path = path_of(main, process);
        let mut unnamed = path.clone().into_os_string();
        unnamed.push(".new");
        let unnamed = PathBuf::from(unnamed);
        // Left over at most from an earlier attempt of our own.
        let _ = std::fs::remove_file(&unnamed);
        let bound = || {
            let socket = at_address(&unnamed, |address| UnixDatagram::bind(address))?;
            socket.set_nonblocking(true)?;
            make_alike(main, &unnamed)?;
            let file = facts(&unnamed)?.id;
            // Under its name it is complete: nobody takes it for the socket of a dead process.
            std::fs::rename(&unnamed, &path)?;
            Ok((socket, file))
        };
        match bound() {
            Ok((socket, file)) => Ok(Self { socket, path, file }),
            Err(error) => {
                let _ = std::fs::remove_file(&unnamed);
                Err(error)
            }
        }
    }

    /// Whether others still find it.
    pub(crate) fn is_in_place(&self) -> bool {
        still_names(&self.path, self.file)
    }

    /// Which resources others speak of.
    pub(crate) fn hear(&self) -> Vec<ResourceName> {
        // One more than the longest name: the system cuts a datagram that is longer than the room for it, and
        // the beginning of a name is another name.
        let mut bytes = [0; RESOURCE_BYTES_MAX + 1];
        let mut heard = Vec::new();
        for _ in 0..HEARD_MAX {
            let Ok(length) = self.socket.recv(&mut bytes) else {
                break;
            };
            let name = std::str::from_utf8(&bytes[..length]).map(ResourceName::new);
            heard.extend(name.ok().and_then(Result::ok));
        }
        heard
    }
}

impl AsFd for Mailbox {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Drop for Mailbox {
    fn drop(&mut self) {
        if self.is_in_place() {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// What can be told of another process.
#[derive(Debug)]
pub(crate) enum Reached {
    /// It lives, and this wakes it.
    Alive(Peer),
    /// It is gone for good.
    Dead,
    /// It cannot be reached, and looks by itself.
    Unknown,
}

/// A way to another process.
#[derive(Debug)]
pub(crate) struct Peer(UnixDatagram);

impl Peer {
    /// Tells it to look. When its mailbox is full it will look anyway.
    pub(crate) fn wake(&self, resource: &ResourceName) {
        let _ = self.0.send(resource.as_bytes());
    }
}

/// Looks for another process.
pub(crate) fn reach(main: &Path, process: ProcessId) -> Reached {
    reach_at(&path_of(main, process))
}

fn reach_at(path: &Path) -> Reached {
    let connected = UnixDatagram::unbound().and_then(|socket| {
        socket.set_nonblocking(true)?;
        at_address(path, |address| socket.connect(address))?;
        Ok(socket)
    });
    match connected {
        Ok(socket) => Reached::Alive(Peer(socket)),
        // Only a socket that was closed refuses; a missing one may have been removed by mistake.
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => Reached::Dead,
        Err(_) => Reached::Unknown,
    }
}

/// Removes the socket of a process that was found dead. Its places in the queues go before: without a
/// socket nobody can tell that it is dead.
pub(crate) fn bury(main: &Path, process: ProcessId) {
    let path = path_of(main, process);
    if matches!(reach_at(&path), Reached::Dead) {
        let _ = std::fs::remove_file(path);
    }
}

/// The dead processes whose sockets are beside the main file.
pub(crate) fn all_dead(main: &Path) -> Vec<ProcessId> {
    let directory = main.parent().unwrap_or(Path::new("/"));
    let Ok(names) = std::fs::read_dir(directory) else {
        return Vec::new();
    };
    let prefix = prefix_of(main);
    let mut dead = Vec::new();
    for name in names.take(NAMES_MAX).flatten() {
        let found = name.file_name();
        let Some(rest) = found.as_bytes().strip_prefix(prefix.as_bytes()) else {
            continue;
        };
        if let Some(process) = process_of(rest)
            && matches!(reach(main, process), Reached::Dead)
        {
            dead.push(process);
        }
    }
    dead
}

/// `<file>-aster-<16 hexadecimal digits>`.
pub(crate) fn path_of(main: &Path, process: ProcessId) -> PathBuf {
    let mut name = prefix_of(main);
    for byte in process {
        name.push(format!("{byte:02x}"));
    }
    main.with_file_name(name)
}

/// The process of which a socket's name ends so.
pub(crate) fn process_of(digits: &[u8]) -> Option<ProcessId> {
    let digits = std::str::from_utf8(digits).ok()?;
    let is_ours = digits.len() == 16 && digits.bytes().all(|digit| digit.is_ascii_hexdigit());
    let number = is_ours.then(|| u64::from_str_radix(digits, 16).ok())?;
    Some(number?.to_be_bytes())
}

fn prefix_of(main: &Path) -> OsString {
    let mut name = main.file_name().unwrap_or(OsStr::new("")).to_owned();
    name.push("-aster-");
    name
}

/// Runs `step` with an address of `path` that is short enough: through the directory's descriptor if
/// the path itself is too long.
fn at_address<T>(path: &Path, step: impl FnOnce(&Path) -> io::Result<T>) -> io::Result<T> {
    if path.as_os_str().len() <= ADDRESS_BYTES_MAX {
        return step(path);
    }
    let directory = File::open(path.parent().unwrap_or(Path::new("/")))?;
    let through = PathBuf::from(format!("/proc/self/fd/{}", directory.as_raw_fd()));
    step(&through.join(path.file_name().unwrap_or(OsStr::new(""))))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
mod tests {
    use std::path::{Path, PathBuf};

    use aster_core::{RESOURCE_BYTES_MAX, ResourceName};

    use super::{Mailbox, Reached, all_dead, bury, path_of, reach};

    const PROCESS: [u8; 8] = [0, 1, 2, 3, 4, 5, 254, 255];

    fn store(directory: &Path) -> PathBuf {
        let path = directory.join("leases.db");
        std::fs::write(&path, "").unwrap();
        path
    }

    #[test]
    fn a_mailbox_is_reached_while_it_lives_and_leaves_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let main = store(directory.path());
        assert!(matches!(reach(&main, PROCESS), Reached::Unknown));
        let mailbox = Mailbox::bind(&main, PROCESS).unwrap();
        let Reached::Alive(peer) = reach(&main, PROCESS) else {
            panic!("not reached")
        };
        let catalog = ResourceName::new("catalog").unwrap();
        // More than any mailbox holds: waking never blocks.
        for _ in 0..10_000 {
            peer.wake(&catalog);
        }
        assert_eq!(mailbox.hear()[0], catalog);
        assert!(all_dead(&main).is_empty());
        bury(&main, PROCESS);
        assert!(mailbox.is_in_place());
        drop(mailbox);
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 1);
    }

    #[test]
    fn the_beginning_of_a_longer_datagram_is_no_name() {
        let directory = tempfile::tempdir().unwrap();
        let main = store(directory.path());
        let mailbox = Mailbox::bind(&main, PROCESS).unwrap();
        let sender = std::os::unix::net::UnixDatagram::unbound().unwrap();
        for length in [
            RESOURCE_BYTES_MAX + 1,
            2 * RESOURCE_BYTES_MAX,
            RESOURCE_BYTES_MAX,
        ] {
            sender
                .send_to(&vec![b'n'; length], path_of(&main, PROCESS))
                .unwrap();
        }
        let heard = mailbox.hear();
        let lengths: Vec<usize> = heard.iter().map(|name| name.len()).collect();
        assert_eq!(lengths, [RESOURCE_BYTES_MAX]);
    }

    #[test]
    fn the_socket_of_a_dead_process_refuses_and_is_removed() {
        let directory = tempfile::tempdir().unwrap();
        let main = store(directory.path());
        // A killed process leaves its socket where it was.
        let path = path_of(&main, PROCESS);
        drop(std::os::unix::net::UnixDatagram::bind(&path).unwrap());
        assert!(matches!(reach(&main, PROCESS), Reached::Dead));
        assert_eq!(all_dead(&main), [PROCESS]);
        bury(&main, PROCESS);
        assert!(!path.exists());
        assert!(all_dead(&main).is_empty());
    }

    #[test]
    fn a_long_path_is_reached_through_its_directory() {
        let directory = tempfile::tempdir().unwrap();
        let deep = directory.path().join("d".repeat(100)).join("e".repeat(100));
        std::fs::create_dir_all(&deep).unwrap();
        let main = store(&deep);
        let _mailbox = Mailbox::bind(&main, PROCESS).unwrap();
        assert!(matches!(reach(&main, PROCESS), Reached::Alive(_)));
    }

    #[test]
    fn a_mailbox_has_the_mode_of_the_store() {
        use std::os::unix::fs::PermissionsExt;
        let directory = tempfile::tempdir().unwrap();
        let main = store(directory.path());
        std::fs::set_permissions(&main, std::fs::Permissions::from_mode(0o600)).unwrap();
        let _mailbox = Mailbox::bind(&main, PROCESS).unwrap();
        let mode = std::fs::metadata(path_of(&main, PROCESS))
            .unwrap()
            .permissions()
            .mode();
        assert_eq!(mode & 0o777, 0o600);
    }
}
