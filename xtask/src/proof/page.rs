//! The page: every figure on it was printed by a program of this run.

use std::fmt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use aster_evidence::{Control, Evidence, machine};

/// What became of a part.
#[derive(Debug)]
pub(crate) enum Outcome {
    /// It ran, and this is what it saw.
    Seen(Evidence),
    /// It said nothing that counts, and why.
    Nothing(String),
}

impl Outcome {
    /// Whether everything held and every control was caught.
    pub(crate) fn is_sound(&self) -> bool {
        match self {
            Outcome::Seen(evidence) => evidence.is_sound(),
            Outcome::Nothing(_) => false,
        }
    }

    pub(crate) fn verdict(&self) -> &'static str {
        match self {
            Outcome::Seen(evidence) if evidence.is_sound() => "held",
            Outcome::Seen(_) => "BROKEN",
            Outcome::Nothing(_) => "NO EVIDENCE",
        }
    }
}

/// Everything that the page says.
pub(crate) struct Page<'a> {
    pub(crate) commit: String,
    /// What was typed.
    pub(crate) command: String,
    pub(crate) took: Duration,
    pub(crate) outcomes: Vec<(&'static str, &'a Outcome)>,
}

/// The commit that is checked out at `root`, and whether files differ from it.
pub(crate) fn commit(root: &Path) -> Result<String, String> {
    let git = |words: &[&str]| -> Result<String, String> {
        let output = Command::new("git")
            .args(words)
            .current_dir(root)
            .output()
            .map_err(|error| format!("git: {error}"))?;
        Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    let commit = git(&["rev-parse", "--short=12", "HEAD"])?;
    let changed = git(&["status", "--porcelain"])?;
    Ok(match changed.is_empty() {
        true => commit,
        false => format!("{commit} with uncommitted changes"),
    })
}

impl Page<'_> {
    pub(crate) fn is_sound(&self) -> bool {
        self.outcomes.iter().all(|(_, outcome)| outcome.is_sound())
    }

    fn summary(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            formatter,
            "| part | verdict | seconds | tried | rules held | controls caught |\n|---|---|---|---|---|---|"
        )?;
        for (name, outcome) in &self.outcomes {
            write!(formatter, "| [{name}](#{name}) | {} | ", outcome.verdict())?;
            let Outcome::Seen(evidence) = outcome else {
                writeln!(formatter, "– | – | – | – |")?;
                continue;
            };
            let tried = match evidence.tried.first() {
                Some((what, times)) => format!("{} {what}", grouped(*times)),
                None => "–".to_owned(),
            };
            let caught = evidence.controls.iter().filter(|control| control.is_caught);
            writeln!(
                formatter,
                "{} | {} | {} | {} of {} |",
                evidence.seconds,
                cell(&tried),
                evidence.held.len(),
                caught.count(),
                evidence.controls.len(),
            )?;
        }
        Ok(())
    }
}

impl fmt::Display for Page<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            formatter,
            "`{}` at commit {}, in {} s on {}:\n",
            self.command,
            self.commit,
            self.took.as_secs(),
            machine(),
        )?;
        let verdict = match self.is_sound() {
            true => "Every rule held and every control was caught.",
            false => "**Not everything held**, or a control was not caught: see below.",
        };
        writeln!(formatter, "{verdict}\n")?;
        self.summary(formatter)?;
        for (name, outcome) in &self.outcomes {
            writeln!(formatter, "\n### {name}\n")?;
            match outcome {
                Outcome::Seen(evidence) => section(evidence, formatter)?,
                Outcome::Nothing(why) => writeln!(formatter, "**No evidence**: {why}")?,
            }
        }
        Ok(())
    }
}

fn section(evidence: &Evidence, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
    writeln!(
        formatter,
        "{}: `{}`, {} s.",
        capitalized(&evidence.what),
        evidence.command,
        evidence.seconds
    )?;
    if !evidence.broken.is_empty() {
        writeln!(formatter, "\n**Broken:**\n")?;
        for what in &evidence.broken {
            writeln!(formatter, "- {what}")?;
        }
    }
    if !evidence.tried.is_empty() {
        writeln!(formatter, "\n| tried | times |\n|---|---|")?;
        for (what, times) in &evidence.tried {
            writeln!(formatter, "| {} | {} |", cell(what), grouped(*times))?;
        }
    }
    if !evidence.seeds.is_empty() {
        writeln!(formatter, "\nSeeds: {}.", evidence.seeds.join(", "))?;
    }
    if !evidence.held.is_empty() {
        writeln!(formatter, "\nHeld:\n")?;
        for rule in &evidence.held {
            writeln!(formatter, "- {rule}")?;
        }
    }
    let unproven = evidence.rules_without_a_control();
    if !unproven.is_empty() {
        writeln!(
            formatter,
            "\nHeld, and nothing planted was caught under it:\n"
        )?;
        for rule in unproven {
            writeln!(formatter, "- {rule}")?;
        }
    }
    controls(&evidence.controls, formatter)?;
    if !evidence.not_covered.is_empty() {
        writeln!(formatter, "\nNot covered:\n")?;
        for what in &evidence.not_covered {
            writeln!(formatter, "- {what}")?;
        }
    }
    Ok(())
}

