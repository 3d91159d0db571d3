//! `store backup` and `store restore`.

use std::path::{Path, PathBuf};

use aster::StoreUrl;
use aster::lease::Authority;
use aster::sqlite::{ExistingBackup, OpenError, SqliteOptions, SqliteSerializer};
use serde::Serialize;

use super::operate::confirmed;
use crate::arguments::{BackupArguments, RestoreArguments};
use crate::context::Context;
use crate::failure::{Failure, FailureKind};
use crate::output::one_line;

#[derive(Debug, Serialize)]
struct BackedUp {
    store: String,
    file: PathBuf,
    bytes: u64,
    authority: Authority,
    /// The store's count of changes that the backup contains.
    sequence: u64,
}

pub(crate) async fn backup(context: &Context, arguments: &BackupArguments) -> Result<(), Failure> {
    let url = context.store_url()?;
    let store = sqlite_path(&url, "back up")?;
    let (file, existing) = (arguments.file.clone(), arguments.replace);
    let copying = tokio::task::spawn_blocking(move || {
        let options = SqliteOptions {
            create: false,
            ..SqliteOptions::default()
        };
        let existing = match existing {
            true => ExistingBackup::Replace,
            false => ExistingBackup::Keep,
        };
        SqliteSerializer::open_with(store, options)?.backup(file, existing)
    });
    let copied = copying
        .await
        .map_err(|error| Failure::new(FailureKind::Internal, error.to_string()))?;
    let backup = copied.map_err(|error| {
        let is_there = matches!(error, OpenError::Exists { .. });
        let mut failure = Failure::from(error);
        if is_there {
            failure.message.push_str("; --replace takes its place");
        }
        failure
    })?;
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
    })
}

#[derive(Debug, Serialize)]
struct Restored {
    store: String,
    file: PathBuf,
    authority: Authority,
}

pub(crate) fn restore(context: &Context, arguments: &RestoreArguments) -> Result<(), Failure> {
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
    let adopted = SqliteSerializer::restore(&arguments.file, store, &operator)?;
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
    })
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
