//! A great many leases that expire at the same instant, each with one who waits for it: how late the
//! last of them is granted, and what others feel meanwhile.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use aster_lease::{
    Fence, LeaseOp, LeaseSerializer, MemorySerializer, Principal, Ttl, WaitOutcome, WaitRequest,
};
use tokio::runtime::Runtime;
use tokio::task::JoinSet;

use crate::leases::{TTL_LONG_MS, grant, grant_id, name};
use crate::measure::{Failure, Pair, Scale, Spread, now, percentile};
use crate::table::{Goal, Line};

const CASE: &str = "expiries";
/// How long others are watched in peace, before anybody waits.
const QUIET: Duration = Duration::from_secs(2);
const ROUNDS: usize = 5;
/// Others act this often.
const OTHERS_EVERY: Duration = Duration::from_millis(1);
const OTHERS_PART: f64 = 0.99;

pub(super) fn run(scale: Scale) -> Result<Vec<Line>, Failure> {
    let leases = scale.pick(1_000_000, 2_000);
    let ahead = scale.pick(Duration::from_secs(40), Duration::from_secs(4));
    let mut rounds = Vec::new();
    for _ in 0..scale.pick(ROUNDS, 1) {
        let runtime = Runtime::new()?;
        rounds.push(runtime.block_on(round(leases, ahead))?);
    }
    let all = |value: fn(&Round) -> f64| Spread::of(rounds.iter().map(value).collect());
    let beside = |during: fn(&Round) -> f64, before: fn(&Round) -> f64| Pair {
        ours: all(during),
        bare: all(before),
        ratio: Spread::of(rounds.iter().map(|it| during(it) / before(it)).collect()),
    };
    let last =
        format!("{leases} leases expire at one instant: the last waiter has its grant after");
    Ok(vec![
        Line::alone(CASE, last, "ms", all(|it| it.last_ms), Goal::None),
        Line::pair(
            CASE,
            "others meanwhile: acquire and release of a free resource, from when it was due, p99; beside: before anybody waited",
            "µs",
            beside(|it| it.transitions.1, |it| it.transitions.0),
            Goal::None,
        ),
        Line::pair(
            CASE,
            "others meanwhile: a fenced mutation, p99; beside: before anybody waited",
            "µs",
            beside(|it| it.writes.1, |it| it.writes.0),
            Goal::None,
        ),
    ])
}

/// What one round found; of others before the instant and after it, in microseconds.
struct Round {
    last_ms: f64,
    transitions: (f64, f64),
    writes: (f64, f64),
}

async fn round(leases: usize, ahead: Duration) -> Result<Round, Failure> {
    let store = MemorySerializer::new();
    let instant = now() + ahead;
    for index in 0..leases {
        let left = instant.saturating_duration_since(now());
        let ttl_ms = u64::try_from(left.as_millis())?;
        grant(&store, &name(index), "worker-a", ttl_ms).await?;
    }
    let peaceful = Others::start(&store).await?;
    tokio::time::sleep(QUIET).await;
    let before = peaceful.finish().await?;
    let mut waiters = JoinSet::new();
    let runtime = tokio::runtime::Handle::current();
    for index in 0..leases {
        let store = store.clone();
        waiters.spawn_on(async move { granted(&store, &name(index)).await }, &runtime);
    }
    // Once the last one that was spawned stands in its queue, nearly all others do.
    while store.queue(&name(leases - 1)).await?.is_empty() {
        tokio::time::sleep(OTHERS_EVERY).await;
    }
    if now() > instant {
        return Err("this machine is too slow to make ready in time".into());
    }
    tokio::time::sleep_until(instant.into()).await;
    let others = Others::start(&store).await?;
    let mut last = instant;
    while let Some(waited) = waiters.join_next().await {
        last = last.max(waited??);
    }
    let during = others.finish().await?;
    Ok(Round {
        last_ms: last.saturating_duration_since(instant).as_secs_f64() * 1e3,
        transitions: (before.0, during.0),
        writes: (before.1, during.1),
    })
}

