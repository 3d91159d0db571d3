//! Copies the engine's sources and exchanges what they lock, wait and sleep with.
//!
//! The product's sources know nothing of this: no feature, no `cfg`, no module of theirs is here for it.
//! A build script of `lease/` and of `planted/` calls [`build`], which copies every file of
//! `crates/aster-lease/src` and changes these words:
//!
//! | in the product | in the copy |
//! |---|---|
//! | `std::sync::…` | the scheduler's locks, condition variables and atomics |
//! | `tokio::…` | the stand-in for tokio: tasks of the scheduler, the world's own time |
//! | `thread_local!`, `static … LazyLock` | the scheduler's, which begin anew with each execution |
//! | a few constants ([`SIZES`]) | small ones, so that rows, cells and batches meet |
//!
//! In `planted/` the bugs of the controls ([`PLANTS`]) are added, each behind a switch. Words that are not
//! found exactly as often as they should be break the build, so no control can quietly lose its bug.

mod plants;

use std::env;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

pub use plants::{PLANTS, Plant};

/// The engine's sources, from a manifest one directory below `verify/interleavings`.
const SOURCES: &str = "../../../crates/aster-lease/src";

/// Constants that are made small, so that few threads meet: the file, the constant, and its value here.
pub const SIZES: &[(&str, &str, &str)] = &[
    (
        "memory/mod.rs",
        "const SHARDS: usize = 64;",
        "const SHARDS: usize = 1;",
    ),
    (
        "memory/board.rs",
        "const CELLS: usize = 4;",
        "const CELLS: usize = 1;",
    ),
];

/// Words of code that would get past the exchange.
const FORBIDDEN: &[&str] = &[
    "std::{",
    "use std::sync;",
    "core::sync",
    "alloc::sync",
    "use tokio;",
    "std::thread",
];

/// The sources cannot be copied.
#[derive(Debug, thiserror::Error)]
pub enum ExchangeError {
    /// The file system said no.
    #[error("{}: {source}", path.display())]
    File {
        /// Which file.
        path: PathBuf,
        /// What it said.
        source: io::Error,
    },
    /// Cargo did not say where things are.
    #[error("the build script's environment: {0}")]
    Environment(#[from] env::VarError),
    /// The sources have changed, and what is exchanged has to follow them.
    #[error(
        "{file} has changed: what `{what}` in verify/interleavings/exchange/src exchanges is there {found} \
         times instead of once:\n{words}"
    )]
    Words {
        /// The file, below the engine's sources.
        file: String,
        /// What was to be exchanged: the name of a plant, for example.
        what: &'static str,
        /// How often it is there.
        found: usize,
        /// What was looked for.
        words: String,
    },
    /// Something would get past the exchange.
    #[error("{file}: write out the path instead of `{words}`, so that it can be exchanged")]
    Forbidden {
        /// The file, below the engine's sources.
        file: String,
        /// What was found.
        words: &'static str,
    },
}

/// All that a build script does: writes the copy with `plants` into its output directory. If it cannot,
/// the build fails and says why.
pub fn build(plants: &[Plant]) {
    if let Err(error) = write(plants) {
        for line in error.to_string().lines() {
            println!("cargo::error={line}");
        }
    }
}

fn write(plants: &[Plant]) -> Result<(), ExchangeError> {
    let sources = PathBuf::from(env::var("CARGO_MANIFEST_DIR")?).join(SOURCES);
    let out = PathBuf::from(env::var("OUT_DIR")?);
    // All files below it, also when one is added.
    println!("cargo::rerun-if-changed={}", sources.display());
    let mut files = Vec::new();
    collect(&sources, Path::new(""), &mut files)?;
    for file in files {
        let from = sources.join(&file);
        let text = fs::read_to_string(&from).map_err(|source| ExchangeError::File {
            path: from.clone(),
            source,
        })?;
        let name = file.to_string_lossy().replace('\\', "/");
        let mut text = exchanged(&name, &text)?;
        for plant in plants.iter().filter(|plant| plant.file == name) {
            text = once(&name, plant.name, &text, plant.product, plant.bug)?;
        }
        // It becomes the root of the copy by `include!`, where no inner attribute may stand.
        if name == "lib.rs" {
            text = root(&text, &sources, &out);
        }
        put(&out.join(&file), &text)?;
    }
    Ok(())
}

