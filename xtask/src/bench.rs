//! `cargo xtask bench`: a release build, the measurements, and their table in the docs.

use std::process::{Command, ExitCode, Stdio};

use crate::repository::Repository;

const PAGE: &str = "docs/benchmarks.md";
const BEGIN: &str = "<!-- begin: measured -->";
const END: &str = "<!-- end: measured -->";

/// Runs the cases named in `arguments`, or all. Only a whole run at full size is written to the page.
pub(crate) fn run(repository: &Repository, arguments: &[String]) -> ExitCode {
    match measure(repository, arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("xtask: {message}");
            ExitCode::FAILURE
        }
    }
}

fn measure(repository: &Repository, arguments: &[String]) -> Result<(), String> {
    // The measuring program starts another one that it finds beside itself.
    let build = ["build", "--release", "--locked", "--package", "aster-bench"];
    let built = cargo(repository, &build)
        .status()
        .map_err(|error| format!("cargo: {error}"))?;
    if !built.success() {
        return Err(format!("the release build failed ({built})"));
    }
    let run = [
        "run",
        "--quiet",
        "--release",
        "--locked",
        "--package",
        "aster-bench",
        "--bin",
        "aster-bench",
        "--",
    ];
    let output = cargo(repository, &run)
        .args(arguments)
        .stderr(Stdio::inherit())
        .output()
        .map_err(|error| format!("cargo: {error}"))?;
    let said = String::from_utf8_lossy(&output.stdout);
    print!("{said}");
    if !output.status.success() {
        return Err(format!("the measurements failed ({})", output.status));
    }
    if !arguments.is_empty() {
        return Ok(());
    }
    let page = replaced(&repository.read(PAGE)?, &said)?;
    let path = repository.root().join(PAGE);
    std::fs::write(path, page).map_err(|error| format!("{PAGE}: {error}"))?;
    println!("written to {PAGE}");
    Ok(())
}

/// The page with `measured` between its marks.
pub(crate) fn replaced(page: &str, measured: &str) -> Result<String, String> {
    let parts = page
        .split_once(BEGIN)
        .and_then(|(before, rest)| Some((before, rest.split_once(END)?.1)));
    let Some((before, after)) = parts else {
        return Err(format!("{PAGE} has no lines `{BEGIN}` and `{END}`"));
    };
    Ok(format!(
        "{before}{BEGIN}\n\n{}\n\n{END}{after}",
        measured.trim()
    ))
}

fn cargo(repository: &Repository, words: &[&str]) -> Command {
    let mut command = Command::new("cargo");
    command
        .args(words)
        .current_dir(repository.root())
        .stdin(Stdio::null());
    command
}

#[cfg(test)]
mod tests {
    use super::replaced;

    #[test]
    fn what_was_measured_takes_the_place_of_what_was_there() {
        let page = "# Page\n<!-- begin: measured -->\nold\n<!-- end: measured -->\nmore\n";
        let expected =
            "# Page\n<!-- begin: measured -->\n\n| new |\n\n<!-- end: measured -->\nmore\n";
        assert_eq!(replaced(page, "| new |\n").unwrap(), expected);
        assert_eq!(replaced(expected, "| new |\n").unwrap(), expected);
        assert!(replaced("# Page\n", "| new |\n").is_err());
    }
}
