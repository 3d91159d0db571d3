//! A named thread with a bounded queue. SQLite blocks; the callers' runtimes must not.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{
    Receiver, RecvTimeoutError, SyncSender, TryRecvError, TrySendError, sync_channel,
};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use aster_lease::SerializerError;
use tokio::sync::oneshot;

const RETRY_AFTER: Duration = Duration::from_millis(50);
/// How long a worker sleeps at most before it looks after its own affairs.
pub(crate) const TICK: Duration = Duration::from_secs(1);

/// How long a worker that has just worked looks for more before it sleeps: a caller who goes on at once
/// need not wake it. Much less than one commit.
const LINGER: Duration = Duration::from_micros(40);

/// What a worker thread does with what is queued.
pub(crate) trait Work: Send + 'static {
    type Job: Send + 'static;

    /// How many requests wait in the queue.
    const QUEUE_MAX: usize = 4_096;

    /// Whether it looks for more before it sleeps.
    const LINGERS: bool = false;

    /// Does `first`, and whatever else of `queue` is best done with it.
    fn run(&mut self, first: Self::Job, queue: &Receiver<Self::Job>);

    /// How long to wait for the next request before [`tick`](Self::tick), at most [`TICK`].
    fn rest(&self) -> Duration {
        TICK
    }

    /// Called after each run, and with `is_quiet` when nothing has come for [`rest`](Self::rest).
    fn tick(&mut self, _is_quiet: bool) {}
}

/// A handle to a worker thread. Dropping it lets the thread finish what is queued, and waits for it.
#[derive(Debug)]
pub(crate) struct Worker<J> {
    sender: Option<SyncSender<J>>,
    thread: Option<JoinHandle<()>>,
}

impl<J: Send + 'static> Worker<J> {
    pub(crate) fn start<W: Work<Job = J>>(name: &str, mut work: W) -> io::Result<Self> {
        let (sender, receiver) = sync_channel(W::QUEUE_MAX);
        let thread = std::thread::Builder::new()
            .name(name.to_owned())
            .spawn(move || {
                let mut has_worked = false;
                loop {
                    // A panic fails the requests at hand, which notice that nobody answers.
                    let caught = catch_unwind(AssertUnwindSafe(|| {
                        match next_of(&receiver, has_worked, work.rest().min(TICK)) {
                            Ok(job) => {
                                has_worked = W::LINGERS;
                                work.run(job, &receiver);
                                work.tick(false);
                            }
                            Err(RecvTimeoutError::Timeout) => {
                                has_worked = false;
                                work.tick(true);
                            }
                            Err(RecvTimeoutError::Disconnected) => return false,
                        }
                        true
                    }));
                    match caught {
                        Ok(true) => {}
                        Ok(false) => break,
                        Err(_) => tracing::error!("a request to the store panicked; this is a bug"),
                    }
                }
            })?;
        Ok(Self {
            sender: Some(sender),
            thread: Some(thread),
        })
    }

    /// Queues a request, or says at once that there are too many.
    pub(crate) fn submit(&self, job: J) -> Result<(), SerializerError> {
        submit_to(self.sender.as_ref(), job)
    }

    /// A way to queue requests that does not keep the worker alive longer than its handle.
    pub(crate) fn sender(&self) -> Option<SyncSender<J>> {
        self.sender.clone()
    }
}

/// The next request, or none within `rest`.
#[allow(
    clippy::disallowed_methods,
    reason = "how long a thread waits for work is real time, and decides nothing"
)]
fn next_of<J>(
    receiver: &Receiver<J>,
    has_worked: bool,
    rest: Duration,
) -> Result<J, RecvTimeoutError> {
    if has_worked {
        let since = Instant::now();
        while since.elapsed() < LINGER {
            match receiver.try_recv() {
                Ok(job) => return Ok(job),
                Err(TryRecvError::Disconnected) => return Err(RecvTimeoutError::Disconnected),
                // Whoever else is ready to run goes first.
                Err(TryRecvError::Empty) => std::thread::yield_now(),
            }
        }
    }
    receiver.recv_timeout(rest)
}

pub(crate) fn submit_to<J>(sender: Option<&SyncSender<J>>, job: J) -> Result<(), SerializerError> {
    match sender.map(|sender| sender.try_send(job)) {
        Some(Ok(())) => Ok(()),
        Some(Err(TrySendError::Full(_))) => Err(SerializerError::Overloaded {
            retry_after: RETRY_AFTER,
        }),
        Some(Err(TrySendError::Disconnected(_))) | None => Err(SerializerError::Closed),
    }
}

/// Waits for a worker's answer. Dropping this future leaves the request to be carried out whole.
pub(crate) async fn answer<T>(
    receiver: oneshot::Receiver<Result<T, SerializerError>>,
) -> Result<T, SerializerError> {
    receiver.await.unwrap_or_else(|_| {
        Err(SerializerError::Unexpected {
            message: "the request was dropped by a panic in the store".to_owned(),
        })
    })
}

impl<J> Drop for Worker<J> {
    fn drop(&mut self) {
        self.sender = None;
        if let Some(thread) = self.thread.take()
            && thread.thread().id() != std::thread::current().id()
        {
            // A panic outside a request was reported by the panic hook already.
            let _ = thread.join();
        }
    }
}
