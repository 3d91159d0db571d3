//! A resource of your own that keeps the lease row beside its data, behind one lock.
//!
//! `cargo run --example your_own_resource`
#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "an example shows what happens"
)]

// begin: uses
use std::collections::{BTreeMap, HashMap};
use std::error::Error;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use aster::lease::{
    AcquireOutcome, Authority, Clock, Effect, EntropyError, FenceRejection, FencedResource,
    GuardedResource, Judged, LeaseHandle, LeaseOp, LeaseOptions, LeaseSerializer, LeaseSnapshot,
    Moment, ResourceName, RowState, RowView, SerializerError, SystemClock, SystemEntropy,
    TransitionOutcome, TtlBounds, entropy, transition,
};
use async_trait::async_trait;
// end: uses

// begin: state
/// Documents by name. Each has its lease row beside it, and one lock guards both.
pub(crate) struct Documents {
    authority: Authority,
    clock: Arc<dyn Clock>,
    inner: Mutex<HashMap<ResourceName, Document>>,
}

#[derive(Default)]
struct Document {
    row: Option<RowState>,
    since: Option<Moment>,                  // the last grant or renewal
    hold_offs_since: BTreeMap<u64, Moment>, // whom revokes keep out: since when, by epoch
    text: Option<String>,                   // none until the first write
}
// end: state

impl Documents {
    /// No documents yet. `clock` judges expiry.
    pub(crate) fn new(clock: Arc<dyn Clock>) -> Result<Self, EntropyError> {
        Ok(Self {
            authority: entropy::authority(&SystemEntropy)?,
            clock,
            inner: Mutex::default(),
        })
    }

    /// What a document says.
    pub(crate) fn text(&self, name: &str) -> Option<String> {
        let documents = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        documents.get(name)?.text.clone()
    }
}

// begin: resource
impl GuardedResource for Documents {
    type Op = String;
    type Output = usize;
    type Error = FenceRejection;
    type State = Option<String>;

    /// Lock, load the row, run the step once. Everything that `step` does happens under the lock.
    fn with_row(
        &self,
        resource: &ResourceName,
        step: &mut dyn FnMut(&RowView<'_>, &mut Option<String>) -> Result<usize, FenceRejection>,
    ) -> Result<usize, FenceRejection> {
        let mut documents = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        let document = documents.entry(resource.clone()).or_default();
        let view = RowView {
            authority: self.authority,
            resource,
            floor: 0,
            row: document.row.as_ref(),
        };
        step(&view, &mut document.text)
    }

    /// The write. It is called only after the fence rule has passed, under the same lock.
    fn apply(&self, text: &mut Option<String>, op: String) -> Result<usize, FenceRejection> {
        let bytes = op.len();
        *text = Some(op);
        Ok(bytes)
    }
}
// end: resource

// begin: serializer
#[async_trait]
impl LeaseSerializer for Documents {
    async fn transition(
        &self,
        resource: &str,
        op: LeaseOp,
    ) -> Result<TransitionOutcome, SerializerError> {
        let resource = ResourceName::new(resource)?;
        let mut documents = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        let document = documents.entry(resource.clone()).or_default();
        // Read the clock under the lock, and never say "expired" too early.
        let now = self.clock.now();
        document.end_hold_offs(now);
        let judged = document.judged(now);
        let view = RowView {
            authority: self.authority,
            resource: &resource,
            floor: 0, // no row is ever dropped
            row: document.row.as_ref(),
        };
        let decision = transition(&view, &judged, &TtlBounds::default(), &op)?;
        match decision.effect {
            Effect::Keep => {}
            Effect::Rearm(row) | Effect::Replace(row) => document.store(row, now),
        }
        Ok(decision.outcome)
    }

    async fn snapshot(&self, resource: &str) -> Result<LeaseSnapshot, SerializerError> {
        let resource = ResourceName::new(resource)?;
        let documents = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        let document = documents.get(&resource);
        let view = RowView {
            authority: self.authority,
            resource: &resource,
            floor: 0,
            row: document.and_then(|document| document.row.as_ref()),
        };
        let remaining = document.and_then(|document| document.judged(self.clock.now()).remaining);
        Ok(view.snapshot(remaining))
    }
}

impl Document {
    fn judged(&self, now: Moment) -> Judged {
        let ttl = self.row.as_ref().and_then(|row| row.ttl());
        let left = |since| ttl.map(|ttl| ttl.duration().saturating_sub(now.since(since)));
        let remaining = self.since.and_then(left);
        Judged {
            expired: remaining == Some(Duration::ZERO),
            remaining,
        }
    }

    /// To the rules every hold-off runs, so drop those that have had their time before asking.
    fn end_hold_offs(&mut self, now: Moment) {
        let Some(row) = &mut self.row else { return };
        row.hold_offs.retain(|hold_off| {
            let since = self.hold_offs_since.get(&hold_off.epoch);
            since.is_none_or(|since| now.since(*since) < hold_off.duration)
        });
    }

    fn store(&mut self, row: RowState, now: Moment) {
        // A new hold-off begins now; the others keep their instants.
        let before = std::mem::take(&mut self.hold_offs_since);
        let since = |epoch| before.get(&epoch).copied().unwrap_or(now);
        let epochs = row.hold_offs.iter().map(|hold_off| hold_off.epoch);
        self.hold_offs_since = epochs.map(|epoch| (epoch, since(epoch))).collect();
        self.row = Some(row);
        self.since = Some(now);
    }
}
// end: serializer

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    // begin: use
    let documents = Arc::new(Documents::new(Arc::new(SystemClock::new()))?);
    let options = LeaseOptions::default();
    let outcome = LeaseHandle::acquire(documents.clone(), "readme", "editor-a", options).await?;
    let AcquireOutcome::Granted(lease) = outcome else {
        return Err("somebody else edits".into());
    };
    let fence = lease.fence().ok_or("the lease is over")?;
    documents
        .mutate(&fence, "editor-a", "first".to_owned())
        .await?;

    // The right fence in the wrong hands, and the right hands with an ended fence.
    let stolen = documents
        .mutate(&fence, "editor-b", "stolen".to_owned())
        .await;
    assert_eq!(stolen, Err(FenceRejection::NotHolder));
    lease.release().await?;
    let late = documents
        .mutate(&fence, "editor-a", "late".to_owned())
        .await;
    assert!(matches!(late, Err(FenceRejection::StaleEpoch { .. })));
    // end: use

    let text = documents.text("readme");
    assert_eq!(text.as_deref(), Some("first"));
    println!("the document says {text:?}");
    Ok(())
}
