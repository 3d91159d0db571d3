//! What the person wants to be tried.

use std::hash::{BuildHasher, RandomState};
use std::path::PathBuf;

use aster_evidence::Options;

use super::tool::Mutant;

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Wish {
    /// Try what fits into this time, in an order that the seed gives. None: all, in the order of the
    /// sources.
    pub(crate) seconds: Option<u64>,
    pub(crate) evidence: Option<PathBuf>,
    pub(crate) seed: u64,
    /// None: both crates.
    package: Option<&'static str>,
    /// Empty: all files.
    files: Vec<String>,
}

impl Wish {
    pub(crate) fn parse(arguments: &[String]) -> Result<Self, String> {
        let (options, others) =
            Options::take(arguments.iter().cloned()).map_err(|error| error.to_string())?;
        let mut wish = Self {
            seconds: options.seconds,
            evidence: options.evidence,
            // Another one in every run; it is printed, and with `--seed` the order comes again.
            seed: RandomState::new().hash_one(0) % 1_000_000,
            package: None,
            files: Vec::new(),
        };
        let mut words = others.into_iter();
        while let Some(word) = words.next() {
            match word.as_str() {
                "--core" => wish.package = Some("aster-core"),
                "--engine" => wish.package = Some("aster-lease"),
                "--seed" => {
                    let text = words.next().ok_or("--seed needs a number")?;
                    wish.seed = text
                        .parse()
                        .map_err(|_| format!("--seed needs a number, not {text}"))?;
                }
                option if option.starts_with('-') => {
                    return Err(format!(
                        "{option} is not understood; there are --core, --engine, --seconds N, --seed S, --evidence FILE, and files"
                    ));
                }
                _ => wish.files.push(word),
            }
        }
        Ok(wish)
    }

    pub(crate) fn is_wanted(&self, mutant: &Mutant) -> bool {
        let is_named =
            |file: &String| mutant.file == *file || mutant.file.ends_with(&format!("/{file}"));
        self.package
            .is_none_or(|package| mutant.target.package == package)
            && (self.files.is_empty() || self.files.iter().any(is_named))
    }

    /// The command that tries the same, in the same order.
    pub(crate) fn command(&self) -> String {
        let mut command = "cargo xtask mutants".to_owned();
        match self.package {
            Some("aster-core") => command.push_str(" --core"),
            Some(_) => command.push_str(" --engine"),
            None => {}
        }
        if let Some(seconds) = self.seconds {
            command.push_str(&format!(" --seconds {seconds} --seed {}", self.seed));
        }
        for file in &self.files {
            command.push_str(&format!(" {file}"));
        }
        command
    }

    /// Puts `items` into the order that the seed gives.
    pub(crate) fn shuffle<T>(&self, items: &mut [T]) {
        let mut state = self.seed;
        for last in (1..items.len()).rev() {
            let other = next(&mut state) % (last as u64 + 1);
            items.swap(last, usize::try_from(other).unwrap_or(last));
        }
    }
}

/// Splitmix64: enough to choose an order.
fn next(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut mixed = *state;
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}
