//! A resource of the user's own: rows and data behind one lock, written with [`GuardedResource`], so
//! that the check cannot be forgotten or awaited past.
#![allow(clippy::unwrap_used, reason = "test code outside a #[test] function")]

mod support;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError, mpsc};

use aster_conformance::{Harness, PausedWrite, Written, fenced_resource_suite};
use aster_lease::{
    Authority, Effect, Fence, FenceRejection, FencedResource, GuardedResource, Judged, LeaseOp,
    LeaseSerializer, LeaseSnapshot, ResourceName, RowState, RowView, SerializerError,
    TransitionOutcome, TtlBounds, entropy, transition,
};
use async_trait::async_trait;
use support::on_a_thread;

/// A catalog whose lease rows live behind the same lock.
#[derive(Clone)]
struct Catalog {
    authority: Authority,
    inner: Arc<Mutex<Inner>>,
}

#[derive(Default)]
struct Inner {
    rows: BTreeMap<ResourceName, RowState>,
    entries: Entries,
}

type Entries = BTreeMap<String, String>;
type Write = Box<dyn FnOnce(&mut Entries) + Send>;

impl GuardedResource for Catalog {
    type Op = Write;
    type Output = ();
    type Error = FenceRejection;
    type State = Entries;

    fn with_row(
        &self,
        resource: &ResourceName,
        step: &mut dyn FnMut(&RowView<'_>, &mut Entries) -> Result<(), FenceRejection>,
    ) -> Result<(), FenceRejection> {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        let Inner { rows, entries } = &mut *inner;
        step(&view(self.authority, resource, rows), entries)
    }

    fn apply(&self, entries: &mut Entries, write: Write) -> Result<(), FenceRejection> {
        write(entries);
        Ok(())
    }
}

fn view<'a>(
    authority: Authority,
    resource: &'a ResourceName,
    rows: &'a BTreeMap<ResourceName, RowState>,
) -> RowView<'a> {
    RowView {
        authority,
        resource,
        floor: 0,
        row: rows.get(resource),
    }
}

/// As little of a serializer as the suite needs: nothing expires here.
#[async_trait]
impl LeaseSerializer for Catalog {
    async fn transition(
        &self,
        resource: &str,
        op: LeaseOp,
    ) -> Result<TransitionOutcome, SerializerError> {
        let resource = ResourceName::new(resource)?;
        let mut inner = self.inner.lock().unwrap();
        let view = view(self.authority, &resource, &inner.rows);
        let decision = transition(&view, &Judged::default(), &TtlBounds::default(), &op)?;
        if let Effect::Rearm(row) | Effect::Replace(row) = decision.effect {
            inner.rows.insert(resource, row);
        }
        Ok(decision.outcome)
    }

    async fn snapshot(&self, resource: &str) -> Result<LeaseSnapshot, SerializerError> {
        let resource = ResourceName::new(resource)?;
        let inner = self.inner.lock().unwrap();
        Ok(view(self.authority, &resource, &inner.rows).snapshot(None))
    }
}

struct Guarded;

fn outcome(result: Result<(), FenceRejection>) -> Written {
    match result {
        Ok(()) => Written::Accepted,
        Err(rejection) => Written::Rejected(Some(rejection)),
    }
}

#[async_trait]
impl Harness for Guarded {
    type Store = Catalog;

    async fn fresh(&self) -> Catalog {
        Catalog {
            authority: entropy::authority(&aster_lease::SystemEntropy).unwrap(),
            inner: Arc::default(),
        }
    }

    fn serializer<'a>(&self, store: &'a Catalog) -> &'a dyn LeaseSerializer {
        store
    }

    async fn write(&self, store: &Catalog, fence: &Fence, writer: &str, value: &str) -> Written {
        let (resource, value) = (fence.resource.to_string(), value.to_owned());
        let write: Write = Box::new(move |entries| {
            entries.insert(resource, value);
        });
        outcome(store.mutate(fence, writer, write).await)
    }

    async fn read(&self, store: &Catalog, resource: &str) -> Option<String> {
        store.inner.lock().unwrap().entries.get(resource).cloned()
    }

    async fn start_write(
        &self,
        store: &Catalog,
        fence: &Fence,
        writer: &str,
        value: &str,
    ) -> Option<PausedWrite> {
        let store = store.clone();
        let (fence, writer, value) = (fence.clone(), writer.to_owned(), value.to_owned());
        Some(on_a_thread(
            move |inside: mpsc::Sender<()>, go_on: mpsc::Receiver<()>| {
                let resource = fence.resource.to_string();
                let write: Write = Box::new(move |entries| {
                    inside.send(()).unwrap();
                    go_on.recv().unwrap();
                    entries.insert(resource, value);
                });
                let runtime = tokio::runtime::Builder::new_current_thread().build();
                outcome(
                    runtime
                        .unwrap()
                        .block_on(store.mutate(&fence, &writer, write)),
                )
            },
        ))
    }
}

