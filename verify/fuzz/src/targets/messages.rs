//! What processes of ours tell each other: the socket of a run, the guard's pipe, the demo's workers, the
//! identity file, the wake-up datagrams of stores.

use std::fs::Permissions;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use aster_cli::fuzz as door;
use aster_core::ResourceName;

use crate::control::Control;
use crate::targets::place::Place;
use crate::{Seen, Target, bounded, seen};

pub(super) const FRAMES: Target = Target {
    name: "frames",
    what: "requests and answers on a run's socket: bounded before they are believed, and the same again",
    run: |data| frames(data, &SOCKET),
    bytes_max: 4_096,
    dictionary: include_str!("../../dictionaries/frames.dict"),
    executions: 40_000,
};

pub(super) const ORDERS: Target = Target {
    name: "orders",
    what: "the pipe of a run's guard: nonsense is ignored, no group but a run's own is ever killed",
    run: |data| orders(data, door::orders),
    bytes_max: 2_048,
    dictionary: include_str!("../../dictionaries/orders.dict"),
    executions: 40_000,
};

pub(super) const IDENTITY: Target = Target {
    name: "identity",
    what: "the identity file: one line of one form, everything else is refused and left alone",
    run: |data| identity(data, door::identity),
    bytes_max: 300,
    dictionary: include_str!("../../dictionaries/identity.dict"),
    executions: 4_000,
};

pub(super) const WAKE: Target = Target {
    name: "wake",
    what: "datagrams to a store's socket: only whole valid names are heard",
    run: |data| wake(data, aster_sqlite::fuzz::hear),
    bytes_max: 2_048,
    dictionary: include_str!("../../dictionaries/names.dict"),
    executions: 3_000,
};

pub(super) const CONTROLS: [Control; 6] = [
    Control {
        target: "frames",
        rule: "lengths are checked before anything is allocated",
        planted: "a reader that trusts the length of the body",
        run: |data| frames(data, &TRUSTING),
    },
    Control {
        target: "frames",
        rule: "what is read is written the same again",
        planted: "a reader that loses the end of the body",
        run: |data| frames(data, &LOSING),
    },
    Control {
        target: "orders",
        rule: "no group but a run's own is killed",
        planted: "a group that is taken as it is told",
        run: |data| orders(data, any_group),
    },
    Control {
        target: "orders",
        rule: "a path is whole pairs of hexadecimal digits",
        planted: "digits that may have a sign",
        run: |data| orders(data, signed_path),
    },
    Control {
        target: "identity",
        rule: "an identity file has one form",
        planted: "a reader that trims",
        run: |data| identity(data, trims),
    },
    Control {
        target: "wake",
        rule: "only whole names are heard",
        planted: "a buffer as long as the longest name",
        run: |data| wake(data, hears_beginnings),
    },
];

struct Socket {
    echo_request: fn(&[u8]) -> std::io::Result<Vec<u8>>,
    echo_answer: fn(&[u8]) -> std::io::Result<Vec<u8>>,
}

const SOCKET: Socket = Socket {
    echo_request: door::echo_request,
    echo_answer: door::echo_answer,
};

fn frames(data: &[u8], socket: &Socket) -> Seen {
    let demo = demo(data);
    let request = frame(data, socket.echo_request);
    let answer = frame(data, socket.echo_answer);
    seen((request, answer, demo))
}

fn frame(data: &[u8], echo: fn(&[u8]) -> std::io::Result<Vec<u8>>) -> Seen {
    let lengths = data.first_chunk::<8>().map(|prefix| {
        let [a, b, c, d, e, f, g, h] = *prefix;
        let length = |bytes| u32::from_be_bytes(bytes) as usize;
        (length([a, b, c, d]), length([e, f, g, h]))
    });
    let is_bounded = lengths.is_some_and(|(header, body)| header <= 8 * 1_024 && body <= 1_048_576);
    let allocation_max = match is_bounded {
        // The frame, its parts, and the frame that is written again.
        true => 64 * 1_024 + lengths.map_or(0, |(header, body)| 32 * header + 4 * body),
        false => 4 * 1_024,
    };
    match bounded(allocation_max, || echo(data)) {
        Ok(again) => {
            let (header, body) = lengths.expect("no frame without its lengths");
            assert!(is_bounded, "the bounds of a frame");
            assert!(again.len() <= door::FRAME_BYTES_MAX);
            assert_eq!(
                again[again.len() - body..],
                data[8 + header..8 + header + body]
            );
            assert_eq!(echo(&again).expect("it is read again"), again);
            let kind = again.get(8..48).map(<[u8]>::to_vec);
            seen((kind, body.checked_ilog2()))
        }
        Err(error) => seen((error.kind(), error.to_string())),
    }
}

fn demo(data: &[u8]) -> [bool; 2] {
    let Ok(text) = std::str::from_utf8(data) else {
        return [false; 2];
    };
    [true, false].map(|is_order| {
        let Some(line) = door::echo_demo(text, is_order) else {
            return false;
        };
        assert!(!line.contains('\n'), "one line each");
        assert_eq!(door::echo_demo(&line, is_order).as_ref(), Some(&line));
        true
    })
}

const TRUSTING: Socket = Socket {
    echo_request: |data| {
        if let Some(prefix) = data.first_chunk::<8>() {
            let [.., a, b, c, d] = *prefix;
            let body = vec![0_u8; u32::from_be_bytes([a, b, c, d]) as usize];
            std::hint::black_box(&body);
        }
        door::echo_request(data)
    },
    ..SOCKET
};

