//! Cases of a writer that stands still between its check and its write.
//!
//! The value that remains does not show everything: where the writer stands inside a lock of its
//! resource, the next owner's write queues behind it and lands last, though the stale write happened.
//! So what counts is the order: ownership that was seen to end while the writer stood still must not be
//! followed by its write. A correct store lets the change wait for the write, or refuses the write.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

use aster_lease::{ExpectedRevision, Fence, TransitionOutcome, WriteId};

use crate::drive::{
    A, B, Checked, Drive, RESOURCE, SHORT_TTL, Stop, TTL, acquire, broken, ensure, release, revoke,
};
use crate::fenced_resource::accepted;
use crate::harness::{Harness, PausedWrite, Written};
use crate::registers::registers;
use crate::report::Report;
use crate::rule::Rule;
use crate::serializer::run_cases;

pub(crate) async fn cases<H: Harness>(harness: &H, report: &mut Report) {
    run_cases!(
        harness, report,
        CheckAndWriteAreOneStep: a_paused_write_does_not_land_on_the_next_owner,
        CheckAndWriteAreOneStep: a_revoke_does_not_pass_a_paused_write,
        CheckAndWriteAreOneStep: a_takeover_does_not_pass_a_paused_write,
        CheckAndWriteAreOneStep: a_release_with_a_value_does_not_pass_a_paused_write,
        CheckAndWriteAreOneStep: a_paused_write_of_the_owner_happens_when_nothing_passes_it,
    );
}

/// The lease is given up meanwhile and the next owner writes. Neither may the stale write happen once
/// the release was answered, nor may it be what remains.
async fn a_paused_write_does_not_land_on_the_next_owner<H: Harness>(harness: &H) -> Checked {
    let drive = Drive::fresh(harness).await;
    let fence = drive.acquired(A, 1).await?;
    let pause = Pause::begin(&drive, &fence).await?;
    let change = async {
        drive
            .answered(release(A, fence.epoch), TransitionOutcome::Released)
            .await?;
        let is_passed = pause.still_stands();
        let next = drive.acquired(B, 2).await?;
        accepted(&drive, &next, B, "of-the-next-owner").await?;
        Ok(is_passed)
    };
    let is_passed = change.await;
    let written = pause.end().await;
    let is_passed = is_passed?;
    let value = drive.effect(RESOURCE).await;
    ensure(value.as_deref() == Some("of-the-next-owner"), || {
        format!(
            "the stale write ended as {written:?} and the value after the next owner's write is \
             {value:?}"
        )
    })?;
    not_passed(is_passed, "release", &written)
}

async fn a_revoke_does_not_pass_a_paused_write<H: Harness>(harness: &H) -> Checked {
    let drive = Drive::fresh(harness).await;
    let fence = drive.acquired(A, 1).await?;
    let pause = Pause::begin(&drive, &fence).await?;
    let revoked = drive
        .answered(revoke(fence.epoch, None), TransitionOutcome::Revoked)
        .await;
    pause.judge("revoke", revoked).await
}

async fn a_takeover_does_not_pass_a_paused_write<H: Harness>(harness: &H) -> Checked {
    let drive = Drive::fresh(harness).await;
    let fence = drive.granted(RESOURCE, acquire(A, SHORT_TTL, 1)).await?;
    drive.pass(SHORT_TTL).await?;
    // Nobody took it: the write is still the owner's until somebody does.
    let pause = Pause::begin(&drive, &fence).await?;
    let taken = drive.granted(RESOURCE, acquire(B, TTL, 2)).await;
    pause.judge("takeover", taken.map(|_| ())).await
}

