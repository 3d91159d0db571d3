//! Every crate carries its metadata and the workspace's lints.

use super::{Finding, finding};
use crate::repository::Repository;

/// Lines that every crate of the workspace has, each as `key = …` or `key.workspace = true`.
const KEYS: [&str; 6] = [
    "name",
    "description",
    "version",
    "edition",
    "rust-version",
    "license",
];
/// Lines that a crate which is published has besides.
const PUBLISHED_KEYS: [&str; 3] = ["keywords", "categories", "readme"];

pub(crate) fn check(repository: &Repository) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, text) in repository.texts(|path| path.ends_with("/Cargo.toml")) {
        let keys: Vec<&str> = text
            .lines()
            .take_while(|line| !line.starts_with('[') || *line == "[package]")
            .filter_map(|line| line.split(['=', '.']).next())
            .map(str::trim)
            .collect();
        let published = !text.lines().any(|line| line == "publish = false");
        let wanted = KEYS
            .iter()
            .chain(PUBLISHED_KEYS.iter().filter(|_| published));
        for key in wanted {
            if !keys.contains(key) {
                findings.push(finding(path, 0, format!("[package] has no `{key}`")));
            }
        }
        let own_workspace = text.lines().any(|line| line == "[workspace]");
        if !own_workspace && !text.contains("[lints]\nworkspace = true") {
            findings.push(finding(path, 0, "no `[lints]` with `workspace = true`"));
        }
    }
    findings
}
