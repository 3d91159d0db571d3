//! The doors by which the fuzz targets reach what this program parses. No part of what is promised.
#![allow(missing_docs, reason = "only the fuzz targets come in here")]

use std::ffi::{OsStr, OsString};
use std::io;
use std::path::{Path, PathBuf};
use std::task::{Poll, Waker};
use std::time::Duration;

use clap::Parser;
use serde::{Serialize, de::DeserializeOwned};

use crate::arguments::{Arguments, Command, InternalCommand};
use crate::context::Context;
use crate::failure::Failure;
use crate::output::Output;
use crate::run::guard::{Orders, read_lines};
use crate::socket::frame::{BODY_BYTES_MAX, HEADER_BYTES_MAX, PREFIX_BYTES, encode};
use crate::{demo, duration, identity, level_of, output, run::group, run::signals, socket, usage};

pub const FRAME_BYTES_MAX: usize = PREFIX_BYTES + HEADER_BYTES_MAX + BODY_BYTES_MAX;

/// Milliseconds of a ttl.
pub fn ttl(text: &str) -> Result<u64, String> {
    let ttl = duration::ttl(text).map_err(|error| error.to_string())?;
    Ok(ttl.as_millis())
}

pub fn hold_off(text: &str) -> Result<Duration, String> {
    duration::hold_off(text).map_err(|error| error.to_string())
}

pub fn wait(text: &str) -> Result<Duration, String> {
    duration::wait(text).map_err(|error| error.to_string())
}

pub fn grace(text: &str) -> Result<Duration, String> {
    duration::grace(text).map_err(|error| error.to_string())
}

/// What of an accepted command line has bounds.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Line {
    pub resource: Option<String>,
    pub ttl_ms: Option<u64>,
    pub grace: Option<Duration>,
    pub wait: Option<Duration>,
    pub hold_off: Option<Duration>,
    pub epoch: Option<u64>,
    pub limit: Option<u16>,
    pub program: Option<OsString>,
    pub store: Option<String>,
}

/// The arguments behind the program's name. What is refused is the text for the terminal.
pub fn command_line(words: &[OsString]) -> Result<Line, String> {
    let words: Vec<OsString> = [OsString::from("aster")]
        .into_iter()
        .chain(words.iter().cloned())
        .collect();
    let arguments = usage::parse_words(&words).map_err(|error| error.to_string())?;
    Ok(line_of(arguments))
}

fn line_of(arguments: Arguments) -> Line {
    let mut line = Line {
        store: arguments.global.store,
        ..Line::default()
    };
    match arguments.command {
        Command::Run(run) => {
            line.resource = Some(run.resource.into());
            line.ttl_ms = Some(run.ttl.as_millis());
            line.grace = run.grace;
            line.wait = run.wait;
            line.program = run.command.into_iter().next();
        }
        Command::Get(get) => line.resource = get.resource.map(Into::into),
        Command::Inspect { resource }
        | Command::Watch { resource }
        | Command::Queue { resource } => line.resource = Some(resource.into()),
        Command::Revoke(revoke) => {
            line.resource = Some(revoke.resource.into());
            line.epoch = revoke.epoch;
            line.hold_off = revoke.hold_off;
        }
        Command::Audit(audit) => {
            line.resource = audit.resource.map(Into::into);
            line.limit = Some(audit.limit);
        }
        _ => {}
    }
    line
}

/// Whether the hidden subcommands take these arguments.
pub fn internal_command_line(words: &[OsString]) -> bool {
    let words = [OsString::from("aster")]
        .into_iter()
        .chain(words.iter().cloned());
    InternalCommand::try_parse_from(words).is_ok()
}

/// The store's URL, and that URL from any directory, in this environment.
pub fn store_in(
    environment: &dyn Fn(&str) -> Option<OsString>,
) -> Result<(String, String), String> {
    let said = |failure: Failure| failure.message;
    let arguments =
        Arguments::try_parse_from(["aster", "id"]).map_err(|error| error.to_string())?;
    let output = Output::new(false, arguments.global.color);
    let context = Context::within(output, arguments.global, environment).map_err(said)?;
    let absolute = context.absolute_store_url().map_err(said)?;
    Ok((context.store_url().map_err(said)?, absolute))
}

/// The name of the level that `ASTER_LOG` asks for.
pub fn log_level(value: &OsStr) -> Result<&'static str, String> {
    let level = level_of(value).map_err(|failure| failure.message)?;
    Ok(level.as_str())
}

/// Reads a request as the run does, and writes it again.
pub fn echo_request(mut bytes: &[u8]) -> io::Result<Vec<u8>> {
    let read = socket::server::read_request(&mut bytes);
    let mut context = std::task::Context::from_waker(Waker::noop());
    // Bytes in memory are there at once.
    match std::pin::pin!(read).poll(&mut context) {
        Poll::Ready(read) => read.and_then(|(request, body)| encode(&request, &body)),
        Poll::Pending => Err(io::ErrorKind::WouldBlock.into()),
    }
}

/// Reads an answer as the command does, and writes it again.
pub fn echo_answer(mut bytes: &[u8]) -> io::Result<Vec<u8>> {
    let (answer, body) = socket::client::read_answer(&mut bytes)?;
    encode(&answer, &body)
}

/// Reads a line of the demo as its worker does, or as the demo itself does, and writes it again.
pub fn echo_demo(line: &str, is_order: bool) -> Option<String> {
    fn echo<T: Serialize + DeserializeOwned>(line: &str) -> Option<String> {
        let message: T = serde_json::from_str(line).ok()?;
        serde_json::to_string(&message).ok()
    }
    match is_order {
        true => echo::<demo::worker::Order>(line),
        false => echo::<demo::worker::Reply>(line),
    }
}

/// The identity in the file at `path`.
pub fn identity(path: &Path) -> Result<Option<String>, String> {
    let loaded = identity::load(path).map_err(|failure| failure.message)?;
    Ok(loaded.map(Into::into))
}

/// What the guard has understood of its pipe: group, directory, deadline, and whether it is done.
pub type Understood = (Option<i32>, Option<PathBuf>, Option<Duration>, bool);

/// What the guard makes of these bytes, and how many it keeps for a line that has not ended.
pub fn orders(mut pipe: &[u8]) -> (Understood, usize) {
    let mut orders = Orders::default();
    let mut pending = Vec::new();
    while read_lines(&mut pipe, &mut pending, &mut orders).is_ok_and(|goes_on| goes_on) {}
    let Orders {
        group,
        directory,
        deadline,
        done,
    } = orders;
    ((group, directory, deadline, done), pending.len())
}

/// Process group and whether it lives, of a line of `/proc/*/stat`.
pub fn member_of(stat: &[u8]) -> Option<(i32, bool)> {
    group::member_of(stat)
}

pub fn ignored_by(status: &str) -> Option<u64> {
    signals::ignored_by(status)
}

pub fn one_line(text: &str) -> String {
    output::one_line(text)
}

pub fn lines_of(text: &str) -> String {
    output::lines_of(text)
}

pub fn value_lines(value: &[u8]) -> String {
    output::value_lines(value)
}

pub fn quoted(word: &str) -> String {
    output::quoted(word)
}

pub fn base64(bytes: &[u8]) -> String {
    output::base64(bytes)
}
