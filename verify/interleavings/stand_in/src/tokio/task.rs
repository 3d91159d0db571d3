//! Tasks of the scheduler.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use crate::world;

/// As `tokio::task::Id`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Id(u64);

/// As `tokio::task::JoinError`: here a task can only have been aborted.
#[derive(Debug, Clone, Copy, thiserror::Error)]
#[error("the task was aborted")]
pub struct JoinError(Id);

impl JoinError {
    /// Whose error it is.
    #[must_use]
    pub fn id(&self) -> Id {
        self.0
    }
}

/// What a task and those who abort it share. It lives as long as the task.
#[derive(Debug)]
pub(crate) struct Cell {
    id: Id,
    is_aborted: AtomicBool,
    waker: Mutex<Option<Waker>>,
}

impl Cell {
    pub(crate) fn abort(&self) {
        self.is_aborted.store(true, Ordering::Relaxed);
        let waker = lock(&self.waker).take();
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

// No point lies under these locks, so nobody ever waits for one.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A task: the future until it has ended or was aborted, and where its end is told.
struct Task<F: Future, E: FnOnce(Result<F::Output, JoinError>)> {
    future: Option<Pin<Box<F>>>,
    cell: Arc<Cell>,
    end: Option<E>,
}

impl<F: Future, E: FnOnce(Result<F::Output, JoinError>) + Unpin> Future for Task<F, E> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let this = &mut *self;
        *lock(&this.cell.waker) = Some(context.waker().clone());
        let ended = match &mut this.future {
            _ if this.cell.is_aborted.load(Ordering::Relaxed) => Err(JoinError(this.cell.id)),
            None => Err(JoinError(this.cell.id)),
            Some(future) => match future.as_mut().poll(context) {
                Poll::Ready(output) => Ok(output),
                Poll::Pending => return Poll::Pending,
            },
        };
        this.future = None;
        if let Some(end) = this.end.take() {
            end(ended);
        }
        Poll::Ready(())
    }
}

fn start<F, E>(future: F, end: E) -> Arc<Cell>
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
    E: FnOnce(Result<F::Output, JoinError>) + Send + Unpin + 'static,
{
    crate::point();
    let cell = world::add_task(|id| {
        Arc::new(Cell {
            id: Id(id),
            is_aborted: AtomicBool::new(false),
            waker: Mutex::default(),
        })
    });
    if world::is_stopped() {
        drop(future);
        end(Err(JoinError(cell.id)));
        return cell;
    }
    let task = Task {
        future: Some(Box::pin(future)),
        cell: cell.clone(),
        end: Some(end),
    };
    drop(shuttle::future::spawn(task));
    cell
}

/// As `tokio::task::JoinHandle`, for those who only abort.
#[derive(Debug)]
pub struct JoinHandle(AbortHandle);

impl JoinHandle {
    /// Drops the task where it waits.
    pub fn abort(&self) {
        self.0.abort();
    }
}

pub(super) fn spawn<F>(future: F) -> JoinHandle
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    JoinHandle(AbortHandle::of(&start(future, drop)))
}

/// As `tokio::task::AbortHandle`.
#[derive(Debug, Clone)]
pub struct AbortHandle {
    id: Id,
    cell: std::sync::Weak<Cell>,
}

impl AbortHandle {
    fn of(cell: &Arc<Cell>) -> Self {
        Self {
            id: cell.id,
            cell: Arc::downgrade(cell),
        }
    }

    /// Drops the task where it waits.
    pub fn abort(&self) {
        crate::point();
        if let Some(cell) = self.cell.upgrade() {
            cell.abort();
        }
    }

    /// Whose handle it is.
    #[must_use]
    pub fn id(&self) -> Id {
        self.id
    }
}

/// As `tokio::task::yield_now`.
pub async fn yield_now() {
    shuttle::future::yield_now().await;
}

/// As `tokio::task::JoinSet`.
#[derive(Debug)]
pub struct JoinSet<T> {
    ends: Arc<Mutex<Ends<T>>>,
    tasks: Vec<AbortHandle>,
}

#[derive(Debug)]
struct Ends<T> {
    ended: VecDeque<Result<T, JoinError>>,
    running: usize,
    waker: Option<Waker>,
}

impl<T> Default for JoinSet<T> {
    fn default() -> Self {
        let ends = Ends {
            ended: VecDeque::new(),
            running: 0,
            waker: None,
        };
        Self {
            ends: Arc::new(Mutex::new(ends)),
            tasks: Vec::new(),
        }
    }
}

impl<T: Send + 'static> JoinSet<T> {
    /// As tokio's.
    pub fn spawn<F>(&mut self, future: F) -> AbortHandle
    where
        F: Future<Output = T> + Send + 'static,
    {
        lock(&self.ends).running += 1;
        let ends = self.ends.clone();
        let end = move |ended| {
            let mut ends = lock(&ends);
            ends.running -= 1;
            ends.ended.push_back(ended);
            let waker = ends.waker.take();
            drop(ends);
            if let Some(waker) = waker {
                waker.wake();
            }
        };
        let task = AbortHandle::of(&start(future, end));
        self.tasks.retain(|task| task.cell.strong_count() > 0);
        self.tasks.push(task.clone());
        task
    }

    /// As tokio's: `Ready(None)` when nothing runs.
    pub fn poll_join_next(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<T, JoinError>>> {
        crate::point();
        let mut ends = lock(&self.ends);
        match ends.ended.pop_front() {
            Some(ended) => Poll::Ready(Some(ended)),
            None if ends.running == 0 => Poll::Ready(None),
            None => {
                ends.waker = Some(context.waker().clone());
                Poll::Pending
            }
        }
    }
}

impl<T> Drop for JoinSet<T> {
    fn drop(&mut self) {
        for task in &self.tasks {
            if let Some(cell) = task.cell.upgrade() {
                cell.abort();
            }
        }
    }
}
