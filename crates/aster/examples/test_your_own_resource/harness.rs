//! How the suites drive the resource.

use super::headlines::Headlines;

// begin: harness
use aster::lease::{Fence, FenceRejection, LeaseSerializer};
use aster_conformance::{Harness, Written, fenced_resource_suite};
use async_trait::async_trait;

struct HeadlinesHarness;

fn written(result: Result<(), FenceRejection>) -> Written {
    match result {
        Ok(()) => Written::Accepted,
        Err(rejection) => Written::Rejected(Some(rejection)),
    }
}

#[async_trait]
impl Harness for HeadlinesHarness {
    type Store = Headlines;

    async fn fresh(&self) -> Headlines {
        Headlines::default()
    }

    fn serializer<'a>(&self, store: &'a Headlines) -> &'a dyn LeaseSerializer {
        &store.leases
    }

    async fn write(&self, store: &Headlines, fence: &Fence, writer: &str, text: &str) -> Written {
        written(store.set(fence, writer, || text.to_owned()))
    }

    async fn read(&self, store: &Headlines, page: &str) -> Option<String> {
        store.get(page)
    }
    // end: harness

    // begin: pause
    async fn start_write(
        &self,
        store: &Headlines,
        fence: &Fence,
        writer: &str,
        text: &str,
    ) -> Option<aster_conformance::PausedWrite> {
        let (inside, is_inside) = std::sync::mpsc::channel();
        let (go_on, may_go_on) = std::sync::mpsc::channel();
        let (store, fence) = (store.clone(), fence.clone());
        let (writer, text) = (writer.to_owned(), text.to_owned());
        let write = tokio::task::spawn_blocking(move || {
            written(store.set(&fence, &writer, || {
                let _ = inside.send(()); // here it stands still …
                let _ = may_go_on.recv(); // … until the suite lets it go on
                text
            }))
        });
        let _ = is_inside.recv(); // an error: it was refused before it came so far
        Some(aster_conformance::PausedWrite {
            resume: Box::new(move || {
                let _ = go_on.send(());
            }),
            outcome: Box::pin(async { write.await.unwrap_or(Written::NotPossible) }),
        })
    }
    // end: pause
}

pub(crate) async fn report() -> aster_conformance::Report {
    fenced_resource_suite(&HeadlinesHarness).await
}
