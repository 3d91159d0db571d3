//! The command line, as clap reads it.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use aster::lease::{ExpectedRevision, Principal, ResourceName, Ttl};
use clap::{Args, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;

use crate::duration;
use crate::failure::EXIT_CODES;

/// Fenced leases: hold one while a command runs, publish under it, look at it.
///
/// A write by a worker whose ownership has ended is rejected by the resource, whatever the worker
/// believes and however late the write arrives.
#[derive(Debug, Parser)]
#[command(name = "aster", version, after_help = after_help(), disable_help_subcommand = true)]
pub(crate) struct Arguments {
    #[command(flatten)]
    pub(crate) global: GlobalOptions,
    #[command(subcommand)]
    pub(crate) command: Command,
}

fn after_help() -> String {
    format!("{EXIT_CODES}\n\n{ENVIRONMENT}")
}

const ENVIRONMENT: &str = "\
Environment:
  ASTER_STORE, ASTER_IDENTITY  as --store and --identity
  ASTER_LOG                    what is logged to stderr: error, warn (the
                               default), info, debug or trace
  ASTER_SOCKET, ASTER_RESOURCE set by `run` for its command";

/// Options of every command.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Global options")]
pub(crate) struct GlobalOptions {
    /// The store: sqlite:PATH or memory: [env: ASTER_STORE] [default: sqlite: in
    /// $XDG_DATA_HOME/aster/leases.db]
    #[arg(long, value_name = "URL", global = true)]
    pub(crate) store: Option<String>,
    /// The file with this user's identity [env: ASTER_IDENTITY] [default:
    /// $XDG_CONFIG_HOME/aster/identity]
    #[arg(long, value_name = "PATH", global = true)]
    pub(crate) identity: Option<PathBuf>,
    /// Print one JSON document on stdout, and errors as JSON on stderr
    #[arg(long, global = true)]
    pub(crate) json: bool,
    /// Colour: on a terminal (unless NO_COLOR is set), always, or never
    #[arg(long, value_name = "WHEN", global = true, default_value = "auto")]
    pub(crate) color: ColorChoice,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ColorChoice {
    Auto,
    Always,
    Never,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Hold a lease while a command runs
    Run(RunArguments),
    /// Write the register of the resource, inside a run
    Put(PutArguments),
    /// Print the register of a resource
    Get(GetArguments),
    /// Print the current fence, inside a run
    #[command(after_help = FENCE_EXAMPLES)]
    Fence,
    /// Show who holds a resource
    #[command(after_help = INSPECT_EXAMPLES)]
    Inspect {
        #[arg(value_name = "RESOURCE")]
        resource: ResourceName,
    },
    /// List resources
    List(ListArguments),
    /// Take a lease away from its holder
    Revoke(RevokeArguments),
    /// Show what happened: grants, ends, rejected writes
    Audit(AuditArguments),
    /// Print a line at each change of a resource's owner, until interrupted
    #[command(after_help = WATCH_EXAMPLES)]
    Watch {
        #[arg(value_name = "RESOURCE")]
        resource: ResourceName,
    },
    /// Show who waits for a resource
    #[command(after_help = QUEUE_EXAMPLES)]
    Queue {
        #[arg(value_name = "RESOURCE")]
        resource: ResourceName,
    },
    /// Check that a store keeps the rules, on scratch names in it
    Verify(VerifyArguments),
    /// Print this user's identity, creating it if there is none
    #[command(after_help = ID_EXAMPLES)]
    Id,
    /// Watch a takeover, with real processes on a real SQLite file
    Demo(DemoArguments),
    /// Operate on the store itself
    #[command(subcommand, after_help = STORE_EXAMPLES)]
    Store(StoreCommand),
    /// Print a shell's completion script
    #[command(after_help = COMPLETIONS_EXAMPLES)]
    Completions { shell: Shell },
}

/// What the program asks of itself. Not part of the command line: not in its help, completions or promises.
#[derive(Debug, Parser)]
#[command(name = "aster")]
pub(crate) enum InternalCommand {
    /// Becomes the command of a run, once the run says so.
    #[command(name = "__launch")]
    Launch(LaunchArguments),
    /// Kills the command's process group when the run is gone or its lease has run out.
    #[command(name = "__guard")]
    Guard,
    /// A worker of the demo.
    #[command(name = "__demo-worker")]
    DemoWorker(DemoWorkerArguments),
}

impl InternalCommand {
    /// Whether the arguments of this process name one.
    pub(crate) fn is_meant() -> bool {
        std::env::args_os()
            .nth(1)
            .is_some_and(|command| command.as_encoded_bytes().starts_with(b"__"))
    }
}

const RUN_EXAMPLES: &str = "\
Examples:
  aster run catalog/current -- aster put catalog-v1
  aster run --ttl 10s nightly/report -- ./report.sh --fast
  aster run catalog/current -- sh -c 'make-catalog | aster put -'
  aster run --wait 10m nightly/report -- ./report.sh

The command gets ASTER_SOCKET and ASTER_RESOURCE, through which `aster put`, `aster get` and `aster fence` \
reach this run, and runs in a process group of its own. When the lease is lost the group gets TERM and, \
after the grace, KILL, so that it is gone before the ttl is over and anyone else can be granted; the exit \
code is then 76. A revoke ends the ownership at once, and the run hears of it at its next renewal or \
rejected write. If the run itself is killed or stopped, the group is killed too, as far as it is in the group \
still.

If the resource is held by another, the command does not start and the exit code is 75; with --wait, if it is \
still held by others when that time is over. Those who wait are served in the order in which they came (`aster queue` \
shows them); whoever waits says so on stderr, and a signal that would end the command ends the wait. \
HUP, INT, QUIT and TERM are passed on to the group; the lease is released when the command is gone. A signal that \
was ignored when the run was started stays ignored, as INT in background jobs of scripts.";

/// Hold a lease while a command runs
#[derive(Debug, Args)]
#[command(after_help = RUN_EXAMPLES)]
pub(crate) struct RunArguments {
    /// What to hold the lease of: 1 to 512 bytes without control characters
    pub(crate) resource: ResourceName,
    /// How long the lease outlives the last renewal: 100ms to 24h, such as 500ms, 1.5s, 30s, 2m or 1h
    #[arg(long, default_value = "30s", value_parser = duration::ttl, allow_hyphen_values = true)]
    pub(crate) ttl: Ttl,
    /// Time between TERM and KILL when the lease is lost, at most half the ttl [default: 5s or a quarter of
    /// the ttl, whichever is less]
    #[arg(long, value_parser = duration::grace, allow_hyphen_values = true)]
    pub(crate) grace: Option<Duration>,
    /// Wait for this long, up to 24h, if the resource is held: first come, first served
    #[arg(long, value_name = "DURATION", value_parser = duration::wait, allow_hyphen_values = true)]
    pub(crate) wait: Option<Duration>,
    /// Say on stderr when the lease is acquired and released
    #[arg(long, short)]
    pub(crate) verbose: bool,
    /// The command and its arguments
    #[arg(last = true, required = true, value_name = "CMD")]
    pub(crate) command: Vec<OsString>,
}

const PUT_EXAMPLES: &str = "\
Examples (inside `aster run`):
  aster put catalog-v1
  make-catalog | aster put -
  aster put --file catalog.json --expect 4
  aster put --expect none first-version

The write happens only if this run still owns the resource when it reaches the store; otherwise the exit code \
is 76 and nothing has changed. Without --expect it replaces whatever is there.";

/// Write the register of the resource, inside a run
#[derive(Debug, Args)]
#[command(after_help = PUT_EXAMPLES)]
pub(crate) struct PutArguments {
    /// The value, up to 1 MiB; - reads it from standard input
    #[arg(required_unless_present = "file", conflicts_with = "file")]
    pub(crate) value: Option<OsString>,
    /// Read the value from this file
    #[arg(long, value_name = "PATH")]
    pub(crate) file: Option<PathBuf>,
    /// Write only if the register is at this revision, or `none` if nothing was ever written
    #[arg(long, value_name = "REVISION|none", value_parser = expected_revision, allow_negative_numbers = true)]
    pub(crate) expect: Option<ExpectedRevision>,
}

fn expected_revision(text: &str) -> Result<ExpectedRevision, String> {
    if text == "none" {
        return Ok(ExpectedRevision::Absent);
    }
    match text.parse::<u64>() {
        Ok(revision) if revision > 0 => Ok(ExpectedRevision::Exactly(revision)),
        _ => Err("write a revision from `aster get --json` (1 or more), or none".to_owned()),
    }
}

const GET_EXAMPLES: &str = "\
Examples:
  aster get catalog/current
  aster get --json catalog/current
  aster run catalog/current -- sh -c 'aster get > old.txt'

The value is printed byte for byte; on a terminal, characters that would act on it are escaped. The exit code is 1 if nothing was ever written.";

/// Print the register of a resource
#[derive(Debug, Args)]
#[command(after_help = GET_EXAMPLES)]
pub(crate) struct GetArguments {
    /// The resource; inside a run its own by default
    pub(crate) resource: Option<ResourceName>,
}

const FENCE_EXAMPLES: &str = "\
Examples (inside `aster run`):
  aster fence
  aster fence --json

For a command that protects something of its own: the resource has to check this fence in the same atomic step \
as the write. Fetch it immediately before each protected action. The exit code is 76 once the lease is lost.";

const INSPECT_EXAMPLES: &str = "\
Examples:
  aster inspect catalog/current
  aster inspect --json catalog/current

What it prints is a hint: it may be out of date when you read it.";

const LIST_EXAMPLES: &str = "\
Examples:
  aster list
  aster list --held --prefix catalog/

Names that begin with aster-verify/ are scratch names of `aster verify`. They are left out unless --all or a --prefix \
asks for them.";

/// List resources
#[derive(Debug, Args)]
#[command(after_help = LIST_EXAMPLES)]
pub(crate) struct ListArguments {
    /// Only names that start with this
    #[arg(long, default_value = "", hide_default_value = true)]
    pub(crate) prefix: String,
    /// Only resources that are held
    #[arg(long)]
    pub(crate) held: bool,
    /// Scratch names of `aster verify` too
    #[arg(long)]
    pub(crate) all: bool,
}

const REVOKE_EXAMPLES: &str = "\
Examples:
  aster revoke catalog/current
  aster revoke catalog/current --epoch 7
  aster revoke catalog/current --hold-off 10m

The holder's next write is rejected from that moment on. With --hold-off it may not acquire again for that time.";

/// Take a lease away from its holder
#[derive(Debug, Args)]
#[command(after_help = REVOKE_EXAMPLES)]
pub(crate) struct RevokeArguments {
    /// The resource
    pub(crate) resource: ResourceName,
    /// Only if it is still at this epoch [default: whoever holds it now]
    #[arg(long, value_name = "N", value_parser = epoch, allow_negative_numbers = true)]
    pub(crate) epoch: Option<u64>,
    /// Keep the old holder from acquiring for this long, at most 24h
    #[arg(long, value_name = "DURATION", value_parser = duration::hold_off, allow_hyphen_values = true)]
    pub(crate) hold_off: Option<Duration>,
}

fn epoch(text: &str) -> Result<u64, String> {
    match text.parse::<u64>() {
        Ok(epoch) if epoch > 0 => Ok(epoch),
        _ => Err("not a number above 0".to_owned()),
    }
}

/// The most records that one `audit` prints.
const RECORDS_MAX: u16 = 1_000;

const AUDIT_EXAMPLES: &str = "\
Examples:
  aster audit
  aster audit catalog/current --limit 20

Names that begin with aster-verify/ are scratch names of `aster verify`. They are left out unless --all or the resource \
asks for them; it looks through the newest 1000 records.";

/// Show what happened: grants, ends, rejected writes
#[derive(Debug, Args)]
#[command(after_help = AUDIT_EXAMPLES)]
pub(crate) struct AuditArguments {
    /// Only of this resource
    pub(crate) resource: Option<ResourceName>,
    /// The newest N records
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = limit, allow_negative_numbers = true)]
    pub(crate) limit: u16,
    /// Scratch names of `aster verify` too
    #[arg(long)]
    pub(crate) all: bool,
}

