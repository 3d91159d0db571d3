//! `cargo xtask proof`: runs everything that shows the promise, for a given time, and writes one page of
//! what was tried, which controls were caught, and what is not covered.

mod page;
mod parts;
mod workspace_tests;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;

use aster_evidence::{Deadline, Evidence};

use crate::printed;
use crate::repository::Repository;
use page::{Outcome, Page};
use parts::{PARTS, Part, Program};

const PAGE: &str = "docs/proof.md";
/// How long all parts with a share of the time go on together, in minutes, when nothing is said.
const MINUTES: u64 = 30;
/// A part that goes on longer than its share by this hangs, and is killed.
const GRACE_S: u64 = 900;
/// How often a running part is looked at.
const LOOK: Duration = Duration::from_millis(200);

/// Runs the parts named in `arguments`, or all. What named parts saw is written to the page with `--page`
/// only, or to where `--output` says.
pub(crate) fn run(repository: &Repository, arguments: &[String]) -> ExitCode {
    let wish = match Wish::parse(arguments) {
        Ok(wish) => wish,
        Err(message) => {
            eprintln!("xtask proof: {message}");
            return ExitCode::from(64);
        }
    };
    match prove(repository, &wish) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(message) => {
            eprintln!("xtask proof: {message}");
            ExitCode::FAILURE
        }
    }
}

/// Names the parts.
pub(crate) fn list() {
    for part in PARTS {
        println!("{:<14} {}", part.name, part.what);
    }
}

/// What the person wants.
#[derive(Debug, PartialEq, Eq)]
struct Wish {
    minutes: u64,
    output: Option<PathBuf>,
    /// Whether the page in the docs is written although parts are named: it says which.
    writes_page: bool,
    /// Empty: all.
    names: Vec<String>,
}

impl Wish {
    fn parse(arguments: &[String]) -> Result<Self, String> {
        let mut wish = Self {
            minutes: MINUTES,
            output: None,
            writes_page: false,
            names: Vec::new(),
        };
        let mut words = arguments.iter();
        while let Some(word) = words.next() {
            match word.as_str() {
                "--minutes" => {
                    let text = words.next().ok_or("--minutes needs a number")?;
                    wish.minutes = match text.parse() {
                        Ok(minutes @ 1..=100_000) => minutes,
                        _ => return Err(format!("--minutes needs 1 to 100000, not {text}")),
                    };
                }
                "--output" => {
                    wish.output = Some(words.next().ok_or("--output needs a file")?.into());
                }
                "--page" => wish.writes_page = true,
                name if PARTS.iter().any(|part| part.name == name) => {
                    wish.names.push(name.to_owned());
                }
                other => {
                    let names: Vec<_> = PARTS.iter().map(|part| part.name).collect();
                    return Err(format!(
                        "no part is called {other}; there are {}",
                        names.join(", ")
                    ));
                }
            }
        }
        Ok(wish)
    }

    /// The command that a person types for it.
    fn command(&self) -> String {
        let names = self.names.iter().map(|name| format!(" {name}"));
        format!(
            "cargo xtask proof --minutes {}{}",
            self.minutes,
            names.collect::<String>()
        )
    }

    fn is_wanted(&self, part: &Part) -> bool {
        self.names.is_empty() || self.names.iter().any(|name| name == part.name)
    }
}

/// Whether everything held and every control was caught.
fn prove(repository: &Repository, wish: &Wish) -> Result<bool, String> {
    let wanted: Vec<&Part> = PARTS.iter().filter(|part| wish.is_wanted(part)).collect();
    let shares: u64 = wanted.iter().map(|part| part.share).sum();
    let directory = repository.root().join("target/proof");
    std::fs::create_dir_all(&directory)
        .map_err(|error| format!("{}: {error}", directory.display()))?;
    let started = Deadline::after_s(0);
    let commit = page::commit(repository.root())?;
    let mut outcomes = Vec::new();
    for (number, part) in (1..).zip(&wanted) {
        let seconds = wish.minutes * 60 * part.share / shares.max(1);
        eprintln!(
            "\n== {number} of {}: {}, {}",
            wanted.len(),
            part.name,
            match seconds {
                0 => "as long as it takes".to_owned(),
                seconds => format!("{seconds} s"),
            }
        );
        let file = directory.join(format!("{}.json", part.name));
        let outcome = run_part(repository.root(), part, seconds, &file);
        eprintln!("-- {}: {}", part.name, outcome.verdict());
        outcomes.push((part, outcome));
    }
    let page = Page {
        commit,
        command: wish.command(),
        took: started.elapsed(),
        outcomes: outcomes
            .iter()
            .map(|(part, outcome)| (part.name, outcome))
            .collect(),
    };
    let is_sound = page.is_sound();
    match &wish.output {
        Some(path) => {
            std::fs::write(path, page.to_string())
                .map_err(|error| format!("{}: {error}", path.display()))?;
            println!("written to {}", path.display());
        }
        None if wish.names.is_empty() || wish.writes_page => {
            printed::put(repository, PAGE, &page.to_string())?;
            println!("written to {PAGE}");
        }
        None => print!("{page}"),
    }
    Ok(is_sound)
}

