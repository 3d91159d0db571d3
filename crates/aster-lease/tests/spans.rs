//! What can be followed in `tracing`: each operation has its span, and nothing secret is in any of them.

#![allow(clippy::unwrap_used, reason = "helpers of tests may panic")]

mod support;

use std::io::Write;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use aster_lease::{
    AcquireOutcome, ExpectedRevision, GrantId, LeaseHandle, MemorySerializer, Registers, WriteId,
};
use support::{RESOURCE, TTL, options};
use tracing_subscriber::fmt::format::FmtSpan;

const GRANT: u8 = 0xc5;
const WRITE: u8 = 0xd6;
const VALUE: &str = "the-value-itself";

/// What was logged.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Log {
    fn text(&self) -> String {
        String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
    }
}

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[tokio::test(start_paused = true)]
async fn every_operation_has_a_span_and_no_span_tells_an_id_or_a_value() {
    let log = Log::default();
    let writer = log.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(tracing::Level::TRACE)
        .with_span_events(FmtSpan::NEW)
        .with_ansi(false)
        .with_writer(move || writer.clone())
        .finish();
    let _default = tracing::subscriber::set_default(subscriber);

    let store = Arc::new(MemorySerializer::new());
    let build = |holder| {
        LeaseHandle::builder(store.clone(), RESOURCE, holder)
            .options(options())
            .grant_id(GrantId::from_bytes([GRANT; 16]))
    };
    let granted = build("a").acquire().await.unwrap();
    let AcquireOutcome::Granted(lease) = granted else {
        panic!("{granted:?}");
    };
    let fence = lease.fence().unwrap();
    store
        .mutate_fenced(&fence, "a", || tracing::info!("inside the closure"))
        .unwrap();
    store
        .compare_and_set_with_id(
            &fence,
            "a",
            ExpectedRevision::Any,
            VALUE.into(),
            WriteId::from_bytes([WRITE; 16]),
        )
        .await
        .unwrap();
    tokio::time::sleep(TTL / 2).await;
    let waited = build("b").acquire_wait(Duration::from_millis(1)).await;
    assert!(matches!(waited, Ok(AcquireOutcome::Denied(..))));
    lease.release().await.unwrap();
    store.mutate_fenced(&fence, "a", || ()).unwrap_err();

    let text = log.text();
    for span in [
        "acquire",
        "acquire_wait",
        "renewals",
        "release",
        "protected_write",
    ] {
        let opened = text.lines().any(|line| line.contains(&format!("{span}{{")));
        assert!(opened, "no span {span}: {text}");
    }
    let inside = text
        .lines()
        .find(|line| line.contains("inside the closure"));
    assert!(inside.unwrap().contains("protected_write{"), "{text}");
    for secret in [
        GrantId::from_bytes([GRANT; 16]).to_string(),
        WriteId::from_bytes([WRITE; 16]).to_string(),
        VALUE.to_owned(),
    ] {
        assert!(!text.contains(&secret), "{secret} is in the log: {text}");
    }
}
