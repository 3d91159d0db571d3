//! Looks at the repository's files. Each check is a function from the repository to what it found.

pub(crate) mod length;
pub(crate) mod links;
pub(crate) mod manifests;
pub(crate) mod names;
pub(crate) mod quotes;
#[cfg(test)]
mod tests;
pub(crate) mod words;

use std::fmt;

/// Something that a person has to look at.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Finding {
    pub(crate) path: String,
    /// Counted from 1; 0 for the whole file.
    pub(crate) line: usize,
    pub(crate) message: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            0 => write!(formatter, "{}: {}", self.path, self.message),
            line => write!(formatter, "{}:{line}: {}", self.path, self.message),
        }
    }
}

pub(crate) fn finding(path: &str, line: usize, message: impl Into<String>) -> Finding {
    Finding {
        path: path.to_owned(),
        line,
        message: message.into(),
    }
}

pub(crate) fn has_extension(path: &str, extensions: &[&str]) -> bool {
    path.rsplit_once('.')
        .is_some_and(|(_, extension)| extensions.contains(&extension))
}
