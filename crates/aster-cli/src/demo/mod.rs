//! `aster demo`: the specification's takeover, with real processes on a real SQLite file.
//!
//! | file | what lives there |
//! |---|---|
//! | `mod.rs` | the story, and whether it was observed |
//! | `worker.rs` | a worker: does what it is told, one line at a time |
//! | `process.rs` | starting, stopping and continuing a worker |

mod process;
pub(crate) mod worker;

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Serialize;

use crate::arguments::DemoArguments;
use crate::context::Context;
use crate::failure::{Failure, FailureKind};
use crate::identity::random_hex;
use crate::locations;
use crate::output::{Output, Style, print};
use process::WorkerProcess;
use worker::{Order, Reply};

/// What the workers fight over.
pub(crate) const RESOURCE: &str = "catalog/current";
/// How long a worker may be silent before it is replaced.
pub(crate) const TTL: Duration = Duration::from_millis(1_500);
/// How often A is continued and stopped again if it was stopped while it held a lock of the file.
const STOPS_MAX: u32 = 100;
const STOP_PAUSE: Duration = Duration::from_millis(20);

/// One line of the story.
#[derive(Debug, Clone, Serialize)]
struct Step {
    worker: Option<&'static str>,
    event: &'static str,
    text: String,
}

#[derive(Debug, Serialize)]
struct Report {
    fenced: bool,
    observed: bool,
    final_value: String,
    late_write: &'static str,
    steps: Vec<Step>,
}

/// Exit code 0 only if everything that was announced was observed.
pub(crate) fn demo(context: &Context, arguments: &DemoArguments) -> Result<(), Failure> {
    let directory = DemoDirectory::create()?;
    let mut story = Story {
        output: context.output,
        steps: Vec::new(),
    };
    let (late_write, final_value) = tell(&mut story, &directory, arguments.unfenced)?;
    let observed = match arguments.unfenced {
        false => late_write == Reply::Rejected && final_value == "catalog-v2",
        true => late_write == Reply::Written && final_value == "catalog-v1-late",
    };
    story.conclude(arguments.unfenced, observed, &final_value)?;
    let report = Report {
        fenced: !arguments.unfenced,
        observed,
        final_value,
        late_write: match late_write {
            Reply::Rejected => "rejected",
            _ => "written",
        },
        steps: story.steps,
    };
    if context.output.json {
        context.output.answer(&report, |_| String::new())?;
    }
    match observed {
        true => Ok(()),
        false => Err(Failure::new(
            FailureKind::NotObserved,
            format!(
                "what was announced was not observed: the late write was {}, the final value is {}",
                report.late_write, report.final_value
            ),
        )),
    }
}

/// The story. Answers what became of A's late write, and the final value.
fn tell(
    story: &mut Story,
    directory: &DemoDirectory,
    unfenced: bool,
) -> Result<(Reply, String), Failure> {
    let database = directory.database();
    worker::create_catalog(&database)?;
    story.say(
        None,
        "start",
        format!("two workers, one SQLite file: {}", database.display()),
    )?;
    let mut a = WorkerProcess::start("A", &database, unfenced)?;
    let mut b = WorkerProcess::start("B", &database, unfenced)?;

    let granted = a.ask(&Order::Acquire)?;
    story.say(
        Some("A"),
        "granted",
        format!(
            "acquires {RESOURCE}: epoch {} (ttl 1.5 s, renewed in the background)",
            epoch_of(&granted)?
        ),
    )?;
    a.expect(&Order::Publish("catalog-v1".to_owned()), &Reply::Written)?;
    story.say(Some("A"), "published", "publishes catalog-v1".to_owned())?;
    let taken = a.ask(&Order::TakeFence("catalog-v1-late".to_owned()))?;
    story.say(
        Some("A"),
        "fence_taken",
        format!(
            "takes its fence (epoch {}) for one more write, catalog-v1-late …",
            epoch_of(&taken)?
        ),
    )?;
    stop_outside_a_transaction(&a, &database)?;
    a.send(&Order::WriteLate)?;
    story.say(
        Some("A"),
        "stopped",
        "is stopped (SIGSTOP) with that write on its way".to_owned(),
    )?;

    let mut answer = b.ask(&Order::Acquire)?;
    if matches!(answer, Reply::Denied { .. }) {
        story.say(
            Some("B"),
            "denied",
            "asks for the lease: held by A, not yet".to_owned(),
        )?;
        answer = b.ask(&Order::AcquireWhenFree)?;
    }
    story.say(
        Some("B"),
        "taken_over",
        format!(
            "takes over when A's time is over: epoch {}",
            epoch_of(&answer)?
        ),
    )?;
    b.expect(&Order::Publish("catalog-v2".to_owned()), &Reply::Written)?;
    story.say(Some("B"), "published", "publishes catalog-v2".to_owned())?;

    a.go_on()?;
    story.say(
        Some("A"),
        "continued",
        match unfenced {
            false => "continues (SIGCONT); its write reaches the store".to_owned(),
            true => {
                "continues (SIGCONT); its write reaches the store, which does not check".to_owned()
            }
        },
    )?;
    let late_write = a.receive()?;
    match &late_write {
        Reply::Rejected => {
            let reason = a.ask(&Order::Why)?;
            story.say(
                Some("A"),
                "rejected",
                format!("is REJECTED: {}", text_of(reason)),
            )?;
        }
        Reply::Written => {
            story.say(
                Some("A"),
                "written",
                "overwrites the catalog of B".to_owned(),
            )?;
        }
        other => return Err(unexpected("A", other)),
    }
    let status = text_of(a.ask(&Order::Status)?);
    story.say(Some("A"), "lost", format!("has noticed by now: {status}"))?;
    b.expect(&Order::Release, &Reply::Done)?;
    story.say(Some("B"), "released", "releases".to_owned())?;
    Ok((late_write, worker::catalog(&database)?))
}

