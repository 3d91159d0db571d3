//! `aster run`: hold a lease while a command runs.
//!
//! | file | what lives there |
//! |---|---|
//! | `mod.rs` | acquire, run, release: the order of things |
//! | `supervisor.rs` | the loop while the command runs: loss, signals, its end |
//! | `timing.rs` | when to renew, stop and kill |
//! | `launch.rs` | the hidden subcommand that becomes the command |
//! | `guard.rs` | the hidden subcommand that kills the group when the run cannot |
//! | `group.rs` | the command's process group |
//! | `signals.rs`, `terminal.rs` | what is passed on, who is in the foreground |

pub(crate) mod group;
pub(crate) mod guard;
pub(crate) mod launch;
pub(crate) mod signals;
mod supervisor;
mod terminal;
mod timing;

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use aster::lease::{
    AcquireOutcome, DenyReason, ErrorKind, LeaseError, LeaseHandle, LeaseSnapshot, ReleaseOutcome,
    Store,
};
use rustix::process::Signal;
use tokio::time::{sleep, timeout};

use crate::arguments::RunArguments;
use crate::context::Context;
use crate::duration::display;
use crate::failure::{Failure, FailureKind, denied_kind, sentence};
use crate::identity::Identity;
use crate::output::quoted;
use crate::socket::server::{PrivateDirectory, Server, Service};
use group::Group;
use guard::Guard;
use launch::Surroundings;
use signals::ForwardedSignals;
use supervisor::{Supervisor, WorkEnd};
use terminal::Terminal;
use timing::Timing;

/// How long a run that was told to stop waits for the answer to its acquire, to give the grant back.
const AFTER_SIGNAL_MAX: Duration = Duration::from_secs(5);
const BACKGROUND_PAUSE: Duration = Duration::from_millis(5);

/// A run that waits for longer says so.
const SAY_AFTER: Duration = Duration::from_millis(200);

/// How long the end of a run waits for the store to close.
const CLOSE_WAIT: Duration = Duration::from_secs(2);

/// Answers the exit code of the command.
pub(crate) async fn run(context: &Context, arguments: &RunArguments) -> Result<u8, Failure> {
    let timing = Timing::new(arguments.ttl, arguments.grace)?;
    let mut signals = ForwardedSignals::listen()
        .map_err(|error| Failure::io("cannot listen to signals", &error))?;
    let identity = context.identity()?;
    let store = context.connect().await?;
    let run = Run {
        context,
        arguments,
        timing,
        identity: &identity,
    };
    let end = run.to_its_end(&store, &mut signals).await;
    close(store).await;
    end
}

/// Closing writes out what the store still has to note. A store that is stuck must not keep us: the lease
/// is over, and the exit code is waited for.
async fn close(store: Store) {
    // The renewal's task ends first, so that the store's last owner is the one on the blocking thread.
    tokio::task::yield_now().await;
    let closing = tokio::task::spawn_blocking(move || drop(store));
    if timeout(CLOSE_WAIT, closing).await.is_err() {
        tracing::debug!("the store did not close in time");
    }
}

/// What was given up gives back what it may have been granted; a run that was told to stop waits for that.
async fn background_has_ended() {
    let runtime = tokio::runtime::Handle::current();
    let ended = async {
        while runtime.metrics().num_alive_tasks() > 0 {
            sleep(BACKGROUND_PAUSE).await;
        }
    };
    if timeout(AFTER_SIGNAL_MAX, ended).await.is_err() {
        tracing::debug!("a grant that may have been made could not be given back in time");
    }
}

enum Acquired {
    Lease(LeaseHandle),
    Stopped(Signal),
}

