//! `revoke`, `id`, `store adopt`, `completions`.

use std::io::{self, BufRead, IsTerminal, Read, Write};
use std::path::PathBuf;

use std::time::Duration;

use aster::StoreUrl;
use aster::lease::{
    Authority, Principal, ResourceName, RevokeOutcome, revoke, revoke_with_hold_off,
};
use aster::sqlite::SqliteSerializer;
use clap::CommandFactory;
use clap_complete::Shell;
use serde::Serialize;

use crate::arguments::{AdoptArguments, Arguments, RevokeArguments};
use crate::context::Context;
use crate::duration::display;
use crate::failure::{Failure, FailureKind};
use crate::output::{one_line, print};

#[derive(Debug, Serialize)]
struct Revoked {
    resource: ResourceName,
    /// `revoked` or `already_ended`.
    outcome: &'static str,
    /// The epoch that was asked for or ended.
    epoch: Option<u64>,
    holder: Option<Principal>,
    /// How long the old holder is kept out by this revoke.
    hold_off_ms: Option<u64>,
}

impl Revoked {
    fn sentence(&self) -> String {
        let resource = &self.resource;
        let kept_out = self.hold_off_ms.map_or_else(String::new, |ms| {
            format!(
                ", who is kept out for {}",
                display(Duration::from_millis(ms))
            )
        });
        match (self.epoch, &self.holder) {
            (Some(epoch), Some(holder)) => {
                format!("revoked {resource} at epoch {epoch} from {holder}{kept_out}")
            }
            (Some(epoch), None) if self.outcome == "revoked" => {
                format!("revoked {resource} at epoch {epoch} from its holder{kept_out}")
            }
            (Some(epoch), None) => {
                format!("epoch {epoch} of {resource} had ended already; nothing was changed")
            }
            (None, _) => format!("{resource} had changed hands meanwhile; nothing was revoked"),
        }
    }
}

pub(crate) async fn revoke_lease(
    context: &Context,
    arguments: &RevokeArguments,
) -> Result<(), Failure> {
    let operator = context.identity()?.principal;
    let serializer = context.connect_existing().await?.serializer();
    let (resource, epoch) = (&arguments.resource, arguments.epoch);
    let outcome = match arguments.hold_off {
        None => revoke(&*serializer, resource, &operator, epoch).await?,
        Some(hold_off) => {
            revoke_with_hold_off(&*serializer, resource, &operator, epoch, hold_off).await?
        }
    };
    let revoked = match outcome {
        RevokeOutcome::Revoked { epoch, holder } => Revoked {
            resource: resource.clone(),
            outcome: "revoked",
            epoch: Some(epoch),
            holder,
            hold_off_ms: arguments
                .hold_off
                .and_then(|hold_off| u64::try_from(hold_off.as_millis()).ok()),
        },
        RevokeOutcome::AlreadyEnded => Revoked {
            resource: resource.clone(),
            outcome: "already_ended",
            epoch,
            holder: None,
            hold_off_ms: None,
        },
        RevokeOutcome::NotHeld => {
            let message = format!("nobody holds {resource}");
            return Err(Failure::new(FailureKind::NotHeld, message));
        }
        other => {
            let message = format!("unexpected outcome {other:?} (please report this)");
            return Err(Failure::new(FailureKind::Internal, message));
        }
    };
    context
        .output
        .answer(&revoked, |_| one_line(&revoked.sentence()))
}

#[derive(Debug, Serialize)]
struct Id {
    id: Principal,
    path: PathBuf,
}

pub(crate) fn id(context: &Context) -> Result<(), Failure> {
    let identity = context.identity()?;
    let id = Id {
        id: identity.principal,
        path: identity.path,
    };
    context.output.answer(&id, |_| id.id.to_string())
}

#[derive(Debug, Serialize)]
struct AdoptedStore {
    store: String,
    authority: Authority,
}

pub(crate) fn adopt(context: &Context, arguments: &AdoptArguments) -> Result<(), Failure> {
    let url = match &arguments.url {
        Some(url) => url.clone(),
        None => context.store_url()?,
    };
    let path = match StoreUrl::parse(&url) {
        Ok(StoreUrl::Sqlite(path)) => path,
        Ok(_) => {
            let message = format!("{url} is not a durable store: there is nothing to adopt");
            return Err(Failure::new(FailureKind::InvalidInput, message));
        }
        Err(error) => return Err(Failure::new(FailureKind::InvalidInput, error.to_string())),
    };
    let operator = context.identity()?.principal;
    let question =
        format!("Every lease in {url} ends, and no old fence is valid any more. Adopt it? [y/N] ");
    if !arguments.yes && !confirmed(&question)? {
        return Err(Failure::new(
            FailureKind::Usage,
            "not adopted: say --yes if every lease in it may end",
        ));
    }
    let adopted = SqliteSerializer::adopt(path, &operator)?;
    let adopted = AdoptedStore {
        store: url,
        authority: adopted.authority,
    };
    context.output.answer(&adopted, |_| {
        format!(
            "{} has the new authority {}",
            adopted.store, adopted.authority
        )
    })
}

/// Asks on a terminal; anywhere else the answer is no.
pub(super) fn confirmed(question: &str) -> Result<bool, Failure> {
    /// An answer longer than this is not "yes".
    const ANSWER_BYTES_MAX: u64 = 64;
    if !io::stdin().is_terminal() || !io::stderr().is_terminal() {
        return Ok(false);
    }
    let failed = |error| Failure::io("cannot ask", &error);
    io::stderr()
        .lock()
        .write_all(question.as_bytes())
        .map_err(failed)?;
    let mut answer = String::new();
    io::stdin()
        .lock()
        .take(ANSWER_BYTES_MAX)
        .read_line(&mut answer)
        .map_err(failed)?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes" | "Yes"))
}

pub(crate) fn completions(shell: Shell) -> Result<(), Failure> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Arguments::command(), "aster", &mut script);
    print(&script)
}