/// Waits for one lease to expire; answers when it was granted.
async fn granted(store: &MemorySerializer, resource: &str) -> Result<Instant, Failure> {
    let request = WaitRequest {
        candidate: Principal::new("worker-b")?,
        ttl: Ttl::from_millis(TTL_LONG_MS)?,
        grant_id: grant_id(),
        wait: Duration::from_secs(600),
    };
    match store.acquire_wait(resource, request).await? {
        WaitOutcome::Granted { .. } => Ok(now()),
        other => Err(format!("{other:?} to one who waited for {resource}").into()),
    }
}

/// Those who have nothing to do with the expired leases: a task that acquires and releases, and a
/// thread that writes.
struct Others {
    stop: Arc<AtomicBool>,
    transitions: tokio::task::JoinHandle<Result<Vec<f64>, Failure>>,
    writes: std::thread::JoinHandle<Result<Vec<f64>, Failure>>,
}

impl Others {
    async fn start(store: &MemorySerializer) -> Result<Self, Failure> {
        let stop = Arc::new(AtomicBool::new(false));
        let transitions = {
            let (store, stop) = (store.clone(), stop.clone());
            tokio::runtime::Handle::current()
                .spawn(async move { acquire_and_release(&store, &stop).await })
        };
        let writes = {
            let fence = written(store).await?;
            let (store, stop) = (store.clone(), stop.clone());
            std::thread::Builder::new()
                .name("others".to_owned())
                .spawn(move || write(&store, &fence, &stop))?
        };
        Ok(Self {
            stop,
            transitions,
            writes,
        })
    }

    /// Microseconds that most of their transitions, and most of their writes, took at most.
    async fn finish(self) -> Result<(f64, f64), Failure> {
        self.stop.store(true, Ordering::Relaxed);
        let transitions = self.transitions.await??;
        let writes = self.writes.join().map_err(|_| "a writer panicked")??;
        Ok((most(transitions), most(writes)))
    }
}

/// A resource that is written, under a new grant each time.
async fn written(store: &MemorySerializer) -> Result<Fence, Failure> {
    static COUNT: AtomicUsize = AtomicUsize::new(0);
    let resource = format!("others/{}", COUNT.fetch_add(1, Ordering::Relaxed));
    grant(store, &resource, "worker-c", TTL_LONG_MS).await
}

async fn acquire_and_release(
    store: &MemorySerializer,
    stop: &AtomicBool,
) -> Result<Vec<f64>, Failure> {
    let mut samples = Vec::new();
    while samples.is_empty() || !stop.load(Ordering::Relaxed) {
        // From when it was due: that it runs late is what others feel.
        let due = now() + OTHERS_EVERY;
        tokio::time::sleep_until(due.into()).await;
        let fence = grant(store, "others/acquired", "worker-c", TTL_LONG_MS).await?;
        let release = LeaseOp::Release {
            holder: fence.holder.clone(),
            epoch: fence.epoch,
        };
        store.transition("others/acquired", release).await?;
        samples.push(due.elapsed().as_secs_f64() * 1e6);
    }
    Ok(samples)
}

fn write(store: &MemorySerializer, fence: &Fence, stop: &AtomicBool) -> Result<Vec<f64>, Failure> {
    let mut samples = Vec::new();
    while samples.is_empty() || !stop.load(Ordering::Relaxed) {
        std::thread::sleep(OTHERS_EVERY);
        let started = now();
        store.mutate_fenced(fence, "worker-c", || ())?;
        samples.push(started.elapsed().as_secs_f64() * 1e6);
    }
    Ok(samples)
}

fn most(mut samples: Vec<f64>) -> f64 {
    samples.sort_by(f64::total_cmp);
    percentile(&samples, OTHERS_PART)
}
