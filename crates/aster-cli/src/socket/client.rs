//! The command's side: blocking, one request.

use std::env;
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;

use super::SOCKET_VARIABLE;
use super::frame::{Answer, Lengths, PREFIX_BYTES, Request, decode, encode};
use crate::failure::{Failure, FailureKind};

/// How long the run may take for an answer. It retries within that time itself.
const ANSWER_WAIT: Duration = Duration::from_secs(60);

/// The socket of the surrounding run, if there is one.
pub(crate) fn surrounding_run() -> Option<PathBuf> {
    env::var_os(SOCKET_VARIABLE)
        .filter(|path| !path.is_empty())
        .map(PathBuf::from)
}

/// Asks the surrounding run; `body` goes with the request, the other comes with the answer.
///
/// A [`Answer::Failed`] becomes the error.
pub(crate) fn ask(
    command: &str,
    request: &Request,
    body: &[u8],
) -> Result<(Answer, Vec<u8>), Failure> {
    let path = surrounding_run().ok_or_else(|| {
        Failure::new(
            FailureKind::NoRun,
            format!(
                "`aster {command}` works inside a run only, because it needs its lease: \
                 aster run RESOURCE -- aster {command} …"
            ),
        )
    })?;
    let answer = exchange(&path, request, body).map_err(|error| no_answer(&error))?;
    match answer {
        (Answer::Failed { failure }, _) => Err(failure),
        answer => Ok(answer),
    }
}

/// A socket that is gone, or that nobody listens at, is that of a run that has ended: it cannot come back, and
/// nobody gets a fence from it any more. Everything else may pass.
fn no_answer(error: &io::Error) -> Failure {
    match error.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => Failure::new(
            FailureKind::LeaseLost,
            format!(
                "the run behind this command has ended, and so has its lease: stop the work \
                 (nobody answers at {SOCKET_VARIABLE}: {error})"
            ),
        ),
        _ => Failure::new(
            FailureKind::Unreachable,
            format!(
                "no answer from the run behind {SOCKET_VARIABLE}: {error}; it may have ended, and then \
                 so has its lease"
            ),
        ),
    }
}

/// An answer that does not belong to the request.
pub(crate) fn unexpected(answer: &Answer) -> Failure {
    Failure::new(
        FailureKind::Internal,
        format!("the run gave an answer of another kind: {answer:?} (please report this)"),
    )
}

fn exchange(path: &PathBuf, request: &Request, body: &[u8]) -> io::Result<(Answer, Vec<u8>)> {
    let frame = encode(request, body)?;
    let mut stream = UnixStream::connect(path)?;
    stream.set_read_timeout(Some(ANSWER_WAIT))?;
    stream.set_write_timeout(Some(ANSWER_WAIT))?;
    stream.write_all(&frame)?;
    let answer = read_answer(&mut stream);
    if answer.is_ok() {
        // Open until this process ends: so the run sees when we have said what we heard.
        std::mem::forget(stream);
    }
    answer
}

pub(crate) fn read_answer(stream: &mut impl Read) -> io::Result<(Answer, Vec<u8>)> {
    let mut prefix = [0; PREFIX_BYTES];
    stream.read_exact(&mut prefix)?;
    let lengths = Lengths::parse(prefix)?;
    let mut header = vec![0; lengths.header];
    stream.read_exact(&mut header)?;
    let mut body = vec![0; lengths.body];
    stream.read_exact(&mut body)?;
    Ok((decode(&header)?, body))
}
