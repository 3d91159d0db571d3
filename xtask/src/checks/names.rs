//! Source files and functions that a page names exist.
//!
//! `` `memory/gate.rs` `` stands for any file whose path ends so; `` `fence.rs::check_fence` `` says
//! besides that such a file defines that function.
//!
//! A table of rules has the columns *model*, *simulation* and *conformance and tests*. What stands in them
//! has to be a property of the model, an invariant of the simulation, and a case of the conformance
//! suites or a test; and a paragraph below the table says why a cell is left empty.

use super::{Finding, finding, has_extension};
use crate::repository::Repository;

pub(crate) fn check(repository: &Repository) -> Vec<Finding> {
    let sources = repository.texts(|path| has_extension(path, &["rs"]));
    let mut findings = Vec::new();
    for (page, text) in repository.texts(|path| has_extension(path, &["md"])) {
        check_rules(&sources, page, &text, &mut findings);
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

/// The head of a table of rules.
const RULES: &str = "| rule | enforced by | model | simulation | conformance and tests |";
/// A cell that names nothing.
const NOTHING: &str = "—";

fn check_rules(sources: &[(&str, String)], page: &str, text: &str, findings: &mut Vec<Finding>) {
    let mut lines = (1..).zip(text.lines());
    while lines.by_ref().any(|(_, content)| content == RULES) {
        let mut has_gaps = false;
        // Below the head stands the rule of dashes.
        let rows = lines.by_ref().skip(1);
        let mut end = 0;
        for (line, row) in rows.take_while(|(_, row)| row.starts_with('|')) {
            end = line + 1;
            let cells: Vec<_> = row.trim_matches('|').split('|').map(str::trim).collect();
            let &[_, enforced, model, simulation, shown] = cells.as_slice() else {
                findings.push(finding(page, line, "a row of rules has five cells"));
                continue;
            };
            if backticked(enforced).next().is_none() || backticked(shown).next().is_none() {
                findings.push(finding(page, line, "nothing enforces or shows this rule"));
            }
            has_gaps |= model == NOTHING || simulation == NOTHING;
            let columns = [
                (model, Column::Model),
                (simulation, Column::Simulation),
                (shown, Column::Shown),
            ];
            for (cell, column) in columns {
                if cell != NOTHING && backticked(cell).next().is_none() {
                    findings.push(finding(page, line, "an empty cell: say — and why below"));
                }
                for name in backticked(cell).filter(|name| !column.knows(sources, name)) {
                    let problem = column.problem();
                    findings.push(finding(page, line, format!("`{name}`: {problem}")));
                }
            }
        }
        let below = lines.by_ref().find(|(_, content)| !content.is_empty());
        if has_gaps && !below.is_some_and(|(_, content)| content.starts_with(NOTHING)) {
            findings.push(finding(
                page,
                end,
                "no paragraph with — says why cells are empty",
            ));
        }
    }
}

#[derive(Clone, Copy)]
enum Column {
    Model,
    Simulation,
    Shown,
}

impl Column {
    fn knows(self, sources: &[(&str, String)], name: &str) -> bool {
        let contains = |place: &str, wanted: &str| {
            let mut sources = sources.iter().filter(|(path, _)| path.contains(place));
            sources.any(|(_, text)| text.contains(wanted))
        };
        match self {
            Column::Model => contains("verify/model/src/model.rs", &format!("\"{name}\",")),
            Column::Simulation => {
                let file = format!("verify/sim/src/invariants/{name}.rs");
                sources.iter().any(|(path, _)| path.ends_with(&file))
            }
            // Files and their tests are looked up as on every page.
            Column::Shown if name.contains(".rs") || name == "compile_fail" => true,
            Column::Shown => contains("verify/conformance/src/", &format!("async fn {name}<")),
        }
    }

    fn problem(self) -> &'static str {
        match self {
            Column::Model => "the model has no such property",
            Column::Simulation => "the simulation has no such invariant",
            Column::Shown => "the conformance suites have no such case",
        }
    }
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