fn denied(reason: DenyReason, snapshot: &LeaseSnapshot) -> Failure {
    let resource = &snapshot.resource;
    let message = match (reason, &snapshot.holder) {
        (DenyReason::HeldByOther, Some(holder)) => {
            let left = match snapshot.remaining {
                Some(left) if left.is_zero() => "its time is over, somebody may take it".to_owned(),
                Some(left) => format!("{} left unless renewed", display(left)),
                None => "for how long is not known".to_owned(),
            };
            let epoch = snapshot.epoch;
            format!("{resource} is held by {holder} at epoch {epoch} ({left}): try again later")
        }
        (DenyReason::HeldOff, _) => {
            let end_of_options = if resource.starts_with('-') { "-- " } else { "" };
            format!(
                "{resource} was not granted: an operator revoked it and keeps this holder out for a while; \
                 `aster audit {end_of_options}{}` tells when",
                quoted(resource)
            )
        }
        (DenyReason::WaitRanOut, Some(holder)) => {
            let epoch = snapshot.epoch;
            format!(
                "the wait for {resource} ran out; it is held by {holder} at epoch {epoch}: try again later"
            )
        }
        (DenyReason::WaitRanOut, None) => {
            format!("the wait for {resource} ran out, others come first: try again later")
        }
        _ => format!("{resource} was not granted: {reason}"),
    };
    Failure::new(denied_kind(reason), message)
}

/// One run: acquire, work, release.
struct Run<'a> {
    context: &'a Context,
    arguments: &'a RunArguments,
    timing: Timing,
    identity: &'a Identity,
}