fn limit(text: &str) -> Result<u16, String> {
    match text.parse::<u16>() {
        Ok(limit) if (1..=RECORDS_MAX).contains(&limit) => Ok(limit),
        _ => Err(format!("not a number from 1 to {RECORDS_MAX}")),
    }
}

const WATCH_EXAMPLES: &str = "\
Examples:
  aster watch catalog/current
  aster watch --json catalog/current | jq .holder

The first line is the present state. Whoever reads slowly sees the latest state and not each step on the way; a \
renewal is no change, the same holder under a new epoch is one. What it prints is a hint. HUP, INT or TERM end it, \
with exit code 0. With --json each line is a document, as of inspect.";

const QUEUE_EXAMPLES: &str = "\
Examples:
  aster queue catalog/current
  aster queue --json catalog/current

Those who wait with `aster run --wait`, the next one first. What it prints is a hint. Places count from 1, with \
--json too: {\"resource\":…,\"waiting\":[{\"place\":1,\"candidate\":…,\"ttl_ms\":…,\"waiting_ms\":…}]}";

const VERIFY_EXAMPLES: &str = "\
Examples:
  aster verify
  aster verify sqlite:/var/lib/app/leases.db
  aster verify --json | jq '.cases[] | select(.outcome != \"passed\")'

Runs the conformance suites on names that begin with aster-verify/ and a random id, and releases what it took. \
Nothing else in the store is touched. What stays: free rows of those names for about an hour, about 20 that \
carry a register for good, and about 500 audit records; `list` and `audit` leave them out unless asked with \
--all. Killed half way it leaves the leases of one case, for a minute. It takes about 40 seconds, because leases \
have to expire. The exit code is 0 if no rule is broken, else 1; what \
could not be checked at a live store is listed with what it would need.";

/// Check that a store keeps the rules, on scratch names in it
#[derive(Debug, Args)]
#[command(after_help = VERIFY_EXAMPLES)]
pub(crate) struct VerifyArguments {
    /// The store [default: --store]
    #[arg(value_name = "STORE-URL")]
    pub(crate) url: Option<String>,
}

const ID_EXAMPLES: &str = "\
Examples:
  aster id
  aster --identity ./worker-b id";

const DEMO_EXAMPLES: &str = "\
Examples:
  aster demo
  aster demo --unfenced

A worker is stopped with a write on its way, another takes over, the first one continues. The exit code is 0 \
only if all of what is announced was observed: the late write was rejected, or with --unfenced did its damage.";

/// Watch a takeover, with real processes on a real SQLite file
#[derive(Debug, Args)]
#[command(after_help = DEMO_EXAMPLES)]
pub(crate) struct DemoArguments {
    /// The same without the check, to see the damage
    #[arg(long)]
    pub(crate) unfenced: bool,
}

const STORE_EXAMPLES: &str = "\
Examples:
  aster store backup /backup/leases.db
  aster store restore --yes /backup/leases.db sqlite:/var/lib/app/leases.db
  aster store adopt --yes sqlite:/var/lib/restored.db";

#[derive(Debug, Subcommand)]
pub(crate) enum StoreCommand {
    /// Copy the store to a file while it is in use
    Backup(BackupArguments),
    /// Make a store from a backup, with a new authority
    Restore(RestoreArguments),
    /// Give a store that was restored or copied a new authority
    Adopt(AdoptArguments),
}

const ADOPT_EXAMPLES: &str = "\
Examples:
  aster store adopt --yes
  aster store adopt sqlite:/var/lib/restored.db

A file that was copied or restored from a backup may have gone back in time, so it is refused. Adopting it makes \
every lease in it free and every fence that it ever issued invalid. The registers stay.";

/// Give a store that was restored or copied a new authority
#[derive(Debug, Args)]
#[command(after_help = ADOPT_EXAMPLES)]
pub(crate) struct AdoptArguments {
    /// The store [default: --store]
    pub(crate) url: Option<String>,
    /// Do not ask
    #[arg(long, short)]
    pub(crate) yes: bool,
}

const BACKUP_EXAMPLES: &str = "\
Examples:
  aster store backup /backup/leases.db
  aster --store sqlite:/var/lib/app/leases.db store backup --replace /backup/leases.db

The whole SQLite file, your own tables in it included, in one consistent state. Nobody waits for it. The copy is on \
the disk when the command returns; before that there is nothing at FILE. It is for `aster store restore`: opened as \
a store it is refused. A signal stops it and leaves nothing; what a killed one has left (FILE.draft-*) the next one \
to the same FILE removes.";

/// Copy the store to a file while it is in use
#[derive(Debug, Args)]
#[command(after_help = BACKUP_EXAMPLES)]
pub(crate) struct BackupArguments {
    /// Where to; must not exist
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
    /// Take the place of an earlier backup, and of nothing else, once the new one is whole
    #[arg(long)]
    pub(crate) replace: bool,
}

const RESTORE_EXAMPLES: &str = "\
Examples:
  aster store restore --yes /backup/leases.db
  aster store restore /backup/leases.db sqlite:/var/lib/app/leases.db

Makes a store that must not exist yet. First make sure that the old store is out of use: a worker that still \
reaches it is not excluded. Every lease of the backup is free in the new store, every fence of the old one is \
refused; values and the audit trail stay. The backup is only read. A file that `aster store backup` did not make may be \
a copy of a file in use, with two states of it mixed: it is refused, unless --not-a-backup says that it is whole.";

/// Make a store from a backup, with a new authority
#[derive(Debug, Args)]
#[command(after_help = RESTORE_EXAMPLES)]
pub(crate) struct RestoreArguments {
    /// The backup
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
    /// The store to make [default: --store]
    #[arg(value_name = "STORE-URL")]
    pub(crate) url: Option<String>,
    /// FILE is a whole copy of a store, though no backup
    #[arg(long)]
    pub(crate) not_a_backup: bool,
    /// Do not ask
    #[arg(long, short)]
    pub(crate) yes: bool,
}

const COMPLETIONS_EXAMPLES: &str = "\
Examples:
  aster completions bash > ~/.local/share/bash-completion/completions/aster
  aster completions zsh > \"${fpath[1]}/_aster\"
  aster completions fish > ~/.config/fish/completions/aster.fish";

#[derive(Debug, Args)]
pub(crate) struct LaunchArguments {
    /// The process id of the run that started us.
    #[arg(long)]
    pub(crate) parent: i32,
    #[arg(last = true, required = true)]
    pub(crate) command: Vec<OsString>,
}

#[derive(Debug, Args)]
pub(crate) struct DemoWorkerArguments {
    #[arg(long)]
    pub(crate) database: PathBuf,
    #[arg(long)]
    pub(crate) worker_identity: Principal,
    #[arg(long)]
    pub(crate) unfenced: bool,
}
