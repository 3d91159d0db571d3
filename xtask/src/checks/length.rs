//! Source files stay short enough to be read top down.

use super::{Finding, finding, has_extension};
use crate::repository::Repository;

/// The longest source file, in lines.
pub(super) const FILE_LINES_MAX: usize = 599;

pub(crate) fn check(repository: &Repository) -> Vec<Finding> {
    repository
        .texts(|path| has_extension(path, &["rs", "py", "ts", "js", "sh"]))
        .into_iter()
        .filter_map(|(path, text)| {
            let lines = text.lines().count();
            (lines > FILE_LINES_MAX)
                .then(|| finding(path, 0, format!("{lines} lines, at most {FILE_LINES_MAX}")))
        })
        .collect()
}
