//! The memory store on the suites.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "test code outside a #[test] function"
)]

mod support;

use aster_conformance::{fenced_resource_suite, registers_suite, serializer_suite};
use support::memory::Memory;

#[tokio::test]
async fn the_memory_store_is_a_serializer() {
    serializer_suite(&Memory).await.assert_all_checked();
}

#[tokio::test]
async fn the_memory_store_is_a_fenced_resource() {
    fenced_resource_suite(&Memory).await.assert_all_checked();
}

#[tokio::test]
async fn the_memory_store_has_registers() {
    registers_suite(&Memory).await.assert_all_checked();
}
