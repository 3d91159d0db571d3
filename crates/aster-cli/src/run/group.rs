//! The command's process group: signals to it, and whether anyone in it still lives.

use std::fs;
use std::io;

use rustix::process::{
    Pid, Signal, WaitId, WaitIdOptions, kill_process_group, test_kill_process_group, waitid,
};

use crate::failure::FailureKind;

/// How the group's leader, the command itself, ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LeaderEnd {
    Exited(i32),
    Signaled(i32),
    /// The system did not tell.
    Unknown,
}

impl LeaderEnd {
    /// The exit code that shells give: its own, or 128 + the signal.
    pub(crate) fn exit_code(self) -> u8 {
        match self {
            LeaderEnd::Exited(code) => code.to_le_bytes()[0],
            LeaderEnd::Signaled(signal) => u8::try_from(128 + signal).unwrap_or(u8::MAX),
            LeaderEnd::Unknown => FailureKind::Internal.exit_code(),
        }
    }
}

/// What `waitid` has to tell about the leader.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LeaderNews {
    /// It ended. It is not reaped yet, so its id cannot be another process's.
    Ended(LeaderEnd),
    /// It was stopped by this signal, from job control or from somebody.
    Stopped(i32),
}

/// A process group that we created, by the id of its leader.
#[derive(Debug)]
pub(crate) struct Group {
    leader: Pid,
    reaped: bool,
}

impl Group {
    pub(crate) fn of_leader(leader: Pid) -> Self {
        Self {
            leader,
            reaped: false,
        }
    }

    pub(crate) fn id(&self) -> Pid {
        self.leader
    }

    /// Sends `signal` to every member. A group that is gone is no failure.
    pub(crate) fn signal(&self, signal: Signal) {
        match kill_process_group(self.leader, signal) {
            Ok(()) | Err(rustix::io::Errno::SRCH) => {}
            Err(error) => {
                tracing::error!(%error, group = self.leader.as_raw_nonzero(), ?signal, "cannot signal");
            }
        }
    }

    /// Looks without waiting.
    pub(crate) fn leader_news(&self) -> io::Result<Option<LeaderNews>> {
        let look = |options| waitid(WaitId::Pid(self.leader), options | WaitIdOptions::NOHANG);
        let ended = look(WaitIdOptions::EXITED | WaitIdOptions::NOWAIT)?;
        if let Some(status) = ended {
            let end = match (status.exit_status(), status.terminating_signal()) {
                (Some(code), _) => LeaderEnd::Exited(code),
                (None, Some(signal)) => LeaderEnd::Signaled(signal),
                (None, None) => LeaderEnd::Unknown,
            };
            return Ok(Some(LeaderNews::Ended(end)));
        }
        let stopped = look(WaitIdOptions::STOPPED)?;
        let signal = stopped.and_then(|status| status.stopping_signal());
        Ok(signal.map(LeaderNews::Stopped))
    }

    /// Gives the ended leader's id back to the system. Signals before, not after.
    pub(crate) fn reap_leader(&mut self) {
        if !self.reaped {
            let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG;
            self.reaped = matches!(waitid(WaitId::Pid(self.leader), options), Ok(Some(_)));
        }
    }

    /// Whether every member has ended. Zombies count as ended: they can do nothing any more, and in a
    /// container nobody may ever reap them.
    pub(crate) fn is_gone(&self) -> bool {
        match living_members(self.leader) {
            Ok(members) => members == 0,
            // No /proc to look into: a group that cannot be signalled has no members.
            Err(_) => matches!(
                test_kill_process_group(self.leader),
                Err(rustix::io::Errno::SRCH)
            ),
        }
    }
}

fn living_members(group: Pid) -> io::Result<usize> {
    let group = group.as_raw_nonzero().get();
    let mut members = 0;
    for entry in fs::read_dir("/proc")? {
        let name = entry?.file_name();
        let Some(process) = name.to_str().filter(|name| name.parse::<i32>().is_ok()) else {
            continue;
        };
        // A process that ended in the meantime has no file any more.
        let Ok(stat) = fs::read(format!("/proc/{process}/stat")) else {
            continue;
        };
        if member_of(&stat) == Some((group, true)) {
            members += 1;
        }
    }
    Ok(members)
}

/// Process group and whether it lives, from `pid (name) state ppid pgrp …`. The name may hold anything,
/// parentheses too, and need not be UTF-8.
pub(crate) fn member_of(stat: &[u8]) -> Option<(i32, bool)> {
    let after_name = stat.iter().rposition(|byte| *byte == b')')? + 1;
    let fields = std::str::from_utf8(&stat[after_name..]).ok()?;
    let mut fields = fields.split_ascii_whitespace();
    let state = fields.next()?;
    let group = fields.nth(1)?.parse().ok()?;
    Some((group, !matches!(state, "Z" | "X")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stat_lines_are_read_past_any_name() {
        assert_eq!(member_of(b"12 (a) b)) S 1 77 77 0"), Some((77, true)));
        assert_eq!(member_of(b"12 (\xff\xfe) Z 1 77 77 0"), Some((77, false)));
        assert_eq!(member_of(b"12 (sh) R"), None);
        assert_eq!(member_of(b""), None);
    }

    #[test]
    fn exit_codes_as_shells_give_them() {
        assert_eq!(LeaderEnd::Exited(0).exit_code(), 0);
        assert_eq!(LeaderEnd::Exited(255).exit_code(), 255);
        assert_eq!(LeaderEnd::Signaled(15).exit_code(), 143);
        assert_eq!(LeaderEnd::Signaled(64).exit_code(), 192);
    }
}