#[tokio::test]
async fn a_guarded_resource_is_a_fenced_resource() {
    let report = fenced_resource_suite(&Guarded).await;
    report.assert_passed();
    let not_checked: Vec<_> = report.not_checked().map(|case| case.name).collect();
    assert!(
        !not_checked.contains(&"a_paused_write_does_not_land_on_the_next_owner"),
        "{report}"
    );
}

/// The same resource, its write driven as the guide shows for an async one: by a `Handle` on a thread
/// that may block.
struct OnTheRuntime;

#[async_trait]
impl Harness for OnTheRuntime {
    type Store = Catalog;

    async fn fresh(&self) -> Catalog {
        Guarded.fresh().await
    }

    fn serializer<'a>(&self, store: &'a Catalog) -> &'a dyn LeaseSerializer {
        store
    }

    async fn write(&self, store: &Catalog, fence: &Fence, writer: &str, value: &str) -> Written {
        Guarded.write(store, fence, writer, value).await
    }

    async fn read(&self, store: &Catalog, resource: &str) -> Option<String> {
        Guarded.read(store, resource).await
    }

    async fn start_write(
        &self,
        store: &Catalog,
        fence: &Fence,
        writer: &str,
        value: &str,
    ) -> Option<PausedWrite> {
        let (inside, is_inside) = mpsc::channel();
        let (go_on, may_go_on) = mpsc::channel();
        let (store, fence) = (store.clone(), fence.clone());
        let (writer, value) = (writer.to_owned(), value.to_owned());
        let runtime = tokio::runtime::Handle::current();
        let write = tokio::task::spawn_blocking(move || {
            runtime.block_on(async move {
                let resource = fence.resource.to_string();
                let write: Write = Box::new(move |entries| {
                    let _ = inside.send(());
                    let _ = may_go_on.recv();
                    entries.insert(resource, value);
                });
                outcome(store.mutate(&fence, &writer, write).await)
            })
        });
        let _ = is_inside.recv();
        Some(PausedWrite {
            resume: Box::new(move || {
                let _ = go_on.send(());
            }),
            outcome: Box::pin(async { write.await.unwrap_or(Written::NotPossible) }),
        })
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_write_on_the_runtime_can_be_paused() {
    let report = fenced_resource_suite(&OnTheRuntime).await;
    report.assert_passed();
    let paused = report
        .cases()
        .iter()
        .filter(|case| case.rule == aster_conformance::Rule::CheckAndWriteAreOneStep)
        .filter(|case| case.outcome == aster_conformance::Outcome::Passed);
    assert_eq!(paused.count(), 3, "{report}");
}

/// An implementation that runs the step twice must not write twice.
#[tokio::test]
async fn a_step_that_is_run_twice_writes_once() {
    struct Twice(Catalog);

    impl GuardedResource for Twice {
        type Op = Write;
        type Output = ();
        type Error = FenceRejection;
        type State = Entries;

        fn with_row(
            &self,
            resource: &ResourceName,
            step: &mut dyn FnMut(&RowView<'_>, &mut Entries) -> Result<(), FenceRejection>,
        ) -> Result<(), FenceRejection> {
            self.0.with_row(resource, step)?;
            self.0.with_row(resource, step)
        }

        fn apply(&self, entries: &mut Entries, write: Write) -> Result<(), FenceRejection> {
            self.0.apply(entries, write)
        }
    }

    let catalog = Guarded.fresh().await;
    let acquire = LeaseOp::Acquire {
        candidate: aster_lease::Principal::new("worker-a").unwrap(),
        ttl: aster_lease::Ttl::from_millis(30_000).unwrap(),
        grant_id: aster_lease::GrantId::from_bytes([1; 16]),
    };
    let granted = catalog
        .transition("catalog/current", acquire)
        .await
        .unwrap();
    let TransitionOutcome::Granted(fence) = granted else {
        panic!("a free resource is granted")
    };
    let write: Write = Box::new(|entries| {
        entries.entry("writes".to_owned()).or_default().push('|');
    });
    let twice = Twice(catalog.clone());
    let answer = twice.mutate(&fence, "worker-a", write).await;
    assert_eq!(answer, Err(FenceRejection::Reentrant));
    assert_eq!(Guarded.read(&catalog, "writes").await.as_deref(), Some("|"));
}
