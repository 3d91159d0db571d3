//! What is printed, and how: text for people, or one JSON document.

use std::io::{self, IsTerminal, Write};

use serde::Serialize;

use crate::arguments::ColorChoice;
use crate::failure::{Failure, FailureKind};

/// Where and how to print.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Output {
    pub(crate) json: bool,
    pub(crate) color: bool,
}

/// The few styles that we use, as terminal sequences.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Style {
    Bold,
    Dim,
    Good,
    Bad,
    Accent,
}

impl Style {
    fn sequence(self) -> &'static str {
        match self {
            Style::Bold => "\x1b[1m",
            Style::Dim => "\x1b[2m",
            Style::Good => "\x1b[32m",
            Style::Bad => "\x1b[31m",
            Style::Accent => "\x1b[36m",
        }
    }
}

impl Output {
    /// `auto` means colour on a terminal, unless `NO_COLOR` is set or the terminal is dumb.
    pub(crate) fn new(json: bool, color: ColorChoice) -> Self {
        let color = match color {
            ColorChoice::Always => true,
            ColorChoice::Never => false,
            ColorChoice::Auto => {
                let is_set = |name| std::env::var_os(name).is_some_and(|value| !value.is_empty());
                let is_dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
                io::stdout().is_terminal() && !is_set("NO_COLOR") && !is_dumb
            }
        };
        Self {
            json,
            color: color && !json,
        }
    }

    pub(crate) fn paint(self, style: Style, text: &str) -> String {
        if self.color {
            format!("{}{text}\x1b[0m", style.sequence())
        } else {
            text.to_owned()
        }
    }

    /// Prints `document` with `--json`, else the lines that `text` makes.
    pub(crate) fn answer<T: Serialize>(
        self,
        document: &T,
        text: impl FnOnce(Self) -> String,
    ) -> Result<(), Failure> {
        self.line(document, text).map(|_| ())
    }

    /// The same for one of many; `false` when nobody reads any more.
    pub(crate) fn line<T: Serialize>(
        self,
        document: &T,
        text: impl FnOnce(Self) -> String,
    ) -> Result<bool, Failure> {
        let text = match self.json {
            true => serde_json::to_string(document).map_err(|error| {
                Failure::new(FailureKind::Internal, format!("cannot write JSON: {error}"))
            })?,
            false => text(self),
        };
        if text.is_empty() {
            return Ok(true);
        }
        print_to_reader(format!("{text}\n").as_bytes())
    }

    /// Says on stderr why a command failed. Nothing can be done when that fails too.
    pub(crate) fn failure(self, failure: &Failure) {
        let text = if self.json {
            failure_document(failure)
        } else {
            format!("aster: {}", lines_of(&failure.message))
        };
        let _ = writeln!(io::stderr().lock(), "{text}");
    }

    /// A remark on stderr beside the result; left out with `--json`.
    pub(crate) fn remark(self, text: &str) {
        if !self.json {
            let _ = writeln!(io::stderr().lock(), "aster: {}", lines_of(text));
        }
    }
}

/// `{"error":{"kind":…,"message":…,"exit_code":…}}`
fn failure_document(failure: &Failure) -> String {
    #[derive(Serialize)]
    struct Document<'a> {
        error: Body<'a>,
    }
    #[derive(Serialize)]
    struct Body<'a> {
        kind: FailureKind,
        message: &'a str,
        exit_code: u8,
    }
    let error = Body {
        kind: failure.kind,
        message: &failure.message,
        exit_code: failure.kind.exit_code(),
    };
    // Strings and numbers always have a JSON form.
    serde_json::to_string(&Document { error }).unwrap_or_default()
}

/// Says something on stderr where there is no [`Output`] to ask how.
pub(crate) fn complain(text: &str) {
    let _ = writeln!(io::stderr().lock(), "aster: {}", lines_of(text));
}

/// Writes to stdout as it is. A reader who has gone away (`| head`) is no failure.
pub(crate) fn print(bytes: &[u8]) -> Result<(), Failure> {
    print_to_reader(bytes).map(|_| ())
}

/// The same; `false` when nobody reads any more.
pub(crate) fn print_to_reader(bytes: &[u8]) -> Result<bool, Failure> {
    let mut stdout = io::stdout().lock();
    match stdout.write_all(bytes).and_then(|()| stdout.flush()) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(Failure::io("cannot write to standard output", &error)),
    }
}

/// Text from elsewhere, fit for one line of a terminal: nothing in it moves the cursor, ends the line, hides or
/// turns the reading direction.
pub(crate) fn one_line(text: &str) -> String {
    escaped(text, |_| false)
}

/// The same for text of several lines.
pub(crate) fn lines_of(text: &str) -> String {
    escaped(text, |character| matches!(character, '\n' | '\t'))
}

/// A value as a terminal may show it; bytes that are no text as `\xff`.
pub(crate) fn value_lines(value: &[u8]) -> String {
    value
        .utf8_chunks()
        .map(|chunk| {
            let invalid = chunk.invalid().escape_ascii();
            format!("{}{invalid}", lines_of(chunk.valid()))
        })
        .collect()
}

fn escaped(text: &str, keep: impl Fn(char) -> bool) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        if keep(character) || !acts_on_terminals(character) {
            escaped.push(character);
        } else {
            escaped.extend(character.escape_default());
        }
    }
    escaped
}

fn acts_on_terminals(character: char) -> bool {
    character.is_control()
        || matches!(
            character,
            '\u{200b}'..='\u{200f}' // no width, marks of direction
                | '\u{2028}'..='\u{202e}' // separators of lines, embeddings and overrides of direction
                | '\u{2060}'..='\u{2069}' // no width, isolates of direction
                | '\u{feff}'
        )
}

/// A word as a shell takes it.
pub(crate) fn quoted(word: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_./,:=@%+".contains(&byte);
    match !word.is_empty() && word.bytes().all(is_plain) {
        true => word.to_owned(),
        false => format!("'{}'", word.replace('\'', r"'\''")),
    }
}

/// Bytes as base64 with padding, for values that are not UTF-8.
pub(crate) fn base64(bytes: &[u8]) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let byte = |index: usize| u32::from(chunk.get(index).copied().unwrap_or(0));
        let group = byte(0) << 16 | byte(1) << 8 | byte(2);
        for index in 0..4 {
            if index <= chunk.len() {
                let sextet = (group >> (18 - 6 * index)) & 63;
                text.push(char::from(ALPHABET[sextet as usize]));
            } else {
                text.push('=');
            }
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_as_everyone_else() {
        for (bytes, text) in [
            (&b""[..], ""),
            (b"f", "Zg=="),
            (b"fo", "Zm8="),
            (b"foo", "Zm9v"),
            (b"foob", "Zm9vYg=="),
            (&[0xff, 0xfe, 0xfd], "//79"),
        ] {
            assert_eq!(base64(bytes), text);
        }
    }

    #[test]
    fn foreign_text_cannot_forge_a_line() {
        assert_eq!(one_line("a\nb\u{1b}[31m"), "a\\nb\\u{1b}[31m");
        assert_eq!(
            one_line("a\u{200b}\u{202e}b\u{2066}\u{feff}"),
            r"a\u{200b}\u{202e}b\u{2066}\u{feff}"
        );
        // Letters of every script stay as they are.
        assert_eq!(
            one_line("žluťoučký kůň \\ 名前 שם"),
            "žluťoučký kůň \\ 名前 שם"
        );
        assert_eq!(
            value_lines(b"a\tb\n\x1b[2J\xff\xe2\x80\xae"),
            "a\tb\n\\u{1b}[2J\\xff\\u{202e}"
        );
    }
}
