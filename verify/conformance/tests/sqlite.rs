//! The SQLite store on the suites, in one process.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "test code outside a #[test] function"
)]

mod support;

use aster_conformance::{fenced_resource_suite, registers_suite, serializer_suite};
use support::sqlite_file::{Sqlite, WITH_OPEN_REQUESTS};

#[tokio::test]
async fn the_sqlite_store_is_a_serializer() {
    let harness = Sqlite {
        is_clock_named: true,
    };
    serializer_suite(&harness)
        .await
        .assert_all_checked_but(WITH_OPEN_REQUESTS);
}

/// Each opening reads a clock that no other knows: rows of an earlier one are judged by watching.
#[tokio::test]
async fn the_sqlite_store_that_judges_by_watching_is_a_serializer() {
    let harness = Sqlite {
        is_clock_named: false,
    };
    serializer_suite(&harness)
        .await
        .assert_all_checked_but(WITH_OPEN_REQUESTS);
}

#[tokio::test]
async fn the_sqlite_store_is_a_fenced_resource() {
    let harness = Sqlite {
        is_clock_named: true,
    };
    fenced_resource_suite(&harness).await.assert_all_checked();
}

#[tokio::test]
async fn the_sqlite_store_has_registers() {
    let harness = Sqlite {
        is_clock_named: true,
    };
    registers_suite(&harness).await.assert_all_checked();
}
