//! `store backup` and `store restore`.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use aster::StoreUrl;
use aster::lease::Authority;
use aster::sqlite::{
    CopyProgress, ExistingBackup, OpenError, RestoreFrom, SqliteOptions, SqliteSerializer,
};
use rustix::process::Signal;
use serde::Serialize;

use super::operate::confirmed;
use crate::arguments::{BackupArguments, RestoreArguments};
use crate::context::Context;
use crate::failure::{Failure, FailureKind};
use crate::output::one_line;
use crate::run::code_of;
use crate::run::signals::ForwardedSignals;

#[derive(Debug, Serialize)]
struct BackedUp {
    store: String,
    file: PathBuf,
    bytes: u64,
    authority: Authority,
    /// The store's count of changes that the backup contains.
    sequence: u64,
}

pub(crate) async fn backup(context: &Context, arguments: &BackupArguments) -> Result<u8, Failure> {
    let url = context.store_url()?;
    let store = sqlite_path(&url, "back up")?;
    let (file, existing) = (arguments.file.clone(), arguments.replace);
    let copied = until_signalled(move |go_on| {
        let options = SqliteOptions {
            create: false,
            ..SqliteOptions::default()
        };
        let existing = match existing {
            true => ExistingBackup::Replace,
            false => ExistingBackup::Keep,
        };
        SqliteSerializer::open_with(store, options)?.backup_while(file, existing, go_on)
    });
    let backup = match copied.await? {
        End::Stopped(signal) => {
            context.output.remark("stopped: there is no new backup");
            return Ok(code_of(signal));
        }
        End::Done(Ok(backup)) => backup,
        End::Done(Err(error)) => {
            let is_there = match &error {
                OpenError::Exists { path } => path.file_name() == arguments.file.file_name(),
                _ => false,
            };
            let mut failure = Failure::from(error);
            if is_there && !arguments.replace {
                let hint = "; --replace takes the place of an earlier backup";
                failure.message.push_str(hint);
            }
            return Err(failure);
        }
    };
    let backed_up = BackedUp {
        store: url,
        file: backup.path,
        bytes: backup.bytes,
        authority: backup.authority,
        sequence: backup.sequence,
    };
    context.output.answer(&backed_up, |_| {
        format!(
            "backed up {} to {} ({} bytes)",
            backed_up.store,
            shown(&backed_up.file),
            backed_up.bytes
        )
    })?;
    Ok(0)
}

enum End<T> {
    Done(Result<T, OpenError>),
    Stopped(Signal),
}

/// Copies on a thread of its own. A signal that would end us stops the copy first, so that nothing half
/// made stays.
async fn until_signalled<T: Send + 'static>(
    copy: impl FnOnce(&mut dyn FnMut(CopyProgress) -> bool) -> Result<T, OpenError> + Send + 'static,
) -> Result<End<T>, Failure> {
    let mut signals = ForwardedSignals::listen()
        .map_err(|error| Failure::io("cannot listen to signals", &error))?;
    let is_told_to_stop = Arc::new(AtomicBool::new(false));
    let is_stopped = is_told_to_stop.clone();
    let mut copying =
        tokio::task::spawn_blocking(move || copy(&mut |_| !is_stopped.load(Ordering::Relaxed)));
    let mut first = None;
    let copied = loop {
        tokio::select! {
            copied = &mut copying => break copied,
            signal = signals.next() => {
                first.get_or_insert(signal);
                is_told_to_stop.store(true, Ordering::Relaxed);
            }
        }
    };
    let copied = copied.map_err(|error| Failure::new(FailureKind::Internal, error.to_string()))?;
    Ok(match (copied, first) {
        (Err(OpenError::Stopped { .. }), Some(signal)) => End::Stopped(signal),
        // It came too late to stop anything.
        (copied, _) => End::Done(copied),
    })
}

#[derive(Debug, Serialize)]
struct Restored {
    store: String,
    file: PathBuf,
    authority: Authority,
}

pub(crate) async fn restore(
    context: &Context,
    arguments: &RestoreArguments,
) -> Result<u8, Failure> {
    let url = match &arguments.url {
        Some(url) => url.clone(),
        None => context.store_url()?,
    };
    let store = sqlite_path(&url, "restore")?;
    let operator = context.identity()?.principal;
    let question = format!("Is the old store out of use? Make {url} from the backup? [y/N] ");
    if !arguments.yes && !confirmed(&question)? {
        return Err(Failure::new(
            FailureKind::Usage,
            "not restored: say --yes if the old store is out of use",
        ));
    }
    let from = match arguments.not_a_backup {
        true => RestoreFrom::AnyCopy,
        false => RestoreFrom::Backup,
    };
    let file = arguments.file.clone();
    let copied = until_signalled(move |go_on| {
        let options = SqliteOptions::default();
        SqliteSerializer::restore_while(file, store, &operator, &options, from, go_on)
    });
    let adopted = match copied.await? {
        End::Stopped(signal) => {
            context.output.remark("stopped: there is no new store");
            return Ok(code_of(signal));
        }
        End::Done(adopted) => adopted?,
    };
    let restored = Restored {
        store: url,
        file: arguments.file.clone(),
        authority: adopted.authority,
    };
    context.output.answer(&restored, |_| {
        format!(
            "restored {} from {}; its new authority is {}",
            restored.store,
            shown(&restored.file),
            restored.authority
        )
    })?;
    Ok(0)
}

fn sqlite_path(url: &str, what: &str) -> Result<PathBuf, Failure> {
    match StoreUrl::parse(url) {
        Ok(StoreUrl::Sqlite(path)) => Ok(path),
        Ok(_) => {
            let message = format!("{url} is not a durable store: there is nothing to {what}");
            Err(Failure::new(FailureKind::InvalidInput, message))
        }
        Err(error) => Err(Failure::new(FailureKind::InvalidInput, error.to_string())),
    }
}

fn shown(path: &Path) -> String {
    one_line(&path.to_string_lossy())
}
