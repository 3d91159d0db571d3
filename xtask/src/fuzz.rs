//! `cargo xtask fuzz`: the fuzz targets under libFuzzer, guided by coverage, on the stable toolchain.

use std::path::PathBuf;
use std::process::{Command, ExitCode};

use crate::repository::Repository;

const USAGE: &str = "\
usage: cargo xtask fuzz [TARGET…] [--seconds N]   run libFuzzer on each target, or on all, for N seconds each
       cargo xtask fuzz --minimize [TARGET…]      put the fewest inputs that reach as much into the corpus
       cargo xtask fuzz --list                    name the targets
";
/// How long each target runs by default, in seconds.
const SECONDS: u64 = 60;
/// Wrong use.
const USAGE_CODE: u8 = 64;
/// One input that takes longer is a failure, in seconds.
const INPUT_SECONDS_MAX: u32 = 60;
/// More memory than this is a failure.
const MEMORY_MIB_MAX: u32 = 1_024;
/// The longest input in the committed corpus.
const BYTES_MAX: u32 = 600;

/// What the compiler adds so that libFuzzer sees which edges an input takes and what it compares.
const COVERAGE: [&str; 6] = [
    "-Cpasses=sancov-module",
    "-Cllvm-args=-sanitizer-coverage-level=4",
    "-Cllvm-args=-sanitizer-coverage-inline-8bit-counters",
    "-Cllvm-args=-sanitizer-coverage-pc-table",
    "-Cllvm-args=-sanitizer-coverage-trace-compares",
    "--cfg=fuzzing",
];

struct Asked {
    targets: Vec<String>,
    seconds: u64,
    minimizes: bool,
}

/// Runs the targets that `arguments` name.
pub(crate) fn run(repository: &Repository, arguments: &[String]) -> ExitCode {
    let place = Place::of(repository);
    let known = place.targets();
    if arguments == ["--list"] {
        for target in known {
            println!("{target}");
        }
        return ExitCode::SUCCESS;
    }
    let Some(asked) = ask(arguments, &known) else {
        eprint!("{USAGE}");
        return ExitCode::from(USAGE_CODE);
    };
    let mut failed = Vec::new();
    for target in &asked.targets {
        let outcome = match asked.minimizes {
            true => place.minimize(target),
            false => place.fuzz(target, asked.seconds),
        };
        if let Err(message) = outcome {
            eprintln!("xtask: {target}: {message}");
            failed.push(target.as_str());
        }
    }
    if failed.is_empty() {
        return ExitCode::SUCCESS;
    }
    eprintln!(
        "failed: {}; the input is in {}: put it into verify/fuzz/regressions/TARGET/",
        failed.join(", "),
        place.artifacts().display()
    );
    ExitCode::FAILURE
}

fn ask(arguments: &[String], known: &[String]) -> Option<Asked> {
    let mut asked = Asked {
        targets: Vec::new(),
        seconds: SECONDS,
        minimizes: false,
    };
    let mut words = arguments.iter();
    while let Some(word) = words.next() {
        match word.as_str() {
            "--seconds" => asked.seconds = words.next()?.parse().ok()?,
            "--minimize" => asked.minimizes = true,
            target if known.iter().any(|it| it == target) => asked.targets.push(target.to_owned()),
            _ => return None,
        }
    }
    if asked.targets.is_empty() {
        asked.targets = known.to_vec();
    }
    Some(asked)
}

/// Where everything is.
struct Place {
    root: PathBuf,
}

impl Place {
    fn of(repository: &Repository) -> Self {
        Self {
            root: repository.root().to_owned(),
        }
    }

    fn fuzz_crate(&self) -> PathBuf {
        self.root.join("verify/fuzz")
    }

    fn build_directory(&self) -> PathBuf {
        self.root.join("target/libfuzzer")
    }

    /// What libFuzzer has found worth keeping; it grows from run to run.
    fn found(&self, target: &str) -> PathBuf {
        self.build_directory().join("corpus").join(target)
    }

