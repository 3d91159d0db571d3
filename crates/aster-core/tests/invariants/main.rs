//! The rules of ownership as invariants over random histories, one invariant a file.
//!
//! [`harness`] makes the histories and runs them through a model store that calls the core. Each
//! other file states one rule, checks it against the truth that the harness keeps on its own, and
//! has controls: with that one rule broken on purpose, the check must find a violation.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "this crate is all tests"
)]

mod harness;

mod absent_row_is_free_at_the_floor;
mod denials_in_order;
mod ended_is_already_ended;
mod epochs_strictly_increase;
mod exhaustion_is_explicit;
mod free_or_expired_is_granted;
mod grant_id_is_granted_once;
mod grant_is_the_lock;
mod high_water_mark;
mod hold_off;
mod no_change_without_success;
mod no_epoch_in_vain;
mod only_the_owner_writes;
mod ownership_ends_at_a_transition;
mod registers;
mod rejections_in_order;
mod retried_acquire_finds_its_grant;
mod revision_grows;
mod ttl_is_kept;
