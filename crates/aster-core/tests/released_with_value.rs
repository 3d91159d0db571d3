//! A `release_with_value` that comes again is recognized, and nothing else is taken for one
//! (specification, "Handle lease loss": release advances the fence).

use aster_core::{RegisterState, WriteId, already_released};

const EPOCH: u64 = 5;
const WRITE: WriteId = WriteId::from_bytes([1; 16]);
const OTHER_WRITE: WriteId = WriteId::from_bytes([2; 16]);

fn register(write_id: WriteId) -> RegisterState {
    RegisterState {
        value_revision: 9,
        write_id,
    }
}

#[test]
fn the_last_write_of_an_epoch_that_is_over_is_answered_with_its_revision() {
    for row_epoch in [EPOCH + 1, EPOCH + 2, u64::MAX] {
        let answer = already_released(Some(&register(WRITE)), EPOCH, row_epoch, EPOCH, WRITE);
        assert_eq!(answer, Some(9), "the row is at {row_epoch}");
    }
}

#[test]
fn what_is_no_retry_of_it_is_not_recognized() {
    let written = register(WRITE);
    // The register, the epoch that wrote it, the row's epoch, the fence's epoch, the write.
    for (what, register, current_epoch, row_epoch, carried_epoch, write_id) in [
        ("nothing was written", None, EPOCH, EPOCH + 1, EPOCH, WRITE),
        (
            "another write",
            Some(&written),
            EPOCH,
            EPOCH + 1,
            EPOCH,
            OTHER_WRITE,
        ),
        (
            "written before, by an older epoch",
            Some(&written),
            EPOCH - 1,
            EPOCH + 1,
            EPOCH,
            WRITE,
        ),
        (
            "written since, by a newer epoch",
            Some(&written),
            EPOCH + 1,
            EPOCH + 2,
            EPOCH,
            WRITE,
        ),
        (
            "the epoch is not over: nothing was released",
            Some(&written),
            EPOCH,
            EPOCH,
            EPOCH,
            WRITE,
        ),
        (
            "the row is behind the fence",
            Some(&written),
            EPOCH,
            EPOCH - 1,
            EPOCH,
            WRITE,
        ),
        (
            "of no epoch that is over",
            Some(&written),
            EPOCH + 1,
            EPOCH,
            EPOCH,
            WRITE,
        ),
    ] {
        let answer = already_released(register, current_epoch, row_epoch, carried_epoch, write_id);
        assert_eq!(answer, None, "{what}");
    }
}
