//! The conformance suites, run on the resource that the guide builds.
#![allow(clippy::unwrap_used, reason = "this crate is all tests")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use aster::lease::{Clock, Fence, FencedResource, LeaseSerializer, Moment};
use aster_conformance::{Harness, Possible, Written, fenced_resource_suite, serializer_suite};
use async_trait::async_trait;

#[allow(dead_code, reason = "the example has a main of its own")]
#[path = "../examples/your_own_resource.rs"]
mod example;
use example::Documents;

/// A clock that moves when it is told to.
#[derive(Default)]
struct TestClock(AtomicU64);

impl Clock for TestClock {
    fn now(&self) -> Moment {
        let now = Duration::from_nanos(self.0.load(Ordering::SeqCst));
        Moment {
            monotonic: now,
            boot: now,
        }
    }
}

// begin: harness
struct DocumentsHarness {
    clock: Arc<TestClock>, // moves when it is told to
}

#[async_trait]
impl Harness for DocumentsHarness {
    type Store = Documents;

    async fn fresh(&self) -> Documents {
        Documents::new(self.clock.clone()).unwrap()
    }

    fn serializer<'a>(&self, store: &'a Documents) -> &'a dyn LeaseSerializer {
        store
    }

    async fn write(&self, store: &Documents, fence: &Fence, writer: &str, text: &str) -> Written {
        match store.mutate(fence, writer, text.to_owned()).await {
            Ok(_) => Written::Accepted,
            Err(rejection) => Written::Rejected(Some(rejection)),
        }
    }

    async fn read(&self, store: &Documents, resource: &str) -> Option<String> {
        store.text(resource)
    }

    async fn advance(&self, _: &Documents, by: Duration) -> Possible {
        let nanos = u64::try_from(by.as_nanos()).unwrap();
        self.clock.0.fetch_add(nanos, Ordering::SeqCst);
        Possible::Yes
    }
}

#[tokio::test]
async fn documents_keep_every_rule() {
    let harness = DocumentsHarness {
        clock: Arc::default(),
    };
    serializer_suite(&harness).await.assert_passed();
    fenced_resource_suite(&harness).await.assert_passed();
}
// end: harness
