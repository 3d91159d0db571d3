//! What must hold of a store whose files were damaged: it is refused and stays as it was, or it works and
//! nothing that counts goes back.

use std::path::Path;
use std::time::Duration;

use aster_core::{
    Authority, ExpectedRevision, GrantId, LeaseOp, Principal, TransitionOutcome, Ttl, WriteId,
};
use aster_lease::{
    AuditLog, AuditQuery, LeaseSerializer, ListQuery, RegisterError, Registers, SerializerError,
};
use aster_sqlite::{OpenError, SqliteSerializer};
use rusqlite::{Connection, OptionalExtension, ToSql};

use crate::targets::draw::RESOURCES;
use crate::targets::place::{TTL_MS, wait_for};

/// A number in a file, as SQLite itself finds it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Count {
    Is(i64),
    /// There is no such row.
    Absent,
    /// The file cannot be read there, or something else stands in its place.
    Unreadable,
}

/// What counts, read with plain SQL.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Counts {
    /// Who issues its epochs; none in a file that holds no store.
    pub(crate) authority: Option<Authority>,
    pub(crate) floor: Count,
    pub(crate) sequence: Count,
    pub(crate) epochs: [Count; 4],
    pub(crate) value_revisions: [Count; 4],
}

impl Counts {
    /// Of the main file at `path`, and its log.
    pub(crate) fn read(path: &Path) -> Self {
        let connection = Connection::open(path).unwrap();
        let count = |sql: &str, resource: Option<&str>| {
            let parameters: Vec<&dyn ToSql> = resource.iter().map(|it| it as &dyn ToSql).collect();
            let found = connection.query_row(sql, &*parameters, |row| row.get::<_, i64>(0));
            match found.optional() {
                Ok(Some(count)) => Count::Is(count),
                Ok(None) => Count::Absent,
                Err(_) => Count::Unreadable,
            }
        };
        let of_each = |sql: &str| RESOURCES.map(|resource| count(sql, Some(resource)));
        let authority = connection.query_row(
            "SELECT authority FROM aster_store WHERE one = 1",
            [],
            |row| row.get(0),
        );
        Self {
            authority: authority.ok().map(Authority::from_bytes),
            floor: count("SELECT floor FROM aster_store WHERE one = 1", None),
            sequence: count("SELECT sequence FROM aster_store WHERE one = 1", None),
            epochs: of_each("SELECT epoch FROM aster_rows WHERE resource = ?1"),
            value_revisions: of_each(
                "SELECT value_revision FROM aster_registers WHERE resource = ?1",
            ),
        }
    }

    /// Nothing has become less, and nothing that was there is gone.
    pub(crate) fn assert_not_below(&self, before: &Self) {
        let pairs = [(before.floor, self.floor), (before.sequence, self.sequence)];
        let pairs = pairs.into_iter();
        let pairs = pairs.chain(before.epochs.into_iter().zip(self.epochs));
        let pairs = pairs.chain(before.value_revisions.into_iter().zip(self.value_revisions));
        for (before, after) in pairs {
            let is_less = match (before, after) {
                (Count::Is(before), Count::Is(after)) => after < before,
                // A free row may be dropped, behind the floor.
                (Count::Is(before), Count::Absent) => {
                    !matches!(self.floor, Count::Is(floor) if floor >= before)
                }
                _ => false,
            };
            assert!(!is_less, "{before:?} became {after:?}: {before:?} {self:?}");
        }
    }
}

/// A refusal has a kind and says something, and nothing in it was a panic.
pub(crate) fn assert_typed(error: &SerializerError) -> String {
    let _ = error.kind();
    assert!(
        !matches!(error, SerializerError::Unexpected { .. }),
        "{error}"
    );
    short(&error.to_string())
}

/// The same for an opening.
pub(crate) fn assert_open_error(error: &OpenError) -> String {
    let _ = error.kind();
    short(&error.to_string())
}

/// The words of an error without what differs from run to run.
fn short(text: &str) -> String {
    assert!(!text.is_empty());
    let kept = text.chars().filter(|character| !character.is_ascii_digit());
    kept.take(160).collect()
}