/// Stops A, and makes sure that it holds no lock of the file while it stands still: a process that is stopped
/// inside a SQLite transaction keeps everybody else from writing. (A waits for its order, so only an
/// earlier step's housekeeping could still hold one.)
fn stop_outside_a_transaction(a: &WorkerProcess, database: &Path) -> Result<(), Failure> {
    for _ in 0..STOPS_MAX {
        a.stop()?;
        if worker::is_unlocked(database) {
            return Ok(());
        }
        a.go_on()?;
        std::thread::sleep(STOP_PAUSE);
    }
    Err(Failure::new(
        FailureKind::NotObserved,
        "worker A could not be stopped outside a transaction",
    ))
}

fn epoch_of(reply: &Reply) -> Result<u64, Failure> {
    match reply {
        Reply::Granted { epoch } | Reply::FenceTaken { epoch } => Ok(*epoch),
        other => Err(unexpected("the worker", other)),
    }
}

fn text_of(reply: Reply) -> String {
    match reply {
        Reply::Text(text) => text,
        other => format!("{other:?}"),
    }
}

fn unexpected(worker: &str, reply: &Reply) -> Failure {
    Failure::new(
        FailureKind::NotObserved,
        format!("{worker} answered something else than announced: {reply:?}"),
    )
}

struct Story {
    output: Output,
    steps: Vec<Step>,
}

impl Story {
    fn say(
        &mut self,
        worker: Option<&'static str>,
        event: &'static str,
        text: String,
    ) -> Result<(), Failure> {
        if !self.output.json {
            let style = match (worker, event) {
                (_, "rejected") => Style::Good,
                (_, "written") => Style::Bad,
                (Some("A"), _) => Style::Accent,
                (Some(_), _) => Style::Bold,
                (None, _) => Style::Dim,
            };
            let line = format!("{:2} {text}", worker.unwrap_or("--"));
            print(format!("{}\n", self.output.paint(style, &line)).as_bytes())?;
        }
        self.steps.push(Step {
            worker,
            event,
            text,
        });
        Ok(())
    }

    fn conclude(&mut self, unfenced: bool, observed: bool, value: &str) -> Result<(), Failure> {
        let meaning = match (unfenced, observed) {
            (false, true) => "the delayed write changed nothing",
            (true, true) => "B's catalog is lost: this is the damage that the check prevents",
            (_, false) => "this is not what was announced",
        };
        self.say(None, "final", format!("final value: {value}; {meaning}"))
    }
}

/// Removed with everything in it when the demo is over.
struct DemoDirectory(PathBuf);

impl DemoDirectory {
    fn create() -> Result<Self, Failure> {
        let path = std::env::temp_dir().join(format!("aster-demo-{}", random_hex()?));
        locations::create_private_directory(&path)
            .map_err(|error| Failure::io(format!("cannot create {}", path.display()), &error))?;
        Ok(Self(path))
    }

    fn database(&self) -> PathBuf {
        self.0.join("catalog.db")
    }
}

impl Drop for DemoDirectory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