impl Run<'_> {
    async fn to_its_end(
        &self,
        store: &Store,
        signals: &mut ForwardedSignals,
    ) -> Result<u8, Failure> {
        let lease = match self.acquire(store, signals).await? {
            Acquired::Lease(lease) => Arc::new(lease),
            Acquired::Stopped(signal) => return Ok(code_of(signal)),
        };
        self.remark(&format!(
            "holding {} at epoch {} (ttl {})",
            lease.resource(),
            lease.epoch(),
            display(self.timing.ttl)
        ));
        let service = Service {
            lease: lease.clone(),
            registers: store.registers().map_err(Failure::from),
            writer: self.identity.principal.clone(),
            verdict: Arc::default(),
        };
        let work = self.work(service, signals).await;
        self.conclude(&lease, work).await
    }

    /// Said only when asked for: a wrapper that goes well is silent.
    fn remark(&self, text: &str) {
        if self.arguments.verbose {
            self.context.output.remark(text);
        }
    }

    async fn acquire(
        &self,
        store: &Store,
        signals: &mut ForwardedSignals,
    ) -> Result<Acquired, Failure> {
        let mut acquiring = Box::pin(self.ask(store));
        let mut saying = pin!(self.say_behind_whom(store));
        let mut has_said = false;
        let signal = loop {
            tokio::select! {
                outcome = &mut acquiring => {
                    return match outcome? {
                        AcquireOutcome::Granted(lease) => Ok(Acquired::Lease(lease)),
                        AcquireOutcome::Denied(reason, snapshot) => Err(denied(reason, &snapshot)),
                    };
                }
                () = &mut saying, if !has_said => has_said = true,
                signal = signals.next() => match signal {
                    Signal::USR1 | Signal::USR2 => {} // for a command that does not run yet
                    signal => break signal,
                },
            }
        };
        match self.arguments.wait {
            None => {
                let late = timeout(AFTER_SIGNAL_MAX, &mut acquiring).await;
                if let Ok(Ok(AcquireOutcome::Granted(lease))) = late {
                    let _ = lease.release().await;
                }
            }
            Some(_) => {
                // Leaves the queue; a grant on its way is given back in the background.
                drop(acquiring);
                background_has_ended().await;
            }
        }
        Ok(Acquired::Stopped(signal))
    }

    async fn ask(&self, store: &Store) -> Result<AcquireOutcome, LeaseError> {
        let (resource, holder) = (&*self.arguments.resource, &*self.identity.principal);
        let (serializer, options) = (store.serializer(), self.timing.lease_options());
        match self.arguments.wait {
            None => LeaseHandle::acquire(serializer, resource, holder, options).await,
            Some(wait) => {
                LeaseHandle::acquire_wait(serializer, resource, holder, options, wait).await
            }
        }
    }

    /// Once it is clear that this run waits, says so, and behind whom.
    async fn say_behind_whom(&self, store: &Store) {
        let Some(wait) = self.arguments.wait.filter(|wait| !wait.is_zero()) else {
            return;
        };
        sleep(SAY_AFTER).await;
        let (serializer, resource) = (store.serializer(), &self.arguments.resource);
        let holder = match serializer.snapshot(resource).await {
            Ok(LeaseSnapshot {
                holder: Some(holder),
                epoch,
                ..
            }) => format!("held by {holder} at epoch {epoch}"),
            _ => "not granted yet".to_owned(),
        };
        let queue = serializer.queue(resource).await.unwrap_or_default();
        let place = queue
            .iter()
            .rposition(|waiter| waiter.candidate == self.identity.principal);
        let others = match place {
            Some(1) => "; 1 other comes first".to_owned(),
            Some(place) if place > 1 => format!("; {place} others come first"),
            _ => String::new(),
        };
        self.context.output.remark(&format!(
            "waiting for {resource}, at most {}: {holder}{others}",
            display(wait)
        ));
    }

    /// Runs the command to its end. When this returns, nobody can ask for a fence any more.
    async fn work(
        &self,
        service: Service,
        signals: &mut ForwardedSignals,
    ) -> Result<WorkEnd, Failure> {
        let lease = service.lease.clone();
        let directory = PrivateDirectory::create()?;
        let mut supervisor = Supervisor::new(lease.clone(), service.verdict.clone(), self.timing)?;
        let mut server = Server::bind(&directory, service)?;
        let mut guard = Guard::start(directory.path())?;
        let terminal = Terminal::of_foreground();
        let leader = launch::start(
            &self.arguments.command,
            &Surroundings {
                socket: &directory.socket(),
                resource: lease.resource(),
                store: self.context.absolute_store_url()?.as_ref(),
                identity: &self.identity.path,
            },
        )?;
        // The launcher waits until the server answers, which is after these three.
        let mut group = Group::of_leader(leader);
        guard.watch_group(&group);
        if let Some(terminal) = &terminal {
            terminal.give_unless_in_a_pipeline(&group);
        }
        let end = supervisor
            .supervise(
                &mut group,
                &mut guard,
                terminal.as_ref(),
                &mut server,
                signals,
            )
            .await;
        if let Some(terminal) = &terminal {
            terminal.take_back(&group);
        }
        if end.is_gone {
            guard.finish();
        } // else it is dropped, and goes on killing
        Ok(end)
    }

    /// Releases, now that the command is gone, and says how it went.
    async fn conclude(
        &self,
        lease: &LeaseHandle,
        work: Result<WorkEnd, Failure>,
    ) -> Result<u8, Failure> {
        let resource = lease.resource();
        match &work {
            Ok(WorkEnd { lost: Some(_), .. }) => {}
            Ok(WorkEnd { is_gone: false, .. }) => self.context.output.remark(&format!(
                "some process of the command does not end, so {resource} was not released: \
                 it is free when its time is over"
            )),
            _ => match lease.release().await {
                Ok(ReleaseOutcome::AlreadyEnded) => {
                    return Err(ended_before(lease, "it was revoked or taken over"));
                }
                Ok(_) => self.remark(&format!("released {resource}")),
                Err(error) if error.kind() == ErrorKind::Stop => {
                    return Err(ended_before(lease, &sentence(&error)));
                }
                Err(error) => self.context.output.remark(&format!(
                    "{resource} could not be released and is free when its time is over: {error}"
                )),
            },
        }
        let end = work?;
        let Some(reason) = end.lost else {
            return Ok(end.leader.exit_code());
        };
        let what_happened = match end.killed {
            true => "the command and its group were killed",
            false => "the command and its group were told to end and did",
        };
        Err(Failure::new(
            FailureKind::LeaseLost,
            format!(
                "the lease of {resource} at epoch {} was lost: {reason}; {what_happened}",
                lease.epoch()
            ),
        ))
    }
}

/// The command ended by itself, but not under the lease.
fn ended_before(lease: &LeaseHandle, why: &str) -> Failure {
    Failure::new(
        FailureKind::LeaseLost,
        format!(
            "the lease of {} at epoch {} had ended before the command did: {why}",
            lease.resource(),
            lease.epoch()
        ),
    )
}

pub(crate) fn code_of(signal: Signal) -> u8 {
    u8::try_from(128 + signal.as_raw()).unwrap_or(u8::MAX)
}