async fn a_release_with_a_value_does_not_pass_a_paused_write<H: Harness>(harness: &H) -> Checked {
    let drive = Drive::fresh(harness).await;
    let registers = registers(&drive)?;
    let fence = drive.acquired(A, 1).await?;
    let pause = Pause::begin(&drive, &fence).await?;
    let id = WriteId::from_bytes([1; 16]);
    let released = registers
        .release_with_value(&fence, A, ExpectedRevision::Any, b"last".to_vec(), id)
        .await;
    let released = released.map(|_| ()).or_else(|error| {
        broken(format!(
            "the release with a value of {fence} failed: {error}"
        ))
    });
    pause.judge("release with a value", released).await
}

async fn a_paused_write_of_the_owner_happens_when_nothing_passes_it<H: Harness>(
    harness: &H,
) -> Checked {
    let drive = Drive::fresh(harness).await;
    let fence = drive.acquired(A, 1).await?;
    let PausedWrite { resume, outcome } = paused(&drive, &fence, "slow-but-mine").await?;
    resume();
    let written = outcome.await;
    ensure(written == Written::Accepted, || {
        format!("the owner's write ended as {written:?}")
    })?;
    let value = drive.effect(RESOURCE).await;
    ensure(value.as_deref() == Some("slow-but-mine"), || {
        format!("the value is {value:?}")
    })
}

/// A write of `A` that stands still until the change of ownership was answered, or has waited long
/// enough for the write.
struct Pause {
    is_resumed: Arc<AtomicBool>,
    done: mpsc::Sender<()>,
    waker: JoinHandle<()>,
    outcome: std::pin::Pin<Box<dyn Future<Output = Written> + Send>>,
}

impl Pause {
    async fn begin<H: Harness>(drive: &Drive<'_, H>, fence: &Fence) -> Checked<Self> {
        let PausedWrite { resume, outcome } = paused(drive, fence, "of-the-stale-writer").await?;
        let is_resumed = Arc::new(AtomicBool::new(false));
        let (done, is_done) = mpsc::channel();
        let waker = resume_when_done(
            is_done,
            Arc::clone(&is_resumed),
            resume,
            drive.harness.patience(),
        )?;
        Ok(Self {
            is_resumed,
            done,
            waker,
            outcome,
        })
    }

    /// Asked right after the change of ownership was answered: the write has not gone on by then.
    fn still_stands(&self) -> bool {
        !self.is_resumed.load(Ordering::SeqCst)
    }

    /// Lets the write go on, if it does not yet, and waits for its end.
    async fn end(self) -> Written {
        drop(self.done);
        let written = self.outcome.await;
        let _ = self.waker.join();
        written
    }

    /// Whether the write kept to the rule, now that `change` was answered.
    async fn judge(self, change: &str, answered: Checked) -> Checked {
        let is_passed = self.still_stands();
        let written = self.end().await;
        answered?;
        not_passed(is_passed, change, &written)
    }
}

/// A write that is accepted after ownership was seen to end has not been checked when it happened.
fn not_passed(is_passed: bool, change: &str, written: &Written) -> Checked {
    ensure(!(is_passed && *written == Written::Accepted), || {
        format!(
            "the {change} was answered while the write stood still after its check, and the write \
             was accepted all the same"
        )
    })
}

async fn paused<H: Harness>(
    drive: &Drive<'_, H>,
    fence: &Fence,
    value: &str,
) -> Checked<PausedWrite> {
    drive
        .harness
        .start_write(&drive.store, fence, A, value)
        .await
        .ok_or(Stop::NotPossible("a pause inside a protected write"))
}

/// A thread of its own: a store that lets the change wait may block the case's.
fn resume_when_done(
    is_done: mpsc::Receiver<()>,
    is_resumed: Arc<AtomicBool>,
    resume: Box<dyn FnOnce() + Send>,
    patience: Duration,
) -> Checked<JoinHandle<()>> {
    let spawned = std::thread::Builder::new()
        .name("resume the paused write".to_owned())
        .spawn(move || {
            let _ = is_done.recv_timeout(patience);
            is_resumed.store(true, Ordering::SeqCst);
            resume();
        });
    spawned.or_else(|error| broken(format!("no thread for the suite: {error}")))
}