const LOSING: Socket = Socket {
    echo_request: |data| {
        let mut frame = door::echo_request(data)?;
        if frame[4..8] != [0; 4] {
            frame.pop();
            frame[7] = frame[7].wrapping_sub(1);
        }
        Ok(frame)
    },
    ..SOCKET
};

type Orders = fn(&[u8]) -> (door::Understood, usize);

fn orders(data: &[u8], read: Orders) -> Seen {
    let ((group, directory, deadline, is_done), left) = bounded(64 * 1_024, || read(data));
    // One line may be waiting for its end; more is a pipe that nobody of ours writes to.
    assert!(
        left <= 16 * 1_024,
        "{left} bytes wait for the end of a line"
    );
    // 0 and 1 would mean our own group and everybody.
    assert!(group.is_none_or(|group| group > 1), "group {group:?}");
    if let Some(directory) = &directory {
        let digits: String = directory
            .as_os_str()
            .as_bytes()
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect();
        let lines = String::from_utf8_lossy(data).to_ascii_lowercase();
        assert!(
            lines.contains(&format!("directory {digits}")),
            "{directory:?}"
        );
    }
    if is_done {
        assert!(data.windows(4).any(|word| word == b"done"));
    }
    seen((
        group.is_some(),
        directory.map(|path| path.as_os_str().len().checked_ilog2()),
        deadline.is_some(),
        is_done,
        left == 0,
    ))
}

fn any_group(data: &[u8]) -> (door::Understood, usize) {
    let ((_, directory, deadline, is_done), left) = door::orders(data);
    let text = String::from_utf8_lossy(data);
    let mut lines = text.lines().filter_map(|line| line.strip_prefix("group "));
    let group = lines.rfind(|id| id.trim_end().parse::<i32>().is_ok());
    let group = group.and_then(|id| id.trim_end().parse().ok());
    ((group, directory, deadline, is_done), left)
}

fn signed_path(data: &[u8]) -> (door::Understood, usize) {
    let ((group, directory, deadline, is_done), left) = door::orders(data);
    let text = String::from_utf8_lossy(data);
    let path_of = |digits: &str| -> Option<std::path::PathBuf> {
        let bytes: Option<Vec<u8>> = (0..digits.len())
            .step_by(2)
            .map(|at| u8::from_str_radix(digits.get(at..at + 2)?, 16).ok())
            .collect();
        Some(std::ffi::OsStr::from_bytes(&bytes?).into())
    };
    let mut lines = text
        .lines()
        .filter_map(|line| line.strip_prefix("directory "));
    let directory = lines
        .find_map(|digits| path_of(digits.trim_end()))
        .or(directory);
    ((group, directory, deadline, is_done), left)
}

type Identity = fn(&Path) -> Result<Option<String>, String>;

fn identity(data: &[u8], load: Identity) -> Seen {
    let directory = Place::directory();
    let path = directory.path().join("identity");
    std::fs::write(&path, data).unwrap();
    std::fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
    let loaded = bounded(16 * 1_024, || load(&path));
    let expected = data
        .strip_prefix(b"aster-identity-1 ")
        .and_then(|rest| rest.strip_suffix(b"\n"))
        .filter(|id| id.len() == 32)
        .filter(|id| id.iter().all(|byte| b"0123456789abcdef".contains(byte)))
        .map(|id| String::from_utf8(id.to_vec()).unwrap());
    match &loaded {
        Ok(found) => assert_eq!(*found, expected),
        Err(why) => {
            assert_eq!(expected, None, "{why}");
            assert!(why.contains("is damaged"), "it says what to do: {why}");
        }
    }
    assert_eq!(std::fs::read(&path).unwrap(), data, "it is left alone");
    seen((
        loaded.is_ok(),
        data.len() / 16,
        data.starts_with(b"aster-identity-1 "),
    ))
}

fn trims(path: &Path) -> Result<Option<String>, String> {
    let text = std::fs::read_to_string(path).map_err(|_| "it is damaged".to_owned())?;
    match text.trim().strip_prefix("aster-identity-1 ") {
        Some(id) if id.len() == 32 => Ok(Some(id.to_owned())),
        _ => door::identity(path),
    }
}

type Hear = fn(&Path, &[&[u8]]) -> std::io::Result<Vec<ResourceName>>;

/// Datagrams, one a line.
fn wake(data: &[u8], hear: Hear) -> Seen {
    let directory = Place::directory();
    let main = directory.path().join("leases.db");
    std::fs::write(&main, b"").unwrap();
    let datagrams: Vec<&[u8]> = data.split(|byte| *byte == b'\n').collect();
    let heard = hear(&main, &datagrams).expect("a mailbox beside the file");
    for name in &heard {
        assert!(datagrams.contains(&name.as_bytes()), "nobody said {name}");
    }
    assert!(heard.len() <= datagrams.len());
    // The names of sockets, by which a process finds those of the dead.
    for name in &datagrams {
        let socket = [b"leases.db-aster-", *name].concat();
        if let Some(process) = aster_sqlite::fuzz::process_of(name) {
            let digits: String = process.iter().map(|byte| format!("{byte:02x}")).collect();
            assert!(name.eq_ignore_ascii_case(digits.as_bytes()));
            assert_eq!(
                aster_sqlite::fuzz::owner_of_socket(&socket),
                Some(&b"leases.db"[..])
            );
        }
    }
    seen((
        heard.len().min(8),
        datagrams.len().min(8),
        data.len().checked_ilog2(),
    ))
}

fn hears_beginnings(main: &Path, datagrams: &[&[u8]]) -> std::io::Result<Vec<ResourceName>> {
    let cut: Vec<&[u8]> = datagrams
        .iter()
        .map(|it| &it[..it.len().min(512)])
        .collect();
    aster_sqlite::fuzz::hear(main, &cut)
}
