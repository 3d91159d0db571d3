//! Source files and functions that a page names exist.
//!
//! `` `memory/gate.rs` `` stands for any file whose path ends so; `` `fence.rs::check_fence` `` says
//! besides that such a file defines that function.

use super::{Finding, finding, has_extension};
use crate::repository::Repository;

pub(crate) fn check(repository: &Repository) -> Vec<Finding> {
    let sources = repository.texts(|path| has_extension(path, &["rs"]));
    let mut findings = Vec::new();
    for (page, text) in repository.texts(|path| has_extension(path, &["md"])) {
        for (line, content) in (1..).zip(text.lines()) {
            for name in backticked(content) {
                if let Some(problem) = problem_with(&sources, name) {
                    findings.push(finding(page, line, format!("`{name}`: {problem}")));
                }
            }
        }
    }
    findings
}

fn backticked(line: &str) -> impl Iterator<Item = &str> {
    line.split('`').skip(1).step_by(2)
}

fn problem_with(sources: &[(&str, String)], name: &str) -> Option<&'static str> {
    let (file, function) = match name.split_once(".rs::") {
        Some((stem, function)) => (format!("{stem}.rs"), Some(function)),
        None if is_file_name(name) => (name.to_owned(), None),
        None => return None,
    };
    let mut files = sources
        .iter()
        .filter(|(path, _)| *path == file || path.ends_with(&format!("/{file}")))
        .peekable();
    if files.peek().is_none() {
        return Some("no such source file");
    }
    let function = function?;
    let defined = |text: &str| {
        ["(", "<"]
            .iter()
            .any(|next| text.contains(&format!("fn {function}{next}")))
    };
    (!files.any(|(_, text)| defined(text))).then_some("that file defines no such function")
}

fn is_file_name(name: &str) -> bool {
    let word = |character: char| character.is_alphanumeric() || "/_-.".contains(character);
    name.strip_suffix(".rs")
        .is_some_and(|stem| !stem.is_empty() && stem.chars().all(word))
}
