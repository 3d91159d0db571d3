//! Whose clock it is: two processes may compare instants only if they read the same clock.
//!
//! A clock is named by the boot id and by the offset that a time namespace adds to it. What cannot be
//! named is private to the process that reads it; others judge its rows by watching.

use aster_lease::clock::{boot_time, wall_unix_ms};

/// A clock that several processes may share, by name. What stands before the first `/` names the
/// boot: clocks of one boot have seen no power loss between them.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ClockDomain(String);

impl ClockDomain {
    /// A domain by its name. Equal names promise one and the same clock.
    #[must_use]
    pub fn new(name: impl Into<String>) -> Self {
        Self(name.into())
    }

    /// The name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// The clock by which a store judges expiry. Implement it to drive time in a test.
pub trait StoreTime: Send + Sync + 'static {
    /// Which clock this is; `None` when that cannot be told. Asked once, when a store is opened.
    fn domain(&self) -> Option<ClockDomain>;

    /// Nanoseconds on that clock. It never goes back within one domain and counts suspension.
    fn now_ns(&self) -> u64;

    /// Milliseconds since 1970 on the wall clock. It stands in audit records and decides nothing.
    fn wall_unix_ms(&self) -> u64;
}

/// The operating system's boot-time clock.
#[derive(Debug, Clone, Copy, Default)]
pub struct BootTime;

impl StoreTime for BootTime {
    fn domain(&self) -> Option<ClockDomain> {
        system_domain()
    }

    fn now_ns(&self) -> u64 {
        u64::try_from(boot_time().as_nanos()).unwrap_or(u64::MAX)
    }

    fn wall_unix_ms(&self) -> u64 {
        wall_unix_ms()
    }
}

#[cfg(target_os = "linux")]
fn system_domain() -> Option<ClockDomain> {
    use std::fs;
    use std::io::ErrorKind::NotFound;
    let boot_id = fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    let own = fs::read_link("/proc/self/ns/time");
    let of_children = fs::read_link("/proc/self/ns/time_for_children");
    let offsets = fs::read_to_string("/proc/self/timens_offsets");
    let offset = match (own, of_children, offsets) {
        // The offsets on show are the children's. They are ours only if the namespace is the same.
        (Ok(own), Ok(of_children), Ok(offsets)) if own == of_children => boot_offset(&offsets)?,
        // A kernel without time namespaces has one clock.
        (Err(own), _, Err(offsets)) if own.kind() == NotFound && offsets.kind() == NotFound => {
            "0 0".to_owned()
        }
        _ => return None,
    };
    Some(ClockDomain(format!("{}/{offset}", boot_id.trim())))
}

/// The `boottime` line of `/proc/self/timens_offsets`, as "seconds nanoseconds".
#[cfg(target_os = "linux")]
pub(crate) fn boot_offset(offsets: &str) -> Option<String> {
    offsets.lines().find_map(|line| {
        let mut fields = line.split_ascii_whitespace();
        match (fields.next(), fields.next(), fields.next()) {
            (Some("boottime" | "7"), Some(seconds), Some(nanos)) => {
                let (seconds, nanos): (i64, i64) = (seconds.parse().ok()?, nanos.parse().ok()?);
                Some(format!("{seconds} {nanos}"))
            }
            _ => None,
        }
    })
}

/// Without a name for the boot, every process judges by watching.
#[cfg(not(target_os = "linux"))]
fn system_domain() -> Option<ClockDomain> {
    None
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::boot_offset;

    #[test]
    fn the_boottime_line_names_the_offset() {
        let shown = "monotonic           0         0\nboottime         1000        25\n";
        assert_eq!(boot_offset(shown).as_deref(), Some("1000 25"));
        assert_eq!(boot_offset("monotonic 0 0\n"), None);
        assert_eq!(boot_offset("boottime x 0\n"), None);
    }
}
