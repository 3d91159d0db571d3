//! The lines of the result, as a table for `docs/benchmarks.md`.

use std::fmt::Write;

use crate::measure::{Pair, Spread};

/// What counts as reached.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Goal {
    AtMost(f64),
    AtLeast(f64),
    /// Measured to be known.
    None,
}

/// One line of the table. The goal is for the ratio where there is a bare thing, else for the value.
#[derive(Debug)]
pub(crate) struct Line {
    pub(crate) case: &'static str,
    pub(crate) what: String,
    pub(crate) unit: &'static str,
    pub(crate) ours: Spread,
    pub(crate) bare: Option<(Spread, Spread)>,
    pub(crate) goal: Goal,
}

impl Line {
    /// A measurement beside the bare thing.
    pub(crate) fn pair(
        case: &'static str,
        what: impl Into<String>,
        unit: &'static str,
        pair: Pair,
        goal: Goal,
    ) -> Self {
        Self {
            case,
            what: what.into(),
            unit,
            ours: pair.ours,
            bare: Some((pair.bare, pair.ratio)),
            goal,
        }
    }

    /// A measurement alone.
    pub(crate) fn alone(
        case: &'static str,
        what: impl Into<String>,
        unit: &'static str,
        ours: Spread,
        goal: Goal,
    ) -> Self {
        Self {
            case,
            what: what.into(),
            unit,
            ours,
            bare: None,
            goal,
        }
    }
}

pub(crate) fn markdown(lines: &[Line]) -> String {
    let mut table = String::from(
        "| case | what | Aster | bare | ratio | goal | reached |\n|---|---|---|---|---|---|---|\n",
    );
    for line in lines {
        let (bare, ratio) = match line.bare {
            Some((bare, ratio)) => (cell(bare, line.unit), cell(ratio, "")),
            None => ("–".to_owned(), "–".to_owned()),
        };
        let judged = line.bare.map_or(line.ours, |(_, ratio)| ratio).median;
        let (goal, reached) = match line.goal {
            Goal::AtMost(bound) => (format!("≤ {}", figure(bound)), yes(judged <= bound)),
            Goal::AtLeast(bound) => (format!("≥ {}", figure(bound)), yes(judged >= bound)),
            Goal::None => ("–".to_owned(), "–"),
        };
        // Writing to a string does not fail.
        let _ = writeln!(
            table,
            "| {} | {} | {} | {bare} | {ratio} | {goal} | {reached} |",
            line.case,
            line.what,
            cell(line.ours, line.unit),
        );
    }
    table
}

fn cell(spread: Spread, unit: &str) -> String {
    let text = format!(
        "{} ({} to {}) {unit}",
        figure(spread.median),
        figure(spread.min),
        figure(spread.max)
    );
    text.trim_end().to_owned()
}

/// Three digits, or all of a large number.
fn figure(value: f64) -> String {
    let digits = match value.abs() {
        size if size >= 100.0 => 0,
        size if size >= 10.0 => 1,
        size if size >= 1.0 => 2,
        _ => 3,
    };
    let text = format!("{value:.digits$}");
    match text.split_once('.') {
        Some((whole, part)) if part.chars().all(|digit| digit == '0') => whole.to_owned(),
        _ => text,
    }
}

fn yes(reached: bool) -> &'static str {
    if reached { "yes" } else { "no" }
}
