//! A process of its own that judges what a death has left. The process that serves the disk must not use it:
//! the two would wait for each other in the kernel.

use std::io::{self, Read, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::expected::Expected;
use crate::rules::{Broken, Rule};
use crate::store::{go_on, look, open_after_death};
use crate::teller::Teller;
use crate::words::{Line, Word};

/// A store that does not come back by then hangs.
const JUDGING_MAX: Duration = Duration::from_secs(60);

/// What the process says.
#[derive(Serialize, Deserialize)]
enum Verdict {
    /// Everything is there, and this has to stay from now on.
    Sound(Box<Expected>),
    /// A rule is broken.
    Broken(Broken),
}

/// Starts such a process for the disk at `directory`. Answers what has to stay from then on.
///
/// # Errors
///
/// The rule that is broken, and what was seen.
pub fn judge(
    program: &Path,
    directory: &Path,
    expected: &Expected,
    boot: u64,
) -> Result<Expected, Broken> {
    let told = serde_json::to_vec(expected).map_err(text)?;
    let mut child = Command::new(program)
        .arg("judge")
        .arg(directory)
        .arg(boot.to_string())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(text)?;
    if let Some(mut input) = child.stdin.take() {
        // A child that is gone says why by its status.
        let _ = input.write_all(&told);
    }
    let output = child.wait_with_output().map_err(text)?;
    match serde_json::from_slice(&output.stdout) {
        Ok(Verdict::Sound(settled)) => Ok(*settled),
        Ok(Verdict::Broken(what)) => Err(what),
        Err(_) => {
            let status = output.status;
            Err(Rule::Sound.broken(format!("the store ends its process: {status}")))
        }
    }
}

/// What that process does.
///
/// # Errors
///
/// If it cannot read or write what it has to.
pub fn judge_here(directory: &Path, boot: u64) -> io::Result<()> {
    let mut text = Vec::new();
    io::stdin().read_to_end(&mut text)?;
    let expected: Expected = serde_json::from_slice(&text)?;
    let timer = std::thread::Builder::new().name("hang".to_owned());
    timer.spawn(|| {
        std::thread::sleep(JUDGING_MAX);
        std::process::exit(9);
    })?;
    let teller = Teller::new(directory, "judge".to_owned())?;
    let verdict = match judge_store(directory, expected, boot, &teller) {
        Ok(settled) => Verdict::Sound(Box::new(settled)),
        Err(what) => Verdict::Broken(what),
    };
    let mut out = io::stdout().lock();
    out.write_all(&serde_json::to_vec(&verdict)?)?;
    out.flush()
}

fn judge_store(
    directory: &Path,
    expected: Expected,
    boot: u64,
    teller: &Teller,
) -> Result<Expected, Broken> {
    let store = open_after_death(directory, boot)
        .map_err(|error| Rule::Sound.broken(format!("it does not open: {error}")))?;
    teller.say(Word::Opened);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .map_err(text)?;
    runtime.block_on(async {
        let found = look(&store).await.map_err(text)?;
        expected.check(&found)?;
        teller.say(Word::Looked);
        let settled = expected.settled(&found);
        let said = std::sync::Mutex::new(settled.clone());
        let tell = |line: Line| {
            teller.say_line(&line);
            if let Ok(mut said) = said.lock() {
                said.hear_line(line);
            }
        };
        go_on(&store, boot, &settled, &found, &tell).await?;
        let found = look(&store).await.map_err(text)?;
        let said = said.into_inner().map_err(text)?;
        said.check(&found)
            .map_err(|broken| broken.seen("after it went on"))?;
        Ok(settled)
    })
}

/// Whatever fails here keeps the store from being judged: it does not work on.
fn text(error: impl std::fmt::Display) -> Broken {
    Rule::Sound.broken(error)
}
