//! Resource names, holders and ids, as text and as JSON.

use std::str::FromStr;

use aster_core::{
    Authority, GrantId, InvalidInput, PRINCIPAL_BYTES_MAX, Principal, RESOURCE_BYTES_MAX,
    ResourceName, WriteId,
};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::control::Control;
use crate::{Seen, Target, bounded, seen};

pub(super) const NAMES: Target = Target {
    name: "names",
    what: "resource names and holders: text and JSON agree, bounds hold, nothing is changed",
    run: names,
    bytes_max: 1_024,
    dictionary: include_str!("../../dictionaries/names.dict"),
    executions: 20_000,
};

pub(super) const IDS: Target = Target {
    name: "ids",
    what: "authorities, grant ids and write ids: 32 hexadecimal digits and nothing else",
    run: ids,
    bytes_max: 80,
    dictionary: include_str!("../../dictionaries/ids.dict"),
    executions: 20_000,
};

pub(super) const CONTROLS: [Control; 4] = [
    Control {
        target: "names",
        rule: "names hold no control character",
        planted: "a check that knows the ASCII ones only",
        run: |data| check_name::<OnlyAscii>(data, RESOURCE_BYTES_MAX),
    },
    Control {
        target: "names",
        rule: "names are at most as long as their bound",
        planted: "a bound in characters",
        run: |data| check_name::<InCharacters>(data, RESOURCE_BYTES_MAX),
    },
    Control {
        target: "names",
        rule: "text and JSON agree",
        planted: "a Deserialize without the check",
        run: |data| check_name::<UncheckedJson>(data, RESOURCE_BYTES_MAX),
    },
    Control {
        target: "ids",
        rule: "an id is 32 hexadecimal digits",
        planted: "a parser that takes a sign for a digit",
        run: |data| check_id::<Signed>(data),
    },
];

fn names(data: &[u8]) -> Seen {
    seen((
        check_name::<ResourceName>(data, RESOURCE_BYTES_MAX),
        check_name::<Principal>(data, PRINCIPAL_BYTES_MAX),
    ))
}

fn ids(data: &[u8]) -> Seen {
    check_id::<GrantId>(data);
    check_id::<WriteId>(data);
    check_id::<Authority>(data)
}

/// Something that is parsed from text and from JSON.
trait Text: Sized + ToString {
    fn parse(text: &str) -> Result<Self, InvalidInput>;
    fn from_json(json: &[u8]) -> Option<Self>;
    fn to_json(&self) -> Vec<u8>;
}

impl<T> Text for T
where
    T: FromStr<Err = InvalidInput> + ToString + Serialize + DeserializeOwned,
{
    fn parse(text: &str) -> Result<Self, InvalidInput> {
        text.parse()
    }

    fn from_json(json: &[u8]) -> Option<Self> {
        serde_json::from_slice(json).ok()
    }

    fn to_json(&self) -> Vec<u8> {
        serde_json::to_vec(self).unwrap()
    }
}

/// What may be said about a name, worked out another way than the product does.
fn expected(text: &str, bytes_max: usize) -> Option<InvalidInput> {
    let what = "";
    if text.is_empty() {
        return Some(InvalidInput::Empty { what });
    }
    if text.len() > bytes_max {
        let bytes = text.len();
        return Some(InvalidInput::TooLong {
            what,
            bytes,
            bytes_max,
        });
    }
    let mut at_byte = 0;
    for character in text.chars() {
        let code_point = u32::from(character);
        if code_point < 0x20 || (0x7f..0xa0).contains(&code_point) {
            return Some(InvalidInput::ControlCharacter {
                what,
                code_point,
                at_byte,
            });
        }
        at_byte += character.len_utf8();
    }
    None
}

/// The same refusal, whatever it is about.
fn is_same(found: &InvalidInput, expected: &InvalidInput) -> bool {
    use InvalidInput::{ControlCharacter, Empty, TooLong};
    match (found, expected) {
        (Empty { .. }, Empty { .. }) => true,
        (
            TooLong {
                bytes, bytes_max, ..
            },
            TooLong {
                bytes: other,
                bytes_max: other_max,
                ..
            },
        ) => (bytes, bytes_max) == (other, other_max),
        (
            ControlCharacter {
                code_point,
                at_byte,
                ..
            },
            ControlCharacter {
                code_point: other,
                at_byte: other_at,
                ..
            },
        ) => (code_point, at_byte) == (other, other_at),
        _ => false,
    }
}

