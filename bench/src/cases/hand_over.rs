//! From a release to a usable fence of the next waiter: in one process, and between two.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use aster_lease::{AcquireOutcome, LeaseHandle, LeaseOptions, LeaseSerializer, MemorySerializer};
use aster_sqlite::SqliteSerializer;
use tokio::runtime::Runtime;

use crate::measure::{Failure, Scale, Spread, percentile, shared_clock};
use crate::table::{Goal, Line};

const CASE: &str = "hand-over";
/// The role of the other process.
pub(super) const ROLE: &str = "hand-over";
const RESOURCE: &str = "catalog/current";
const WAIT: Duration = Duration::from_secs(30);
/// The parts of the hand-overs that the table shows.
const PARTS: [(f64, &str); 2] = [(0.5, "p50"), (0.99, "p99")];

pub(super) fn run(scale: Scale) -> Result<Vec<Line>, Failure> {
    let runtime = Runtime::new()?;
    let program = std::env::current_exe()?;
    let directory = tempfile::tempdir_in(program.parent().unwrap_or(Path::new(".")))?;
    let file = directory.path().join("leases.db");
    let memory: Arc<dyn LeaseSerializer> = Arc::new(MemorySerializer::new());
    let sqlite: Arc<dyn LeaseSerializer> = Arc::new(SqliteSerializer::open(&file)?);
    let mut lines = Vec::new();
    lines.extend(lines_of(scale, "memory store, one process", || {
        runtime.block_on(in_one_process(&memory, scale.pick(2_000, 20)))
    })?);
    lines.extend(lines_of(scale, "SQLite, one process", || {
        runtime.block_on(in_one_process(&sqlite, scale.pick(500, 5)))
    })?);
    let mut other = Other::start(&program, &file)?;
    lines.extend(lines_of(scale, "SQLite, two processes", || {
        runtime.block_on(between_two(&sqlite, &mut other, scale.pick(500, 5)))
    })?);
    Ok(lines)
}

/// A line for each part, each the median over the rounds. `round` answers microseconds.
fn lines_of(
    scale: Scale,
    place: &str,
    mut round: impl FnMut() -> Result<Vec<f64>, Failure>,
) -> Result<Vec<Line>, Failure> {
    let mut parts = PARTS.map(|_| Vec::new());
    round()?;
    for _ in 0..scale.rounds() {
        let mut samples = round()?;
        samples.sort_by(f64::total_cmp);
        for ((part, _), values) in PARTS.iter().zip(&mut parts) {
            values.push(percentile(&samples, *part));
        }
    }
    let lines = PARTS.iter().zip(parts).map(|((_, name), values)| {
        let what = format!("release to the next waiter's fence, {place}, {name}");
        Line::alone(CASE, what, "µs", Spread::of(values), Goal::None)
    });
    Ok(lines.collect())
}

async fn in_one_process(
    store: &Arc<dyn LeaseSerializer>,
    count: usize,
) -> Result<Vec<f64>, Failure> {
    let mut samples = Vec::with_capacity(count);
    let mut holder = wait_for(store).await?.0;
    for _ in 0..count {
        let waiting = tokio::runtime::Handle::current().spawn({
            let store = store.clone();
            async move { wait_for(&store).await }
        });
        until_queued(store).await?;
        let released = shared_clock();
        holder.release().await?;
        let (next, usable) = waiting.await??;
        samples.push(micros(usable.saturating_sub(released)));
        holder = next;
    }
    holder.release().await?;
    Ok(samples)
}

async fn between_two(
    store: &Arc<dyn LeaseSerializer>,
    other: &mut Other,
    count: usize,
) -> Result<Vec<f64>, Failure> {
    let mut samples = Vec::with_capacity(count);
    for _ in 0..count {
        let holder = wait_for(store).await?.0;
        other.say("wait")?;
        until_queued(store).await?;
        let released = shared_clock();
        holder.release().await?;
        let usable = Duration::from_nanos(other.hear()?.parse()?);
        samples.push(micros(usable.saturating_sub(released)));
        other.say("release")?;
        other.hear()?;
    }
    Ok(samples)
}

/// Waits for the resource; answers the lease and when its fence could be used.
async fn wait_for(store: &Arc<dyn LeaseSerializer>) -> Result<(LeaseHandle, Duration), Failure> {
    let options = LeaseOptions::default();
    match LeaseHandle::acquire_wait(store.clone(), RESOURCE, "worker-a", options, WAIT).await? {
        AcquireOutcome::Granted(lease) => {
            lease.fence().ok_or("granted, but without a fence")?;
            Ok((lease, shared_clock()))
        }
        AcquireOutcome::Denied(reason, _) => Err(format!("denied: {reason}").into()),
    }
}

async fn until_queued(store: &Arc<dyn LeaseSerializer>) -> Result<(), Failure> {
    while store.queue(RESOURCE).await?.is_empty() {
        tokio::time::sleep(Duration::from_micros(200)).await;
    }
    Ok(())
}

fn micros(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e6
}

/// The other process; it ends when its input does.
struct Other {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Other {
    fn start(program: &Path, file: &Path) -> Result<Self, Failure> {
        let mut child = Command::new(program)
            .arg("--role")
            .arg(ROLE)
            .arg(file)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let output = child
            .stdout
            .take()
            .ok_or("no output of the other process")?;
        Ok(Self {
            input: child.stdin.take(),
            output: BufReader::new(output),
            child,
        })
    }

    fn say(&mut self, line: &str) -> Result<(), Failure> {
        let input = self.input.as_mut().ok_or("the other process has ended")?;
        Ok(writeln!(input, "{line}")?)
    }

    fn hear(&mut self) -> Result<String, Failure> {
        let mut line = String::new();
        if self.output.read_line(&mut line)? == 0 {
            return Err("the other process ended before it answered".into());
        }
        Ok(line.trim_end().to_owned())
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        self.input = None;
        // It ends by itself; a failure to wait changes no result.
        let _ = self.child.wait();
    }
}

/// What the other process does: waits and releases as it is told, and says when.
pub(super) fn play(file: &Path) -> Result<(), Failure> {
    let runtime = Runtime::new()?;
    let store: Arc<dyn LeaseSerializer> = Arc::new(SqliteSerializer::open(file)?);
    let mut lease = None;
    for line in std::io::stdin().lines() {
        let when = match line?.as_str() {
            "wait" => {
                let (granted, usable) = runtime.block_on(wait_for(&store))?;
                lease = Some(granted);
                usable
            }
            _ => {
                let held: LeaseHandle = lease.take().ok_or("told to release what is not held")?;
                runtime.block_on(held.release())?;
                shared_clock()
            }
        };
        println!("{}", when.as_nanos());
    }
    Ok(())
}
