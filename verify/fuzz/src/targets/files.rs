//! The files of a store with anything in them: values in columns, and bytes.

use std::path::Path;

use aster_sqlite::{OpenError, SqliteOptions, SqliteSerializer};
use rusqlite::Connection;

use crate::control::Control;
use crate::targets::draw::Draw;
use crate::targets::edits::{blobs_to_text, change_bytes, change_values};
use crate::targets::place::{Form, Place, TTL_MS, beside, options, put_at};
use crate::targets::store::{Counts, assert_open_error, assert_serves, use_store};
use crate::{Seen, Target, seen};

pub(super) const ROWS: Target = Target {
    name: "rows",
    what: "any value of any type in any column of the store and its side file: refused and left as it \
           was, or served without an epoch, a revision or the floor going back",
    run: |data| rows(data, open),
    bytes_max: 256,
    dictionary: include_str!("../../dictionaries/numbers.dict"),
    executions: 250,
};

pub(super) const BYTES: Target = Target {
    name: "bytes",
    what: "flipped, cut and moved bytes in the store's files and logs: the same",
    run: |data| bytes(data, open),
    bytes_max: 128,
    dictionary: include_str!("../../dictionaries/numbers.dict"),
    executions: 250,
};

pub(super) const CONTROLS: [Control; 5] = [
    Control {
        target: "rows",
        rule: "a damaged floor is refused",
        planted: "a store that reads a negative floor as zero",
        run: |data| rows(data, floors_at_zero),
    },
    Control {
        target: "rows",
        rule: "epochs never go back",
        planted: "a store that starts anew where it cannot read a row",
        run: |data| rows(data, drops_the_unreadable),
    },
    Control {
        target: "rows",
        rule: "nothing of ours panics",
        planted: "a store that takes a row for readable",
        run: |data| rows(data, expects),
    },
    Control {
        target: "bytes",
        rule: "a refused file stays as it was",
        planted: "a store that writes before it looks",
        run: |data| bytes(data, writes_first),
    },
    Control {
        target: "bytes",
        rule: "nothing of ours panics",
        planted: "a store that takes a file for sound",
        run: |data| bytes(data, expects),
    },
];

type Open = fn(&Path, SqliteOptions) -> Result<SqliteSerializer, OpenError>;

fn open(path: &Path, options: SqliteOptions) -> Result<SqliteSerializer, OpenError> {
    SqliteSerializer::open_with(path, options)
}

fn rows(data: &[u8], open: Open) -> Seen {
    Place::with(|place| {
        place.tidy();
        let mut draw = Draw::new(data);
        let form = draw.one_of(&[Form::Loose, Form::Closed]);
        let advance_ms = draw.one_of(&[0, TTL_MS + 1]);
        place.put(place.contents(form));
        if draw.below(8) == 7 {
            blobs_to_text(&mut draw, place.path());
        }
        change_values(
            &mut draw,
            place.path(),
            Some(&beside(place.path(), "-aster")),
        );
        check(place, form, open, advance_ms)
    })
}

fn bytes(data: &[u8], open: Open) -> Seen {
    Place::with(|place| {
        place.tidy();
        let mut draw = Draw::new(data);
        let form = draw.one_of(&[Form::Closed, Form::WithLogs]);
        let advance_ms = draw.one_of(&[0, TTL_MS + 1]);
        let mut contents = place.contents(form).clone();
        change_bytes(&mut draw, &mut contents);
        place.put(&contents);
        check(place, form, open, advance_ms)
    })
}

/// Opens the store at `place`, uses it and looks at what it left.
fn check(place: &Place, form: Form, open: Open, advance_ms: u64) -> Seen {
    let there = place.read();
    // The main file and its log are as the store left them.
    let is_side_alone = there[..2] == place.contents(form)[..2];
    // Looking with SQLite writes too, so it looks at a copy.
    let counts = |contents| {
        let copy = place.beside("copy.db");
        put_at(&copy, contents);
        Counts::read(&copy)
    };
    let before = counts(&there);
    let (options, time) = options(1_000);
    let answers = match open(place.path(), options) {
        Err(error) => {
            // What it says of how far the main file had come is believed: a restored file is told by it.
            let is_witnessed = matches!(error, OpenError::WentBack { .. });
            assert!(
                !is_side_alone || is_witnessed,
                "the side file may be lost: {error}"
            );
            let after = place.read();
            // Damage that SQLite meets only later: by then its log may be folded back and revisions raised.
            let is_met_late =
                matches!(error, OpenError::Damaged { .. } | OpenError::Storage { .. })
                    && (form == Form::WithLogs || before.authority.is_some());
            match is_met_late {
                true => counts(&after).assert_not_below(&before),
                false => assert!(
                    there[0] == after[0],
                    "refused ({error}), and the file was changed"
                ),
            }
            vec![assert_open_error(&error)]
        }
        Ok(store) => {
            time.advance_ms(advance_ms);
            if before.authority != Some(store.store_authority()) {
                // Nothing of the old store can be read, so this is a new one: none of its fences passes.
                assert_eq!(before.authority, None);
                assert_ne!(store.store_authority(), place.authority());
                return seen("a new store");
            }
            let answers = use_store(&store, &before);
            if is_side_alone {
                assert_serves(&store);
            }
            drop(store);
            counts(&place.read()).assert_not_below(&before);
            answers
        }
    };
    seen(answers)
}

fn floors_at_zero(path: &Path, options: SqliteOptions) -> Result<SqliteSerializer, OpenError> {
    let damaged = Connection::open(path).unwrap();
    let _ = damaged.execute("UPDATE aster_store SET floor = 0 WHERE floor < 0", []);
    drop(damaged);
    open(path, options)
}

fn drops_the_unreadable(
    path: &Path,
    options: SqliteOptions,
) -> Result<SqliteSerializer, OpenError> {
    let damaged = Connection::open(path).unwrap();
    let sql = "DELETE FROM aster_rows WHERE ttl_ms <= 0 OR typeof(era) <> 'blob' OR hold_offs > 1";
    let _ = damaged.execute(sql, []);
    drop(damaged);
    open(path, options)
}

fn expects(path: &Path, options: SqliteOptions) -> Result<SqliteSerializer, OpenError> {
    match open(path, options) {
        Err(error @ (OpenError::Damaged { .. } | OpenError::Storage { .. })) => panic!("{error}"),
        opened => opened,
    }
}

fn writes_first(path: &Path, options: SqliteOptions) -> Result<SqliteSerializer, OpenError> {
    if let Ok(eager) = Connection::open(path) {
        let _ = eager.pragma_update(None, "user_version", 7);
    }
    open(path, options)
}
