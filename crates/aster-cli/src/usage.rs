//! Reading the command line, and what is said when it is wrong.

use std::ffi::{OsStr, OsString};
use std::process::ExitCode;

use aster::lease::ResourceName;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Error, Parser};

use crate::arguments::{Arguments, ColorChoice, Command};
use crate::failure::{Failure, FailureKind};
use crate::output::{Output, one_line, quoted};

/// A tip with a longer command line than this helps nobody.
const TIP_WORDS_MAX: usize = 32;

/// Stands where a resource that begins with `-` cannot.
const PLACEHOLDER: &str = "resource";

/// The arguments of this process.
pub(crate) fn parse() -> Result<Arguments, Error> {
    parse_words(&std::env::args_os().collect::<Vec<_>>())
}

/// The program's name and its arguments.
pub(crate) fn parse_words(words: &[OsString]) -> Result<Arguments, Error> {
    Arguments::try_parse_from(words).or_else(|error| {
        let meant = match error.kind() {
            ErrorKind::MissingRequiredArgument => run_of_a_hyphen(words),
            _ => None,
        };
        meant.ok_or_else(|| with_tip(error, words))
    })
}

/// `aster run -- -name -- CMD`: the only way to say a resource that begins with `-`. Without a resource before the
/// first `--` the line has no other meaning.
fn run_of_a_hyphen(words: &[OsString]) -> Option<Arguments> {
    let (before, [resource, command @ ..]) = split_at_dashes(words)? else {
        return None;
    };
    if command.first()? != "--" {
        return None;
    }
    let resource = resource
        .to_str()
        .and_then(|name| ResourceName::new(name).ok())?;
    let mut with_placeholder = before.to_vec();
    with_placeholder.push(PLACEHOLDER.into());
    with_placeholder.extend_from_slice(command);
    let mut arguments = Arguments::try_parse_from(with_placeholder).ok()?;
    let Command::Run(run) = &mut arguments.command else {
        return None;
    };
    run.resource = resource;
    Some(arguments)
}

fn split_at_dashes(words: &[OsString]) -> Option<(&[OsString], &[OsString])> {
    let at = words.iter().position(|word| word == "--")?;
    Some((&words[..at], &words[at + 1..]))
}

/// Adds what probably was meant, where clap cannot know it.
fn with_tip(mut error: Error, words: &[OsString]) -> Error {
    if let Some(tip) = tip(&error, words) {
        let tip = ContextValue::StyledStrs(vec![tip.into()]);
        error.insert(ContextKind::Suggested, tip);
    }
    error
}

fn tip(error: &Error, words: &[OsString]) -> Option<String> {
    let run = words.iter().position(|word| word == "run")?;
    let unknown = match (error.kind(), error.get(ContextKind::InvalidArg)) {
        (ErrorKind::UnknownArgument, Some(ContextValue::String(unknown))) => Some(unknown.as_str()),
        (ErrorKind::MissingRequiredArgument, _) => None,
        _ => return None,
    };
    match (unknown, split_at_dashes(words)) {
        (Some(unknown), None) if !unknown.starts_with('-') => {
            let line = (run + 1..words.len())
                .filter(|at| words[*at] == unknown)
                .take(TIP_WORDS_MAX)
                .map(|at| with_dashes(words, at))
                .find(|line| is_run_of(line, unknown))?;
            Some(format!("put -- before the command: {}", shown(&line)))
        }
        // Has clap a better idea, an option with nearly that name?
        (Some(unknown), Some((before, command)))
            if error.get(ContextKind::SuggestedArg).is_none() =>
        {
            let (last, before) = before.split_last()?;
            // Of `-xyz` clap names the first letter only.
            match last.as_encoded_bytes().starts_with(unknown.as_bytes()) {
                true => hyphen_tip(before, last, command),
                false => None,
            }
        }
        (None, Some((before, [first, command @ ..]))) => match first.as_encoded_bytes().first() {
            Some(b'-') => hyphen_tip(before, first, command),
            _ => Some("the resource stands before the --".to_owned()),
        },
        _ => None,
    }
}

fn with_dashes(words: &[OsString], at: usize) -> Vec<OsString> {
    let mut line = words.to_vec();
    line.insert(at, "--".into());
    line
}

fn is_run_of(line: &[OsString], program: &str) -> bool {
    match Arguments::try_parse_from(line).map(|arguments| arguments.command) {
        Ok(Command::Run(run)) => run.command.first().is_some_and(|first| first == program),
        _ => false,
    }
}

fn hyphen_tip(before: &[OsString], resource: &OsStr, command: &[OsString]) -> Option<String> {
    let mut line = before.to_vec();
    line.extend(["--".into(), resource.to_owned(), "--".into()]);
    match command {
        [] => line.push("CMD".into()),
        command => line.extend_from_slice(command),
    }
    run_of_a_hyphen(&line)?;
    let line = shown(&line);
    Some(format!(
        "a resource that begins with - needs a -- of its own: {line}"
    ))
}

/// The line as one would type it, if it is not too long.
fn shown(line: &[OsString]) -> String {
    let mut words = vec!["aster".to_owned()];
    words.extend(
        line.iter()
            .skip(1)
            .take(TIP_WORDS_MAX)
            .map(|word| quoted(&one_line(&word.to_string_lossy()))),
    );
    if line.len() > TIP_WORDS_MAX + 1 {
        words.push("…".to_owned());
    }
    words.join(" ")
}

/// Help and version are answers; everything else that clap has to say is bad usage.
pub(crate) fn answer(error: &Error) -> ExitCode {
    let is_answer = matches!(
        error.kind(),
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion
    );
    let wants_json = std::env::args_os()
        .take_while(|argument| argument != "--")
        .any(|argument| argument == "--json");
    if is_answer || !wants_json {
        let _ = error.print();
    } else {
        let text = error.to_string();
        let advice = text.find("\n\nFor more information").unwrap_or(text.len());
        let message = text[..advice].trim_start_matches("error: ").trim_end();
        Output::new(true, ColorChoice::Never).failure(&Failure::new(FailureKind::Usage, message));
    }
    match is_answer {
        true => ExitCode::SUCCESS,
        false => ExitCode::from(FailureKind::Usage.exit_code()),
    }
}
