//! What must not stand in any tracked file: the project speaks only of itself.

use super::{Finding, finding};
use crate::repository::Repository;

/// Written in two halves, so that this file does not find itself.
const FORBIDDEN: [(&str, &str, &str); 9] = [
    (
        "/ho",
        "me/",
        "path of a build machine: write ~ or a relative path",
    ),
    (
        "/ro",
        "ot/",
        "path of a build machine: write ~ or a relative path",
    ),
    (
        "/Us",
        "ers/",
        "path of a build machine: write ~ or a relative path",
    ),
    (
        "/wo",
        "rk/",
        "path of a build machine: write a relative path",
    ),
    (
        "/work",
        "space/",
        "path of a build machine: write a relative path",
    ),
    (
        "/bui",
        "lds/",
        "path of a build machine: write a relative path",
    ),
    ("<<<<", "<<< ", "a merge marker"),
    (">>>>", ">>> ", "a merge marker"),
    (
        "FIX",
        "ME",
        "unfinished: finish it, or say in words what holds now",
    ),
];

pub(crate) fn check(repository: &Repository) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, text) in repository.texts(|path| !path.ends_with(".lock")) {
        for (line, content) in (1..).zip(text.lines()) {
            for (head, tail, why) in FORBIDDEN {
                let word = format!("{head}{tail}");
                if content.contains(&word) {
                    findings.push(finding(path, line, format!("`{}`: {why}", word.trim_end())));
                }
            }
            if names_a_tracker_number(content) {
                findings.push(finding(
                    path,
                    line,
                    "a number of an issue tracker: say the reason itself",
                ));
            }
        }
    }
    findings
}

/// The word "issue" (or "issues", "issue #") followed by a number.
fn names_a_tracker_number(line: &str) -> bool {
    let lower = line.to_ascii_lowercase();
    lower.match_indices("issue").any(|(at, word)| {
        let starts_a_word = !lower[..at].ends_with(|character: char| character.is_alphanumeric());
        let rest = lower[at + word.len()..].trim_start_matches('s');
        let rest_trimmed = rest.trim_start_matches([' ', '#']);
        starts_a_word
            && rest.len() > rest_trimmed.len()
            && rest_trimmed.starts_with(|character: char| character.is_ascii_digit())
    })
}
