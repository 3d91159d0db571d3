//! A resource that cannot see the lease row keeps the highest ownership that it was told of.
//!
//! `cargo run --example high_water_mark`
#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "an example shows what happens"
)]

// begin: uses
use std::error::Error;
use std::sync::{Arc, Mutex, PoisonError};

use aster::lease::{
    AcquireOutcome, Fence, HighWaterMark, HighWaterRejection, LeaseHandle, LeaseOptions,
    LeaseSerializer, MemorySerializer, ResourceName,
};
// end: uses

// begin: bucket
/// Stands for something far away: a device, a service. The mark and the data change in one step.
struct Bucket {
    inner: Mutex<(HighWaterMark, String)>,
}

impl Bucket {
    /// A new holder calls this first, and builds on what it answers.
    fn announce_and_read(&self, fence: &Fence, caller: &str) -> Result<String, HighWaterRejection> {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        inner.0.announce(fence, caller)?;
        Ok(inner.1.clone())
    }

    /// `caller` is who the connection proved it to be, never what the fence says.
    fn write(&self, fence: &Fence, caller: &str, text: &str) -> Result<(), HighWaterRejection> {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        inner.0.check(fence, caller)?;
        inner.1 = text.to_owned();
        Ok(())
    }

    /// Whoever releases or revokes tells the row's new epoch, so that the old fence stops here too.
    fn announce_end(&self, fence: &Fence, epoch: u64) -> Result<(), HighWaterRejection> {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        inner.0.announce_end(fence.authority, epoch)
    }
}
// end: bucket

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let serializer = Arc::new(MemorySerializer::new());
    let authority = serializer.authority().await?;
    let name = ResourceName::new("bucket/index")?;
    let bucket = Bucket {
        inner: Mutex::new((HighWaterMark::new(name, authority), String::new())),
    };

    // begin: use
    let lease_a = acquire(&serializer, "a").await?;
    let fence_a = lease_a.fence().ok_or("the lease is over")?;
    bucket.announce_and_read(&fence_a, "a")?;
    bucket.write(&fence_a, "a", "index-v1")?;

    lease_a.release().await?;
    // The weakness: the bucket has not been told, so A's fence still passes here.
    bucket.write(&fence_a, "a", "index-v1-after-release")?;

    let lease_b = acquire(&serializer, "b").await?;
    let fence_b = lease_b.fence().ok_or("the lease is over")?;
    let found = bucket.announce_and_read(&fence_b, "b")?; // from here on A is refused
    let late = bucket.write(&fence_a, "a", "index-v1-late");
    assert!(matches!(late, Err(HighWaterRejection::StaleEpoch { .. })));
    bucket.write(&fence_b, "b", &format!("{found}+v2"))?;

    // B tells the bucket when it is done.
    lease_b.release().await?;
    let now = serializer.snapshot("bucket/index").await?;
    bucket.announce_end(&fence_b, now.epoch)?;
    assert!(bucket.write(&fence_b, "b", "after the end").is_err());
    // end: use

    let text = bucket
        .inner
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .1
        .clone();
    assert_eq!(text, "index-v1-after-release+v2");
    println!("the bucket says {text:?}");
    Ok(())
}

async fn acquire(
    serializer: &Arc<MemorySerializer>,
    holder: &str,
) -> Result<LeaseHandle, Box<dyn Error>> {
    let options = LeaseOptions::default();
    match LeaseHandle::acquire(serializer.clone(), "bucket/index", holder, options).await? {
        AcquireOutcome::Granted(lease) => Ok(lease),
        AcquireOutcome::Denied(reason, _) => Err(format!("denied: {reason}").into()),
    }
}
