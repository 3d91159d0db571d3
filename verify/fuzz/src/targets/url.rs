//! The URL of a store, and what opening what it names does.

use std::path::{Component, Path, PathBuf};

use aster::lease::{ErrorKind, connect, connect_existing};
use aster::{InvalidUrl, StoreUrl};

use crate::control::Control;
use crate::targets::place::{Place, wait_for};
use crate::{Seen, Target, bounded, seen};

pub(super) const URL: Target = Target {
    name: "url",
    what: "store URLs: the path is taken byte for byte, everything else is refused for its reason",
    run: |data| url(data, StoreUrl::parse),
    bytes_max: 512,
    dictionary: include_str!("../../dictionaries/url.dict"),
    executions: 40_000,
};

pub(super) const CONNECT: Target = Target {
    name: "connect",
    what: "opening what a URL names: a store at exactly that path, or a typed error and no file",
    run: |data| open(data, false),
    bytes_max: 300,
    dictionary: include_str!("../../dictionaries/url.dict"),
    executions: 150,
};

pub(super) const CONTROLS: [Control; 3] = [
    Control {
        target: "url",
        rule: "nothing in a path is decoded",
        planted: "a parser that decodes %2F",
        run: |data| url(data, decodes),
    },
    Control {
        target: "url",
        rule: "a host is refused",
        planted: "a parser that takes a host for a directory",
        run: |data| url(data, takes_hosts),
    },
    Control {
        target: "connect",
        rule: "who only looks makes nothing",
        planted: "a look that makes the file",
        run: |data| open(data, true),
    },
];

/// The path that a URL means: what stands behind `sqlite:`, or behind `sqlite://` when that is absolute.
fn expected(url: &str) -> Option<Option<PathBuf>> {
    if url == "memory:" {
        return Some(None);
    }
    let rest = url.strip_prefix("sqlite:")?;
    let path = if rest.starts_with("//") {
        rest.strip_prefix("//")
            .filter(|path| path.starts_with('/'))?
    } else {
        rest
    };
    let is_refused = path.is_empty()
        || path.ends_with('/')
        || path.starts_with(":memory:")
        || path.bytes().any(|byte| matches!(byte, b'?' | 0));
    (!is_refused).then(|| Some(PathBuf::from(path)))
}

fn url(data: &[u8], parse: fn(&str) -> Result<StoreUrl, InvalidUrl>) -> Seen {
    let Ok(text) = std::str::from_utf8(data) else {
        return seen("no text");
    };
    let parsed = bounded(4 * data.len() + 1_024, || parse(text));
    let found = match &parsed {
        Ok(StoreUrl::Memory) => Some(None),
        Ok(StoreUrl::Sqlite(path)) => Some(Some(path.clone())),
        Ok(other) => panic!("{other:?}"),
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::FixCall);
            let shown = error.to_string();
            assert!(
                !shown.contains(|character: char| character.is_control()),
                "{shown}"
            );
            None
        }
    };
    assert_eq!(found, expected(text));
    if let Some(Some(path)) = &found {
        // However a path begins, there is a way to write it.
        let written = match path.is_absolute() {
            true => format!("sqlite://{}", path.display()),
            false => format!("sqlite:{}", path.display()),
        };
        assert_eq!(parse(&written), parsed);
    }
    match parsed {
        Ok(url) => seen(std::mem::discriminant(&url)),
        Err(InvalidUrl::Malformed { reason, .. }) => seen(reason),
        Err(error) => seen(std::mem::discriminant(&error)),
    }
}

/// Opens the relative path of a URL below a directory of its own.
fn open(data: &[u8], makes_what_it_looks_for: bool) -> Seen {
    let Ok(text) = std::str::from_utf8(data) else {
        return seen("no text");
    };
    let Ok(StoreUrl::Sqlite(named)) = StoreUrl::parse(text) else {
        return seen("no path");
    };
    // Never outside: a path may name anything.
    let is_inside = |part: Component<'_>| matches!(part, Component::Normal(_) | Component::CurDir);
    if !named.components().all(is_inside) {
        return seen("elsewhere");
    }
    let directory = Place::directory();
    // Byte for byte: joining paths would drop what has no meaning.
    let url = format!("sqlite:{}/{}", directory.path().display(), named.display());
    let path = directory.path().join(&named);
    let existing = match makes_what_it_looks_for {
        true => wait_for(connect(&url)).err(),
        false => wait_for(connect_existing(&url)).err(),
    };
    let error = existing.expect("there is no store yet");
    assert!(!error.to_string().is_empty());
    assert_eq!(
        files_in(directory.path()),
        0,
        "who only looks makes nothing"
    );
    match wait_for(connect(&url)) {
        Ok(store) => {
            drop(store);
            assert!(path.is_file(), "the store is at {path:?}");
            assert!(wait_for(connect_existing(&url)).is_ok());
            seen("opened")
        }
        Err(error) => {
            assert_eq!(files_in(directory.path()), 0, "{error} left something");
            seen((error.to_string().len() / 64, std::mem::discriminant(&error)))
        }
    }
}

fn files_in(directory: &Path) -> usize {
    std::fs::read_dir(directory).unwrap().count()
}

fn decodes(url: &str) -> Result<StoreUrl, InvalidUrl> {
    StoreUrl::parse(&url.replace("%2F", "/"))
}

fn takes_hosts(url: &str) -> Result<StoreUrl, InvalidUrl> {
    StoreUrl::parse(&url.replace("sqlite://h", "sqlite:///h"))
}
