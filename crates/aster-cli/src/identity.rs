//! The local identity: a random id in a file that only its user can read or write.
//!
//! It is the holder of the leases that this user's commands take and the writer of their writes. It
//! is not a secret (`aster id` prints it), but whoever could replace it would act under another name.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use aster::lease::{Entropy, Principal, SystemEntropy};

use crate::failure::{Failure, FailureKind};
use crate::locations;

/// The file's one line is this and 32 hexadecimal digits.
const HEADER: &str = "aster-identity-1 ";
/// An identity file is far shorter than this.
const FILE_BYTES_MAX: u64 = 256;
/// Two processes may create the file at once; the loser looks again this often.
const LOAD_ATTEMPTS_MAX: u32 = 3;

/// Who acts, and the file that says so.
#[derive(Debug, Clone)]
pub(crate) struct Identity {
    pub(crate) principal: Principal,
    pub(crate) path: PathBuf,
}

impl Identity {
    /// Reads the file, or creates it with a fresh id.
    pub(crate) fn load_or_create(path: &Path) -> Result<Self, Failure> {
        for _ in 0..LOAD_ATTEMPTS_MAX {
            match load(path)? {
                Some(principal) => {
                    return Ok(Self {
                        principal,
                        path: path.to_owned(),
                    });
                }
                None => create(path)?,
            }
        }
        Err(Failure::new(
            FailureKind::Storage,
            format!("the identity file {} keeps disappearing", path.display()),
        ))
    }
}

pub(crate) fn load(path: &Path) -> Result<Option<Principal>, Failure> {
    // Without O_NONBLOCK a named pipe in its place would keep us waiting.
    let flags = rustix::fs::OFlags::NONBLOCK.bits();
    let opened = OpenOptions::new()
        .read(true)
        .custom_flags(flags.cast_signed())
        .open(path);
    let file = match opened {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(unreadable(path, &error)),
    };
    // Of the opened file, not of the path: a path can be swapped in between.
    let metadata = file.metadata().map_err(|error| unreadable(path, &error))?;
    let refuse = |why: &str| {
        Err(Failure::new(
            FailureKind::InvalidInput,
            format!("the identity file {} {why}", path.display()),
        ))
    };
    if !metadata.is_file() {
        return refuse("is not a regular file");
    }
    let user = rustix::process::geteuid().as_raw();
    if metadata.uid() != user && metadata.uid() != 0 {
        return refuse("belongs to another user: use one of your own");
    }
    if metadata.mode() & 0o077 != 0 {
        return refuse(&format!(
            "can be read or written by others (mode {:04o}): run chmod 600 on it",
            metadata.mode() & 0o7777
        ));
    }
    let mut bytes = Vec::new();
    file.take(FILE_BYTES_MAX)
        .read_to_end(&mut bytes)
        .map_err(|error| unreadable(path, &error))?;
    match std::str::from_utf8(&bytes).ok().and_then(parse) {
        Some(principal) => Ok(Some(principal)),
        None => refuse("is damaged: restore it, or remove it to get a new identity"),
    }
}

fn unreadable(path: &Path, error: &io::Error) -> Failure {
    Failure::io(
        format!("cannot read the identity file {}", path.display()),
        error,
    )
}

fn parse(text: &str) -> Option<Principal> {
    let id = text.strip_prefix(HEADER)?.strip_suffix('\n')?;
    let is_id = id.len() == 32
        && id
            .bytes()
            .all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    if is_id { Principal::new(id).ok() } else { None }
}

/// Writes a whole file under another name and then links it, so that nobody ever reads half of one and
/// the first of several creators wins.
fn create(path: &Path) -> Result<(), Failure> {
    locations::create_private_parent(path)?;
    let id = random_hex()?;
    let mut temporary = path.as_os_str().to_owned();
    temporary.push(format!(".{}", &id[..8]));
    let temporary = PathBuf::from(temporary);
    let result = write_new(&temporary, &format!("{HEADER}{id}\n"))
        .and_then(|()| match fs::hard_link(&temporary, path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            result => result,
        })
        .and_then(|()| sync_directory(path));
    let _ = fs::remove_file(&temporary);
    result.map_err(|error| {
        Failure::io(
            format!("cannot create the identity file {}", path.display()),
            &error,
        )
    })
}

fn write_new(path: &Path, text: &str) -> io::Result<()> {
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()
}

fn sync_directory(path: &Path) -> io::Result<()> {
    match path
        .parent()
        .filter(|parent| !parent.as_os_str().is_empty())
    {
        Some(parent) => File::open(parent)?.sync_all(),
        None => File::open(".")?.sync_all(),
    }
}

/// 128 random bits in hexadecimal.
pub(crate) fn random_hex() -> Result<String, Failure> {
    let mut bytes = [0; 16];
    SystemEntropy
        .fill(&mut bytes)
        .map_err(|error| Failure::new(FailureKind::Internal, error.to_string()))?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}