/// Builds and runs one part. Whatever goes wrong is an outcome too: the others still run.
fn run_part(root: &Path, part: &Part, seconds: u64, file: &Path) -> Outcome {
    // What an earlier run left must not count for this one.
    let _ = std::fs::remove_file(file);
    if let Some(words) = part.program.build() {
        match command(root, &words).status() {
            Ok(status) if status.success() => {}
            Ok(status) => return Outcome::Nothing(format!("`{}`: {status}", words.join(" "))),
            Err(error) => return Outcome::Nothing(format!("`{}`: {error}", words.join(" "))),
        }
    }
    let words = part.program.run();
    if let Program::Tests = part.program {
        return match workspace_tests::run(command(root, &words), &words.join(" ")) {
            Ok(evidence) => Outcome::Seen(evidence),
            Err(message) => Outcome::Nothing(message),
        };
    }
    let seconds_text = seconds.to_string();
    let mut command = command(root, &words);
    command
        .args(["--seconds", &seconds_text, "--evidence"])
        .arg(file);
    let ended = match wait(&mut command, seconds + GRACE_S) {
        Ok(ended) => ended,
        Err(message) => return Outcome::Nothing(format!("`{}`: {message}", words.join(" "))),
    };
    match Evidence::read(file) {
        // The exit code is the program's own verdict; the page must not be milder.
        Ok(evidence) if !ended.success() && evidence.is_sound() => Outcome::Nothing(format!(
            "`{}`: {ended}, although its evidence is sound",
            words.join(" ")
        )),
        Ok(evidence) => Outcome::Seen(evidence),
        Err(error) => Outcome::Nothing(format!("`{}`: {ended}; {error}", words.join(" "))),
    }
}

fn command(root: &Path, words: &[&str]) -> Command {
    let mut command = Command::new(words[0]);
    command
        .args(&words[1..])
        .current_dir(root)
        .stdin(Stdio::null());
    command
}

/// Waits for the end, but not for ever.
fn wait(command: &mut Command, limit_s: u64) -> Result<std::process::ExitStatus, String> {
    let mut child = command.spawn().map_err(|error| error.to_string())?;
    let deadline = Deadline::after_s(limit_s);
    loop {
        if let Some(status) = child.try_wait().map_err(|error| error.to_string())? {
            return Ok(status);
        }
        if deadline.is_over() {
            let _ = child.kill();
            let _ = child.wait();
            return Err(format!("no end after {limit_s} s"));
        }
        std::thread::sleep(LOOK);
    }
}

#[cfg(test)]
mod wishes {
    use super::{MINUTES, PARTS, Wish};

    fn parse(words: &[&str]) -> Result<Wish, String> {
        let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
        Wish::parse(&words)
    }

    #[test]
    fn all_parts_are_run_when_none_is_named() {
        let all = parse(&[]).unwrap();
        assert_eq!(all.minutes, MINUTES);
        assert!(PARTS.iter().all(|part| all.is_wanted(part)));
        let two = parse(&["model", "--minutes", "5", "sim"]).unwrap();
        assert_eq!(two.command(), "cargo xtask proof --minutes 5 model sim");
        let wanted: Vec<_> = PARTS.iter().filter(|part| two.is_wanted(part)).collect();
        assert_eq!(two.minutes, 5);
        assert_eq!(wanted.len(), 2);
    }

    #[test]
    fn nonsense_is_named() {
        assert!(parse(&["modle"]).unwrap_err().contains("modle"));
        assert!(parse(&["--minutes"]).is_err());
        assert!(parse(&["--minutes", "0"]).is_err());
        assert!(parse(&["--minutes", "99999999999999999999"]).is_err());
    }
}
