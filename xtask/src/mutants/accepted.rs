//! The survivors that are accepted, each with its reason.
//!
//! ```text
//! crates/aster-core/src/row.rs: replace < with <= in next_epoch
//!   at: if epoch < EPOCH_MAX {
//!     Both say the same, because …
//! ```
//!
//! Several that share a reason stand one after the other above it. A blank line ends an entry. `at:` is the
//! line that is changed, or the rest of it from the change on where the line alone is ambiguous.

use super::tool::Mutant;

pub(crate) struct Accepted {
    entries: Vec<Entry>,
}

/// One change that no test notices.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    file: String,
    change: String,
    at: String,
    reason: String,
}

impl Entry {
    pub(crate) fn is_about(&self, mutant: &Mutant) -> bool {
        self.file == mutant.file
            && self.change == mutant.change
            && (self.at == mutant.line_text || self.at == mutant.rest_of_line)
    }

    pub(crate) fn name(&self) -> String {
        format!("{}: {} (at: {})", self.file, self.change, self.at)
    }
}

impl Accepted {
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let mut entries = Vec::new();
        let mut open = Vec::new();
        let mut reason = Vec::new();
        for (number, line) in (1..).zip(text.lines().chain([""])) {
            let trimmed = line.trim();
            if trimmed.starts_with('#') {
                continue;
            }
            if trimmed.is_empty() {
                close(&mut open, &mut reason, &mut entries)
                    .map_err(|message| format!("above line {number}: {message}"))?;
            } else if !line.starts_with(' ') {
                let (file, change) = line
                    .split_once(": ")
                    .ok_or(format!("line {number}: no `FILE: CHANGE`"))?;
                open.push((file.to_owned(), change.to_owned(), None));
            } else if let Some(at) = trimmed.strip_prefix("at: ") {
                let (_, _, place) = open
                    .last_mut()
                    .ok_or(format!("line {number}: `at:` without a change above it"))?;
                *place = Some(at.to_owned());
            } else {
                reason.push(trimmed);
            }
        }
        Ok(Self { entries })
    }

    pub(crate) fn find(&self, mutant: &Mutant) -> Option<&Entry> {
        self.entries.iter().find(|entry| entry.is_about(mutant))
    }

    /// Entries that are about none of `all`, or about more than one.
    pub(crate) fn stale<'a>(
        &'a self,
        all: &'a [Mutant],
    ) -> impl Iterator<Item = (&'a Entry, usize)> {
        self.entries
            .iter()
            .map(|entry| {
                (
                    entry,
                    all.iter().filter(|mutant| entry.is_about(mutant)).count(),
                )
            })
            .filter(|(_, count)| *count != 1)
    }
}

fn close(
    open: &mut Vec<(String, String, Option<String>)>,
    reason: &mut Vec<&str>,
    entries: &mut Vec<Entry>,
) -> Result<(), String> {
    let reason = std::mem::take(reason).join(" ");
    if reason.is_empty() != open.is_empty() {
        return Err("a change needs a reason below it, and a reason a change above it".to_owned());
    }
    for (file, change, at) in open.drain(..) {
        let at = at.ok_or(format!("`{change}` needs `at:` below it"))?;
        entries.push(Entry {
            file,
            change,
            at,
            reason: reason.clone(),
        });
    }
    Ok(())
}
