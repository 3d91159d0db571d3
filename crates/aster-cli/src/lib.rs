//! The command line `aster`: arguments and printing; what is done lives in the crates below.
//!
//! A library only so that its parsers can be fuzzed. Nothing but [`main`] is meant to be called, and nothing is
//! promised about the rest.
//!
//! | module | what lives there |
//! |---|---|
//! | `arguments`, `usage` | the command line, and what is said when it is wrong |
//! | `context`, `identity`, `locations` | which store, who acts, where things are |
//! | `commands` | commands that ask once and print |
//! | `run` | hold a lease while a command runs |
//! | `socket` | how that command reaches its run |
//! | `demo` | a takeover with real processes |
//! | `failure`, `output`, `duration` | exit codes, printing, `1.5s` |

mod arguments;
mod commands;
mod context;
mod demo;
mod duration;
mod failure;
#[cfg(feature = "fuzz")]
#[doc(hidden)]
pub mod fuzz;
mod identity;
mod locations;
mod output;
mod run;
mod socket;
mod usage;

use std::ffi::OsStr;
use std::process::ExitCode;

use clap::Parser;

use arguments::{Command, InternalCommand, StoreCommand};
use commands::{backup, follow, inside, operate, read, verify};
use context::Context;
use failure::{Failure, FailureKind};
use output::Output;
use tracing_subscriber::filter::LevelFilter;

/// What the binary does.
#[must_use]
pub fn main() -> ExitCode {
    if InternalCommand::is_meant() {
        return internal();
    }
    let arguments = match usage::parse() {
        Ok(arguments) => arguments,
        Err(error) => return usage::answer(&error),
    };
    let output = Output::new(arguments.global.json, arguments.global.color);
    let result = start_log(default_level(&arguments.command))
        .and_then(|()| Context::new(output, arguments.global))
        .and_then(|context| command(&context, &arguments.command));
    match result {
        Ok(code) => ExitCode::from(code),
        Err(failure) => {
            output.failure(&failure);
            failure.exit_code()
        }
    }
}

fn internal() -> ExitCode {
    let command = match InternalCommand::try_parse() {
        Ok(command) => command,
        Err(error) => return usage::answer(&error),
    };
    let result = match &command {
        InternalCommand::Launch(arguments) => run::launch::launch(arguments),
        InternalCommand::Guard => {
            run::guard::guard();
            Ok(0)
        }
        InternalCommand::DemoWorker(arguments) => done(block_on(demo::worker::work(arguments))),
    };
    match result {
        Ok(code) => ExitCode::from(code),
        Err(failure) => {
            output::complain(&failure.message);
            failure.exit_code()
        }
    }
}

/// Only warnings: a fence from the future is one that an operator should see. `verify` forges such fences
/// itself.
fn default_level(command: &Command) -> Option<tracing::Level> {
    match command {
        Command::Verify(_) => None,
        _ => Some(tracing::Level::WARN),
    }
}

/// `ASTER_LOG=debug` writes what the library does to stderr.
fn start_log(default_level: Option<tracing::Level>) -> Result<(), Failure> {
    let level = match context::variable("ASTER_LOG") {
        None => default_level,
        Some(level) => Some(level_of(&level)?),
    };
    tracing_subscriber::fmt()
        .with_max_level(LevelFilter::from(level))
        .with_writer(std::io::stderr)
        .with_ansi(false)
        .init();
    Ok(())
}

fn level_of(level: &OsStr) -> Result<tracing::Level, Failure> {
    let level = level.to_string_lossy();
    level.parse().map_err(|_| {
        let message = format!("ASTER_LOG is {level}: write error, warn, info, debug or trace");
        Failure::new(FailureKind::Usage, message)
    })
}

fn command(context: &Context, command: &Command) -> Result<u8, Failure> {
    match command {
        Command::Run(arguments) => block_on(run::run(context, arguments)),
        Command::Put(arguments) => done(inside::put(context, arguments)),
        Command::Get(arguments) => done(block_on(read::get(context, arguments))),
        Command::Fence => done(inside::fence(context)),
        Command::Inspect { resource } => done(block_on(read::inspect(context, resource))),
        Command::List(arguments) => done(block_on(read::list(context, arguments))),
        Command::Revoke(arguments) => done(block_on(operate::revoke_lease(context, arguments))),
        Command::Audit(arguments) => done(block_on(read::audit(context, arguments))),
        Command::Watch { resource } => done(block_on(follow::watch(context, resource))),
        Command::Queue { resource } => done(block_on(follow::queue(context, resource))),
        Command::Verify(arguments) => block_on(verify::verify(context, arguments)),
        Command::Id => done(operate::id(context)),
        Command::Demo(arguments) => done(demo::demo(context, arguments)),
        Command::Store(StoreCommand::Adopt(arguments)) => done(operate::adopt(context, arguments)),
        Command::Store(StoreCommand::Backup(arguments)) => {
            block_on(backup::backup(context, arguments))
        }
        Command::Store(StoreCommand::Restore(arguments)) => {
            block_on(backup::restore(context, arguments))
        }
        Command::Completions { shell } => done(operate::completions(*shell)),
    }
}

fn done(result: Result<(), Failure>) -> Result<u8, Failure> {
    result.map(|()| 0)
}

/// Runs on this, the main thread: the kernel ties a command's life to the thread that started it, and this
/// one lives as long as the process.
fn block_on<T>(future: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::io("cannot start the runtime", &error))?;
    let result = runtime.block_on(future);
    // A store that hangs must not keep us from ending.
    runtime.shutdown_background();
    result
}