/// Uses everything that a store offers, and says in short what it answered.
pub(crate) fn use_store(store: &SqliteSerializer, before: &Counts) -> Vec<String> {
    let mut answers = Vec::new();
    for (at, resource) in RESOURCES.into_iter().enumerate() {
        answers.push(match wait_for(store.snapshot(resource)) {
            Ok(snapshot) => format!("{}", snapshot.held),
            Err(error) => assert_typed(&error),
        });
        if let Err(error) = wait_for(Registers::read(store, resource)) {
            assert_typed(&error);
        }
        let op = LeaseOp::Acquire {
            candidate: Principal::new("worker-c").unwrap(),
            ttl: Ttl::from_millis(TTL_MS).unwrap(),
            grant_id: GrantId::from_bytes([0x40 + at as u8; 16]),
        };
        answers.push(match wait_for(store.transition(resource, op)) {
            Ok(TransitionOutcome::Granted(fence)) => {
                assert_above(&fence.epoch, before.floor, before.epochs[at]);
                use_fence(store, &fence)
            }
            Ok(TransitionOutcome::Denied(reason, _)) => reason.name().to_owned(),
            Ok(other) => panic!("{other:?}"),
            Err(error) => assert_typed(&error),
        });
    }
    answers.push(match wait_for(store.list(ListQuery::default())) {
        Ok(rows) => rows.len().to_string(),
        Err(error) => assert_typed(&error),
    });
    answers.push(match wait_for(store.audit(AuditQuery::default())) {
        Ok(records) => (records.len() / 8).to_string(),
        Err(error) => assert_typed(&error),
    });
    answers.push(match wait_for(store.queue("catalog")) {
        Ok(waiters) => waiters.len().to_string(),
        Err(error) => assert_typed(&error),
    });
    answers
}

/// A granted epoch was never given before, as far as the file can tell; where it cannot, nothing is granted.
fn assert_above(granted: &u64, floor: Count, epoch: Count) {
    let Count::Is(floor) = floor else {
        panic!("epoch {granted} was granted above a floor that is {floor:?}");
    };
    assert!(
        floor >= 0,
        "epoch {granted} was granted above a floor of {floor}"
    );
    let above = match epoch {
        Count::Is(epoch) => {
            assert!(
                epoch >= 0,
                "epoch {granted} was granted above one of {epoch}"
            );
            epoch
        }
        Count::Absent => floor,
        Count::Unreadable => panic!("epoch {granted} was granted above one that cannot be read"),
    };
    assert!(
        *granted > above.unsigned_abs(),
        "{granted} is not above {above}"
    );
}

fn use_fence(store: &SqliteSerializer, fence: &aster_core::Fence) -> String {
    let mut answers = String::from("granted");
    let written = store.compare_and_set_with_id(
        fence,
        "worker-c",
        ExpectedRevision::Any,
        vec![1],
        WriteId::from_bytes([0x50; 16]),
    );
    match wait_for(written) {
        Ok(_) => {}
        Err(RegisterError::Store(error)) => answers += &assert_typed(&error),
        Err(other) => answers += &other.to_string(),
    }
    let (holder, epoch) = (fence.holder.clone(), fence.epoch);
    for op in [
        LeaseOp::Renew {
            holder: holder.clone(),
            epoch,
        },
        LeaseOp::Release { holder, epoch },
    ] {
        match wait_for(store.transition(&fence.resource, op)) {
            Ok(outcome) => answers += &format!("{:?}", std::mem::discriminant(&outcome)),
            Err(error) => answers += &assert_typed(&error),
        }
    }
    answers
}

/// How often a store is asked while its side file is made anew, and how long it is left alone in between.
const ASKS_MAX: u32 = 400;
const PAUSE: Duration = Duration::from_millis(5);

/// Whatever was in its side file, a store grants again.
pub(crate) fn assert_serves(store: &SqliteSerializer) {
    let mut said = String::new();
    for ask in 0..ASKS_MAX {
        let op = LeaseOp::Acquire {
            candidate: Principal::new("worker-b").unwrap(),
            ttl: Ttl::from_millis(TTL_MS).unwrap(),
            grant_id: GrantId::from_bytes(u128::from(ask).to_be_bytes()),
        };
        match wait_for(store.transition("another", op)) {
            Ok(_) => return,
            Err(error) => said = assert_typed(&error),
        }
        std::thread::sleep(PAUSE);
    }
    panic!("a damaged side file ends the service: {said}");
}
