//! Relative links in pages lead somewhere.

use super::{Finding, finding, has_extension};
use crate::repository::Repository;

pub(crate) fn check(repository: &Repository) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (page, text) in repository.texts(|path| has_extension(path, &["md"])) {
        for (line, content) in prose(&text) {
            for target in targets(content) {
                if let Some(problem) = problem_with(repository, page, target) {
                    findings.push(finding(
                        page,
                        line,
                        format!("link to `{target}`: {problem}"),
                    ));
                }
            }
        }
    }
    findings
}

/// The lines outside code blocks, with their numbers.
fn prose(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut in_code = false;
    (1..).zip(text.lines()).filter(move |(_, line)| {
        let fence = line.trim_start().starts_with("```");
        in_code ^= fence;
        !in_code && !fence
    })
}

/// The destinations of `[text](destination)` in a line, except on the web and in rustdoc's own terms.
fn targets(line: &str) -> impl Iterator<Item = &str> {
    line.match_indices("](")
        .filter_map(|(at, opening)| line[at + opening.len()..].split_once(')'))
        .map(|(target, _)| target)
        .filter(|target| !target.contains("://") && !target.contains("::"))
}

fn problem_with(repository: &Repository, page: &str, target: &str) -> Option<&'static str> {
    let (path, heading) = match target.split_once('#') {
        Some((path, heading)) => (path, Some(heading)),
        None => (target, None),
    };
    let path = if path.is_empty() {
        page.to_owned()
    } else {
        resolve(page, path)?
    };
    if !repository.exists(&path) {
        return Some("no such file");
    }
    let heading = heading?;
    let text = repository.read(&path).ok()?;
    let found = prose(&text)
        .filter(|(_, line)| line.starts_with('#'))
        .any(|(_, line)| anchor(line) == heading);
    (!found).then_some("no such heading")
}

/// `target` as seen from the page's directory, relative to the root.
fn resolve(page: &str, target: &str) -> Option<String> {
    let mut parts: Vec<&str> = page.split('/').collect();
    parts.pop();
    for part in target.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop()?;
            }
            name => parts.push(name),
        }
    }
    Some(parts.join("/"))
}

/// The anchor that a heading gets: lower case, spaces to hyphens, other marks dropped.
fn anchor(heading: &str) -> String {
    heading
        .trim_start_matches('#')
        .trim()
        .chars()
        .filter_map(|character| match character {
            ' ' => Some('-'),
            '-' | '_' => Some(character),
            other if other.is_alphanumeric() => Some(other.to_ascii_lowercase()),
            _ => None,
        })
        .collect()
}
