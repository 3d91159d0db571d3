//! What it costs to hold many leases: `cargo run --release -p aster-lease --example many_leases --
//! [LEASES] [SECONDS]`. Prints the share of one core that renewing takes. Linux only.
#![allow(clippy::print_stdout, reason = "that is what it is for")]

use std::sync::Arc;
use std::time::Duration;

use aster_lease::{AcquireOutcome, LeaseHandle, LeaseOptions, MemorySerializer};

const LEASES: usize = 100_000;
const WINDOW: Duration = Duration::from_secs(30);

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let leases = arguments
        .next()
        .map_or(Ok(LEASES), |leases| leases.parse())?;
    let seconds = arguments
        .next()
        .map(|seconds| seconds.parse())
        .transpose()?;
    let window = seconds.map_or(WINDOW, Duration::from_secs);
    let store = Arc::new(MemorySerializer::new());
    let resident_before = resident_bytes()?;
    let mut held = Vec::with_capacity(leases);
    let acquiring = cpu_time()?;
    for number in 0..leases {
        let resource = format!("resource/{number:011}");
        let options = LeaseOptions::default();
        match LeaseHandle::acquire(store.clone(), &resource, "worker", options).await? {
            AcquireOutcome::Granted(lease) => held.push(lease),
            AcquireOutcome::Denied(reason, _) => return Err(reason.to_string().into()),
        }
    }
    println!(
        "{leases} acquired in {:?} of CPU time, {} bytes each, store included",
        cpu_time()? - acquiring,
        (resident_bytes()? - resident_before) / leases.max(1)
    );
    // The first renewals spread out.
    tokio::time::sleep(Duration::from_secs(12)).await;
    for _ in 0..3 {
        let before = cpu_time()?;
        tokio::time::sleep(window / 3).await;
        let used = cpu_time()? - before;
        println!(
            "{:.2} % of one core",
            100.0 * used.as_secs_f64() / (window / 3).as_secs_f64()
        );
    }
    let lost = held.iter().filter(|lease| lease.fence().is_none()).count();
    println!("{lost} lost");
    Ok(())
}

/// User and system time of this process so far.
fn cpu_time() -> Result<Duration, Box<dyn std::error::Error>> {
    // In nanoseconds, the first field of each thread's schedstat.
    let mut nanos = 0;
    for thread in std::fs::read_dir("/proc/self/task")? {
        let text = std::fs::read_to_string(thread?.path().join("schedstat"))?;
        let spent = text.split_whitespace().next().ok_or("schedstat is empty")?;
        nanos += spent.parse::<u64>()?;
    }
    Ok(Duration::from_nanos(nanos))
}

fn resident_bytes() -> Result<usize, Box<dyn std::error::Error>> {
    let text = std::fs::read_to_string("/proc/self/statm")?;
    let pages = text.split_whitespace().nth(1).ok_or("statm is short")?;
    Ok(pages.parse::<usize>()? * 4_096)
}