fn collect(root: &Path, below: &Path, files: &mut Vec<PathBuf>) -> Result<(), ExchangeError> {
    let directory = root.join(below);
    let failed = |source| ExchangeError::File {
        path: directory.clone(),
        source,
    };
    for entry in fs::read_dir(&directory).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let path = below.join(entry.file_name());
        if entry.file_type().map_err(failed)?.is_dir() {
            collect(root, &path, files)?;
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
    Ok(())
}

/// The text with everything but the plants exchanged.
fn exchanged(file: &str, text: &str) -> Result<String, ExchangeError> {
    let is_code = |line: &&str| !line.trim_start().starts_with("//");
    for words in FORBIDDEN {
        if text
            .lines()
            .filter(is_code)
            .any(|line| line.contains(words))
        {
            return Err(ExchangeError::Forbidden {
                file: file.to_owned(),
                words,
            });
        }
    }
    let mut text = text
        .replace("std::sync::", "stand_in::std::sync::")
        .replace("thread_local!", "stand_in::thread_local!");
    text = with_path(&text, "tokio::", "stand_in::tokio::");
    for (_, product, small) in SIZES.iter().filter(|(at, ..)| *at == file) {
        text = once(file, "SIZES", &text, product, small)?;
    }
    while let Some(start) = text.find(": LazyLock<") {
        text = lazy(file, &text, start)?;
    }
    Ok(text)
}

/// Exchanges a path's first word where it is one.
fn with_path(text: &str, from: &str, to: &str) -> String {
    let mut parts = text.split(from);
    let mut new = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let is_first =
            !new.ends_with(|before: char| before.is_alphanumeric() || "_:".contains(before));
        new.push_str(if is_first { to } else { from });
        new.push_str(part);
    }
    new
}

/// `static NAME: LazyLock<T> = LazyLock::new(F);` as the scheduler's own lazy static. `colon` is where
/// the type begins.
fn lazy(file: &str, text: &str, colon: usize) -> Result<String, ExchangeError> {
    let unknown = || ExchangeError::Words {
        file: file.to_owned(),
        what: "a lazy static in one statement",
        found: 0,
        words: "static NAME: LazyLock<T> = LazyLock::new(F);".to_owned(),
    };
    let start = text[..colon].rfind("static ").ok_or_else(unknown)?;
    let name = &text[start + "static ".len()..colon];
    let rest = &text[colon + ": LazyLock<".len()..];
    let (kind, rest) = rest.split_once("> = LazyLock::new(").ok_or_else(unknown)?;
    let (make, rest) = rest.split_once(");").ok_or_else(unknown)?;
    // Its comment goes along.
    let comment = text[..start].rfind("\n\n").ok_or_else(unknown)?;
    let (before, comment) = text[..start].split_at(comment);
    let before = before.replace("LazyLock, ", "");
    Ok(format!(
        "{before}\n\nstand_in::lazy_static! {{{comment}static ref {name}: {kind} = ({make})(); }}{rest}"
    ))
}

fn once(
    file: &str,
    what: &'static str,
    text: &str,
    from: &str,
    to: &str,
) -> Result<String, ExchangeError> {
    match text.matches(from).count() {
        1 => Ok(text.replace(from, to)),
        found => Err(ExchangeError::Words {
            file: file.to_owned(),
            what,
            found,
            words: from.to_owned(),
        }),
    }
}

/// The engine's `lib.rs` as something to include: modules with their paths, and no inner comments. What
/// is included counts as made by a macro, so names have to say which module is meant.
fn root(text: &str, sources: &Path, out: &Path) -> String {
    let mut root = String::new();
    let mut modules = Vec::new();
    for line in text.lines().filter(|line| !line.starts_with("//!")) {
        let module = line.strip_prefix("pub mod ").or(line.strip_prefix("mod "));
        if let Some(module) = module.and_then(|module| module.strip_suffix(';')) {
            let directory = Path::new(module).join("mod.rs");
            let file = match sources.join(&directory).exists() {
                true => out.join(directory),
                false => out.join(format!("{module}.rs")),
            };
            root.push_str(&format!("#[path = {:?}]\n", file.display().to_string()));
            modules.push(module);
        }
        let used = line
            .strip_prefix("pub use ")
            .and_then(|path| path.split_once("::"));
        match used {
            Some((module, names)) if modules.contains(&module) => {
                root.push_str(&format!("pub use self::{module}::{names}"));
            }
            _ => root.push_str(line),
        }
        root.push('\n');
    }
    root
}

fn put(path: &Path, text: &str) -> Result<(), ExchangeError> {
    let failed = |source| ExchangeError::File {
        path: path.to_owned(),
        source,
    };
    if let Some(directory) = path.parent() {
        fs::create_dir_all(directory).map_err(failed)?;
    }
    fs::write(path, text).map_err(failed)
}
