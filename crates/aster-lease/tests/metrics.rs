//! What is counted, and that it stays bounded.

use aster_lease::Metrics;
use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry;

#[test]
fn look() {
    let mut registry = Registry::default();
    let metrics = Metrics::register(&mut registry);
    let _waiter = metrics.waiter();
    metrics.claim_lapsed();
    metrics.rejected(&aster_lease::FenceRejection::NotHeld);
    metrics.transition(
        "acquire",
        &Ok(aster_lease::TransitionOutcome::Renewed),
        metrics.timer(),
    );
    let mut text = String::new();
    encode(&mut text, &registry).unwrap();
    println!("{text}");
}
