//! The committed inputs: `corpus/TARGET/` to start from, `regressions/TARGET/` for what once failed.

use std::fs;
use std::path::{Path, PathBuf};

use crate::Target;

/// The directory with the inputs of `target`.
#[must_use]
pub fn directory(target: &Target) -> PathBuf {
    root().join("corpus").join(target.name)
}

/// The directory with the inputs at which `target` once failed.
#[must_use]
pub fn regressions(target: &Target) -> PathBuf {
    root().join("regressions").join(target.name)
}

/// All committed inputs of `target` with their names, in the order of their names.
///
/// # Panics
///
/// If a file cannot be read.
#[must_use]
pub fn load(target: &Target) -> Vec<(String, Vec<u8>)> {
    let mut inputs = Vec::new();
    for directory in [directory(target), regressions(target)] {
        let Ok(entries) = fs::read_dir(&directory) else {
            continue;
        };
        let mut paths: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
        paths.sort();
        for path in paths {
            let name = path.strip_prefix(root()).unwrap().display().to_string();
            inputs.push((name, fs::read(&path).unwrap()));
        }
    }
    inputs
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}