/// Those that nothing noticed stand in the open, the others folded: a page must be readable.
fn controls(controls: &[Control], formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
    if controls.is_empty() {
        return Ok(());
    }
    let (caught, missed): (Vec<_>, Vec<_>) = controls.iter().partition(|control| control.is_caught);
    if !missed.is_empty() {
        writeln!(formatter, "\n**Missed controls:**\n")?;
        table(&missed, formatter)?;
    }
    writeln!(
        formatter,
        "\n<details><summary>{} of {} controls caught</summary>\n",
        caught.len(),
        controls.len()
    )?;
    table(&caught, formatter)?;
    writeln!(formatter, "\n</details>")
}

fn table(controls: &[&Control], formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
    writeln!(formatter, "| planted | breaks | seen |\n|---|---|---|")?;
    for control in controls {
        writeln!(
            formatter,
            "| {} | {} | {} |",
            cell(&control.planted),
            cell(&control.rule),
            cell(&control.seen),
        )?;
    }
    Ok(())
}

/// Text that does not end a cell of a table.
fn cell(text: &str) -> String {
    text.replace('|', "\\|").replace('\n', " ")
}

/// 1234567 as 1,234,567.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

fn capitalized(text: &str) -> String {
    let mut characters = text.chars();
    match characters.next() {
        Some(first) => first.to_uppercase().chain(characters).collect(),
        None => String::new(),
    }
}

#[cfg(test)]
mod pages {
    use super::{Outcome, Page, grouped};
    use aster_evidence::Evidence;
    use std::time::Duration;

    fn page(outcome: &Outcome) -> Page<'_> {
        Page {
            commit: "abc".to_owned(),
            command: "cargo xtask proof --minutes 1".to_owned(),
            took: Duration::from_secs(61),
            outcomes: vec![("model", outcome)],
        }
    }

    fn evidence() -> Evidence {
        let mut evidence = Evidence::new("model", "orders of events", "cargo run");
        evidence.tried("states", 1_234_567);
        evidence.seed(7);
        evidence.held("epochs grow");
        evidence.caught("epochs grow", "a floor | raised late", "13 steps");
        evidence.not_covered("four holders");
        evidence
    }

    #[test]
    fn every_figure_of_the_evidence_is_on_the_page() {
        let text = page(&Outcome::Seen(evidence())).to_string();
        for part in [
            "| [model](#model) | held | 0 | 1,234,567 states | 1 | 1 of 1 |",
            "| states | 1,234,567 |",
            "Seeds: 7.",
            "- epochs grow",
            "<summary>1 of 1 controls caught</summary>",
            "| a floor \\| raised late | epochs grow | 13 steps |",
            "- four holders",
            "Every rule held and every control was caught.",
        ] {
            assert!(text.contains(part), "{part} is missing in {text}");
        }
    }

    #[test]
    fn what_was_missed_broken_or_silent_is_not_called_held() {
        let mut missed = evidence();
        missed.missed("epochs grow", "a wall clock", "not found");
        let mut broken = evidence();
        broken.broken("epoch 3 was granted twice, seed 9");
        for outcome in [
            Outcome::Seen(missed),
            Outcome::Seen(broken),
            Outcome::Nothing("killed".to_owned()),
        ] {
            let text = page(&outcome).to_string();
            assert!(text.contains("Not everything held"), "{text}");
            assert!(!text.contains("| held |"), "{text}");
        }
    }

    #[test]
    fn a_missed_control_stands_in_the_open() {
        let mut missed = evidence();
        missed.missed("epochs grow", "a wall clock", "not found");
        let text = page(&Outcome::Seen(missed)).to_string();
        let open = text
            .find("| a wall clock | epochs grow | not found |")
            .unwrap();
        assert!(open < text.find("<details>").unwrap(), "{text}");
        assert!(text.contains("1 of 2 controls caught"), "{text}");
    }

    #[test]
    fn digits_are_grouped_by_three() {
        let texts = [0, 7, 999, 1_000, 12_345, 1_000_000].map(grouped);
        assert_eq!(texts, ["0", "7", "999", "1,000", "12,345", "1,000,000"]);
    }
}
