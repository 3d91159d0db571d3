//! A resource with a bug, the suites that find it, and the resource without the bug.
//!
//! `cargo run --example test_your_own_resource`
#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    clippy::duplicate_mod,
    unreachable_pub,
    reason = "an example shows what happens, and its harness serves both resources"
)]

#[path = "."]
pub(crate) mod with_the_bug {
    pub(crate) mod harness;
    mod headlines;
}

#[path = "."]
pub(crate) mod mended {
    pub(crate) mod harness;
    #[path = "headlines_mended.rs"]
    mod headlines;
}

/// The cases of the race between the check and the write.
pub(crate) const CAUGHT_BY: [&str; 2] = [
    "a_paused_write_does_not_land_on_the_next_owner",
    "a_revoke_does_not_pass_a_paused_write",
];

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let report = with_the_bug::harness::report().await;
    println!("{report}");
    let failed: Vec<_> = report.failed().map(|case| case.name).collect();
    if failed != CAUGHT_BY {
        return Err("the planted bug was not found".into());
    }
    let report = mended::harness::report().await;
    println!("{report}");
    if report.failed().next().is_some() {
        return Err("the mended resource breaks a rule".into());
    }
    Ok(())
}