    fn artifacts(&self) -> PathBuf {
        self.build_directory().join("artifacts")
    }

    /// One file for each target.
    fn targets(&self) -> Vec<String> {
        let directory = self.fuzz_crate().join("libfuzzer/targets");
        let mut targets: Vec<String> = std::fs::read_dir(directory)
            .into_iter()
            .flatten()
            .flatten()
            .filter_map(|entry| {
                let name = entry.file_name();
                name.to_str()?.strip_suffix(".rs").map(str::to_owned)
            })
            .collect();
        targets.sort();
        targets
    }

    /// Builds one target and says where it is.
    fn build(&self, target: &str) -> Result<PathBuf, String> {
        let triple = host_triple()?;
        // Named, so that build scripts and macros are left without coverage: they could not be linked.
        let status = Command::new("cargo")
            .args(["build", "--quiet", "--release", "--bin", target])
            .args(["--target", &triple, "--manifest-path"])
            .arg(self.fuzz_crate().join("libfuzzer/Cargo.toml"))
            .arg("--target-dir")
            .arg(self.build_directory())
            .env("CARGO_ENCODED_RUSTFLAGS", COVERAGE.join("\u{1f}"))
            .status();
        succeeded("cargo build", status)?;
        Ok(self
            .build_directory()
            .join(triple)
            .join("release")
            .join(target))
    }

    fn fuzz(&self, target: &str, seconds: u64) -> Result<(), String> {
        let program = self.build(target)?;
        for directory in [self.found(target), self.artifacts()] {
            std::fs::create_dir_all(&directory).map_err(|error| error.to_string())?;
        }
        let mut command = Command::new(program);
        command
            .arg(format!("-max_total_time={seconds}"))
            .arg(format!("-timeout={INPUT_SECONDS_MAX}"))
            .arg(format!("-rss_limit_mb={MEMORY_MIB_MAX}"))
            .arg(format!(
                "-artifact_prefix={}/{target}-",
                self.artifacts().display()
            ))
            .args(["-print_final_stats=1", "-max_len=4096"])
            .arg(self.found(target));
        self.add_committed(&mut command, target);
        succeeded("libFuzzer", command.status())
    }

    /// Adds the committed inputs and the words of the target.
    fn add_committed(&self, command: &mut Command, target: &str) {
        for kind in ["corpus", "regressions"] {
            let directory = self.fuzz_crate().join(kind).join(target);
            if directory.is_dir() {
                command.arg(directory);
            }
        }
        let dictionary = self
            .fuzz_crate()
            .join("dictionaries")
            .join(format!("{target}.dict"));
        if dictionary.is_file() {
            command.arg(format!("-dict={}", dictionary.display()));
        }
    }

    /// Merges what was found into the committed corpus: an input stays only if it reaches something new.
    fn minimize(&self, target: &str) -> Result<(), String> {
        let program = self.build(target)?;
        let corpus = self.fuzz_crate().join("corpus").join(target);
        std::fs::create_dir_all(&corpus).map_err(|error| error.to_string())?;
        let status = Command::new(program)
            .arg("-merge=1")
            .arg(format!("-max_len={BYTES_MAX}"))
            .arg(&corpus)
            .arg(self.found(target))
            .status();
        succeeded("libFuzzer", status)
    }
}

fn host_triple() -> Result<String, String> {
    let output = Command::new("rustc").arg("-vV").output();
    let output = output.map_err(|error| format!("rustc: {error}"))?;
    String::from_utf8_lossy(&output.stdout)
        .lines()
        .find_map(|line| line.strip_prefix("host: "))
        .map(str::to_owned)
        .ok_or_else(|| "rustc does not say its host".to_owned())
}

fn succeeded(what: &str, status: std::io::Result<std::process::ExitStatus>) -> Result<(), String> {
    match status {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("{what} ended with {status}")),
        Err(error) => Err(format!("{what}: {error}")),
    }
}
