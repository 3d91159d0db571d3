//! What is printed of foreign text, and what is read of the kernel's.

use aster_cli::fuzz as door;
use aster_sqlite::fuzz as store;

use crate::control::Control;
use crate::{Seen, Target, bounded, seen};

pub(super) const PRINTING: Target = Target {
    name: "printing",
    what: "foreign text on a terminal: nothing acts on it, quoted words and base64 come back",
    run: |data| printing(data, door::one_line),
    bytes_max: 512,
    dictionary: include_str!("../../dictionaries/names.dict"),
    executions: 30_000,
};

pub(super) const KERNEL: Target = Target {
    name: "kernel",
    what: "/proc/*/stat, status, mountinfo and timens_offsets: any text, and nothing made up",
    run: |data| kernel(data, door::member_of),
    bytes_max: 1_024,
    dictionary: include_str!("../../dictionaries/kernel.dict"),
    executions: 40_000,
};

pub(super) const CONTROLS: [Control; 2] = [
    Control {
        target: "printing",
        rule: "nothing acts on the terminal",
        planted: "an escape of the ASCII control characters only",
        run: |data| printing(data, escapes_ascii),
    },
    Control {
        target: "kernel",
        rule: "a process name may hold anything",
        planted: "a reader that takes the first parenthesis for the end of the name",
        run: |data| kernel(data, first_parenthesis),
    },
];

/// Characters that move the cursor, end the line, or turn or hide what is read.
fn acts(character: char) -> bool {
    let code_point = u32::from(character);
    code_point < 0x20
        || (0x7f..0xa0).contains(&code_point)
        || (0x200b..=0x200f).contains(&code_point)
        || (0x2028..=0x202e).contains(&code_point)
        || (0x2060..=0x2069).contains(&code_point)
        || code_point == 0xfeff
}

fn printing(data: &[u8], one_line: fn(&str) -> String) -> Seen {
    let bytes_max = 64 * data.len() + 4 * 1_024;
    let shown = bounded(bytes_max, || door::value_lines(data));
    assert!(!shown.contains(|character| acts(character) && !matches!(character, '\n' | '\t')));
    assert_eq!(decode_base64(&door::base64(data)).as_deref(), Some(data));
    let Ok(text) = std::str::from_utf8(data) else {
        return seen(("no text", shown.len().checked_ilog2()));
    };
    let line = bounded(bytes_max, || one_line(text));
    assert!(!line.contains(acts), "{line:?}");
    let is_harmless = !text.contains(acts);
    assert_eq!(
        line == text,
        is_harmless,
        "what does nothing stays as it is"
    );
    let lines = door::lines_of(text);
    assert_eq!(lines.matches('\n').count(), text.matches('\n').count());
    if !text.contains('\0') {
        assert_eq!(unquote(&door::quoted(text)).as_deref(), Some(text));
    }
    seen((
        is_harmless,
        line.len().checked_ilog2(),
        text.len().checked_ilog2(),
    ))
}

/// As a shell reads one word: bare text, `'…'`, and `\'`.
fn unquote(word: &str) -> Option<String> {
    let mut meant = String::new();
    let mut characters = word.chars();
    while let Some(character) = characters.next() {
        match character {
            '\'' => loop {
                match characters.next()? {
                    '\'' => break,
                    inside => meant.push(inside),
                }
            },
            '\\' => meant.push(characters.next()?),
            special if " $`\"&|;<>()*?[]{}~#!\n\t".contains(special) => return None,
            plain => meant.push(plain),
        }
    }
    Some(meant)
}

fn decode_base64(text: &str) -> Option<Vec<u8>> {
    let sextet = |byte: u8| match byte {
        b'A'..=b'Z' => Some(u32::from(byte - b'A')),
        b'a'..=b'z' => Some(u32::from(byte - b'a') + 26),
        b'0'..=b'9' => Some(u32::from(byte - b'0') + 52),
        b'+' => Some(62),
        b'/' => Some(63),
        _ => None,
    };
    let mut bytes = Vec::new();
    for group in text.as_bytes().chunks(4) {
        let padding = group.iter().rev().take_while(|byte| **byte == b'=').count();
        let mut bits = 0;
        for byte in group.iter().take(4 - padding) {
            bits = bits << 6 | sextet(*byte)?;
        }
        bits <<= 6 * padding;
        bytes.extend(&bits.to_be_bytes()[1..4 - padding]);
    }
    Some(bytes)
}

fn escapes_ascii(text: &str) -> String {
    text.chars()
        .map(|character| match character.is_ascii_control() {
            true => character.escape_default().to_string(),
            false => character.to_string(),
        })
        .collect()
}

type MemberOf = fn(&[u8]) -> Option<(i32, bool)>;

fn kernel(data: &[u8], member_of: MemberOf) -> Seen {
    let member = member_of(data);
    // Whatever a process calls itself, its line says the same.
    for state in ["R", "Z"] {
        let line = [b"12 (", data, format!(") {state} 1 77 77 0").as_bytes()].concat();
        assert_eq!(member_of(&line), Some((77, state == "R")), "by its name");
    }
    let text = String::from_utf8_lossy(data);
    let ignored = door::ignored_by(&text);
    assert!(ignored.is_none() || text.contains("SigIgn:"));
    let mount = store::shared_by_mount(&text, (0, 45));
    if let Some(kind) = &mount {
        assert!(kind.starts_with("fuse.") && text.contains(kind.as_str()));
        assert!(text.contains("0:45"));
    }
    let offset = store::boot_offset(&text);
    if let Some(offset) = &offset {
        let numbers: Vec<i64> = offset
            .split(' ')
            .map(|part| part.parse().unwrap())
            .collect();
        assert_eq!(numbers.len(), 2);
    }
    let boot = store::boot_of(&text);
    assert!(text.starts_with(boot) && !boot.contains('/'));
    seen((
        member.map(|(_, lives)| lives),
        ignored.is_some(),
        mount,
        offset.is_some(),
        boot.len() == text.len(),
    ))
}

fn first_parenthesis(stat: &[u8]) -> Option<(i32, bool)> {
    let end = stat.iter().position(|byte| *byte == b')')?;
    let fields = std::str::from_utf8(&stat[end + 1..]).ok()?;
    let mut fields = fields.split_ascii_whitespace();
    let state = fields.next()?;
    Some((fields.nth(1)?.parse().ok()?, !matches!(state, "Z" | "X")))
}