fn check_name<T: Text>(data: &[u8], bytes_max: usize) -> Seen {
    // Read as JSON it is accepted exactly if the text that it holds is.
    let held = serde_json::from_slice::<String>(data).ok();
    let is_accepted = held.is_some_and(|text| expected(&text, bytes_max).is_none());
    assert_eq!(T::from_json(data).is_some(), is_accepted, "as JSON");
    let Ok(text) = std::str::from_utf8(data) else {
        return seen("no text");
    };
    let parsed = bounded(4 * data.len() + 1_024, || T::parse(text));
    let json = serde_json::to_vec(text).unwrap();
    match (parsed, expected(text, bytes_max)) {
        (Ok(name), None) => {
            assert_eq!(name.to_string(), text, "a name is not changed");
            assert_eq!(name.to_json(), json);
            let again = T::from_json(&json).expect("what text accepts, JSON accepts");
            assert_eq!(again.to_string(), text);
            seen((is_accepted, text.len().ilog2()))
        }
        (Err(found), Some(expected)) => {
            assert!(is_same(&found, &expected), "{found:?}, not {expected:?}");
            assert!(T::from_json(&json).is_none(), "text and JSON agree");
            seen((is_accepted, std::mem::discriminant(&found)))
        }
        (Ok(_), Some(expected)) => panic!("accepted, in spite of {expected:?}"),
        (Err(found), None) => panic!("refused: {found:?}"),
    }
}

fn check_id<T: Text>(data: &[u8]) -> Seen {
    let digit = |byte: &u8| (*byte as char).to_digit(16);
    let digits: Option<Vec<u32>> = data.iter().map(digit).collect();
    let expected = digits.filter(|digits| digits.len() == 32);
    let Ok(text) = std::str::from_utf8(data) else {
        return seen("no text");
    };
    let json = serde_json::to_vec(text).unwrap();
    let parsed = bounded(1_024, || T::parse(text));
    let from_json = T::from_json(&json).map(|id| id.to_string());
    match (parsed, expected) {
        (Ok(id), Some(digits)) => {
            let shown = id.to_string();
            let values: Vec<u32> = shown.bytes().filter_map(|byte| digit(&byte)).collect();
            assert_eq!(values, digits, "the digits are those that were read");
            assert!(!shown.bytes().any(|byte| byte.is_ascii_uppercase()));
            assert_eq!(T::parse(&shown).unwrap().to_string(), shown);
            assert_eq!(from_json.as_deref(), Some(&*shown), "text and JSON agree");
            seen(shown == text)
        }
        (Err(InvalidInput::Id { .. }), None) => {
            assert_eq!(from_json, None, "text and JSON agree");
            seen(("refused", data.len() == 32))
        }
        (Ok(id), None) => panic!("accepted as {}", id.to_string()),
        (Err(found), _) => panic!("refused: {found:?}"),
    }
}

/// A name as it stands, for the controls.
macro_rules! faulty {
    ($name:ident, $check:expr, $check_json:expr) => {
        struct $name(String);

        #[allow(clippy::to_string_trait_impl, reason = "nothing else is needed of it")]
        impl ToString for $name {
            fn to_string(&self) -> String {
                self.0.clone()
            }
        }

        impl Text for $name {
            fn parse(text: &str) -> Result<Self, InvalidInput> {
                $check(text).map(|()| Self(text.to_owned()))
            }

            fn from_json(json: &[u8]) -> Option<Self> {
                let text: String = serde_json::from_slice(json).ok()?;
                $check_json(&text).ok()?;
                Some(Self(text))
            }

            fn to_json(&self) -> Vec<u8> {
                serde_json::to_vec(&self.0).unwrap()
            }
        }
    };
}

fn right(text: &str) -> Result<(), InvalidInput> {
    expected(text, RESOURCE_BYTES_MAX).map_or(Ok(()), Err)
}

fn only_ascii(text: &str) -> Result<(), InvalidInput> {
    match right(text) {
        Err(InvalidInput::ControlCharacter { code_point, .. }) if code_point >= 0x80 => Ok(()),
        other => other,
    }
}

fn in_characters(text: &str) -> Result<(), InvalidInput> {
    match right(text) {
        Err(InvalidInput::TooLong { .. }) if text.chars().count() <= RESOURCE_BYTES_MAX => Ok(()),
        other => other,
    }
}

faulty!(OnlyAscii, only_ascii, only_ascii);
faulty!(InCharacters, in_characters, in_characters);
faulty!(UncheckedJson, right, |_: &str| Ok::<(), InvalidInput>(()));
faulty!(Signed, signed, signed);

fn signed(text: &str) -> Result<(), InvalidInput> {
    let pairs = (0..text.len()).step_by(2);
    let is_id = text.len() == 32
        && pairs
            .map(|at| text.get(at..at + 2))
            .all(|pair| pair.is_some_and(|pair| u8::from_str_radix(pair, 16).is_ok()));
    match is_id {
        true => Ok(()),
        false => Err(InvalidInput::Id { what: "" }),
    }
}
