//! Code quoted in a page equals the file that it is quoted from, so that it is compiled and run.
//!
//! In a page, the line `<!-- quote: crates/aster/examples/x.rs -->` stands before a code block that
//! repeats that file. With `x.rs#part`, the block repeats the lines between `// begin: part` and
//! `// end: part`, moved to the left.

use super::{Finding, finding, has_extension};
use crate::repository::Repository;

const MARK: &str = "<!-- quote: ";
const MARK_END: &str = " -->";

pub(crate) fn check(repository: &Repository) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (page, text) in pages(repository) {
        match renew(repository, page, &text) {
            Ok(renewed) if renewed == text => {}
            Ok(renewed) => {
                let same = text.lines().zip(renewed.lines());
                let line = 1 + same.take_while(|(old, new)| old == new).count();
                findings.push(finding(
                    page,
                    line,
                    "the quoted code differs from its source",
                ));
            }
            Err(problem) => findings.push(problem),
        }
    }
    findings
}

/// Writes the sources into the pages that quote them; answers which pages have changed.
pub(crate) fn rewrite(repository: &Repository) -> Result<Vec<String>, String> {
    let mut rewritten = Vec::new();
    for (page, text) in pages(repository) {
        let renewed = renew(repository, page, &text).map_err(|problem| problem.to_string())?;
        if renewed != text {
            std::fs::write(repository.root().join(page), renewed)
                .map_err(|error| format!("{page}: {error}"))?;
            rewritten.push(page.to_owned());
        }
    }
    Ok(rewritten)
}

fn pages(repository: &Repository) -> Vec<(&str, String)> {
    repository.texts(|path| has_extension(path, &["md"]))
}

/// The page as it should be.
fn renew(repository: &Repository, page: &str, text: &str) -> Result<String, Finding> {
    let mut renewed = String::with_capacity(text.len());
    let mut lines = (1..).zip(text.lines());
    while let Some((number, line)) = lines.next() {
        renewed.push_str(line);
        renewed.push('\n');
        let Some(source) = line
            .strip_prefix(MARK)
            .and_then(|rest| rest.strip_suffix(MARK_END))
        else {
            continue;
        };
        let code = quoted(repository, source).map_err(|message| finding(page, number, message))?;
        match lines.next() {
            Some((_, opening)) if opening.starts_with("```") => {
                renewed.push_str(opening);
                renewed.push('\n');
            }
            _ => {
                return Err(finding(
                    page,
                    number,
                    "no code block follows the quote mark",
                ));
            }
        }
        if !lines.by_ref().any(|(_, line)| line == "```") {
            return Err(finding(page, number, "the quoted code block has no end"));
        }
        renewed.push_str(&code);
        renewed.push_str("```\n");
    }
    Ok(renewed)
}

/// The text to quote: a whole file, or its named part.
fn quoted(repository: &Repository, source: &str) -> Result<String, String> {
    let (path, part) = match source.split_once('#') {
        Some((path, part)) => (path, Some(part)),
        None => (source, None),
    };
    let text = repository.read(path)?;
    let Some(part) = part else {
        return Ok(without_marks(&text));
    };
    let is_mark = |line: &str, word: &str| line.trim() == format!("// {word}: {part}");
    let mut inside = text.lines().skip_while(|line| !is_mark(line, "begin"));
    inside
        .next()
        .ok_or_else(|| format!("{path} has no line `// begin: {part}`"))?;
    let body: Vec<&str> = inside.take_while(|line| !is_mark(line, "end")).collect();
    let margin = body
        .iter()
        .filter(|line| !line.trim().is_empty())
        .map(|line| line.len() - line.trim_start().len())
        .min()
        .unwrap_or(0);
    let moved: String = body
        .iter()
        .map(|line| format!("{}\n", line.get(margin..).unwrap_or("")))
        .collect();
    Ok(without_marks(&moved))
}

/// Marks of other parts are no code.
fn without_marks(text: &str) -> String {
    text.lines()
        .filter(|line| {
            let line = line.trim();
            !line.starts_with("// begin: ") && !line.starts_with("// end: ")
        })
        .map(|line| format!("{line}\n"))
        .collect()
}
