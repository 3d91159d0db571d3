//! `watch`, `queue`: who owns a resource from now on, and who waits for it.

use aster::lease::{Principal, ResourceName, Waiter, clock::wall_unix_ms};
use rustix::process::Signal;
use serde::Serialize;

use super::read::{Row, utc};
use crate::context::Context;
use crate::duration::display;
use crate::failure::{Failure, FailureKind};
use crate::output::{Output, Style, one_line};
use crate::run::signals::ForwardedSignals;

pub(crate) async fn watch(context: &Context, resource: &ResourceName) -> Result<(), Failure> {
    let mut end = EndSignals::listen()?;
    let serializer = context.connect_existing().await?.serializer();
    let mut watch = serializer.watch(resource).await?;
    loop {
        let shown = tokio::select! {
            shown = watch.next() => shown,
            _ = end.next() => return Ok(()),
        };
        let Some(snapshot) = shown else {
            if let Some(error) = watch.take_failure() {
                return Err(error.into());
            }
            let message = format!("the store ended the watch of {resource}: watch again");
            return Err(Failure::new(FailureKind::Unreachable, message));
        };
        let change = Change {
            at_unix_ms: wall_unix_ms(),
            row: snapshot.into(),
        };
        if !context.output.line(&change, |output| change.text(output))? {
            return Ok(());
        }
    }
}

/// A row and when it was seen so.
#[derive(Debug, Serialize)]
struct Change {
    at_unix_ms: u64,
    #[serde(flatten)]
    row: Row,
}

impl Change {
    fn text(&self, output: Output) -> String {
        let at = output.paint(Style::Dim, &utc(self.at_unix_ms));
        format!("{at}  {}", self.row.one_line())
    }
}

/// HUP, INT and TERM, unless whoever started us ignores them.
pub(super) struct EndSignals(ForwardedSignals);

impl EndSignals {
    pub(super) fn listen() -> Result<Self, Failure> {
        ForwardedSignals::listen()
            .map(Self)
            .map_err(|error| Failure::io("cannot listen to signals", &error))
    }

    /// The next one. Cancel safe.
    pub(super) async fn next(&mut self) -> Signal {
        loop {
            let signal = self.0.next().await;
            if !matches!(signal, Signal::USR1 | Signal::USR2) {
                return signal;
            }
        }
    }
}

#[derive(Debug, Serialize)]
struct Queue {
    resource: ResourceName,
    /// The next one first.
    waiting: Vec<Waits>,
}

/// One who waits, as printed.
#[derive(Debug, Serialize)]
struct Waits {
    /// 1 for the next one.
    place: usize,
    candidate: Principal,
    ttl_ms: u64,
    waiting_ms: Option<u64>,
}

impl From<Waiter> for Waits {
    fn from(waiter: Waiter) -> Self {
        let millis = |waiting: std::time::Duration| u64::try_from(waiting.as_millis()).ok();
        Self {
            place: waiter.position + 1,
            candidate: waiter.candidate,
            ttl_ms: waiter.ttl.as_millis(),
            waiting_ms: waiter.waiting.and_then(millis),
        }
    }
}

impl Waits {
    fn text(&self) -> String {
        let candidate = one_line(&self.candidate);
        let waiting = self.waiting_ms.map_or_else(String::new, |ms| {
            let waiting = display(std::time::Duration::from_millis(ms));
            format!("  waiting for {waiting}")
        });
        format!("{:>4}  {candidate}{waiting}", self.place)
    }
}

pub(crate) async fn queue(context: &Context, resource: &ResourceName) -> Result<(), Failure> {
    let serializer = context.connect_existing().await?.serializer();
    let waiting = serializer.queue(resource).await?;
    let queue = Queue {
        resource: resource.clone(),
        waiting: waiting.into_iter().map(Waits::from).collect(),
    };
    context.output.answer(&queue, |_| {
        if queue.waiting.is_empty() {
            return format!("nobody waits for {}", one_line(&queue.resource));
        }
        let lines: Vec<_> = queue.waiting.iter().map(Waits::text).collect();
        lines.join("\n")
    })
}
