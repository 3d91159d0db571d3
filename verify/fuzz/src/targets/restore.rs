//! A backup, and a file to adopt, with anything in them.

use std::path::Path;

use aster_core::Principal;
use aster_lease::LeaseSerializer;
use aster_sqlite::{Adopted, OpenError, SqliteOptions, SqliteSerializer};
use rusqlite::Connection;

use crate::control::Control;
use crate::targets::draw::Draw;
use crate::targets::edits::{change_bytes, change_values};
use crate::targets::place::{Form, Place, options, put_at, wait_for};
use crate::targets::store::{Counts, assert_open_error, use_store};
use crate::{Seen, Target, seen};

pub(super) const BACKUP: Target = Target {
    name: "backup",
    what: "restoring a damaged backup: it is only read, and there is a whole new store or nothing",
    run: |data| backup(data, restore),
    bytes_max: 128,
    dictionary: include_str!("../../dictionaries/numbers.dict"),
    executions: 120,
};

pub(super) const ADOPT: Target = Target {
    name: "adopt",
    what: "adopting a damaged file: a new authority above every epoch of the file, or a file as it was",
    run: |data| adopt(data, adopt_with),
    bytes_max: 128,
    dictionary: include_str!("../../dictionaries/numbers.dict"),
    executions: 120,
};

pub(super) const CONTROLS: [Control; 3] = [
    Control {
        target: "backup",
        rule: "a backup is only read",
        planted: "a restore that opens the backup for writing",
        run: |data| backup(data, writes_to_the_backup),
    },
    Control {
        target: "backup",
        rule: "a restore that fails leaves nothing",
        planted: "a restore that copies before it looks",
        run: |data| backup(data, copies_first),
    },
    Control {
        target: "adopt",
        rule: "epochs never go back",
        planted: "an adoption that numbers its rows anew",
        run: |data| adopt(data, numbers_anew),
    },
];

type Restore = fn(&Path, &Path, &Principal, &SqliteOptions) -> Result<Adopted, OpenError>;

fn restore(
    backup: &Path,
    to: &Path,
    operator: &Principal,
    options: &SqliteOptions,
) -> Result<Adopted, OpenError> {
    SqliteSerializer::restore_with(backup, to, operator, options)
}

fn operator() -> Principal {
    Principal::new("operator").unwrap()
}

fn backup(data: &[u8], restore: Restore) -> Seen {
    Place::with(|place| {
        place.tidy();
        let mut draw = Draw::new(data);
        let backup = place.beside("backup.db");
        let to = place.beside("restored.db");
        let mut contents = [Some(place.backup().to_vec())];
        if draw.coin() {
            std::fs::write(&backup, place.backup()).unwrap();
            change_values(&mut draw, &backup, None);
        } else {
            change_bytes(&mut draw, &mut contents);
            std::fs::write(&backup, contents[0].as_ref().unwrap()).unwrap();
        }
        let there = std::fs::read(&backup).unwrap();
        let copy = place.beside("copy.db");
        put_at(&copy, &[Some(there.clone()), None, None, None]);
        let before = Counts::read(&copy);
        let (options, _) = options(2_000);
        let restored = restore(&backup, &to, &operator(), &options);
        assert!(
            std::fs::read(&backup).unwrap() == there,
            "a backup is only read"
        );
        let answers = match restored {
            Err(error) => {
                let left: Vec<_> = std::fs::read_dir(to.parent().unwrap())
                    .unwrap()
                    .map(|entry| entry.unwrap().file_name())
                    .filter(|name| name.to_string_lossy().starts_with("restored"))
                    .collect();
                assert!(left.is_empty(), "{error}, and {left:?} is left");
                vec![assert_open_error(&error)]
            }
            Ok(adopted) => check_adopted(&to, adopted, &before, &options),
        };
        seen(answers)
    })
}

/// What was adopted has another authority, and counts on from where the file was.
fn check_adopted(
    path: &Path,
    adopted: Adopted,
    before: &Counts,
    options: &SqliteOptions,
) -> Vec<String> {
    assert_ne!(adopted.authority, adopted.previous_authority);
    match SqliteSerializer::open_with(path, options.clone()) {
        Ok(store) => {
            assert_eq!(wait_for(store.authority()).ok(), Some(adopted.authority));
            let answers = use_store(&store, before);
            drop(store);
            Counts::read(path).assert_not_below(before);
            answers
        }
        Err(error) => vec![assert_open_error(&error)],
    }
}

type Adopt = fn(&Path, &Principal, &SqliteOptions) -> Result<Adopted, OpenError>;

fn adopt_with(
    path: &Path,
    operator: &Principal,
    options: &SqliteOptions,
) -> Result<Adopted, OpenError> {
    SqliteSerializer::adopt_with(path, operator, options)
}

fn adopt(data: &[u8], adopt: Adopt) -> Seen {
    Place::with(|place| {
        place.tidy();
        let mut draw = Draw::new(data);
        if draw.coin() {
            place.put(place.contents(draw.one_of(&[Form::Closed, Form::Loose])));
            change_values(&mut draw, place.path(), None);
        } else {
            let mut contents = place.contents(Form::Closed).clone();
            change_bytes(&mut draw, &mut contents);
            place.put(&contents);
        }
        let there = place.read();
        let copy = place.beside("copy.db");
        put_at(&copy, &there);
        let before = Counts::read(&copy);
        let (options, _) = options(3_000);
        let answers = match adopt(place.path(), &operator(), &options) {
            Err(error) => {
                assert!(
                    there[0] == place.read()[0],
                    "refused ({error}), and changed"
                );
                vec![assert_open_error(&error)]
            }
            Ok(adopted) => check_adopted(place.path(), adopted, &before, &options),
        };
        seen(answers)
    })
}

fn writes_to_the_backup(
    backup: &Path,
    to: &Path,
    operator: &Principal,
    options: &SqliteOptions,
) -> Result<Adopted, OpenError> {
    if let Ok(connection) = Connection::open(backup) {
        let _ = connection.pragma_update(None, "journal_mode", "WAL");
        let _ = connection.execute_batch("CREATE TABLE IF NOT EXISTS restoring (one)");
    }
    restore(backup, to, operator, options)
}

fn copies_first(
    backup: &Path,
    to: &Path,
    operator: &Principal,
    options: &SqliteOptions,
) -> Result<Adopted, OpenError> {
    restore(backup, to, operator, options).inspect_err(|_| {
        let _ = std::fs::copy(backup, to);
    })
}

fn numbers_anew(
    path: &Path,
    operator: &Principal,
    options: &SqliteOptions,
) -> Result<Adopted, OpenError> {
    let adopted = adopt_with(path, operator, options)?;
    let connection = Connection::open(path).unwrap();
    let _ = connection.execute("UPDATE aster_rows SET epoch = 1", []);
    Ok(adopted)
}
