//! What the figures of a page come from.

use std::fs;
use std::path::Path;

/// This machine in one line: processor, system, and the file system that the program lies on, where the
/// durable stores are too.
#[must_use]
pub fn machine() -> String {
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let processor = field("/proc/cpuinfo", "model name").unwrap_or_else(|| "unknown".to_owned());
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let system = format!("{} {}", std::env::consts::OS, release.trim());
    let files = std::env::current_exe()
        .ok()
        .and_then(|program| file_system(&program))
        .unwrap_or_else(|| "unknown".to_owned());
    format!("{cores} cores ({processor}), {system}, files on {files}")
}

/// The value after `name` in a file of `name : value` lines.
fn field(path: &str, name: &str) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    let line = text.lines().find(|line| line.starts_with(name))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

/// The type of the file system that `path` is on: the longest mount point that contains it.
fn file_system(path: &Path) -> Option<String> {
    let mounts = fs::read_to_string("/proc/mounts").ok()?;
    mounts
        .lines()
        .filter_map(|line| {
            let mut words = line.split(' ').skip(1);
            Some((words.next()?, words.next()?))
        })
        .filter(|(place, _)| path.starts_with(place))
        .max_by_key(|(place, _)| place.len())
        .map(|(_, kind)| kind.to_owned())
}
