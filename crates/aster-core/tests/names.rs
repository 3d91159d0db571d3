//! Names: what is accepted, what is refused and how, and that look-alikes stay apart.
#![allow(clippy::unwrap_used, reason = "this crate is all tests")]

use std::collections::BTreeSet;

use aster_core::{
    ErrorKind, InvalidInput, PRINCIPAL_BYTES_MAX, Principal, RESOURCE_BYTES_MAX, ResourceName,
};
use proptest::prelude::*;

#[test]
fn an_empty_name_is_refused() {
    assert!(matches!(
        ResourceName::new(""),
        Err(InvalidInput::Empty {
            what: "resource name"
        })
    ));
    assert!(matches!(
        Principal::new(""),
        Err(InvalidInput::Empty { what: "holder" })
    ));
}

#[test]
fn the_bound_counts_bytes_and_is_exact() {
    assert_eq!((RESOURCE_BYTES_MAX, PRINCIPAL_BYTES_MAX), (512, 256));
    // (text, bytes): one, two, three and four bytes a character, at and just over each bound.
    let repeated = |text: &str, times: usize| text.repeat(times);
    for accepted in [
        repeated("r", 1),
        repeated("r", 512),
        repeated("é", 256),
        repeated("漢", 170) + "rr",
        repeated("🗝", 128),
    ] {
        assert!(
            ResourceName::new(&accepted).is_ok(),
            "{} bytes",
            accepted.len()
        );
    }
    for refused in [
        repeated("r", 513),
        repeated("é", 256) + "r",
        repeated("漢", 171),
        repeated("🗝", 128) + "r",
    ] {
        let bytes = refused.len();
        assert_eq!(
            ResourceName::new(&refused),
            Err(InvalidInput::TooLong {
                what: "resource name",
                bytes,
                bytes_max: 512
            })
        );
    }
    assert!(Principal::new(repeated("p", 256)).is_ok());
    assert_eq!(
        Principal::new(repeated("é", 128) + "p"),
        Err(InvalidInput::TooLong {
            what: "holder",
            bytes: 257,
            bytes_max: 256
        })
    );
}

#[test]
fn every_control_character_is_refused_wherever_it_stands() {
    // C0, DEL and C1, U+0085 (next line) among them: all of Unicode's category Cc.
    let controls = (0..=0x1f_u32).chain(0x7f..=0x9f);
    for code_point in controls {
        let control = char::from_u32(code_point).unwrap();
        for (text, at) in [
            (format!("{control}catalog"), 0),
            (format!("cat{control}alog"), 3),
            (format!("é{control}"), 2),
        ] {
            assert_eq!(
                ResourceName::new(&text),
                Err(InvalidInput::ControlCharacter {
                    what: "resource name",
                    code_point,
                    at_byte: at
                })
            );
            assert!(Principal::new(&text).is_err(), "U+{code_point:04X}");
        }
    }
}

#[test]
fn characters_that_only_look_special_are_accepted() {
    for name in [
        " ",
        "a b",
        "\u{a0}",
        "\u{200b}",
        "\u{202e}",
        "\u{feff}",
        "\u{fffd}",
        "\u{2028}",
        "../a",
        "/",
        "*",
        "%00",
        "a\\b",
        "'; DROP TABLE rows --",
        "🗝️",
    ] {
        assert_eq!(ResourceName::new(name).unwrap().as_str(), name);
    }
}

#[test]
fn look_alikes_are_different_names() {
    let look_alikes = [
        "a",
        "A",
        "a ",
        " a",
        "а",
        "a/",
        "/a",
        "./a",
        "../a",
        "a/b",
        "a%2Fb",
        "a%2fb",
        "a//b",
        "a\\b",
        "é",
        "e\u{301}",
        "ﬁ",
        "fi",
        "ß",
        "ss",
        "İ",
        "i",
        "K",
        "K",
        "a\u{200b}",
    ];
    let names: BTreeSet<_> = look_alikes
        .iter()
        .map(|name| ResourceName::new(name).unwrap())
        .collect();
    let principals: BTreeSet<_> = look_alikes
        .iter()
        .map(|name| Principal::new(name).unwrap())
        .collect();
    let distinct: BTreeSet<_> = look_alikes.iter().collect();
    assert_eq!(names.len(), distinct.len());
    assert_eq!(principals.len(), distinct.len());
}

#[test]
fn every_way_in_checks() {
    let bad = "a\nb";
    assert!(ResourceName::new(bad).is_err());
    assert!(bad.parse::<ResourceName>().is_err());
    assert!(ResourceName::try_from(bad).is_err());
    assert!(ResourceName::try_from(bad.to_owned()).is_err());
    assert!(serde_json::from_str::<ResourceName>(r#""a\nb""#).is_err());
    assert!(serde_json::from_str::<ResourceName>(r#""""#).is_err());
    assert!(serde_json::from_str::<Principal>(r#""a\u0085b""#).is_err());
    let long = serde_json::to_string(&"r".repeat(513)).unwrap();
    assert!(serde_json::from_str::<ResourceName>(&long).is_err());
}

#[test]
fn a_refusal_says_what_and_what_to_do() {
    let error = ResourceName::new("a\u{85}b").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::FixCall);
    let text = error.to_string();
    assert!(
        text.contains("U+0085") && text.contains("byte 1") && text.contains("remove"),
        "{text}"
    );
    assert!(
        !text.contains('\u{85}'),
        "the control character must not reach a log"
    );
}

proptest! {
    #[test]
    fn any_text_is_kept_as_it_is_or_refused(text in any::<String>()) {
        let is_valid = !text.is_empty() && text.len() <= 512 && !text.chars().any(char::is_control);
        match ResourceName::new(&text) {
            Ok(name) => {
                prop_assert!(is_valid);
                prop_assert_eq!(name.as_str(), &text);
                let json = serde_json::to_string(&name).unwrap();
                prop_assert_eq!(serde_json::from_str::<ResourceName>(&json).unwrap(), name);
            }
            Err(_) => prop_assert!(!is_valid),
        }
    }
}
